"""A file of logged inputs worth labelling: a random share, the most unlike the training data, the most uncertain."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterable, Mapping
from contextlib import suppress
from heapq import nlargest
from pathlib import Path
from typing import Any

from ..bundle.store import Bundle
from ..errors import InputError, check_whole
from ..runtime.offline.row_files import check_form, filed

SCORES = {"unlike": ("distance", "energy"), "uncertain": ("predictive_entropy", "score_variance")}
"""Reason → scores that rank the inputs, the highest first; the first one that the log has."""


class LabelSample:
    """Chooses inputs of a log in one pass, and writes them with an empty column ``label``."""

    def __init__(self, bundle: Bundle, path: str | Path, rows: int, seed: int = 0) -> None:
        architecture = bundle.any_architecture()
        if architecture.task == "tokens":
            raise InputError("a file to label has one label for each input, but this model tags words; omit to_label")
        check_whole("label_rows", rows, 4, what="a number of inputs")
        check_form(Path(path))
        self._path, self._modality, self._draw = Path(path), architecture.modality, random.Random(seed)  # noqa: S311
        self._most = {"random": rows - rows // 4 * 2, "unlike": rows // 4, "uncertain": rows // 4}
        self._chosen: dict[str, dict[Any, tuple[float, Any]]] = {why: {} for why in self._most}
        self._seen = 0

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Consider further rows; those of failed inputs are skipped."""
        for row in rows:
            self._seen += 1
            value = row.get("input")
            if not value or row.get("error") is not None:
                continue
            if self._modality != "text" and not (isinstance(value, str) and os.path.exists(value)):  # noqa: PTH110
                continue  # such as "image 0" of a service
            for why, chosen in self._chosen.items():
                key = self._seen if why == "random" else json.dumps(row["input"])  # frequent inputs count as often
                if (rank := self._rank(why, row)) is not None:
                    chosen[key] = rank, row
        for why, chosen in self._chosen.items():
            most = self._most[why] if why == "random" else sum(self._most.values())  # some are drawn at random, too
            self._chosen[why] = dict(nlargest(most, chosen.items(), key=lambda each: each[1][0]))

    def write(self) -> int:
        """Write the file, and return the number of inputs; those drawn at random are not repeated for other reasons."""
        written: set[str] = set()
        rows = []
        for why, chosen in self._chosen.items():
            new = [row for _, row in chosen.values() if why == "random" or json.dumps(row["input"]) not in written]
            new = new[: self._most[why]]
            written |= {json.dumps(row["input"]) for row in new}
            rows += [self._row(row, why) for row in new]
        if not rows:
            raise InputError("the log has no inputs to label; expected rows with the key input: a text, or a file here")
        with filed(self._path, rows[0]) as table:
            table.write(rows)
        return len(rows)

    def _rank(self, why: str, row: Mapping[str, Any]) -> float | None:
        if why == "random":
            return self._draw.random()
        return next((float(row[name]) for name in SCORES[why] if row.get(name) is not None), None)

    def _row(self, row: Mapping[str, Any], why: str) -> dict[str, Any]:
        value, name = row["input"], self._modality
        pair = value
        if isinstance(value, str) and value.startswith('["'):  # a pair in a table, or a text
            with suppress(ValueError, RecursionError):
                pair = json.loads(value)
        if isinstance(pair, list) and len(pair) == 2:
            inputs = {"text": pair[0], "text_pair": pair[1]}
        else:
            inputs = {name: value if name == "text" else str(Path(value).resolve())}
        predicted = row.get("label", row.get("labels", row.get("score")))
        return {**inputs, "label": None, "why": why, "predicted": predicted, "index": row.get("index")}
