"""Tuning of bundles that were not made of plain checkpoints: LoRA-Ensembles, and CLIP with class prompts."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hydrant import Bundle, Jointly, PerMember, Reading, fuse, load_ensemble, save_bundle, tune
from hydrant.cli.inspect import inspect_bundle, inspect_text
from hydrant.errors import InputError
from support import make_inputs, make_model, make_tokenizer
from test_cost import assert_cost
from test_lora import NAMES, make_adapter
from test_tune import pictures

NUMBERS: dict[str, Any] = {"epochs": 1, "learning_rate": 1e-3}
READING = Reading(batch_size=8)


def lora_bundle(folder: Path, low_rank: str) -> Path:
    """Two members that differ in queries and values, of which tuning could part the keys that they share."""
    targets = [NAMES["bert"]["query"], NAMES["bert"]["value"]]
    folders = [make_adapter("bert", folder / f"a{m}", m, targets, layers_to_transform=[1, 2]) for m in range(2)]
    ensemble = fuse(make_model("bert"), adapters=folders, low_rank=low_rank)
    save_bundle(ensemble, folder / "bundle", make_tokenizer(folder / "source"))
    return folder / "bundle"


def sentences(labels: list[str]) -> tuple[list[str], list[str]]:
    words = ["hello", "world", "transfer", "money", "weather"]
    return [f"{words[index % 5]} what is" for index in range(40)], [labels[index % 5] for index in range(40)]


@pytest.mark.parametrize(("low_rank", "how"), [
    ("merge", Jointly(**NUMBERS)),
    ("merge", PerMember(**NUMBERS, keep_separate="mlp")),
    ("keep", Jointly(**NUMBERS)),
    ("keep", PerMember(**NUMBERS)),
])  # fmt: skip
def test_a_tuned_lora_ensemble(low_rank: str, how: Jointly | PerMember, tmp_path: Path) -> None:
    """Its form stays, its cost is that of its graph, and it is told apart from what its adapters give."""
    bundle = lora_bundle(tmp_path, low_rank)
    before = load_ensemble(bundle).state_dict()
    assert tune(bundle, sentences(Bundle.open(bundle).labels), how, reading=READING, seed=7).improved  # every member
    after = load_ensemble(bundle).state_dict()
    separate = isinstance(how, PerMember) and bool(how.keep_separate)
    if not separate:
        assert {name: tensor.shape for name, tensor in after.items()} == {n: t.shape for n, t in before.items()}
        assert after["layers.0.attention.qkv.weight"].shape[0] == 1, "below the first adapter"
    if low_rank == "keep":
        down = (before["layers.1.attention.low_rank.query.down"], after["layers.1.attention.low_rank.query.down"])
        assert all(not torch.equal(was, now) for was, now in zip(*down, strict=True))
    assert_cost(bundle, make_inputs("bert"))
    facts = inspect_bundle(bundle)
    assert facts["tuned"]["per_member"] is isinstance(how, PerMember)
    assert facts["separate"] == (["classifier", "mlp", "pooler"] if separate else ["classifier", "pooler"])
    assert "; adapters describe the state before" in inspect_text(facts)


def test_updates_of_one_weight_cannot_part(tmp_path: Path) -> None:
    bundle = lora_bundle(tmp_path, "keep")
    state = {path: path.read_bytes() for path in bundle.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match=r"low-rank updates \(layers\.1\.attention\.query, "):
        tune(bundle, sentences(Bundle.open(bundle).labels), PerMember(keep_separate="classifier"))
    assert {path: path.read_bytes() for path in bundle.rglob("*") if path.is_file()} == state


def test_a_tuned_zero_shot_classifier(tmp_path: Path) -> None:
    """The classifier is tuned like any other; the prompts tell where it began, and inspection says so."""
    model = make_model("clip")
    size = {"size": {"shortest_edge": 12}, "crop_size": {"height": 12, "width": 12}}
    path = save_bundle(fuse([model, model]), tmp_path / "bundle", transformers.CLIPImageProcessorPil(**size)).path
    assert "where that began" not in inspect_text(inspect_bundle(path))
    before, (images, labels) = load_ensemble(path), pictures(40, 0)
    data = images, ["abcde"[int(label[-1])] for label in labels]
    assert tune(path, data, Jointly(**{**NUMBERS, "epochs": 3}), reading=READING).improved
    after = load_ensemble(path)
    assert not torch.equal(after.classifier.weight, before.classifier.weight)
    assert Bundle.open(path).manifest["fusion"]["zero_shot"] == model.prompts.to_json()
    assert "; prompts describe the state before" in inspect_text(inspect_bundle(path))
    with torch.no_grad():
        assert torch.isfinite(after(**make_inputs("clip")).member_logits).all()
