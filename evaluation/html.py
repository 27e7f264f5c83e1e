"""An evaluation as one HTML page that needs nothing beside it."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from html import escape

from ..version import __version__
from .examples import Example, chosen, most_disputed
from .figure_names import DECISIONS, DETECTION, DIFFERENCES, DIVERSITY, QUALITY, SCORES, Told, ranged, shown
from .observation import Evidence
from .report import EvaluationReport, Figure

STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; color: #1a1a1a;
  background: #f4f5f7; margin: 0; }
main { max-width: 1160px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 26px; margin: 0 0 4px; }
h2 { font-size: 18px; margin: 0 0 10px; }
p.about { color: #555; margin: 0 0 22px; }
section { background: #fff; border: 1px solid #e2e4e8; border-radius: 10px; padding: 18px 20px; margin: 0 0 18px; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(440px, 100%), 1fr)); gap: 18px;
  margin: 0 0 18px; }
.pair section { margin: 0; min-width: 0; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 14px; margin: 0 0 18px; }
.tiles div { background: #fff; border: 1px solid #e2e4e8; border-radius: 10px; padding: 12px 16px; }
.tiles b { display: block; font-size: 24px; color: #0a4f7d; font-variant-numeric: tabular-nums; }
.tiles span { color: #666; font-size: 12.5px; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 5px 8px; border-bottom: 1px solid #eceef1; vertical-align: top; }
th:first-child, td:first-child { text-align: left; min-width: 8em; overflow-wrap: anywhere; }
thead th { color: #555; font-weight: 600; border-bottom: 2px solid #d5d8dd; }
td small { display: block; color: #777; font-size: 11px; white-space: nowrap; }
td.best { font-weight: 700; color: #00553b; }
td.best small { font-weight: 400; }
tr.group td { background: #f7f8fa; color: #444; font-weight: 600; }
.wrong { color: #b3400a; }
img.plot { max-width: 100%; height: auto; display: block; margin: 0 auto; }
img.broad { min-width: 680px; }
img.thumb { width: 64px; height: 64px; object-fit: contain; image-rendering: pixelated; border-radius: 4px; }
p.note { color: #666; font-size: 13px; margin: 8px 0 0; }
"""


NOTES = {
    "reliability": "A calibrated model lies on the dashed line. Large points stand for many examples.",
    "risk-coverage": "How wrong the answers are when only the most confident inputs are answered. Lower is better.",
    "scores": "Of the evaluated bundle. A good score keeps the groups apart.",
    "detection": "Where a curve crosses the dashed line it catches 95 % of the out-of-distribution inputs (FPR95).",
    "disagreement": "Classes on whose examples the members of the evaluated bundle disagree most.",
    "noise": "The same examples, clean and corrupted, averaged over kinds of corruption. A loss that rises faster than "
    "the single model's is what pruning can cost on noisy data.",
}


PLOTS = {
    "reliability": "Reliability",
    "risk-coverage": "Risk and coverage",
    "scores": "Uncertainty of right and wrong answers, and of what is out of distribution",
    "detection": "In against out of distribution",
    "disagreement": "Disagreement by class",
    "noise": "Corrupted inputs",
}


BROAD = ("scores", "detection", "disagreement")
"""Pictures as wide as the page."""


def page(report: EvaluationReport, evidence: Evidence, pictures: Mapping[str, bytes]) -> str:
    """The page: tables, pictures and examples, everything inside it."""
    name = escape(report.models[0].name)
    strange = "" if report.ood is None else f" · {report.ood_examples} of {escape(report.ood)} (out of distribution)"
    intervals = f" · 95 % intervals from {report.resamples} bootstrap resamples" if report.resamples else ""
    outside = _section("Finding out-of-distribution inputs", _detection(report, "ood")) if report.ood else ""
    parts = [
        f"<h1>Evaluation of {name}</h1>",
        f'<p class="about">{report.examples} examples of {escape(report.data)}{strange}{intervals} · seed {report.seed}'
        f" · hydrant {escape(__version__)}</p>",
        *(f'<p class="wrong">{escape(note)}</p>' for note in report.notes),
        _tiles(report),
        _section("Models", _models(report)),
        _section("Quality", _quality(report)),
        _differences(report),
        _pair(_plot(pictures, "reliability"), _plot(pictures, "risk-coverage")),
        _pair(outside, _section("Finding wrong answers", _detection(report, "errors"))),
        _plot(pictures, "detection"),
        _plot(pictures, "scores"),
        _pair(_section("Members", _facts(report, "diversity", DIVERSITY)), _decisions(report)),
        _pair(_plot(pictures, "noise"), _corruptions(report)),
        _plot(pictures, "disagreement", _classes(evidence)),
        *(_section(title, _examples(rows)) for title, rows in chosen(evidence).items()),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>hydrant: evaluation of {name}</title><style>{STYLE}</style></head>\n"
        f"<body><main>\n{chr(10).join(part for part in parts if part)}\n</main></body></html>\n"
    )


