"""How far averaging separately tuned parts moves the members, and which parts to leave out if it moves them too far."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..bundle.architecture import PARTS
from ..data.label_encoding import IGNORED
from ..errors import InputError
from ..models.plan_cost import separate_ratio
from .ensemble import fuse
from .module import FusedClassifier

MAX_CHANGE = 0.02  # of labels, or of the scores' standard deviation


@dataclass(frozen=True)
class MergeReport:
    """Merged members against unmerged ones, on the same inputs or tokens.

    Attributes:
        label_changes: share of inputs, tokens or single labels with another decision; ``None`` for regression.
        accuracy, unmerged_accuracy: of the ensembles, or ``None`` without labels and for other tasks.
        score_change: for regression, mean |Δ member logits| as a share of the logits' standard deviation.
    """

    examples: int
    max_abs_logit_difference: float
    mean_abs_logit_difference: float
    label_changes: float | None
    accuracy: float | None
    unmerged_accuracy: float | None
    score_change: float | None = None

    @property
    def change(self) -> float:
        """What averaging changes of the answers: share of labels, or the scores' change."""
        return float(self.score_change if self.label_changes is None else self.label_changes)  # type: ignore[arg-type]

    def to_json(self) -> dict[str, Any]:
        """The fields as a JSON object."""
        return asdict(self)


@torch.inference_mode()
def measure_merge_error(
    merged: FusedClassifier,
    unmerged: FusedClassifier,
    batches: Iterable[tuple[Mapping[str, Any], np.ndarray | None]],
) -> MergeReport:
    """Compare a merged ensemble with the same members kept wholly separate.

    Args:
        merged: some parts averaged.
        unmerged: ``fuse(..., keep_separate="all")`` of the same checkpoints and plan.
        batches: (inputs, labels [B] or ``None``) pairs; inputs as NumPy arrays or tensors. Of tokens labels [B, T], and
            figures over those that have one (``data.label_encoding``), or over real ones without labels.
    """
    task = merged.architecture.task
    differences, changes, scores, hits = [], [], [], []
    for inputs, labels in batches:
        tensors: dict[str, Tensor] = {name: torch.as_tensor(value) for name, value in inputs.items()}
        a, b = merged(**tensors), unmerged(**tensors)
        difference = (a.member_logits - b.member_logits).abs()  # [M, B, C], of tokens [M, B, T, C]
        known = None if labels is None else torch.as_tensor(labels)
        if task == "score":
            scores.append(b.member_logits.flatten())
        elif task == "multi_label":
            changes.append(((a.probabilities > 0.5) != (b.probabilities > 0.5)).float().mean(dim=1))
        else:
            real = torch.ones_like(a.label, dtype=torch.bool)
            if task == "tokens":
                real = tensors.get("attention_mask", real) > 0 if known is None else known != IGNORED
                difference = difference[:, real]
            changes.append((a.label != b.label)[real].float())
            hits.append(None if known is None else torch.stack([(each.label == known)[real] for each in (a, b)]))
        differences.append(difference)
    examples = sum(each.shape[1] for each in differences)
    every = torch.cat([each.flatten() for each in differences]) if examples else torch.zeros(1)
    mean = float(every.mean(dtype=torch.float64))
    accuracies = [None, None]
    if hits and examples and all(each is not None for each in hits):
        accuracies = torch.cat(hits, dim=1).double().mean(dim=1).tolist()  # type: ignore[arg-type]
    return MergeReport(
        examples=examples,
        max_abs_logit_difference=float(every.max()),
        mean_abs_logit_difference=mean,
        label_changes=float(torch.cat(changes).sum(dtype=torch.float64)) / max(examples, 1) if changes else None,
        accuracy=accuracies[0],
        unmerged_accuracy=accuracies[1],
        score_change=mean / max(float(torch.cat(scores).std()), 1e-12) if scores else None,
    )


measure_drift = measure_merge_error  # the name before 0.3


def check_merged(
    models: Sequence[Any],
    merged: FusedClassifier,
    unmerged: FusedClassifier,
    report: MergeReport,
    inputs: Sequence[Mapping[str, Any]],
    labels: Sequence[np.ndarray | None],
) -> None:
    """Refuse an ensemble that averaging changes too much."""
    if report.change <= MAX_CHANGE:
        return
    kept = set(merged.provenance["separate"])

    def change(separate: set[str]) -> float:
        some = fuse(models, merged.plan, keep_separate=separate)
        return measure_merge_error(some, unmerged, zip(inputs, labels, strict=True)).change

    alone = {part: change(kept | {part}) for part in PARTS if part != "attention" and part not in kept}
    parts = sorted(alone, key=lambda part: alone[part])
    enough = next((n for n in range(1, len(parts)) if change(kept | set(parts[:n])) <= MAX_CHANGE), len(parts))
    separate = kept | set(parts[:enough])
    what = "labels" if report.label_changes is not None else "scores' standard deviation"
    ratio = separate_ratio(merged.architecture, merged.plan, separate)
    raise InputError(
        f"averaging {', '.join(part for part in PARTS if part in parts)} of {len(models)} checkpoints changes "
        f"{report.change:.1%} of the {what}; expected at most {MAX_CHANGE:.0%}. "
        f"{' and '.join(parts[: min(enough, 2)])} cost most. Keep them separate "
        f"(--keep-separate {','.join(part for part in PARTS if part in separate)}: {ratio:.2f} × the operations of one "
        "model), or tune adapters on one base (--adapter); measure with --data; --force writes it all the same"
    )
