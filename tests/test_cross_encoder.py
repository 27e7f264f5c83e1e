"""A CrossEncoder of sentence-transformers gives the scores that sentence-transformers gives, or is refused."""

import json
from pathlib import Path
from typing import Any

import hydrant
import numpy as np
import pytest
import torch
from hydrant.data.processor import from_transformers
from hydrant.errors import InputError, UnsupportedModelError
from hydrant.models.checkpoint import load_model, load_processor
from hydrant.models.tracing.traced_model import load_traced
from support import make_model, make_tokenizer
from test_lora import make_adapter

SIGMOID, IDENTITY = "torch.nn.modules.activation.Sigmoid", "torch.nn.modules.linear.Identity"
MAIN, MODULES, MODULE = "config_sentence_transformers.json", "modules.json", "sentence_bert_config.json"
TRANSFORMER = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"}
TEXT = {"text": {"method": "forward", "method_output_name": "logits"}}
PAIRS = [("what is the weather", "the weather today is what is the weather"), ("transfer money", "hello world"),
         ("hello hello hello world the money", "money today")]  # fmt: skip


def checkpoint(folder: Path, files: dict[str, Any], activation: str | None = None, **settings: Any) -> Path:
    """A tiny CrossEncoder in the layout of sentence-transformers 5.4; ``activation`` is the one of ``config.json``."""
    stored = {} if activation is None else {"sentence_transformers": {"activation_fn": activation}}
    make_model("bert", **{"num_labels": 1, **settings}, **stored).save_pretrained(folder)
    make_tokenizer(folder.parent / "tokenizer").save_pretrained(folder)
    module = {"transformer_task": "sequence-classification", "modality_config": TEXT, "module_output_name": "scores"}
    layout: dict[str, Any] = {MAIN: {"model_type": "CrossEncoder"}, MODULES: [TRANSFORMER], MODULE: module}
    for name, usual in layout.items():
        change = files.get(name, type(usual)())
        if change is not None:
            (folder / name).write_text(json.dumps(usual + change if name == MODULES else usual | change))
    return folder


def scores(folder: Path, traced: bool) -> np.ndarray:
    """Scores of one member with all heads, from texts."""
    ensemble = hydrant.fuse(folder, traced=True) if traced else hydrant.fuse(folder)
    processor = from_transformers(load_processor(folder, "text"), ensemble.architecture)
    arrays = processor.collate(processor.encode(PAIRS))
    with torch.no_grad():
        return ensemble(**{name: torch.from_numpy(array) for name, array in arrays.items()}).score.numpy()


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize(
    ("files", "activation"),
    [
        ({MAIN: {"activation_fn": SIGMOID}}, IDENTITY),
        ({MAIN: {"activation_fn": IDENTITY}}, SIGMOID),
        ({MAIN: {"activation_fn": SIGMOID}, MODULES: None, MODULE: None}, None),
        ({}, IDENTITY),
        ({MAIN: {"activation_fn": None}}, None),
        ({MAIN: {"prompts": {"query": "hello "}, "default_prompt_name": None}}, None),
        ({MODULE: {"max_seq_length": 9}}, None),
        ({MODULE: {"max_seq_length": 9, "processing_kwargs": {"text": {"max_length": 7, "truncation": True}}}}, None),
        ({MAIN: {"model_type": "SentenceTransformer", "activation_fn": SIGMOID}}, IDENTITY),
    ],
    ids=["file", "file-identity", "file-alone", "config", "none", "prompts", "length", "lengths", "other"],
)  # fmt: skip
def test_scores_are_those_of_sentence_transformers(
    files: dict[str, Any], activation: str | None, traced: bool, tmp_path: Path
) -> None:
    library = pytest.importorskip("sentence_transformers")
    folder = checkpoint(tmp_path / "model", files, activation)
    expected = library.CrossEncoder(str(folder), device="cpu").predict(PAIRS)
    np.testing.assert_allclose(scores(folder, traced), expected, atol=1e-5)


def test_a_folder_that_sentence_transformers_saved(tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    model = library.CrossEncoder(str(checkpoint(tmp_path / "model", {}, IDENTITY)), activation_fn=torch.nn.Sigmoid(),
                                 max_length=8, device="cpu")  # fmt: skip
    model.save_pretrained(str(tmp_path / "saved"))
    np.testing.assert_allclose(scores(tmp_path / "saved", False), model.predict(PAIRS), atol=1e-5)


@pytest.mark.parametrize("load", [load_model, load_traced])
@pytest.mark.parametrize(("files", "settings", "name"), [
    ({MAIN: {"activation_fn": "torch.nn.modules.activation.Tanh"}}, {}, "Tanh"),
    ({MAIN: {"activation_fn": SIGMOID}}, {"num_labels": 3}, "problem_type"),
    ({MAIN: {"default_prompt_name": "query", "prompts": {"query": "find: "}}}, {}, "find: "),
    ({MODULES: [{"type": "sentence_transformers.base.modules.dense.Dense"}]}, {}, "Dense"),
    ({MODULE: {"modality_config": {**TEXT, "message": TEXT["text"]}}}, {}, "message"),
    ({MODULE: {"config_kwargs": {"hidden_act": "relu"}}}, {}, "hidden_act"),
])  # fmt: skip
def test_what_would_change_the_score_is_refused(
    load: Any, files: dict[str, Any], settings: dict[str, Any], name: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedModelError, match=name):
        hydrant.models.family_registry.architecture_of(load(checkpoint(tmp_path / "model", files, **settings)))


def test_an_adapter_with_another_activation_than_its_base_model_is_refused(tmp_path: Path) -> None:
    adapter = make_adapter("bert", tmp_path / "adapter", 0, modules_to_save=None)
    (adapter / MAIN).write_text(json.dumps({"model_type": "CrossEncoder", "activation_fn": SIGMOID}))
    base = checkpoint(tmp_path / "base", {MAIN: {"activation_fn": SIGMOID}})
    assert hydrant.fuse(base, adapters=[adapter]).architecture.score_activation == "sigmoid"
    with pytest.raises(InputError, match=MAIN):
        hydrant.fuse(make_model("bert", num_labels=1), adapters=[adapter])
