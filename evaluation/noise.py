"""How models bear corrupted inputs: the same examples, clean and at five severities."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product

from ..bundle.tasks import Task
from ..data.corruptions import CORRUPTIONS, SEVERITIES, corrupt, typos
from ..data.examples import Examples
from ..metrics import classification as metrics
from ..progress import Progress
from ..runtime import Prediction
from .figure_names import loss_of
from .label_figures import assigned_by, label_quality
from .models import Model
from .observation import Observation, observe
from .report import Noise
from .score_figures import score_quality
from .token_figures import token_quality

Figures = dict[str, float]


def sweep(
    models: Sequence[Model], known: Examples, names: Sequence[str], batch_size: int, seed: int, progress: Progress
) -> list[tuple[Figures, tuple[Noise, ...]]]:
    """Figures of each model on clean and on corrupted inputs; every model gets the same ones.

    The loss gap is the loss on corrupted minus that on clean inputs: pruning may widen it although it
    costs no accuracy on clean data (Hydra Ensembles, Proposition 1).
    """
    inputs, is_text = known.inputs, models[0].architecture.modality == "text"
    loss, _ = loss_of(models[0].architecture.task)
    clean = [_quality(model, [observe(model, inputs, batch_size)], known, names) for model in models]
    rows: list[list[Noise]] = [[] for _ in models]
    cases = list(product(("typos",) if is_text else CORRUPTIONS, SEVERITIES))
    for kind, severity in progress(cases, len(cases), "corrupting"):
        said: list[list[Observation]] = [[] for _ in models]
        step = len(inputs) if is_text else batch_size  # images are large: one batch of them at a time
        for start in range(0, len(inputs), step):
            part = inputs[start : start + step]
            changed = typos(part, severity, seed) if is_text else corrupt(part, kind, severity, seed, start)
            for model, parts in zip(models, said, strict=True):
                parts.append(observe(model, changed, batch_size))
        for model, parts, before, row in zip(models, said, clean, rows, strict=True):
            found = _quality(model, parts, known, names)
            row.append(Noise(kind, severity, found, found[loss] - before[loss]))
    return [(before, tuple(row)) for before, row in zip(clean, rows, strict=True)]


def _quality(model: Model, parts: Sequence[Observation], known: Examples, names: Sequence[str]) -> Figures:
    """The figures of a model's task, of all parts of the examples."""
    joined = parts[0]
    if len(parts) > 1:  # of images
        joined = replace(joined, prediction=Prediction.concatenate([part.prediction for part in parts]))
    return QUALITY[model.architecture.task](model, joined, known, names)


def _of_classes(_: Model, seen: Observation, known: Examples, __: Sequence[str]) -> Figures:
    assert known.labels is not None  # read_examples asks for them
    probabilities = seen.prediction.probabilities
    return {
        "accuracy": metrics.accuracy(probabilities, known.labels),
        "nll": metrics.negative_log_likelihood(probabilities, known.labels),
        "ece": metrics.expected_calibration_error(probabilities, known.labels),
    }


def _of_scores(model: Model, seen: Observation, known: Examples, _: Sequence[str]) -> Figures:
    return _some(score_quality(seen, known, model.calibration), ("rmse", "correlation", "nll", "interval_coverage"))


def _of_tokens(_: Model, seen: Observation, known: Examples, names: Sequence[str]) -> Figures:
    return _some(token_quality(seen, known, names), ("span_f1", "accuracy", "nll", "ece"))


def _of_labels(model: Model, seen: Observation, known: Examples, _: Sequence[str]) -> Figures:
    found = label_quality(seen, known, assigned_by(model))
    return _some(found, ("exact_match", "micro_f1", "nll", "label_ece"))


def _some(found: Mapping[str, float], names: Sequence[str]) -> Figures:
    return {name: found[name] for name in names if name in found}


QUALITY: dict[Task, Callable[[Model, Observation, Examples, Sequence[str]], Figures]] = {
    "classification": _of_classes,
    "score": _of_scores,
    "tokens": _of_tokens,
    "multi_label": _of_labels,
}
"""What is told of clean and corrupted inputs."""
