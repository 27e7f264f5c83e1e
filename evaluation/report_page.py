"""An evaluation as one HTML page that needs nothing beside it."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path

from ..errors import require
from ..version import __version__
from .observation import Evidence
from .report import EvaluationReport
from .report_tables import evaluation_sections

TEMPLATE = Path(__file__).with_name("report.html.j2")

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


def page(report: EvaluationReport, evidence: Evidence | None, pictures: Mapping[str, bytes]) -> str:
    """The page: the verdict, tables, pictures and examples; without evidence, those of the report alone."""
    jinja2 = require("jinja2", "report", "write an evaluation as HTML")
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["prose"] = lambda text: text.replace(" %", "\u00a0%")  # no line begins with a percent sign
    ood = "" if report.ood is None else f" · {report.ood_examples} of {report.ood} (out of distribution)"
    intervals = f" · 95 % intervals from {report.resamples} bootstrap resamples" if report.resamples else ""
    text: str = environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        name=report.models[0].name,
        about=f"{report.examples} examples of {report.data}{ood}{intervals} · seed {report.seed}",
        version=__version__,
        warnings=report.notes,
        sections=evaluation_sections(report, evidence, pictures),
        captions=CAPTIONS,
        pictures={name: base64.b64encode(png).decode() for name, png in pictures.items()},
    )
    return text
