"""What the traced path costs beside hydrant's own graphs: BERT-base, the same weights and heads by both, interleaved.

    python benchmarks/traced_cost.py --forks 11

Random weights: latency does not depend on them. Members keep 4 of 12 heads from the fork on. Both graphs run in one
process on one thread in turn, and what is timed is the CPU time of each run, which other programs disturb little; a
figure is the median of the rounds' ratios, with the range that holds its middle half. Before that the graphs are
compared: they must give the same probabilities.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from pathlib import Path
from typing import Any

import hydrant
import numpy as np
import torch
import transformers
from hydrant.metrics.timing import Rules, interleave
from hydrant.runtime.backends.ort import open_session

MEMBERS, KEEP = 3, 4


def random_plan(layers: int, heads: int, fork: int) -> hydrant.HeadPlan:
    """Every head below the fork, some of them from it on, each member's drawn at random."""
    draw, whole = np.random.default_rng(0), tuple(range(heads))
    keep = max(1, heads * KEEP // 12)
    members = tuple(
        tuple(
            whole if layer < fork else tuple(sorted(draw.choice(heads, keep, replace=False).tolist()))
            for layer in range(layers)
        )
        for _ in range(MEMBERS)
    )
    return hydrant.HeadPlan("bert", layers, heads, members, "random")


def session_of(model: Any, plan: hydrant.HeadPlan, traced: bool, folder: Path) -> tuple[Any, int, float]:
    """A session on one thread, the nodes of its graph, and the seconds that fusing and exporting took."""
    began = time.monotonic()
    ensemble: Any = hydrant.fuse(model, plan, traced=True) if traced else hydrant.fuse(model, plan)
    path = hydrant.export_onnx(hydrant.save_bundle(ensemble, folder, tensors_only=True))
    seconds = time.monotonic() - began
    import onnx

    return open_session(path, 1), len(onnx.load(str(path), load_external_data=False).graph.node), seconds


def compared(model: Any, fork: int, sequence: int, rules: Rules) -> str:
    """One row: the ratio of both paths, the nodes of their graphs, and how long these took to make."""
    config = model.config
    plan = random_plan(config.num_hidden_layers, config.num_attention_heads, fork)
    ids = np.random.default_rng(1).integers(5, config.vocab_size, (1, sequence))
    batch = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    with tempfile.TemporaryDirectory() as folder:
        made = [session_of(model, plan, traced, Path(folder) / str(traced)) for traced in (False, True)]
    sessions = [session for session, _, _ in made]
    given = [session.run(["probabilities"], batch)[0] for session in sessions]
    difference = float(np.abs(given[0] - given[1]).max())
    assert difference < 1e-4, f"the graphs differ by {difference:.1e}"
    runs = [lambda session=session: session.run(["probabilities"], batch) for session in sessions]
    seconds = interleave(runs, rules, clock=time.thread_time)
    ratios = seconds[:, 1] / seconds[:, 0]
    low, middle, high = np.percentile(ratios, [25, 50, 75])
    nodes, making = ([part[at] for part in made] for at in (1, 2))
    return (
        f"| {fork} | {middle:.2f} ({low:.2f} to {high:.2f}) | {nodes[1]} : {nodes[0]} | "
        f"{making[1]:.0f} s : {making[0]:.0f} s | {difference:.0e} |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forks", type=int, nargs="+", default=[11, 0], help="layers from which members differ")
    parser.add_argument("--layers", type=int, default=12, help="of the model")
    parser.add_argument("--width", type=int, default=768, help="of the model; heads are 64 wide")
    parser.add_argument("--sequence", type=int, default=128, help="tokens of the one text")
    parser.add_argument("--rounds", type=int, default=30, help="runs of each graph, at least")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=options.width,
        num_hidden_layers=options.layers,
        num_attention_heads=options.width // 64,
        intermediate_size=4 * options.width,
        num_labels=150,
    )
    model = transformers.BertForSequenceClassification(config).eval()
    print("| fork | time, traced ÷ declared | nodes | fuse and export | largest difference |")
    print("|---|---|---|---|---|")
    for fork in options.forks:
        rules = Rules(seconds=1.0, iterations=options.rounds)
        print(compared(model, fork, options.sequence, rules), flush=True)


if __name__ == "__main__":
    main()
