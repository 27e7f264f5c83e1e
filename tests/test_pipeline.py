"""``hydrant.pipeline`` compared with transformers' pipelines on the same checkpoints."""

import io
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import hydrant
import numpy as np
import pandas
import pytest
import torch
import transformers
from hydrant.errors import InputError
from hydrant.models.checkpoint import load_processor
from PIL import Image
from support import make_model, make_tokenizer
from transformers.pipelines.pt_utils import KeyDataset

TEXTS = ["hello world", "transfer money today what is the weather", "the", "money " * 60]
PAIR = {"text": "hello world", "text_pair": "transfer money"}
BEYOND = {"predictive_entropy", "expected_entropy", "mutual_information", "disagreement", "energy"}


def bundle_of(checkpoint: Path, kind: str, folder: Path, members: int = 1) -> Path:
    """An exported bundle with all heads of the checkpoint."""
    ensemble = hydrant.fuse(checkpoint, members=members)
    hydrant.save_bundle(ensemble, folder, load_processor(checkpoint, kind))
    hydrant.export_onnx(folder)
    return folder


@pytest.fixture(scope="module")
def text(bert_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Any]]:
    """Transformers' and hydrant's text pipelines."""
    theirs = transformers.pipeline("text-classification", str(bert_checkpoint), device="cpu", truncation=True)
    with hydrant.pipeline(bundle_of(bert_checkpoint, "text", tmp_path_factory.mktemp("text") / "out")) as ours:
        yield theirs, ours


@pytest.fixture(scope="module")
def image(vit_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Any]]:
    """Transformers' and hydrant's image pipelines."""
    processor = transformers.ViTImageProcessorPil.from_pretrained(vit_checkpoint)
    model = transformers.ViTForImageClassification.from_pretrained(vit_checkpoint).eval()
    theirs = transformers.pipeline("image-classification", model, image_processor=processor, device="cpu")
    with hydrant.pipeline(bundle_of(vit_checkpoint, "image", tmp_path_factory.mktemp("image") / "out")) as ours:
        yield theirs, ours


def assert_alike(ours: Any, theirs: Any) -> None:
    """Assert equal nesting, order of keys, labels or entities, and scores; ours have more keys."""
    assert type(ours) is type(theirs)
    if isinstance(theirs, list):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_alike(one, other)
        return
    assert list(ours)[: len(theirs)] == list(theirs)
    assert set(ours) - set(theirs)
    assert type(ours["score"]) is float
    assert ours["score"] == pytest.approx(float(theirs["score"]), abs=1e-5)
    same = [name for name in theirs if name != "score"]
    assert {name: ours[name] for name in same} == {name: theirs[name] for name in same}


@pytest.mark.parametrize("options", [
    {}, {"top_k": 1}, {"top_k": None}, {"batch_size": 2, "function_to_apply": "softmax"},
    {"max_length": 6, "truncation": True, "padding": True},
], ids=repr)  # fmt: skip
@pytest.mark.parametrize("inputs", [TEXTS[0], TEXTS, PAIR, [PAIR, {"text": "money"}], []], ids=type)
def test_texts_are_answered_as_by_transformers(text: tuple[Any, Any], inputs: Any, options: dict[str, Any]) -> None:
    theirs, ours = text
    if inputs == []:
        assert ours(inputs, **options) == []  # transformers fails
        return
    assert_alike(ours(inputs, **options), theirs(inputs, **options))


def test_streams_are_read_lazily(text: tuple[Any, Any]) -> None:
    theirs, ours = text
    taken = 0

    def endless() -> Iterator[str]:
        nonlocal taken
        while True:
            yield TEXTS[taken % 3]
            taken += 1

    stream = ours(endless())
    assert_alike([next(stream), next(stream)], theirs(TEXTS[:2]))
    assert taken == 1, "no input after the second was requested"
    many = list(ours((text for text in TEXTS), batch_size=3, top_k=2))
    assert_alike(many, list(theirs((text for text in TEXTS), batch_size=3, top_k=2)))
    table = datasets.Dataset.from_dict({"sentence": TEXTS})
    assert_alike(list(ours(KeyDataset(table, "sentence"))), list(theirs(KeyDataset(table, "sentence"))))
    assert_alike(list(ours(table)), theirs(TEXTS))
    assert_alike(ours(pandas.DataFrame({"text": TEXTS})), theirs(TEXTS))


