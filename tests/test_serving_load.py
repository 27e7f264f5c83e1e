"""The program that asks with many clients at once: a small run of it, and that it would see what is wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import serving_load
from serving_load import FRONTS, OUTPUTS, SCORES, difference, load, tiny_models


def test_every_answer_is_right_whatever_goes_on_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for share in ("LEAVES", "NONSENSE"):
        monkeypatch.setattr(serving_load, share, 0.03)
    report = load(tiny_models(tmp_path), 800, clients=32, swap=100, queue=8)
    assert report.wrong == []
    assert report.answers.total() >= 800 and set(report.answers) == set(FRONTS)
    assert set(report.versions) == {"1", "2"} and report.counts["swaps of versions"] > 1
    assert all(report.counts[name] > 0 for name in ("clients that left", "nonsense refused", "asked again after 503"))


def test_what_differs_is_seen() -> None:
    expected = {name: np.array([0.25, 8.0]) for name in SCORES} | {"probabilities": np.array([[0.5, 0.5], [0.9, 0.1]])}
    expected["label_index"] = np.array([1, 0])
    told = {name: expected[name][[1, 0]] for name in OUTPUTS}
    assert difference(told, expected, [1, 0]) == 0
    assert difference({**told, "energy": np.array([8.0, 0.35])}, expected, [1, 0]) > 0.09
    assert np.isclose(difference({**told, "energy": np.array([8.8, 0.25])}, expected, [1, 0]), 0.1)  # relative beyond 1
    assert difference({**told, "label_index": np.array([1, 0])}, expected, [1, 0]) == np.inf
