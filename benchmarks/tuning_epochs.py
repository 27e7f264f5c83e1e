"""The cost of a late fork beside its graph: stored numbers, the PyTorch forward pass, and an epoch of tuning.

    python benchmarks/tuning_epochs.py --rounds 4 -o benchmarks/results/late-fork-cpu.json

    git worktree add ../earlier f61b406
    pip install --no-build-isolation --no-deps --target ../earlier-site ../earlier
    python benchmarks/tuning_epochs.py --earlier ../earlier-site -o benchmarks/results/tuning-since-cpu.json

MiniLM's shape (6 layers, 12 heads, width 384, 150 classes) with random weights, three members that keep 4 of 12 random
heads above the fork, texts of 12 tokens. The single model is the Hugging Face one. An epoch of tuning above the fork is
compared with one that tunes all layers (``unfreeze``), both also with ``mixed_precision="bf16"``; with ``--earlier``,
an epoch above layer 4 is compared with that of an earlier hydrant whose code is installed in a folder. All ways run in
processes of their own, in turn; a later epoch is the time of two epochs less that of one, and figures are ratios of
medians. (The code at f61b406 runs a stream for each member through the layers below the fork, and tunes them all.)
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import harness
import hydrant
import numpy as np
import torch
import transformers
from harness import inputs, random_plan, random_transformer, times
from hydrant.tuning import Jointly

TOKENS = 12
SHAPE = SimpleNamespace(family="bert", layers=6, heads=12, modality="text")
WAYS: list[dict[str, Any]] = [
    {"unfreeze": unfreeze, "mixed_precision": precision} for precision in ("no", "bf16") for unfreeze in (True, False)
]


def texts(count: int) -> dict[str, np.ndarray]:
    """Tensors of random texts, with labels."""
    return {**inputs(SHAPE, count, TOKENS), "y": np.random.default_rng(0).integers(0, 150, count)}


def stored(model: Any, fork: int) -> dict[str, Any]:
    """Numbers that the PyTorch module holds ÷ those of the single model."""
    ensemble = hydrant.fuse(model, random_plan(SHAPE, 4, fork))
    counts = [sum(each.numel() for each in module.parameters()) for module in (ensemble, model)]
    return {"fork": fork, "parameters": round(counts[0] / counts[1], 4)}


def forward(model: Any, fork: int, batch: int) -> dict[str, Any]:
    """The PyTorch forward pass ÷ the Hugging Face model's."""
    from hydrant.metrics.timing import Ratio, Rules, interleave

    tensors = {name: torch.from_numpy(array) for name, array in inputs(SHAPE, batch, TOKENS).items()}

    def run(module: Any) -> Callable[[], None]:
        def call() -> None:
            with torch.inference_mode():
                module(**tensors)

        return call

    ensemble = hydrant.fuse(model, random_plan(SHAPE, 4, fork))
    seconds = interleave([run(ensemble), run(model)], Rules(0.5, 30)).T
    return {"fork": fork, "batch": batch, **times(Ratio.of(*seconds))}


def tune(folder: Path, keep: int, fork: int, how: dict[str, Any]) -> None:
    """In a process of its own: print the seconds of one epoch and of two, after a first one that warms up."""
    model = transformers.BertForSequenceClassification.from_pretrained(folder / "model")
    taken = []
    with tempfile.TemporaryDirectory(dir=folder) as place:
        bundle = Path(place) / "bundle"
        hydrant.save_bundle(hydrant.fuse(model, random_plan(SHAPE, keep, fork)), bundle, tensors_only=True)
        for run, epochs in enumerate((1, 1, 2)):
            jointly = Jointly(epochs=epochs, patience=epochs, learning_rate=1e-5, **how)
            data, output = [folder / f"{name}.npz" for name in ("train", "validation")], Path(place) / f"tuned-{run}"
            start = time.perf_counter()
            hydrant.tune(bundle, data[0], jointly, validation=data[1], output=output)
            taken.append(time.perf_counter() - start)
    print(json.dumps(taken[1:]))


def seconds(folder: Path, site: Path | None, *how: Any) -> list[float]:
    """Seconds of one epoch and of two, by this hydrant or by the one in ``site``."""
    environment = {**os.environ, **({"PYTHONPATH": str(site)} if site else {})}
    command = [sys.executable, __file__, "--run", str(folder), *map(json.dumps, how)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    return [float(each) for each in json.loads(printed.splitlines()[-1])]


def in_turn(folder: Path, ways: Sequence[tuple[Any, ...]], rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of the first epoch and of a later one, each [ways, rounds]."""
    taken = np.array([[seconds(folder, *way) for way in ways] for _ in range(rounds)])
    return taken[..., 0].T, np.diff(taken)[..., 0].T


def above_and_whole(folder: Path, fork: int, rounds: int) -> dict[str, Any]:
    """An epoch that tunes all layers ÷ one that tunes those above the fork, in float32 and in bfloat16."""
    from hydrant.metrics.timing import Ratio

    first, later = in_turn(folder, [(None, 4, fork, how) for how in WAYS], rounds)
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


def since(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """An epoch above layer 4 in an earlier hydrant ÷ the same in this one."""
    from hydrant.metrics.timing import Ratio

    sites = (options.earlier.resolve(), None)
    first, later = in_turn(folder, [(site, options.keep, 4, {}) for site in sites], options.rounds)
    return {
        "rounds": options.rounds,
        "seconds": dict(zip(("earlier", "now"), np.round(np.median(later, axis=1), 2).tolist(), strict=True)),
        "later_epoch_times_as_fast": times(Ratio.of(*later), 2),
        "first_epoch_times_as_fast": times(Ratio.of(*first), 2),
    }


def main() -> None:
    if sys.argv[1:2] == ["--run"]:
        keep, fork, how = map(json.loads, sys.argv[3:])
        tune(Path(sys.argv[2]), keep, fork, how)
        return
    parser = harness.parser(__doc__)
    parser.add_argument("--earlier", type=Path, metavar="SITE", help="folder that holds an earlier package `hydrant`")
    parser.add_argument("--examples", type=int, default=960, help="that are tuned on (default 960)")
    parser.add_argument("--keep", type=int, default=4, help="heads of a member above the fork, with --earlier")
    parser.add_argument("--rounds", type=int, default=5, help="of tuning, all ways in turn (default 5)")
    options = parser.parse_args()
    if options.earlier and not (options.earlier / "hydrant").is_dir():
        parser.error(f"{options.earlier} has no package hydrant; give a folder made by `pip install --target`")
    model, sizes = random_transformer("MiniLM"), {"train": options.examples, "validation": 200}
    report = harness.about(sizes | {"keep": options.keep})
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        model.save_pretrained(folder / "model")
        for name, count in sizes.items():
            np.savez(folder / f"{name}.npz", **texts(count))  # type: ignore[arg-type]
        if options.earlier:
            report |= since(folder, options)
        else:
            report["stored"] = [stored(model, fork) for fork in (4, 5)]
            report["forward"] = [forward(model, fork, batch) for fork in (4, 5) for batch in (1, 8)]
            report["tuning"] = [above_and_whole(folder, fork, options.rounds) for fork in (4, 5)]
    print(json.dumps(report, indent=1))
    harness.save(options.output, report)


if __name__ == "__main__":
    main()