def _models(report: EvaluationReport) -> str:
    """What each model is, and in short its accuracy, uncertainty and latency."""
    group, words = ("ood", "OOD inputs") if report.ood else ("errors", "wrong answers")
    figures = {
        "accuracy": QUALITY["accuracy"],
        "ece": QUALITY["ece"],
        f"{group}.predictive_entropy.auroc": Told(f"AUROC, {words} by entropy", better="high"),
        f"{group}.mutual_information.auroc": Told(f"AUROC, {words} by mutual information", better="high"),
    }
    headers = ["model", "kind", "members", "temperature", "runs on", *(told.title for told in figures.values())]
    if report.batch:
        headers.append(f"ms for a batch of {report.batch}")
    rows = [
        "".join(f"<td>{cell}</td>" for cell in (
            escape(model.name), model.kind, str(model.members), f"{model.temperature:.3g}",
            f"{escape(model.backend)}, {model.precision}",
            *(shown(model.figures.get(name), told, interval=False) for name, told in figures.items()),
            *([] if model.latency_ms is None else [f"{model.latency_ms:.1f}"]),
        ))
        for model in report.models
    ]  # fmt: skip
    note = "" if report.batch else '<p class="note">Latency: <code>hydrant evaluate --latency</code>.</p>'
    return _table(headers, rows) + note


def _tiles(report: EvaluationReport) -> str:
    """The evaluated bundle's headline figures."""
    chosen_figures = [("accuracy", "accuracy", QUALITY["accuracy"]), ("nll", "NLL", QUALITY["nll"]),
                      ("ece", "ECE", QUALITY["ece"])]  # fmt: skip
    chosen_figures += [
        (f"ood.predictive_entropy.{name}", f"OOD {told.title} by entropy", told)
        for name, told in DETECTION.items()
        if report.ood and name != "aupr"
    ]
    tiles = [
        f"<div><b>{shown(report.models[0].figures[key], told, interval=False)}</b><span>{title}</span></div>"
        for key, title, told in chosen_figures
    ]
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _quality(report: EvaluationReport) -> str:
    """A row for each model, a column for each figure."""
    best = {name: _best(report, name, told) for name, told in QUALITY.items()}
    rows = [
        f"<td>{escape(model.name)}</td>"
        + "".join(_cell(model.figures.get(name), told, best[name]) for name, told in QUALITY.items())
        for model in report.models
    ]
    note = (
        '<p class="note">Bold: best of its column. Small: 95 % intervals; that of a calibration error may lie above '
        "it, since resampling adds noise to every bin."
        if report.resamples
        else '<p class="note">Bold: best of its column.'
    )
    return _table(["", *(told.title for told in QUALITY.values())], rows) + note + "</p>"


def _differences(report: EvaluationReport) -> str:
    """A row for each competitor, a column for each figure."""
    if len(report.models) < 2:
        return ""
    told = {name: told for name, told in DIFFERENCES.items() if name in report.models[1].differences}
    rows = [
        f"<td>{escape(model.name)}</td>" + "".join(_cell(model.differences[name], told[name], None) for name in told)
        for model in report.models[1:]
    ]
    note = '<p class="note">On the same resamples: an interval without zero is a difference that the data show.</p>'
    note = note if report.resamples else ""
    title = f"{escape(report.models[0].name)} minus the others"
    return _section(title, _table(["", *(each.title for each in told.values())], rows) + note)


def _detection(report: EvaluationReport, prefix: str) -> str:
    """For each score, a row for each model."""
    rows = []
    for score, words in SCORES.items():
        keys = {name: f"{prefix}.{score}.{name}" for name in DETECTION}
        best = {name: _best(report, key, DETECTION[name]) for name, key in keys.items()}
        models = [model for model in report.models if keys["auroc"] in model.figures]
        if models:
            rows.append(f'<td colspan="{len(DETECTION) + 1}">by {words}</td>')
        rows += [
            f"<td>{escape(model.name)}</td>"
            + "".join(_cell(model.figures[keys[name]], told, best[name]) for name, told in DETECTION.items())
            for model in models
        ]
    note = ""
    if any(f"{prefix}.energy.auroc" not in model.figures for model in report.models):
        note = '<p class="note">Energy needs logits, which only the torch backend gives.</p>'
    return _table(["", *(told.title for told in DETECTION.values())], rows) + note


