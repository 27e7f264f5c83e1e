"""Drift tests against the calibration examples: rates after every input, and histograms by window.

*A rate of decisions.* A fresh input lies beyond a threshold with a probability of a Beta law (``metrics.rates``). A
stream like the examples is thus a Pólya urn that starts with this Beta. Its distribution is exact: it includes the
finite n and the choice of the threshold on the same examples.

:class:`RateTest` bets against the urn. It mixes all possible times of a change with all :data:`ODDS`, the factors of
the odds from then on (Shiryaev's mixture over change points; Shin, Ramdas & Rinaldo 2023). The mixture ÷ the urn is a
martingale that starts at 1. It *ever* reaches 1/α with probability at most α (Ville 1939; see Ramdas, Grünwald, Vovk &
Shafer 2023), so the test is valid after every input. :func:`rate_p_value` tests one fixed number of inputs.

*A histogram.* The population stability index measures the distance of two histograms, Σ (q − p) log (q / p); half an
example is added to each bin of both. With few inputs it grows by noise alone (Yurdakul & Naranjo 2020), so Pearson's χ²
of two samples tests the distance against chance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..metrics.rates import beyond_law

ODDS = (1 / 8, 1 / 4, 1 / 2, 2 / 3, 3 / 2, 2, 3, 5, 10, 30, 100)
"""Equally likely factors of a change in the odds of a decision."""

BLOCK = 128
"""Number of inputs processed at a time; fewer if the product of their ratios would overflow or vanish."""

SMALLEST = 1e-200
"""Lower bound of products of ratios; its inverse is the upper bound."""

FEW = 10
"""Bins with fewer examples in both histograms together are pooled before χ²."""

SMOOTHING = 0.5
"""Examples added to each bin before the population stability index."""


@dataclass(frozen=True)
class Change:
    """A change of a rate after ``since`` of ``seen`` inputs: later decisions, earlier rate, and evidence."""

    since: int
    seen: int
    count: int
    usual: float
    evidence: float

    @property
    def share(self) -> float:
        """The rate since the change."""
        return self.count / (self.seen - self.since)


class RateTest:
    """Sequential test for the first ``change`` of a rate of decisions; ``limit`` of the evidence is 1 ÷ level."""

    def __init__(self, count: int, n: int, level: float) -> None:
        self._urn = np.array(beyond_law(count, n), np.float64)  # decisions, others
        odds = np.array(ODDS) * self._urn[0] / self._urn[1]
        self._rates = odds / (1 + odds)  # [K] after a change
        self.limit = 1 / level
        self.count = self.n = 0
        self.change: Change | None = None
        self._bets = np.zeros(len(ODDS))  # gain of each rate, over all times of change so far
        self._sums = np.zeros(len(ODDS))  # log likelihood ratio of each rate since the start
        self._lowest = np.zeros(len(ODDS))  # lowest sum so far, and its place:
        self._began = np.zeros((len(ODDS), 2), np.int64)  # inputs, decisions

    @property
    def evidence(self) -> float:
        """Likelihood ratio of the stream: with a change ÷ without."""
        return float(self._bets.sum() + _unbet(self.n)) if self.change is None else self.change.evidence

    def update(self, decided: np.ndarray) -> Change | None:
        """Add further decisions, [N] bool in order, and return a change that they newly show."""
        before = self.change
        decided = np.asarray(decided, bool)
        for start in range(0, len(decided), BLOCK):
            self._take(decided[start : start + BLOCK])
        return self.change if before is None else None

    def _take(self, block: np.ndarray) -> None:
        if self.change is None and not self._bet(block):
            middle = len(block) // 2
            self._take(block[:middle])
            self._take(block[middle:])
            return
        self.count += int(block.sum())
        self.n += len(block)

    def _bet(self, decided: np.ndarray) -> bool:
        """Bet on some inputs; return ``False`` without an effect if products of their ratios would overflow."""
        place = self.n + np.arange(len(decided))  # inputs before each
        counts = self.count + np.cumsum(decided)
        urn = (self._urn[0] + counts - decided) / (self._urn.sum() + place)  # [N] probability of a decision
        chosen = np.where(decided[:, None], self._rates, 1 - self._rates)
        ratios = chosen / np.where(decided, urn, 1 - urn)[:, None]  # [N, K]
        with np.errstate(over="ignore", under="ignore"):
            products = np.cumprod(ratios, axis=0)
        if len(decided) > 1 and not SMALLEST < products.min() <= products.max() < 1 / SMALLEST:
            return False
        begun = (_unbet(place) - _unbet(place + 1)) / len(ODDS)  # a change just before each input
        earlier = np.vstack([np.ones(len(ODDS)), products[:-1]])
        bets = products * (self._bets + np.cumsum(begun[:, None] / earlier, axis=0))
        evidence = bets.sum(axis=1) + _unbet(place + 1)
        sums = self._sums + np.log(products)
        crossings = np.flatnonzero(evidence >= self.limit)
        end = int(crossings[0]) + 1 if len(crossings) else len(decided)
        starts = np.vstack([self._sums, sums[: end - 1]])  # before each input
        lows = starts.argmin(axis=0)
        lower = starts.min(axis=0) < self._lowest
        before = np.concatenate([[self.count], counts])
        self._began[lower] = np.stack([self.n + lows, before[lows]], axis=1)[lower]
        self._lowest = np.minimum(self._lowest, starts.min(axis=0))
        self._bets, self._sums = bets[end - 1], sums[end - 1]
        if len(crossings):
            since, count = map(int, self._began[int(np.argmax(self._bets))])
            seen = self.n + end
            usual = float((self._urn[0] + count) / (self._urn.sum() + since))
            self.change = Change(since, seen, int(counts[end - 1]) - count, usual, float(evidence[end - 1]))
        return True


def _unbet(inputs: np.ndarray | int) -> np.ndarray:
    """Share of the stake reserved for changes after so many inputs; slow decay makes late changes cheap."""
    return np.asarray(1 / (1 + np.log1p(inputs)))


def rate_p_value(count: int, n: int, known_count: int, known_n: int) -> float:
    """Two-sided p-value of a count among n inputs like the calibration examples."""
    if n == 0:
        return 1.0
    a, b = beyond_law(known_count, known_n)
    k = np.arange(n, dtype=np.float64)
    steps = np.log((n - k) * (a + k)) - np.log((k + 1) * (b + n - k - 1))  # pmf(k + 1) ÷ pmf(k)
    logs = np.concatenate([[0.0], np.cumsum(steps)])
    mass = np.exp(logs - logs.max())
    mass /= mass.sum()
    return float(min(1.0, 2 * min(mass[: count + 1].sum(), mass[count:].sum())))


def stability_index(expected: np.ndarray, counted: np.ndarray) -> float:
    """The population stability index of two histograms: counts [B] of the reference and of the inputs."""
    p, q = (_smoothed(counts) for counts in (expected, counted))
    return float(((q - p) * np.log(q / p)).sum())


def moved_most(expected: np.ndarray, counted: np.ndarray) -> int:
    """The bin with a grown share that contributes most to the stability index."""
    p, q = (_smoothed(counts) for counts in (expected, counted))
    return int(np.argmax(np.where(q > p, (q - p) * np.log(q / p), 0.0)))


def _smoothed(counts: np.ndarray) -> np.ndarray:
    shares: np.ndarray = (counts + SMOOTHING) / (counts + SMOOTHING).sum()
    return shares


def same_p_value(expected: np.ndarray, counted: np.ndarray, weight: float = 1.0) -> float:
    """p-value of two histograms having the same distribution: Pearson's χ² of two samples."""
    pair = np.stack([expected, counted]).astype(np.float64)
    few = pair.sum(axis=0) < FEW
    pair = np.hstack([pair[:, ~few], pair[:, few].sum(axis=1, keepdims=True)])
    pair = pair[:, pair.sum(axis=0) > 0]
    totals = pair.sum(axis=1)
    if pair.shape[1] < 2 or not totals.all():
        return 1.0
    ratio = math.sqrt(totals[0] / totals[1])
    statistic = ((pair[0] / ratio - pair[1] * ratio) ** 2 / pair.sum(axis=0)).sum() * min(1.0, weight)
    return chi_square_tail(float(statistic), pair.shape[1] - 1)


def chi_square_tail(value: float, freedom: int) -> float:
    """Probability of a larger χ² with this number of degrees of freedom, by the recurrence of Γ."""
    x = value / 2
    if x <= 0:
        return 1.0
    a, tail = (0.5, math.erfc(math.sqrt(x))) if freedom % 2 else (1.0, math.exp(-x))
    while a < freedom / 2:
        tail += math.exp(a * math.log(x) - x - math.lgamma(a + 1))
        a += 1
    return min(1.0, tail)
