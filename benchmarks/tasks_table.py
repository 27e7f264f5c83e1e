"""The results of the study of tasks as Markdown: quality, what finds errors and the unknown, differences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from harness import table
from hydrant.evaluation.metric_names import (
    DETECTION,
    SCORES,
)
from hydrant.evaluation.report import Figure
from hydrant.evaluation.verdict import BETTER, WORSE, outcome
from hydrant.tasks import TASKS, Column
from study_rows import TUNED
from tasks_rows import FIRST, NAMES

TITLES = {
    "tagger": "A tagger: slots of requests",
    "cross-encoder": "A cross-encoder: queries and documents",
    "several labels": "Several labels: domains of requests",
}

QUALITY: dict[str, dict[str, Column]] = {
    "tokens": {name: TASKS["tokens"].columns[name] for name in ("span_f1", "accuracy", "nll", "ece")},
    "score": {
        name: TASKS["score"].columns[name]
        for name in ("mrr", "ndcg", "rmse", "nll", "interval_coverage", "interval_width", "mrr_cautious")
    },
    "multi_label": {
        name: TASKS["multi_label"].columns[name]
        for name in ("exact_match", "macro_f1", "mean_average_precision", "nll", "label_ece")
    },
}
"""Figures of labelled examples, by the kind of task."""

ERRORS: dict[str, dict[str, Column]] = {
    "tokens": {
        "errors.predictive_entropy.auroc": Column("wrong spans by entropy, AUROC", better="high"),
        "errors.mutual_information.auroc": Column("wrong spans by mutual information, AUROC", better="high"),
    },
    "score": {name: told for name, told in TASKS["score"].columns.items() if name.startswith("errors.")},
    "multi_label": {
        "errors.predictive_entropy.auroc": Column("wrong answers by entropy, AUROC", better="high"),
        "errors.mutual_information.auroc": Column("wrong answers by mutual information, AUROC", better="high"),
    },
}
"""How well each score finds what is wrong, by the kind of task."""

JUDGED: dict[str, dict[str, Column]] = {
    "tokens": {name: TASKS["tokens"].columns[name] for name in ("span_f1", "nll", "ece")},
    "score": {name: TASKS["score"].columns[name] for name in ("mrr", "ndcg", "rmse", "nll")},
    "multi_label": {
        name: TASKS["multi_label"].columns[name]
        for name in ("exact_match", "mean_average_precision", "nll", "label_ece")
    },
}
"""Of which differences are told, beside the AUROC of every score."""

DETECTED = {
    f"ood.{score}.auroc": Column(f"unknown by {title}, AUROC", better="high") for score, title in SCORES.items()
}

_NAMED = {
    *(name for told in (*QUALITY.values(), *ERRORS.values(), *JUDGED.values()) for name in told),
    *(f"ood.{score}.{figure}" for score in SCORES for figure in DETECTION),
}


def kept(figures: Mapping[str, Figure]) -> dict[str, dict[str, float | None]]:
    """The figures that a table may show, as JSON."""
    return {
        name: {end: round(value, 6) if math.isfinite(value) else None for end, value in vars(figure).items()}
        for name, figure in figures.items()
        if name in _NAMED
    }


def render(report: Mapping[str, Any]) -> str:
    """All tables of the study, as its JSON file has it."""
    parts = [_ran(report)]
    for task in dict.fromkeys(one["task"] for one in report["measured"]):
        seeds = [one for one in report["measured"] if one["task"] == task]
        parts += [f"### {TITLES[task]}", _about(seeds), *(f"**{title}**\n\n{text}" for title, text in _tables(seeds))]
    return "\n\n".join(parts)


def _ran(report: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in report["versions"].items())
    return f"Trained and tuned on: {report.get('gpu', 'CPU')}; {versions}."


def _about(seeds: Sequence[Mapping[str, Any]]) -> str:
    sizes = seeds[0]["sizes"]
    counts = ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in sizes.items())
    drawn = ", ".join(str(one["seed"]) for one in seeds)
    return f"Examples: {counts}; {seeds[0]['tokens']} tokens in the mean of the test inputs; seeds {drawn}."


def _tables(seeds: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    kind = seeds[0]["kind"]
    return [
        ("Quality, calibrated: means over the seeds; costs ÷ the plain single model's", quality_table(seeds, kind)),
        ("Errors and the unknown: means over the seeds; of the unknown AUROC / FPR95", finding_table(seeds, kind)),
        ("Mean and range over the seeds", spread_table(seeds, kind)),
        (
            f"{FIRST}{TUNED} minus each row: mean difference (seeds whose 95 % interval shows better / worse)",
            difference_table(seeds, kind),
        ),
    ]


def values(seeds: Sequence[Mapping[str, Any]], row: str, figure: str) -> list[float]:
    """A figure of a row from each seed; none where it has no such score."""
    found = [one["rows"][row]["figures"].get(figure, {}).get("value") for one in seeds]
    return [value for value in found if value is not None]


def quality_table(seeds: Sequence[Mapping[str, Any]], kind: str) -> str:
    """Costs and quality of every row."""
    lines = []
    for row in NAMES:
        costs = [np.mean([one["rows"][row]["costs"][name] for one in seeds]) for name in ("operations", "parameters")]
        cells = [_mean(values(seeds, row, name), told) for name, told in QUALITY[kind].items()]
        epochs = [one["rows"][row]["best_epoch"] for one in seeds]
        told = "–" if None in epochs else ", ".join(map(str, epochs))
        lines.append([row, *(f"{cost:.2f}" for cost in costs), *cells, told])
    titles = [told.title for told in QUALITY[kind].values()]
    return table(["", "operations", "parameters", *titles, "epoch kept, each seed"], lines)


def finding_table(seeds: Sequence[Mapping[str, Any]], kind: str) -> str:
    """How well each score finds errors and what is out of distribution, and what the flag says of both."""
    scores = [score for score in SCORES if any(values(seeds, row, f"ood.{score}.auroc") for row in NAMES)]
    lines = []
    for row in NAMES:
        errors = [_mean(values(seeds, row, name), told) for name, told in ERRORS[kind].items()]
        unknown = [
            " / ".join(_mean(values(seeds, row, f"ood.{score}.{name}"), DETECTION[name]) for name in ("auroc", "fpr95"))
            for score in scores
        ]
        lines.append([row, *errors, *(cell.replace("– / –", "–") for cell in unknown), _flags(seeds, row)])
    titles = [told.title for told in ERRORS[kind].values()]
    return table(["", *titles, *(SCORES[score] for score in scores), "flagged: test / unknown"], lines)


def _flags(seeds: Sequence[Mapping[str, Any]], row: str) -> str:
    rates = []
    for name in ("false_positive_rate", "true_positive_rate"):
        found = [one["rows"][row]["decisions"].get(name) for one in seeds]
        rates.append("–" if None in found else f"{100 * np.mean(found):.1f} %")
    return " / ".join(rates)


def spread_table(seeds: Sequence[Mapping[str, Any]], kind: str) -> str:
    """Mean and range of what is judged, of every row."""
    wanted = {**JUDGED[kind], **_detected(seeds)}
    lines = [[row, *(_ranged(values(seeds, row, name), told) for name, told in wanted.items())] for row in NAMES]
    return table(["", *(told.title for told in wanted.values())], lines)


def difference_table(seeds: Sequence[Mapping[str, Any]], kind: str) -> str:
    """The first fork, tuned, minus every other row."""
    wanted = {**JUDGED[kind], **_detected(seeds)}
    lines = []
    for row in NAMES:
        if row != FIRST + TUNED:
            found = [one["rows"][row]["differences"] for one in seeds]
            lines.append(
                [row, *(_difference([each.get(name) for each in found], told) for name, told in wanted.items())]
            )
    return table(["", *(told.title for told in wanted.values())], lines)


def _detected(seeds: Sequence[Mapping[str, Any]]) -> dict[str, Column]:
    return {name: told for name, told in DETECTED.items() if any(values(seeds, row, name) for row in NAMES)}


def _difference(found: Sequence[Mapping[str, float | None] | None], told: Column) -> str:
    known = [each for each in found if each is not None and each["value"] is not None]
    if not known:
        return "–"
    figures = [Figure(**{end: math.nan if value is None else value for end, value in each.items()}) for each in known]
    outcomes = [outcome(figure, told) for figure in figures]
    mean = float(np.mean([figure.value for figure in figures]))
    sign = "+" if mean > 0 else ""
    return f"{sign}{told.number(mean)} ({outcomes.count(BETTER)} / {outcomes.count(WORSE)} of {len(known)})"


def _mean(found: Sequence[float], told: Column) -> str:
    return told.text(float(np.mean(found))) if found else "–"


def _ranged(found: Sequence[float], told: Column) -> str:
    ends = [told.number(value) for value in (min(found), max(found))] if found else []
    return f"{_mean(found, told)} ({ends[0]} to {ends[1]})" if found else "–"
