"""BatchEnsembles, compared with factors that hooks apply to the untouched Hugging Face model."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import hydrant
import numpy as np
import oracle
import pytest
import torch
from hydrant import BatchEnsemble, HeadPlan, Reading, fuse, load_ensemble, save_bundle, tune
from hydrant.cli.inspect import inspect_bundle, inspect_text
from hydrant.errors import InputError
from hydrant.fusion import FusedClassifier
from hydrant.models.checkpoint import load_processor
from hydrant.tuning import job, loop
from hydrant.tuning.job import shared_form
from hydrant.tuning.optimizer import decays
from hydrant.tuning.rank_one import draw, merged, with_factors
from support import FAMILIES, HEADS, LAYERS, OLDEST, make_inputs, make_model, random_plan
from test_cost import assert_cost
from test_tune import interrupted_after, pictures, same, sentences, state, weights

LINEAR = {
    "bert": ("bert.encoder.layer.{}.", "attention.self.query", "attention.self.key", "attention.self.value",
             "attention.output.dense", "intermediate.dense", "output.dense"),
    "roberta": ("roberta.encoder.layer.{}.", "attention.self.query", "attention.self.key", "attention.self.value",
                "attention.output.dense", "intermediate.dense", "output.dense"),
    "distilbert": ("distilbert.transformer.layer.{}.", "attention.q_lin", "attention.k_lin", "attention.v_lin",
                   "attention.out_lin", "ffn.lin1", "ffn.lin2"),
    "vit": ("vit.layers.{}.", "attention.q_proj", "attention.k_proj", "attention.v_proj", "attention.o_proj",
            "mlp.fc1", "mlp.fc2"),
    "deit": ("deit.layers.{}.", "attention.q_proj", "attention.k_proj", "attention.v_proj", "attention.o_proj",
             "mlp.fc1", "mlp.fc2"),
    "clip": ("vision_model.encoder.layers.{}.", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
             "self_attn.out_proj", "mlp.fc1", "mlp.fc2"),
}  # fmt: skip
LINEAR["electra"] = ("electra.encoder.layer.{}.", *LINEAR["bert"][1:])
LINEAR["clip-classifier"] = LINEAR["clip"]
LINEAR["dinov2"] = ("dinov2.encoder.layer.{}.", *LINEAR["vit"][1:])
"""Hugging Face's linear maps of a layer: query, key, value, output projection, both of the MLP."""
if OLDEST:
    LINEAR["dinov2"] = ("dinov2.encoder.layer.{}.", "attention.attention.query", "attention.attention.key",
                        "attention.attention.value", "attention.output.dense", "mlp.fc1", "mlp.fc2")  # fmt: skip

LAST = {
    "bert": ("bert.pooler.dense", "classifier"), "roberta": ("classifier.dense", "classifier.out_proj"),
    "distilbert": ("pre_classifier", "classifier"), "vit": (None, "classifier"), "deit": (None, "classifier"),
    "clip": ("visual_projection", "classifier"), "clip-classifier": (None, "classifier"),
    "dinov2": (None, "classifier"),
    "electra": ("classifier.dense", "classifier.out_proj"),
}  # fmt: skip
OURS = ("attention.qkv", "attention.qkv", "attention.qkv", "attention.output", "mlp.up", "mlp.down")
Factors = dict[str, tuple[torch.Tensor, torch.Tensor]]


def factors_of(family: str, tensors: Mapping[str, torch.Tensor], member: int) -> Factors:
    """Hugging Face's module → a member's r [in] and s [out], for the modules with factors."""
    prefix, *names = LINEAR[family]
    places = [
        (f"layers.{layer}.{ours}", f"{prefix.format(layer)}{name}", index if index < 3 else None)
        for layer in range(LAYERS)
        for index, (ours, name) in enumerate(zip(OURS, names, strict=True))
    ]
    places += [(ours, name, None) for ours, name in zip(("pooler", "classifier"), LAST[family], strict=True) if name]
    factors = {}
    for ours, name, third in places:
        if f"{ours}.input_factor" in tensors:
            r, s = tensors[f"{ours}.input_factor"][member], tensors[f"{ours}.output_factor"][member, 0]
            factors[name] = (r[0], s) if third is None else (r[third], s.chunk(3)[third])
    return factors


