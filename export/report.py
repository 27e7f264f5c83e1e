"""What an export tells of itself."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .islands import Islands
    from .quantize_search import Quantised
    from .rewrites import Change
    from .tokenizer import TokenizerExport


@dataclass(frozen=True)
class Export:
    """What an export wrote, and how.

    Attributes:
        path: of the ONNX file.
        precision, lowering, attention: of the graph.
        reasons: why ``lowering`` and ``attention`` were chosen, and which rewrites do not hold for the model, in words.
        changes: what each exact rewrite did.
        islands: what stays float32 in a half-precision graph, and why; ``None`` for the others.
        tokenizer: what ``tokenizer.onnx`` was compared on; ``None`` where it was not asked for.
        quantised: what an INT8 graph rounds, and the gates it passed; ``None`` for the others.
    """

    path: Path
    precision: str
    lowering: str
    attention: str
    reasons: dict[str, str]
    changes: list[Change]
    islands: Islands | None
    quantised: Quantised | None
    tokenizer: TokenizerExport | None = None

    def to_json(self) -> dict[str, Any]:
        """The fields as a JSON object."""
        islands = self.islands and {**asdict(self.islands), "values": sorted(self.islands.values)}
        return {
            "path": str(self.path),
            "precision": self.precision,
            "lowering": self.lowering,
            "attention": self.attention,
            "reasons": self.reasons,
            "changes": [asdict(change) for change in self.changes],
            "islands": islands,
            "quantised": self.quantised and self.quantised.to_json(),
            "tokenizer": self.tokenizer and self.tokenizer.to_json(),
        }
