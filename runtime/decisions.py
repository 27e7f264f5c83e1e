"""What calibrated thresholds decide about a prediction: abstain or answer, in or out of distribution, which classes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..bundle.calibration import ABSTAIN, OOD, Calibration, Threshold
from ..metrics.uncertainty import prediction_sets
from .prediction import Prediction


def decided(prediction: Prediction, calibration: Calibration) -> Prediction:
    """The prediction with ``abstain`` and ``prediction_set`` filled, where the calibration tells them."""
    conformal, threshold = calibration.conformal, calibration.thresholds.get(ABSTAIN)
    if threshold is not None:
        prediction = replace(prediction, abstain=beyond(prediction, threshold))
    if conformal is not None:
        sets = prediction_sets(prediction.probabilities, conformal.quantile, conformal.method)
        prediction = replace(prediction, prediction_set=sets)
    return prediction


def out_of_distribution(prediction: Prediction, calibration: Calibration) -> np.ndarray | None:
    """Which inputs lie beyond the OOD threshold, [B] bool; ``None`` where there is none."""
    threshold = calibration.thresholds.get(OOD)
    return None if threshold is None else beyond(prediction, threshold)


def beyond(prediction: Prediction, threshold: Threshold) -> np.ndarray:
    """Which inputs lie on the uncertain side of a threshold, [B] bool, compared in float32."""
    scores, value = getattr(prediction, threshold.score), np.float32(threshold.value)
    found: np.ndarray = scores < value if threshold.side == "below" else scores > value
    return found
