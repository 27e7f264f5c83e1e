"""A second executor of ONNX graphs, in PyTorch: for the types that ONNX Runtime's CPU kernels lack (BF16).

It is strictly typed: an operator whose floating-point inputs differ in type raises, as a strongly typed
TensorRT network would refuse it.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import torch
from onnx import TensorProto, numpy_helper

TYPES = {
    TensorProto.FLOAT: torch.float32,
    TensorProto.FLOAT16: torch.float16,
    TensorProto.BFLOAT16: torch.bfloat16,
    TensorProto.INT64: torch.int64,
    TensorProto.BOOL: torch.bool,
}


def run(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Outputs of the graph, by name."""
    values = all_values(model, inputs)
    return {output.name: values[output.name].numpy() for output in model.graph.output}


def all_values(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> dict[str, Any]:
    """Every value of the graph, by name."""
    values: dict[str, Any] = {tensor.name: _tensor(tensor) for tensor in model.graph.initializer}
    values |= {name: torch.from_numpy(array) for name, array in inputs.items()}
    for node in model.graph.node:
        arguments = [values[name] for name in node.input]
        floats = {a.dtype for a in arguments if a.is_floating_point()}
        assert len(floats) <= 1, f"{node.op_type} {node.name} mixes {floats}"
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        made = _run(node.op_type, arguments, attributes, len(node.output))
        values |= dict(zip(node.output, made, strict=True))
    return values


def _tensor(tensor: onnx.TensorProto) -> torch.Tensor:
    array = numpy_helper.to_array(tensor)
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())


def _run(operator: str, x: list[torch.Tensor], at: dict[str, Any], outputs: int) -> list[torch.Tensor]:
    if operator == "Split":
        size = x[1].tolist() if len(x) > 1 else x[0].shape[at["axis"]] // at["num_outputs"]
        return list(x[0].split(size, at["axis"]))
    assert outputs == 1
    return [OPERATORS[operator](x, at)]


def _reshape(x: list[torch.Tensor], at: dict[str, Any]) -> torch.Tensor:
    return x[0].reshape([x[0].shape[i] if size == 0 else size for i, size in enumerate(x[1].tolist())])


def _norm(x: list[torch.Tensor], at: dict[str, Any]) -> torch.Tensor:
    wide = x[0].float()  # the standard computes the first stage in float32
    centred = wide - wide.mean(-1, keepdim=True)
    normed = (centred / (centred.square().mean(-1, keepdim=True) + at["epsilon"]).sqrt()).to(x[0].dtype)
    scaled = normed * x[1]
    return scaled + x[2] if len(x) > 2 else scaled


def _attention(x: list[torch.Tensor], at: dict[str, Any]) -> torch.Tensor:
    scores = x[0] @ x[1].mT * at["scale"]
    return (scores + x[3] if len(x) > 3 else scores).softmax(-1) @ x[2]


def _gather(x: list[torch.Tensor], at: dict[str, Any]) -> torch.Tensor:
    axis = at.get("axis", 0)
    picked = x[0].index_select(axis, x[1].flatten())
    return picked.reshape(*x[0].shape[:axis], *x[1].shape, *x[0].shape[axis + 1 :])


def _slice(x: list[torch.Tensor], at: dict[str, Any]) -> torch.Tensor:
    (start,), (end,), (axis,) = (part.tolist() for part in x[1:4])
    return x[0].narrow(axis, start, min(end, x[0].shape[axis]) - start)


def _unsqueeze(x: list[torch.Tensor], at: dict[str, Any]) -> torch.Tensor:
    out = x[0]
    for axis in sorted(x[1].flatten().tolist()):
        out = out.unsqueeze(axis)
    return out


OPERATORS: dict[str, Any] = {
    "Abs": lambda x, at: x[0].abs(),
    "Add": lambda x, at: x[0] + x[1],
    "And": lambda x, at: x[0] & x[1],
    "ArgMax": lambda x, at: x[0].argmax(at["axis"]),
    "Attention": _attention,
    "Cast": lambda x, at: x[0].to(TYPES[at["to"]]),
    "Clip": lambda x, at: x[0].clamp(*x[1:]),
    "Concat": lambda x, at: torch.cat(x, at["axis"]),
    "Conv": lambda x, at: torch.nn.functional.conv2d(*x, stride=at["strides"]),
    "Cos": lambda x, at: x[0].cos(),
    "CumSum": lambda x, at: x[0].cumsum(int(x[1])),
    "Div": lambda x, at: x[0] / x[1],
    "Equal": lambda x, at: x[0] == x[1],
    "Expand": lambda x, at: x[0].expand(torch.broadcast_shapes(x[0].shape, x[1].tolist())),
    "Flatten": lambda x, at: x[0].flatten(0, at["axis"] - 1).flatten(1),
    "Gather": _gather,
    "Gelu": lambda x, at: torch.nn.functional.gelu(x[0], approximate=at["approximate"].decode()),
    "LayerNormalization": _norm,
    "LessOrEqual": lambda x, at: x[0] <= x[1],
    "Log": lambda x, at: x[0].log(),
    "MatMul": lambda x, at: x[0] @ x[1],
    "Max": lambda x, at: torch.maximum(x[0], x[1]),
    "Mul": lambda x, at: x[0] * x[1],
    "Neg": lambda x, at: -x[0],
    "Not": lambda x, at: ~x[0],
    "Or": lambda x, at: x[0] | x[1],
    "Range": lambda x, at: torch.arange(*(int(part) for part in x)),
    "ReduceL2": lambda x, at: x[0].norm(dim=x[1].tolist(), keepdim=bool(at["keepdims"])),
    "ReduceLogSumExp": lambda x, at: x[0].logsumexp(x[1].tolist(), keepdim=bool(at["keepdims"])),
    "ReduceMax": lambda x, at: x[0].amax(x[1].tolist(), keepdim=bool(at["keepdims"])),
    "ReduceMean": lambda x, at: x[0].mean(x[1].tolist(), keepdim=bool(at["keepdims"])),
    "ReduceSum": lambda x, at: x[0].sum(x[1].tolist(), keepdim=bool(at["keepdims"])),
    "ReduceSumSquare": lambda x, at: x[0].square().sum(x[1].tolist(), keepdim=bool(at["keepdims"])),
    "Relu": lambda x, at: x[0].relu(),
    "Reshape": _reshape,
    "Shape": lambda x, at: torch.tensor(x[0].shape[at.get("start", 0) : at.get("end")]),
    "Sigmoid": lambda x, at: x[0].sigmoid(),
    "Sin": lambda x, at: x[0].sin(),
    "Slice": _slice,
    "Softmax": lambda x, at: x[0].softmax(at["axis"]),
    "Squeeze": lambda x, at: x[0].squeeze(x[1].tolist()),
    "Sub": lambda x, at: x[0] - x[1],
    "Tanh": lambda x, at: x[0].tanh(),
    "Tile": lambda x, at: x[0].repeat(x[1].tolist()),
    "Transpose": lambda x, at: x[0].permute(at["perm"]),
    "Unsqueeze": _unsqueeze,
    "Where": lambda x, at: torch.where(x[0], x[1], x[2]),
}
