"""Cost of traced graphs ÷ declared ones: BERT-base with the same weights and heads, interleaved.

    python benchmarks/traced_cost.py --forks 11

Weights are random; members keep 4 of 12 heads from the fork on. Both graphs must return equal probabilities. They run
in turn on one thread; results are medians and quartiles of the rounds' CPU time ratios.
"""

from __future__ import annotations

import logging
import tempfile
import time
from pathlib import Path
from typing import Any

import harness
import hydrant
import numpy as np
from harness import architecture, inputs, random_plan, random_transformer
from hydrant.metrics.timing import Rules, interleave
from hydrant.runtime.backends.ort import open_session

HEAD = ["fork", "time, traced ÷ declared", "nodes", "fuse and export", "largest difference"]


def session_of(model: Any, plan: hydrant.HeadPlan, traced: bool, folder: Path) -> tuple[Any, int, float]:
    """Session on one thread, nodes of its graph, and seconds of fusing and exporting."""
    began = time.monotonic()
    ensemble: Any = hydrant.fuse(model, plan, traced=True) if traced else hydrant.fuse(model, plan)
    path = hydrant.export_onnx(hydrant.save_bundle(ensemble, folder, tensors_only=True))
    seconds = time.monotonic() - began
    import onnx

    return open_session(path, 1), len(onnx.load(str(path), load_external_data=False).graph.node), seconds


def compared(name: str, model: Any, fork: int, sequence: int, rules: Rules) -> list[str]:
    """Row: ratio of both paths, nodes of their graphs, and seconds to create them."""
    shape = architecture(name)
    plan, batch = random_plan(shape, 4, fork), inputs(shape, 1, sequence)
    with tempfile.TemporaryDirectory() as folder:
        built = [session_of(model, plan, traced, Path(folder) / str(traced)) for traced in (False, True)]
    sessions = [session for session, _, _ in built]
    outputs = [session.run(["probabilities"], batch)[0] for session in sessions]
    difference = float(np.abs(outputs[0] - outputs[1]).max())
    assert difference < 1e-4, f"the graphs differ by {difference:.1e}"
    runs = [lambda session=session: session.run(["probabilities"], batch) for session in sessions]
    seconds = interleave(runs, rules, clock=time.thread_time)
    ratios = seconds[:, 1] / seconds[:, 0]
    low, middle, high = np.percentile(ratios, [25, 50, 75])
    nodes, making = ([part[at] for part in built] for at in (1, 2))
    ratio, seconds_of = f"{middle:.2f} ({low:.2f} to {high:.2f})", f"{making[1]:.0f} s : {making[0]:.0f} s"
    return [str(fork), ratio, f"{nodes[1]} : {nodes[0]}", seconds_of, f"{difference:.0e}"]


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--model", choices=["BERT-base", "MiniLM"], default="BERT-base", help="shape of the model")
    parser.add_argument("--forks", type=int, nargs="+", default=[11, 0], help="layers from which members differ")
    parser.add_argument("--sequence", type=int, default=128, help="tokens of the text")
    parser.add_argument("--rounds", type=int, default=30, help="minimum runs of each graph")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    model, rules = random_transformer(options.model), Rules(seconds=1.0, iterations=options.rounds)
    rows = [compared(options.model, model, fork, options.sequence, rules) for fork in options.forks]
    print(harness.table(HEAD, rows))
    harness.save(options.output, {**harness.about(), "rows": rows})


if __name__ == "__main__":
    main()
