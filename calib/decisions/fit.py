"""Member logits → calibration, for each task: temperature, thresholds, and sets, intervals or labels.

A predicted span is wrong unless the data contain a span of the same type and ends. It has the uncertainty of its least
certain word (``metrics.spans``).
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...bundle.calibration import ABSTAIN, OOD, UNFITTED, Calibration, Conformal, Intervals, LabelDecisions, Threshold
from ...errors import InputError, listing, noted
from ...metrics import class_metrics as metrics
from ...metrics.labels import (
    best_f1_threshold,
    joint_losses,
    label_errors,
    label_f1,
    label_pairs,
    sigmoid,
    summarise_labels,
)
from ...metrics.scores import Scale, fit_scale, gaussian_nll, interval, is_binary, rank_correlation, rmse
from ...metrics.spans import Span, span_scores, spans_in
from ...metrics.uncertainty import class_scores, prediction_sets, summarise
from ...tasks import TASKS, ScoreActivation, TaskName
from ...tasks.regression import loss_of
from .targets import Targets
from .temperature import FOLDS, averaged_nll, fit_temperature, held_out_nll
from .thresholds import (
    COVERED,
    Scores,
    abstention,
    available,
    check_count,
    false_alarm_threshold,
    flag_threshold,
    rank,
    rated,
    traffic_reference,
    upper_bound,
)

log = logging.getLogger(__name__)
MIN_EXAMPLES = 10  # lowest number of examples with a label, and without it, for a temperature of its own
ENOUGH = 1000  # number of examples that one temperature cannot overfit
LEARNT = 0.995, 0.01  # from this accuracy and below this NLL a model may have been trained on the examples


@dataclass(frozen=True)
class Sample:
    """Member logits [N, M, C] of N inputs, or of N words with the indices ``texts`` [N] of their texts."""

    logits: np.ndarray
    labels: Any = None
    distance: np.ndarray | None = None
    texts: Any = None
    inputs: int = 0

    def with_distance(self, scores: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Add the distance, if any, to scores."""
        return scores if self.distance is None else {**scores, "distance": self.distance}


@dataclass(frozen=True)
class Request:
    """Targets, class names, facts about the data to record, and the activation of a score."""

    targets: Targets
    names: Sequence[str] = ()
    about: Mapping[str, Any] = field(default_factory=dict)
    activation: ScoreActivation = "identity"


def fit_classes(sample: Sample, ood: Sample | None, request: Request) -> Calibration:
    """Temperature, thresholds and prediction sets of a classifier."""
    temperature = fit_temperature(sample.logits, sample.labels)
    scores = _class_scores(sample, temperature)
    predicted = scores["probabilities"].argmax(axis=1)
    ood_scores = None if ood is None else _class_scores(ood, temperature)
    thresholds = _thresholds(scores, ood_scores, predicted != sample.labels, request.targets)
    fitted = {**request.about, **_before_and_after(sample, scores, temperature)}
    counts = np.bincount(predicted, minlength=len(request.names)).tolist()
    reference = traffic_reference(scores, thresholds, dict(zip(request.names, counts, strict=True)))
    sets = _sets(scores, sample.labels, request.targets)
    return Calibration(temperature, thresholds, sets, fitted, reference=reference)


def _class_scores(sample: Sample, temperature: float) -> dict[str, np.ndarray]:
    scores = summarise(sample.logits, temperature)
    other = sample.logits.argmax(axis=2) != scores["probabilities"].argmax(axis=1)[:, None]
    return sample.with_distance({**scores, "disagreement": other.mean(axis=1).astype(np.float32)})


def _thresholds(scores: Scores, ood_scores: Scores | None, wrong: np.ndarray, targets: Targets) -> dict[str, Threshold]:
    return {ABSTAIN: abstention(scores, wrong, targets.abstain), OOD: flag_threshold(scores, ood_scores, targets.flags)}


def _before_and_after(sample: Sample, scores: Scores, temperature: float) -> dict[str, dict[str, float]]:
    """Metrics at T = 1 and at T; for a few examples, which T might overfit, also the NLL of held-out fifths."""
    few = temperature != 1 and FOLDS <= len(sample.labels) < ENOUGH
    held_out = {"held_out": {"nll": held_out_nll(sample.logits, sample.labels)}} if few else {}
    return held_out | {
        name: {
            "temperature": each,
            "nll": averaged_nll(sample.logits, sample.labels, each),
            "ece": metrics.expected_calibration_error(outputs["probabilities"], sample.labels),
            "accuracy": metrics.accuracy(outputs["probabilities"], sample.labels),
        }
        for name, outputs, each in (("before", summarise(sample.logits, 1.0), 1.0), ("after", scores, temperature))
    }


