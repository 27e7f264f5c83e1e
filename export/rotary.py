"""Rotary positions in ONNX; the angles are computed in float32, for as many tokens as there are."""

from __future__ import annotations

from ..bundle.architecture import rotary_frequencies
from .context import Context


def turned(context: Context, name: str, x: str, base: float) -> str:
    """Queries or keys [N, h, T, d_h] at their positions: x ∘ cos + (its halves changed about) ∘ (−sin, sin)."""
    graph, (cos, sin) = context.graph, context.once(("rotary", base), lambda: _angles(context, base))
    halves = graph.nodes("Split", [x], [f"{name}.first", f"{name}.second"], axis=-1, num_outputs=2)
    about = graph.node("Concat", halves[::-1], f"{name}.about", axis=-1)
    parts = [graph.node("Mul", [x, cos], f"{name}.cos"), graph.node("Mul", [about, sin], f"{name}.sin")]
    return graph.node("Add", parts, f"{name}.turned")


def _angles(context: Context, base: float) -> tuple[str, str]:
    """Cosines, and sines with their signs, each [T, d_h]."""
    graph, own = context.graph, f"rotary.{base!r}"
    with graph.wide():
        pace = graph.shared(f"const.{own}", rotary_frequencies(base, context.architecture.head_width))
        places = graph.node("Unsqueeze", [context.places(), graph.constant([1])], f"{own}.places")
        angles = graph.node("Mul", [graph.cast(places, f"{own}.tokens"), pace], f"{own}.angles")  # [T, d_h/2]
        cos, sin = graph.node("Cos", [angles], f"{own}.cos"), graph.node("Sin", [angles], f"{own}.sin")
        halves = {"cosines": [cos, cos], "sines": [graph.node("Neg", [sin], f"{own}.minus_sin"), sin]}
        both = [graph.node("Concat", parts, f"{own}.{kind}", axis=-1) for kind, parts in halves.items()]
    if context.precision != "fp32":
        both = [graph.cast(part, f"{part}.{context.precision}") for part in both]
    return both[0], both[1]
