"""Classes of one name, and data that an earlier step has learnt or calibrated from."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import transformers
from hydrant import Bundle, calibrate, evaluate, fuse, load, save_bundle
from hydrant.data.examples import read_examples
from hydrant.errors import InputError
from support import make_model, make_tokenizer

NAMES = ["red", "green", "blue", "black", "white"]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A random model, whose own answers the tests take for right labels."""
    folder = tmp_path_factory.mktemp("order")
    model = make_model("bert", id2label=dict(enumerate(NAMES)), label2id={name: i for i, name in enumerate(NAMES)})
    return save_bundle(fuse(model), folder / "b", make_tokenizer(folder / "source"))


@pytest.fixture(scope="module")
def answered(bundle: Bundle) -> tuple[list[str], list[int]]:
    """Texts and the model's labels."""
    rng = np.random.default_rng(0)
    words = ["hello", "world", "transfer", "money", "weather", "today", "what", "is", "the"]
    texts = sorted({" ".join(rng.choice(words, rng.integers(1, 9))) for _ in range(150)})
    with load(bundle.path, backend="torch") as predictor:
        return texts, predictor.predict(texts).label.tolist()


def test_classes_of_one_name_are_told_apart_by_their_index(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    names = ["crane", "heron", "crane", "maillot", "stork"]
    model = make_model("vit", id2label=dict(enumerate(names)))
    with caplog.at_level(logging.WARNING):
        bundle = save_bundle(
            fuse(model), tmp_path / "b", transformers.ViTImageProcessorPil(size={"height": 12, "width": 12})
        )
    assert bundle.labels == ["crane (0)", "heron", "crane (2)", "maillot", "stork"]
    assert "crane (2)" in caplog.text
    assert np.asarray(read_examples((["a", "b"], [2, 0]), bundle.labels).labels).tolist() == [2, 0]
    with pytest.raises(InputError, match=r"crane \(2\)"):
        read_examples((["a"], ["crane"]), bundle.labels)


def test_data_that_taught_or_calibrated_are_refused(
    bundle: Bundle, answered: tuple[list[str], list[int]], tmp_path: Path, undrawn: None
) -> None:
    texts, labels = answered
    before = (bundle.path / "calibration.json").read_bytes()
    with pytest.raises(InputError, match="--force"):
        calibrate(bundle, (texts, labels), fit=(texts, labels))
    assert (bundle.path / "calibration.json").read_bytes() == before
    half = len(texts) // 2
    calibrate(bundle, (texts[:half], labels[:half]), fit=(texts[half:], labels[half:]))
    with pytest.raises(InputError, match="calibrated on"):
        evaluate(bundle, (texts[:half], labels[:half]), report=tmp_path / "r")
    evaluate(bundle, (texts[:half], labels[:half]), report=tmp_path / "r", force=True)
    evaluate(bundle, (texts[half:], labels[half:]), report=tmp_path / "r")
