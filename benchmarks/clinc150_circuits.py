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

import numpy as np
from clinc150 import evaluate, markdown
from hydrant import HeadPlan, plan_heads
from hydrant.calib.data import read_examples
from hydrant.calib.heads import choose_heads
from hydrant.families.checkpoint import load_model, load_processor, model_labels

TRAIN: dict[str, Any] = {"data": "train.csv"}
VALIDATION: dict[str, Any] = {"data": "val.csv"}
CIRCUIT: dict[str, Any] = {"data": "val.csv", "ood": "oos_val.csv", "method": "circuit"}

LATE: dict[str, Any] = {"fork_from": 4}

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "single model": {},
    "Taylor single": {**TRAIN, "members": 1},
    "Taylor × 3, from layer 4": {**TRAIN, **LATE},
    "Circuit single, from layer 4": {**CIRCUIT, **LATE, "members": 1},
    "Circuit × 3, from layer 4": {**CIRCUIT, **LATE},
    "Circuit × 3, from layer 4, both": {**CIRCUIT, **LATE, "objective": "both"},
    "Taylor × 3": TRAIN,
    "Circuit × 3": CIRCUIT,
    "Taylor × 3, validation split": VALIDATION,
}
"""Eight heads kept in each pruned layer; every row of three circuits also gives their average (CircAvg)."""


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
    rows: list[dict[str, Any]] = []

    def add(name: str, seed: int, plan: HeadPlan | None, seconds: float) -> None:
        figures = evaluate(model, plan, processor, test, strange)
        overlap = plan.overlap()["mean"] if plan else None
        rows.append({"name": name, "seed": seed, "plan_seconds": round(seconds, 1), "overlap": overlap, **figures})
        print(json.dumps(rows[-1]), flush=True)
        if options.output:
            _write(options.output, rows)

    for name, settings in CONFIGURATIONS.items():
        if not settings:
            add(name, 0, None, 0.0)
            continue
        for seed in range(1 if settings.get("members") == 1 else options.seeds):
            start = time.perf_counter()
            files = {key: folder / settings[key] for key in ("data", "ood") if key in settings}
            chosen = {"seed": seed, "processor": processor, "examples": options.examples, **settings, **files}
            plan = plan_heads(model, **chosen)
            add(name, seed, plan, time.perf_counter() - start)
            if plan.method == "circuit" and len(plan.members) > 1:
                add(name.replace("Circuit × 3", "CircAvg"), seed, average(plan), 0.0)
    print(markdown(rows))


def average(plan: HeadPlan) -> HeadPlan:
    """What ``plan_heads(…, average=True)`` makes of the same circuits, from the scores that their plan records."""
    layers, heads = range(plan.layers), tuple(range(plan.heads))
    mean = [np.mean([rows[layer] for rows in plan.provenance["scores"]], axis=0) for layer in layers
            if plan.provenance["scores"][0][layer]]  # fmt: skip
    scored = [len(plan.members[0][layer]) for layer in layers][-len(mean) :]
    kept = choose_heads(np.stack(mean), scored)
    members = ((*(heads,) * (plan.layers - len(mean)), *kept),)
    return HeadPlan(plan.family, plan.layers, plan.heads, members, "circuit")


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
