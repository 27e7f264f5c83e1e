"""Two backends' outputs on the same inputs → how far they agree, and each figure against its limit, for any task."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .gates import Agreement, Gate, Tolerances, agreement, gates
from .label_gates import LabelAgreement, label_agreement, label_gates
from .score_gates import ScoreAgreement, score_agreement, score_gates


def judged(
    reference: Mapping[str, np.ndarray], tested: Mapping[str, np.ndarray], tolerances: Tolerances, tokens: bool = False
) -> tuple[Agreement | ScoreAgreement | LabelAgreement, list[Gate]]:
    """Compare outputs, and judge the differences; what a graph gives tells its task (``bundle.tasks``).

    Args:
        reference, tested: outputs [N, …] by name.
    """
    if tokens:
        words = agreement(reference, tested, tolerances, least=True)
        return words, gates(words, tolerances)
    if "score" in reference:
        scores = score_agreement(reference, tested, tolerances)
        return scores, score_gates(scores, tolerances)
    if "label_entropy" in reference:
        labels = label_agreement(reference, tested, tolerances)
        return labels, label_gates(labels, tolerances)
    figures = agreement(reference, tested, tolerances)
    return figures, gates(figures, tolerances)
