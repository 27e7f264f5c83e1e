"""What a late fork costs beside its graph: stored numbers, the PyTorch forward pass, and an epoch of tuning.

    python benchmarks/late_fork.py --examples 960 --rounds 4 -o benchmarks/results/late-fork-cpu.json

MiniLM's shape (6 layers, 12 heads, width 384, 150 classes) with random weights, three members that keep 4 of 12 heads
above the fork, 12 tokens. The single model is the Hugging Face one. An epoch of tuning above the fork is set against
one that tunes all layers (``unfreeze``), both also with ``mixed_precision="bf16"``, in turn; figures are ratios of
medians.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import hydrant
import numpy as np
import torch
import transformers
from about import about
from hydrant.families.registry import architecture_of
from hydrant.metrics.timing import Ratio, Rules, interleave
from latency import random_plan, times

CLASSES, TOKENS, KEEP = 150, 12, 4


def single_model() -> Any:
    """A classifier of MiniLM's shape."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536, num_labels=CLASSES
    )
    return transformers.BertForSequenceClassification(config).eval()


def ensemble_of(model: Any, fork: int) -> Any:
    return hydrant.fuse(model, random_plan(architecture_of(model), KEEP, fork))


def texts(count: int) -> dict[str, np.ndarray]:
    """Tensors of random texts, with labels."""
    rng = np.random.default_rng(0)
    ids = rng.integers(1000, 20000, (count, TOKENS))
    parts = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    return {**parts, "y": rng.integers(0, CLASSES, count)}


def stored(model: Any, fork: int) -> dict[str, Any]:
    """Numbers that the PyTorch module holds ÷ those of the single model."""
    counts = [sum(each.numel() for each in module.parameters()) for module in (ensemble_of(model, fork), model)]
    return {"fork": fork, "parameters": round(counts[0] / counts[1], 4)}


def forward(model: Any, fork: int, batch: int, rounds: int) -> dict[str, Any]:
    """The PyTorch forward pass ÷ the Hugging Face model's."""
    tensors = {name: torch.from_numpy(array) for name, array in texts(batch).items() if name != "y"}
    ensemble = ensemble_of(model, fork)

    def run(module: Any) -> Callable[[], None]:
        def call() -> None:
            with torch.inference_mode():
                module(**tensors)

        return call

    seconds = interleave([run(ensemble), run(model)], Rules(0.5, rounds)).T
    return {"fork": fork, "batch": batch, **times(Ratio.of(*seconds))}


def epochs(model: Any, fork: int, examples: int, rounds: int, folder: Path) -> dict[str, Any]:
    """An epoch that tunes all layers in float32 ÷ one that tunes those above the fork, and the same in bfloat16.

    The layers below run over the data once, before the first epoch; what is set against the whole epoch is one later
    epoch: the time of two epochs less that of one.
    """
    bundle = folder / f"fork-{fork}"
    hydrant.save_bundle(ensemble_of(model, fork), bundle, tensors_only=True)
    np.savez(folder / "train.npz", **texts(examples))  # type: ignore[arg-type]
    np.savez(folder / "validation.npz", **texts(200))  # type: ignore[arg-type]
    ways = [
        hydrant.Jointly(unfreeze=unfreeze, mixed_precision=precision, learning_rate=1e-5)
        for precision in ("no", "bf16")
        for unfreeze in (True, False)
    ]

    def seconds(how: hydrant.Jointly, count: int) -> float:
        how = replace(how, epochs=count, patience=count)
        start = time.perf_counter()
        hydrant.tune(
            bundle, folder / "train.npz", how, validation=folder / "validation.npz", output=folder / "tuned", force=True
        )
        return time.perf_counter() - start

    taken = np.array([[[seconds(how, count) for count in (1, 2)] for how in ways] for _ in range(rounds)])
    later = np.diff(taken)[..., 0]  # [rounds, ways]
    whole, above, whole_bf16, above_bf16 = later.T
    medians = np.round(np.median(later, axis=0), 2).tolist()
    return {
        "fork": fork,
        "examples": examples,
        "seconds": medians[:2],
        "times_as_fast": times(Ratio.of(whole, above), 2),
        "first_epoch_times_as_fast": times(Ratio.of(taken[:, 0, 0], taken[:, 1, 0]), 2),
        "bf16": {
            "seconds": medians[2:],
            "times_as_fast": times(Ratio.of(whole_bf16, above_bf16), 2),
            "times_as_fast_as_float32": [times(Ratio.of(whole, whole_bf16), 2), times(Ratio.of(above, above_bf16), 2)],
            "times_as_fast_as_all_layers_in_float32": times(Ratio.of(whole, above_bf16), 2),
        },
        "rounds": rounds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=3000, help="that are tuned on (default 3000)")
    parser.add_argument("--rounds", type=int, default=3, help="of tuning (default 3)")
    parser.add_argument("-o", "--output", type=Path, help="JSON file to write")
    options = parser.parse_args()
    model = single_model()
    report: dict[str, Any] = {
        **about({"examples": options.examples}),
        "stored": [stored(model, fork) for fork in (4, 5)],
        "forward": [forward(model, fork, batch, 30) for fork in (4, 5) for batch in (1, 8)],
    }
    with tempfile.TemporaryDirectory() as folder:
        report["tuning"] = [epochs(model, fork, options.examples, options.rounds, Path(folder)) for fork in (4, 5)]
    for kind in ("stored", "forward", "tuning"):
        for row in report[kind]:
            print(kind, json.dumps(row))
    if options.output:
        options.output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
