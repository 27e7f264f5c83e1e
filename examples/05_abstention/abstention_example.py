"""Calibrated abstention: a loop that answers or abstains."""

import json
import sys

import hydrant
from hydrant.calib import Coverage

folder, validation, ood = sys.argv[1:]

hydrant.calibrate(folder, validation, ood, abstain=Coverage(0.95))


def answer(predictor: hydrant.Predictor, text: str) -> dict[str, object]:
    """Answer to a text: a label, or the reason to abstain."""
    p = predictor.predict([text], on_error="row")
    if p.failed[0]:
        return {"label": None, "reason": p.error[0]}
    reason = "out of distribution" if p.out_of_distribution[0] else "uncertain" if p.abstain[0] else None
    label = None if reason else predictor.labels[p.label[0]]
    return {"label": label, "reason": reason, "confidence": round(float(p.confidence[0]), 4)}


with hydrant.load(folder) as predictor:
    for line in sys.stdin:
        print(json.dumps(answer(predictor, line.rstrip("\n"))), flush=True)
