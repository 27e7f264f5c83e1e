"""Packed-Ensembles: a checkpoint of packed layers is its narrow members, side by side."""

import json
import os
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
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


class Packed(nn.Module):
    """Linear map of each member, by a grouped convolution; the weight has that form only in an older checkpoint."""

    def __init__(self, into: int, out: int, older: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty((out, into // M, 1) if older else (M, out // M, into // M)))
        self.bias = nn.Parameter(torch.empty(out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kernel = self.weight.reshape(len(self.bias), -1, 1)
        return nn.functional.conv1d(x.reshape(-1, x.shape[-1], 1), kernel, self.bias, groups=M).view(*x.shape[:-1], -1)


class Norm(nn.GroupNorm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.reshape(-1, x.shape[-1])).reshape(x.shape)


class Kernel(nn.Sequential):
    conv: Any
    weight = property(lambda self: self.conv.weight)


def packed_of(family: str, older: bool = False) -> Any:
    """A model with packed layers, stored as by torch-uncertainty; its logits are [B, M·C]."""
    model: Any = make_model(family)
    for name, old in list(model.named_modules()):
        if isinstance(old, nn.Linear):
            out = CLASSES * M if name == "classifier" else old.out_features * ALPHA
            model.set_submodule(name, Packed(old.in_features * ALPHA, out, older))
        elif isinstance(old, nn.LayerNorm):
            model.set_submodule(name, Norm(M, old.normalized_shape[0] * ALPHA, old.eps))
        elif isinstance(old, nn.Embedding):
            model.set_submodule(name, nn.Embedding(old.num_embeddings, old.embedding_dim * ALPHA))
        elif isinstance(old, nn.Conv2d):
            model.set_submodule(name, Kernel(OrderedDict(conv=nn.Conv2d(3, old.out_channels * ALPHA, 4, 4))))
        for own in {"cls_token", "position_embeddings"} & set(old._parameters):
            setattr(old, own, nn.Parameter(old.get_parameter(own).repeat(1, 1, ALPHA)))
    model.config.norm_groups = M
    return randomized(model).eval()


@pytest.mark.parametrize(("family", "older"), [("bert", False), ("bert", True), ("distilbert", False), ("vit", False)])
def test_a_packed_checkpoint_is_taken_apart_exactly(family: str, older: bool, tmp_path: Path) -> None:
    model, inputs = packed_of(family, older), make_inputs(family)
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        expected = model(**inputs).logits.unflatten(1, (M, CLASSES)).transpose(0, 1)
        logits = hydrant.fuse(tmp_path)(**inputs).member_logits
    assert expected.std(0).min() > 0.1
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packed")
    packed_of("bert").save_pretrained(folder)
    make_tokenizer(folder / "words").save_pretrained(folder)
    return folder


def test_the_command_fuses_a_packed_checkpoint(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="hydrant fuse"):
        load_model(checkpoint)
    done = run_cli("fuse", checkpoint, "-o", tmp_path / "out")
    assert "4 members of bert from a packed checkpoint" in done.stdout, done.stderr
    with hydrant.load(tmp_path / "out", backend="torch") as predictor:
        assert predictor.predict(["hello world"]).mutual_information[0] > 0


REFUSED: list[tuple[str, Any]] = [
    ("norm_groups", 1),
    ("num_attention_heads", 1),
    ("dinov2", None),
    ("bert.encoder.layer.1.output.dense.weight", lambda maps: torch.block_diag(*maps)),
    ("bert.encoder.layer.0.attention.self.query.weight", lambda maps: torch.block_diag(*maps)),
    ("bert.pooler.dense.weight", lambda maps: maps[:1]),
    ("classifier.weight", lambda maps: maps[:, 1:]),
    ("bert.embeddings.word_embeddings.weight", lambda table: table[:, :16]),
]


@pytest.mark.parametrize(("name", "change"), REFUSED)
def test_what_mixes_members_is_refused_by_name(name: str, change: Any, tmp_path: Path) -> None:
    model = packed_of("dinov2" if name == "dinov2" else "bert")
    state = model.state_dict()
    if callable(change):
        state[name] = change(state[name]).contiguous()
    else:
        setattr(model.config, name, change)
    model.save_pretrained(tmp_path, state_dict=state)
    with pytest.raises(UnsupportedModelError, match=name):
        load_members(tmp_path)


COMPARE = """
import importlib, json, sys, types
import torch

for name in ("torch_uncertainty", "torch_uncertainty.layers"):  # without their __init__, which import much more
    sys.modules[name] = package = types.ModuleType(name)
    package.__path__ = [f"{sys.argv[1]}/{name.replace('.', '/')}"]
tu = importlib.import_module("torch_uncertainty.layers.packed")
torch.set_grad_enabled(False)
torch.manual_seed(0)
M, ALPHA, D, H, W = 4, 2, 16, 2, 8
x = torch.randn(3, 5, M * W)
streams = x.chunk(M, -1)
linear = tu.PackedLinear(D, 3 * D, ALPHA, M)
maps = [torch.nn.functional.linear(*each) for each in zip(streams, linear.weight, linear.bias.chunk(M))]
attention = tu.PackedMultiheadAttention(D, H, ALPHA, M, batch_first=True).eval()
biases = attention.in_proj_bias.normal_().reshape(3, M, W).transpose(0, 1).flatten(1)
narrow = []
last = attention.out_proj_bias.normal_().chunk(M)
for values in zip(attention.in_proj_weight, biases, attention.out_proj_weight, last):
    one = torch.nn.MultiheadAttention(W, H, batch_first=True).eval()
    one.load_state_dict(dict(zip(("in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"), values)))
    narrow.append(one(*[streams[len(narrow)]] * 3)[0])
norms = [torch.nn.functional.layer_norm(stream, (W,)) for stream in streams]
pairs = {
    "linear": (linear(x), maps), "attention": (attention(x, x.clone(), x.clone())[0], narrow),
    "norm": (tu.PackedLayerNorm(D, M, ALPHA, first=True)(x), norms),
    "self-attention": (attention(x, x, x)[0], narrow), "default norm": (tu.PackedLayerNorm(D, M, ALPHA)(x), norms),
}
print(json.dumps({name: (own - torch.cat(each, -1)).abs().max().item() for name, (own, each) in pairs.items()}))
"""


def test_packed_layers_of_torch_uncertainty_are_narrow_models() -> None:
    environment = own_environment(Path(__file__).with_name("packed.txt")).parents[1]
    packages = str(next(environment.glob("lib/*/site-packages")))
    words, path = [sys.executable, "-c", COMPARE, packages], {**os.environ, "PYTHONPATH": packages}
    done = subprocess.run(words, check=False, capture_output=True, text=True, env=path)
    assert done.returncode == 0, done.stderr
    exact = {name: difference < 1e-6 for name, difference in json.loads(done.stdout).items()}
    mixed = {"self-attention": False, "default norm": False}  # why in_proj_weight and unnamed norms are refused
    assert exact == {"linear": True, "attention": True, "norm": True, **mixed}
