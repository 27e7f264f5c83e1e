"""Cost of a late fork in PyTorch: parameters, forward pass, and an epoch of tuning.

    python benchmarks/tuning_epochs.py --rounds 4 -o benchmarks/results/late-fork-cpu.json

MiniLM's shape (6 layers, 12 heads, width 384, 150 classes) with random weights, three members that keep 4 of 12 random
heads above the fork, texts of 12 tokens; the single model is the Hugging Face one. Tuning above the fork is compared
with tuning all layers (``unfreeze``), also with ``mixed_precision="bf16"``, in turn in separate processes. A later
epoch is the time of two epochs minus that of one. Results are ratios of medians.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import harness
import hydrant
import numpy as np
import torch
import transformers
from harness import inputs, random_plan, random_transformer, times
from hydrant.metrics.timing import Ratio, Rules, interleave
from hydrant.tuning import Jointly

TOKENS = 12
SHAPE = SimpleNamespace(family="bert", layers=6, heads=12, modality="text")
WAYS: list[dict[str, Any]] = [
    {"unfreeze": unfreeze, "mixed_precision": precision} for precision in ("no", "bf16") for unfreeze in (True, False)
]


def texts(count: int) -> dict[str, np.ndarray]:
    return {**inputs(SHAPE, count, TOKENS), "y": np.random.default_rng(0).integers(0, 150, count)}


def stored(model: Any, fork: int) -> dict[str, Any]:
    """Parameters of the PyTorch module ÷ those of the single model."""
    ensemble = hydrant.fuse(model, random_plan(SHAPE, 4, fork))
    counts = [sum(each.numel() for each in module.parameters()) for module in (ensemble, model)]
    return {"fork": fork, "parameters": round(counts[0] / counts[1], 4)}


def forward(model: Any, fork: int, batch: int) -> dict[str, Any]:
    """PyTorch forward pass ÷ the Hugging Face model's."""
    tensors = {name: torch.from_numpy(array) for name, array in inputs(SHAPE, batch, TOKENS).items()}

    def run(module: Any) -> Callable[[], None]:
        def call() -> None:
            with torch.inference_mode():
                module(**tensors)

        return call

    ensemble = hydrant.fuse(model, random_plan(SHAPE, 4, fork))
    seconds = interleave([run(ensemble), run(model)], Rules(0.5, 30)).T
    return {"fork": fork, "batch": batch, **times(Ratio.of(*seconds))}


def tune(folder: Path, fork: int, how: dict[str, Any]) -> None:
    """Print the seconds of one epoch and of two, after a warm-up; runs in a separate process."""
    model = transformers.BertForSequenceClassification.from_pretrained(folder / "model")
    taken = []
    with tempfile.TemporaryDirectory(dir=folder) as place:
        bundle = Path(place) / "bundle"
        hydrant.save_bundle(hydrant.fuse(model, random_plan(SHAPE, 4, fork)), bundle, tensors_only=True)
        for run, epochs in enumerate((1, 1, 2)):
            jointly = Jointly(epochs=epochs, patience=epochs, learning_rate=1e-5, **how)
            data, output = [folder / f"{name}.npz" for name in ("train", "validation")], Path(place) / f"tuned-{run}"
            start = time.perf_counter()
            hydrant.tune(bundle, data[0], jointly, validation=data[1], output=output)
            taken.append(time.perf_counter() - start)
    print(json.dumps(taken[1:]))


def seconds(folder: Path, fork: int, how: dict[str, Any]) -> list[float]:
    """Seconds of one epoch and of two, measured in a separate process."""
    command = [sys.executable, __file__, "--run", str(folder), json.dumps(fork), json.dumps(how)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [float(each) for each in json.loads(printed.splitlines()[-1])]


def above_and_whole(folder: Path, fork: int, rounds: int) -> dict[str, Any]:
    """Epoch that tunes all layers ÷ epoch above the fork, in float32 and in bfloat16."""
    taken = np.array([[seconds(folder, fork, how) for how in WAYS] for _ in range(rounds)])  # [rounds, ways, 2]
    first, later = taken[..., 0].T, np.diff(taken)[..., 0].T
    whole, above, whole_bf16, above_bf16 = later
    medians = np.round(np.median(later, axis=1), 2).tolist()
    return {
        "fork": fork,
        "seconds": medians[:2],
        "times_as_fast": times(Ratio.of(whole, above), 2),
        "first_epoch_times_as_fast": times(Ratio.of(first[0], first[1]), 2),
        "bf16": {
            "seconds": medians[2:],
            "times_as_fast": times(Ratio.of(whole_bf16, above_bf16), 2),
            "times_as_fast_as_float32": [times(Ratio.of(whole, whole_bf16), 2), times(Ratio.of(above, above_bf16), 2)],
            "times_as_fast_as_all_layers_in_float32": times(Ratio.of(whole, above_bf16), 2),
        },
        "rounds": rounds,
    }


def main() -> None:
    if sys.argv[1:2] == ["--run"]:
        tune(Path(sys.argv[2]), *map(json.loads, sys.argv[3:]))
        return
    parser = harness.parser(__doc__)
    parser.add_argument("--examples", type=int, default=960, help="training examples (default 960)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of all ways in turn (default 5)")
    options = parser.parse_args()
    model, sizes = random_transformer("MiniLM"), {"train": options.examples, "validation": 200}
    report = harness.about(sizes)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        model.save_pretrained(folder / "model")
        for name, count in sizes.items():
            np.savez(folder / f"{name}.npz", **texts(count))  # type: ignore[arg-type]
        report["stored"] = [stored(model, fork) for fork in (4, 5)]
        report["forward"] = [forward(model, fork, batch) for fork in (4, 5) for batch in (1, 8)]
        report["tuning"] = [above_and_whole(folder, fork, options.rounds) for fork in (4, 5)]
    print(json.dumps(report, indent=1))
    harness.save(options.output, report)


if __name__ == "__main__":
    main()
