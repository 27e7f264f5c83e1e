"""Observations of models of one output → figures: errors, likelihood, intervals, rankings, detection."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ..bundle.calibration import ABSTAIN, Calibration
from ..bundle.plan import HeadPlan
from ..data.examples import Examples
from ..data.text import is_pair
from ..metrics import scores as metrics
from ..metrics.bootstrap import resampled
from ..metrics.figures import detection, named
from ..metrics.ranking import groups_of, normalised_gain, reciprocal_rank
from ..metrics.resampled import Detector
from ..progress import Progress
from ..runtime import Prediction
from ..runtime.prediction import decided
from .figures import differences, figure
from .models import Model
from .observation import Evidence, Observation
from .report import ModelReport

Draws = dict[str, np.ndarray]


def score_reports(
    models: Sequence[Model], evidence: Evidence, caution: float, bootstrap: int, seed: int, progress: Progress
) -> list[ModelReport]:
    """A report for each model, the evaluated bundle first."""
    found: list[ModelReport] = []
    first: Draws = {}
    for model, seen, ood in zip(models, evidence.seen, evidence.seen_ood, strict=True):
        each = PerExample(seen, evidence.known, model.calibration)
        queries = per_query(seen, evidence.known, caution)
        outside = {} if ood is None else ood.scores()
        sizes = [len(seen.prediction), *([] if ood is None else [len(ood.prediction)])]  # the same for every model
        draws = _resampled(each, queries, outside, sizes, bootstrap, seed, progress, f"resampling for {model.name}")
        values = {**each.figures(np.ones((1, len(seen.prediction)), np.int32)), **_means(queries)}
        known = {name: float(value[0]) for name, value in values.items()} | _detected(each, outside)
        figures = {name: figure(value, draws.get(name)) for name, value in known.items()}
        first = first or draws
        found.append(
            ModelReport(
                name=model.name,
                kind=model.kind,
                backend=model.runs.name,
                precision=model.precision,
                members=len(model.plan.members),
                temperature=model.calibration.temperature,
                figures=figures,
                differences=differences(found[0].figures, figures, first, draws, COMPARED) if found else {},
                diversity=_diversity(seen, model.plan),
                decisions=_decisions(seen.prediction, each.errors, ood, model.calibration),
            )
        )
    return found


def score_quality(seen: Observation, known: Examples, calibration: Calibration) -> dict[str, float]:
    """The figures of labelled examples, without intervals."""
    figures = PerExample(seen, known, calibration).figures(np.ones((1, len(known)), np.int32))
    return {name: float(value[0]) for name, value in figures.items()}


class PerExample:
    """What each of N labelled examples contributes."""

    def __init__(self, seen: Observation, known: Examples, calibration: Calibration) -> None:
        prediction = decided(seen.prediction, calibration)
        assert known.labels is not None  # read_examples asks for them
        self.labels = known.labels
        self.score = prediction.score.astype(np.float64)
        self.errors = known.labels - self.score
        self.uncertainty = seen.scores()
        columns = {"mse": self.errors**2, "mae": np.abs(self.errors)}
        ends = calibration.intervals
        if ends is not None and prediction.interval_low is not None and prediction.interval_high is not None:
            low, high = prediction.interval_low, prediction.interval_high
            scale = metrics.Scale(ends.factor, ends.floor)
            columns["nll"] = metrics.gaussian_nll(self.errors, prediction.score_variance, scale)
            columns["interval_coverage"] = ((low <= known.labels) & (known.labels <= high)).astype(np.float64)
            columns["interval_width"] = (high - low).astype(np.float64)
        self._names = list(columns)
        self._columns = np.stack(list(columns.values()), axis=1)  # [N, K]

    def figures(self, counts: np.ndarray) -> Draws:
        """Figures of R resamples, [R] each, from how often each holds every example, [R, N]."""
        means = counts.astype(np.float64) @ self._columns / counts.shape[1]
        found = {name: means[:, place] for place, name in enumerate(self._names)}
        found = {"rmse": np.sqrt(found.pop("mse")), **found}
        absolute = np.abs(self.errors)
        places = [np.repeat(np.arange(len(row)), row) for row in counts]
        pairs = {"correlation": (self.score, self.labels)}
        pairs |= {f"errors.{name}.spearman": (absolute, values) for name, values in self.uncertainty.items()}
        for name, (a, b) in pairs.items():
            ranks = [metrics.rank_correlation(a[drawn], b[drawn]) for drawn in places]
            found[name] = np.array([math.nan if rank is None else rank for rank in ranks])
        return found


def rankings(known: Examples) -> list[np.ndarray]:
    """Places of each query's documents; none where the data hold no rankings.

    Rankings are pairs of texts, the first one the query, with labels that are all 0 or more.
    """
    labels = known.labels
    assert labels is not None  # read_examples asks for them
    if not len(known) or not all(is_pair(item) for item in known.inputs) or (labels < 0).any():
        return []
    return groups_of([item[0] for item in known.inputs], labels)


def per_query(seen: Observation, known: Examples, caution: float) -> Draws:
    """MRR@10 and nDCG@10 of each query, [Q] each; nothing where the data hold no rankings."""
    groups, labels = rankings(known), known.labels
    if not groups or labels is None:
        return {}
    score = seen.prediction.score.astype(np.float64)
    orders = {"": score}
    if caution:
        orders["_cautious"] = score - caution * np.sqrt(seen.prediction.score_variance.astype(np.float64))
    found = {}
    for suffix, order in orders.items():
        found[f"mrr{suffix}"] = np.array([reciprocal_rank(order[each], labels[each]) for each in groups])
        found[f"ndcg{suffix}"] = np.array([normalised_gain(order[each], labels[each]) for each in groups])
    return found


def _means(queries: Draws) -> Draws:
    return {name: values.mean(keepdims=True) for name, values in queries.items()}


def _resampled(
    each: PerExample,
    queries: Draws,
    outside: Mapping[str, np.ndarray],
    sizes: Sequence[int],
    resamples: int,
    seed: int,
    progress: Progress,
    title: str,
) -> Draws:
    """Figures of resamples, name → [R]; a query is drawn with all its documents, out-of-distribution examples apart."""
    detectors = {name: Detector(each.uncertainty[name], values) for name, values in outside.items()}

    def examples(counts: Sequence[np.ndarray]) -> Draws:
        found = each.figures(counts[0])
        for name, detector in detectors.items():
            found |= named(f"ood.{name}", detector(counts[0], counts[1]))
        return found

    def rankings(counts: Sequence[np.ndarray]) -> Draws:
        drawn = counts[0].astype(np.float64)
        return {name: drawn @ values / len(values) for name, values in queries.items()}

    found = resampled(examples, sizes, resamples, seed, progress, title)
    if queries:
        found |= resampled(rankings, [len(next(iter(queries.values())))], resamples, seed, progress, title)
    return found


def _detected(each: PerExample, outside: Mapping[str, np.ndarray]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, values in outside.items():
        found |= named(f"ood.{name}", detection(each.uncertainty[name], values))
    return found


COMPARED = ("rmse", "mae", "nll", "correlation", "mrr", "ndcg")
"""Figures whose differences between models are reported, beside all of out-of-distribution detection."""


def _diversity(seen: Observation, plan: HeadPlan) -> dict[str, float | None]:
    deviation = np.sqrt(seen.prediction.score_variance.astype(np.float64))
    return {"deviation": float(deviation.mean()), "head_overlap": plan.overlap()["mean"]}


def _decisions(
    known: Prediction, errors: np.ndarray, ood: Observation | None, calibration: Calibration
) -> dict[str, float]:
    """What the thresholds do on these data; empty for an uncalibrated model."""
    found: dict[str, float] = {}
    prediction = decided(known, calibration)
    outside = None if ood is None else decided(ood.prediction, calibration)
    if ABSTAIN in calibration.thresholds and prediction.abstain is not None:
        answered = ~prediction.abstain
        found["coverage"] = float(answered.mean())
        if answered.any():
            found["answered_rmse"] = metrics.rmse(errors[answered])
        if outside is not None and outside.abstain is not None:
            found["ood_abstained"] = float(outside.abstain.mean())
    if prediction.out_of_distribution is not None:
        found["false_positive_rate"] = float(prediction.out_of_distribution.mean())
    if outside is not None and outside.out_of_distribution is not None:
        found["true_positive_rate"] = float(outside.out_of_distribution.mean())
    return found
