"""Attention over ready queries, keys and values: MatMul-Softmax-MatMul, or the standard operator."""

from __future__ import annotations

from .blocks import Attention
from .context import Context
from .rotary import turned


def choose_attention(asked: str, precision: str, head_width: int, masked: bool) -> tuple[str, str]:
    """How attention is written, and why.

    Returns:
        ``"primitive"`` or ``"onnx"``, and the reason in words.
    """
    fuses = precision in ("fp16", "bf16") and 16 <= head_width <= 256
    if asked == "onnx":
        if fuses:
            return "onnx", "asked for; TensorRT compiles it to one kernel, or refuses to build"
        return "onnx", (
            f"asked for; TensorRT-RTX does not build Attention in {precision.upper()} at head width {head_width} "
            "(it needs FP16 or BF16 and a width of 16 to 256): for ONNX Runtime only"
        )
    if asked == "primitive":
        return "primitive", "asked for"
    if precision in ("fp32", "int8"):
        return "primitive", (
            f"MatMul-Softmax-MatMul: in {precision.upper()} ONNX Runtime runs both within 2 %, "
            "and TensorRT-RTX does not build Attention"
        )
    if not fuses:
        return (
            "primitive",
            f"MatMul-Softmax-MatMul: at head width {head_width} no engine fuses Attention, and it may not build",
        )
    mask = "; its additive mask costs nothing" if masked else ""
    return "primitive", (
        f"MatMul-Softmax-MatMul: at head width {head_width} TensorRT compiles it to the same fused kernel as "
        f"Attention{mask}, and runtimes that end at opset 22 read it too"
    )


def attend(
    context: Context, name: str, parts: tuple[str, str, str], copies: int, part: Attention, queries: int | str
) -> str:
    """Softmax(scale · Q Kᵀ + mask) V, queries and keys at their rotary positions where there are such.

    Args:
        parts: query [N, h, T_q, d_h], key and value [N, h, T, d_h].

    Returns:
        [N, h, T_q, d_h].
    """
    graph, (query, key, value), scale = context.graph, parts, part.scale
    if part.rotary is not None:
        query = query if queries == 1 else turned(context, f"{name}.query", query, part.rotary)
        key = turned(context, f"{name}.key", key, part.rotary)
    wide = context.is_wide(f"{name}.scores")
    # TensorRT-RTX builds no Attention of one query at dynamic batch; its scores cannot be float32 alone
    if context.operator == "onnx" and queries != 1 and not wide:
        mask = context.mask(copies, queries, False, part.window)
        inputs = [query, key, value] if mask is None else [query, key, value, mask]
        return graph.node("Attention", inputs, f"{name}.mixed", scale=scale)
    with graph.wide(wide):
        if wide:
            query, key = (graph.cast(part, f"{part}.float32") for part in (query, key))
        columns = graph.node("Transpose", [key], f"{name}.key.transposed", perm=[0, 1, 3, 2])
        scores = graph.node("MatMul", [query, columns], f"{name}.scores")  # [N, h, T_q, T]
        if scale != 1.0:
            scores = graph.node("Mul", [scores, graph.number(scale)], f"{name}.scores.scaled")
        mask = context.mask(copies, queries, wide, part.window)
        if mask is not None:
            scores = graph.node("Add", [scores, mask], f"{name}.scores.masked")
        probabilities = graph.node("Softmax", [scores], f"{name}.probabilities", axis=-1)
    if wide:
        probabilities = graph.cast(probabilities, f"{name}.probabilities.narrow")
    return graph.node("MatMul", [probabilities, value], f"{name}.mixed")
