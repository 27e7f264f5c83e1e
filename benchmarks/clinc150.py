"""Post-hoc ensembles of one checkpoint on CLINC150: quality in scope, detection of out-of-scope queries.

    python benchmarks/clinc150.py ../shared -o benchmarks/results/clinc150.json

Takes the folder that holds ``models/minilm-clinc150`` and ``data/clinc150``. Every row is planned on the
training split, fused, exported and run on ONNX Runtime; nothing is tuned or calibrated. Data: CLINC150
(Larson et al. 2019), CC BY 3.0.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from hydrant import Taylor, export_onnx, fuse, load, plan_heads, save_bundle
from hydrant.data.examples import read_examples
from hydrant.families.checkpoint import load_model, load_processor, model_labels
from hydrant.metrics import classification as metrics

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "single model": {},
    "pruned single, keep 8": {"members": 1, "keep": 8},
    "random × 3, keep 8": {"keep": 8, "method": "random"},
    "Taylor × 3, bootstrap, keep 10": {"keep": 10, "method": Taylor("bootstrap")},
    "Taylor × 3, bootstrap, keep 8": {"keep": 8, "method": Taylor("bootstrap")},
    "Taylor × 3, noise, keep 10": {"keep": 10},
    "Taylor × 3, noise, keep 8": {"keep": 8},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shared", type=Path, help="folder with models/ and data/")
    parser.add_argument("--seeds", type=int, default=5, help="number of plan seeds, from 0 (default 5)")
    parser.add_argument("-o", "--output", type=Path, help="JSON file to write")
    options = parser.parse_args()
    checkpoint, data = options.shared / "models/minilm-clinc150", options.shared / "data/clinc150"
    model, processor = load_model(checkpoint), load_processor(checkpoint, "text")
    labels = model_labels(model.config)
    test = read_examples(data / "test.csv", labels)
    ood = read_examples(data / "oos_test.csv", [*labels, "oos"])
    rows = []
    for name, settings in CONFIGURATIONS.items():
        fixed = name in ("single model", "pruned single, keep 8")
        for seed in range(1 if fixed else options.seeds):
            plan = (
                plan_heads(model, data / "train.csv", seed=seed, processor=processor, **settings) if settings else None
            )
            figures = evaluate(model, plan, processor, test, ood)
            rows.append({"name": name, "seed": seed, **figures})
            print(json.dumps(rows[-1]), flush=True)
    print(markdown(rows))
    if options.output:
        versions = {package: version(package) for package in ("torch", "transformers", "onnxruntime", "numpy")}
        about = {
            "command": "python benchmarks/clinc150.py ../shared",
            "machine": platform.machine(),
            "versions": versions,
        }
        options.output.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


def evaluate(model: Any, plan: Any, processor: Any, test: Any, ood: Any) -> dict[str, float]:
    """Figures of one plan; AUROC and FPR95 by the score named."""
    with tempfile.TemporaryDirectory() as folder:
        bundle = save_bundle(fuse(model, plan), Path(folder) / "bundle", processor)
        export_onnx(bundle)
        with load(bundle.path, "onnxruntime") as predictor:
            known, unknown = predictor.predict(test.inputs), predictor.predict(ood.inputs)
    scores = {
        "max_probability": (-known.confidence, -unknown.confidence),
        "predictive_entropy": (known.predictive_entropy, unknown.predictive_entropy),
        "mutual_information": (known.mutual_information, unknown.mutual_information),
    }
    figures = {
        "accuracy": metrics.accuracy(known.probabilities, test.labels),
        "nll": metrics.negative_log_likelihood(known.probabilities, test.labels),
        "ece": metrics.expected_calibration_error(known.probabilities, test.labels),
        "disagreement": float(np.mean(known.disagreement)),
    }
    for name, (inside, outside) in scores.items():
        figures[f"auroc_{name}"] = metrics.auroc(inside, outside)
        figures[f"fpr95_{name}"] = metrics.fpr95(inside, outside)
    return figures


def markdown(rows: list[dict[str, Any]]) -> str:
    """The README's table: the mean over seeds, and in brackets their range."""
    columns = ("accuracy", "nll", "ece", "auroc_max_probability", "fpr95_max_probability", "auroc_predictive_entropy")
    lines = ["| heads | accuracy | NLL | ECE | AUROC | FPR95 | AUROC by entropy |", "|---|---|---|---|---|---|---|"]
    for name in dict.fromkeys(row["name"] for row in rows):
        values = {column: [row[column] for row in rows if row["name"] == name] for column in columns}
        lines.append("| " + " | ".join([name, *(_cell(found) for found in values.values())]) + " |")
    return "\n".join(lines)


def _cell(values: list[float]) -> str:
    text = f"{statistics.mean(values):.3f}"
    return text if len(values) == 1 else f"{text} ({min(values):.3f}–{max(values):.3f})"


if __name__ == "__main__":
    main()
