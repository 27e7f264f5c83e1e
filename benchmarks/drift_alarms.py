"""How soon unknown inputs among the traffic raise an alarm, how often none do all the same, and what watching costs.

    hydrant predict out/ --input test.csv --output test.jsonl
    hydrant predict out/ --input oos_test.csv --output oos.jsonl
    python benchmarks/drift_alarms.py out/ test.jsonl oos.jsonl --seeds 50 --inputs 20000

Traffic is drawn with replacement from the rows of the two logs. Every stream is watched as `hydrant serve` does, in
requests of 8 inputs; it ends with the alarm that comes first. ``--seeds 0`` measures what counting costs alone.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import harness
import numpy as np
from hydrant import Bundle
from hydrant.bundle.calibration import RATES, Calibration, TrafficReference
from hydrant.monitoring.drift_monitor import Watch
from hydrant.monitoring.drift_report import reference_of
from hydrant.runtime.prediction import Prediction
from hydrant.runtime.prediction_counts import WATCHED, Observed, observed_rows
from hydrant.serving.metrics import Metrics
from hydrant.serving.stats import Stats

SHARES = (0.0, 0.02, 0.05, 0.1, 0.2)
REQUEST = 8
HEAD = ["unknown inputs", "streams with an alarm", "inputs until it: median", "worst", "first alarm of"]


class Log:
    """The rows of a log as arrays, to be drawn from."""

    def __init__(self, path: Path, reference: TrafficReference) -> None:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        names = {*reference.rates, *reference.histograms}
        self.seen = observed_rows(rows, names, [str(path)] * len(rows))
        self.labels = np.array([row["label"] for row in rows])


def drawn(known: Log, strange: Log, share: float, inputs: int, rng: np.random.Generator) -> Observed:
    """Some inputs, each strange with that probability."""
    parts = []
    other = rng.random(inputs) < share
    for log in (known, strange):
        parts.append(rng.integers(0, log.seen.inputs, inputs))

    def mixed(pick: Any) -> np.ndarray:
        return np.where(other, pick(strange)[parts[1]], pick(known)[parts[0]])

    return Observed(
        inputs,
        {name: mixed(lambda log, name=name: log.seen.decisions[name]) for name in known.seen.decisions},
        {name: mixed(lambda log, name=name: log.seen.scores[name]) for name in known.seen.scores},
        Counter(mixed(lambda log: log.labels).tolist()),
    )


def part_of(seen: Observed, start: int, stop: int) -> Observed:
    """Some of the inputs; labels are left out."""
    return Observed(
        min(stop, seen.inputs) - start,
        {name: values[start:stop] for name, values in seen.decisions.items()},
        {name: values[start:stop] for name, values in seen.scores.items()},
    )


def until_alarm(watch: Watch, seen: Observed, request: int) -> tuple[int, str] | None:
    """Inputs until the first alarm, and what it was of; ``None`` without one."""
    for start in range(0, seen.inputs, request):
        if alarms := watch.add(part_of(seen, start, start + request)):
            return alarms[0].seen, alarms[0].name
    return None


def measured(reference: TrafficReference, known: Log, strange: Log, seeds: int, inputs: int) -> list[dict[str, Any]]:
    """One row for each share of strange inputs."""
    rows = []
    for share in SHARES:
        found = []
        for seed in range(seeds):
            seen = drawn(known, strange, share, inputs, np.random.default_rng([seed, round(share * 1000)]))
            found.append(until_alarm(Watch(reference), seen, REQUEST))
        delays = sorted(each[0] for each in found if each)
        rows.append({
            "share": share, "streams": seeds, "inputs": inputs, "alarms": len(delays),
            "median": delays[len(delays) // 2] if delays else None,
            "worst": delays[-1] if delays else None,
            "first": dict(Counter(each[1] for each in found if each)),
        })  # fmt: skip
    return rows


def costs(bundle: Bundle, known: Path, inputs: int = 100_000) -> dict[str, float]:
    """CPU time that counting and watching take in a service: of a request with its prediction, and of a scrape."""
    calibration = Calibration.of(bundle)
    predictor = SimpleNamespace(labels=bundle.labels, task="classification", calibration=calibration)
    served: Any = SimpleNamespace(name="model", version="1", ready=True, predictor=predictor)
    found = {}
    for size in (1, 8, 32):
        stats, times = Stats(), inputs // size
        whole = prediction_of(known, bundle.labels)
        order = np.random.default_rng(0).permutation(len(whole))
        parts = [whole.take(part) for part in np.array_split(order, len(order) // size)]
        begun = time.process_time()
        for at in range(times):
            stats.queue(served, size)
            stats.batch(served, size, 0.005)
            stats.predicted(served, (), parts[at % len(parts)])
            stats.request(served, "rest", 0.006, 200)
        found[f"a request of {size}, µs"] = (time.process_time() - begun) / times * 1e6
    metrics = Metrics(stats)
    for name in ("/metrics", "/stats"):
        begun = time.process_time()
        for _ in range(20):
            metrics.answer(name, "", None)
        found[f"{name}, ms"] = (time.process_time() - begun) / 20 * 1e3
    return found


def prediction_of(path: Path, labels: list[str]) -> Prediction:
    """The rows of a log as a prediction."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    scores = {name: np.array([row[name] for row in rows], np.float32) for name in WATCHED if name in rows[0]}
    decided = {name: np.array([row[name] for row in rows], bool) for name in RATES if name in rows[0]}
    places = np.array([labels.index(row["label"]) for row in rows])
    return Prediction(np.zeros((len(rows), len(labels)), np.float32), places, **scores, **decided)


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("known", type=Path, help="log of in-distribution inputs")
    parser.add_argument("strange", type=Path, help="log of out-of-distribution inputs")
    parser.add_argument("--seeds", type=int, default=50, help="streams of each share")
    parser.add_argument("--inputs", type=int, default=20_000, help="inputs of a stream")
    options = parser.parse_args()
    bundle = Bundle.open(options.bundle)
    reference = reference_of(bundle)
    known, strange = Log(options.known, reference), Log(options.strange, reference)
    rows = measured(reference, known, strange, options.seeds, options.inputs)
    lines = []
    for row in rows:
        first = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in sorted(row["first"].items()))
        delays = [str(row[name] or "–") for name in ("median", "worst")]
        lines.append([f"{row['share']:.0%}", f"{row['alarms']} of {row['streams']}", *delays, first or "–"])
    print(harness.table(HEAD, lines))
    taken = costs(bundle, options.known)
    for name, figure in taken.items():
        print(f"counting and watching take of the CPU: {name} {figure:.1f}")
    harness.save(options.output, {**harness.about(), "rows": rows, "costs": taken})


if __name__ == "__main__":
    main()
