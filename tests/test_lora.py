"""LoRA-Ensembles: fused module and graph against PEFT's own forward, one adapter at a time."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import oracle
import peft
import pytest
import torch
from hydrant import GraphForm, HeadPlan, HydrantError, export_onnx, fuse, load_ensemble, save_bundle
from hydrant.bundle.architecture import PROJECTIONS
from hydrant.models.family_registry import architecture_of
from hydrant.models.plan_cost import cheaper_forms
from support import CLASSES, HEADS, LAYERS, make_inputs, make_model, random_plan, stdout_of
from test_cost import assert_cost
from test_parity import run_onnx

TARGETS = {
    "bert": ["query", "key", "value", "attention.output.dense"],
    "roberta": ["query", "key", "value", "attention.output.dense"],
    "distilbert": ["q_lin", "k_lin", "v_lin", "out_lin"],
    "vit": ["q_proj", "k_proj", "v_proj", "o_proj"],
    "deit": ["q_proj", "k_proj", "v_proj", "o_proj"],
    "electra": ["query", "key", "value", "attention.output.dense"],
    "modernbert": ["Wqkv", "attn.Wo"],
    "dinov2": ["q_proj", "k_proj", "v_proj", "o_proj", "fc2"],
    "clip-classifier": ["q_proj", "k_proj", "v_proj", "out_proj"],
}
REWRITES = ("shared-trunk", "fork-heads", "pooled-token", "fold-norms", "fold-softmax-scale", "drop-key-bias",
            "fold-value-bias", "absorb-keys")  # fmt: skip
Form = tuple[Literal["unrolled", "grouped"], Sequence[str]]
FORMS: tuple[Form, ...] = (("unrolled", ()), ("grouped", REWRITES), ("unrolled", REWRITES), ("grouped", ()))
LOW_RANKS = ("merge", "keep", "auto")
SOME: dict[str, Sequence[Form]] = {"merge": FORMS[:2], "keep": FORMS[2:], "auto": FORMS[:1]}
WITH: dict[str, Sequence[Form]] = {"merge": FORMS[:1], "keep": FORMS[3:], "auto": FORMS[3:]}
"""Graph forms by the form of updates: a selection, and forms with the rewrites."""

ATTENTION = ("probabilities", "predictive_entropy", "expected_entropy", "mutual_information", "disagreement")


def make_adapter(family: str, folder: Path, seed: int, targets: Sequence[str] | None = None, **settings: Any) -> Path:
    """A random adapter of ``make_model(family)``, all its tensors non-zero, as PEFT saves it."""
    saved = ["classifier", "pooler"] if family == "bert" else ["classifier"]
    chosen = {"r": 3, "lora_alpha": 5, "modules_to_save": saved, **settings}
    config = peft.LoraConfig(target_modules=list(targets or TARGETS[family]), **chosen)
    model = peft.get_peft_model(make_model(family), config)
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in (p for p in model.parameters() if p.requires_grad):
            parameter.normal_(0, 0.3)
    model.create_or_update_model_card = lambda folder: None  # the model card takes as long as the rest
    model.save_pretrained(folder)
    return folder


def peft_logits(family: str, folders: Sequence[Path], inputs: dict[str, torch.Tensor], plan: Any = None) -> np.ndarray:
    """Logits [M, B, C] of PEFT's own forward, member by member; pruned heads are silenced by hooks."""
    logits = []
    for member, folder in enumerate(folders):
        base = make_model(family)
        model = peft.PeftModel.from_pretrained(base, folder).eval()
        if plan is None:
            with torch.no_grad():
                logits.append(model(**inputs).logits.double().numpy())
        else:
            logits.append(oracle.member_logits(model.get_base_model(), plan.members[member], HEADS, inputs))
    return np.stack(logits)


