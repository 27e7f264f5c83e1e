"""Fusing compares what prepares the members' inputs, and says what a bundle will lack."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hydrant
import pytest
from hydrant.errors import InputError
from hydrant.fusion import common_processor
from hydrant.models.checkpoint import load_processor
from hydrant.models.family_registry import architecture_of
from support import WORDS, make_model, make_tokenizer, named
from test_lora import make_adapter


@pytest.fixture(scope="module")
def folders(bert_checkpoint: Path, vit_checkpoint: Path) -> dict[str, Path]:
    return {"text": bert_checkpoint, "image": vit_checkpoint}


def edited(source: Path, target: Path, name: str, change: Callable[[Any], Any]) -> Path:
    """A checkpoint whose JSON file ``name`` went through ``change``."""
    shutil.copytree(source, target)
    content = json.loads((target / name).read_text())
    (target / name).write_text(json.dumps(change(content) or content))
    return target


def swap_words(tokenizer: dict[str, Any]) -> None:
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["hello"], vocabulary["world"] = vocabulary["world"], vocabulary["hello"]


def setting(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: content.update(values)


CONFIG, STEPS, IMAGE = "tokenizer_config.json", "tokenizer.json", "preprocessor_config.json"
DIFFERENCES: list[tuple[str, str, Callable[[dict[str, Any]], None], str]] = [
    ("text", CONFIG, setting(do_lower_case=False), r"normalizer\.lowercase is 'True' in the first and 'False' in the"),
    ("text", STEPS, swap_words, r"model\.vocab\.hello is '5' in the first and '6' in the second"),
    ("text", CONFIG, setting(model_max_length=16), "longest text is '40' in the first and '16' in the second"),
    ("text", CONFIG, setting(pad_token="[MASK]"), r"padding token is '\[PAD\]' in the first and '\[MASK\]' in the"),
    ("image", IMAGE, setting(image_mean=[0.4, 0.5, 0.5]), r"mean is '\[0\.5, 0\.5, 0\.5\]' in the first and '\[0\.4"),
]


@pytest.mark.parametrize(
    ("modality", "name", "change", "message"), DIFFERENCES, ids=[row[3][:20] for row in DIFFERENCES]
)
def test_different_preprocessing_is_refused(
    modality: str, name: str, change: Any, message: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    other = edited(folders[modality], tmp_path / "other", name, change)
    refusal = f"tiny-.* and .*other prepare their inputs differently: {message}.*tune them alike"
    with pytest.raises(InputError, match=refusal):
        hydrant.fuse([folders[modality], other])


@pytest.mark.parametrize("modality", ["text", "image"])
def test_the_same_preprocessing_written_otherwise_passes(
    modality: str, folders: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if modality == "text":  # a decoder and stored padding change no token

        def rewritten(tokenizer: dict[str, Any]) -> dict[str, Any]:
            padding = {"strategy": {"Fixed": 6}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
                       "pad_type_id": 0, "pad_token": "[PAD]"}  # fmt: skip
            vocabulary = dict(reversed(tokenizer["model"]["vocab"].items()))
            model = {**tokenizer["model"], "vocab": vocabulary}
            return {**tokenizer, "model": model, "decoder": None, "padding": padding}

        other = edited(folders[modality], tmp_path / "other", STEPS, rewritten)
    else:
        change = setting(size=12, image_mean=0.5, image_processor_type="ViTImageProcessor")
        other = edited(folders[modality], tmp_path / "other", IMAGE, change)
    assert hydrant.fuse([folders[modality], other]).members == 2
    assert "none was compared" not in caplog.text


def test_a_missing_tokenizer_is_named_and_the_others_are_compared(
    bert_checkpoint: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bare = tmp_path / "bare"
    make_model("bert", **named("abcde")).save_pretrained(bare)
    architecture = architecture_of(make_model("bert"))
    assert common_processor([bare, bare], architecture) is None
    assert not caplog.text
    converted = common_processor([bare, bert_checkpoint, bert_checkpoint], architecture)
    assert len(converted) == len(WORDS)
    assert "no tokenizer is stored in" in caplog.text
    assert str(bare) in caplog.text
    other = edited(bert_checkpoint, tmp_path / "other", STEPS, swap_words)
    with pytest.raises(InputError, match=r"tiny-bert and .*other prepare their inputs differently"):
        hydrant.fuse([bert_checkpoint, bare, other])
    with pytest.raises(InputError, match=r"cannot load the tokenizer of .*bare: it has no vocabulary; save"):
        load_processor(bare, "text")


def test_adapters_with_a_tokenizer_of_their_own(bert_checkpoint: Path, tmp_path: Path) -> None:
    adapters = [make_adapter("bert", tmp_path / name, seed) for seed, name in enumerate("ab")]
    hydrant.fuse(bert_checkpoint, adapters=adapters)
    tokenizer = make_tokenizer(tmp_path / "source")
    tokenizer.save_pretrained(adapters[0])
    hydrant.fuse(bert_checkpoint, adapters=adapters)
    tokenizer.save_pretrained(adapters[1])
    content = json.loads((adapters[1] / STEPS).read_text())
    swap_words(content)
    (adapters[1] / STEPS).write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"tiny-bert and .*b prepare their inputs differently: model\.vocab\.hello"):
        hydrant.fuse(bert_checkpoint, adapters=adapters)
