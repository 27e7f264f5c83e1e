"""Data that an earlier step has seen: what is recorded of them, and what calibrate and evaluate say."""

import json
import logging
import shutil
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hydrant import Bundle, Figures, Jointly, calibrate, evaluate, fuse, plan_heads, save_bundle, tune
from hydrant.data.fingerprints import LOWEST, Fingerprint, fingerprint_of
from hydrant.errors import InputError
from hydrant.models.checkpoint import load_processor
from PIL import Image
from test_calibrate import write_texts
from test_tune import sentences


def recorded(inputs: list[str]) -> Fingerprint:
    """What a file keeps of texts."""
    fingerprint = fingerprint_of(inputs, "text")
    again = Fingerprint.from_json(json.loads(json.dumps(fingerprint.to_json())))
    assert again is not None
    return again


def share(inputs: list[str], earlier: Fingerprint) -> float:
    return fingerprint_of(inputs, "text").share_in(earlier)


def test_shares_of_few_examples_are_exact() -> None:
    texts = ["Über den Wolken", "a  b", "c"]
    other = ["c", "a b", unicodedata.normalize("NFD", "Über den Wolken"), " c "]
    assert fingerprint_of(texts, "text") == fingerprint_of(other, "text"), "order, repetition and spacing do not count"
    assert fingerprint_of(texts, "text") != fingerprint_of(["über den wolken", "a b", "c"], "text")
    earlier = recorded([f"text {index}" for index in range(100)])
    assert share([f"text {index}" for index in range(75, 175)], earlier) == 0.25
    assert share(["text 5"], earlier) == 1.0
    assert share(["another"], earlier) == 0.0


def test_shares_of_many_examples_are_estimated_from_a_bounded_record() -> None:
    many = recorded([f"text {index}" for index in range(40_000)])
    assert (len(many.hashes), many.complete) == (LOWEST, False)
    assert len(json.dumps(many.to_json())) < 40_000, "bytes in the manifest"
    assert share([f"text {index}" for index in range(3000)], many) == 1.0
    half = share([f"text {index}" for index in range(38_000, 42_000)], many)
    assert 0.38 < half < 0.62
    assert share([f"other {index}" for index in range(3000)], many) == 0.0


def test_records_of_two_uses_join() -> None:
    first, second = ([f"{name} {index}" for index in range(9000)] for name in ("a", "b"))
    both = recorded(first) | recorded(second)
    assert not both.complete
    assert share(first, both) == share(second, both) == 1.0
    assert share(["c 1", "x"], recorded(["x"]) | recorded(["y"])) == 0.5


def test_images_are_known_by_their_content(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3), np.uint8)
    for name in ("a.png", "b.png"):
        Image.fromarray(pixels[0]).save(tmp_path / name)
    assert fingerprint_of([tmp_path / "a.png"], "image") == fingerprint_of([str(tmp_path / "b.png")], "image")
    assert fingerprint_of(list(pixels), "image") == fingerprint_of([Image.fromarray(each) for each in pixels], "image")
    assert fingerprint_of(list(pixels), "image") != fingerprint_of(list(255 - pixels), "image")


@pytest.fixture
def bundle(text_bundle: Path, tmp_path: Path, undrawn: None) -> Path:
    return Path(shutil.copytree(text_bundle, tmp_path / "bundle"))