def _sets(scores: Scores, labels: np.ndarray, targets: Targets) -> Conformal | None:
    if (wanted := targets.sets) is None:
        return None
    probabilities, places = scores["probabilities"], np.arange(len(labels))
    nonconformity = class_scores(probabilities, wanted.method)[places, labels]
    quantile = upper_bound(nonconformity, 1 - wanted.alpha, "conformal coverage (1 − alpha)", limit=1.0)
    sets = prediction_sets(probabilities, quantile, wanted.method)
    measured = {"coverage": float(sets[places, labels].mean()), "mean_size": float(sets.sum(axis=1).mean())}
    return Conformal(wanted.method, wanted.alpha, quantile, measured, len(labels))


def fit_spans(sample: Sample, ood: Sample | None, request: Request) -> Calibration:
    """The temperature of words, and thresholds on the predicted spans."""
    temperature = fit_temperature(sample.logits, sample.labels)
    words = _class_scores(sample, temperature)
    spans, scores = predicted_spans(words, sample.texts, request.names)
    if not spans:
        words_of = f"{len(sample.labels)} words of {request.about['data']}"
        raise InputError(f"the model predicts no span in the {words_of}; give more data")
    ood_scores = None
    if ood is not None:
        ood_spans, ood_scores = predicted_spans(_class_scores(ood, temperature), ood.texts, request.names)
        if not ood_spans:
            problem = f"the model predicts no span in {request.about['ood']}, so there is nothing to flag"
            raise InputError(f"{problem}; omit ood (--ood)")
    truth = set(spans_in(sample.texts, [request.names[label] for label in sample.labels]))
    wrong = np.array([span not in truth for span in spans])
    thresholds = _thresholds(scores, ood_scores, wrong, request.targets)
    counts = {"words": len(sample.labels), "spans": len(spans), "wrong_spans": int(wrong.sum())}
    fitted = {**request.about, **counts, **_before_and_after(sample, words, temperature)}
    kinds, texts = Counter(span.kind for span in spans), np.array([span.text for span in spans])
    reference = traffic_reference(scores, thresholds, dict(sorted(kinds.items())), texts, sample.inputs)
    return Calibration(temperature, thresholds, None, fitted, reference=reference)


def predicted_spans(words: Scores, texts: np.ndarray, names: Sequence[str]) -> tuple[list[Span], dict[str, np.ndarray]]:
    """Predicted spans, their scores [S], and ``probabilities`` [S, C] of their least certain words."""
    probabilities = words["probabilities"]
    spans = spans_in(texts, [names[label] for label in probabilities.argmax(axis=1)])
    scores = span_scores(spans, {name: values for name, values in words.items() if values.ndim == 1})
    least = [span.first + int(np.argmin(words["confidence"][span.first : span.last + 1])) for span in spans]
    return spans, {**scores, "probabilities": probabilities[least]}


def fit_labels(sample: Sample, ood: Sample | None, request: Request) -> Calibration:
    """A temperature and a threshold for each label, and thresholds for inputs."""
    temperatures, common = fit_temperatures(sample.logits, sample.labels)
    scores = sample.with_distance(summarise_labels(sample.logits, temperatures))
    probabilities, false_alarm = scores["probabilities"], request.targets.label_false_alarm
    limits = _label_thresholds(probabilities, sample.labels, false_alarm, request.names)
    assigned = probabilities > np.asarray(limits, np.float32)
    ood_scores = None if ood is None else ood.with_distance(summarise_labels(ood.logits, temperatures))
    thresholds = _thresholds(scores, ood_scores, (assigned != sample.labels).any(axis=1), request.targets)
    before = _label_quality(summarise_labels(sample.logits, np.ones(1))["probabilities"], sample.labels)
    after = _label_quality(probabilities, sample.labels)
    fitted = {**request.about, "common_temperature": common, "before": before, "after": after}
    target = {"f1": 1.0} if false_alarm is None else {"false_alarm": false_alarm}
    f1 = label_f1(np.ones((1, len(assigned)), np.int32), assigned, sample.labels)
    measured = {name: float(value[0]) for name, value in f1.items() if math.isfinite(value[0])}
    decisions = LabelDecisions(tuple(temperatures.tolist()), tuple(limits), target, measured, len(assigned))
    counts = dict(zip(request.names, assigned.sum(axis=0).tolist(), strict=True))
    reference = traffic_reference(scores, thresholds, counts)
    return Calibration(1.0, thresholds, None, fitted, labels=decisions, reference=reference)