def assert_parity(
    family: str,
    folders: Sequence[Path],
    folder: Path,
    plan: Any = None,
    forms: Sequence[Form] = FORMS,
    logits: np.ndarray | None = None,
    **options: Any,
) -> Any:
    """Fused module within 1e-5 of PEFT (or of its logits, if given), graphs of these forms within 1e-4."""
    inputs = make_inputs(family)
    logits = peft_logits(family, folders, inputs, plan) if logits is None else logits
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
    for lowering, without in forms:
        path = export_onnx(folder, form=GraphForm(lowering=lowering, member_outputs=True, without=without))
        outputs = run_onnx(path, inputs)
        np.testing.assert_allclose(outputs["member_probabilities"], members.transpose(1, 0, 2), atol=1e-4)
        for name in ATTENTION:
            np.testing.assert_allclose(outputs[name], expected[name], atol=1e-4, err_msg=f"{lowering} {name}")
    return ensemble


@pytest.mark.parametrize("family", sorted(TARGETS))
def test_members_are_those_of_peft(family: str, tmp_path: Path) -> None:
    folders = [make_adapter(family, tmp_path / f"a{m}", m, r=2 + m, use_rslora=m == 1) for m in range(3)]
    logits = peft_logits(family, folders, make_inputs(family))
    own = fuse(make_model(family)).state_dict()
    for low_rank in LOW_RANKS:
        ensemble = assert_parity(family, folders, tmp_path / low_rank, None, SOME[low_rank], logits, low_rank=low_rank)
        assert ensemble.plan.method == "lora"
        assert [source["name"] for source in ensemble.provenance["adapters"]] == ["a0", "a1", "a2"]
        weights = ensemble.state_dict()
        shared = {name for name, tensor in weights.items() if tensor.shape[0] == 1}
        base = {name: tensor for name, tensor in own.items() if name in shared}
        assert any("mlp" in name for name in shared)
        assert all(torch.equal(weights[name], tensor) for name, tensor in base.items() if "attention." not in name)


def test_one_adapter_is_kept_and_members_are_exported_in_half_precision(tmp_path: Path) -> None:
    folders = [make_adapter("bert", tmp_path / f"a{member}", member) for member in range(2)]
    inputs = make_inputs("bert")
    assert_parity("bert", folders[:1], tmp_path / "one", None, FORMS[:1], low_rank="keep")
    for low_rank in LOW_RANKS[:2]:
        bundle = save_bundle(fuse(make_model("bert"), adapters=folders, low_rank=low_rank), tmp_path / low_rank)
        members = run_onnx(export_onnx(bundle, "fp16", GraphForm(member_outputs=True)), inputs)["member_probabilities"]
        expected = oracle.softmax(peft_logits("bert", folders, inputs))
        np.testing.assert_allclose(members.swapaxes(0, 1), expected, atol=3e-3)


@pytest.mark.parametrize("family", ["bert", "roberta", "vit"])
def test_adapters_bring_the_classifier_of_a_base_model_without_one(family: str, tmp_path: Path) -> None:
    model: Any = make_model(family)
    model.base_model.save_pretrained(tmp_path / "base")
    inputs, logits = make_inputs(family), []
    folders = [make_adapter(family, tmp_path / f"a{member}", member) for member in range(2)]
    for folder in folders:
        base = type(model).from_pretrained(tmp_path / "base", num_labels=CLASSES)
        with torch.no_grad():
            logits.append(peft.PeftModel.from_pretrained(base, folder).eval()(**inputs).logits.numpy())
    with torch.no_grad():
        member_logits = fuse(tmp_path / "base", adapters=folders)(**inputs).member_logits
    np.testing.assert_allclose(member_logits, logits, atol=5e-5, rtol=5e-5)


@pytest.mark.parametrize(
    ("family", "saved", "name"), [("bert", ["classifier"], "bert.pooler.dense.bias"), ("vit", None, "classifier.bias")]
)
def test_missing_weights_are_rejected(family: str, saved: list[str] | None, name: str, tmp_path: Path) -> None:
    base: Any = make_model(family).base_model
    base.pooler = None  # as published beside a language model
    base.save_pretrained(tmp_path / "base")
    adapter = make_adapter(family, tmp_path / "adapter", 0, modules_to_save=saved)
    with pytest.raises(HydrantError, match=name):
        fuse(tmp_path / "base", adapters=[adapter])


