"""How far averaging separately tuned parts moves the members: the price of one shared MLP."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.label_encoding import IGNORED
from .module import FusedClassifier


@dataclass(frozen=True)
class Drift:
    """Merged members against unmerged ones, on the same inputs.

    Attributes:
        examples: number of inputs compared, or of tokens.
        max_abs_logit_difference: max |Δ member logits|.
        mean_abs_logit_difference: mean |Δ member logits|.
        label_changes: share of inputs whose ensemble label differs, or of tokens, or of decisions about single labels
            (probability above one half); ``None`` for a model of one output.
        score_change: mean |Δ member logits| of a model of one output, as a share of the logits' standard deviation.
        accuracy: accuracy of the merged ensemble, or ``None`` without labels and for any other model.
        unmerged_accuracy: accuracy of the unmerged ensemble, or ``None``.
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
def measure_drift(
    merged: FusedClassifier,
    unmerged: FusedClassifier,
    batches: Iterable[tuple[Mapping[str, Any], np.ndarray | None]],
) -> Drift:
    """Compare a merged ensemble with the same members kept wholly separate.

    Args:
        merged: some parts averaged.
        unmerged: ``fuse(..., keep_separate="all")`` of the same checkpoints and plan.
        batches: (inputs, labels [B] or ``None``) pairs; inputs as NumPy arrays or tensors. Of tokens labels [B, T], and
            figures over those that have one (``data.tags``), or over real ones without labels.
    """
    largest, total, count, examples, changes = 0.0, 0.0, 0, 0, 0.0
    hits: list[tuple[int, int]] = []
    labelled, classifies = True, merged.architecture.task in ("classification", "tokens")
    several, scores = merged.architecture.task == "multi_label", []
    for inputs, given in batches:
        labels = given
        tensors: dict[str, Tensor] = {name: torch.as_tensor(value) for name, value in inputs.items()}
        a, b = merged(**tensors), unmerged(**tensors)
        difference = (a.member_logits - b.member_logits).abs()  # [M, B, C]
        label: Any = getattr(a, "label", None)  # only a classifier, of inputs or tokens, has one
        other: Any = getattr(b, "label", None)
        if merged.architecture.every_token:
            real = tensors.get("attention_mask", torch.ones_like(label)) > 0
            if labels is not None:
                real, labels = torch.as_tensor(labels != IGNORED), labels[labels != IGNORED]
            difference, label, other = difference[:, real], label[real], other[real]
            if not difference.numel():
                continue
        largest = max(largest, float(difference.max()))
        total, count = total + float(difference.sum(dtype=torch.float64)), count + difference.numel()
        examples += difference.shape[1]
        if several:
            changes += float(((a.probabilities > 0.5) != (b.probabilities > 0.5)).float().mean(dim=1).sum())  # [B, C]
        if not classifies:
            scores.append(b.member_logits.flatten())
            continue
        changes += int(torch.ne(label, other).sum())
        if labels is None:
            labelled = False
        else:
            truth = torch.as_tensor(labels)
            hits.append((int(torch.eq(label, truth).sum()), int(torch.eq(other, truth).sum())))
    known = labelled and examples > 0 and classifies
    mean, spread = total / max(count, 1), float(torch.cat(scores).std()) if scores and not several else None
    return Drift(
        examples=examples,
        max_abs_logit_difference=largest,
        mean_abs_logit_difference=mean,
        label_changes=changes / max(examples, 1) if classifies or several else None,
        accuracy=sum(hit for hit, _ in hits) / examples if known else None,
        unmerged_accuracy=sum(hit for _, hit in hits) / examples if known else None,
        score_change=None if spread is None else mean / max(spread, 1e-12),
    )
