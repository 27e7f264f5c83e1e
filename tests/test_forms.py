"""Pairs given to a bundle of single texts, and single texts to one of pairs: recorded, and said at every step."""

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hydrant
import pytest
from hydrant import Bundle, Figures, Reading
from hydrant.bundle.data_overlap import form_used
from hydrant.models.checkpoint import load_processor

PAIRS = Reading(text_pair="other")
WORDS = ["hello", "world", "transfer", "money", "weather", "today", "what", "is", "the"]


def write_table(path: Path, count: int) -> Path:
    """Labelled rows that can be read as single texts and as pairs."""
    rows = [f"{WORDS[i % 9]} {WORDS[i % 7]} {i},{WORDS[i % 5]} money,{'abcde'[i % 5]}" for i in range(count)]
    path.write_text("\n".join(["text,other,label", *rows]) + "\n")
    return path


@pytest.fixture(scope="module")
def bundles(bert_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """Of one checkpoint: planned on single texts, and planned on pairs."""
    folder = tmp_path_factory.mktemp("forms")
    table = write_table(folder / "planned.csv", 40)
    made = {False: folder / "single", True: folder / "pairs"}
    for pairs, path in made.items():
        plan = hydrant.plan_heads(bert_checkpoint, table, keep=2, reading=PAIRS if pairs else Reading())
        hydrant.save_bundle(hydrant.fuse(bert_checkpoint, plan), path, load_processor(bert_checkpoint, "text"))
        hydrant.export_onnx(path)
    return made


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[Any]:
    """What was warned of, by a call."""
    caplog.set_level(logging.WARNING)
    yield lambda: [record.getMessage() for record in caplog.records if ", and the bundle was" in record.getMessage()]


@pytest.mark.parametrize("pairs", [False, True])
def test_a_predictor_says_so_once(pairs: bool, bundles: dict[bool, Path], said: Any) -> None:
    fitting: list[Any] = [("hello world", "money"), ("the", "weather")] if pairs else ["hello world", "the"]
    other: list[Any] = ["hello"] if pairs else [("hello", "money")]
    with hydrant.load(bundles[pairs]) as predictor:
        predictor.predict(fitting)
        assert said() == []
        assert len(predictor.predict([*fitting, *other])) == 3, "they are answered"
        predictor.predict(other)
    (message,) = said()
    what = ("pairs of texts", "single texts")
    assert f"{what[pairs]} (first: input 2), and the bundle was planned on {what[not pairs]}" in message


@pytest.mark.usefixtures("undrawn")
def test_later_steps_say_so(bundles: dict[bool, Path], tmp_path: Path, said: Any) -> None:
    table = write_table(tmp_path / "other.csv", 45)
    single = Path(shutil.copytree(bundles[False], tmp_path / "single"))
    (note,) = hydrant.calibrate(single, table, reading=PAIRS, seed=1).notes
    assert "these are pairs of texts, and the bundle was planned on single texts (planned.csv)" in note
    assert said() == [note]
    assert form_used(Bundle.open(single)) is None, "both are recorded now"
    notes = hydrant.evaluate(bundles[True], table, figures=Figures(bootstrap=0)).notes
    assert any("these are single texts, and the bundle was planned on pairs of texts" in each for each in notes)
