"""Form of an exported graph, and report of an export."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from ..errors import check_choice, check_plain
from .rewrites import REWRITES, Change

if TYPE_CHECKING:
    from .islands import Islands
    from .quantize import Quantised
    from .tokenizer_onnx import TokenizerExport

Lowering = Literal["auto", "grouped", "unrolled"]
Attention = Literal["auto", "primitive", "onnx"]


@dataclass(frozen=True, kw_only=True)
class GraphForm:
    """The form of an ONNX graph; every form computes the same.

    Attributes:
        lowering: layout of the members: unrolled (for CPUs), grouped (for GPUs) or auto. ``unrolled`` has one product
            for each member, ``grouped`` batched products; ``auto`` takes unrolled for fp32 and int8, grouped for fp16
            and bf16.
        attention: operators of attention: MatMul-Softmax-MatMul (primitive), the Attention operator of opset 23 (onnx),
            or what suits the precision (auto).
        member_outputs: also output each member's probabilities or scores. ``member_probabilities`` has the shape
            [batch, members, classes], ``member_scores`` [batch, members].
        without: graph rewrite to skip, by the name that export reports; may be repeated.
    """

    lowering: Lowering = "auto"
    attention: Attention = "auto"
    member_outputs: bool = False
    without: Collection[str] = ()

    def __post_init__(self) -> None:
        check_plain(self)
        for name, kind in (("lowering", Lowering), ("attention", Attention)):
            check_choice(name, getattr(self, name), get_args(kind))
        for name in [self.without] if isinstance(self.without, str) else self.without:
            check_choice("without", name, REWRITES)


@dataclass(frozen=True)
class Export:
    """Report of an export."""

    path: Path
    precision: str
    lowering: str
    attention: str
    reasons: dict[str, str]  # reasons for these choices, and inapplicable rewrites
    changes: list[Change]
    islands: Islands | None  # half precision only
    quantised: Quantised | None  # INT8 only
    tokenizer: TokenizerExport | None = None

    def to_json(self) -> dict[str, Any]:
        """The fields as a JSON object."""
        return {
            **vars(self),
            "path": str(self.path),
            "changes": [asdict(change) for change in self.changes],
            "islands": self.islands and {**asdict(self.islands), "values": sorted(self.islands.values)},
            "quantised": self.quantised and self.quantised.to_json(),
            "tokenizer": self.tokenizer and asdict(self.tokenizer),
        }
