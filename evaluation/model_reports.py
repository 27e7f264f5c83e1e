"""Observations → a report for each model: metrics, intervals, differences, diversity, and what the thresholds do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..bundle.calibration import Calibration
from ..metrics.bootstrap import interval, resampled, whole
from ..metrics.class_metrics import Draws, ScoreDetection
from ..progress import Progress
from ..runtime.prediction import decided
from ..tasks import TASKS
from .competitors import Model
from .observation import Evidence, Observation
from .report import Figure, ModelReport


def model_reports(
    models: Sequence[Model], evidence: Evidence, caution: float, resamples: int, seed: int, progress: Progress
) -> tuple[list[ModelReport], list[str]]:
    """A report for each model, the evaluated bundle first, and what to know of the data."""
    reports: list[ModelReport] = []
    notes: list[str] = []
    first: Draws = {}
    sizes = [len(examples) for examples in (evidence.known, evidence.ood) if examples is not None]
    for model, seen, ood in zip(models, evidence.seen, evidence.seen_ood, strict=True):
        task, calibration = TASKS[model.architecture.task], in_order(model)
        decisions = decide(seen, calibration), None if ood is None else decide(ood, calibration)
        measured = task.metrics(*decisions, evidence.known, evidence.labels, calibration, caution)
        how = resamples, seed, progress, f"resampling for {model.name}"
        figures, draws = intervals(measured, sizes, *how)
        if queries := measured.by_query():
            more, ranked = intervals(_means(queries), [len(next(iter(queries.values())))], *how)
            figures, draws = {**figures, **more}, {**draws, **ranked}
        first = first or draws
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
            )
        )
    return reports, notes


def in_order(model: Model) -> Calibration:
    """What decides of a model, its labels in the order of the first model's."""
    calibration = model.calibration
    if calibration.labels is None:
        return calibration
    temperatures, thresholds = (
        tuple(values[place] for place in model.columns.tolist())
        for values in (calibration.labels.temperatures, calibration.labels.thresholds)
    )
    return replace(calibration, labels=replace(calibration.labels, temperatures=temperatures, thresholds=thresholds))


def decide(seen: Observation, calibration: Calibration) -> Observation:
    """The observation with its decisions."""
    return replace(seen, prediction=decided(seen.prediction, calibration))


def _means(queries: Mapping[str, np.ndarray]) -> Callable[[np.ndarray], Draws]:
    return lambda counts: {name: counts.astype(np.float64) @ values / len(values) for name, values in queries.items()}


def intervals(
    statistic: Callable[..., Draws], sizes: Sequence[int], resamples: int, seed: int, progress: Progress, title: str
) -> tuple[dict[str, Figure], Draws]:
    """Every metric with its interval, and its values in the resamples; labelled and OOD examples are drawn apart."""
    draws = resampled(statistic, sizes, resamples, seed, progress, title)
    values = whole(statistic, sizes)
    return {name: figure(value, draws.get(name)) for name, value in values.items()}, draws


def detected(
    scores: Mapping[str, np.ndarray],
    ood_scores: Mapping[str, np.ndarray],
    resamples: int,
    seed: int,
    progress: Progress,
    title: str,
    texts: tuple[np.ndarray, np.ndarray] | None = None,
    sizes: Sequence[int] = (),
) -> dict[str, Figure]:
    """How well scores [N] and [K] detect, ``SCORE.auroc`` and so on; of spans, the text of each and their number."""
    detection = ScoreDetection(scores, ood_scores, None, *(texts or ()))
    sizes = sizes or [len(next(iter(each.values()))) for each in (scores, ood_scores)]
    figures, _ = intervals(detection, sizes, resamples, seed, progress, title)
    return {name.removeprefix("ood."): value for name, value in figures.items()}


def differences(
    ours: Mapping[str, Figure],
    theirs: Mapping[str, Figure],
    our_draws: Draws,
    their_draws: Draws,
    compared: Sequence[str],
) -> dict[str, Figure]:
    """Our metrics minus theirs, of those compared and of detection, with intervals from resamples that both share."""
    names = [name for name in ours if name in theirs and (name in compared or name.startswith("ood."))]
    return {
        name: figure(
            ours[name].value - theirs[name].value,
            our_draws[name] - their_draws[name] if name in our_draws and name in their_draws else None,
        )
        for name in names
    }


def figure(value: float, draws: np.ndarray | None) -> Figure:
    """A value, with the 95 % interval of its resamples where there are any."""
    return Figure(value) if draws is None else Figure(value, *interval(draws))
