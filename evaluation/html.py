"""An evaluation as one HTML page that needs nothing beside it."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape

from ..tasks import Column
from ..tasks.classification import QUALITY
from ..version import __version__
from .class_tables import accuracy_by_class, confusions, disputed
from .examples import Example, chosen
from .markup import cell, figure_cell, note, pair, plot, prose, row, section, table
from .metric_names import (
    BASELINE_FIGURES,
    BASELINES,
    DECISIONS,
    DETECTION,
    DIFFERENCES,
    DIVERSITY,
    SCORES,
    baseline_remarks,
    ranged,
)
from .observation import Evidence
from .report import Difference, EvaluationReport, Figure, ModelReport, Verdict
from .style import STYLE
from .verdict import ALONE, UNJUDGED, best_apart

CAPTIONS = {
    "reliability": "A calibrated model lies on the dashed line. Large points stand for many examples.",
    "risk-coverage": "How wrong the answers are when only the most confident inputs are answered. Lower is better.",
    "scores": "Of the evaluated bundle. A good score keeps the groups apart. Heights grow with the square root of the "
    "share, so that rare values show.",
    "detection": "Where a curve crosses the dashed line it catches 95 % of the out-of-distribution inputs (FPR95).",
    "baselines": "Above the dashed line a model's own scores, below it those of its single model; lines are 95 % "
    "intervals. An ensemble that finds no more than a checkpoint's baselines is not worth its cost for this question.",
    "disagreement": "Classes on whose examples the members of the evaluated bundle disagree most.",
    "noise": "The same examples, clean and corrupted, averaged over kinds of corruption. A loss that rises faster than "
    "the single model's is what pruning can cost on noisy data.",
}

PLOTS = {
    "reliability": "Reliability",
    "risk-coverage": "Risk and coverage",
    "scores": "Uncertainty of right and wrong answers, and of what is out of distribution",
    "detection": "In against out of distribution",
    "baselines": "Scores of every model beside those of a single one",
    "disagreement": "Disagreement by class",
    "noise": "Corrupted inputs",
}

BROAD = ("scores", "detection", "baselines", "disagreement")
"""Pictures as wide as the page."""

ARROWS = {"high": "\u00a0↑", "low": "\u00a0↓", "": ""}


def page(report: EvaluationReport, evidence: Evidence, pictures: Mapping[str, bytes]) -> str:
    """The page: the verdict, tables, pictures and examples, everything inside it."""
    name = escape(report.models[0].name)
    names = [model.name for model in report.models]
    ood = "" if report.ood is None else f" · {report.ood_examples} of {escape(report.ood)} (out of distribution)"
    intervals = f" · 95 % intervals from {report.resamples} bootstrap resamples" if report.resamples else ""
    parts = [
        f"<h1>Evaluation of {name}</h1>",
        f'<p class="about">{report.examples} examples of {escape(report.data)}{ood}{intervals} · seed {report.seed}'
        f" · hydrant {escape(__version__)}</p>",
        *(f'<p class="wrong">{prose(note)}</p>' for note in report.notes),
        _verdict(report),
        pair(section("Models", _models(report)), section("Members", _facts(report, "diversity", DIVERSITY))),
        pair(section("Quality", _quality(report)), _decisions(report)),
        pair(_plot(pictures, "reliability"), _plot(pictures, "risk-coverage")),
        pair(
            _detection(report, "Finding out-of-distribution inputs", "ood") if report.ood else "",
            _detection(report, "Finding wrong answers", "errors"),
        ),
        baselines_section(report),
        _plot(pictures, "baselines"),
        _plot(pictures, "detection"),
        _plot(pictures, "scores"),
        pair(_plot(pictures, "noise"), _corruptions(report)),
        section("Confusions", confusions(evidence, names)),
        section("Accuracy by class", accuracy_by_class(evidence, names)),
        _plot(pictures, "disagreement", disputed(evidence)),
        *(section(title, _examples(title, rows)) for title, rows in chosen(evidence).items()),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>hydrant: evaluation of {name}</title><style>{STYLE}</style></head>\n"
        f"<body><main>\n{chr(10).join(part for part in parts if part)}\n</main></body></html>\n"
    )


def _verdict(report: EvaluationReport) -> str:
    """What is better and worse, in a sentence for each competitor, and the figures that say so."""
    sentences = [verdict.sentence for verdict in report.verdict] or [ALONE]
    words = "↑ higher is better, ↓ lower is better."
    if report.verdict and report.resamples:
        words += (
            " Better and worse are said where the 95 % interval of the difference, drawn on the same resamples for "
            "both, excludes zero. Points are percentage points."
        )
    text = "".join(f'<p class="verdict">{prose(sentence)}</p>' for sentence in sentences)
    return section("Verdict", text, _comparison(report) if report.verdict else _headline(report), note(words))


def _headline(report: EvaluationReport) -> str:
    """The figures of a bundle that is compared with nothing."""
    ours = report.models[0]
    told = {name: _plain(name) for name in DIFFERENCES if name in ours.figures}
    rows = [row(_titled(each), figure_cell(ours.figures[name], each)) for name, each in told.items()]
    return table("Headline figures", ["", ours.name], {"": rows})


def _comparison(report: EvaluationReport) -> str:
    """The bundle's figures beside each competitor's, a group of rows for each of several."""
    ours, (first, *more) = report.models[0].name, report.verdict
    if not more:
        return table("Verdict", ["", ours, first.against, "difference"], {"": _compared(report, first)})
    groups = {f"beside {verdict.against}": _compared(report, verdict) for verdict in report.verdict}
    return table("Verdict", ["", ours, "the other", "difference"], groups)


def _compared(report: EvaluationReport, verdict: Verdict) -> list[str]:
    ours = report.models[0]
    theirs = next(model for model in report.models[1:] if model.name == verdict.against)
    rows = []
    for found in verdict.differences:
        told, plain = DIFFERENCES[found.figure], _plain(found.figure)
        rows.append(row(
            _titled(plain),
            cell(plain.text(ours.figures[found.figure].value)),
            cell(plain.text(theirs.figures[found.figure].value)),
            cell(told.text(found.value), _judged(found, told), f"words {found.outcome.split()[0]}"),
        ))  # fmt: skip
    return rows


def _judged(difference: Difference, told: Column) -> str:
    """The interval, which does not break, and what it says."""
    if difference.outcome == UNJUDGED:
        return ""
    interval = ranged(Figure(difference.value, difference.low, difference.high), told).replace(" ", "\u00a0")
    return f"{interval}: {difference.outcome}"


def _plain(name: str) -> Column:
    """How a figure is shown whose difference :data:`metric_names.DIFFERENCES` tells."""
    told = QUALITY.get(name) or DETECTION[name.rsplit(".", 1)[1]]
    return Column(DIFFERENCES[name].title, told.form, told.better, told.scale, told.unit)


def _titled(told: Column) -> str:
    return told.title + ARROWS[told.better]


def _temperature(model: ModelReport) -> str:
    """Of all classes, or from the lowest to the highest of the labels."""
    ends = (min(model.temperatures), max(model.temperatures)) if model.temperatures else (model.temperature,)
    return " to ".join(dict.fromkeys(f"{end:.3g}" for end in ends))


def _models(report: EvaluationReport) -> str:
    """What each model is and runs on, and its latency."""
    facts = {
        "kind": [model.kind for model in report.models],
        "members": [str(model.members) for model in report.models],
        "temperature": [_temperature(model) for model in report.models],
        "runs on": [f"{model.backend}, {model.precision}" for model in report.models],
    }
    if report.batch:
        times = [model.latency_ms for model in report.models]
        facts[f"ms for a batch of {report.batch}"] = ["–" if time is None else f"{time:.1f}" for time in times]
    rows = [row(name, *map(cell, values)) for name, values in facts.items()]
    asked = "" if report.batch else "hydrant evaluate --latency"
    words = report.latency_note or asked
    hint = note(f"Latency: {words}.") if words else ""
    return table("Models", ["", *(model.name for model in report.models)], {"": rows}) + hint


def _quality(report: EvaluationReport) -> str:
    groups = {"": _figures(report, QUALITY, {name: name for name in QUALITY})}
    words = "↑ higher is better, ↓ lower is better."
    if report.resamples and len(report.models) > 1:
        words += " Bold: the best, where its interval overlaps with no other."
    if report.resamples:
        words += (
            " Small: 95 % intervals; that of a calibration error may lie above it, since resampling adds noise to "
            "every bin."
        )
    return table("Quality", ["", *(model.name for model in report.models)], groups) + note(words)


def _detection(report: EvaluationReport, title: str, prefix: str) -> str:
    """For each score, a row for each figure."""
    groups = {}
    for score, words in SCORES.items():
        keys = {name: f"{prefix}.{score}.{name}" for name in DETECTION}
        if any(keys["auroc"] in model.figures for model in report.models):
            groups[f"by {words}"] = _figures(report, DETECTION, keys)
    missing = any(f"{prefix}.energy.auroc" not in model.figures for model in report.models)
    remark = note("A graph of hydrant 0.1 gives no energy; export it again.") if missing else ""
    return section(title, table(title, ["", *(model.name for model in report.models)], groups), remark)


def baselines_section(report: EvaluationReport) -> str:
    """For each figure a group of rows, one for each post-hoc score of the single models."""
    found = [model.baselines for model in report.models]
    groups: dict[str, list[str]] = {}
    for name, told in BASELINE_FIGURES.items():
        for score, words in BASELINES.items():
            figures = [None if each is None else each.figures.get(f"{score}.{name}") for each in found]
            if any(figures):
                best = best_apart(figures, told)
                cells = [figure_cell(figure, told, place == best) for place, figure in enumerate(figures)]
                groups.setdefault(_titled(told), []).append(row(words, *cells))
    if not groups:
        return ""
    headers = ["", *(model.name for model in report.models)]
    title = "Baselines: what a single model finds out of distribution"
    remarks = [note(f"{line}.") for line in baseline_remarks(report)]
    return section(title, table(title, headers, groups), *remarks)


def _figures(report: EvaluationReport, told: Mapping[str, Column], keys: Mapping[str, str]) -> list[str]:
    """A row for each figure, a column for each model; bold only what its interval sets apart."""
    rows = []
    for name, key in keys.items():
        found = [model.figures.get(key) for model in report.models]
        best = best_apart(found, told[name])
        cells = [figure_cell(figure, told[name], place == best) for place, figure in enumerate(found)]
        rows.append(row(_titled(told[name]), *cells))
    return rows


def _facts(report: EvaluationReport, field: str, told: Mapping[str, Column]) -> str:
    found = [getattr(model, field) for model in report.models]
    rows = [
        row(each_told.title, *(cell(each_told.text(each.get(name))) for each in found))
        for name, each_told in told.items()
        if any(each.get(name) is not None for each in found)
    ]
    return table(field, ["", *(model.name for model in report.models)], {"": rows})


def _decisions(report: EvaluationReport) -> str:
    if not any(model.decisions for model in report.models):
        text = "<p>No model has thresholds: fit them with <code>hydrant calibrate</code>.</p>"
        return section("Calibrated decisions", text)
    return section("Calibrated decisions", _facts(report, "decisions", DECISIONS))


def _corruptions(report: EvaluationReport) -> str:
    if not report.corrupted:
        return ""
    groups = {"": [row("clean: NLL", *(cell(QUALITY["nll"].text(model.clean["nll"])) for model in report.models))]}
    for index, noise in enumerate(report.models[0].noise):
        gaps = (DIFFERENCES["nll"].text(model.noise[index].loss_gap) for model in report.models)
        groups.setdefault(noise.kind, []).append(row(f"severity {noise.severity}", *map(cell, gaps)))
    words = f"NLL on {report.corrupted} corrupted examples minus that on the same examples clean."
    return section("Loss gap", table("Loss gap", ["", *(model.name for model in report.models)], groups), note(words))


def _examples(title: str, examples: Sequence[Example]) -> str:
    headers = ["input", "label", "predicted", "confidence", "predictive entropy", "mutual information"]
    rows = []
    for example in examples:
        wrong = example.label is not None and example.label != example.said
        rows.append(row(
            _cut(example.text),
            cell(example.label or "–", kind="words"),
            cell(example.said, kind="words wrong" if wrong else "words"),
            cell(f"{100 * example.confidence:.1f} %"),
            cell(f"{example.predictive_entropy:.3f}"),
            cell(f"{example.mutual_information:.4f}"),
            kind="words",
            image=example.image,
        ))  # fmt: skip
    return table(title, headers, {"": rows})


def _plot(pictures: Mapping[str, bytes], name: str, below: str = "") -> str:
    if name not in pictures:
        return ""
    source = f"data:image/png;base64,{base64.b64encode(pictures[name]).decode()}"
    return section(PLOTS[name], plot(source, PLOTS[name], CAPTIONS[name], name in BROAD), below)


def _cut(text: str, limit: int = 160) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
