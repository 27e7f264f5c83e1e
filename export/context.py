"""What every part of a lowering shares: the graph, the shapes known so far, the mask, the float32 islands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from ..bundle.architecture import Architecture
from .graph import BOOL, FLOAT, KINDS, Graph

Made = TypeVar("Made")


TOKENS = "T"
"""Stands for the number of tokens in a shape: a number for images, a value of the graph for text."""


@dataclass(frozen=True)
class Stream:
    """Activations [S, B, T, d].

    Attributes:
        name: of the value.
        count: S.
        tokens: :data:`TOKENS`, or 1 once only the first token goes on.
        wide: whether the value is float32 although the graph's precision is lower.
    """

    name: str
    count: int
    tokens: int | str = TOKENS
    wide: bool = False


class Context:
    """The graph under construction."""

    def __init__(
        self,
        architecture: Architecture,
        members: int,
        precision: str = "fp32",
        islands: frozenset[str] = frozenset(),
        operator: str = "primitive",
    ) -> None:
        self.architecture = architecture
        self.members = members
        self.precision = precision
        self.islands = islands
        self.operator = operator
        self.graph = Graph(precision)
        self._made: dict[object, str] = {}
        self._kept: dict[object, object] = {}

    def once(self, key: object, make: Callable[[], Made]) -> Made:
        """What ``make`` gives, made when a key is first asked for."""
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]  # type: ignore[return-value]

    def is_wide(self, value: str) -> bool:
        """Whether a value is a float32 island."""
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
        """A shape vector; :data:`TOKENS` is the number of tokens and −1 what is left."""
        arch = self.architecture
        known = [arch.max_sequence if dim == TOKENS and arch.modality == "image" else dim for dim in dims]
        if TOKENS not in known:
            return self.graph.constant(known)
        name = f"shape.{'_'.join(map(str, dims))}"
        if name not in self._made:
            parts = [self.tokens() if dim == TOKENS else self.graph.constant([dim]) for dim in known]
            self._made[name] = self.graph.node("Concat", parts, name, axis=0)
        return self._made[name]

    def first_token(self, x: Stream) -> Stream:
        """[S, B, T, d] → [S, B, 1, d]."""
        if x.tokens == 1:
            return x
        name = f"{x.name}.first_token"
        if name not in self._made:
            self._made[name] = self.graph.node("Gather", [x.name, self.graph.constant([0])], name, axis=2)
        return replace(x, name=self._made[name], tokens=1)

    def split(self, x: Stream) -> list[str]:
        """The S streams, each [1, B, T, d]."""
        if x.count == 1:
            return [x.name]
        names = [f"{x.name}.stream.{index}" for index in range(x.count)]
        if names[0] not in self._made:
            self.graph.nodes("Split", [x.name], names, axis=0, num_outputs=x.count)
            self._made[names[0]] = names[0]
        return names

    def spread(self, x: Stream, count: int) -> Stream:
        """[S, B, T, d] → [count, B, T, d], the one stream repeated."""
        if x.count == count:
            return x
        name = f"{x.name}.spread"
        return replace(
            x, name=self.graph.node("Expand", [x.name, self.graph.constant([count, 1, 1, 1])], name), count=count
        )

    def mask(self, copies: int, queries: int | str, wide: bool, window: int | None = None) -> str | None:
        """Additive mask [copies·B, 1, 1 or queries, T]: 0 where a key counts, very low elsewhere; ``None`` for images.

        The query axis is spread out only within a window, and for the ``Attention`` operator, which ONNX Runtime's CPU
        provider does not broadcast.
        """
        if self.architecture.modality == "image":
            return None
        if window is not None:
            return self.once(("window", window, copies, queries, wide),
                             lambda: self._windowed(window, copies, queries, wide))  # fmt: skip
        spread = self.operator == "onnx" and queries == TOKENS
        kind = FLOAT if wide else KINDS[self.precision]
        key = ("mask", copies, spread, kind)
        if key not in self._made:
            name = f"mask.{copies}{'.spread' if spread else ''}{'.float32' if wide else ''}"
            self._made[key] = self._make_mask(copies, spread, wide, name)
        return self._made[key]

    def _make_mask(self, copies: int, spread: bool, wide: bool, name: str) -> str:
        graph = self.graph
        if copies == 1 and not spread:
            return self._additive(wide)
        base = self._additive(wide)
        if spread:
            expanded = graph.node("Expand", [base, self.shape(1, 1, TOKENS, 1)], f"{name}.queries")
            base = expanded
        return base if copies == 1 else graph.node("Tile", [base, graph.constant([copies, 1, 1, 1])], name)

    def _additive(self, wide: bool) -> str:
        """[B, 1, 1, T]."""
        graph, key = self.graph, ("additive", wide)
        if key not in self._made:
            suffix = ".float32" if wide else ""
            chosen = self._chosen(self._real(), f"mask.additive{suffix}", wide)  # [B, T]
            self._made[key] = graph.node("Unsqueeze", [chosen, graph.constant([1, 2])], f"mask.keys{suffix}")
        return self._made[key]

    def _real(self) -> str:
        """[B, T] bool."""
        if "real" not in self._made:
            self._made["real"] = self.graph.node("Cast", ["attention_mask"], "mask.real", to=BOOL)
        return self._made["real"]

    def _chosen(self, seen: str, name: str, wide: bool) -> str:
        """0 where a boolean value is true, very low elsewhere."""
        graph = self.graph
        with graph.wide(wide):
            # −1e4 in FP16: its exponential is 0, and adding scores to it stays finite
            lowest = -1e4 if graph.kind == KINDS["fp16"] else float(np.finfo(np.float32).min)
            lowest = -1e38 if graph.kind == KINDS["bf16"] else lowest
            return graph.node("Where", [seen, graph.number(0.0), graph.number(lowest)], name)

    def _windowed(self, window: int, copies: int, queries: int | str, wide: bool) -> str:
        """Additive mask [copies·B, 1, 1 or T, T] of real keys at most ``window`` tokens away."""
        graph, name = self.graph, f"mask.window.{window}"
        suffix = ".float32" if wide else ""
        seen = self.once((name, "seen"), lambda: self._seen(window, name))  # [B, 1, T, T]
        whole = added = self.once((name, wide), lambda: self._chosen(seen, f"{name}{suffix}", wide))
        name = f"{name}{suffix}"
        if queries == 1:
            name = f"{name}.first"
            ends = [graph.constant([end]) for end in (0, 1, 2)]
            added = self.once(name, lambda: graph.node("Slice", [whole, *ends], name))
        if copies == 1:
            return added
        return graph.node("Tile", [added, graph.constant([copies, 1, 1, 1])], f"{name}.{copies}")

    def _seen(self, window: int, name: str) -> str:
        """[B, 1, T, T] bool: real keys within a window; and each token itself, so that padding sees something."""
        graph = self.graph
        apart = self.once("apart", self._apart)
        near = graph.node("LessOrEqual", [apart, graph.constant(window)], f"{name}.near")
        keys = graph.node("Unsqueeze", [self._real(), graph.constant([1, 2])], f"{name}.real")  # [B, 1, 1, T]
        both = graph.node("And", [near, keys], f"{name}.real_and_near")
        itself = graph.node("Equal", [apart, graph.constant(0)], f"{name}.itself")
        return graph.node("Or", [both, itself], f"{name}.seen")

    def _apart(self) -> str:
        """How many tokens lie between two, [T, T] int64."""
        graph, places = self.graph, self.places()
        ends = [graph.node("Unsqueeze", [places, graph.constant([axis])], f"tokens.along_{axis}") for axis in (1, 0)]
        return graph.node("Abs", [graph.node("Sub", ends, "tokens.from")], "tokens.apart")

    def places(self) -> str:
        """0, 1, …, T − 1: [T] int64."""
        graph = self.graph

        def make() -> str:
            count = graph.node("Squeeze", [self.tokens(), graph.constant([0])], "tokens.count")
            return graph.node("Range", [graph.constant(0), count, graph.constant(1)], "tokens.places")

        return self.once("places", make)

    def tokens(self) -> str:
        """The number of tokens, [1] int64."""
        if "tokens" not in self._made:
            self._made["tokens"] = self.graph.node("Shape", ["input_ids"], "sequence_length", start=1, end=2)
        return self._made["tokens"]
