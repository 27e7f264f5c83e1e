"""In which form a graph is written."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, get_args

from ..errors import InputError, check_plain, cut
from .rewrites import check_names

Lowering = Literal["auto", "grouped", "unrolled"]
Attention = Literal["auto", "primitive", "onnx"]


@dataclass(frozen=True, kw_only=True)
class GraphForm:
    """The form of an ONNX graph; every form computes the same.

    Attributes:
        lowering: how the members are written down: one product for each (unrolled, for CPUs), batched products
            (grouped, for GPUs), or what suits the precision (auto: unrolled for fp32 and int8, grouped for fp16 and
            bf16).
        attention: operators of attention: MatMul-Softmax-MatMul (primitive), the Attention operator of opset 23 (onnx),
            or what suits the precision (auto).
        member_outputs: also output each member's probabilities, ``member_probabilities`` [batch, members, classes], or
            scores, ``member_scores`` [batch, members].
        without: exact rewrite to leave out, by the name under which an export tells it; may be repeated.
    """

    lowering: Lowering = "auto"
    attention: Attention = "auto"
    member_outputs: bool = False
    without: Collection[str] = ()

    def __post_init__(self) -> None:
        check_plain(self)
        for name, value, known in (
            ("lowering", self.lowering, get_args(Lowering)),
            ("attention", self.attention, get_args(Attention)),
        ):
            if value not in known:
                raise InputError(f"{name} {cut(value)} is unknown; expected {', '.join(known)}")
        check_names([self.without] if isinstance(self.without, str) else self.without)
