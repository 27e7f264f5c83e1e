"""Drift monitor: compares a stream of predictions with the calibration examples; each change raises one alarm."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ..bundle.calibration import TrafficReference, binned
from ..errors import InputError, check_whole, cut
from ..runtime.prediction_counts import Observed
from .drift_statistics import RateTest, moved_most, same_p_value, stability_index

SEQUENTIAL, FIXED, HISTOGRAMS = 0.5, 0.25, 0.25
"""Shares of the false-alarm probability: rates after every input, rates of a whole log, and histograms."""

MAX_WINDOWS = 1000
"""Largest number of windows in memory."""

NAMES = {"abstain": "abstention rate", "out_of_distribution": "out-of-distribution rate"}

LABELS = "labels"
"""Name of the histogram of labels."""


@dataclass(frozen=True)
class Alarm:
    """An alarm: a rate, a score or the labels have changed.

    Attributes:
        kind: ``"rate"``, ``"score"`` or ``"labels"``.
        since: number of inputs before the change; for a histogram, before its window.
        seen: number of inputs processed when the alarm was raised.
        before, after: the rate, or the share of the bin or label that grew most.
        bins: bounds of the bin that grew most, or labels.
    """

    kind: str
    name: str
    text: str
    since: int
    seen: int
    before: float
    after: float
    bins: tuple[Any, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The fields as a JSON object."""
        return {**asdict(self), "bins": list(self.bins)}


@dataclass(frozen=True)
class Window:
    """Consecutive inputs: number of earlier inputs, their own number, rates, and distances of scores or labels."""

    first: int
    inputs: int
    rates: Mapping[str, float]
    psi: Mapping[str, float]
    p_values: Mapping[str, float]


@dataclass
class Counts:
    """Histograms of some inputs: counts of bins by score; labels in the reference's order, all others last."""

    inputs: int = 0
    bins: dict[str, np.ndarray] = field(default_factory=dict)
    decided: Counter[str] = field(default_factory=Counter)

    def add(self, other: Counts) -> None:
        """Add the counts of further inputs."""
        self.inputs += other.inputs
        self.decided.update(other.decided)
        for name, counts in other.bins.items():
            self.bins[name] = self.bins[name] + counts if name in self.bins else counts


