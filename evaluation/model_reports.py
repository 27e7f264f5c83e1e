"""Reports of each model: metrics, intervals, differences, decisions, and corrupted inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from ..bundle.calibration import Calibration
from ..data.corruptions import CORRUPTIONS, SEVERITIES, corrupt, typos
from ..data.examples import Examples
from ..metrics.bootstrap import interval, resampled, whole
from ..metrics.class_metrics import Draws, ScoreDetection
from ..progress import Progress
from ..runtime import Prediction
from ..runtime.prediction import decided
from ..tasks import TASKS
from .competitors import Model
from .deep_ensemble import TEACHERS
from .observation import Evidence, Observation, observe
from .report import Figure, ModelReport, Noise


def model_reports(
    models: Sequence[Model], evidence: Evidence, caution: float, resamples: int, seed: int, progress: Progress
) -> tuple[list[ModelReport], list[str]]:
    """Return a report for each model, the evaluated bundle first, and notes on the data."""
    reports: list[ModelReport] = []
    notes: list[str] = []
    first: Draws = {}
    drawn: list[Draws] = []
    sizes = [len(examples) for examples in (evidence.test_set, evidence.ood) if examples is not None]
    for model, seen, ood in zip(models, evidence.seen, evidence.seen_ood, strict=True):
        task, calibration = TASKS[model.architecture.task], in_order(model)
        measured = task.metrics(seen, ood, evidence.test_set, evidence.labels, calibration, caution)
        settings = resamples, seed, progress, f"resampling for {model.name}"
        figures, draws = intervals(measured, sizes, *settings)
        if queries := measured.by_query():
            more, ranked = intervals(_means(queries), [len(next(iter(queries.values())))], *settings)
            figures, draws = {**figures, **more}, {**draws, **ranked}
        first = first or draws
        drawn.append(draws)
        notes = notes if reports else measured.notes()
        reports.append(
            ModelReport(
                name=model.name,
                kind=model.kind,
                backend=model.runs.name,
                precision=model.precision,
                members=len(model.plan.members),
                temperature=model.calibration.temperature,
                figures=figures,
                differences=differences(reports[0].figures, figures, first, draws, task.compared) if reports else {},
                diversity={**measured.diversity(), "head_overlap": model.plan.overlap()["mean"]},
                decisions=measured.decisions(),
                temperatures=() if calibration.labels is None else calibration.temperatures,
                labels=measured.label_rows(),
                calibration=_rules(model.calibration),
                operations=model.operations,
            )
        )
    single = next((place for place, model in enumerate(models) if place and model.kind == "single"), None)
    for place, report in enumerate(reports):
        if single is not None and report.kind in ("control", "taught", TEACHERS):
            beside = report.figures, reports[single].figures, drawn[place], drawn[single]
            reports[place] = replace(report, over_single=differences(*beside, task.compared))
    return reports, notes


def in_order(model: Model) -> Calibration:
    """Return a model's calibration, with labels in the order of the first model."""
    calibration = model.calibration
    if calibration.labels is None:
        return calibration
    temperatures, thresholds = (
        tuple(values[place] for place in model.columns.tolist())
        for values in (calibration.labels.temperatures, calibration.labels.thresholds)
    )
    return replace(calibration, labels=replace(calibration.labels, temperatures=temperatures, thresholds=thresholds))


def _rules(calibration: Calibration) -> dict[str, Any]:
    """Return what a fitted calibration says of decisions."""
    facts = calibration.to_json()
    return {key: fact for key, fact in facts.items() if key not in ("reference", "fitted")} if facts["fitted"] else {}


def decide(seen: Observation, calibration: Calibration) -> Observation:
    """Add the decisions to an observation."""
    return replace(seen, prediction=decided(seen.prediction, calibration))


def _means(queries: Mapping[str, np.ndarray]) -> Callable[[np.ndarray], Draws]:
    return lambda counts: {name: counts.astype(np.float64) @ values / len(values) for name, values in queries.items()}


