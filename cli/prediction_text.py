"""Tables of predictions for the terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import short
from ..tasks import LENGTH_DEVIATION
from .terminal import table

Row = Mapping[str, Any]
Column = tuple[str, Callable[[Row], str]]

ASSIGNED = "{label} {probability:.2f}".format_map
UNCERTAINTIES: list[Column] = [
    ("predictive entropy", lambda row: f"{row['predictive_entropy']:.3f}"),
    ("expected entropy", lambda row: f"{row['expected_entropy']:.3f}"),
    ("mutual information", lambda row: f"{row['mutual_information']:.4f}"),
]
DECIDED: list[Column] = [
    ("label", lambda row: short(row["label"], 24)),
    ("confidence", lambda row: f"{row['confidence']:.3f}"),
    *UNCERTAINTIES,
    ("disagreement", lambda row: f"{row['disagreement']:.2f}"),
]
COLUMNS: dict[str, list[Column]] = {
    "score": [
        ("score", lambda row: f"{row['score']:.4g}"),
        ("√variance", lambda row: f"{math.sqrt(row['score_variance']):.3g}"),
        ("interval", lambda row: f"{row['interval_low']:.4g} to {row['interval_high']:.4g}"),
    ],
    "labels": [
        ("labels", lambda row: short(", ".join(map(ASSIGNED, row["labels"])) or "none", 60)),
        *UNCERTAINTIES,
    ],
    "spans": [("span", lambda row: short(row["text"], 30) if "text" in row else "–"), *DECIDED],
    "label": DECIDED,
}

BETWEEN_MEMBERS = {"mutual information", "disagreement", "√variance"}
"""Columns that are zero for one member."""

DECISIONS = {"abstain": "abstain", "out_of_distribution": "out of distribution"}
LENGTH_LIMIT = 3
"""Length deviation beyond which a flagged text is unlike the training data in length, not in content."""


def _decision(row: Row) -> str:
    words, length = [words for key, words in DECISIONS.items() if row.get(key)], row.get(LENGTH_DEVIATION)
    if row.get("out_of_distribution") and length is not None:
        words[-1] += " in length" if abs(length) > LENGTH_LIMIT else " in content"
    return ", ".join(words)


OPTIONAL: dict[str, Column] = {
    "energy": ("energy", lambda row: f"{row['energy']:.2f}"),
    "distance": ("distance", lambda row: f"{row['distance']:.2f}"),
    LENGTH_DEVIATION: ("length", lambda row: f"{row[LENGTH_DEVIATION]:.1f}"),
}


def prediction_text(rows: Sequence[Row], members: int = 2) -> str:
    """Format predictions as a table, followed by the failed inputs with their errors."""
    predicted = [row for row in rows if "error" not in row]
    failed = [": ".join(filter(None, [_input(row["input"]), str(row["error"])])) for row in rows if "error" in row]
    return "\n".join([*([_table(predicted, members)] if predicted else []), *failed])


def _table(rows: Sequence[Row], members: int) -> str:
    kind = next((kind for kind in COLUMNS if any(kind in row for row in rows)), "label")
    lines = _spans(rows) if kind == "spans" else [(_input(row["input"]), row) for row in rows]
    predicted = [row for _, row in lines]
    ranged = any("interval_low" in row for row in predicted)
    omitted = {*([] if ranged else ["interval"]), *(BETWEEN_MEMBERS if members == 1 else [])}
    columns = [column for column in COLUMNS[kind] if column[0] not in omitted]
    columns += [column for name, column in OPTIONAL.items() if any(row.get(name) is not None for row in predicted)]
    if any(row.get(name) is not None for row in predicted for name in DECISIONS):
        columns.append(("decision", _decision))
    no_span = ["–", "no span", *["–"] * (len(columns) - 2)]
    body = [[name, *([cell(row) for _, cell in columns] if row else no_span)] for name, row in lines]
    return table(["input", *(header for header, _ in columns)], body)


def _spans(rows: Sequence[Row]) -> list[tuple[str, Row]]:
    """Return a line for each span, or an empty one for a text without spans."""
    lines = []
    for row in rows:
        text = row["input"] if isinstance(row["input"], str) else " ".join(row["input"])
        lines += [(short(text, 46), span) for span in row["spans"] or [{}]]
    return lines


def _input(item: str | list[str]) -> str:
    return short(item if isinstance(item, str) else " | ".join(short(part, 22) for part in item), 46)
