"""Small writer of ONNX graphs: nodes, constants and names, in the order of the calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ..errors import InputError
from ..version import __version__

IR_VERSION = 10  # ONNX Runtime ≥ 1.23 and TensorRT ≥ 10.12 all read it
FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
KINDS = {"fp32": TensorProto.FLOAT, "fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}


class Graph:
    """Nodes and initializers by name, in the graph's precision or float32."""

    def __init__(self, precision: str = "fp32") -> None:
        self.kind: int = KINDS[precision]  # current element type
        self._nodes: dict[str, onnx.NodeProto] = {}
        self._initializers: dict[str, onnx.TensorProto] = {}

    @property
    def _dtype(self) -> Any:
        return helper.tensor_dtype_to_np_dtype(self.kind)

    @contextmanager
    def wide(self, wanted: bool = True) -> Iterator[None]:
        """Store numbers added inside the block in float32."""
        before = self.kind
        self.kind = FLOAT if wanted else before
        try:
            yield
        finally:
            self.kind = before

    def node(self, operator: str, inputs: Sequence[str], name: str, **attributes: Any) -> str:
        """Add a node with one output and return the output's name."""
        return self.nodes(operator, inputs, [name], **attributes)[0]

    def nodes(self, operator: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> list[str]:
        """Add a node with several outputs, named after the first, and return their names."""
        node = helper.make_node(operator, list(inputs), list(outputs), name=outputs[0], **attributes)
        if self._nodes.setdefault(outputs[0], node) != node:
            raise ValueError(f"value {outputs[0]} is defined twice in the graph")
        return list(outputs)

    def cast(self, x: str, name: str) -> str:
        """Cast ``x`` to the current element type."""
        return self.node("Cast", [x], name, to=self.kind)

    def weight(self, name: str, values: np.ndarray) -> str:
        """Store an initializer and return its name; float32 values take the graph's precision."""
        if values.dtype == np.float32 and self.kind != FLOAT:
            with np.errstate(over="ignore"):
                narrow = values.astype(self._dtype)
            if not np.isfinite(narrow.astype(np.float32)).all():
                problem = f"weight {name} holds {np.abs(values).max():.3g}, beyond the range of {self._dtype}"
                raise InputError(f"{problem}; export in {'BF16 or ' * (self.kind == KINDS['fp16'])}FP32")
            values = narrow
        self._initializers[name] = numpy_helper.from_array(np.ascontiguousarray(values), name)
        return name

    def constant(self, values: Any, dtype: type = np.int64) -> str:
        """Small constant, stored once for each distinct value; integers or float32."""
        array: np.ndarray = np.asarray(values, dtype)
        name = f"const.{array.dtype}.{'x'.join(map(str, array.shape))}.{'_'.join(map(str, array.ravel()))}"
        return self.shared(name, array)

    def number(self, value: float) -> str:
        """Shared floating-point scalar of the current element type."""
        return self.constant(value, self._dtype)

    def ones(self, width: int) -> str:
        """Shared vector of ones of the current element type."""
        return self.shared(f"const.ones.{self._dtype}.{width}", np.ones(width, self._dtype))

    def shared(self, name: str, array: np.ndarray) -> str:
        """Constant of any type, stored once under its name."""
        if name not in self._initializers:
            self._initializers[name] = numpy_helper.from_array(array, name)
        return name

    def add_to(self, graph: onnx.GraphProto) -> None:
        """Add the nodes and initializers to an existing graph."""
        graph.node.extend(self._nodes.values())
        graph.initializer.extend(self._initializers.values())

    def model(self, name: str, inputs: Mapping[str, tuple[int, Sequence[int | str]]],
              outputs: Mapping[str, tuple[int, Sequence[int | str]]], metadata: Mapping[str, str],
              opset: int) -> onnx.ModelProto:  # fmt: skip
        """Finished model; inputs and outputs are name → (element type, shape); a string is a dynamic axis."""
        reads, gives = (
            [helper.make_tensor_value_info(key, kind, list(shape)) for key, (kind, shape) in values.items()]
            for values in (inputs, outputs)
        )
        graph = helper.make_graph([], name, reads, gives)
        self.add_to(graph)
        facts = {"producer_name": "hydrant", "producer_version": __version__, "ir_version": IR_VERSION}
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], **facts)
        helper.set_model_props(model, dict(sorted(metadata.items())))
        return model
