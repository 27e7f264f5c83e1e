"""Fair timing of several cases: interleaved repetitions, percentiles, ratios, and signs of unstable runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..progress import Progress, no_progress

Clock = Callable[[], float]
"""A clock in seconds."""

Run = Callable[[], object]
"""One run of a case."""


@dataclass(frozen=True)
class Rules:
    """Minimum measurement of every case: seconds, iterations, and seconds of warm-up."""

    seconds: float = 3.0
    iterations: int = 30
    warm_up: float = 0.2


def interleave(runs: Sequence[Run], rules: Rules, *, clock: Clock = time.perf_counter,
               timed: Callable[[Run], float] | None = None, progress: Progress = no_progress,
               title: str = "") -> np.ndarray:  # fmt: skip
    """Seconds [rounds, cases]: each round runs every case once, from the next one on; so disturbances affect all."""

    def by_clock(run: Run) -> float:
        start = clock()
        run()
        return clock() - start

    timed = timed or by_clock
    for run in runs:
        start = clock()
        run()
        while clock() - start < rules.warm_up:
            run()
    spent = [0.0] * len(runs)

    def turns() -> Iterator[int]:
        turn = 0
        while turn < rules.iterations or min(spent) < rules.seconds:
            yield turn
            turn += 1

    rounds = []
    for turn in progress(turns(), 0, title):
        taken = [0.0] * len(runs)
        for step in range(len(runs)):
            case = (turn + step) % len(runs)
            taken[case] = timed(runs[case])
            spent[case] += taken[case]
        rounds.append(taken)
    return np.array(rounds)


@dataclass(frozen=True)
class Latency:
    """Times of one case, ms; variation: deviation ÷ mean; drift: median of the second half ÷ the first's, − 1."""

    p50: float
    p90: float
    p95: float
    p99: float
    mean: float
    variation: float
    drift: float
    iterations: int

    @classmethod
    def of(cls, seconds: np.ndarray) -> Latency:
        """From the seconds [rounds] of one case, in order of measurement."""
        p50, p90, p95, p99 = (float(value) * 1e3 for value in np.percentile(seconds, [50, 90, 95, 99]))
        half = len(seconds) // 2
        drift = np.median(seconds[half:]) / np.median(seconds[:half]) - 1 if half else 0.0
        mean, deviation = float(seconds.mean()), float(seconds.std())
        return cls(p50, p90, p95, p99, mean * 1e3, deviation / mean, float(drift), len(seconds))


@dataclass(frozen=True)
class Ratio:
    """Time of a case ÷ time of a baseline: ratio of the medians, and percentiles of the rounds' ratios."""

    median: float
    p5: float
    p95: float

    @classmethod
    def of(cls, seconds: np.ndarray, baseline: np.ndarray) -> Ratio:
        """From the seconds [rounds] of the case and of the baseline in the same rounds."""
        p5, p95 = np.percentile(seconds / baseline, [5, 95])
        return cls(float(np.median(seconds) / np.median(baseline)), float(p5), float(p95))


def instabilities(cases: Mapping[str, Latency]) -> list[str]:
    """A sentence for each sign of an unstable measurement."""
    signs = (
        ("variation", 0.025, "the times varied (standard deviation ÷ mean)",
         "close other programs, or measure longer with --seconds"),
        ("drift", 0.05, "the medians of the first and the second half differ",
         "the machine changed its speed; measure again"),
    )  # fmt: skip
    warnings = []
    for field, limit, symptom, remedy in signs:
        over = {name: size for name, case in cases.items() if (size := abs(getattr(case, field))) > limit}
        if over:
            worst = max(over, key=lambda name: over[name])
            warnings.append(
                f"{symptom} by more than {limit * 100:g}% in {len(over)} of {len(cases)} cases, "
                f"most in {worst}: {over[worst]:.1%}; {remedy}"
            )
    return warnings


def busy(load: float, cores: int) -> list[str]:
    """A warning if the load average exceeds the number of cores."""
    if load <= cores:
        return []
    return [f"the load average was {load:.1f} on {cores} cores before the measurement; close other programs"]
