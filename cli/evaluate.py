"""An evaluation as text for a terminal."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..evaluation.figure_names import DECISIONS, DETECTION, DIFFERENCES, DIVERSITY, QUALITY, SCORES, Told, shown
from ..evaluation.report import EvaluationReport, ModelReport
from .options import (
    _bundle_argument,
    _count,
    _labelled_data_arguments,
    _positive,
    _precision_argument,
    _report_argument,
)
from .terminal import _show, progress, table


def _evaluate_arguments(sub: argparse.ArgumentParser) -> None:
    _bundle_argument(sub)
    _labelled_data_arguments(sub, "labelled data, neither tuned nor calibrated on")
    sub.add_argument("--ood", metavar="FILE", help="out-of-distribution data, labels not read")
    sub.add_argument("--compare", action="extend", nargs="+", default=[], metavar="MODEL",
                     help="checkpoints (single models) or bundles to set beside it")  # fmt: skip
    sub.add_argument("--html", type=Path, metavar="FILE", help="write a report with pictures, in one file")
    sub.add_argument("--corruptions", action="store_true", help="also on typos or corrupted images, in five severities")
    sub.add_argument(
        "--corrupted", type=_positive, default=500, metavar="N", help="examples that are corrupted (default 500)"
    )
    sub.add_argument(
        "--bootstrap",
        type=_count,
        default=1000,
        metavar="N",
        help="resamples for 95%% intervals (default 1000; 0: none)",
    )
    sub.add_argument("--latency", action="store_true", help="also time the models, interleaved")
    sub.add_argument(
        "--backend", default="torch", help="that runs the bundles (default torch: it alone gives energies)"
    )
    _precision_argument(sub)
    _report_argument(sub)


def evaluate(options: argparse.Namespace) -> int:
    """``hydrant evaluate``: quality and uncertainty on labelled data, beside competitors, as text, JSON and HTML."""
    from ..evaluation import evaluate as evaluate_bundle

    report = evaluate_bundle(
        options.bundle,
        options.data,
        options.ood,
        compare=options.compare,
        html=options.html,
        corruptions=options.corruptions,
        corrupted=options.corrupted,
        bootstrap=options.bootstrap,
        latency=options.latency,
        backend=options.backend,
        precision=options.precision,
        examples=options.examples or None,
        seed=options.seed,
        text_column=options.text_column,
        label_column=options.label_column,
        batch_size=options.batch_size,
        report=options.report,
        progress=progress,
    )
    _show(options, report.to_json(), evaluation_text(report))
    return 0


def evaluation_text(report: EvaluationReport) -> str:
    """Tables of quality, of detection by each score, of diversity, decisions and corruptions."""
    models = report.models
    ood = "" if report.ood is None else f", {report.ood_examples} of {report.ood}"
    intervals = f"; 95 % intervals from {report.resamples} resamples" if report.resamples else ""
    parts = [f"{report.examples} examples of {report.data}{ood}{intervals}"]
    parts.append(_figures("quality", QUALITY, {name: name for name in QUALITY}, models))
    groups = [("wrong answers", "errors")] + ([("out of distribution", "ood")] if report.ood else [])
    for title, prefix in groups:
        for score, words in SCORES.items():
            names = {name: f"{prefix}.{score}.{name}" for name in DETECTION}
            if any(key in model.figures for model in models for key in names.values()):
                parts.append(_figures(f"{title} by {words}", DETECTION, names, models))
    if len(models) > 1:
        parts.append(_differences(models))
    parts.append(_facts("diversity", DIVERSITY, [model.diversity for model in models], models))
    if any(model.decisions for model in models):
        parts.append(_facts("calibrated decisions", DECISIONS, [model.decisions for model in models], models))
    if report.corrupted:
        parts.append(_noise(report))
    if report.batch:
        rows = [[model.name, f"{model.latency_ms:.1f}", f"{model.backend} {model.precision}"] for model in models]
        parts.append(table(["latency", f"ms for a batch of {report.batch}", "on"], rows))
    parts += [f"note: {note}" for note in report.notes]
    written = [words for words in (", ".join(report.files), report.html and str(report.html)) if words]
    if written:
        parts.append(f"wrote {' and '.join(written)}")
    return "\n\n".join(parts)


def _figures(title: str, told: Mapping[str, Told], keys: Mapping[str, str], models: Sequence[ModelReport]) -> str:
    """A row for each figure, a column for each model."""
    rows = [
        [told[name].title, *(shown(model.figures.get(key), told[name]) for model in models)]
        for name, key in keys.items()
    ]
    return table([title, *(model.name for model in models)], rows)


def _differences(models: Sequence[ModelReport]) -> str:
    """A row for each figure, a column for each competitor."""
    rows = [
        [told.title, *(shown(model.differences[key], told) for model in models[1:])]
        for key, told in DIFFERENCES.items()
        if key in models[1].differences
    ]
    return table([f"{models[0].name} minus", *(model.name for model in models[1:])], rows)


def _facts(
    title: str, words: Mapping[str, str], facts: Sequence[Mapping[str, float | None]], models: Sequence[ModelReport]
) -> str:
    rows = [
        [text, *("–" if each.get(name) is None else f"{each[name]:.4f}" for each in facts)]
        for name, text in words.items()
        if any(each.get(name) is not None for each in facts)
    ]
    return table([title, *(model.name for model in models)], rows)


def _noise(report: EvaluationReport) -> str:
    """The loss gap at every kind and severity."""
    title = f"NLL above clean, {report.corrupted} examples"
    first = report.models[0].noise
    rows = [
        [f"{row.kind}, severity {row.severity}", *(f"{model.noise[index].loss_gap:+.3f}" for model in report.models)]
        for index, row in enumerate(first)
    ]
    clean = ["clean (NLL itself)", *(f"{model.clean['nll']:.3f}" for model in report.models)]
    return table([title, *(model.name for model in report.models)], [clean, *rows])
