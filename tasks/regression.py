"""Regression and relevance: one number, with a variance between the members.

Differences of scores and of the variance's root are relative to the largest reference score, at least 1.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import numpy as np

from ..data.raw_inputs import is_pair
from ..errors import InputError
from ..metrics.class_metrics import Draws
from ..metrics.gates import Agreement, Gate, Outputs, Tolerances, correlations, distance_difference, judged, largest
from ..metrics.scores import (
    Scale,
    gaussian_nll,
    groups_of,
    is_binary,
    normalised_gain,
    rank_correlation,
    reciprocal_rank,
    rmse,
)
from .task import Column, ScoreActivation, Task, TaskMetrics, share

if TYPE_CHECKING:
    from ..data.examples import Examples

ONE_SCORE = "needs the logits of several classes; this model has one score"


Loss = Literal["cross-entropy", "squared error"]


def loss_of(labels: np.ndarray, activation: ScoreActivation, source: str) -> Loss:
    """The loss for labels [N]: cross-entropy if all are 0 or 1 (relevance), otherwise squared error."""
    if activation == "sigmoid" and not ((labels >= 0) & (labels <= 1)).all():
        far = labels[(labels < 0) | (labels > 1)][0]
        raise InputError(
            f"data {source} have the label {far:g}, but this model's scores lie between 0 and 1; rescale the labels"
        )
    return "cross-entropy" if is_binary(labels) else "squared error"


def query_groups(examples: Examples) -> list[np.ndarray]:
    """Places of each query's documents, if inputs are pairs of texts (query first) and labels are at least 0."""
    inputs, labels = examples.inputs, examples.labels
    if labels is None or not len(inputs) or not all(map(is_pair, inputs)) or (labels < 0).any():
        return []
    return groups_of([item[0] for item in inputs], labels)


class RegressionMetrics(TaskMetrics):
    """Errors, likelihood, intervals, and rankings."""

    def prepare(self) -> None:
        """Errors, and the likelihood and intervals that the calibration allows."""
        prediction = self.prediction
        self._score = prediction.score.astype(np.float64)
        self.errors = self.labels - self._score
        columns = {"mse": self.errors**2, "mae": np.abs(self.errors)}
        if (ends := self.calibration.intervals) is not None:
            low, high = prediction.interval_low, prediction.interval_high
            columns["nll"] = gaussian_nll(self.errors, prediction.score_variance, Scale(ends.factor, ends.floor))
            columns["interval_coverage"] = ((low <= self.labels) & (self.labels <= high)).astype(np.float64)
            columns["interval_width"] = (high - low).astype(np.float64)
        self._names, self._columns = list(columns), np.stack(list(columns.values()), axis=1)  # [N, K]

    def own(self, counts: np.ndarray) -> Draws:
        """Metrics of resamples."""
        means = counts.astype(np.float64) @ self._columns / counts.shape[1]
        draws = dict(zip(self._names, means.T, strict=True))
        draws = {"rmse": np.sqrt(draws.pop("mse")), **draws}
        places = [np.repeat(np.arange(len(row)), row) for row in counts]
        pairs = {"correlation": (self._score, self.labels)}
        pairs |= {f"errors.{name}.spearman": (np.abs(self.errors), values) for name, values in self.scores.items()}
        for name, (a, b) in pairs.items():
            ranks = [rank_correlation(a[drawn], b[drawn]) for drawn in places]
            draws[name] = np.array([math.nan if rank is None else rank for rank in ranks])
        return draws

    def by_query(self) -> Draws:
        """MRR@10 and nDCG@10 of each query."""
        groups, labels = query_groups(self.examples), self.labels
        if not groups:
            return {}
        orders = {"": self._score}
        if self.caution:
            deviation = np.sqrt(self.prediction.score_variance.astype(np.float64))
            orders["_cautious"] = self._score - self.caution * deviation
        metrics = {}
        for suffix, order in orders.items():
            metrics[f"mrr{suffix}"] = np.array([reciprocal_rank(order[each], labels[each]) for each in groups])
            metrics[f"ndcg{suffix}"] = np.array([normalised_gain(order[each], labels[each]) for each in groups])
        return metrics

    def error(self, answered: np.ndarray) -> dict[str, float]:
        """RMSE of the answered inputs."""
        return {"answered_rmse": rmse(self.errors[answered])}

    def diversity(self) -> dict[str, float | None]:
        """The mean deviation of the members."""
        return {"deviation": float(np.sqrt(self.prediction.score_variance.astype(np.float64)).mean())}


def compare_scores(reference: Outputs, tested: Outputs, tolerances: Tolerances) -> tuple[Agreement, list[Gate]]:
    """Compare two backends' outputs: ``score`` and ``score_variance`` [N]."""
    scale = max(1.0, float(np.abs(reference["score"]).max()))
    both = reference, tested
    expected, actual = ({**side, "score_variance": np.sqrt(side["score_variance"].astype(np.float64))} for side in both)
    limit = tolerances.probability
    score, deviation = ((largest(expected, actual, name) or 0.0) / scale for name in ("score", "score_variance"))
    ranked = {"score": limit * scale, "score_variance": limit * scale, "distance": tolerances.distance}
    agreement: Agreement = {
        "inputs": len(expected["score"]),
        "scale": scale,
        "max_score_difference": score,
        "max_deviation_difference": deviation,
        "max_distance_difference": distance_difference(reference, tested),
        "spearman": correlations(expected, actual, ranked),
    }
    limits = [
        ("max |Δ score| ÷ scale", score, limit),
        ("max |Δ √variance| ÷ scale", deviation, limit),
        ("max |Δ distance|", agreement["max_distance_difference"], tolerances.distance),
    ]
    return judged(agreement, limits, tolerances)


REGRESSION = Task(
    name="score",
    gives="one score (num_labels = 1)",
    outputs=("score", "score_variance"),
    member_output="member_scores",
    answer="score",
    compare=compare_scores,
    metrics=RegressionMetrics,
    columns={
        "rmse": Column("RMSE", "{:.4g}"),
        "mae": Column("mean absolute error", "{:.4g}"),
        "nll": Column("NLL"),
        "correlation": Column("rank correlation with the label", better="high"),
        "mrr": Column("MRR@10", better="high"),
        "ndcg": Column("nDCG@10", better="high"),
        "mrr_cautious": Column("MRR@10, cautious", better="high"),
        "ndcg_cautious": Column("nDCG@10, cautious", better="high"),
        "interval_coverage": share("intervals that hold the label", better="high"),
        "interval_width": Column("width of an interval", "{:.4g}"),
        "errors.score_variance.spearman": Column("rank correlation of error and variance", better="high"),
        "errors.distance.spearman": Column("rank correlation of error and distance", better="high"),
    },
    compared=("rmse", "mae", "nll", "correlation", "mrr", "ndcg"),
    noise=("rmse", "correlation", "nll", "interval_coverage"),
    loss="rmse",
    query_groups=query_groups,
    heading="Scores",
    hint="Intervals, likelihood and decisions need a calibration; an uncalibrated model has none.",
    logit_scores=lambda _: {},
    lacks={
        **dict.fromkeys(
            ("max_probability", "max_logit", "predictive_entropy", "energy", "gen", "vim", "vilu"), ONE_SCORE
        ),
        "relative_mahalanobis": "needs exclusive classes; here one Gaussian covers all examples",
    },
)
