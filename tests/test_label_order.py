"""Labels as people have them: in another order, another spelling, several classes of one name, splits in one folder."""

from __future__ import annotations

import logging
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import transformers
from hydrant import Bundle, calibrate, evaluate, fuse, load, save_bundle
from hydrant.data.examples import read_examples
from hydrant.errors import InputError
from hydrant.metrics.label_order import other_order
from PIL import Image
from support import make_model, make_tokenizer

NAMES = ["red", "green", "blue", "black", "white"]


def dataset(texts: Sequence[str], labels: Sequence[int], names: Sequence[str]) -> Any:
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=list(names))})
    return datasets.Dataset.from_dict({"text": list(texts), "label": list(labels)}, features=features)


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


OTHER = [NAMES[index] for index in (2, 0, 4, 1, 3)]


def in_other_order(labels: Sequence[int]) -> list[int]:
    return [OTHER.index(NAMES[label]) for label in labels]


@pytest.mark.parametrize("form", [None, "numpy", "torch", "pandas", "arrow"])
def test_every_format_of_datasets_is_read_with_its_names(
    form: str | None, bundle: Bundle, answered: tuple[list[str], list[int]], tmp_path: Path, undrawn: None
) -> None:
    texts, labels = answered
    data = dataset(texts, in_other_order(labels), OTHER).with_format(form)
    expected = [data.features["label"].int2str(index) for index in in_other_order(labels)]
    read = read_examples(data, NAMES)
    assert [NAMES[index] for index in np.asarray(read.labels)] == expected
    assert list(read.inputs) == texts
    report = evaluate(bundle, data, report=tmp_path / "r")
    assert report.models[0].figures["accuracy"].value == 1
    stream = data.to_iterable_dataset() if form is None else data.to_iterable_dataset().with_format(form)
    assert [NAMES[index] for index in np.asarray(read_examples(stream, NAMES).labels)] == expected


def test_a_column_of_datasets_leads_back_to_its_names(bundle: Bundle, answered: tuple[list[str], list[int]]) -> None:
    texts, labels = answered
    data = dataset(texts, in_other_order(labels), OTHER)
    assert np.asarray(read_examples((data["text"], data["label"]), NAMES).labels).tolist() == labels
    unnamed = [f"LABEL_{index}" for index in range(5)]  # by index alone
    assert np.asarray(read_examples((data["text"], data["label"]), unnamed).labels).tolist() == in_other_order(labels)


def test_integers_in_another_order_are_warned_of(
    bundle: Bundle,
    answered: tuple[list[str], list[int]],
    tmp_path: Path,
    undrawn: None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    texts, labels = answered
    shifted = [(label + 1) % 5 for label in labels]
    with caplog.at_level(logging.WARNING):
        report = evaluate(bundle, (texts, shifted), report=tmp_path / "r")
    assert any("order" in note for note in report.notes)
    assert any("order" in note for note in calibrate(bundle, (texts, shifted)).notes)
    assert caplog.text.count("another order of the classes") == 2


def test_chance_is_no_other_order() -> None:
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 4, 400)
    assert other_order((labels + 1) % 4, labels, 4)
    for seed in range(50):
        guessed = np.random.default_rng(seed).integers(0, 4, 400)
        assert not other_order(guessed, labels, 4)
    assert not other_order(labels, labels, 4)
    assert not other_order(np.zeros(400, int), (labels > 0) * labels + (labels == 0), 4)  # one answer to everything


def test_spelling_alone_makes_no_other_class(caplog: pytest.LogCaptureFixture) -> None:
    labels = ["neg", "pos", "Café"]
    given = ["Neg ", "POS", unicodedata.normalize("NFD", "café")]
    with caplog.at_level(logging.WARNING):
        found = read_examples((["a", "b", "c"], given), labels)
    assert np.asarray(found.labels).tolist() == [0, 1, 2]
    assert "'Neg '" in caplog.text
    with pytest.raises(InputError, match="'NEG'"):  # which of the two?
        read_examples((["a"], ["NEG"]), ["neg", "Neg"])
    with pytest.raises(InputError, match="'negative'") as caught:
        read_examples((["a"], ["negativ"]), ["negative", "positive"])
    assert "out-of-distribution" not in str(caught.value)


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


def test_splits_are_not_read_as_one_and_hidden_files_not_at_all(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for name in ("apple", "pear"):
            (tmp_path / "data" / split / name).mkdir(parents=True)
            Image.new("RGB", (4, 4)).save(tmp_path / "data" / split / name / "0.png")
    with pytest.raises(InputError, match="test, train"):
        read_examples(tmp_path / "data", ["apple", "pear"])
    for hidden in (".thumbnails/0.png", "apple/.0.png"):
        (tmp_path / "data/train" / hidden).parent.mkdir(exist_ok=True)
        Image.new("RGB", (4, 4)).save(tmp_path / "data/train" / hidden)
    found = read_examples(tmp_path / "data" / "train", ["apple", "pear"])
    assert np.asarray(found.labels).tolist() == [0, 1]


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
