"""Calibrated abstention: a loop that answers, or says that it does not know."""

import json
import sys

import hydrant

folder, validation, outside = sys.argv[1:]

hydrant.calibrate(folder, validation, outside, abstain=hydrant.Coverage(0.95))

with hydrant.load(folder) as predictor:
    for line in sys.stdin:
        found = predictor.predict([line.rstrip("\n")])
        reason = "out of distribution" if found.out_of_distribution[0] else "uncertain" if found.abstain[0] else None
        label = None if reason else predictor.labels[found.label[0]]
        print(json.dumps({"label": label, "reason": reason, "confidence": round(float(found.confidence[0]), 4)}))