def fit_temperatures(member_logits: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, float]:
    """Temperatures [C] of labels, and the common temperature, used for labels with too few examples and as a prior."""
    pairs = label_pairs(member_logits)  # [N, M, C, 2]
    members, count = member_logits.shape[1:]
    flat = pairs.transpose(0, 2, 1, 3).reshape(-1, members, 2)  # [N·C, M, 2]
    common = fit_temperature(flat, labels.reshape(-1).astype(np.int64))
    temperatures = np.full(count, common)
    having = labels.sum(axis=0)
    for place in np.flatnonzero((having >= MIN_EXAMPLES) & (len(labels) - having >= MIN_EXAMPLES)):
        temperatures[place] = fit_temperature(pairs[:, :, place], labels[:, place].astype(np.int64), common)
    return temperatures, common


def _label_thresholds(
    probabilities: np.ndarray, labels: np.ndarray, false_alarm: float | None, names: Sequence[str]
) -> list[float]:
    """Thresholds of labels; with too few examples that of all labels, or :data:`UNFITTED` without any."""
    limits, unfitted, common = [], [], best_f1_threshold(probabilities.ravel(), labels.ravel())
    for name, values, having in zip(names, probabilities.T, labels.T, strict=True):
        if false_alarm is not None:
            check_count(int((~having).sum()), 1 - false_alarm, f"1 − false alarm on examples without label {name!r}")
            limits.append(false_alarm_threshold(values[~having], false_alarm, 1.0))
        elif having.any() and not having.all():
            few = min(having.sum(), (~having).sum()) < MIN_EXAMPLES
            limits.append(common if few else best_f1_threshold(values, having))
        else:
            unfitted.append(name)
            limits.append(UNFITTED)
    if unfitted:
        stays = f"its threshold stays at {UNFITTED:g}; give examples with and without it"
        log.warning("either all or no examples have the label %s: %s", listing(unfitted), stays)
    return limits


