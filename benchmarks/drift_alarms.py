"""Delay of drift alarms after OOD inputs, rate of false alarms, and cost of monitoring.

    hydrant predict out/ --input test.csv --output test.jsonl
    hydrant predict out/ --input oos_test.csv --output oos.jsonl
    python benchmarks/drift_alarms.py out/ test.jsonl oos.jsonl --seeds 50 --inputs 20000

Traffic is drawn with replacement from the rows of the two logs, and monitored as in `hydrant serve`, in requests of 8
inputs. Each stream ends with the first alarm. ``--seeds 0`` measures the cost only.
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
HEAD = ["OOD inputs", "streams with an alarm", "median inputs until it", "maximum", "score of the first alarm"]


class Log:
    """Rows of a log as arrays."""

    def __init__(self, path: Path, reference: TrafficReference) -> None:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        names = {*reference.rates, *reference.histograms}
        self.seen = observed_rows(rows, names, [str(path)] * len(rows))
        self.labels = np.array([row["label"] for row in rows])


def drawn(id_log: Log, ood_log: Log, share: float, inputs: int, rng: np.random.Generator) -> Observed:
    """Draw inputs, each OOD with probability ``share``."""
    parts = []
    other = rng.random(inputs) < share
    for log in (id_log, ood_log):
        parts.append(rng.integers(0, log.seen.inputs, inputs))

    def mixed(pick: Any) -> np.ndarray:
        return np.where(other, pick(ood_log)[parts[1]], pick(id_log)[parts[0]])

    return Observed(
        inputs,
        {name: mixed(lambda log, name=name: log.seen.decisions[name]) for name in id_log.seen.decisions},
        {name: mixed(lambda log, name=name: log.seen.scores[name]) for name in id_log.seen.scores},
        Counter(mixed(lambda log: log.labels).tolist()),
    )


def part_of(seen: Observed, start: int, stop: int) -> Observed:
    """Slice of the inputs, without labels."""
    return Observed(
        min(stop, seen.inputs) - start,
        {name: values[start:stop] for name, values in seen.decisions.items()},
        {name: values[start:stop] for name, values in seen.scores.items()},
    )


def until_alarm(watch: Watch, seen: Observed, request: int) -> tuple[int, str] | None:
    """Inputs until the first alarm, and its name; ``None`` without one."""
    for start in range(0, seen.inputs, request):
        if alarms := watch.add(part_of(seen, start, start + request)):
            return alarms[0].seen, alarms[0].name
    return None


def measured(reference: TrafficReference, id_log: Log, ood_log: Log, seeds: int, inputs: int) -> list[dict[str, Any]]:
    """Row for each share of OOD inputs."""
    rows = []
    for share in SHARES:
        alarms = []
        for seed in range(seeds):
            seen = drawn(id_log, ood_log, share, inputs, np.random.default_rng([seed, round(share * 1000)]))
            alarms.append(until_alarm(Watch(reference), seen, REQUEST))
        delays = sorted(each[0] for each in alarms if each)
        rows.append({
            "share": share, "streams": seeds, "inputs": inputs, "alarms": len(delays),
            "median": delays[len(delays) // 2] if delays else None,
            "worst": delays[-1] if delays else None,
            "first": dict(Counter(each[1] for each in alarms if each)),
        })  # fmt: skip
    return rows


def costs(bundle: Bundle, id_log: Path, inputs: int = 100_000) -> dict[str, float]:
    """CPU time of counting and monitoring in a service: per request, and per scrape."""
    calibration = Calibration.of(bundle)
    predictor = SimpleNamespace(labels=bundle.labels, task="classification", calibration=calibration)
    served: Any = SimpleNamespace(name="model", version="1", ready=True, predictor=predictor)
    times_of = {}
    for size in (1, 8, 32):
        stats, times = Stats(), inputs // size
        whole = prediction_of(id_log, bundle.labels)
        order = np.random.default_rng(0).permutation(len(whole))
        parts = [whole.take(part) for part in np.array_split(order, len(order) // size)]
        begun = time.process_time()
        for at in range(times):
            stats.queue(served, size)
            stats.batch(served, size, 0.005)
            stats.predicted(served, (), parts[at % len(parts)])
            stats.request(served, "rest", 0.006, 200)
        times_of[f"a request of {size}, µs"] = (time.process_time() - begun) / times * 1e6
    metrics = Metrics(stats)
    for name in ("/metrics", "/stats"):
        begun = time.process_time()
        for _ in range(20):
            metrics.answer(name, "", None)
        times_of[f"{name}, ms"] = (time.process_time() - begun) / 20 * 1e3
    return times_of


def prediction_of(path: Path, labels: list[str]) -> Prediction:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    scores: dict[str, Any] = {
        name: np.array([row[name] for row in rows], np.float32) for name in WATCHED if name in rows[0]
    }
    decided: dict[str, Any] = {name: np.array([row[name] for row in rows], bool) for name in RATES if name in rows[0]}
    places = np.array([labels.index(row["label"]) for row in rows])
    return Prediction(np.zeros((len(rows), len(labels)), np.float32), places, **scores, **decided)


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("id_log", type=Path, help="log of in-distribution inputs")
    parser.add_argument("ood_log", type=Path, help="log of out-of-distribution inputs")
    parser.add_argument("--seeds", type=int, default=50, help="streams for each share")
    parser.add_argument("--inputs", type=int, default=20_000, help="inputs per stream")
    options = parser.parse_args()
    bundle = Bundle.open(options.bundle)
    reference = reference_of(bundle)
    id_log, ood_log = Log(options.id_log, reference), Log(options.ood_log, reference)
    rows = measured(reference, id_log, ood_log, options.seeds, options.inputs)
    lines = []
    for row in rows:
        first = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in sorted(row["first"].items()))
        delays = [str(row[name] or "–") for name in ("median", "worst")]
        lines.append([f"{row['share']:.0%}", f"{row['alarms']} of {row['streams']}", *delays, first or "–"])
    print(harness.table(HEAD, lines))
    taken = costs(bundle, options.id_log)
    for name, figure in taken.items():
        print(f"CPU time of counting and monitoring: {name} {figure:.1f}")
    harness.save(options.output, {**harness.about(), "rows": rows, "costs": taken})


if __name__ == "__main__":
    main()