def _best(report: EvaluationReport, key: str, told: Told) -> float | None:
    """The best value among several models."""
    figures = [model.figures.get(key) for model in report.models]
    known = [figure.value for figure in figures if figure is not None and math.isfinite(figure.value)]
    return (max if told.better == "high" else min)(known) if len(known) > 1 else None


def _cell(figure: Figure | None, told: Told, best: float | None) -> str:
    marked = ' class="best"' if figure is not None and best is not None and figure.value == best else ""
    value, interval = shown(figure, told, interval=False), ""
    if figure is not None and math.isfinite(figure.low):
        interval = f"<small>{ranged(figure, told)}</small>"
    return f"<td{marked}>{value}{interval}</td>"


def _facts(report: EvaluationReport, field: str, words: Mapping[str, str]) -> str:
    found = [getattr(model, field) for model in report.models]
    rows = [
        f"<td>{text}</td>"
        + "".join(f"<td>{'–' if each.get(name) is None else f'{each[name]:.4f}'}</td>" for each in found)
        for name, text in words.items()
        if any(each.get(name) is not None for each in found)
    ]
    return _table(["", *(escape(model.name) for model in report.models)], rows)


def _decisions(report: EvaluationReport) -> str:
    if not any(model.decisions for model in report.models):
        text = "<p>No model has thresholds: fit them with <code>hydrant calibrate</code>.</p>"
        return _section("Calibrated decisions", text)
    return _section("Calibrated decisions", _facts(report, "decisions", DECISIONS))


def _corruptions(report: EvaluationReport) -> str:
    if not report.corrupted:
        return ""
    rows = ["<td>clean: NLL</td>" + "".join(f"<td>{model.clean['nll']:.3f}</td>" for model in report.models)]
    rows += [
        f"<td>{row.kind}, severity {row.severity}</td>"
        + "".join(f"<td>{model.noise[index].loss_gap:+.3f}</td>" for model in report.models)
        for index, row in enumerate(report.models[0].noise)
    ]
    note = f'<p class="note">NLL on {report.corrupted} corrupted examples minus that on the same examples clean.</p>'
    return _section("Loss gap", _table(["", *(escape(model.name) for model in report.models)], rows) + note)


def _examples(rows: Sequence[Example]) -> str:
    headers = ["input", "label", "predicted", "confidence", "predictive entropy", "mutual information"]
    cells = []
    for row in rows:
        shown_input = f'<img class="thumb" alt="" src="{row.image}"> ' if row.image else ""
        wrong = row.label is not None and row.label != row.said
        cells.append(
            f"<td>{shown_input}{escape(_cut(row.text))}</td><td>{escape(row.label or '–')}</td>"
            f"<td{' class=wrong' if wrong else ''}>{escape(row.said)}</td><td>{row.confidence:.3f}</td>"
            f"<td>{row.predictive_entropy:.3f}</td><td>{row.mutual_information:.4f}</td>"
        )
    return _table(headers, cells)


def _classes(evidence: Evidence) -> str:
    rows = [
        f"<td>{escape(facts.name)}</td><td>{facts.examples}</td><td>{100 * facts.disagreement:.1f}</td>"
        f"<td>{facts.mutual_information:.4f}</td><td>{facts.accuracy:.3f}</td>"
        for facts in most_disputed(evidence)
    ]
    return _table(["class", "examples", "disagreement (%)", "mutual information", "accuracy"], rows)


def _plot(pictures: Mapping[str, bytes], name: str, below: str = "") -> str:
    if name not in pictures:
        return ""
    source = base64.b64encode(pictures[name]).decode()
    broad = " broad" if name in BROAD else ""  # scrolls on a narrow screen, where it would be too small to read
    picture = f'<img class="plot{broad}" alt="{PLOTS[name]}" src="data:image/png;base64,{source}">'
    return _section(PLOTS[name], f'{picture}<p class="note">{NOTES[name]}</p>{below}')


def _pair(*sections: str) -> str:
    """Sections side by side; one alone takes the whole width."""
    filled = [section for section in sections if section]
    return f'<div class="pair">{"".join(filled)}</div>' if len(filled) > 1 else "".join(filled)


def _section(title: str, body: str) -> str:
    return f'<section><h2>{title}</h2><div class="wide">{body}</div></section>'


def _table(headers: Sequence[str], rows: Sequence[str]) -> str:
    """Rows are the cells of each as HTML; one that spans all columns is a heading."""
    head = "".join(f"<th>{header}</th>" for header in headers)
    body = "".join(f"<tr{' class=group' if row.startswith('<td colspan') else ''}>{row}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cut(text: str, limit: int = 160) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
