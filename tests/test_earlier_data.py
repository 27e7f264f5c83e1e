"""Data that an earlier step has learnt or calibrated from are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydrant import calibrate, evaluate, fuse, save_bundle
from hydrant.errors import InputError
from support import make_model, make_tokenizer


def test_data_that_taught_or_calibrated_are_refused(tmp_path: Path, undrawn: None) -> None:
    bundle = save_bundle(fuse(make_model("bert")), tmp_path / "bundle", make_tokenizer(tmp_path / "source"))
    words = ["hello", "world", "transfer", "money", "weather", "today", "what"]
    texts = [f"{first} {second}" for first in words for second in words]
    data = texts[:24], [index % 5 for index in range(24)]
    other = texts[24:48], data[1]
    before = (bundle.path / "calibration.json").read_bytes()
    with pytest.raises(InputError, match="--force"):
        calibrate(bundle, data, fit=data)
    assert (bundle.path / "calibration.json").read_bytes() == before
    calibrate(bundle, data, fit=other)
    with pytest.raises(InputError, match="calibrated on"):
        evaluate(bundle, data, report=tmp_path / "report")
    evaluate(bundle, data, report=tmp_path / "report", force=True)
    evaluate(bundle, other, report=tmp_path / "report")
