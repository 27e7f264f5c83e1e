"""Choice of the values that stay float32 in a half-precision graph, from activations measured in float32."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..errors import InputError
from ..metrics.gates import Gate
from ..progress import Progress, no_progress
from .fused_blocks import Blocks
from .graph_probes import largest_magnitudes
from .lowering import PROJECTION, Form, first_sum, lower

LARGEST = 65504.0  # largest number in FP16
LIMITS = {
    "sum": (512.0, "sum of the stream reaches {:.3g}, above 512"),  # spacing 0.5: larger sums lose small activations
    "scores": (128.0, "attention scores reach {:.3g}, above 128"),  # spacing 1/8: too coarse for the softmax
    "value": (LARGEST / 4, "reaches {:.3g}; FP16 ends at 65504"),  # other inputs may exceed measured maxima
}  # role of a value → its largest measured magnitude in FP16, and the reason for an island beyond it
BF16_SUM = "sum of the stream: BF16 has 8 bits of mantissa"


@dataclass(frozen=True)
class Islands:
    """Values that stay float32 in a half-precision graph, each with the reason."""

    values: frozenset[str]
    reasons: dict[str, str]
    source: str  # description of the inputs measured
    largest: dict[str, float] = field(default_factory=dict)  # measured magnitudes
    gates: list[Gate] = field(default_factory=list)  # of a traced graph: differences from float32


def choose_islands(blocks: Blocks, precision: str, batches: Sequence[Mapping[str, np.ndarray]] = (), source: str = "",
                   progress: Progress = no_progress) -> Islands:  # fmt: skip
    """Choose float32 values: in BF16 all residual sums, without measuring; in FP16 values near its limit."""
    sums = residuals(blocks)
    if precision == "bf16":
        reasons = dict.fromkeys(sums, BF16_SUM)
        return Islands(frozenset(sums), reasons, "the type alone")
    largest = measure(blocks, progress(batches, len(batches), "measuring activations"))
    reasons = {}
    for name, value in largest.items():
        role = "sum" if name in sums else "scores" if name.endswith(".scores") else "value"
        reason = too_large(role, value)
        if reason and role == "value" and not name.endswith((".mlp.gated", ".mlp.down")):
            problem = f"{name} reaches {value:.3g} on {source}, too close to FP16's limit of {LARGEST:g}"
            raise InputError(f"{problem}; export in BF16 or FP32")
        reasons |= {name: reason} if reason else {}
    return Islands(frozenset(reasons), reasons, source, largest)


def too_large(role: str, size: float) -> str:
    """The reason for an island, by the role of its value; empty within the role's limit."""
    limit, reason = LIMITS[role]
    return reason.format(size) if size > limit else ""


def residuals(blocks: Blocks) -> list[str]:
    """Names of the residual sums: embeddings, and behind attention and MLP."""
    suffixes = (".attention.residual", "" if blocks.architecture.pre_norm else ".mlp.residual")
    names = [f"layers.{index}{suffix}" for index in range(len(blocks.layers)) for suffix in suffixes]
    return [first_sum(blocks.architecture), *names]


def measure(blocks: Blocks, batches: Iterable[Mapping[str, np.ndarray]]) -> dict[str, float]:
    """Largest magnitude of every candidate value, in float32 on ONNX Runtime."""
    names = residuals(blocks)
    names += [PROJECTION] if blocks.architecture.embedding_width else []
    for index in range(len(blocks.layers)):
        own = f"layers.{index}"
        names += [f"{own}.attention.scores", f"{own}.attention", f"{own}.mlp.up", f"{own}.mlp.down"]
        names += [f"{own}.mlp.gated"] if blocks.architecture.gated_mlp else []
    model = lower(blocks, 1.0, {}, Form("grouped"))
    names += [node.name for node in model.graph.node if node.name.endswith(".low_rank.down")]
    return largest_magnitudes(model, names, batches)