CHANGED = {
    "query and value": {"targets": ("query", "value")},
    "output alone": {"targets": ("output",)},
    "last layer": {"layers_to_transform": [LAYERS - 1]},
    "middle layer": {"targets": ("query", "output"), "layers_to_transform": [1]},
    "MLP of one layer": {"targets": ("query", "mlp"), "layers_to_transform": [1]},
    "MLP alone": {"targets": ("mlp",), "modules_to_save": None},
}
NAMES = {
    "bert": {"query": "query", "value": "value", "output": "attention.output.dense", "mlp": "intermediate.dense"},
    "vit": {"query": "q_proj", "value": "v_proj", "output": "o_proj", "mlp": "fc2"},
}


@pytest.mark.parametrize(
    ("family", "changed"), [*(("bert", changed) for changed in CHANGED), ("vit", "last layer"), ("vit", "MLP alone")]
)
def test_adapters_of_every_part(family: str, changed: str, tmp_path: Path) -> None:
    """Parity, and a cost model that counts the operations, parameters and bytes of the graph."""
    settings = dict(CHANGED[changed])
    targets = [NAMES[family][name] for name in settings.pop("targets", ("query", "value", "output"))]
    folders = [make_adapter(family, tmp_path / f"a{m}", m, targets, **settings) for m in range(3)]
    logits = peft_logits(family, folders, make_inputs(family))
    for low_rank in LOW_RANKS:
        assert_parity(family, folders, tmp_path / low_rank, None, WITH[low_rank], logits, low_rank=low_rank)
        assert_cost(tmp_path / low_rank, make_inputs(family))


@pytest.mark.parametrize("low_rank", ["merge", "auto"])
@pytest.mark.parametrize("family", ["bert", "vit"])
def test_heads_of_adapted_members_may_be_pruned(family: str, low_rank: str, tmp_path: Path) -> None:
    folders = [make_adapter(family, tmp_path / f"a{m}", m) for m in range(3)]
    plan = random_plan(family, 3)
    forms = FORMS[:2] if low_rank == "merge" else FORMS[2:]
    ensemble = assert_parity(family, folders, tmp_path / "bundle", plan, forms, low_rank=low_rank)
    assert_cost(tmp_path / "bundle", make_inputs(family))
    assert ensemble.plan.method == "random"


def test_cheap_updates_stay_low_rank_and_expensive_ones_are_merged() -> None:
    """All members share the fork layer's input; behind it, reading weights dominates only for short texts."""
    base = architecture_of(make_model("bert"))
    large = replace(base, layers=4, heads=12, head_width=64, width=768, mlp_width=3072, positions=512)
    plan = HeadPlan.all_heads("bert", 4, 12, 3)
    names = [f"layers.{layer}.attention.{projection}" for layer in (1, 2, 3) for projection in PROJECTIONS]
    forms = {name: {"rank": 8, "low_rank": False} for name in names}

    def kept(architecture: Any, forms: Any = forms) -> list[str]:
        chosen = cheaper_forms(architecture, plan, forms, frozenset({"classifier"}))
        assert set(chosen) == set(forms)
        return [name for name, form in chosen.items() if form["low_rank"]]

    assert kept(large) == [f"layers.1.attention.{projection}" for projection in PROJECTIONS[:3]]
    assert set(kept(replace(large, positions=8))) > set(kept(large))
    assert kept(large, {name: {"rank": 700, "low_rank": False} for name in names}) == []
    assert kept(large, {names[0]: forms[names[0]], "layers.2.mlp.up": {"rank": 2, "low_rank": False}}) == names[:1]


def test_command_line(bert_checkpoint: Path, tmp_path: Path) -> None:
    """Adapters of a checkpoint on disk, with their names and digests in the manifest."""
    folders = [make_adapter("bert", tmp_path / f"a{m}", m, ("query", "value"), r=2) for m in range(2)]
    adapters = [word for folder in folders for word in ("--adapter", folder)]
    out = tmp_path / "out"
    done = stdout_of("fuse", bert_checkpoint, *adapters, "-o", out)
    assert "adapters      a0, a1, rank 2" in done
    manifest = json.loads((out / "hydrant.json").read_text())
    digest = hashlib.sha256((folders[1] / "adapter_model.safetensors").read_bytes()).hexdigest()
    adapter = manifest["fusion"]["adapters"][1]
    assert (adapter["name"], adapter["sha256"]) == ("a1", digest)
    assert json.loads((out / "plan.json").read_text())["method"] == "lora"
