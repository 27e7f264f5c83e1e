"""Packed-Ensembles: a checkpoint of packed layers is its narrow members, side by side."""

import importlib
import sys
from collections.abc import Callable
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
from support import CLASSES, make_inputs, make_model, make_tokenizer, randomized, run_cli
from torch import nn

M, ALPHA = 4, 2


class Packed(nn.Conv1d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.reshape(-1, x.shape[-1], 1)).reshape(*x.shape[:-1], -1)


class Norm(nn.GroupNorm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.reshape(-1, x.shape[-1])).reshape(x.shape)


def packed(family: str) -> Any:
    """A model whose linear maps and norms are grouped by member; its logits are [B, M·C]."""
    model: Any = make_model(family)
    for name, old in list(model.named_modules()):
        if isinstance(old, nn.Linear):
            out = CLASSES * M if name == "classifier" else old.out_features * ALPHA
            model.set_submodule(name, Packed(old.in_features * ALPHA, out, 1, groups=M))
        elif isinstance(old, nn.LayerNorm):
            model.set_submodule(name, Norm(M, old.normalized_shape[0] * ALPHA, old.eps))
        elif isinstance(old, nn.Embedding):
            model.set_submodule(name, nn.Embedding(old.num_embeddings, old.embedding_dim * ALPHA))
        elif isinstance(old, nn.Conv2d):
            model.set_submodule(name, nn.Conv2d(3, old.out_channels * ALPHA, 4, 4))
        for own in {"cls_token", "position_embeddings"} & set(old._parameters):
            setattr(old, own, nn.Parameter(old.get_parameter(own).repeat(1, 1, ALPHA)))
    model.config.norm_groups = M
    return randomized(model).eval()


def save(model: Any, folder: Path, older: bool = False, **changes: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Write weights as torch-uncertainty stores them, or as its older releases did; some of them changed."""
    state = {name.replace("projection.", "projection.conv."): tensor for name, tensor in model.state_dict().items()}
    for name, tensor in state.items():
        grouped = tensor.ndim == 3 and tensor.shape[2] == 1 and not older
        stored = tensor.reshape(M, -1, tensor.shape[1]) if grouped else tensor
        state[name] = changes[name](stored).contiguous() if name in changes else stored
    model.save_pretrained(folder, state_dict=state)


@pytest.mark.parametrize(("family", "older"), [("bert", False), ("bert", True), ("distilbert", False), ("vit", False)])
def test_a_packed_checkpoint_is_taken_apart_exactly(family: str, older: bool, tmp_path: Path) -> None:
    model, inputs = packed(family), make_inputs(family)
    save(model, tmp_path, older)
    with torch.no_grad():
        expected = model(**inputs).logits.unflatten(1, (M, CLASSES)).transpose(0, 1)
        logits = hydrant.fuse(tmp_path)(**inputs).member_logits
    assert expected.std(0).min() > 0.1
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)


def test_the_command_fuses_a_packed_checkpoint(tmp_path: Path) -> None:
    save(packed("bert"), tmp_path)
    make_tokenizer(tmp_path / "words").save_pretrained(tmp_path)
    with pytest.raises(InputError, match="hydrant fuse"):
        load_model(tmp_path)
    done = run_cli("fuse", tmp_path, "-o", tmp_path / "out")
    assert "4 members of bert from a packed checkpoint" in done.stdout, done.stderr
    with hydrant.load(tmp_path / "out", backend="torch") as predictor:
        assert predictor.predict(["hello world"]).mutual_information[0] > 0


REFUSED: dict[str, Any] = {
    "norm_groups": 1,
    "num_attention_heads": 1,
    "dinov2": None,
    "bert.encoder.layer.1.output.dense.weight": lambda maps: torch.block_diag(*maps),
    "bert.encoder.layer.0.attention.self.query.weight": lambda maps: torch.block_diag(*maps),
    "bert.pooler.dense.weight": lambda maps: maps[:1],
    "classifier.weight": lambda maps: maps[:, 1:],
    "bert.embeddings.word_embeddings.weight": lambda table: table[:, :16],
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_mixes_members_is_refused_by_name(name: str, tmp_path: Path) -> None:
    model, change = packed("dinov2" if name == "dinov2" else "bert"), REFUSED[name]
    if not callable(change):
        setattr(model.config, name, change)
    save(model, tmp_path, **({name: change} if callable(change) else {}))
    with pytest.raises(UnsupportedModelError, match=name):
        load_members(tmp_path)


@torch.no_grad()
def test_packed_layers_of_torch_uncertainty_are_narrow_models(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = own_environment(Path(__file__).with_name("packed.txt")).parents[1]
    packages = next(environment.glob("lib/*/site-packages"))
    monkeypatch.syspath_prepend(packages)
    for name in ("torch_uncertainty", "torch_uncertainty.layers"):  # without their __init__, which import much more
        package = ModuleType(name)
        package.__path__ = [str(packages.joinpath(*name.split(".")))]
        monkeypatch.setitem(sys.modules, name, package)
    tu, width, heads = importlib.import_module("torch_uncertainty.layers.packed"), 8, 2
    nominal = width * M // ALPHA
    x = torch.randn(3, 5, M * width)
    streams = x.chunk(M, -1)
    linear, norm = tu.PackedLinear(nominal, nominal, ALPHA, M), tu.PackedLayerNorm(nominal, M, ALPHA, first=True)
    maps = [nn.functional.linear(*each) for each in zip(streams, linear.weight, linear.bias.chunk(M), strict=True)]
    norms = [nn.functional.layer_norm(stream, (width,)) for stream in streams]
    attention = tu.PackedMultiheadAttention(nominal, heads, ALPHA, M, batch_first=True).eval()
    biases = attention.in_proj_bias.normal_().reshape(3, M, width)
    narrow = []
    for m, stream in enumerate(streams):
        one = nn.MultiheadAttention(width, heads, batch_first=True).eval()
        one.in_proj_weight[:], one.in_proj_bias[:] = attention.in_proj_weight[m], biases[:, m].flatten()
        one.out_proj.weight[:] = attention.out_proj_weight[m]
        narrow.append(one(stream, stream, stream)[0])
    exact = {"rtol": 0.0, "atol": 1e-6}
    torch.testing.assert_close(linear(x), torch.cat(maps, -1), **exact)
    torch.testing.assert_close(norm(x), torch.cat(norms, -1), **exact)
    torch.testing.assert_close(attention(x, x.clone(), x.clone())[0], torch.cat(narrow, -1), **exact)
    # self-attention on one tensor mixes members, and so does the norm without ``first``: both are refused
    for mixed, own in ((attention(x, x, x)[0], narrow), (tu.PackedLayerNorm(nominal, M, ALPHA)(x), norms)):
        assert (mixed - torch.cat(own, -1)).abs().max() > 0.01