def _label_quality(probabilities: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    ece = float(np.mean(label_errors(probabilities, labels)))
    return {"nll": float(joint_losses(probabilities, labels).mean()), "ece": ece}


def fit_scores(sample: Sample, ood: Sample | None, request: Request) -> Calibration:
    """Intervals and thresholds of a regression.

    Intervals are split conformal (Papadopoulos et al. 2002; Lei et al. 2018): the quantile is the order statistic
    ⌈(n + 1) · confidence⌉ of the validation errors ÷ √(variance + ε), with ε fitted on the same examples.
    """
    scores, targets = _member_summary(sample, request.activation), request.targets
    mean, variance = scores["score"], scores["score_variance"]
    for name, values in (("scores", mean), ("labels", sample.labels)):
        if not (largest := float(np.abs(values).max())) <= 1e15:
            raise InputError(f"the {name} reach {largest:.3g}; expected at most 1e+15; use labels in a larger unit")
    errors = sample.labels - mean.astype(np.float64)
    scale = fit_scale(errors, variance)
    ood_scores = None if ood is None else _member_summary(ood, request.activation)
    flags = flag_threshold(scores, ood_scores, targets.flags)
    thresholds = {ABSTAIN: _score_abstention(scores, errors, targets), OOD: flags}
    nll, spearman = float(gaussian_nll(errors, variance, scale).mean()), rank_correlation(np.abs(errors), variance)
    fitted = {**request.about, "rmse": rmse(errors), "nll": nll, "spearman": spearman}
    ends = _intervals(scores, sample.labels, scale, request)
    reference = traffic_reference(scores, thresholds, {})
    return Calibration(1.0, thresholds, None, fitted, ends, reference=reference)


def _member_summary(sample: Sample, activation: ScoreActivation) -> dict[str, np.ndarray]:
    """Score and variance, [N] float32 each, from the members' logits [N, M, 1]."""
    logits = sample.logits[..., 0].astype(np.float64)
    members = sigmoid(logits) if activation == "sigmoid" else logits
    mean, variance = members.mean(axis=1).astype(np.float32), members.var(axis=1).astype(np.float32)
    return sample.with_distance({"score": mean, "score_variance": variance})


def _score_abstention(scores: Scores, errors: np.ndarray, targets: Targets) -> Threshold:
    """The threshold on the requested score, or on the score that ranks the errors best."""
    abstain = targets.abstain
    names = [name for name in ("score_variance", "distance") if name in scores]
    names = names if abstain.score == "auto" else [available(abstain.score, scores)]
    correlations = {name: rank_correlation(np.abs(errors), scores[name]) for name in names}
    ranks = {name: value for name, value in correlations.items() if value is not None}
    best = max(ranks, key=lambda name: ranks[name]) if ranks else names[0]
    values = scores[best]
    limit = upper_bound(values, abstain.share, COVERED, float(values.max()))
    answered = values <= np.float32(limit)
    measured = {**rated("coverage", answered), "rmse": rmse(errors[answered])}
    ranked = {"spearman": ranks[best]} if best in ranks else {}
    return Threshold(best, limit, {"coverage": abstain.share}, {**measured, **ranked}, len(errors))


def _intervals(scores: Scores, labels: np.ndarray, scale: Scale, request: Request) -> Intervals:
    mean, variance = scores["score"], scores["score_variance"]
    confidence = request.targets.confidence or 0.9
    bounds = (0.0, 1.0) if request.activation == "sigmoid" else None
    check_count(len(labels), confidence, "interval confidence")
    half = np.sqrt(variance + np.float32(scale.floor)).astype(np.float64)
    rounding = np.spacing(np.maximum(np.abs(mean), np.abs(labels)).astype(np.float32))  # of an interval's end
    ratios = np.sort((np.abs(labels - mean.astype(np.float64)) + rounding) / half)
    middle = np.float32(ratios[rank(len(labels), confidence) - 1])
    quantile = float(str(np.nextafter(middle, np.float32(np.inf))))  # rounded up
    low, high = interval(mean, variance, quantile, scale.floor, bounds)
    inside = (low <= labels) & (labels <= high)
    measured = {"coverage": float(inside.mean()), "mean_width": float((high - low).mean())}
    return Intervals(confidence, quantile, scale.floor, scale.factor, bounds, measured, len(labels))


def _class_notes(sample: Sample, request: Request, calibration: Calibration) -> list[str]:
    """Notes if labels seem to be ordered differently from classes, and on the temperature."""
    probabilities = summarise(sample.logits, 1.0)["probabilities"]
    notes = metrics.order_notes(request.about["data"], probabilities, sample.labels, request.names)
    return notes + _temperature_notes(sample, request, calibration)


def _temperature_notes(sample: Sample, request: Request, calibration: Calibration) -> list[str]:
    """Notes if T worsens held-out examples, or if the model seems to have been trained on the examples."""
    fitted, temperature, data = calibration.fitted or {}, calibration.temperature, request.about["data"]
    before, held_out, after = fitted["before"], fitted.get("held_out", {}).get("nll", -math.inf), fitted["after"]
    notes = learnt_notes(data, after["accuracy"], after["nll"])
    if held_out > before["nll"]:
        worse = f"the temperature {temperature:g} made NLL worse: {held_out:.4f} on held-out fifths of {data}, but"
        remedy = f"calibrate on more than {len(sample.labels)} examples"
        notes += noted(f"{worse} {before['nll']:.4f} at temperature 1; {remedy}")
    return notes


def learnt_notes(data: str, accuracy: float, nll: float) -> list[str]:
    """Warn of answers so accurate and confident that the model may have been trained on the examples."""
    if accuracy < LEARNT[0] or nll >= LEARNT[1]:
        return []
    correct = f"{accuracy:.1%} of the answers on {data} are correct, with an NLL of {nll:.4f}"
    asked = "was the model trained on them, or are training and validation data swapped"
    return noted(f"{correct}: {asked}? Use unseen data, unless the task is this easy")


def _scale_notes(sample: Sample, request: Request, _: Calibration) -> list[str]:
    """A note if labels are 0 or 1 but scores are unbounded logits."""
    if request.activation != "identity" or not is_binary(sample.labels):
        return []
    wrong = f"the labels of {request.about['data']} are all 0 or 1, but the scores are not limited to that range"
    remedy = "use the ranking metrics of `hydrant evaluate`"
    return noted(f"{wrong}: RMSE and intervals measure distances from 0 and 1; {remedy}")


@dataclass(frozen=True)
class Fit:
    """Calibration of a task: fit, supported ``Targets.special``, check of the labels, and notes on them."""

    fit: Callable[[Sample, Sample | None, Request], Calibration]
    supports: tuple[str, ...]
    check_labels: Callable[[np.ndarray, ScoreActivation, str], object] = lambda *_: None
    notes: Callable[[Sample, Request, Calibration], list[str]] = lambda *_: []

    def check(self, task: TaskName, targets: Targets) -> None:
        """Raise ``InputError`` for targets that the task does not support."""
        for name, option in targets.special().items():
            if name not in self.supports:
                options = ", ".join(("coverage", "false alarm", *self.supports))
                wrong = f"{name} ({option}) does not apply to models with {TASKS[task].gives}"
                raise InputError(f"{wrong}; expected {options}")


FITS: dict[TaskName, Fit] = {
    "classification": Fit(fit_classes, ("risk", "sets"), notes=_class_notes),
    "score": Fit(fit_scores, ("confidence",), loss_of, _scale_notes),
    "tokens": Fit(fit_spans, ("risk",), notes=_temperature_notes),
    "multi_label": Fit(fit_labels, ("risk", "label_false_alarm")),
}
