"""Shared by all parts of a lowering: the graph, its shapes, masks, rotary positions and float32 islands."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..bundle.architecture import Architecture, rotary_frequencies
from .graph import BOOL, FLOAT, KINDS, Graph

TOKENS = "T"  # the number of tokens in a shape: a number for images, a value of the graph for text


@dataclass(frozen=True)
class Stream:
    """Activations [S, B, T, d]: the value's name, and S."""

    name: str
    count: int
    tokens: int | str = TOKENS  # 1 once only the first token is used
    wide: bool = False  # float32 in a graph of lower precision


@dataclass
class Context:
    """The graph under construction."""

    architecture: Architecture
    precision: str
    islands: frozenset[str]
    operator: str

    def __post_init__(self) -> None:
        self.graph = Graph(self.precision)

    def is_wide(self, value: str) -> bool:
        """Return True if a value is a float32 island."""
        return self.precision != "fp32" and value in self.islands

    def widened(self, x: Stream) -> Stream:
        """``x`` in float32."""
        if x.wide or self.precision == "fp32":
            return x
        with self.graph.wide():
            return replace(x, name=self.graph.cast(x.name, f"{x.name}.float32"), wide=True)

    def narrowed(self, x: Stream) -> Stream:
        """``x`` in the graph's precision."""
        if not x.wide:
            return x
        return replace(x, name=self.graph.cast(x.name, f"{x.name}.{self.precision}"), wide=False)

    def shape(self, *dims: int | str) -> str:
        """A shape vector; −1 is the remaining size."""
        arch = self.architecture
        sizes = [arch.max_sequence if dim == TOKENS and arch.modality == "image" else dim for dim in dims]
        if TOKENS not in sizes:
            return self.graph.constant(sizes)
        parts = [self.tokens() if dim == TOKENS else self.graph.constant([dim]) for dim in sizes]
        return self.graph.node("Concat", parts, f"shape.{'_'.join(map(str, dims))}", axis=0)

    def first_token(self, x: Stream) -> Stream:
        """[S, B, T, d] → [S, B, 1, d]."""
        if x.tokens == 1:
            return x
        first = self.graph.node("Gather", [x.name, self.graph.constant([0])], f"{x.name}.first_token", axis=2)
        return replace(x, name=first, tokens=1)

    def split(self, x: Stream) -> list[str]:
        """The S streams, each [1, B, T, d]."""
        if x.count == 1:
            return [x.name]
        names = [f"{x.name}.stream.{index}" for index in range(x.count)]
        return self.graph.nodes("Split", [x.name], names, axis=0, num_outputs=x.count)

    def spread(self, x: Stream, count: int) -> Stream:
        """[S, B, T, d] → [count, B, T, d], the one stream repeated."""
        if x.count == count:
            return x
        repeated = self.graph.node("Expand", [x.name, self.graph.constant([count, 1, 1, 1])], f"{x.name}.spread")
        return replace(x, name=repeated, count=count)

    def mask(self, copies: int, queries: int | str, wide: bool, window: int | None = None) -> str | None:
        """Additive mask [copies·B, 1, 1 or queries, T]: 0 for real keys, very low otherwise; ``None`` for images."""
        if self.architecture.modality == "image":
            return None
        graph, suffix = self.graph, ".float32" if wide else ""
        if window is not None:
            base = self._windowed(window, queries, wide, suffix)
            name = f"{base}.{copies}"
        else:
            real = graph.node("Cast", ["attention_mask"], "mask.real", to=BOOL)
            chosen = self._chosen(real, f"mask.additive{suffix}", wide)  # [B, T]
            base = graph.node("Unsqueeze", [chosen, graph.constant([1, 2])], f"mask.keys{suffix}")
            name = f"mask.{copies}{suffix}"
            if self.operator == "onnx" and queries == TOKENS:  # ONNX Runtime's CPU provider does not broadcast it
                name = f"mask.{copies}.spread{suffix}"
                base = graph.node("Expand", [base, self.shape(1, 1, TOKENS, 1)], f"{name}.queries")
        return base if copies == 1 else graph.node("Tile", [base, graph.constant([copies, 1, 1, 1])], name)

    def _chosen(self, seen: str, name: str, wide: bool) -> str:
        """0 where a boolean value is true, very low elsewhere."""
        graph = self.graph
        with graph.wide(wide):
            # −1e4 in FP16: its exponential is 0, and adding scores to it stays finite
            low: dict[int, float] = {KINDS["fp16"]: -1e4, KINDS["bf16"]: -1e38, FLOAT: float(np.finfo(np.float32).min)}
            return graph.node("Where", [seen, graph.number(0.0), graph.number(low[graph.kind])], name)

    def _windowed(self, window: int, queries: int | str, wide: bool, suffix: str) -> str:
        """Additive mask [B, 1, 1 or T, T] of real keys at most ``window`` tokens away, and of each token itself."""
        graph, name, places = self.graph, f"mask.window.{window}", self.places()
        ends = [graph.node("Unsqueeze", [places, graph.constant([axis])], f"tokens.along_{axis}") for axis in (1, 0)]
        apart = graph.node("Abs", [graph.node("Sub", ends, "tokens.from")], "tokens.apart")  # [T, T]
        near = graph.node("LessOrEqual", [apart, graph.constant(window)], f"{name}.near")
        real = graph.node("Cast", ["attention_mask"], "mask.real", to=BOOL)  # [B, T]
        keys = graph.node("Unsqueeze", [real, graph.constant([1, 2])], f"{name}.real")  # [B, 1, 1, T]
        both = graph.node("And", [near, keys], f"{name}.real_and_near")
        itself = graph.node("Equal", [apart, graph.constant(0)], f"{name}.itself")
        added = self._chosen(graph.node("Or", [both, itself], f"{name}.seen"), f"{name}{suffix}", wide)
        if queries != 1:
            return added
        return graph.node("Slice", [added, *(graph.constant([end]) for end in (0, 1, 2))], f"{added}.first")

    def places(self) -> str:
        """0, 1, …, T − 1: [T] int64."""
        graph = self.graph
        count = graph.node("Squeeze", [self.tokens(), graph.constant([0])], "tokens.count")
        return graph.node("Range", [graph.constant(0), count, graph.constant(1)], "tokens.places")

    def tokens(self) -> str:
        """The number of tokens, [1] int64."""
        return self.graph.node("Shape", ["input_ids"], "sequence_length", start=1, end=2)

    def turned(self, name: str, x: str, base: float) -> str:
        """Queries or keys [N, h, T, d_h] at their rotary positions: x ∘ cos + (its halves exchanged) ∘ (−sin, sin)."""
        graph, (cos, sin) = self.graph, self._angles(base)
        halves = graph.nodes("Split", [x], [f"{name}.first", f"{name}.second"], axis=-1, num_outputs=2)
        about = graph.node("Concat", halves[::-1], f"{name}.about", axis=-1)
        parts = [graph.node("Mul", [x, cos], f"{name}.cos"), graph.node("Mul", [about, sin], f"{name}.sin")]
        return graph.node("Add", parts, f"{name}.turned")

    def _angles(self, base: float) -> list[str]:
        """Cosines, and sines with their signs, each [T, d_h], computed in float32."""
        graph, own = self.graph, f"rotary.{base!r}"
        with graph.wide():
            pace = graph.shared(f"const.{own}", rotary_frequencies(base, self.architecture.head_width))
            places = graph.node("Unsqueeze", [self.places(), graph.constant([1])], f"{own}.places")
            angles = graph.node("Mul", [graph.node("Cast", [places], f"{own}.tokens", to=FLOAT), pace], f"{own}.angles")
            cos, sin = graph.node("Cos", [angles], f"{own}.cos"), graph.node("Sin", [angles], f"{own}.sin")
            halves = {"cosines": [cos, cos], "sines": [graph.node("Neg", [sin], f"{own}.minus_sin"), sin]}
            both = [graph.node("Concat", parts, f"{own}.{kind}", axis=-1) for kind, parts in halves.items()]
        return both if self.precision == "fp32" else [graph.cast(part, f"{part}.{self.precision}") for part in both]
