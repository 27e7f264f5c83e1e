"""A small writer of ONNX graphs: nodes, constants and names, in the order they are asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 20
"""LayerNormalization (17) and Gelu (20) as single operators; read by ONNX Runtime ≥ 1.23 and TensorRT ≥ 10.12."""

IR_VERSION = 10
"""The intermediate-representation version that these runtimes all read."""

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


class Graph:
    """Collects nodes and initializers; values are referred to by name.

    Names are derived from the arguments alone, so the same calls give the same bytes.
    """

    def __init__(self) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: dict[str, onnx.TensorProto] = {}
        self._used: set[str] = set()

    def node(self, operator: str, inputs: Sequence[str], name: str, **attributes: Any) -> str:
        """Add a node with one output and return the output's name."""
        return self.nodes(operator, inputs, [name], **attributes)[0]

    def nodes(self, operator: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> list[str]:
        """Add a node with several outputs, named after the first, and return their names."""
        for name in outputs:
            if name in self._used:
                raise ValueError(f"value {name} is defined twice in the graph")
            self._used.add(name)
        self._nodes.append(helper.make_node(operator, list(inputs), list(outputs), name=outputs[0], **attributes))
        return list(outputs)

    def weight(self, name: str, values: np.ndarray) -> str:
        """Store an initializer and return its name."""
        if name in self._used:
            raise ValueError(f"value {name} is defined twice in the graph")
        self._used.add(name)
        self._initializers[name] = numpy_helper.from_array(np.ascontiguousarray(values), name)
        return name

    def constant(self, values: Any, dtype: type = np.int64) -> str:
        """A small shared constant, stored once for each distinct value."""
        array: np.ndarray = np.asarray(values, dtype)
        name = f"const.{array.dtype}.{'x'.join(map(str, array.shape))}.{'_'.join(map(str, array.ravel()))}"
        if name not in self._initializers:
            self.weight(name, array)
        return name

    def model(
        self,
        name: str,
        inputs: Mapping[str, tuple[int, Sequence[int | str]]],
        outputs: Mapping[str, tuple[int, Sequence[int | str]]],
        metadata: Mapping[str, str],
        producer_version: str,
    ) -> onnx.ModelProto:
        """The finished model.

        Args:
            name: of the graph.
            inputs, outputs: name → (element type, shape); a string is a dynamic axis.
            metadata: written to ``metadata_props``, sorted by key.
            producer_version: version of hydrant.
        """
        graph = helper.make_graph(
            self._nodes,
            name,
            [helper.make_tensor_value_info(key, kind, list(shape)) for key, (kind, shape) in inputs.items()],
            [helper.make_tensor_value_info(key, kind, list(shape)) for key, (kind, shape) in outputs.items()],
            list(self._initializers.values()),
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="hydrant",
            producer_version=producer_version,
        )
        helper.set_model_props(model, dict(sorted(metadata.items())))
        return model
