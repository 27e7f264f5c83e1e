"""Weight files as people have them: prefixes, wrong shapes, other formats; loaded as transformers would, or refused."""

from __future__ import annotations

import json
import logging
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hydrant import HydrantError, fuse
from hydrant.errors import InputError, UnsupportedModelError
from safetensors.torch import load_file, save_file
from support import make_inputs, make_model

Weights = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stored") / "model"
    make_model("bert").save_pretrained(folder)
    return folder


def changed(
    original: Path, folder: Path, weights: Callable[[Weights], Weights] = lambda each: each, **config: Any
) -> Path:
    """A copy with other weights, or settings."""
    shutil.copytree(original, folder)
    save_file(weights(load_file(original / "model.safetensors")), folder / "model.safetensors", {"format": "pt"})
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, **config}))
    return folder


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("prefix", ["_orig_mod.", "module.", "base_model.model.", "_orig_mod.module."])
def test_prefixes_that_all_names_have_are_removed(
    prefix: str, traced: bool, original: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = changed(original, tmp_path / "m", lambda old: {prefix + name: each for name, each in old.items()})
    inputs = make_inputs("bert")
    with torch.no_grad():
        expected = make_model("bert")(**inputs).logits
    with caplog.at_level(logging.WARNING):
        ensemble = fuse(str(folder), traced=traced)
    torch.testing.assert_close(ensemble(**inputs).member_logits[0], expected, atol=1e-5, rtol=1e-5)
    assert prefix in caplog.text


LORA = "base_model.model.bert.encoder.layer.0.attention.self.query.lora_A.weight"


def emptied(weights: Weights) -> Weights:
    return {name: torch.zeros(0) if "layer.1." in name else each for name, each in weights.items()}


def short(weights: Weights) -> Weights:
    return {name: each[:80].clone() if "word_emb" in name else each for name, each in weights.items()}


def adapted(weights: Weights) -> Weights:
    return {**{f"base_model.model.{name}": each for name, each in weights.items()}, LORA: torch.zeros(2, 32)}


NAMES = {"id2label": {str(index): f"x{index}" for index in range(7)}}


@pytest.mark.parametrize(
    ("weights", "config", "said"),
    [
        (lambda each: each, NAMES, [r"classifier\.\w+", r"\[5", r"\[7", "id2label"]),
        (emptied, {}, [r"layer\.1\.", r"\[0\]", "ZeRO-3"]),
        (short, {}, [r"word_embeddings\.weight", r"\[80, 32\]", r"\[99, 32\]", "vocab_size"]),
        (adapted, {}, ["merge_and_unload"]),
        (lambda each: each, {"quantization_config": {"quant_method": "gptq", "bits": 4}}, ["gptq"]),
        (lambda each: each, {"model_type": "mine", "auto_map": {"AutoConfig": "c.C"}}, ["auto_map"]),
    ],
)
def test_weights_that_do_not_fit_are_refused_by_name(
    weights: Any, config: dict[str, Any], said: list[str], original: Path, tmp_path: Path
) -> None:
    folder = changed(original, tmp_path / "m", weights, **config)
    with pytest.raises(HydrantError) as caught:
        fuse(str(folder))
    assert isinstance(caught.value, InputError | UnsupportedModelError)
    for part in said:
        assert re.search(part, str(caught.value)), caught.value


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("model.safetensors", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        ("tf_model.h5", b"x", "TensorFlow"),
        ("flax_model.msgpack", b"x", "Flax"),
    ],
)
def test_other_files_are_named(file: str, content: bytes, said: str, original: Path, tmp_path: Path) -> None:
    folder = changed(original, tmp_path / "m")
    (folder / "model.safetensors").unlink()
    (folder / file).write_bytes(content)
    with pytest.raises(InputError, match=said):
        fuse(str(folder))


def test_a_pickled_checkpoint_is_refused_with_the_command_that_converts_it(original: Path, tmp_path: Path) -> None:
    folder = changed(original, tmp_path / "m")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"pytorch_model\.bin") as caught:
        fuse(str(folder))
    program = str(caught.value).partition('python -c "')[2].rstrip('"')
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, cwd=tmp_path)
    assert fuse(str(folder)).members == 1


def test_weights_that_the_model_does_not_read_are_named(
    original: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = changed(original, tmp_path / "m", num_hidden_layers=2)
    with caplog.at_level(logging.WARNING):
        assert fuse(str(folder)).architecture.layers == 2
    assert "num_hidden_layers" in caplog.text
    assert "bert.encoder.layer.2." in caplog.text