class Watch:
    """Drift monitor of a stream; one alarm per rate and score; ``current`` counts inputs after the last window."""

    def __init__(self, reference: TrafficReference, alpha: float = 0.01, psi: float = 0.1, window: int = 1000) -> None:
        check_limits(alpha, psi, window)
        self.reference, self.alpha, self.psi, self.window = reference, alpha, psi, window
        level = alpha * SEQUENTIAL / max(1, len(reference.rates))
        self.rates = {name: RateTest(rate.count, rate.n, level) for name, rate in reference.rates.items()}
        self.known = {name: np.array(histogram.counts) for name, histogram in reference.histograms.items()}
        self._edges = {name: np.array(histogram.edges) for name, histogram in reference.histograms.items()}
        if any(reference.labels.values()):
            self.known[LABELS] = np.array([*reference.labels.values(), 0])
        self._places = {name: place for place, name in enumerate(reference.labels)}
        self.total, self.current = Counts(), Counts()
        self.windows: deque[Window] = deque(maxlen=MAX_WINDOWS)
        self.alarms: list[Alarm] = []
        self.failed = 0
        self._whole = 0  # number of complete windows

    def add(self, observed: Observed) -> list[Alarm]:
        """Add further predictions, and return the alarms that they raise; a window ends once it is long enough."""
        self.failed += observed.failed
        raised = []
        for name, test in self.rates.items():
            if name in observed.decisions and (change := test.update(observed.decisions[name])):
                text = (
                    f"{NAMES[name]} {change.usual:.1%} → {change.share:.1%} ({change.count} of "
                    f"{change.seen - change.since}) since input {change.since}, detected at input {change.seen}: "
                    f"the log is {times_text(change.evidence)} times more likely with a change than without"
                )
                raised.append(Alarm("rate", name, text, change.since, change.seen, change.usual, change.share))
        counts = self._counted(observed)
        self.total.add(counts)
        self.current.add(counts)
        self.alarms += raised
        if self.current.inputs >= self.window:
            raised += self.close_window()
        return raised

    def close_window(self) -> list[Alarm]:
        """End the current window early, and return the alarms that it raises."""
        counts, self.current = self.current, Counts()
        if not counts.inputs:
            return []
        first, self._whole = self.total.inputs - counts.inputs, self._whole + 1
        psi, p_values = self.distances(counts)
        shares = {name: counts.decided[name] / counts.inputs for name in self.rates if name in counts.decided}
        self.windows.append(Window(first, counts.inputs, shares, psi, p_values))
        level = self.alpha * HISTOGRAMS / max(1, len(self.known)) / (self._whole * (self._whole + 1))
        raised_before = {(alarm.kind, alarm.name) for alarm in self.alarms}
        raised = []
        for name in psi:
            kind = "labels" if name == LABELS else "score"
            if psi[name] >= self.psi and p_values[name] <= level and (kind, name) not in raised_before:
                raised.append(self._alarm(kind, name, psi[name], counts, first))
        self.alarms += raised
        return raised

    def distances(self, counts: Counts) -> tuple[dict[str, float], dict[str, float]]:
        """Stability index and p-value of each histogram, by name."""
        psi, p_values = {}, {}
        for name, expected in self.known.items():
            counted = counts.bins.get(name)
            if counted is not None and counted.sum():
                weight = min(counts.inputs / counted.sum(), self.reference.inputs / max(1, expected.sum()))
                psi[name] = stability_index(expected, counted)
                p_values[name] = same_p_value(expected, counted, weight)
        return psi, p_values

    def gained(self, name: str, counted: np.ndarray) -> tuple[float, float, tuple[Any, ...]]:
        """The bin or labels that grew most: share at calibration, share now, and bounds or labels."""
        expected = self.known[name]
        p, q = expected / expected.sum(), counted / counted.sum()
        if name != LABELS:
            place = moved_most(expected, counted)
            edges = [None, *self.reference.histograms[name].edges, None]
            return float(p[place]), float(q[place]), (edges[place], edges[place + 1])
        names = [*self._places, "(a label that calibration has not)"]
        order = [place for place in np.argsort(-np.abs(q - p), kind="stable")[:3] if q[place] != p[place]]
        place = int(order[0]) if order else 0
        return float(p[place]), float(q[place]), tuple(names[place] for place in order)

    def _counted(self, observed: Observed) -> Counts:
        scores = observed.scores
        bins = {name: binned(scores[name], edges) for name, edges in self._edges.items() if name in scores}
        if LABELS in self.known:
            labels = np.zeros(len(self._places) + 1, np.int64)
            for name, count in observed.labels.items():
                labels[self._places.get(name, -1)] += count
            bins[LABELS] = labels
        decided = Counter({name: int(flags.sum()) for name, flags in observed.decisions.items()})
        return Counts(observed.inputs, bins, decided)

    def _alarm(self, kind: str, name: str, psi: float, counts: Counts, first: int) -> Alarm:
        expected, counted, end = self.known[name], counts.bins[name], first + counts.inputs
        before, after, bins = self.gained(name, counted)
        where = f"PSI {psi:.3g} in inputs {first} to {end - 1}"
        if kind == "labels":
            places = {label: self._places.get(label, -1) for label in bins}
            p, q = expected / expected.sum(), counted / counted.sum()
            names = {-1: "labels absent from calibration"}
            moves = [f"{names.get(at, label)} {p[at]:.1%} → {q[at]:.1%}" for label, at in places.items()]
            text = f"labels: {where}; {', '.join(moves)}"
        else:
            text = f"{name.replace('_', ' ')}: {where}; {bounds_text(*bins)} {before:.1%} → {after:.1%} of the values"
        return Alarm(kind, name, text, first, end, before, after, bins)


def bounds_text(low: float | None, high: float | None) -> str:
    """The bounds of a bin, in words."""
    if low is None:
        return "all" if high is None else f"up to {high:.4g}"
    return f"above {low:.4g}" if high is None else f"{low:.4g} to {high:.4g}"


def times_text(evidence: float) -> str:
    """A likelihood ratio in words, for example "2,480"."""
    if evidence >= 1e6:
        return "over a million"
    return f"{evidence:,.0f}" if evidence >= 100 else f"{evidence:.3g}"


def check_limits(alpha: float, psi: float, window: int) -> None:
    """Raise ``InputError`` for limits out of range."""
    if not 0 < alpha < 1 or isinstance(alpha, bool):
        raise InputError(f"alpha is {cut(alpha)}; expected a number above 0 and below 1")
    if not 0 < psi < math.inf:
        raise InputError(f"psi is {cut(psi)}; expected a number above 0")
    check_whole("window", window, 100, what="a number of inputs")
