"""What a calibration decides of a prediction: abstain or answer, in or out of distribution; classes, labels or ends."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..bundle.calibration import ABSTAIN, OOD, UNFITTED, Calibration, Threshold
from ..errors import BackendError
from ..metrics.scores import interval
from ..metrics.uncertainty import prediction_sets
from .prediction import Prediction


def decided(prediction: Prediction, calibration: Calibration) -> Prediction:
    """The prediction with ``abstain``, ``out_of_distribution``, and ``prediction_set`` or interval, where calibrated.

    That of a multi-label model says which labels are ``assigned``, calibrated or not.
    """
    conformal, flags = calibration.conformal, {}
    if prediction.label_entropy is not None:
        limits = UNFITTED if calibration.labels is None else calibration.labels.thresholds
        prediction = replace(prediction, assigned=prediction.probabilities > np.asarray(limits, np.float32))
    for field, name in (("abstain", ABSTAIN), ("out_of_distribution", OOD)):
        if (threshold := calibration.thresholds.get(name)) is not None:
            flags[field] = beyond(prediction, threshold)
    prediction = replace(prediction, **flags)
    if conformal is not None:
        sets = prediction_sets(prediction.probabilities, conformal.quantile, conformal.method)
        prediction = replace(prediction, prediction_set=sets)
    if (ends := calibration.intervals) is not None:
        given = prediction.score, prediction.score_variance
        low, high = interval(*given, ends.quantile, ends.floor, ends.bounds)
        prediction = replace(prediction, interval_low=low, interval_high=high)
    return prediction


def beyond(prediction: Prediction, threshold: Threshold) -> np.ndarray:
    """Which inputs lie on the uncertain side of a threshold, [B] bool, compared in float32."""
    scores, value = getattr(prediction, threshold.score), np.float32(threshold.value)
    if scores is None:
        raise BackendError(
            f"a threshold of this bundle stands on {threshold.score}, which its graph or engine does not give; export "
            "it again with `hydrant export` (and build engines again), or calibrate on another score"
        )
    found: np.ndarray = scores < value if threshold.side == "below" else scores > value
    return found
