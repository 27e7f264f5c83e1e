"""An epoch of tuning above a late fork, beside the same in an earlier hydrant, whose code is installed in a folder.

    git worktree add ../earlier f61b406
    pip install --no-build-isolation --no-deps --target ../earlier-site ../earlier
    python benchmarks/tuning_since.py ../earlier-site -o benchmarks/results/tuning-since-cpu.json
    python benchmarks/tuning_since.py ../earlier-site --keep 2 -o benchmarks/results/tuning-since-keep-2-cpu.json

MiniLM's shape (6 layers, 12 heads, width 384, 150 classes) with random weights, three members that keep 4 of 12 random
heads (2 in the study of CLINC150) from layer 4 on, texts of 12 tokens, batches of 32. Both run by their defaults, in
processes of their own and in turn; a later epoch is the time of two epochs less that of one, and figures are ratios of
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
from pathlib import Path

import hydrant
import numpy as np
import transformers

LAYERS, HEADS, FORK, MEMBERS = 6, 12, 4, 3
"""Of the model of late_fork.py, and of the plan."""


def prepare(folder: Path, examples: int) -> None:
    """The checkpoint and its data, for both."""
    from late_fork import single_model, texts  # in the process of this version alone

    single_model().save_pretrained(folder / "model")
    for name, count in (("train", examples), ("validation", 200)):
        np.savez(folder / f"{name}.npz", **texts(count))  # type: ignore[arg-type]


def tune(folder: Path, keep: int) -> None:
    """In a process of either version: print the seconds of one epoch and of two, after a first one that warms up."""
    rng = np.random.default_rng(0)
    members = tuple(
        tuple(
            tuple(range(HEADS)) if layer < FORK else tuple(sorted(rng.choice(HEADS, keep, replace=False).tolist()))
            for layer in range(LAYERS)
        )
        for _ in range(MEMBERS)
    )
    model = transformers.BertForSequenceClassification.from_pretrained(folder / "model")
    plan = hydrant.HeadPlan("bert", LAYERS, HEADS, members, "random")
    with tempfile.TemporaryDirectory(dir=folder) as place:
        bundle = Path(place) / "bundle"
        hydrant.save_bundle(hydrant.fuse(model, plan), bundle, tensors_only=True)
        taken = []
        for run, epochs in enumerate((1, 1, 2)):
            how = hydrant.Jointly(epochs=epochs, patience=epochs, learning_rate=1e-5)
            start = time.perf_counter()
            hydrant.tune(
                bundle, folder / "train.npz", how, validation=folder / "validation.npz",
                output=Path(place) / f"tuned-{run}",
            )  # fmt: skip
            taken.append(time.perf_counter() - start)
    print(json.dumps(taken[1:]))


def seconds(folder: Path, site: Path | None, keep: int) -> list[float]:
    """Of one epoch and of two, in a process of its own."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    if site is not None:
        environment["PYTHONPATH"] = str(site)
    command = [sys.executable, __file__, "--run", str(folder), str(keep)]
    told = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    return [float(each) for each in json.loads(told.splitlines()[-1])]


def main() -> None:
    if sys.argv[1:2] == ["--run"]:
        tune(Path(sys.argv[2]), int(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("site", type=Path, help="folder that holds the earlier package `hydrant`")
    parser.add_argument("--examples", type=int, default=960, help="that are tuned on (default 960)")
    parser.add_argument("--keep", type=int, default=4, help="heads of a member above the fork (default 4)")
    parser.add_argument("--rounds", type=int, default=5, help="of both, in turn (default 5)")
    parser.add_argument("-o", "--output", type=Path, help="JSON file to write")
    options = parser.parse_args()
    if not (options.site / "hydrant").is_dir():
        parser.error(f"{options.site} holds no package hydrant; expected what `pip install --target` leaves")
    from about import about
    from hydrant.metrics.timing import Ratio
    from latency import times

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        prepare(folder, options.examples)
        sites = (options.site.resolve(), None)
        both = [[seconds(folder, site, options.keep) for site in sites] for _ in range(options.rounds)]
    taken = np.array(both)  # [rounds, earlier and now, one epoch and two]
    earlier, now = np.diff(taken)[..., 0].T
    report = {
        **about({"examples": options.examples, "keep": options.keep}),
        "rounds": options.rounds,
        "seconds": {"earlier": round(float(np.median(earlier)), 2), "now": round(float(np.median(now)), 2)},
        "later_epoch_times_as_fast": times(Ratio.of(earlier, now), 2),
        "first_epoch_times_as_fast": times(Ratio.of(*taken[..., 0].T), 2),
    }
    print(json.dumps(report))
    if options.output:
        options.output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
