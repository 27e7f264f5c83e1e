"""Distance by the length of a text against constants: one model of CLINC150, calibrated in both forms.

    python benchmarks/distance_length.py ../shared -o benchmarks/results/distance-length.json

Thresholds flag 5 % of the validation texts. No OOD text is used before the report.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import harness
import hydrant
import numpy as np
from hydrant.data.corruptions import typos
from hydrant.data.examples import read_examples
from hydrant.metrics.class_metrics import auroc, fpr95
from hydrant.models.checkpoint import load_processor

SEVERITY = 3  # typing errors in 30 % of the words


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("shared", type=Path, help="folder with models/ and data/")
    options = parser.parse_args()
    model, data = options.shared / "models/minilm-clinc150", options.shared / "data/clinc150"
    test, unknown = (list(read_examples(data / f"{name}.csv", None).inputs) for name in ("test", "oos_test"))
    texts = {"test": test, "unknown": unknown, "typing errors": typos(test, SEVERITY)}
    report: dict[str, Any] = {**harness.about({name: len(each) for name, each in texts.items()}), "forms": {}}
    with tempfile.TemporaryDirectory() as folder:
        hydrant.save_bundle(hydrant.fuse(model), f"{folder}/single", load_processor(model, "text"))
        for form in ("constant", "length"):
            fit = {"fit": data / "train.csv", "distance_form": form}
            hydrant.calibrate(f"{folder}/single", data / "val.csv", **fit)
            with hydrant.load(f"{folder}/single", "torch") as predictor:
                outputs = {name: predictor.predict(each) for name, each in texts.items()}
            report["forms"][form] = figures(outputs, test)
            harness.save(options.output, report)
    for form, measured in report["forms"].items():
        print(form, {name: value if isinstance(value, str) else round(value, 3) for name, value in measured.items()})


def figures(outputs: dict[str, Any], test: list[str]) -> dict[str, float]:
    """Detection of unknown texts, and shares flagged."""
    known, unknown = (outputs[name].distance for name in ("test", "unknown"))
    flagged = {f"{name} flagged": float(each.out_of_distribution.mean()) for name, each in outputs.items()}
    words = np.array([len(text.split()) for text in test])
    short, long = words <= np.quantile(words, 0.1), words >= np.quantile(words, 0.9)
    flags = outputs["test"].out_of_distribution
    sides = {"shortest tenth flagged": float(flags[short].mean()), "longest tenth flagged": float(flags[long].mean())}
    found = {"auroc": float(auroc(known, unknown)), "fpr95": float(fpr95(known, unknown)), **flagged, **sides}
    deviation = outputs["unknown"].length_deviation
    if deviation is not None:
        caught = outputs["unknown"].out_of_distribution
        found["flagged unknown, length beyond 3"] = float((np.abs(deviation[caught]) > 3).mean())
        found["test, length beyond 3"] = float((np.abs(outputs["test"].length_deviation) > 3).mean())
    return found


if __name__ == "__main__":
    main()
