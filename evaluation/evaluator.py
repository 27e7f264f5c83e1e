"""``hydrant.evaluate``: models → observations → figures → reports."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..bundle.data_overlap import JUDGED, overlaps
from ..bundle.manifest import MANIFEST
from ..bundle.reports import report_folder, store_reports
from ..bundle.staging import check_file, write_atomically
from ..bundle.store import CALIBRATION, Bundle, located
from ..bundle.strict_json import to_json_bytes
from ..calib.decisions.fit import learnt_notes
from ..data.data_options import DataOptions
from ..data.examples import Examples, check_alike, check_apart, check_folder, read_examples
from ..data.specs import Modality
from ..errors import InputError, check_seed, require
from ..metrics.gates import Precision
from ..progress import Progress, no_progress
from ..tasks import TASKS
from .baselines import baseline_notes, measure_baselines, read_training
from .competitors import Competitor, open_models
from .deep_ensemble import DeepEnsemble, competitor
from .evaluation_options import EvaluationOptions
from .latency import time_models
from .model_reports import decide, in_order, model_reports, sweep
from .observation import Evidence, Observation, observe, uncalibrated
from .plots import pictures
from .report import REPORT, EvaluationReport
from .report_tables import page
from .verdict import headlines, verdicts


def evaluate(
    bundle: Bundle | str | Path,
    data: Any,
    ood: Any = None,
    *,
    compare: Sequence[Competitor] = (),
    figures: EvaluationOptions = EvaluationOptions(),
    backend: str = "torch",
    precision: Precision | None = None,
    revision: str | None = None,
    html: str | Path | None = None,
    report: str | Path | None = None,
    reading: DataOptions = DataOptions(),
    seed: int = 0,
    force: bool = False,
    progress: Progress = no_progress,
) -> EvaluationReport:
    """Measure quality and uncertainty of a bundle, and of competitors on the same data.

    The report is also written to ``reports/evaluation.json`` in the bundle, with its pictures. Notes and log name data
    on which one of the bundles was planned, tuned or calibrated.

    Args:
        bundle: bundle folder, or USER/NAME on the Hugging Face Hub. In Python also an open ``Bundle``.
        data: labelled test data: .csv, .jsonl, .parquet, .npz, an image folder, hf:NAME or a URL. Also .tsv; a Hugging
            Face data set is ``hf:NAME:CONFIG:SPLIT``. Data that the bundle was neither tuned nor calibrated on. In
            Python also what ``data.examples.read_examples`` takes.
        ood: out-of-distribution (OOD) test data; labels are ignored.
        compare: checkpoints or bundles to compare with, or deep-ensemble:A,B, or mc-dropout:10. ``deep-ensemble:A,B``
            averages checkpoints (in Python also ``evaluation.deep_ensemble.DeepEnsemble``), and
            ``mc-dropout:10:CHECKPOINT`` 10 passes of a checkpoint with its dropout on; without CHECKPOINT it is the one
            checkpoint that is compared with. All know the same classes.
        figures: measured beside quality and detection: ``EvaluationOptions(corruptions=True, latency=True)``, or
            ``EvaluationOptions(baselines=True, fit="train.csv")``.
        backend: backend that runs the bundles; auto takes the first that works. Divergences of the members need torch,
            or a graph with member outputs.
        precision: precision of the graphs (default: the backend's choice).
        revision: branch, tag or commit on the Hub (default: main).
        html: write a report with pictures to one HTML file.
        report: folder for report and pictures (default: the bundle). By default, if the bundle cannot be written, it is
            evaluated all the same and a warning is logged.
        reading: columns, number (all) and batch size of the labelled examples.
        seed: of every draw.
        force: allow data that a bundle was tuned or calibrated on.
        progress: display.

    Raises:
        InputError: unusable data or options, data that a bundle was tuned or calibrated on, or a competitor that knows
            other classes.
        BackendError: a model cannot run here, or gives values that are not finite.
        MissingExtraError: scikit-learn, matplotlib or the backend's library is not installed.
        BundleError: a bundle is missing, altered or malformed.
    """
    for module in ("sklearn", "matplotlib"):
        require(module, "report", "evaluate a bundle")
    bundle = located(bundle, revision)
    compare = [competitor(each) for each in ([compare] if isinstance(compare, Competitor) else compare)]
    paths = [Path(each) for each in compare if not isinstance(each, DeepEnsemble)]
    task = bundle.any_architecture().task
    _check_html(html, bundle)
    folder = report_folder(bundle, report)
    check_apart(data, ood)
    for source in (data, ood):
        check_folder(source, bundle.any_architecture().modality)
    check_seed(seed)
    test_set = read_examples(data, bundle.labels, columns=reading, limit=reading.limit(), seed=seed, task=task)
    if figures.caution and not TASKS[task].query_groups(test_set):
        raise InputError(
            f"caution is {figures.caution:g}, but {test_set.source} has no rankings; expected pairs of texts "
            "(--read text_pair=NAME), some with the same first text and a label above 0"
        )
    ood = None if ood is None else read_examples(ood, None, columns=reading)
    _check_raw(test_set, ood, figures.corruptions, bundle.any_architecture().modality)
    training = read_training(figures, bundle, test_set, ood, reading)
    batch_size = reading.batch_size
    notes = [
        note
        for source in (bundle, *(Bundle.open(path) for path in paths if (path / MANIFEST).is_file()))
        for note in overlaps(source, "evaluating", {"data": test_set, "ood": ood}, refused=() if force else JUDGED)
    ]
    with ExitStack() as opened:
        models = open_models(bundle, compare, backend, precision, opened, test_set, seed)

        def seen(part: Examples) -> list[Observation]:
            observations: list[Observation] = []
            for each in models:
                title = f"{each.name} on {part.name}"
                settings = batch_size, progress, title, part.labels
                observed = uncalibrated(each, observations[-1]) if each.twin else observe(each, part.inputs, *settings)
                observations.append(decide(observed, in_order(each)))
            return observations

        images = models[0].architecture.modality == "image" and not test_set.ready
        observed = seen(test_set), [None] * len(models) if ood is None else seen(ood)
        evidence = Evidence(test_set, ood, *observed, bundle.labels, images)
        reports, remarks = model_reports(models, evidence, figures.caution, figures.bootstrap, seed, progress)
        notes += remarks
        if {"accuracy", "nll"} <= reports[0].figures.keys():
            notes += learnt_notes(test_set.name, *(reports[0].figures[name].value for name in ("accuracy", "nll")))
        if figures.baselines and ood is not None:
            notes += baseline_notes(models, bundle, test_set, ood, training)
            baselines = measure_baselines(
                models, test_set, ood, training, figures, bundle.labels, batch_size, seed, progress
            )
            reports = [replace(report, baselines=each) for report, each in zip(reports, baselines, strict=True)]
        used = np.random.default_rng(seed).permutation(len(test_set))[: figures.corrupted]
        if figures.corruptions:
            some = test_set.take(used)
            pairs = zip(reports, sweep(models, some, bundle.labels, batch_size, seed, progress), strict=True)
            reports = [replace(report, clean=clean, noise=noise) for report, (clean, noise) in pairs]
        latency_note = None
        if figures.latency or html is not None:
            reports, latency_note = time_models(models, reports, test_set.inputs[:batch_size], progress)
    taught = "teachers" in bundle.manifest.get("fusion", {}).get("tuned", {})
    evaluation = EvaluationReport(
        data=test_set.name, examples=len(test_set), ood=None if ood is None else ood.name,
        ood_examples=None if ood is None else len(ood), resamples=figures.bootstrap, seed=seed,
        corrupted=len(used) if figures.corruptions else 0, verdict=verdicts(reports),
        batch=None if reports[0].latency_ms is None else min(len(test_set), batch_size), models=reports, files=[],
        html=None if html is None else Path(html), latency_note=latency_note, notes=notes,
        fit=None if training is None else training.name, fit_examples=None if training is None else len(training),
        task=task, calibration=bundle.digests()[CALIBRATION], headline=headlines(reports, ood is not None, taught),
    )  # fmt: skip
    return _written(bundle, evaluation, evidence, folder)


def _check_html(html: str | Path | None, bundle: Bundle) -> None:
    """Reject a page that cannot be written or lies inside the bundle."""
    if html is None:
        return
    require("jinja2", "report", "write an evaluation as HTML")
    check_file(Path(html))
    if Path(html).resolve().is_relative_to(bundle.path.resolve()):
        raise InputError(f"{html} is in the bundle; choose a path outside the bundle")


def _check_raw(test_set: Examples, ood: Examples | None, corruptions: bool, modality: Modality) -> None:
    """Reject prepared tensors mixed with raw inputs, and corruptions of them."""
    check_alike(test_set, ood)
    if corruptions and modality == "audio":
        raise InputError("corruptions support texts and images, but this model reads sound; omit them")
    if corruptions and test_set.ready:
        raise InputError(f"{test_set.source} has prepared tensors; corruptions need raw texts or images")


def _written(bundle: Bundle, report: EvaluationReport, evidence: Evidence, folder: Path | None) -> EvaluationReport:
    """Draw the pictures; write them, the report and the HTML page."""
    drawn = pictures(report, evidence) if report.task == "classification" else {}
    files: dict[str, bytes | Path] = {f"reports/evaluation-{name}.png": png for name, png in drawn.items()}
    report = replace(report, files=sorted([REPORT, *files]))
    stale = {*fnmatch.filter(bundle.manifest["files"], "reports/evaluation-*.png")} - {*files}
    if report.html is not None:
        html = page(report, evidence if report.task == "classification" else None, drawn)
        write_atomically(report.html, html.encode(errors="replace"))
    page_name = None if report.html is None else report.html.name  # a bundle keeps no paths of its machine
    content = {**files, REPORT: to_json_bytes({**report.to_json(), "html": page_name})}
    return replace(report, files=sorted(store_reports(bundle, content, folder, remove=stale)))
