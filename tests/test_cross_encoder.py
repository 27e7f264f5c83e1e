"""Settings that sentence-transformers keeps beside a checkpoint, against its own ``CrossEncoder``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import hydrant
import numpy as np
import pytest
from hydrant import fuse, save_bundle
from hydrant.errors import UnsupportedModelError
from hydrant.families.checkpoint import load_processor
from support import make_model, make_tokenizer

PAIRS = [("hello world", "the money"), ("what is the weather", "transfer money today")]
LONG = ("hello world " * 9, "the money today " * 9)
SIGMOID, IDENTITY = "torch.nn.modules.activation.Sigmoid", "torch.nn.modules.linear.Identity"
TRANSFORMER = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"}
]
LAYER = {"transformer_task": "sequence-classification", "module_output_name": "scores",
         "modality_config": {"text": {"method": "forward", "method_output_name": "logits"}}}  # fmt: skip
FILES = {
    "settings": "config_sentence_transformers.json",
    "modules": "modules.json",
    "bert": "sentence_bert_config.json",
}


def checkpoint(folder: Path, config: dict[str, Any] | None = None, labels: int = 1, **files: Any) -> Path:
    """A tiny cross-encoder; ``config`` goes into config.json, ``files`` beside it."""
    make_model("bert", num_labels=labels, **(config or {})).save_pretrained(folder)
    make_tokenizer(folder / "source").save_pretrained(folder)
    for name, content in files.items():
        usual: dict[str, Any] = {"settings": {"model_type": "CrossEncoder"}, "bert": LAYER}
        whole = {**usual[name], **content} if name in usual else content
        (folder / FILES[name]).write_text(json.dumps(whole))
    return folder


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize(
    ("config", "files"),
    [
        ({}, {"settings": {"activation_fn": SIGMOID}}),
        ({"sentence_transformers": {"activation_fn": SIGMOID}}, {"settings": {"activation_fn": IDENTITY}}),
        ({}, {"settings": {"prompts": {"query": "find: "}}}),
        ({"sentence_transformers": {"activation_fn": IDENTITY}}, {}),
        ({}, {"settings": {"activation_fn": IDENTITY}, "bert": {"max_seq_length": 12}}),
    ],
)
def test_scores_are_those_of_sentence_transformers(
    config: dict[str, Any], files: dict[str, Any], traced: bool, tmp_path: Path
) -> None:
    library = pytest.importorskip("sentence_transformers")
    folder = checkpoint(tmp_path / "m", config, **{"modules": TRANSFORMER, "bert": {}, **files})
    expected = library.CrossEncoder(str(folder)).predict([*PAIRS, LONG])
    save_bundle(fuse(str(folder), traced=traced), tmp_path / "b", load_processor(folder, "text"))
    with hydrant.load(tmp_path / "b", backend="torch") as predictor:
        np.testing.assert_allclose(predictor.predict([*PAIRS, LONG]).score, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("labels", "files", "said"),
    [
        (1, {"settings": {"activation_fn": "torch.nn.modules.activation.Tanh"}}, "Tanh"),
        (3, {"settings": {"activation_fn": SIGMOID}}, "Sigmoid"),
        (1, {"settings": {"prompts": {"query": "find: "}, "default_prompt_name": "query"}}, "find: "),
        (1, {"settings": {}, "modules": [*TRANSFORMER, {"type": "sentence_transformers.x.LogitScore"}]}, "LogitScore"),
        (1, {"settings": {}, "bert": {"do_lower_case": True}}, "do_lower_case"),
        (1, {"settings": {}, "bert": {"processing_kwargs": {"text": {"max_length": 4}}}}, "processing_kwargs"),
    ],
)
def test_what_is_not_applied_is_refused_by_name(labels: int, files: dict[str, Any], said: str, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "m", labels=labels, **files)
    with pytest.raises(UnsupportedModelError, match=said):
        fuse(str(folder))


def test_settings_of_an_embedding_model_are_left_alone(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "m", settings={"model_type": "SentenceTransformer", "activation_fn": SIGMOID})
    assert fuse(str(folder)).architecture.score_activation == "identity"
