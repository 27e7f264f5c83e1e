"""``hydrant.evaluate``: models → observations → figures → reports."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..bundle.files import check_file, write_atomically
from ..bundle.store import MANIFEST, Bundle, resolve, to_json_bytes
from ..data.examples import Examples, check_alike, check_apart, read_examples
from ..errors import InputError, require
from ..progress import Progress, no_progress
from . import figures as measure
from .html import page
from .models import Model, open_models
from .noise import sweep
from .observation import Evidence, observe
from .plots import pictures
from .report import EvaluationReport, ModelReport

REPORT = "reports/evaluation.json"


def evaluate(
    bundle: Bundle | str | Path,
    data: Any,
    ood: Any = None,
    *,
    compare: Sequence[str | Path] = (),
    html: str | Path | None = None,
    corruptions: bool = False,
    corrupted: int = 500,
    bootstrap: int = 1000,
    latency: bool = False,
    backend: str = "torch",
    precision: str | None = None,
    examples: int | None = None,
    seed: int = 0,
    text_column: str = "text",
    text_pair_column: str | None = None,
    label_column: str = "label",
    batch_size: int = 32,
    progress: Progress = no_progress,
) -> EvaluationReport:
    """Measure quality and uncertainty of a bundle, and of competitors on the same data.

    The report is also written to ``reports/evaluation.json`` in the bundle, with its pictures.

    Args:
        bundle: the bundle, or its path.
        data: labelled data (what ``calib.data.read_examples`` takes).
        ood: out-of-distribution data, whose labels are not read.
        compare: bundles, and checkpoints as the single models they are, that know the same classes.
        html: file for a report that stands alone.
        corruptions: also measure on typing errors or corrupted images.
        corrupted: number of examples for that, drawn at random.
        bootstrap: resamples for 95 % intervals; 0 for none.
        latency: also time one batch of each model, in turn.
        backend: that runs the bundles. PyTorch alone gives energies; divergences need it or a graph with member
            outputs.
        precision: of the bundles' graphs; ``None`` leaves the choice to the backend.
        examples: use this many of the labelled examples, drawn at random; ``None`` for all.
        seed: of every draw.
        text_column, text_pair_column, label_column: of tabular data; the second for pairs of texts.
        batch_size: inputs per run.
        progress: display.

    Raises:
        InputError: unusable data or options, or a competitor that knows other classes.
        BackendError: a model cannot run here, or gives values that are not finite.
        MissingExtraError: scikit-learn, matplotlib or the backend's library is not installed.
        BundleError: a bundle is missing, altered or malformed.
    """
    for module in ("sklearn", "matplotlib"):
        require(module, "report", "evaluate a bundle")
    for name, value, least in (("batch_size", batch_size, 1), ("bootstrap", bootstrap, 0), ("corrupted", corrupted, 1)):
        if value < least:
            raise InputError(f"{name} is {value}; expected {least} or more")
    bundle = resolve(bundle)
    if html is not None:
        check_file(Path(html))
        _check_outside(Path(html), bundle)
    check_apart(data, ood)
    bundle.check_addable(REPORT)
    texts: dict[str, Any] = {"text_column": text_column, "text_pair_column": text_pair_column}
    known = read_examples(data, bundle.labels, limit=examples, seed=seed, label_column=label_column, **texts)
    strange = None if ood is None else read_examples(ood, None, **texts)
    _check_raw(known, strange, corruptions)
    with ExitStack() as opened:
        models = open_models(bundle, compare, backend, precision, opened, known)
        evidence = _observed(models, known, strange, bundle.labels, batch_size, progress)
        reports = _reports(models, evidence, bootstrap, seed, progress)
        used = np.random.default_rng(seed).permutation(len(known))[:corrupted]
        if corruptions:
            rows = sweep(models, *_chosen(known, used), batch_size, seed, progress)
            reports = [
                replace(report, clean=clean, noise=noise) for report, (clean, noise) in zip(reports, rows, strict=True)
            ]
        batch = min(len(known), batch_size) if latency else None
        if batch is not None:
            times = latencies_ms(models, known.inputs[:batch], progress)
            reports = [replace(report, latency_ms=time) for report, time in zip(reports, times, strict=True)]
    report = EvaluationReport(
        data=known.name,
        examples=len(known),
        ood=None if strange is None else strange.name,
        ood_examples=None if strange is None else len(strange),
        resamples=bootstrap,
        seed=seed,
        corrupted=len(used) if corruptions else 0,
        batch=batch,
        models=reports,
        files=[],
        html=None if html is None else Path(html),
    )
    return _written(bundle, report, evidence)


def _check_raw(known: Examples, strange: Examples | None, corruptions: bool) -> None:
    """Refuse ready tensors beside raw inputs, and where these are needed."""
    check_alike(known, strange)
    if corruptions and known.ready:
        raise InputError(
            f"data {known.source} holds ready tensors, which cannot be corrupted; leave corruptions (--corruptions) "
            "out, or give raw texts or images"
        )


def _check_outside(html: Path, bundle: Bundle) -> None:
    """Refuse to write the page over a file that the bundle's manifest answers for."""
    own = {bundle.path / name for name in (MANIFEST, *bundle.manifest["files"])}
    if html.resolve() in {path.resolve() for path in own}:
        raise InputError(f"{html} is a file of the bundle; choose another place for the report")


