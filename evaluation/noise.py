"""How models bear corrupted inputs: the same examples, clean and at five severities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from ..data.corruptions import CORRUPTIONS, SEVERITIES, corrupt, typos
from ..data.examples import Examples
from ..metrics.bootstrap import whole
from ..progress import Progress
from ..runtime import Prediction
from ..tasks import TASKS
from .competitors import Model
from .model_reports import decide, in_order
from .observation import Observation, observe
from .report import Noise


def sweep(
    models: Sequence[Model], known: Examples, names: Sequence[str], batch_size: int, seed: int, progress: Progress
) -> list[tuple[dict[str, float], tuple[Noise, ...]]]:
    """Metrics of each model on clean and on corrupted inputs, the same for all (Hydra Ensembles, Proposition 1)."""
    inputs, is_text = known.inputs, models[0].architecture.modality == "text"
    loss = TASKS[models[0].architecture.task].loss
    clean = [_metrics(model, [observe(model, inputs, batch_size)], known, names) for model in models]
    rows: list[list[Noise]] = [[] for _ in models]
    cases = list(product(("typos",) if is_text else CORRUPTIONS, SEVERITIES))
    for kind, severity in progress(cases, len(cases), "corrupting"):
        seen: list[list[Observation]] = [[] for _ in models]
        step = len(inputs) if is_text else batch_size  # images are large: one batch of them at a time
        for start in range(0, len(inputs), step):
            part = inputs[start : start + step]
            changed = typos(part, severity, seed) if is_text else corrupt(part, kind, severity, seed, start)
            for model, parts in zip(models, seen, strict=True):
                parts.append(observe(model, changed, batch_size))
        for model, parts, before, row in zip(models, seen, clean, rows, strict=True):
            found = _metrics(model, parts, known, names)
            row.append(Noise(kind, severity, found, found[loss] - before[loss]))
    return [(before, tuple(row)) for before, row in zip(clean, rows, strict=True)]


def _metrics(model: Model, parts: Sequence[Observation], known: Examples, names: Sequence[str]) -> dict[str, float]:
    """The metrics that a task reports of noise, of all parts of the examples."""
    task, calibration = TASKS[model.architecture.task], in_order(model)
    joined = replace(parts[0], prediction=Prediction.concatenate([part.prediction for part in parts]))
    measured = task.metrics(decide(joined, calibration), None, known, names, calibration)
    found = whole(measured.own, [len(known)])
    return {name: found[name] for name in task.noise if name in found}
