"""Masked writes, ``x[mask] = number``: a selection instead of ScatterND at places known only when the graph runs."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common


def replace_masked_writes(model: ir.Model) -> None:
    """Replace ScatterND by Where if one number is written."""
    common.ShapeInferencePass()(model)
    for node in list(model.graph):
        data, places, written = node.inputs if node.op_type == "ScatterND" and not node.attributes else [None] * 3
        mask, number = _mask(places), _number(written)
        if data is None or mask is None or number is None or mask.shape is None or data.shape is None:
            continue
        if mask.dtype == ir.DataType.BOOL and mask.shape.rank() == data.shape.rank():
            where = ir.node("Where", [mask, number, data])
            model.graph.insert_before(node, where)
            node.outputs[0].replace_all_uses_with(where.outputs[0])
    common.RemoveUnusedNodesPass()(model)


def _mask(places: ir.Value | None) -> ir.Value | None:
    """The mask whose true places are listed."""
    turned = places.producer() if places is not None else None
    listed = turned.inputs[0] if turned is not None and turned.op_type == "Transpose" else None
    node = listed.producer() if listed is not None else None
    return node.inputs[0] if node is not None and node.op_type == "NonZero" else None


def _number(written: ir.Value | None) -> ir.Value | None:
    """The scalar that repeats in a value."""
    node = written.producer() if written is not None else None
    while node is not None and node.op_type in ("Reshape", "Expand"):
        written = node.inputs[0]
        node = written.producer() if written is not None else None
    return written if written is not None and written.shape is not None and written.shape.rank() == 0 else None