def _observed(
    models: Sequence[Model],
    known: Examples,
    strange: Examples | None,
    labels: list[str],
    batch_size: int,
    progress: Progress,
) -> Evidence:
    seen, seen_strange = [], []
    for model in models:
        seen.append(observe(model, known.inputs, batch_size, progress, f"{model.name} on {known.name}"))
        seen_strange.append(
            None
            if strange is None
            else observe(model, strange.inputs, batch_size, progress, f"{model.name} on {strange.name}")
        )
    images = models[0].architecture.modality == "image" and not known.ready
    return Evidence(known, strange, seen, seen_strange, labels, images)


def _reports(
    models: Sequence[Model], evidence: Evidence, bootstrap: int, seed: int, progress: Progress
) -> list[ModelReport]:
    labels = evidence.known.labels
    assert labels is not None  # read_examples asks for them
    found: list[ModelReport] = []
    first: dict[str, np.ndarray] = {}
    for model, seen, strange in zip(models, evidence.seen, evidence.seen_strange, strict=True):
        answers = measure.outcomes(seen, labels)
        draws = measure.resample(answers, strange, bootstrap, seed, progress, f"resampling for {model.name}")
        figures = measure.measured(answers, strange, draws)
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
                differences=measure.differences(found[0].figures, figures, first, draws) if found else {},
                diversity=measure.diversity(seen, model.plan),
                decisions=measure.decisions(seen, labels, strange, model.calibration),
            )
        )
    return found


def _written(bundle: Bundle, report: EvaluationReport, evidence: Evidence) -> EvaluationReport:
    """Draw the pictures; put them and the figures into the bundle, and the HTML where it was asked for."""
    drawn = pictures(report, evidence)
    files: dict[str, bytes | Path] = {f"reports/evaluation-{name}.png": png for name, png in drawn.items()}
    report = replace(report, files=sorted([REPORT, *files]))
    stale = {
        name
        for name in bundle.manifest["files"]
        if name.startswith("reports/evaluation-") and name.endswith(".png") and name not in files
    }
    if report.html is not None:
        write_atomically(report.html, page(report, evidence, drawn).encode(errors="replace"))
    bundle.add({**files, REPORT: to_json_bytes(report.to_json())}, remove=stale)
    return report


def _chosen(examples: Examples, places: np.ndarray) -> tuple[list[Any], np.ndarray]:
    assert examples.labels is not None  # as above
    return [examples.inputs[place] for place in places], examples.labels[places]


WARM_UP, ROUNDS = 3, 20


def latencies_ms(models: Sequence[Model], inputs: Sequence[Any], progress: Progress) -> list[float]:
    """Median time of each model on the same inputs as one batch, ready as tensors; each runs once in a round."""
    batches = [model.processor.collate(model.processor.encode(inputs)) for model in models]
    times: list[list[float]] = [[] for _ in models]
    for step in progress(range(WARM_UP + ROUNDS), WARM_UP + ROUNDS, "timing"):
        for model, batch, row in zip(models, batches, times, strict=True):
            start = time.perf_counter()
            model.runs.run(batch)
            if step >= WARM_UP:
                row.append(1e3 * (time.perf_counter() - start))
    return [statistics.median(row) for row in times]
