"""The census of classifiers: its page, and detection of a wrong graph."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import pytest
from token_support import make_tagger

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import census


def test_the_page_counts_what_it_lists_and_nothing_is_silently_wrong() -> None:
    page = census.PAGE.read_text(encoding="utf-8")
    kinds = census.read(page, "")
    table = census.table(kinds, {kind: {} for kind in census.KINDS})
    assert set(table.splitlines()) <= set(page.splitlines())
    passes = {kind: sum(cells[0] == "passes" for cells in rows.values()) for kind, rows in kinds.items()}
    assert passes["text"] >= 75
    assert passes["tokens"] >= 40
    assert passes["image"] >= 12
    results = {cells[0].partition(":")[0] for rows in kinds.values() for cells in rows.values()}
    assert results <= {"passes", "refused", "not built", "late"}


def test_tags_are_compared_with_the_original_without_these_heads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_tagger(num_hidden_layers=1)
    row = census.through(model, tmp_path / "right")
    assert (row["result"], row["form"], row["distance"]) == ("passes", "sliced", True)
    graph = tmp_path / "right" / "model.fp32.onnx"
    monkeypatch.setattr(census.hydrant, "export_onnx", lambda *_, **__: graph)  # the same again
    monkeypatch.setattr(census, "without", lambda original, *_: copy.deepcopy(original))
    row = census.through(model, tmp_path / "wrong")
    assert row["result"] == "WRONG"
    assert row["difference"] > 1e-3
