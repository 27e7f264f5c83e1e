"""A small run of the load test with many concurrent clients."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import serving_load
from serving_load import FRONTS, load, tiny_models


def test_every_answer_is_right_during_swaps_and_disconnects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for share in ("LEAVES", "NONSENSE"):
        monkeypatch.setattr(serving_load, share, 0.03)
    report = load(tiny_models(tmp_path), 800, clients=32, swap=100, queue=8)
    assert report.wrong == []
    assert report.answers.total() >= 800 and set(report.answers) == set(FRONTS)
    assert set(report.versions) == {"1", "2"} and report.counts["swaps of versions"] > 1
    assert all(report.counts[name] > 0 for name in ("clients that left", "nonsense refused", "asked again after 503"))
