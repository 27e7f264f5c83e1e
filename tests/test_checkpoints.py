"""Checkpoints as people have them: wrapped, half saved, of other libraries; by a family and traced."""

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from hydrant.errors import InputError, UnsupportedModelError
from hydrant.models.checkpoint import load_model, load_processor
from hydrant.models.tracing.traced_model import load_traced
from safetensors.torch import load_file, save_file
from support import make_inputs, make_model

Tensors = dict[str, torch.Tensor]
WEIGHTS = "model.safetensors"
WORDS = "bert.embeddings.word_embeddings.weight"
CODE = {"AutoConfig": "code.Own", "AutoModelForSequenceClassification": "code.Own"}
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"

both = pytest.mark.parametrize("load", [load_model, load_traced])


@pytest.fixture
def folder(bert_checkpoint: Path, tmp_path: Path) -> Path:
    """A checkpoint that may be changed."""
    return shutil.copytree(bert_checkpoint, tmp_path / "a folder's [copy]")


def put_weights(folder: Path, change: Callable[[Tensors], Tensors]) -> None:
    tensors = change(load_file(folder / WEIGHTS))
    save_file(
        {name: tensor.contiguous().clone() for name, tensor in tensors.items()}, folder / WEIGHTS, {"format": "pt"}
    )


def put_settings(folder: Path, **settings: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))


def assert_same(model: Any, checkpoint: Path) -> None:
    """The logits are those of plain transformers on an unchanged checkpoint."""
    original = transformers.BertForSequenceClassification.from_pretrained(checkpoint).eval()
    inputs = make_inputs("bert")
    with torch.no_grad():
        torch.testing.assert_close(model(**inputs).logits, original(**inputs).logits, rtol=1e-5, atol=1e-6)


WRAPPED: dict[str, Callable[[Any], Tensors]] = {
    "_orig_mod.": lambda model: torch.compile(model).state_dict(),
    "module._orig_mod.": lambda model: torch.nn.DataParallel(torch.compile(model)).state_dict(),
}


@both
@pytest.mark.parametrize("prefix", WRAPPED)
def test_a_wrapper_s_prefix_of_all_tensors_is_removed(
    load: Any, prefix: str, folder: Path, bert_checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = transformers.BertForSequenceClassification.from_pretrained(folder)
    put_weights(folder, lambda _: WRAPPED[prefix](model))
    assert_same(load(folder), bert_checkpoint)
    assert f" {prefix} " in caplog.text


@both
def test_an_unmerged_adapter_s_state_is_refused(load: Any, folder: Path) -> None:
    adapted = peft.get_peft_model(make_model("bert"), peft.LoraConfig(task_type="SEQ_CLS", target_modules=["query"]))
    put_weights(folder, lambda _: adapted.state_dict())
    with pytest.raises(InputError, match="merge_and_unload"):
        load(folder)


@both
@pytest.mark.parametrize(("settings", "stored", "words"), [
    ({"id2label": {str(index): f"c{index}" for index in range(7)}}, {}, r"classifier\.\w+.*\[5.*\[7.*id2label"),
    ({}, {WORDS: 0}, r"word_embeddings\.weight.*\[0, 32\].*\[99, 32\].*zero_to_fp32"),
])  # fmt: skip
def test_a_tensor_of_another_shape_is_named_with_the_cause(
    load: Any, settings: dict[str, Any], stored: dict[str, int], words: str, folder: Path
) -> None:
    put_settings(folder, **settings)
    put_weights(folder, lambda tensors: {name: each[: stored.get(name, len(each))] for name, each in tensors.items()})
    with pytest.raises(InputError, match=words):
        load(folder)


@pytest.mark.parametrize("name", [WEIGHTS, "tokenizer.json"])
@pytest.mark.parametrize("load", [load_model, load_traced, lambda folder: load_processor(folder, "text")])
def test_a_git_lfs_pointer_is_told_as_one(load: Any, name: str, folder: Path) -> None:
    (folder / name).write_text(POINTER)
    with pytest.raises(InputError, match=rf"{name} is a git-lfs pointer"):
        load(folder)


@pytest.mark.parametrize(("load", "prefix"), [(load_model, ""), (load_traced, "module.")])
def test_the_command_for_pickled_weights_converts_them(
    load: Any, prefix: str, folder: Path, bert_checkpoint: Path
) -> None:
    tensors = load_file(folder / WEIGHTS)
    for number, names in enumerate((list(tensors)[::2], list(tensors)[1::2]), start=1):
        part = {prefix + name: tensors[name] for name in names}
        torch.save(part, folder / f"pytorch_model-0000{number}-of-00002.bin")
    torch.save(transformers.TrainingArguments, folder / "training_args.bin")  # which stays closed
    (folder / WEIGHTS).unlink()
    with pytest.raises(InputError, match=r"pytorch_model\.bin") as caught:
        load(folder)
    words = shlex.split(str(caught.value).partition(": ")[2])
    assert words[0] == "python"
    subprocess.run([sys.executable, *words[1:]], check=True, cwd="/")
    assert_same(load(folder), bert_checkpoint)


class Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("code of a pickle ran",))


def test_the_command_for_pickled_weights_runs_no_code_of_theirs(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    torch.save({"classifier.weight": Harmful()}, folder / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"pytorch_model\.bin") as caught:
        load_model(folder)
    words = shlex.split(str(caught.value).partition(": ")[2])
    done = subprocess.run([sys.executable, *words[1:]], check=False, cwd="/", capture_output=True, text=True)
    assert done.returncode
    assert "ran" not in done.stdout
    assert not (folder / WEIGHTS).exists()


@both
@pytest.mark.parametrize(("settings", "words"), [
    ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "'gptq'"),
    ({"model_type": "own", "auto_map": CODE}, "'own'.*auto_map"),
    ({"architectures": ["OwnForSequenceClassification"], "auto_map": CODE}, "OwnForSequenceClass.*auto_map"),
])  # fmt: skip
def test_what_only_other_libraries_or_own_code_read_is_refused(
    load: Any, settings: dict[str, Any], words: str, folder: Path
) -> None:
    put_settings(folder, **settings)
    with pytest.raises(UnsupportedModelError, match=words):
        load(folder)


@both
def test_code_of_a_checkpoint_beside_a_class_of_transformers_is_not_run(
    load: Any, folder: Path, bert_checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put_settings(folder, auto_map=CODE)
    assert_same(load(folder), bert_checkpoint)
    assert "auto_map" in caplog.text
