"""Calibrated abstention: a loop that answers, or says that it does not know."""

import json
import sys

import hydrant
from hydrant.calib import Coverage

folder, validation, outside = sys.argv[1:]

hydrant.calibrate(folder, validation, outside, abstain=Coverage(0.95))


def answer(predictor: hydrant.Predictor, text: str) -> dict[str, object]:
    """What is said of a text: its label, or why there is none."""
    found = predictor.predict([text], on_error="row")
    if found.failed[0]:
        return {"label": None, "reason": found.error[0]}
    reason = "out of distribution" if found.out_of_distribution[0] else "uncertain" if found.abstain[0] else None
    label = None if reason else predictor.labels[found.label[0]]
    return {"label": label, "reason": reason, "confidence": round(float(found.confidence[0]), 4)}


with hydrant.load(folder) as predictor:
    for line in sys.stdin:
        print(json.dumps(answer(predictor, line.rstrip("\n"))), flush=True)