def test_calibrating_and_evaluating_name_both_uses(
    bert_checkpoint: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, undrawn: None
) -> None:
    file, copy = write_texts(tmp_path / "planned.csv", 60, 0), tmp_path / "copy.csv"
    plan = plan_heads(bert_checkpoint, file, members=2, keep=2)
    header, *rows = file.read_text().splitlines()
    copy.write_text("\n".join([header, *reversed(rows)]) + "\n")
    save_bundle(fuse(bert_checkpoint, plan), tmp_path / "bundle", load_processor(bert_checkpoint, "text"))
    with caplog.at_level(logging.WARNING):
        report = calibrate(tmp_path / "bundle", copy)
    (note,) = report.notes
    assert note.startswith(
        "calibrating bundle on copy.csv: 100% of its 60 examples are among those that the bundle was planned on "
        "(planned.csv)"
    )
    assert note in caplog.text
    assert report.to_json()["notes"] == [note]
    assert calibrate(tmp_path / "bundle", copy).notes == [note], "a calibration does not count when it is replaced"
    page, figures = tmp_path / "page.html", Figures(bootstrap=0)
    evaluation = evaluate(tmp_path / "bundle", copy, figures=figures, force=True, html=page)
    assert "planned on (planned.csv)" in evaluation.notes[0]
    assert "calibrated on (copy.csv)" in evaluation.notes[1]
    assert evaluation.notes[0] in page.read_text()
    assert Bundle.open(tmp_path / "bundle").read_json("reports/evaluation.json")["notes"] == evaluation.notes


def test_tuning_is_remembered(bundle: Path) -> None:
    first, second, judge = sentences(40, 0), sentences(40, 1), sentences(30, 2)
    for data in (first, second):
        assert tune(bundle, data, validation=judge, how=Jointly(epochs=1, learning_rate=1e-3, device="cpu")).improved
    for data in (first, second):
        notes = evaluate(bundle, data, figures=Figures(bootstrap=0), force=True).notes
        assert any("100% of its 40 examples" in note and "tuned on (given in memory)" in note for note in notes)
    assert any("validated on during tuning" in note for note in calibrate(bundle, judge).notes)


def test_what_the_distance_was_fitted_on_is_remembered(bundle: Path) -> None:
    training, (texts, labels) = sentences(40, 0), sentences(40, 1)
    judge = [f"{text} {text}" for text in texts], labels  # none of them the same
    report = calibrate(bundle, judge, fit=training)
    assert report.notes == []
    (note,) = calibrate(bundle, training).notes
    assert "100% of its 40 examples are among those that its distance was fitted on (given in" in note
    assert any("its distance was fitted on" in note for note in evaluate(bundle, training, force=True).notes)
    assert calibrate(bundle, training, fit=judge).notes == [], "an earlier distance does not count when it is replaced"
    assert calibrate(bundle, training).notes == []
    (note,) = calibrate(bundle, judge, fit=judge, force=True).notes
    assert "on which the distance is fitted" in note


def test_other_data_and_older_bundles_pass_without_a_word(bundle: Path) -> None:
    texts = ([f"hello money {index}" for index in range(20)], list("abcde" * 4))
    others = ([f"what weather {index}" for index in range(20)], list("abcde" * 4))
    assert calibrate(bundle, texts).notes == []
    assert evaluate(bundle, others, figures=Figures(bootstrap=0)).notes == []
    assert evaluate(bundle, texts, figures=Figures(bootstrap=0), force=True).notes != []
    old = Bundle.open(bundle)
    calibration = old.calibration()
    del calibration["fitted"]["fingerprints"]
    old.add({"calibration.json": json.dumps(calibration).encode()})
    assert evaluate(bundle, texts, figures=Figures(bootstrap=0)).notes == []


def test_data_that_taught_or_calibrated_are_refused(bundle: Path, tmp_path: Path) -> None:
    words = ["hello", "world", "transfer", "money", "weather", "today", "what"]
    texts = [f"{first} {second}" for first in words for second in words]
    data = texts[:24], [index % 5 for index in range(24)]
    other = texts[24:48], data[1]
    before = (bundle / "calibration.json").read_bytes()
    with pytest.raises(InputError, match="--force"):
        calibrate(bundle, data, fit=data)
    assert (bundle / "calibration.json").read_bytes() == before
    calibrate(bundle, data, fit=other)
    with pytest.raises(InputError, match="calibrated on"):
        evaluate(bundle, data, report=tmp_path / "report")
    evaluate(bundle, data, report=tmp_path / "report", force=True)
    evaluate(bundle, other, report=tmp_path / "report")
