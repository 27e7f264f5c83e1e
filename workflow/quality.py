"""Metrics of a model for any task: one half of the data calibrates, the other half measures.

Token classification is measured by words. Multi-label outputs and relevance are softmaxes over two classes
(``metrics.labels.label_pairs``), summed over an example. Regression has an NLL under normal errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from ..calib.decisions.temperature import fit_temperature
from ..calib.features import Reference
from ..data.examples import Examples
from ..metrics import class_metrics as metrics
from ..metrics.labels import label_errors, label_pairs, sigmoid
from ..metrics.scores import fit_scale, gaussian_nll, information, rmse
from ..metrics.spans import span_scores, spans_in
from ..metrics.uncertainty import summarise
from ..tasks import ScoreActivation, TaskName

Form = Literal["classes", "words", "labels", "relevance", "regression"]

Quality = dict[str, float | None]
"""Metrics by name, or ``None``: ``accuracy`` (all labels right), ``nll`` (summed over labels), ``ece`` (label mean),
``auroc`` and ``fpr95`` of OOD detection by predictive entropy (for regression by the members' variance),
``mutual_information`` (mean, nats), ``rmse`` of a regression.
"""


def form_of(task: TaskName, loss: str | None) -> Form:
    """Return the form of a task's labels."""
    score: Form = "relevance" if loss == "cross-entropy" else "regression"
    forms: dict[TaskName, Form] = {"classification": "classes", "tokens": "words", "multi_label": "labels"}
    return forms.get(task, score)


def quality_of(
    reference: Reference,
    form: Form,
    activation: ScoreActivation,
    judging: Examples,
    measuring: Examples,
    ood: Examples | None,
    names: Sequence[str],
) -> Quality:
    """Measure a model."""
    if form == "regression":
        return _of_regression(reference, activation, judging, measuring, ood)
    logits, labels = _rows(reference, form, judging)
    temperature = fit_temperature(logits, labels)
    logits, labels = _rows(reference, form, measuring)
    outputs = summarise(logits, temperature)
    probabilities, each = outputs["probabilities"], len(labels) // len(measuring) if form == "labels" else 1
    auroc = fpr95 = None
    if ood is not None:
        if form == "words":
            scores = [_span_entropies(reference, part, temperature, names) for part in (measuring, ood)]
        else:
            ood_outputs = summarise(_pairs(reference.run(ood)[0], form), temperature)
            scores = [_sums(one["predictive_entropy"], each) for one in (outputs, ood_outputs)]
        if all(map(len, scores)):
            auroc, fpr95 = metrics.auroc(*scores), metrics.fpr95(*scores)
    right = (probabilities.argmax(axis=1) == labels).reshape(-1, each).all(axis=1)
    return {
        "accuracy": float(right.mean()),
        "nll": each * metrics.negative_log_likelihood(probabilities, labels),
        "ece": _calibration_error(probabilities, labels, each),
        "auroc": auroc,
        "fpr95": fpr95,
        "mutual_information": float(_sums(outputs["mutual_information"], each).mean()),
    }


def _rows(reference: Reference, form: Form, examples: Examples) -> tuple[np.ndarray, np.ndarray]:
    """Return member logits [R, M, C] and labels [R] of examples, words, or each label of each example."""
    assert examples.labels is not None  # read_examples requires them
    if form == "words":
        words, labels = reference.words(examples).tagged(examples.labels)
        return words.outputs["logits"], labels
    return _pairs(reference.run(examples)[0], form), examples.labels.astype(np.int64).reshape(-1)


def _pairs(logits: np.ndarray, form: Form) -> np.ndarray:
    """Return class logits [N, M, C] unchanged, other logits as pairs [N·C, M, 2]."""
    if form == "classes":
        return logits
    pairs = label_pairs(logits).swapaxes(1, 2)  # [N, C, M, 2]
    return pairs.reshape(-1, *pairs.shape[2:])


def _sums(values: np.ndarray, each: int) -> np.ndarray:
    """[N·C] → [N]."""
    sums: np.ndarray = values.reshape(-1, each).sum(axis=1)
    return sums


def _calibration_error(probabilities: np.ndarray, labels: np.ndarray, each: int) -> float:
    if each == 1:
        return metrics.expected_calibration_error(probabilities, labels)
    applies = probabilities[:, 1].reshape(-1, each)
    return float(label_errors(applies, labels.reshape(-1, each).astype(bool)).mean())


def _span_entropies(reference: Reference, texts: Examples, temperature: float, names: Sequence[str]) -> np.ndarray:
    """Return the entropy of each predicted span, that of its least certain word."""
    words = reference.words(texts)
    outputs = summarise(words.outputs["logits"], temperature)
    spans = spans_in(words.texts, [names[label] for label in outputs["probabilities"].argmax(axis=1)])
    return span_scores(spans, {"entropy": outputs["predictive_entropy"]})["entropy"]


def _of_regression(
    reference: Reference, activation: ScoreActivation, judging: Examples, measuring: Examples, ood: Examples | None
) -> Quality:
    def scores(examples: Examples) -> np.ndarray:
        rows = reference.run(examples)[0][..., 0].astype(np.float64)  # [N, M]
        return rows if activation == "identity" else sigmoid(rows)

    judged, measured = scores(judging), scores(measuring)
    scale = fit_scale(judging.labels - judged.mean(axis=1), judged.var(axis=1))
    errors, variance = measuring.labels - measured.mean(axis=1), measured.var(axis=1)
    auroc = fpr95 = None
    if ood is not None and measured.shape[1] > 1:
        ood_variance = scores(ood).var(axis=1)
        auroc, fpr95 = metrics.auroc(variance, ood_variance), metrics.fpr95(variance, ood_variance)
    return {
        "accuracy": None,
        "nll": float(gaussian_nll(errors, variance, scale).mean()),
        "ece": None,
        "auroc": auroc,
        "fpr95": fpr95,
        "mutual_information": float(information(variance, scale).mean()),
        "rmse": rmse(errors),
    }