def intervals(
    statistic: Callable[..., Draws], sizes: Sequence[int], resamples: int, seed: int, progress: Progress, title: str
) -> tuple[dict[str, Figure], Draws]:
    """Return metrics with intervals, and their values in the resamples; OOD examples are drawn separately."""
    draws = resampled(statistic, sizes, resamples, seed, progress, title)
    values = whole(statistic, sizes)
    return {name: figure(value, draws.get(name)) for name, value in values.items()}, draws


def detected(scores: Mapping[str, np.ndarray], ood_scores: Mapping[str, np.ndarray], resamples: int, seed: int,
             progress: Progress, title: str, texts: tuple[np.ndarray, np.ndarray] | None = None,
             sizes: Sequence[int] = (),
             wrong: np.ndarray | None = None) -> tuple[dict[str, Figure], dict[str, Figure]]:  # fmt: skip
    """Measure detection of OOD inputs and of ``wrong`` answers [N] by scores [N] and [K], as ``SCORE.auroc`` and so on.

    Spans have ``texts`` and ``sizes``.
    """
    detection = ScoreDetection(scores, ood_scores, wrong, *(texts or ()))
    sizes = sizes or [len(next(iter(each.values()))) for each in (scores, ood_scores)]
    figures, _ = intervals(detection, sizes, resamples, seed, progress, title)
    unknown, errors = (
        {name.removeprefix(kind): value for name, value in figures.items() if name.startswith(kind)}
        for kind in ("ood.", "errors.")
    )
    return unknown, errors


def differences(ours: Mapping[str, Figure], theirs: Mapping[str, Figure], our_draws: Draws, their_draws: Draws,
                compared: Sequence[str]) -> dict[str, Figure]:  # fmt: skip
    """Return our metrics minus theirs, with intervals from the shared resamples."""
    names = [name for name in ours if name in theirs and (name in compared or name.startswith("ood."))]
    return {
        name: figure(
            ours[name].value - theirs[name].value,
            our_draws[name] - their_draws[name] if name in our_draws and name in their_draws else None,
        )
        for name in names
    }


def figure(value: float, draws: np.ndarray | None) -> Figure:
    """Return a value with the 95 % interval of its resamples, if any."""
    return Figure(value) if draws is None else Figure(value, *interval(draws))


def sweep(
    models: Sequence[Model], test_set: Examples, names: Sequence[str], batch_size: int, seed: int, progress: Progress
) -> list[tuple[dict[str, float], tuple[Noise, ...]]]:
    """Evaluate each model on the same clean and corrupted inputs (Hydra Ensembles, Proposition 1)."""
    inputs, is_text = test_set.inputs, models[0].architecture.modality == "text"
    loss = TASKS[models[0].architecture.task].loss
    clean = [_metrics(model, [observe(model, inputs, batch_size)], test_set, names) for model in models]
    rows: list[list[Noise]] = [[] for _ in models]
    cases = list(product(("typos",) if is_text else CORRUPTIONS, SEVERITIES))
    for kind, severity in progress(cases, len(cases), "corrupting"):
        seen: list[list[Observation]] = [[] for _ in models]
        step = len(inputs) if is_text else batch_size  # images are large: one batch at a time
        for start in range(0, len(inputs), step):
            part = inputs[start : start + step]
            changed = typos(part, severity, seed) if is_text else corrupt(part, kind, severity, seed, start)
            for model, parts in zip(models, seen, strict=True):
                parts.append(observe(model, changed, batch_size))
        for model, parts, before, row in zip(models, seen, clean, rows, strict=True):
            after = _metrics(model, parts, test_set, names)
            row.append(Noise(kind, severity, after, after[loss] - before[loss]))
    return [(before, tuple(row)) for before, row in zip(clean, rows, strict=True)]


def _metrics(model: Model, parts: Sequence[Observation], test_set: Examples, names: Sequence[str]) -> dict[str, float]:
    """Compute the task's metrics of corrupted inputs over all parts."""
    task, calibration = TASKS[model.architecture.task], in_order(model)
    joined = replace(parts[0], prediction=Prediction.concatenate([part.prediction for part in parts]))
    measured = task.metrics(decide(joined, calibration), None, test_set, names, calibration)
    metrics = whole(measured.own, [len(test_set)])
    return {name: metrics[name] for name in task.noise if name in metrics}