@contextmanager
def factored(model: torch.nn.Module, factors: Factors) -> Iterator[None]:
    """Make every named linear map ((x ∘ r) W) ∘ s + b during the block, as in the paper."""
    handles = []
    for name, (r, s) in factors.items():
        linear: Any = model.get_submodule(name)
        bias = 0 if linear.bias is None else linear.bias.detach()
        handles += [
            linear.register_forward_pre_hook(lambda _, inputs, r=r: (inputs[0] * r,)),
            linear.register_forward_hook(lambda _, __, out, s=s, bias=bias: (out - bias) * s + bias),
        ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def expected_logits(family: str, tensors: Mapping[str, torch.Tensor], plan: HeadPlan) -> np.ndarray:
    """[M, B, C] of the Hugging Face model with the members' factors, pruned heads silenced."""
    model, logits = make_model(family), []
    for member, keep in enumerate(plan.members):
        with factored(model, factors_of(family, tensors, member)), torch.no_grad(), oracle.silenced(model, keep, HEADS):
            logits.append(model(**make_inputs(family)).logits.numpy())
    return np.stack(logits)


def with_drawn_factors(family: str, plan: HeadPlan | None, first: int, deviation: float = 0.3) -> FusedClassifier:
    """A tiny model with factors around one."""
    ensemble = fuse(make_model(family), plan, members=3 if plan is None else None)
    module = FusedClassifier(
        ensemble.architecture, ensemble.plan, shared_form(ensemble.state_dict()), ensemble.labels
    ).eval()
    with_factors(module, first)
    draw(module, deviation, seed=4)
    return module


@pytest.mark.parametrize("pruned", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_factors_are_those_of_the_paper(family: str, pruned: bool) -> None:
    """Checked before and after merging; all maps have factors except those of pruned heads."""
    plan = random_plan(family, 3) if pruned else None
    module = with_drawn_factors(family, plan, 0 if pruned else 1)
    tensors = {name: tensor.detach() for name, tensor in module.named_parameters()}
    last = 2 if module.pooler is not None else 1
    assert len(factors_of(family, tensors, 0)) == (2 * LAYERS if pruned else 6 * (LAYERS - 1)) + last
    logits = expected_logits(family, tensors, module.plan)
    assert np.abs(logits[0] - logits[1]).max() > 0.1
    whole = FusedClassifier(module.architecture, module.plan, merged(tensors), module.labels).eval()
    with torch.no_grad():
        for each in (module, whole):
            np.testing.assert_allclose(each(**make_inputs(family)).member_logits, logits, atol=1e-4, rtol=1e-4)
    assert whole.trunk == (0 if pruned else 1)


READING = Reading(batch_size=4)
NUMBERS: dict[str, Any] = {"epochs": 4, "learning_rate": 3e-3, "fork_from": 1}


def alike(folder: Path, checkpoint: Path, modality: str = "text") -> Path:
    """A bundle of three equal members."""
    return save_bundle(fuse(checkpoint, members=3), folder, load_processor(checkpoint, modality)).path


@pytest.fixture(scope="module")
def source(bert_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return alike(tmp_path_factory.mktemp("alike") / "bundle", bert_checkpoint)


@pytest.fixture
def bundle(source: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(source, tmp_path / "bundle"))


@pytest.mark.parametrize("family", ["bert", "vit"])
def test_a_tuned_bundle_is_the_checkpoint_with_its_factors(
    family: str, bert_checkpoint: Path, vit_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only factors are tuned, so the oracle is the untouched checkpoint; cost, graph and trunk are checked."""
    text = family == "bert"
    path = alike(tmp_path / "bundle", bert_checkpoint if text else vit_checkpoint, "text" if text else "image")
    caught: list[dict[str, torch.Tensor]] = []

    def watched(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        caught.append(dict(tensors))
        return merged(tensors)

    monkeypatch.setattr(job, "merged", watched)
    how = BatchEnsemble(epochs=6, learning_rate=3e-2, fork_from=1, factors_only=True)
    report = tune(path, (sentences if text else pictures)(100, 0), how, reading=READING, output=tmp_path / "tuned")
    assert report.improved
    assert report.frozen == 1
    tuned = load_ensemble(tmp_path / "tuned")
    with torch.no_grad():
        logits = tuned(**make_inputs(family)).member_logits
    np.testing.assert_allclose(logits, expected_logits(family, caught[0], tuned.plan), atol=1e-4, rtol=1e-4)
    assert float(logits.std(dim=0).max()) > 0.01
    assert tuned.trunk == 1
    before = weights(path)
    own = {name for name, tensor in tuned.state_dict().items() if tensor.shape[0] == 3}
    assert not any(name.startswith(("layers.0.", "embeddings.")) or "norm" in name for name in own)
    assert all(torch.equal(tensor, before[name]) for name, tensor in tuned.state_dict().items() if name not in own)
    assert_cost(tmp_path / "tuned", make_inputs(family))
    assert hydrant.estimate_cost(tmp_path / "tuned").fork == 1
    assert hydrant.verify(tmp_path / "tuned", reading=Reading(examples=8)).passed
    facts = inspect_bundle(tmp_path / "tuned")
    assert "BatchEnsemble factors from layer 1 on" in inspect_text(facts)
    assert "members differ from layer 1 on" in inspect_text(facts)
    with pytest.raises(InputError, match="earlier tuning"):
        tune(tmp_path / "tuned", sentences(30, 0), BatchEnsemble())


def test_an_interrupted_run_resumes_with_the_same_weights(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted in the first epoch, so that the drawn factors come from the state, and again after an epoch."""
    data, numbers = sentences(90, 0), {**NUMBERS, "epochs": 3}
    settle = partial(tune, bundle, data, reading=READING)
    expected = settle(BatchEnsemble(**numbers), output=tmp_path / "whole")
    assert expected.improved
    before, how = state(bundle), BatchEnsemble(**numbers, state=tmp_path / "part")
    for updates, seconds in ((3, 0.0), (20, 999.0)):
        monkeypatch.setattr(loop, "SAVE_SECONDS", seconds)
        with pytest.raises(KeyboardInterrupt):
            settle(how, output=tmp_path / "out", progress=interrupted_after(updates))
        assert (tmp_path / "part").exists()
    assert settle(how, output=tmp_path / "out").history == expected.history
    assert same(weights(tmp_path / "out"), weights(tmp_path / "whole"))
    assert state(bundle) == before


@pytest.mark.parametrize(("options", "message"), [
    ({"deviation": float("nan")}, r"deviation is 'nan'"),
    ({"factors_only": True, "unfreeze": True}, r"expected one of them"),
    ({"fork_from": 3}, r"fork_from is '3'; expected a layer"),
])  # fmt: skip
def test_invalid_options_are_rejected(options: dict[str, Any], message: str, bundle: Path) -> None:
    with pytest.raises(InputError, match=message):
        tune(bundle, sentences(30, 0), BatchEnsemble(**options))


@pytest.mark.parametrize("family", ["bert", "vit"])
def test_factors_of_one_change_nothing(family: str) -> None:
    ensemble = fuse(make_model(family), members=3)
    module = FusedClassifier(ensemble.architecture, ensemble.plan, shared_form(ensemble.state_dict()), ["x"] * 5).eval()
    before = module.state_dict()
    factored_maps = with_factors(module, 0)
    with torch.no_grad():
        logits, plain = (each(**make_inputs(family)).member_logits for each in (module, ensemble))
    torch.testing.assert_close(logits, plain, atol=1e-5, rtol=1e-5)
    whole = merged(dict(module.named_parameters()))
    assert all(torch.equal(whole[name], tensor.expand_as(whole[name])) for name, tensor in before.items())
    assert {name.rpartition(".")[0] for name, tensor in whole.items() if tensor.shape[0] == 3} == set(factored_maps)
    assert not any(decays(name) for name, _ in module.named_parameters() if name.endswith("_factor"))
