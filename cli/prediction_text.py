"""Predictions as tables on the terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import short
from .terminal import table


def prediction_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """What was predicted of each input, and how sure that is; below them those that failed, with the reason."""
    tables = {"spans": _span_table, "score": _score_table, "labels": _label_table}
    made = next((made for name, made in tables.items() if any(name in row for row in rows)), _class_table)
    shown = made(rows)
    failed = [_failed(row) for row in rows if "error" in row]
    return "\n".join([*([shown] if len(failed) < len(rows) else []), *failed])


def _failed(row: Mapping[str, Any]) -> str:
    """Why an input has no prediction; an empty text has no words before that."""
    named = short(_text(row["input"]), 46)
    return f"{named}: {row['error']}" if named else str(row["error"])


def _score_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Score and deviation of the members, and where calibrated the interval and the decisions."""
    found = [row for row in rows if "error" not in row]
    interval, far = (any(name in row for row in found) for name in ("interval_low", "distance"))
    decides = any(row.get("abstain") is not None or row.get("out_of_distribution") is not None for row in found)
    headers = ["input", "score", "√variance", *(["interval"] if interval else []), *(["distance"] if far else [])]
    body = [
        [
            short(_text(row["input"]), 46),
            f"{row['score']:.4g}",
            f"{math.sqrt(row['score_variance']):.3g}",
            *([f"{row['interval_low']:.4g} to {row['interval_high']:.4g}"] if interval else []),
            *([f"{row['distance']:.2f}"] if far else []),
            *([_decision(row)] if decides else []),
        ]
        for row in found
    ]
    return table([*headers, *(["decision"] if decides else [])], body)


def _span_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The spans of each text, the least sure word's figures for each; a text without spans has a line of its own."""
    found = [row for row in rows if "error" not in row]
    decides = any(
        span["abstain"] is not None or span["out_of_distribution"] is not None for row in found for span in row["spans"]
    )
    far = any("distance" in span for row in found for span in row["spans"])
    body = []
    for row in found:
        text = short(_words(row["input"]), 46)
        body += [
            [
                text,
                short(span["text"], 30),
                short(span["label"], 24),
                f"{span['confidence']:.3f}",
                f"{span['predictive_entropy']:.3f}",
                f"{span['expected_entropy']:.3f}",
                f"{span['mutual_information']:.4f}",
                f"{span['disagreement']:.2f}",
                *([f"{span['distance']:.2f}"] if far else []),
                *([_decision(span)] if decides else []),
            ]
            for span in row["spans"]
        ] or [[text, "–", "no span", *["–"] * (5 + far), *([""] if decides else [])]]
    headers = ["input", "span", "label", "confidence", "predictive entropy", "expected entropy", "mutual information"]
    return table([*headers, "disagreement", *(["distance"] if far else []), *(["decision"] if decides else [])], body)


def _words(item: str | list[str]) -> str:
    """A text, or its words joined."""
    return item if isinstance(item, str) else " ".join(item)


def _label_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The labels that apply, each with its probability, and the uncertainties of each input."""
    found = [row for row in rows if "error" not in row]
    far = any("distance" in row for row in found)
    decides = any(row.get("abstain") is not None or row.get("out_of_distribution") is not None for row in found)
    headers = ["input", "labels", "predictive entropy", "expected entropy", "mutual information"]
    headers += [*(["distance"] if far else []), *(["decision"] if decides else [])]
    body = [
        [
            short(_text(row["input"]), 46),
            short(", ".join(f"{each['label']} {each['probability']:.2f}" for each in row["labels"]) or "none", 60),
            f"{row['predictive_entropy']:.3f}",
            f"{row['expected_entropy']:.3f}",
            f"{row['mutual_information']:.4f}",
            *([f"{row['distance']:.2f}"] if far else []),
            *([_decision(row)] if decides else []),
        ]
        for row in found
    ]
    return table(headers, body)


def _class_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Label, confidence and the uncertainties of each input."""
    headers = [
        "input",
        "label",
        "confidence",
        "predictive entropy",
        "expected entropy",
        "mutual information",
        "disagreement",
    ]
    far = any("distance" in row for row in rows)
    headers += ["distance"] if far else []
    decides = any(row.get("abstain") is not None or row.get("out_of_distribution") is not None for row in rows)
    if decides:
        headers.append("decision")
    return table(headers, [_cells(row, far, decides) for row in rows if "error" not in row])


def _cells(row: Mapping[str, Any], far: bool, decides: bool) -> list[str]:
    return [
        short(_text(row["input"]), 46),
        short(row["label"], 24),
        f"{row['confidence']:.3f}",
        f"{row['predictive_entropy']:.3f}",
        f"{row['expected_entropy']:.3f}",
        f"{row['mutual_information']:.4f}",
        f"{row['disagreement']:.2f}",
        *([f"{row['distance']:.2f}"] if far else []),
        *([_decision(row)] if decides else []),
    ]


def _text(item: str | list[str]) -> str:
    return item if isinstance(item, str) else " | ".join(short(part, 22) for part in item)


def _decision(row: Mapping[str, Any]) -> str:
    words = {"abstain": "abstain", "out_of_distribution": "out of distribution"}
    return ", ".join(text for key, text in words.items() if row.get(key))
