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

RESIDUAL_LIMIT = 512.0  # FP16's spacing there is 0.5: larger sums lose small activations
SCORE_LIMIT = 128.0  # FP16's spacing there is 1/8: too coarse for the softmax
LARGEST = 65504.0  # largest number in FP16
HEADROOM = 4.0  # factor by which other inputs may exceed measured maxima
BF16_SUM = "sum of the stream: BF16 has 8 bits of mantissa"


@dataclass(frozen=True)
class Islands:
    """Values that stay float32 in a half-precision graph, each with the reason."""

    values: frozenset[str]
    reasons: dict[str, str]
    source: str  # description of the inputs measured
    largest: dict[str, float] = field(default_factory=dict)  # measured magnitudes
    gates: list[Gate] = field(default_factory=list)  # of a traced graph: differences from float32


def choose_islands(
    blocks: Blocks,
    precision: str,
    batches: Sequence[Mapping[str, np.ndarray]] = (),
    source: str = "",
    progress: Progress = no_progress,
) -> Islands:
    """Choose float32 values: in BF16 all residual sums, without measuring; in FP16 values near its limit."""
    sums = residuals(blocks)
    if precision == "bf16":
        reasons = dict.fromkeys(sums, BF16_SUM)
        return Islands(frozenset(sums), reasons, "the type alone")
    largest = measure(blocks, progress(batches, len(batches), "measuring activations"))
    overflow = LARGEST / HEADROOM
    reasons = {}
    for name, value in largest.items():
        if name in sums and value > RESIDUAL_LIMIT:
            reasons[name] = large_sum(value)
        elif value > SCORE_LIMIT and name.endswith(".scores"):
            reasons[name] = large_scores(value)
        elif value > overflow and name.endswith((".mlp.gated", ".mlp.down")):
            reasons[name] = large_value(value)
        elif value > overflow and name not in sums:
            problem = f"{name} reaches {value:.3g} on {source}, too close to FP16's limit of {LARGEST:g}"
            raise InputError(f"{problem}; export in BF16 or FP32")
    return Islands(frozenset(reasons), reasons, source, largest)


def large_sum(value: float) -> str:
    """The reason for an island: a residual sum."""
    return f"sum of the stream reaches {value:.3g}, above {RESIDUAL_LIMIT:g}"


def large_scores(value: float) -> str:
    """The reason for an island: scores before a softmax."""
    return f"attention scores reach {value:.3g}, above {SCORE_LIMIT:g}"


def large_value(value: float) -> str:
    """The reason for an island: a value near the limit of the type."""
    return f"reaches {value:.3g}; FP16 ends at {LARGEST:g}"


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
