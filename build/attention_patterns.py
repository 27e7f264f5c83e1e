"""Attention in the graph of a traced model: which blocks have the form that the libraries fuse, and why others do not.

The form is a product of two activations, a softmax and a product. In between, operators may change each score by
itself, with any factor, mask or bias. Every value in between has one reader.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

from ..bundle.traced import Traced
from ..errors import require

NARROWEST, WIDEST = 12, 256  # head widths of fused kernels
LAYOUT = {"Cast", "Identity", "Reshape"}
FUSED = {"Add", "Sub", "Mul", "Div", "Clip", "Where"} | LAYOUT  # from the product to the softmax
OTHERS = {"Where", "Slice", "Transpose", "Expand", "Squeeze", "Unsqueeze"}  # behind the softmax
SEVERAL = "several operators read the {}"
APPLIED = "{} is applied to the {}"


def attention_patterns(path: Path, architecture: Traced) -> tuple[int, dict[str, int]]:
    """Attention blocks of a graph, and the number of those without a fused kernel by reason."""
    onnx = require("onnx", "fuse", "find the attention of a traced graph")
    graph = onnx.load(str(path), load_external_data=False).graph
    made = {name: node for node in graph.node for name in node.output}
    computed = {value.name for value in graph.input} - {"attention_mask"}  # not from sizes, masks and weights alone
    readers: dict[str, list[Any]] = {}
    for node in graph.node:
        if node.op_type != "Shape" and computed & {*node.input}:
            computed |= {*node.output}
        for name in node.input:
            readers.setdefault(name, []).append(node)

    @cache
    def scores(name: str) -> str | None:
        """The reason that scores have no fused kernel; empty if they may have one, ``None`` if they are not scores."""
        node, several = made.get(name), len(readers[name]) > 1
        if node is None or name not in computed:
            return None
        if node.op_type in ("MatMul", "Einsum"):
            return None if {*node.input} - computed else SEVERAL.format("scores") * several
        reasons = [reason for each in node.input if each and (reason := scores(each)) is not None]
        own = APPLIED.format(node.op_type, "scores") * (node.op_type not in FUSED)
        return min(reasons, key=len) or own or SEVERAL.format("scores") * several if reasons else None

    softmaxes = [node for node in graph.node if node.op_type == "Softmax"]
    pairs = [(scores(node.input[0]), _probabilities(node.output[0], readers)) for node in softmaxes]
    reasons = [before or behind for before, behind in pairs if before is not None and behind is not None]
    if not any(NARROWEST <= block.head_width <= WIDEST for block in architecture.blocks):
        widths = ", ".join(map(str, sorted({block.head_width for block in architecture.blocks})))
        narrow = f"head width {widths}; fused kernels need {NARROWEST} to {WIDEST}"
        reasons = [reason or narrow for reason in reasons]
    return len(reasons), dict(Counter(filter(None, reasons)))


def _probabilities(name: str, readers: dict[str, list[Any]]) -> str | None:
    """The reason that probabilities have no fused kernel, empty if they may have one; ``None`` without a product."""
    several = SEVERAL.format("probabilities") * (len(readers.get(name, [])) > 1)
    for node in readers.get(name, []):
        if node.op_type == "MatMul" and node.input[0] == name:
            return several
        if node.op_type in LAYOUT | OTHERS and (reason := _probabilities(node.output[0], readers)) is not None:
            return several or APPLIED.format(node.op_type, "probabilities") * (node.op_type in OTHERS) or reason
    return None
