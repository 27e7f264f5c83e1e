"""Reading PEFT adapters: settings as PEFT reads them, and folders that cannot be used."""

import json
import math
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from hydrant import HydrantError, fuse
from hydrant.models.lora import read_adapter
from safetensors.torch import load_file, save_file
from support import LAYERS, make_model, random_plan
from test_lora import make_adapter


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_adapter("bert", tmp_path_factory.mktemp("adapter") / "adapter", 0)


@pytest.fixture(scope="module")
def base() -> torch.nn.Module:
    """A model that is only read."""
    return make_model("bert")


@pytest.fixture
def adapter(untouched: Path, tmp_path: Path) -> Path:
    """A copy for those who change it."""
    return Path(shutil.copytree(untouched, tmp_path / "adapter"))


def configure(folder: Path, **settings: Any) -> None:
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))


def changed(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    """Change the tensors of an adapter."""

    def write(folder: Path) -> None:
        tensors = load_file(folder / "adapter_model.safetensors")
        change(tensors)
        save_file(tensors, folder / "adapter_model.safetensors")

    return write


QUERY = "base_model.model.bert.encoder.layer.0.attention.self.query"


@pytest.mark.parametrize("rslora", [False, True])
def test_ranks_and_scales_are_those_of_peft(rslora: bool, tmp_path: Path) -> None:
    patterns = {
        "rank_pattern": {"layer.0.attention.self.query": 4, r"layer.1.attention.self.\w+": 6},
        "alpha_pattern": {"layer.2.attention.output.dense": 0.5, "bert.encoder.layer.0.attention.self.value": 9},
    }
    folder = make_adapter("bert", tmp_path / "a", 0, r=2, lora_alpha=3, use_rslora=rslora, **patterns)
    parsed = read_adapter(folder, make_model("bert"))
    model = peft.PeftModel.from_pretrained(make_model("bert"), folder)
    layers = {name: module for name, module in model.named_modules() if isinstance(module, peft.tuners.lora.LoraLayer)}
    assert len(parsed.updates) == len(layers) == LAYERS * 4
    scales = sorted(module.scaling["default"] for module in layers.values())
    assert sorted(update.scale for update in parsed.updates.values()) == pytest.approx(scales)
    query = layers["base_model.model.bert.encoder.layer.1.attention.self.query"]
    update = parsed.updates["layers.1.attention.query.weight"]
    assert update.down.shape[0] == query.r["default"]
    assert update.scale == pytest.approx(query.scaling["default"])
    assert update.scale == pytest.approx(3 / (math.sqrt(update.down.shape[0]) if rslora else update.down.shape[0]))
    torch.testing.assert_close(update.scale * update.up @ update.down, query.get_delta_weight("default"))


def pickle_only(folder: Path) -> None:
    (folder / "adapter_model.safetensors").unlink()
    (folder / "adapter_model.bin").write_bytes(b"\x80\x04cos\nsystem\n")


BAD: list[tuple[Callable[[Path], Any], str]] = [
    (partial(configure, peft_type="IA3"), "peft_type"),
    (partial(configure, use_something_new=True), "use_something_new"),
    (partial(configure, init_lora_weights="pissa"), "init_lora_weights"),
    (partial(configure, r=2), "for rank 2"),
    (partial(configure, lora_alpha=1e300), "lora_alpha"),
    (partial(configure, rank_pattern={"((.+)+)!": 3}), "rank_pattern"),
    (partial(configure, rank_pattern={f"{place}.*": 3 for place in range(21)}), "21 entries in rank_pattern"),
    (changed(lambda t: t[f"{QUERY}.lora_A.weight"].fill_(math.nan)), r"query\.lora_A\.weight"),
    (changed(lambda t: t.update({f"{QUERY}.lora_B.weight": torch.zeros(31, 3)})), r"lora_B \[31, 3\]"),
    (changed(lambda t: t.pop(f"{QUERY}.lora_B.weight")), r"query has .*lora_A"),
    (changed(lambda t: [t.pop(f"{QUERY}.lora_{half}.weight") for half in "AB"]), r"query\.lora_A"),
    (changed(lambda t: t.pop("base_model.model.classifier.bias")), r"classifier\.bias"),
    (changed(lambda t: t.update({"base_model.model.classifier.weight": torch.zeros(7, 32)})), r"\.weight .*\[7, 32\]"),
    (changed(lambda t: t.update({f"{QUERY}.lora_magnitude_vector.weight": torch.ones(32)})), "magnitude_vector"),
    (changed(lambda t: [t.pop(name) for name in list(t) if "lora" in name]), "no LoRA tensors"),
    (pickle_only, "adapter_model.safetensors"),
]
"""Changes of an adapter's folder, and what the refusal names."""


@pytest.mark.parametrize(("change", "message"), BAD)
def test_adapters_that_cannot_be_honoured(
    change: Callable[[Path], Any], message: str, base: torch.nn.Module, adapter: Path
) -> None:
    change(adapter)
    with pytest.raises(HydrantError, match=message):
        fuse(base, adapters=[adapter])


def test_arguments_that_do_not_fit(adapter: Path, tmp_path: Path) -> None:
    model, plan = make_model("bert"), random_plan("bert", 2)
    refused: list[tuple[Callable[[], Any], str]] = [
        (lambda: fuse(model, adapters=[tmp_path / "absent"]), "absent"),
        (lambda: fuse(adapter), "holds no config.json; .*--adapter"),
        (lambda: fuse(model, adapters=[adapter], low_rank="lots"), "'lots'"),
        (lambda: fuse([model, model], adapters=[adapter]), "2 models"),
        (lambda: fuse(model, adapters=[adapter], keep_separate="mlp"), "keep_separate"),
        (lambda: fuse(model, plan, adapters=[adapter]), "1 adapters for a plan of 2 members"),
        (lambda: fuse(model, plan, adapters=[adapter] * 2, low_rank="keep"), r"layer \d"),
        (lambda: fuse(make_model("bert", num_labels=7), adapters=[adapter]), "same classes"),
    ]  # fmt: skip
    for attempt, message in refused:
        with pytest.raises(HydrantError, match=message):
            attempt()