def test_calls_in_the_form_of_transformers_name_the_task(text_bundle: Path) -> None:
    pipeline: Any = hydrant.pipeline
    with pipeline(task="sentiment-analysis", model=text_bundle, max_length=4) as short:
        long = short("the money today hello", top_k=None)
    with pipeline(hydrant.Bundle.open(text_bundle)) as whole:
        assert long == whole("the money today hello", top_k=None, max_length=4)
        assert long[0]["score"] != whole("the money today hello", top_k=None)[0]["score"], "not truncated"
    named = {"bundle": "ner", "model": text_bundle}, {"bundle": text_bundle, "task": "ner"}
    for arguments in ({"bundle": "text-classification"}, *named, {}):
        with pytest.raises(InputError, match="text-classification"):
            pipeline(**arguments)


def test_answers_have_the_scores_of_predictions(text_bundle: Path, tmp_path: Path) -> None:
    shutil.copytree(text_bundle, tmp_path / "out")
    texts = [f"hello money {index}" for index in range(40)]
    hydrant.calibrate(tmp_path / "out", (texts, list("abcde") * 8), sets=hydrant.Conformal(0.2))
    with hydrant.pipeline(tmp_path / "out", top_k=2) as ours, hydrant.load(tmp_path / "out") as predictor:
        answers, rows = ours(TEXTS), predictor.predict(TEXTS).rows(predictor.labels)
        for (first, second), row in zip(answers, rows, strict=True):
            assert first["label"] == row.pop("label")
            assert first["score"] == pytest.approx(row.pop("confidence"))
            del row["index"]
            assert set(row) == BEYOND | {"abstain", "out_of_distribution", "prediction_set"}
            assert {name: first[name] for name in row} == {name: second[name] for name in row} == row
            assert first["score"] >= second["score"]


@pytest.mark.parametrize("options", [{}, {"top_k": 1}, {"top_k": None, "batch_size": 2}], ids=repr)
def test_images_are_answered_as_by_transformers(
    image: tuple[Any, Any], options: dict[str, Any], tmp_path: Path
) -> None:
    theirs, ours = image
    rng = np.random.default_rng(0)
    pictures = [Image.fromarray(rng.integers(0, 256, (14, 17, 3), np.uint8)) for _ in range(3)]
    pictures[0].save(tmp_path / "a.png")
    for inputs in (pictures[0], pictures, str(tmp_path / "a.png"), [str(tmp_path / "a.png")]):
        assert_alike(ours(inputs, **options), theirs(inputs, **options))
    assert_alike(list(ours((each for each in pictures), **options)), list(theirs((p for p in pictures), **options)))
    content = io.BytesIO()
    pictures[0].save(content, "png")
    array = np.asarray(pictures[0])
    expected = theirs(pictures[0], **options)
    tensor = torch.from_numpy(array.transpose(2, 0, 1).copy())
    for one in (content.getvalue(), array, tensor, {"image": pictures[0]}):
        assert_alike(ours(one, **options), expected)
    assert_alike(ours(torch.stack([tensor, tensor]), **options), [expected, expected])


@pytest.mark.parametrize(
    ("settings", "cases"),
    [
        ({"num_labels": 1}, [{"top_k": 1}, {"function_to_apply": "none"}, {"function_to_apply": "sigmoid"}]),
        ({"num_labels": 1, "problem_type": "regression"}, [{"function_to_apply": "sigmoid"}]),
        ({"problem_type": "multi_label_classification"}, [{"top_k": 2}, {"top_k": None}]),
    ],
    ids=["score", "regression", "labels"],
)
def test_other_tasks_are_answered_as_by_transformers(
    settings: dict[str, Any], cases: list[dict[str, Any]], tmp_path: Path
) -> None:
    model: Any = make_model("bert", **settings)
    model.save_pretrained(tmp_path / "model")
    make_tokenizer(tmp_path / "source").save_pretrained(tmp_path / "model")
    theirs = transformers.pipeline("text-classification", str(tmp_path / "model"), device="cpu", truncation=True)
    with hydrant.pipeline(bundle_of(tmp_path / "model", "text", tmp_path / "out")) as ours:
        for options in ({}, *cases):
            for inputs in (TEXTS[0], TEXTS, PAIR):
                assert_alike(ours(inputs, **options), theirs(inputs, **options))


@pytest.mark.parametrize(
    ("inputs", "options", "message"),
    [
        ("hello", {"top_k": 0}, "top_k"),
        ("hello", {"truncation": False}, "truncation"),
        ("hello", {"padding": "right"}, "padding"),
        ("hello", {"max_length": 0}, "max_length"),
        (["hello", "hello the"], {"max_length": 2}, "input 0"),
        ("hello", {"function_to_apply": "sigmoid"}, "function_to_apply"),
        (["hello", ""], {}, "input 1"),
    ],
    ids=repr,
)
def test_invalid_inputs_and_options_are_rejected(
    text: tuple[Any, Any], inputs: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        list(text[1](inputs, **options))
