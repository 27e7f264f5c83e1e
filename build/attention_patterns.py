"""Attention in the graph of a traced model: which blocks have the form that the libraries fuse, and why others do not.

The form is a product, a softmax and a product. Between the first two a factor, a mask or a stored bias may be applied.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from ..bundle.traced import Traced
from ..errors import require

NARROWEST, WIDEST = 12, 256  # head widths of fused kernels
PRODUCTS = {"MatMul", "Gemm", "Conv", "Einsum"}
ARITHMETIC = {"Add", "Sub", "Mul", "Div", "Cast", "Identity"}
LAYOUT = {"Reshape", "Transpose", "Expand", "Squeeze", "Unsqueeze"}
SUM = "scores are sums of several products, such as relative positions"


def attention_patterns(path: Path, architecture: Traced) -> tuple[int, dict[str, int]]:
    """Attention blocks of a graph, and the number of those without a fused kernel by reason."""
    onnx = require("onnx", "fuse", "find the attention of a traced graph")
    nodes = onnx.load(str(path), load_external_data=False).graph.node
    made = {name: node for node in nodes for name in node.output}
    computed: set[str] = set()  # from activations, not from positions and masks alone
    for node in nodes:
        if node.op_type in PRODUCTS or computed & {*node.input}:
            computed |= {*node.output}
    readers: dict[str, list[Any]] = {}
    for node in nodes:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    softmaxes = [node for node in nodes if node.op_type == "Softmax" and node.input[0] in computed]
    softmaxes = [node for node in softmaxes if _weighs(node.output[0], readers)]
    reasons = [_reason(node.input[0], made, computed) for node in softmaxes]
    if not any(NARROWEST <= block.head_width <= WIDEST for block in architecture.blocks):
        widths = ", ".join(map(str, sorted({block.head_width for block in architecture.blocks})))
        narrow = f"head width {widths}; fused kernels need {NARROWEST} to {WIDEST}"
        reasons = [reason or narrow for reason in reasons]
    return len(softmaxes), dict(Counter(filter(None, reasons)))


def _weighs(name: str, readers: dict[str, list[Any]]) -> bool:
    """Return True if a softmax is the first factor of a product."""
    for node in readers.get(name, []):
        if node.op_type == "MatMul" and node.input[0] == name:
            return True
        if node.op_type in {"Cast", "Identity", "Where"} | LAYOUT and _weighs(node.output[0], readers):
            return True
    return False


def _reason(name: str, made: dict[str, Any], computed: set[str]) -> str:
    """The reason that scores have no fused kernel; empty if they may have one."""
    reason = ""
    while (node := made[name]).op_type not in PRODUCTS:
        inputs = [each for each in node.input if each in computed]
        if node.op_type in ARITHMETIC and len(inputs) > 1:
            return SUM
        if node.op_type not in ARITHMETIC:
            reason = f"{node.op_type} is applied to the scores"
        name = inputs[0]
    return reason
