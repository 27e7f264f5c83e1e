"""Packed-Ensembles: a checkpoint of packed layers is its narrow members, side by side."""

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import hydrant
import pytest
import torch
from environments import own_environment
from hydrant.errors import InputError, UnsupportedModelError
from hydrant.models.checkpoint import load_model
from hydrant.models.packed_checkpoint import load_members
from support import CLASSES, make_inputs, make_model, make_tokenizer, randomized, stdout_of
from torch import nn

M = 2
NARROWER = {"hidden_size", "num_attention_heads", "intermediate_size", "dim", "n_heads", "hidden_dim"}


class Rows(nn.Module):
    """A grouped convolution or norm of every row."""

    def __init__(self, grouped: nn.Module) -> None:
        super().__init__()
        self.grouped = grouped

    def forward(self, x: torch.Tensor) -> Any:
        return self.grouped(x.reshape(-1, x.shape[-1], 1)).reshape(*x.shape[:-1], -1)


def packed(family: str, grouped: Any = lambda rows, out: Rows(nn.Conv1d(rows, out, 1, groups=M))) -> Any:
    """A model whose linear maps and norms are grouped by member; its logits are [B, M·C]."""
    model: Any = make_model(family)
    for name, old in list(model.named_modules()):
        if isinstance(old, nn.Linear):
            out = CLASSES * M if name == "classifier" else old.out_features
            model.set_submodule(name, grouped(old.in_features, out))
        elif isinstance(old, nn.LayerNorm):
            model.set_submodule(name, Rows(nn.GroupNorm(M, old.normalized_shape[0], old.eps)))
    model.config.norm_groups = M
    return randomized(model).eval()


def save(model: Any, folder: Path, changed: str = "", change: Any = None, older: bool = False, **settings: Any) -> None:
    """Write weights as torch-uncertainty stores them, or as its older releases did, and the settings of one member."""
    state = {"position_ids": torch.arange(5)[None]}
    for name, tensor in model.state_dict().items():
        key = name.replace(".grouped", "").replace("projection.", "projection.conv.")
        newer = tensor.ndim == 3 and tensor.shape[2] == 1 and not older
        state[key] = tensor.reshape(M, -1, tensor.shape[1]) if newer else tensor
        state[key] = change(state[key]).contiguous() if key == changed else state[key]
    model.save_pretrained(folder, state_dict=state)
    own = json.loads((file := folder / "config.json").read_text())
    own |= {name: own[name] // M for name in NARROWER & own.keys()} | settings
    file.write_text(json.dumps({name: value for name, value in own.items() if value is not None}))


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("family", ["bert", "distilbert", "vit"])
def test_a_packed_checkpoint_is_taken_apart_exactly(family: str, older: bool, tmp_path: Path) -> None:
    check_members(packed(family), family, tmp_path, older)


def check_members(model: Any, family: str, folder: Path, older: bool = False) -> None:
    save(model, folder, older=older)
    with torch.no_grad():
        expected = model(**make_inputs(family)).logits.unflatten(1, (M, CLASSES)).transpose(0, 1)
        logits = hydrant.fuse(folder)(**make_inputs(family)).member_logits
    assert expected.std(0).mean() > 0.5
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)


def test_the_command_fuses_a_packed_checkpoint(tmp_path: Path) -> None:
    save(packed("bert"), tmp_path)
    make_tokenizer(tmp_path / "words").save_pretrained(tmp_path)
    with pytest.raises(InputError, match="hydrant fuse"):
        load_model(tmp_path)
    words = "2 members of bert from a packed checkpoint, each of 2 heads and width 16"
    assert words in stdout_of("fuse", tmp_path, "-o", tmp_path / "out")
    with hydrant.load(tmp_path / "out", backend="torch") as predictor:
        assert predictor.predict(["hello world"]).mutual_information[0] > 0


REFUSED: dict[str, Any] = {
    "norm_groups": 1,
    "num_attention_heads = None": None,
    "num_attention_heads = 3": 3,
    "hidden_size": 32,
    "dinov2": "",
    "bert.encoder.layer.1.output.dense.weight": lambda maps: torch.block_diag(*maps),
    "bert.encoder.layer.0.attention.self.query.weight": lambda maps: torch.block_diag(*maps),
    "bert.pooler.dense.weight": lambda maps: maps[:, 1:],
    "classifier.weight": lambda maps: maps[:1],
    "bert.embeddings.word_embeddings.weight": lambda table: table[:, :8],
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_mixes_members_is_refused_by_name(name: str, tmp_path: Path) -> None:
    model = packed("dinov2" if name == "dinov2" else "bert")
    change = REFUSED[name]
    save(model, tmp_path, name, change, **({} if callable(change) else {name.partition(" ")[0]: change}))
    with pytest.raises(UnsupportedModelError, match=name):
        load_members(tmp_path)


@torch.no_grad()
def test_packed_layers_of_torch_uncertainty_are_narrow_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages = next(own_environment(Path(__file__).with_name("packed.txt")).parents[1].glob("lib/*/site-packages"))
    monkeypatch.syspath_prepend(packages)
    for name in ("torch_uncertainty", "torch_uncertainty.layers"):  # without their __init__, which import much more
        package = ModuleType(name)
        package.__path__ = [str(packages.joinpath(*name.split(".")))]
        monkeypatch.setitem(sys.modules, name, package)
    tu, width = importlib.import_module("torch_uncertainty.layers.packed"), 8
    check_members(packed("bert", lambda rows, out: tu.PackedLinear(rows, out, 1, M)), "bert", tmp_path)
    nominal, alpha, count, x = 16, 2, 4, torch.randn(3, 5, 4 * width)
    linear = tu.PackedLinear(nominal, nominal, alpha, count)
    attention = tu.PackedMultiheadAttention(nominal, 2, alpha, count, batch_first=True).eval()
    biases = attention.in_proj_bias.normal_().reshape(3, count, width).transpose(0, 1).flatten(1)
    narrow: dict[str, list[Any]] = {"linear": [], "attention": [], "norm": []}
    for m, stream in enumerate(x.chunk(count, -1)):
        one = nn.MultiheadAttention(width, 2, batch_first=True).eval()
        one.in_proj_weight[:], one.in_proj_bias[:] = attention.in_proj_weight[m], biases[m]
        one.out_proj.weight[:] = attention.out_proj_weight[m]
        narrow["attention"].append(one(stream, stream, stream)[0])
        narrow["linear"].append(nn.functional.linear(stream, linear.weight[m], linear.bias.chunk(count)[m]))
        narrow["norm"].append(nn.functional.layer_norm(stream, (width,)))
    own = {"linear": linear(x), "attention": attention(x, x.clone(), x.clone())[0]}
    own["norm"] = tu.PackedLayerNorm(nominal, count, alpha, first=True)(x)
    for name, members in narrow.items():
        torch.testing.assert_close(own[name], torch.cat(members, -1), rtol=0, atol=1e-6)
    # self-attention on one tensor mixes members, as does the norm without ``first``: why both are refused
    for name, mixed in (("attention", attention(x, x, x)[0]), ("norm", tu.PackedLayerNorm(nominal, count, alpha)(x))):
        assert (mixed - own[name]).abs().max() > 0.01
