"""LoRA-Ensembles: fused module and graph against PEFT's own forward, one adapter at a time."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import peft
import pytest
import torch
from hydrant import HeadPlan, HydrantError, export_onnx, fuse, load_ensemble, save_bundle
from safetensors.torch import load_file, save_file
from support import FAMILIES, HEADS, LAYERS, make_inputs, make_model, run_cli
from test_parity import run_onnx

PROJECTIONS = {
    "bert": ["query", "key", "value", "attention.output.dense"],
    "roberta": ["query", "key", "value", "attention.output.dense"],
    "distilbert": ["q_lin", "k_lin", "v_lin", "out_lin"],
    "vit": ["q_proj", "k_proj", "v_proj", "o_proj"],
    "deit": ["q_proj", "k_proj", "v_proj", "o_proj"],
}
ATTENTION = ("probabilities", "predictive_entropy", "expected_entropy", "mutual_information", "disagreement")


def make_adapter(family: str, folder: Path, seed: int, targets: Sequence[str] | None = None, **settings: Any) -> Path:
    """A random adapter of ``make_model(family)``, all its tensors non-zero, as PEFT saves it."""
    saved = ["classifier", "pooler"] if family == "bert" else ["classifier"]
    chosen = {"r": 3, "lora_alpha": 5, "modules_to_save": saved, **settings}
    config = peft.LoraConfig(target_modules=list(targets or PROJECTIONS[family]), **chosen)
    model = peft.get_peft_model(make_model(family), config)
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in (p for p in model.parameters() if p.requires_grad):
            parameter.normal_(0, 0.3)
    model.save_pretrained(folder)
    return folder


def peft_logits(family: str, folders: Sequence[Path], inputs: dict[str, torch.Tensor], plan: Any = None) -> np.ndarray:
    """Logits [M, B, C] of PEFT's own forward, member by member; pruned heads are silenced by hooks."""
    found = []
    for member, folder in enumerate(folders):
        base = make_model(family)
        model = peft.PeftModel.from_pretrained(base, folder).eval()
        if plan is None:
            with torch.no_grad():
                found.append(model(**inputs).logits.double().numpy())
        else:
            found.append(oracle.member_logits(model.get_base_model(), plan.members[member], HEADS, inputs))
    return np.stack(found)


def assert_parity(family: str, folders: Sequence[Path], folder: Path, plan: Any = None, **options: Any) -> Any:
    """Fused module within 1e-5 of PEFT, graphs of both lowerings within 1e-4."""
    inputs = make_inputs(family)
    logits = peft_logits(family, folders, inputs, plan)
    members = oracle.softmax(logits)
    expected = oracle.uncertainty(members)
    ensemble = fuse(make_model(family), plan, adapters=list(folders), **options)
    with torch.no_grad():
        fused = ensemble(**inputs)
    np.testing.assert_allclose(fused.member_logits.softmax(-1), members, atol=1e-5)
    np.testing.assert_allclose(fused.member_logits, logits, atol=5e-5, rtol=5e-5)
    save_bundle(ensemble, folder)
    with torch.no_grad():
        again = load_ensemble(folder)(**inputs)
    assert torch.equal(again.member_logits, fused.member_logits)
    for lowering in ("unrolled", "grouped"):
        for without in ((), REWRITES):
            path = export_onnx(folder, lowering=lowering, member_outputs=True, without=without)
            found = run_onnx(path, inputs)
            np.testing.assert_allclose(found["member_probabilities"], members.transpose(1, 0, 2), atol=1e-4)
            for name in ATTENTION:
                np.testing.assert_allclose(found[name], expected[name], atol=1e-4, err_msg=f"{lowering} {name}")
    return ensemble


REWRITES = ("shared-trunk", "fork-heads", "pooled-token", "fold-norms", "fold-softmax-scale", "drop-key-bias",
            "fold-value-bias", "absorb-keys")  # fmt: skip


@pytest.mark.parametrize("low_rank", ["merge"])
@pytest.mark.parametrize("family", FAMILIES)
def test_members_are_those_of_peft(family: str, low_rank: str, tmp_path: Path) -> None:
    folders = [make_adapter(family, tmp_path / f"a{m}", m, r=2 + m, use_rslora=m == 1) for m in range(3)]
    ensemble = assert_parity(family, folders, tmp_path / "bundle", low_rank=low_rank)
    assert ensemble.plan.method == "lora"
    assert [source["name"] for source in ensemble.provenance["adapters"]] == ["a0", "a1", "a2"]
    shared = {name for name, tensor in ensemble.state_dict().items() if tensor.shape[0] == 1}
    base = {name: tensor for name, tensor in fuse(make_model(family)).state_dict().items() if name in shared}
    assert any("mlp" in name for name in shared)
    assert all(
        torch.equal(ensemble.state_dict()[name], tensor) for name, tensor in base.items() if "attention." not in name
    )
