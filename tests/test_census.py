"""The census of classifiers: its page, and detection of a wrong graph."""

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
    for kind, least in (("text", (70, 60)), ("image", (12, 10))):
        fp16, int8, *_ = zip(*map(census.accepted, kinds[kind].values()), strict=True)
        assert (sum(fp16) >= least[0], sum(int8) >= least[1]) == (True, True)
    listed = [cells for rows in kinds.values() for cells in rows.values()]
    assert {cells[0].partition(":")[0] for cells in listed} <= {"passes", "refused", "not built", "late"}
    assert not [cell for cells in listed for cell in cells[1:] if cell.startswith(("WRONG", "FAULT"))]


def test_failures_and_small_shares_are_not_counted() -> None:
    assert census.accepted(["passes", "4e-04", "2e-03, 80 %", "0/2: too narrow", "images"]) == [True] * 4
    assert census.accepted(["passes", "no: GateError", "2e-03, 79 %", "no: it has loops", "pixels"]) == [False] * 4
    assert census.accepted(["passes", "WRONG: 4e-01", "WRONG: 4e-01, 99 %", "not run", "no"]) == [False] * 4


@pytest.mark.usefixtures("network_once")
def test_tags_are_compared_with_the_original_without_these_heads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_tagger(num_hidden_layers=1)
    row = census.through(model, tmp_path / "right")
    assert (row["result"], row["form"], row["distance"]) == ("passes", "sliced", True)
    fp16, int8, rtx, _ = census.accepted([*map(row.get, ("fp16", "int8", "rtx")), "ids"])
    assert (fp16, int8, rtx) == (True, True, False)  # engines do not classify tokens
    graph = tmp_path / "right" / "model.fp32.onnx"
    monkeypatch.setattr(census.hydrant, "export_onnx", lambda *_, **__: graph)  # the same again
    monkeypatch.setattr(census, "without", lambda original, *_: copy.deepcopy(original))
    row = census.through(model, tmp_path / "wrong")
    assert row["result"] == "WRONG"
    assert row["difference"] > 1e-3
    monkeypatch.setattr(census, "LARGEST_DIFFERENCE", 1.0)
    row = census.through(model, tmp_path / "wrong in all precisions")
    assert row["fp16"].startswith("WRONG")
