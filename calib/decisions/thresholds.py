"""Thresholds on an uncertainty score, and the rates and histograms of the examples under them.

Scores are oriented so that higher means less certain; an input is uncertain if its score is *above* the threshold.
The guarantees hold for new inputs exchangeable with the examples and for a fixed temperature. A temperature fitted on
the same examples is a single number and hardly affects them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from statistics import NormalDist

import numpy as np

from ...bundle.calibration import RATES, SIDES, Histogram, Rate, Threshold, TrafficReference, binned
from ...errors import InputError
from ...metrics.class_metrics import Ranked, auroc, auroc_difference
from ...metrics.rates import beta_quantile, rate_range
from ...metrics.uncertainty import uncertainty
from .targets import Coverage, FalseAlarm, Risk

Scores = Mapping[str, np.ndarray]  # scores [N] of inputs, labels or spans by name, and their ``probabilities`` [N, C]
DELTA = 0.05  # probability that a bound on the selective risk fails
COVERED, SPARED = "coverage", "in-distribution share (1 − false alarm)"  # levels' names in messages
BOUNDED = ("confidence", "predictive_entropy", "expected_entropy", "mutual_information")  # from 0 to log C, or 1
LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)  # shares of examples below the edges of a histogram
RESOLUTION = 1e-4  # lowest width of a bin, as backends round; relative to values above 1, and to a spread below 1


def abstention(scores: Scores, wrong: np.ndarray, abstain: Coverage | Risk) -> Threshold:
    """The threshold beyond which the model abstains; ``wrong`` [N] bool marks wrong answers."""
    name, areas = _ranking_score(abstain.score, scores, wrong)
    turned, highest = uncertainty(scores, name), _highest(name, scores)
    target: dict[str, float]
    if isinstance(abstain, Risk):
        limit = risk_threshold(turned, wrong, abstain.share, highest)
        target = {"risk": abstain.share, "confidence": 1 - DELTA}
    else:
        limit = upper_bound(turned, abstain.share, COVERED, highest)
        target = {"coverage": abstain.share}
    answered = turned <= np.float32(limit)
    measured = rated("coverage", answered) | rated("risk", wrong[answered])
    return Threshold(name, -limit if name == "confidence" else limit, target, {**measured, **areas}, len(wrong))


def rated(name: str, among: np.ndarray) -> dict[str, float]:
    """Share of True among examples [N] bool by name, and the range in which the share of new inputs lies."""
    low, high = rate_range(int(among.sum()), len(among))
    return {name: float(among.mean()), f"{name}_low": low, f"{name}_high": high}


def _ranking_score(score: str, scores: Scores, wrong: np.ndarray) -> tuple[str, dict[str, float]]:
    """The score for abstention, and its AUROC for wrong answers; auto: the usual score unless another is better."""
    usual = "confidence" if "confidence" in scores else "predictive_entropy"
    if not wrong.any() or wrong.all():
        return available(usual if score == "auto" else score, scores), {}
    turned = {name: uncertainty(scores, name) for name in SIDES if name in scores}
    ranked = {name: (values[~wrong], values[wrong]) for name, values in turned.items()}
    name = _clearly_best(ranked, usual) if score == "auto" else available(score, scores)
    return name, {"auroc": auroc(*ranked[name])}


def _clearly_best(ranked: Mapping[str, Ranked], usual: str) -> str:
    """The score of highest AUROC if significantly better than the usual one (5 %, Bonferroni), or the usual one."""
    if min(map(len, ranked[usual])) < 10 or len(ranked) == 1:
        return usual
    errors = NormalDist().inv_cdf(1 - 0.05 / (len(ranked) - 1))
    ahead = {usual: 0.0}
    for name, scores in ranked.items():
        difference, error = auroc_difference(scores, ranked[usual])
        if name != usual and difference > errors * error:
            ahead[name] = difference
    return max(ahead, key=lambda name: ahead[name])


def flag_threshold(scores: Scores, ood_scores: Scores | None, flags: FalseAlarm) -> Threshold:
    """The threshold beyond which an input is flagged as OOD; OOD examples only choose the score."""
    names = [name for name in SIDES if name in scores]
    if flags.score != "auto":
        names = [available(flags.score, scores)]
    elif ood_scores is None:
        names = [next(name for name in ("distance", "energy", "score_variance") if name in scores)]
    areas = {} if ood_scores is None else {
        name: auroc(uncertainty(scores, name), uncertainty(ood_scores, name)) for name in names
    }  # fmt: skip
    name = max(areas, key=lambda name: areas[name]) if areas else names[0]
    turned = uncertainty(scores, name)
    limit = false_alarm_threshold(turned, flags.share, _highest(name, scores))
    measured = rated("false_positive_rate", turned > np.float32(limit))
    if ood_scores is not None:
        caught = uncertainty(ood_scores, name) > np.float32(limit)
        measured |= {"true_positive_rate": float(caught.mean()), "auroc": areas[name]}
    limit = -limit if name == "confidence" else limit
    return Threshold(name, limit, {"false_alarm": flags.share}, measured, len(turned))


def available(score: str, scores: Scores) -> str:
    """The score itself; raises ``InputError`` if the model lacks it."""
    if score not in scores:
        fit = "fit it on training data (fit=…, --fit), or " if score == "distance" else ""
        raise InputError(f"this bundle has no score {score}; {fit}choose another score")
    return score


def _highest(score: str, scores: Scores) -> float:
    """The highest possible value of an oriented score; for unbounded scores, the highest of the examples."""
    if score not in BOUNDED:
        return float(uncertainty(scores, score).max())
    count = scores["probabilities"].shape[1]
    if "confidence" not in scores:  # multi-label
        return count * math.log(2)
    return 0.0 if score == "confidence" else math.log(count)


def false_alarm_threshold(scores: np.ndarray, share: float, limit: float) -> float:
    """The threshold that a new input exceeds with probability ≤ ``share`` (Laxhammar & Falkman 2010)."""
    return upper_bound(scores, 1 - share, SPARED, limit)


def risk_threshold(scores: np.ndarray, wrong: np.ndarray, risk: float, limit: float) -> float:
    """The highest threshold in a search whose answers are wrong with probability at most ``risk``.

    Selection with guaranteed risk (Geifman & El-Yaniv 2017): a binary search over thresholds, each tested by the exact
    binomial bound. The confidence allows for all steps, which together hold with probability 1 − :data:`DELTA`.
    """
    order = np.argsort(scores, kind="stable")
    ordered, errors = scores[order], np.cumsum(wrong[order])
    steps = max(1, math.ceil(math.log2(len(scores) + 1)))
    low, high, best = 0, len(scores) - 1, -1
    for _ in range(steps):
        if low > high:
            break
        middle = (low + high) // 2
        last = int(np.searchsorted(ordered, ordered[middle], side="right")) - 1  # with all ties
        if binomial_bound(int(errors[last]), last + 1, DELTA / steps) <= risk:
            best, low = max(best, last), last + 1
        else:
            high = middle - 1
    if best < 0:
        problem = f"no threshold keeps the selective risk at {risk:g} with {1 - DELTA:.0%} confidence"
        given = f"{len(scores)} examples with {int(errors[-1])} wrong answers"
        raise InputError(f"{problem} on {given}; give more examples or a higher --risk")
    return gap(ordered, best, limit)


def binomial_bound(errors: int, count: int, delta: float) -> float:
    """Upper end of the Clopper–Pearson interval: the error rate with P(at most ``errors``) = ``delta``."""
    return beta_quantile(1 - delta, errors + 1, count - errors)


def rank(count: int, level: float) -> int:
    """ceil((n + 1) · level), without errors by rounding of the product.

    >>> rank(9, 0.9), rank(99, 0.95), rank(100, 0.95)
    (9, 95, 96)
    """
    return math.ceil((count + 1) * level - 1e-9)


def upper_bound(values: np.ndarray, level: float, name: str, limit: float) -> float:
    """A bound that a new value obeys with probability ≥ ``level``; between two values, for unlike rounding."""
    check_count(len(values), level, name)
    return gap(np.sort(values), rank(len(values), level) - 1, limit)


def check_count(count: int, level: float, name: str) -> None:
    """Raise ``InputError`` if there are too few examples for a level."""
    if rank(count, level) > count:
        needed = math.ceil(level / (1 - level) - 1e-9)
        raise InputError(f"{name} of {level:g} needs at least {needed} examples, but there are {count}")


def gap(ordered: np.ndarray, index: int, limit: float) -> float:
    """A float32 number t with ``ordered[index]`` ≤ t < the next larger value, half way if float32 allows."""
    low = ordered[index]
    above = ordered[np.searchsorted(ordered, low, side="right") :]
    high = above[0] if len(above) else np.float32(max(limit, low))
    middle = np.float32((float(low) + float(high)) / 2)
    return float(str(middle if low <= middle < high else low))  # shortest decimal of this float32


def traffic_reference(scores: Scores, thresholds: Mapping[str, Threshold], labels: Mapping[str, int],
                      texts: np.ndarray | None = None, inputs: int | None = None) -> TrafficReference:  # fmt: skip
    """Drift reference of inputs, or of spans with their text indices ``texts`` [N]; ``labels`` counts predictions."""
    count = len(next(iter(scores.values()))) if inputs is None else inputs
    units = np.arange(count) if texts is None else texts
    limits = {field: thresholds[name] for field, name in RATES.items()}
    beyond = {field: limit.beyond(scores[limit.score]) for field, limit in limits.items()}
    rates = {field: Rate(len(np.unique(units[flags])), count) for field, flags in beyond.items()}
    histograms = {}
    for name, values in scores.items():
        if values.ndim == 1 and len(values):
            own_units = name in ("score", "score_variance")
            edges = bin_edges(uncertainty(scores, name), turned=SIDES.get(name) == "below", own_units=own_units)
            histograms[name] = Histogram(tuple(edges), tuple(binned(values, np.array(edges)).tolist()))
    return TrafficReference(count, rates, histograms, labels)


def bin_edges(values: np.ndarray, *, turned: bool = False, own_units: bool = False) -> list[float]:
    """Ascending edges, each between two values [N] float32: at :data:`LEVELS`, or between few distinct values."""
    ordered = np.sort(values)
    distinct = np.unique(ordered)
    if len(distinct) <= len(LEVELS) + 1:
        lows = np.searchsorted(ordered, distinct[:-1], side="right") - 1
    else:
        lows = np.array([int(level * len(ordered)) - 1 for level in LEVELS])
    least, most = float(ordered[0]), float(ordered[-1])
    edges = {gap(ordered, int(low), most) for low in lows if ordered[low] < most}
    if turned:  # an edge belongs to the bin of larger scores: it must not equal a value
        edges = {edge for edge in edges if np.float32(edge) not in distinct}
    spaced = _apart(edges, least, most, min(1.0, most - least) if own_units else 1.0)
    return sorted(-edge for edge in spaced) if turned else sorted(spaced)


def _apart(edges: Iterable[float], least: float, most: float, unit: float) -> list[float]:
    """Edges at least :data:`RESOLUTION` from each other and from the ends; the most uncertain have priority."""
    spaced: list[float] = []
    for edge in sorted(edges, reverse=True):
        step = RESOLUTION * max(unit, abs(edge))
        if min(spaced[-1] - edge if spaced else math.inf, edge - least, most - edge) >= step:
            spaced.append(edge)
    return spaced
