"""Merge error: the change that averaging independently tuned parts causes, and the parts to leave out."""

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

MAX_CHANGE = 0.02  # share of labels, or of the scores' standard deviation


@dataclass(frozen=True)
class MergeReport:
    """Merged members against unmerged ones, on the same inputs or tokens.

    Attributes:
        label_changes: share of inputs, tokens or single labels whose decision changes; ``None`` for regression.
        accuracy, unmerged_accuracy: of both ensembles; ``None`` without labels and for other tasks.
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
        """The share of labels that averaging changes; for regression, the change of the scores."""
        return float(self.score_change if self.label_changes is None else self.label_changes)  # type: ignore[arg-type]

    def to_json(self) -> dict[str, Any]:
        """The fields as a JSON object."""
        return asdict(self)


@torch.inference_mode()
def measure_merge_error(
    merged: FusedClassifier, unmerged: FusedClassifier, batches: Iterable[tuple[Mapping[str, Any], np.ndarray | None]]
) -> MergeReport:
    """Compare a merged ensemble with the same members, all parts separate.

    Args:
        merged: ensemble with some parts averaged.
        unmerged: ``fuse(..., keep_separate="all")`` of the same checkpoints and plan.
        batches: (inputs, labels [B] or ``None``) pairs; inputs as NumPy arrays or tensors. For token classification,
            labels are [B, T]; labelled tokens count (``data.label_encoding``), or all real ones without labels.
    """
    task = merged.architecture.task
    differences, changes, scores, hits = [], [], [], []
    for inputs, labels in batches:
        tensors: dict[str, Tensor] = {name: torch.as_tensor(value) for name, value in inputs.items()}
        a, b = merged(**tensors), unmerged(**tensors)
        difference = (a.member_logits - b.member_logits).abs()  # [M, B, C], of tokens [M, B, T, C]
        targets = None if labels is None else torch.as_tensor(labels)
        if task == "score":
            scores.append(b.member_logits.flatten())
        elif task == "multi_label":
            changes.append(((a.probabilities > 0.5) != (b.probabilities > 0.5)).float().mean(dim=1))
        else:
            real = torch.ones_like(a.label, dtype=torch.bool)
            if task == "tokens":
                real = tensors.get("attention_mask", real) > 0 if targets is None else targets != IGNORED
                difference = difference[:, real]
            changes.append((a.label != b.label)[real].float())
            hits.append(None if targets is None else torch.stack([(each.label == targets)[real] for each in (a, b)]))
        differences.append(difference)
    examples = sum(each.shape[1] for each in differences)
    every = torch.cat([each.flatten() for each in differences]) if examples else torch.zeros(1)
    mean = float(every.mean(dtype=torch.float64))
    accuracies = [None, None]
    if hits and examples and all(each is not None for each in hits):
        accuracies = torch.cat(hits, dim=1).double().mean(dim=1).tolist()  # type: ignore[arg-type]
    return MergeReport(
        examples=examples, max_abs_logit_difference=float(every.max()), mean_abs_logit_difference=mean,
        label_changes=float(torch.cat(changes).sum(dtype=torch.float64)) / max(examples, 1) if changes else None,
        accuracy=accuracies[0], unmerged_accuracy=accuracies[1],
        score_change=mean / max(float(torch.cat(scores).std()), 1e-12) if scores else None,
    )  # fmt: skip


measure_drift = measure_merge_error  # the name before 0.3


def check_merged(models: Sequence[Any], merged: FusedClassifier, unmerged: FusedClassifier, report: MergeReport,
                 inputs: Sequence[Mapping[str, Any]], labels: Sequence[np.ndarray | None]) -> None:  # fmt: skip
    """Raise if averaging changes an ensemble too much."""
    if report.change <= MAX_CHANGE:
        return
    separate_now = set(merged.provenance["separate"])

    def change(separate: set[str]) -> float:
        some = fuse(models, merged.plan, keep_separate=separate)
        return measure_merge_error(some, unmerged, zip(inputs, labels, strict=True)).change

    alone = {part: change(separate_now | {part}) for part in PARTS if part != "attention" and part not in separate_now}
    parts = sorted(alone, key=lambda part: alone[part])
    count = next((n for n in range(1, len(parts)) if change(separate_now | set(parts[:n])) <= MAX_CHANGE), len(parts))
    separate = separate_now | set(parts[:count])
    what = "labels" if report.label_changes is not None else "scores' standard deviation"
    ratio = separate_ratio(merged.architecture, merged.plan, separate)
    raise InputError(
        f"averaging {', '.join(part for part in PARTS if part in parts)} of {len(models)} checkpoints changes "
        f"{report.change:.1%} of the {what}; at most {MAX_CHANGE:.0%} is allowed. "
        f"{' and '.join(parts[: min(count, 2)])} change most. Keep them separate "
        f"(--keep-separate {','.join(part for part in PARTS if part in separate)}: {ratio:.2f} × the operations of one "
        "model), or tune adapters on one base (--adapter); measure with --data; --force writes it anyway"
    )
