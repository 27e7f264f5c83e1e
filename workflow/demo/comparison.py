"""The demo's figures: quality and latency of the single model and of the fused ensemble."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from ...metrics import classification as metrics
from ...metrics.timing import Ratio, Rules, interleave
from ...runtime import Prediction, Predictor


@dataclass(frozen=True)
class Row:
    """One model's figures.

    Attributes:
        accuracy, nll, ece: on the test digits; NLL in nats, ECE over 15 bins.
        ood_auroc: of predictive entropy, digits against what is no digit.
        distance_auroc: of the distance in feature space, likewise.
        latency_ratio: median time of a batch of 32 ready images ÷ that of the single model, interleaved.
    """

    name: str
    accuracy: float
    nll: float
    ece: float
    ood_auroc: float
    distance_auroc: float
    latency_ratio: float


def quality(name: str, digits: Prediction, ood: Prediction, labels: np.ndarray, latency_ratio: float) -> Row:
    """Figures of one calibrated model from its predictions."""
    assert digits.distance is not None  # the distance was fitted
    assert ood.distance is not None
    return Row(
        name=name,
        accuracy=metrics.accuracy(digits.probabilities, labels),
        nll=metrics.negative_log_likelihood(digits.probabilities, labels),
        ece=metrics.expected_calibration_error(digits.probabilities, labels),
        ood_auroc=metrics.auroc(digits.predictive_entropy, ood.predictive_entropy),
        distance_auroc=metrics.auroc(digits.distance, ood.distance),
        latency_ratio=latency_ratio,
    )


def latency_ratio(fused: Predictor, single: Predictor, pixels: np.ndarray, repetitions: int = 60) -> float:
    """Median time of the fused predictor ÷ that of the single one, on the same tensors, in turn.

    Args:
        pixels: [B, 3, 8, 8] float32, prepared.
    """
    batch = {"pixel_values": pixels}
    runs = [partial(predictor.predict, batch) for predictor in (fused, single)]
    seconds = interleave(runs, Rules(seconds=0.0, iterations=repetitions))
    return Ratio.of(seconds[:, 0], seconds[:, 1]).median
