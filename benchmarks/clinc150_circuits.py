"""Circuits against Taylor importance on CLINC150: quality in scope, detection of out-of-scope queries.

    python benchmarks/clinc150_circuits.py ../shared -o benchmarks/results/clinc150-circuits.json

As ``benchmarks/clinc150.py``, with circuits searched on the validation split and its 100 out-of-scope queries, and
Taylor scores from the training or the validation split. Nothing is chosen on the test split; nothing is tuned or
calibrated. Data: CLINC150 (Larson et al. 2019), CC BY 3.0.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from clinc150 import evaluate, markdown
from hydrant import plan_heads
from hydrant.calib.data import read_examples
from hydrant.families.checkpoint import load_model, load_processor, model_labels

TRAIN: dict[str, Any] = {"data": "train.csv"}
VALIDATION: dict[str, Any] = {"data": "val.csv"}
CIRCUIT: dict[str, Any] = {"data": "val.csv", "ood": "oos_val.csv", "method": "circuit"}

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "single model": {},
    "Taylor single, keep 8": {**TRAIN, "members": 1},
    "Taylor × 3, keep 8": TRAIN,
    "Taylor × 3, keep 8, validation split": VALIDATION,
    "CircAvg of 3, keep 8": {**CIRCUIT, "average": True},
    "Circuit × 3, keep 8": CIRCUIT,
    "Taylor × 3, keep 4 from layer 4": {**TRAIN, "keep": 4, "fork_from": 4},
    "CircAvg of 3, keep 4 from layer 4": {**CIRCUIT, "keep": 4, "fork_from": 4, "average": True},
    "Circuit × 3, keep 4 from layer 4": {**CIRCUIT, "keep": 4, "fork_from": 4},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shared", type=Path, help="folder with models/ and data/")
    parser.add_argument("--seeds", type=int, default=3, help="number of plan seeds, from 0 (default 3)")
    parser.add_argument("--examples", type=int, default=1024, help="examples drawn for each plan (default 1024)")
    parser.add_argument("-o", "--output", type=Path, help="JSON file to write")
    options = parser.parse_args()
    checkpoint, folder = options.shared / "models/minilm-clinc150", options.shared / "data/clinc150"
    model, processor = load_model(checkpoint), load_processor(checkpoint, "text")
    labels = model_labels(model.config)
    test = read_examples(folder / "test.csv", labels)
    strange = read_examples(folder / "oos_test.csv", [*labels, "oos"])
    rows = []
    for name, settings in CONFIGURATIONS.items():
        alone = not settings or (settings.get("members") == 1)
        for seed in range(1 if alone else options.seeds):
            start, plan = time.perf_counter(), None
            if settings:
                files = {key: folder / settings[key] for key in ("data", "ood") if key in settings}
                chosen = {"seed": seed, "processor": processor, "examples": options.examples, **settings, **files}
                plan = plan_heads(model, **chosen)
            seconds = round(time.perf_counter() - start, 1)
            figures = evaluate(model, plan, processor, test, strange)
            overlap = plan.overlap()["mean"] if plan else None
            rows.append({"name": name, "seed": seed, "plan_seconds": seconds, "overlap": overlap, **figures})
            print(json.dumps(rows[-1]), flush=True)
            if options.output:
                _write(options.output, rows)
    print(markdown(rows))


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    versions = {package: version(package) for package in ("torch", "transformers", "onnxruntime", "numpy")}
    about = {
        "command": "python benchmarks/clinc150_circuits.py ../shared",
        "machine": platform.machine(),
        "versions": versions,
    }
    path.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
