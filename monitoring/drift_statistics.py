"""Drift tests against the calibration examples: rates watched without end, and histograms window by window.

*A rate of decisions.* A threshold at the order statistic of rank k of n calibration scores is exceeded by a fresh input
with a probability that is itself random: Beta(c + 1, n − c), c = n − k of the examples lying beyond it (the same fact
that gives the threshold its guarantee). So a stream like the examples is a Pólya urn that begins with that Beta: its
law is known exactly, the finite n and the choice of the threshold on the same examples included.

:class:`RateTest` bets against the urn. It mixes every moment at which the rate may change with :data:`ODDS`, by which
the odds are multiplied from then on (Shiryaev's mixture over change points; Shin, Ramdas & Rinaldo 2023). The mixture ÷
the urn is a martingale that begins at 1, so that the probability of its *ever* reaching 1/α is at most α (Ville 1939;
see Ramdas, Grünwald, Vovk & Shafer 2023): one may look after every input, for ever. :func:`rate_p_value` tests one
fixed number of inputs.

*A histogram.* The population stability index tells how far two histograms are apart, Σ (q − p) log (q / p); half an
example is added to each bin of both. It grows with noise when inputs are few (Yurdakul & Naranjo 2020), so
that Pearson's χ² of two samples says whether the distance is more than chance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

ODDS = (1 / 8, 1 / 4, 1 / 2, 2 / 3, 3 / 2, 2, 3, 5, 10, 30, 100)
"""Factors by which the odds of a decision may change, each as likely as the others."""

BLOCK = 128
"""Inputs worked on at a time; fewer, where a product of so many ratios would overflow or vanish."""

SMALLEST = 1e-200
"""Products of ratios are above it, and below its inverse."""

FEW = 10
"""Bins with fewer examples in both histograms together are pooled before χ² is taken."""

SMOOTHING = 0.5
"""Examples added to each bin before the population stability index is taken."""


@dataclass(frozen=True)
class Change:
    """A change of a rate after ``since`` of the inputs seen: decisions since, the rate before, and the evidence."""

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
    """Watches a stream of decisions for the first ``change`` of their rate: evidence of ``limit``, 1 ÷ level."""

    def __init__(self, count: int, n: int, level: float) -> None:
        self._urn = np.array([count + 1, max(n - count, 1)], np.float64)  # decided, not
        odds = np.array(ODDS) * self._urn[0] / self._urn[1]
        self._rates = odds / (1 + odds)  # [K] after a change
        self.limit = 1 / level
        self.count = self.n = 0
        self.change: Change | None = None
        self._bets = np.zeros(len(ODDS))  # what each rate has won since any moment of change so far
        self._sums = np.zeros(len(ODDS))  # log likelihood ratio of each rate since the beginning
        self._lowest = np.zeros(len(ODDS))  # its least value so far, and where that was
        self._began = np.zeros((len(ODDS), 2), np.int64)  # inputs, decisions

    @property
    def evidence(self) -> float:
        """The bets' gain: how many times likelier the stream is with a change than without."""
        return float(self._bets.sum() + _unbet(self.n)) if self.change is None else self.change.evidence

    def update(self, decided: np.ndarray) -> Change | None:
        """Take further inputs, [N] bool in order, and tell of a change that they show for the first time."""
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
        """Bet on some inputs; ``False``, and nothing done, where they are too many for products of their ratios."""
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
        found = np.flatnonzero(evidence >= self.limit)
        end = int(found[0]) + 1 if len(found) else len(decided)
        starts = np.vstack([self._sums, sums[: end - 1]])  # before each input
        lows = starts.argmin(axis=0)
        lower = starts.min(axis=0) < self._lowest
        before = np.concatenate([[self.count], counts])
        self._began[lower] = np.stack([self.n + lows, before[lows]], axis=1)[lower]
        self._lowest = np.minimum(self._lowest, starts.min(axis=0))
        self._bets, self._sums = bets[end - 1], sums[end - 1]
        if len(found):
            since, count = map(int, self._began[int(np.argmax(self._bets))])
            seen = self.n + end
            usual = float((self._urn[0] + count) / (self._urn.sum() + since))
            self.change = Change(since, seen, int(counts[end - 1]) - count, usual, float(evidence[end - 1]))
        return True


def _unbet(inputs: np.ndarray | int) -> np.ndarray:
    """Share of the stake kept for changes after so many inputs: it falls so slowly that late ones cost little."""
    return np.asarray(1 / (1 + np.log1p(inputs)))


def rate_p_value(count: int, n: int, known_count: int, known_n: int) -> float:
    """Probability of a count at least as extreme among n inputs like the calibration examples; two-sided."""
    if n == 0:
        return 1.0
    a, b = known_count + 1.0, max(known_n - known_count, 1.0)
    k = np.arange(n, dtype=np.float64)
    steps = np.log((n - k) * (a + k)) - np.log((k + 1) * (b + n - k - 1))  # pmf(k + 1) ÷ pmf(k)
    logs = np.concatenate([[0.0], np.cumsum(steps)])
    mass = np.exp(logs - logs.max())
    mass /= mass.sum()
    return float(min(1.0, 2 * min(mass[: count + 1].sum(), mass[count:].sum())))


def stability_index(known: np.ndarray, found: np.ndarray) -> float:
    """The population stability index of two histograms, [B] counts of the reference and [B] others."""
    p, q = (_smoothed(counts) for counts in (known, found))
    return float(((q - p) * np.log(q / p)).sum())


def moved_most(known: np.ndarray, found: np.ndarray) -> int:
    """The bin that contributes most to the stability index of those that gained."""
    p, q = (_smoothed(counts) for counts in (known, found))
    return int(np.argmax(np.where(q > p, (q - p) * np.log(q / p), 0.0)))


def _smoothed(counts: np.ndarray) -> np.ndarray:
    shares: np.ndarray = (counts + SMOOTHING) / (counts + SMOOTHING).sum()
    return shares


def same_p_value(known: np.ndarray, found: np.ndarray, weight: float = 1.0) -> float:
    """Probability of two histograms so far apart if both are of the same distribution: Pearson's χ² of two samples."""
    pair = np.stack([known, found]).astype(np.float64)
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
    """Probability that χ² with so many degrees of freedom is larger, by Γ's recurrence from one or two degrees on."""
    x = value / 2
    if x <= 0:
        return 1.0
    a, tail = (0.5, math.erfc(math.sqrt(x))) if freedom % 2 else (1.0, math.exp(-x))
    while a < freedom / 2:
        tail += math.exp(a * math.log(x) - x - math.lgamma(a + 1))
        a += 1
    return min(1.0, tail)
