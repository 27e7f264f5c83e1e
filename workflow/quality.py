"""Quality of a model in one line, whatever its task: one half of the data calibrates, the other measures.

Tokens are measured by words. Each label of several, and a relevance, is a softmax over two classes
(``metrics.labels.label_pairs``), summed over an example. A regression has an NLL under normal errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from ..calib.decisions.temperature import fit_temperature
from ..calib.features import Reference
from ..data.examples import Examples
from ..metrics import class_metrics as metrics
from ..metrics.labels import label_errors, label_pairs
from ..metrics.scores import fit_scale, gaussian_nll, information, rmse
from ..metrics.spans import span_scores, spans_in
from ..metrics.uncertainty import summarise
from ..tasks import ScoreActivation, TaskName

Form = Literal["classes", "words", "labels", "relevance", "regression"]

Quality = dict[str, float | None]
"""Metrics by name, ``None`` where a task or the data have none: ``accuracy`` (all labels of an example right),
``nll`` (summed over labels), ``ece`` (mean over labels), ``auroc`` and ``fpr95`` of OOD detection by predictive entropy
(for regression by the members' variance), ``mutual_information`` (mean, nats), ``rmse`` of a regression.
"""


def form_of(task: TaskName, loss: str | None) -> Form:
    """The form of a task's labels."""
    score: Form = "relevance" if loss == "cross-entropy" else "regression"
    forms: dict[TaskName, Form] = {"classification": "classes", "tokens": "words", "multi_label": "labels"}
    return forms.get(task, score)


def quality_of(
    reference: Reference,
    form: Form,
    activation: ScoreActivation,
    judging: Examples,
    measuring: Examples,
    unknown: Examples | None,
    names: Sequence[str],
) -> Quality:
    """Measure a model."""
    if form == "regression":
        return _of_regression(reference, activation, judging, measuring, unknown)
    logits, labels = _rows(reference, form, judging)
    temperature = fit_temperature(logits, labels)
    logits, labels = _rows(reference, form, measuring)
    found = summarise(logits, temperature)
    probabilities, each = found["probabilities"], len(labels) // len(measuring) if form == "labels" else 1
    auroc = fpr95 = None
    if unknown is not None:
        if form == "words":
            scores = [_span_entropies(reference, part, temperature, names) for part in (measuring, unknown)]
        else:
            outside = summarise(_pairs(reference.run(unknown)[0], form), temperature)
            scores = [_sums(one["predictive_entropy"], each) for one in (found, outside)]
        if all(map(len, scores)):
            auroc, fpr95 = metrics.auroc(*scores), metrics.fpr95(*scores)
    right = (probabilities.argmax(axis=1) == labels).reshape(-1, each).all(axis=1)
    return {
        "accuracy": float(right.mean()),
        "nll": each * metrics.negative_log_likelihood(probabilities, labels),
        "ece": _calibration_error(probabilities, labels, each),
        "auroc": auroc,
        "fpr95": fpr95,
        "mutual_information": float(_sums(found["mutual_information"], each).mean()),
    }


def _rows(reference: Reference, form: Form, examples: Examples) -> tuple[np.ndarray, np.ndarray]:
    """Member logits [R, M, C] and labels [R] of all answers: examples, words, or each label of each example."""
    assert examples.labels is not None  # read_examples asks for them
    if form == "words":
        words, labels = reference.words(examples).tagged(examples.labels)
        return words.outputs["logits"], labels
    return _pairs(reference.run(examples)[0], form), examples.labels.astype(np.int64).reshape(-1)


def _pairs(logits: np.ndarray, form: Form) -> np.ndarray:
    """Logits [N, M, C] of classes as they are, those of labels or of a score as [N·C, M, 2]."""
    if form == "classes":
        return logits
    pairs = label_pairs(logits).swapaxes(1, 2)  # [N, C, M, 2]
    return pairs.reshape(-1, *pairs.shape[2:])


def _sums(values: np.ndarray, each: int) -> np.ndarray:
    """[N·C] → [N]."""
    found: np.ndarray = values.reshape(-1, each).sum(axis=1)
    return found


def _calibration_error(probabilities: np.ndarray, labels: np.ndarray, each: int) -> float:
    if each == 1:
        return metrics.expected_calibration_error(probabilities, labels)
    applies = probabilities[:, 1].reshape(-1, each)
    return float(label_errors(applies, labels.reshape(-1, each).astype(bool)).mean())


def _span_entropies(reference: Reference, texts: Examples, temperature: float, names: Sequence[str]) -> np.ndarray:
    """The entropy of each span that is found in texts, that of its least sure word."""
    words = reference.words(texts)
    found = summarise(words.outputs["logits"], temperature)
    spans = spans_in(words.texts, [names[label] for label in found["probabilities"].argmax(axis=1)])
    return span_scores(spans, {"entropy": found["predictive_entropy"]})["entropy"]


def _of_regression(
    reference: Reference,
    activation: ScoreActivation,
    judging: Examples,
    measuring: Examples,
    unknown: Examples | None,
) -> Quality:
    def scores(examples: Examples) -> np.ndarray:
        rows = reference.run(examples)[0][..., 0].astype(np.float64)  # [N, M]
        return rows if activation == "identity" else 1 / (1 + np.exp(-rows))

    judged, measured = scores(judging), scores(measuring)
    scale = fit_scale(judging.labels - judged.mean(axis=1), judged.var(axis=1))
    errors, variance = measuring.labels - measured.mean(axis=1), measured.var(axis=1)
    auroc = fpr95 = None
    if unknown is not None and measured.shape[1] > 1:
        outside = scores(unknown).var(axis=1)
        auroc, fpr95 = metrics.auroc(variance, outside), metrics.fpr95(variance, outside)
    return {
        "accuracy": None,
        "nll": float(gaussian_nll(errors, variance, scale).mean()),
        "ece": None,
        "auroc": auroc,
        "fpr95": fpr95,
        "mutual_information": float(information(variance, scale).mean()),
        "rmse": rmse(errors),
    }
