"""The traced path: any classifier of transformers, compared with hooks of this file's own."""

from __future__ import annotations

import copy
import json
import math
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hydrant
import numpy as np
import onnx
import onnxruntime
import oracle
import peft
import pytest
import sklearn.metrics
import torch
import transformers
from hydrant import GraphForm, HeadPlan
from hydrant.bundle.store import Bundle
from hydrant.bundle.traced import Traced, read_architecture
from hydrant.errors import BundleError, InputError, MissingExtraError, PlanError, UnsupportedModelError
from hydrant.evaluation.baselines import is_whole_model
from hydrant.evaluation.profile_report import checked_settings
from hydrant.export.traced_graph import _check_range, _longest
from hydrant.families.checkpoint import load_model
from hydrant.fusion import TracedClassifier, load_reference
from hydrant.tracing.blocks import find_blocks
from hydrant.tracing.loading import described, load_traced, prepared, rebuild
from hydrant.tracing.members import all_heads, probes, trace
from hydrant.tracing.unfilled import Unfilled
from PIL import Image
from safetensors.torch import load_file
from support import make_inputs, make_model, make_tokenizer, random_plan, run_cli
from token_support import CLASSES, make_tagger
from torch import nn
from traced_support import GROUPED, TEXT, by_hooks, inputs_of, make, plan_of

FORMS = {"deberta": "masked", "qwen3": "sliced", "gemma": "sliced", "beit": "sliced"}
"""DeBERTa-v3 and Swin are compared with hooks below, where their graphs are looked at and verified."""

EXPORTED = {"deberta", "qwen3"}
"""Of either form, and of blocks whose heads share their keys."""

MEMBERS = GraphForm(member_outputs=True)


def check_hooks(name: str, ensemble: Any, bundle: Bundle, graph: Path | None = None) -> None:
    """An ensemble, its bundle in PyTorch, and its graph of ``MEMBERS`` give what the original gives under hooks."""
    model, again = make(name), hydrant.load(bundle, "torch")
    model.set_attn_implementation("eager")
    session = None if graph is None else onnxruntime.InferenceSession(str(graph), providers=["CPUExecutionProvider"])
    for batch, tokens in ((1, 3), (4, 17)):
        inputs = inputs_of(ensemble.architecture, batch, tokens)
        arrays = {key: tensor.numpy() for key, tensor in inputs.items()}
        logits = by_hooks(name, model, ensemble.plan, inputs)
        members, runs = oracle.softmax(logits), [vars(again.predict(arrays))]
        np.testing.assert_allclose(ensemble(**inputs).member_logits.numpy(), logits, atol=2e-5)
        if session is not None:
            names = [output.name for output in session.get_outputs()]
            runs.append(dict(zip(names, session.run(names, arrays), strict=True)))
            np.testing.assert_allclose(runs[-1]["member_probabilities"], members.swapaxes(0, 1), atol=2e-5)
        for found in runs:
            for key, wanted in oracle.uncertainty(members).items():
                np.testing.assert_allclose(found[key], wanted, atol=2e-5, err_msg=key)
            energy = -np.log(np.exp(logits).sum(axis=-1)).mean(axis=0)
            np.testing.assert_allclose(found["energy"], energy, atol=1e-4)
    assert float(np.abs(logits[0] - logits[1]).max()) > 1e-4  # heads matter, so agreement means something


@pytest.mark.parametrize("name", FORMS)
def test_fused_exported_and_run_equals_hooks(name: str, tmp_path: Path) -> None:
    architecture = trace(prepared(make(name)))
    ensemble = hydrant.fuse(make(name), plan_of(architecture, fork=architecture.layers - 1), traced=True)
    assert isinstance(ensemble, TracedClassifier)
    assert ensemble.architecture.form == FORMS[name]
    bundle = hydrant.save_bundle(ensemble, tmp_path / "out", tensors_only=True)
    check_hooks(name, ensemble, bundle, hydrant.export_onnx(bundle, form=MEMBERS) if name in EXPORTED else None)


DECLARED = ("bert", "roberta", "xlm-roberta", "camembert", "distilbert", "electra", "modernbert", "vit", "deit",
            "dinov2", "dinov2_with_registers", "clip-classifier", "siglip")  # fmt: skip


@pytest.mark.parametrize("family", DECLARED)
def test_a_declared_family_traced_is_the_same_ensemble(family: str) -> None:
    """Either path is the other's oracle: the weights in hydrant's own module, and the model's own code."""
    model, plan, inputs = make_model(family), random_plan(family, 3), make_inputs(family)
    with torch.no_grad():
        declared, traced = hydrant.fuse(model, plan)(**inputs), hydrant.fuse(model, plan, traced=True)(**inputs)
    for name in ("member_probabilities", "probabilities", "mutual_information", "energy"):
        np.testing.assert_allclose(getattr(traced, name), getattr(declared, name), rtol=1e-4, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("family", CLASSES)
def test_a_declared_tagger_traced_is_the_same_ensemble(family: str) -> None:
    """Its distance, too, reads the same vectors; of a dense layer on every token, those behind it."""
    model, plan, inputs = make_tagger(family), random_plan(family, 2), make_inputs(family)
    real, taps = inputs["attention_mask"].bool(), ("layers.0.token", "last.0", "layers.1.token", "last.1")
    with torch.no_grad():
        either = hydrant.fuse(model, plan), hydrant.fuse(model, plan, traced=True)
        declared, traced = (ensemble(**inputs) for ensemble in either)
        wanted, found = (ensemble.features(taps, **inputs)[1] for ensemble in either)
        wanted[[1, 3]] = either[0].penultimate(wanted[[1, 3]])
    torch.testing.assert_close(found[:, real], wanted[:, real], rtol=1e-3, atol=1e-4)
    for name in ("probabilities", "mutual_information", "energy"):
        np.testing.assert_allclose(
            getattr(traced, name)[real].numpy(), getattr(declared, name)[real].numpy(), atol=1e-4
        )


def test_a_graph_that_holds_for_short_texts_alone_is_refused(tmp_path: Path) -> None:
    """The exporter sees texts of a few tokens, and takes the way that these go for good."""
    bundle = hydrant.save_bundle(hydrant.fuse(make("minimax"), traced=True), tmp_path / "out", tensors_only=True)
    words = "writes MiniMaxForTokenClassification for up to 32 tokens alone, and this bundle's are up to 40; run the"
    with pytest.raises(UnsupportedModelError, match=words):
        hydrant.export_onnx(bundle)
    assert not bundle.has("model.fp32.onnx")


class Moments(nn.Module):
    """Adds a table of positions, as long as it is, to the samples."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.ones(most))

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        return samples + self.table[: samples.shape[1]]


def test_a_graph_of_sounds_has_to_hold_for_ten_minutes() -> None:
    architecture, free = described(prepared(make("hubert"))), torch.export.Dim.DYNAMIC
    most = 600 * 8000
    assert _longest(architecture, {"hydrant.preprocessing": "null"}) == 600 * 16000
    assert _longest(architecture, {"hydrant.preprocessing": '{"sampling_rate": 8000}'}) == most
    for samples in (most - 1, most):
        program = torch.export.export(Moments(samples), (torch.ones(2, 9),), dynamic_shapes=({0: free, 1: free},))
        _check_range(program, architecture, 0, 2**31)
        if samples == most:
            _check_range(program, architecture, 1, most)
            continue
        with pytest.raises(
            UnsupportedModelError, match=rf"up to {samples} samples alone, .* are up to {most}; run the"
        ):
            _check_range(program, architecture, 1, most)


def test_threads_that_share_an_ensemble_get_their_own_vectors() -> None:
    """What each classifier reads is noted while it runs, and by whom."""
    model = make("mpnet")
    ensemble: Any = hydrant.fuse(model, plan_of(trace(prepared(model))), traced=True)
    ensemble = copy.deepcopy(ensemble)  # a copy has a lock of its own
    inputs = [inputs_of(ensemble.architecture, 2, 3 + 2 * thread) for thread in range(6)]

    def vectors(given: dict[str, torch.Tensor]) -> torch.Tensor:
        with torch.inference_mode():
            return ensemble.last_vectors(**given)[1]

    alone = [vectors(given) for given in inputs]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(len(inputs)) as threads:
            together = list(threads.map(vectors, inputs * 12))
    finally:
        sys.setswitchinterval(before)
    for found, wanted in zip(together, alone * 12, strict=True):
        torch.testing.assert_close(found, wanted)


def test_the_caller_keeps_a_model_that_is_trainable_and_its_own() -> None:
    model = make("deberta-v3").train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    plan = hydrant.plan_heads(model, method="random", keep=2, traced=True)
    ensemble: Any = hydrant.fuse(model, plan, traced=True)
    assert model.training
    assert all(weight.requires_grad for weight in model.parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    given = inputs_of(ensemble.architecture, 2, 5)
    logits = ensemble(**given).member_logits
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.zero_()
    assert torch.equal(ensemble(**given).member_logits, logits)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float64])
def test_a_model_in_memory_of_another_type_is_what_its_checkpoint_is(kind: torch.dtype, tmp_path: Path) -> None:
    make("mpnet").to(kind).save_pretrained(tmp_path / "checkpoint")
    model = transformers.MPNetForSequenceClassification.from_pretrained(tmp_path / "checkpoint", dtype=kind)
    either = [
        hydrant.fuse(source, hydrant.plan_heads(source, method="random", keep=2, traced=True), traced=True)
        for source in (tmp_path / "checkpoint", model)
    ]
    saved = [hydrant.save_bundle(fused, tmp_path / f"{place}", tensors_only=True) for place, fused in enumerate(either)]
    for name in ("checkpoint.json", "config.json", "fused.safetensors", "plan.json"):
        assert saved[0].file(name).read_bytes() == saved[1].file(name).read_bytes(), name
    assert {weight.dtype for weight in model.parameters()} == {kind}
    assert model.config.dtype == kind


# What is found


@pytest.mark.parametrize(("name", "groups"), [("qwen3", 2), ("gpt2", 4), ("swin", 4), ("albert", 4)])
def test_blocks_are_found_by_running(name: str, groups: int) -> None:
    found = trace(prepared(make(name)))
    assert [block.heads for block in found.blocks] == {"swin": [2, 4, 4], "albert": [4]}.get(name, [4, 4])
    assert found.blocks[-1].groups == groups
    assert found.width == 32
    assert Traced.from_json(json.loads(json.dumps(found.to_json()))) == found


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_blocks_are_found_where_a_head_is_as_wide_as_the_model(groups: int) -> None:
    sizes = {**GROUPED, "hidden_size": 12, "num_key_value_heads": groups, "num_hidden_layers": 1}
    model = transformers.Qwen3ForSequenceClassification(transformers.Qwen3Config(**sizes))
    [block] = trace(prepared(model)).blocks
    assert (block.heads, block.groups, block.head_width) == (4, groups, 12)
    assert [name.rpartition(".")[2] for name in block.inputs] == ["q_proj", "k_proj", "v_proj"]


class Mixed(nn.Module):
    """Attention whose heads are mixed before the output projection, and a classifier over it."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.table = nn.Embedding(99, 32)
        self.qkv, self.o_proj, self.classifier = nn.Linear(32, 96), nn.Linear(32, 32), nn.Linear(32, 3)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
        x = self.table(input_ids)
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        heads = (q @ k.mT + (attention_mask[:, None, None] - 1) * 1e4).softmax(dim=-1) @ v  # [B, H, T, d_h]
        mixed = heads + heads.roll(1, dims=1)
        logits = self.classifier(self.o_proj(mixed.transpose(1, 2).flatten(2)).mean(dim=1))
        return transformers.modeling_outputs.SequenceClassifierOutput(logits=logits)


def test_heads_that_are_mixed_are_no_heads() -> None:
    model = Mixed(transformers.BertConfig(**TEXT)).eval()
    inputs = inputs_of(trace(prepared(make("deberta-v3"))), 3, 11)
    with pytest.raises(UnsupportedModelError, match="attention heads were not understood"):
        find_blocks(model, inputs)


def test_a_model_without_a_padding_token_is_told_how_to_get_one() -> None:
    """With it, padded texts have the logits that transformers gives each text alone, without padding."""
    model = make("gpt2")
    model.config.pad_token_id = None
    texts = torch.tensor([[5, 6, 7, 8], [9, 10, 2, 2]]), torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    with torch.no_grad():
        alone = [model(texts[0][:1]).logits, model(texts[0][1:, :2]).logits]
    for padding in (None, -1, 99):
        model.config.pad_token_id = padding
        with pytest.raises(UnsupportedModelError, match=rf"pad_token_id is {padding}.*\(2\)"):
            hydrant.fuse(model, traced=True)
    model.config.pad_token_id = model.config.eos_token_id
    with torch.no_grad():
        found = hydrant.fuse(model, traced=True)(input_ids=texts[0], attention_mask=texts[1]).member_logits[0]
    torch.testing.assert_close(found, torch.cat(alone), atol=1e-5, rtol=1e-5)


def test_a_class_without_attention_is_refused() -> None:
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], num_labels=3)
    with pytest.raises(UnsupportedModelError, match="ResNetForImageClassification cannot be traced: it has no attent"):
        hydrant.fuse(transformers.ResNetForImageClassification(config).eval(), traced=True)


def test_a_class_whose_members_agree_in_no_form_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from hydrant.tracing import members

    def wrong(model: Any, blocks: Any, keep: Any) -> Any:
        return model

    monkeypatch.setattr(members, "FORMS", {"sliced": wrong, "masked": wrong})
    model = make("deberta-v3")
    plan = plan_of(trace(prepared(model)))
    with pytest.raises(UnsupportedModelError, match=r"sliced members do not work \(logits differ by .*masked members"):
        hydrant.save_bundle(hydrant.fuse(model, plan, traced=True), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"members": 2}, InputError, "members is 2 beside a plan"),
        ({"keep_separate": "mlp"}, InputError, "leave adapters"),
        ({"models": 2}, InputError, "2 models were given with traced; expected one"),
        ({"heads": 3}, PlanError, "keeps head 3, but that block has 2 heads"),
        ({"family": "bert"}, PlanError, "plan was made for a 'bert' model"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], error: type[Exception], message: str) -> None:
    model = make("swin")
    plan = HeadPlan(change.get("family", "swin"), 3, 4, (((change.get("heads", 1),), (0,), (0,)),), "random")
    options = {name: value for name, value in change.items() if name in ("members", "keep_separate")}
    with pytest.raises(error, match=message):
        hydrant.fuse([model] * change.get("models", 1), plan, traced=True, **options)


def test_other_classes_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="BertForMaskedLM cannot be traced; expected one of the"):
        described(transformers.BertForMaskedLM(transformers.BertConfig(**TEXT)))
    tagger = transformers.DebertaV2ForTokenClassification(transformers.DebertaV2Config(**{**TEXT, "num_labels": 1}))
    with pytest.raises(UnsupportedModelError, match="num_labels = 1, which hydrant does not support"):
        prepared(tagger)


def test_experts_are_batched_while_a_graph_is_written() -> None:
    """The form that exports gives what the usual one does, and is put back."""
    from hydrant.export.traced_graph import _batched_experts

    torch.manual_seed(0)
    config = transformers.MixtralConfig(**GROUPED, num_local_experts=4, num_experts_per_tok=2)
    model = transformers.MixtralForSequenceClassification(config).eval()
    inputs = inputs_of(described(model), 3, 9)
    with torch.no_grad():
        usual, before = model(**inputs).logits, config._experts_implementation
        with _batched_experts(model):
            assert config._experts_implementation == "batched_mm"
            batched = model(**inputs).logits
    assert config._experts_implementation == before != "batched_mm"
    np.testing.assert_allclose(batched.numpy(), usual.numpy(), atol=1e-5)
    with _batched_experts(nn.Linear(2, 2)) as nothing:  # what has none is left as it is
        assert nothing is None


# Plans


def test_groups_stay_whole_and_shares_follow_the_block(tmp_path: Path) -> None:
    for name, keep, counts in (("qwen3", 0.5, [2, 2]), ("swin", 0.5, [1, 2, 2]), ("qwen3", 2, [2, 2])):
        plan = hydrant.plan_heads(make(name), method="random", keep=keep, traced=True)
        assert plan.head_counts() == [counts] * 3
        assert name != "qwen3" or all(kept in ((0, 1), (2, 3)) for member in plan.members for kept in member)
    with pytest.raises(InputError, match="multiple of 2, since so many share their keys"):
        hydrant.plan_heads(make("qwen3"), method="random", keep=3, traced=True)
    for keep in (math.inf, math.nan, 1.5):
        with pytest.raises(InputError, match=f"keep is '{keep}' in block 0; expected a share, or a number of heads"):
            hydrant.plan_heads(make("swin"), method="random", keep=keep, traced=True)
    with pytest.raises(InputError, match="no estimate of its cost"):
        hydrant.plan_heads(make("qwen3"), {"text": []}, traced=True)
    with pytest.raises(InputError, match="choose taylor or random"):
        hydrant.plan_heads(make("qwen3"), method="dropout", traced=True)


def test_taylor_scores_are_those_of_the_declared_family() -> None:
    from hydrant.calib.heads.taylor import taylor_scores as declared_scores
    from hydrant.calib.heads.traced import taylor_scores
    from hydrant.progress import no_progress
    from support import ReadyTensors, examples_of

    model, examples = make_model("bert"), examples_of("bert", 12)
    wanted = declared_scores(model, examples, ReadyTensors(0))
    architecture = trace(prepared(model))
    found = taylor_scores(model, architecture, examples, ReadyTensors(0), 5, no_progress)
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-5)


# Bundles


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny DeBERTa-v3 with a tokenizer."""
    folder = tmp_path_factory.mktemp("traced") / "deberta"
    make("deberta-v3").save_pretrained(folder)
    make_tokenizer(folder.parent / "words").save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def bundle(checkpoint: Path) -> Bundle:
    """Three random members, not exported."""
    plan = hydrant.plan_heads(checkpoint, method="random", keep=2, traced=True)
    return hydrant.save_bundle(
        hydrant.fuse(checkpoint, plan, traced=True), checkpoint.parent / "out", tensors_only=True
    )


def test_a_bundle_holds_data_alone(bundle: Bundle) -> None:
    assert set(bundle.manifest["files"]) == {
        "calibration.json", "checkpoint.json", "config.json", "fused.safetensors", "plan.json"
    }  # fmt: skip
    assert isinstance(bundle.any_architecture(), Traced)
    assert "_name_or_path" not in bundle.read_json("checkpoint.json")
    weights = make("deberta-v3").state_dict()
    assert {name: tensor.shape for name, tensor in load_file(bundle.file("fused.safetensors")).items()} == {
        name: tensor.shape for name, tensor in weights.items()
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"traced": 2}, "schema '2'"),
        ({"form": "guessed"}, "form"),
        ({"blocks": []}, "blocks"),
        ({"model_class": "os.system()"}, "model_class"),
        ({"classes": 1}, "classes = '1'"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_a_malformed_description_is_refused(bundle: Bundle, change: dict[str, Any], message: str) -> None:
    with pytest.raises(BundleError, match=message):
        read_architecture({**bundle.read_json("config.json"), **change})


def untuned(name: str, place: Path) -> Bundle:
    """A traced bundle whose two members keep half the heads."""
    ensemble = hydrant.fuse(make(name), plan_of(trace(prepared(make(name))), fork=0), traced=True)
    return hydrant.save_bundle(ensemble, place, tensors_only=True)


@pytest.mark.parametrize("name", ["mpnet", "wav2vec2"])
def test_a_loaded_original_leaves_random_numbers_as_they_were(name: str, tmp_path: Path) -> None:
    """All its parameters are stored; drawing some of its size first would take a second or two."""
    bundle = untuned(name, tmp_path / "out")
    torch.manual_seed(0)
    with hydrant.load(bundle, "torch"):
        found = torch.rand(3)
    torch.manual_seed(0)
    assert found.equal(torch.rand(3))


@pytest.mark.parametrize(
    ("name", "change"),
    [("wav2vec2", {"shortest": 10**9}), ("beit", {"image_height": 2**16, "image_width": 2**16}),
     ("ast", {"spectrogram": [2**15, 2**15]})],
)  # fmt: skip
def test_inputs_of_another_size_than_the_model_s_are_refused(name: str, change: dict[str, Any], tmp_path: Path) -> None:
    """Before one is made, of dozens of gigabytes."""
    bundle = untuned(name, tmp_path / "out")
    changed = bundle.add({"config.json": json.dumps({**bundle.read_json("config.json"), **change}).encode()})
    with pytest.raises(BundleError, match=f"config.json says that {next(iter(change))} is .*; of its model it is "):
        load_reference(changed)


def test_traced_members_that_are_alike_are_told(caplog: pytest.LogCaptureFixture) -> None:
    hydrant.fuse(make("mpnet"), members=2, traced=True)
    assert "members 0 and 1 have the same heads and weights; they cannot disagree until something" in caplog.text


@pytest.mark.parametrize("fill", ["normal_", "uniform_", "trunc_normal_", "xavier_uniform_", "kaiming_normal_"])
def test_parameters_alone_stay_unfilled(fill: str) -> None:
    given = nn.Parameter(torch.zeros(4, 4)), torch.zeros(4, 4)
    with Unfilled():
        for tensor in given:
            getattr(nn.init, fill)(tensor)
    parameter, buffer = given
    assert not parameter.any()
    assert buffer.any()


def test_a_class_that_is_no_classifier_is_never_made(bundle: Bundle, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="Trainer cannot be traced"):
        rebuild(
            bundle.read_json("checkpoint.json"),
            replace(read_architecture(bundle.read_json("config.json")), model_class="Trainer"),
            {},
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_labels": 4}, r"other names or shapes: classifier\.(bias|weight)"),
        ({"vocab_size": 4 * 10**6, "hidden_size": 4 * 10**6}, "other names or shapes: classifier.weight"),
        ({"vocab_size": 98}, "have other names or shapes: deberta.embeddings.word_embeddings.weight"),
        ({"num_hidden_layers": 3}, r"have other names or shapes: deberta\.encoder\.layer\.2"),
        ({"model_type": ["deberta"]}, "unhashable"),
        ({"pooler_hidden_act": "gglu"}, r"it does not run on input_ids, .* alone .KeyError"),
    ],
)
def test_a_configuration_of_another_model_is_refused(
    bundle: Bundle, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    """Before anything large is made: a million words would fill the memory."""
    folder = shutil.copytree(bundle.path, tmp_path / "changed")
    changed = Bundle.open(folder)
    changed.add({"checkpoint.json": json.dumps({**bundle.read_json("checkpoint.json"), **change}).encode()})
    with pytest.raises(BundleError, match=message):
        load_reference(Bundle.open(folder))


def test_a_text_may_be_as_long_as_positions_tell_apart(tmp_path: Path) -> None:
    config = transformers.Qwen3Config(**{**GROUPED, "max_position_embeddings": 10**7})
    transformers.Qwen3ForSequenceClassification(config).save_pretrained(tmp_path / "long")
    plan = hydrant.plan_heads(tmp_path / "long", method="random", keep=2, traced=True)
    fused = hydrant.fuse(tmp_path / "long", plan, traced=True)
    made = hydrant.save_bundle(fused, tmp_path / "out", tensors_only=True)
    assert made.any_architecture().max_sequence == 10**7
    load_reference(made)


def test_notes_in_a_configuration_are_no_sizes(tmp_path: Path) -> None:
    """Whoever trains a model may write anything beside what its class knows."""
    make("deberta-v3").save_pretrained(tmp_path / "checkpoint")
    path = tmp_path / "checkpoint/config.json"
    notes = {"num_params": 110_000_000, "task_specific_params": {"x": {"samples": 10**9}}, "steps": 7}
    path.write_text(json.dumps({**json.loads(path.read_text()), **notes}))
    plan = hydrant.plan_heads(tmp_path / "checkpoint", method="random", keep=1, traced=True)
    fused = hydrant.fuse(tmp_path / "checkpoint", plan, traced=True)
    again = load_reference(hydrant.save_bundle(fused, tmp_path / "out", tensors_only=True))
    inputs = make_inputs("deberta-v3")
    with torch.no_grad():
        torch.testing.assert_close(again.eval()(**inputs).probabilities, fused.eval()(**inputs).probabilities)


@pytest.mark.parametrize("name", ["attn_implementation", "_attn_implementation"])
def test_attention_that_a_configuration_names_is_not_fetched(
    bundle: Bundle, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers takes the name of a hub's kernel there, and would run its code."""
    asked: list[str] = []
    monkeypatch.setattr(
        "transformers.modeling_utils.lazy_import_flash_attention", lambda kernel, **_: asked.append(kernel)
    )
    named = {name: "somebody/kernel"}
    folder = shutil.copytree(bundle.path, tmp_path / "changed")
    Bundle.open(folder).add({"checkpoint.json": json.dumps({**bundle.read_json("checkpoint.json"), **named}).encode()})
    load_reference(Bundle.open(folder))
    make("deberta-v3").save_pretrained(tmp_path / "checkpoint")
    config = tmp_path / "checkpoint" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **named}))
    load_traced(tmp_path / "checkpoint")
    assert not asked
    transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "checkpoint")
    assert set(asked) == {"somebody/kernel"}, "what transformers does by itself"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architecture": "hf-hub:somebody/model"}, "timm_wrapper model has architecture = 'hf-hub:somebody/model'"),
        ({"model_args": {"checkpoint_path": "weights.pth"}}, "has model_args = 'checkpoint_path weights.pth'"),
    ],
)
def test_models_and_weights_that_timm_would_look_for_elsewhere_are_refused(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    config = {"model_type": "timm_wrapper", "architecture": "resnet18", "label_names": ["a", "b"], "num_classes": 2}
    config |= {"architectures": ["TimmWrapperForImageClassification"], **change}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModelError, match=message):
        load_traced(tmp_path)
    architecture = replace(described(prepared(make("beit"))), model_class="TimmWrapperForImageClassification")
    with pytest.raises(InputError, match="timm_wrapper model has"):
        rebuild(config, architecture, {})


@pytest.mark.parametrize(
    "change", [{"model_args": "checkpoint_path=x"}, {"model_args": ["a"]}, {"model_args": 3}, {"architecture": None}]
)
def test_a_configuration_of_timm_of_wrong_types_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    config = {"model_type": "timm_wrapper", "architecture": "resnet18", "label_names": ["a", "b"], "num_classes": 2}
    config |= {"architectures": ["TimmWrapperForImageClassification"], **change}
    (tmp_path / "config.json").write_text(json.dumps(config))
    [name] = change
    with pytest.raises(
        InputError, match=f"cannot read a model configuration from .*field '{name}'; expected a Hugging"
    ):
        load_traced(tmp_path)
    architecture = replace(described(prepared(make("beit"))), model_class="TimmWrapperForImageClassification")
    with pytest.raises(InputError, match=f"of the stored configuration .*field '{name}'.*; install the version that"):
        rebuild(config, architecture, {})


@pytest.mark.parametrize("load", [load_traced, load_model])
def test_an_adapter_beside_the_weights_is_refused(load: Any, tmp_path: Path) -> None:
    """transformers adds it to them, where PEFT is installed."""
    model = make_model("bert")
    model.save_pretrained(tmp_path)
    before = load(tmp_path).state_dict()
    added = peft.get_peft_model(model, peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query"]))
    added.save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"holds an adapter beside its weights.*the adapter's with --adapter"):
        load(tmp_path)
    (tmp_path / "adapter_config.json").unlink()
    after = load(tmp_path).state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_an_adapter_that_transformers_cannot_add_is_told_as_one(
    bert_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where PEFT is of another time than transformers."""
    shutil.copytree(bert_checkpoint, tmp_path / "model")

    def failing(*_: Any, **__: Any) -> None:
        raise ImportError("cannot import name")

    monkeypatch.setattr(transformers.BertForSequenceClassification, "from_pretrained", failing)
    with pytest.raises(InputError, match=r"cannot load the weights of .*cannot import name"):
        load_model(tmp_path / "model")
    (tmp_path / "model/adapter_config.json").write_text("{}")
    with pytest.raises(InputError, match=r"holds an adapter beside its weights.*\(cannot import name\)"):
        load_model(tmp_path / "model")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["export", "--precision", "fp16"], "its graph has one form"),
        (["export", "--lowering", "grouped"], "its graph has one form"),
        (["tune", "--data", "DATA"], "needs a family that hydrant declares"),
    ],
)
def test_the_command_line_says_what_a_traced_bundle_lacks(
    bundle: Bundle, tmp_path: Path, arguments: list[str], message: str
) -> None:
    data = tmp_path / "data.csv"
    data.write_text("text,label\nhello,LABEL_0\n")
    verb, *rest = [str(data) if word == "DATA" else word for word in arguments]
    result = run_cli(verb, bundle.path, *rest)
    assert (result.returncode, message in result.stderr, result.stderr.count("\n")) == (2, True, 1), result.stderr


def test_sounds_and_images_are_profiled_at_their_own_sizes() -> None:
    for name, sequence, words in (
        ("hubert", 16000, "batch 2, 16000 samples"),
        ("ast", 0, "batch 2"),
        ("swin", 0, "batch 2"),
    ):
        architecture = described(prepared(make(name)))
        found = checked_settings(architecture, hydrant.Timing(), (), 0)
        assert found.sequences == (sequence,)
        assert found.shape(2, sequence) == words
    with pytest.raises(InputError, match="an image always has one size here, so leave it out"):
        checked_settings(architecture, hydrant.Timing(sequence=(5,)), (), 0)
    with pytest.raises(InputError, match="sequence is 5; this model reads at least"):
        checked_settings(described(prepared(make("hubert"))), hydrant.Timing(sequence=(5,)), (), 0)


def test_the_refusal_offers_it(checkpoint: Path, tmp_path: Path) -> None:
    result = run_cli("fuse", checkpoint, "-o", tmp_path / "out")
    assert result.returncode == 2
    assert "hydrant fuse --traced" in result.stderr


def test_from_plan_to_prediction_with_texts(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    out, plan = tmp_path / "out", tmp_path / "plan.json"
    words = ["hello world", "transfer money", "what is the weather today"]
    for name, start in (("a", 0), ("b", 1)):
        rows = [f"{words[i % 3]} {'today ' * ((i + start) % 7)}{'is ' * (i % 4)},LABEL_{i % 3}" for i in range(60)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["text,label", *rows]) + "\n")

    def does(*arguments: Any) -> str:
        result = run_cli(*arguments)
        assert result.returncode == 0, result.stderr
        return result.stdout

    heads = ["--keep", "0.5", "--fork-from", "1"]
    does("plan", checkpoint, "--traced", "--data", tmp_path / "a.csv", *heads, "-o", plan)
    does("fuse", checkpoint, "--traced", "--plan", plan, "-o", out)
    does("export", out, "--member-outputs")
    check_trunk(out, monkeypatch, caplog)
    does("calibrate", out, "--data", tmp_path / "b.csv", "--fit", tmp_path / "a.csv", "--force")
    told = does("inspect", out)
    assert "traced, sliced: members of DebertaV2ForSequenceClassification" in told
    assert "lacks         tuning" in told
    found = json.loads(does("predict", out, *words, "--json"))
    reference = hydrant.load(out, "torch").predict(words)
    runs = {name: hydrant.load(out, name).predict(words) for name in ("onnxruntime", "openvino")}
    for name in ("probabilities", "mutual_information", "energy", "distance"):
        scale = max(1.0, float(np.abs(getattr(reference, name)).max()))
        for run in runs.values():
            np.testing.assert_allclose(getattr(run, name), getattr(reference, name), atol=1e-4 * scale)
    assert reference.distance is not None
    assert len(found.get("predictions", found)) == 3


def queries_of(graph: onnx.ModelProto) -> list[int]:
    """Of how many tokens, of nine, each attention of a graph of texts computes weights."""
    seen = onnx.ModelProto.FromString(graph.SerializeToString())
    names = [node.output[0] for node in seen.graph.node if node.op_type == "Softmax"]
    seen.graph.output.extend(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in names)
    given = {entry.name: np.ones((1, 9), np.int64) for entry in seen.graph.input}
    weights = onnxruntime.InferenceSession(seen.SerializeToString()).run(names, given)
    return [array.shape[-2] for array in weights if array.ndim == 4]


def check_trunk(out: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The trunk stands in the graph once, members agree with hooks, and the file is the same again.

    Again without ONNX Runtime, so that the graph cannot be compared with PyTorch, which is told.
    """
    bundle, path = Bundle.open(out), out / "model.fp32.onnx"
    graph, content = onnx.load(str(path)), path.read_bytes()
    softmaxes = [node for node in graph.graph.node if node.op_type == "Softmax"]
    assert len(softmaxes) == 1 + 3 + 1  # the trunk's, the members', the head's
    assert queries_of(graph) == [9, 1, 1, 1]  # behind the fork the first token's alone: the classifier reads no other
    assert {entry.domain for entry in graph.opset_import} == {""}
    shape = [dim.dim_param or dim.dim_value for dim in graph.graph.input[0].type.tensor_type.shape.dim]
    assert shape == ["batch", "sequence"]
    assert str(Path(transformers.__file__).parent).encode() not in content  # where it was made
    check_hooks("deberta-v3", load_reference(bundle), bundle, path)

    def absent(model: Any, purpose: str) -> Any:
        raise MissingExtraError(f"onnxruntime is not installed; it is needed to {purpose}")

    with monkeypatch.context() as patched:
        patched.setattr("hydrant.export.traced_graph.open_graph", absent)
        hydrant.export_onnx(out, form=MEMBERS)
    assert path.read_bytes() == content
    said = "the graph was not compared with PyTorch: onnxruntime is not installed; it is needed to compare the graph"
    assert said in caplog.text


def test_evaluated_beside_its_checkpoint_with_baselines_of_both(checkpoint: Path, tmp_path: Path) -> None:
    """The single model is the untouched original, and its baselines are those of the original's own vectors."""
    plan = hydrant.plan_heads(checkpoint, method="random", keep=2, fork_from=1, members=2, traced=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    out = hydrant.save_bundle(hydrant.fuse(checkpoint, plan, traced=True), tmp_path / "out", tokenizer).path
    words = ["hello", "world", "transfer", "money", "weather", "today", "what", "is", "the"]
    draw = np.random.default_rng(0)
    texts = [" ".join(draw.choice(words, draw.integers(2, 9))) for _ in range(60)]
    labels, strange = [place % 3 for place in range(60)], ["[MASK] " * (2 + place % 5) for place in range(20)]
    figures = hydrant.Figures(bootstrap=0, baselines=True, fit=(texts[:30], labels[:30]), neighbours=4, latency=True)
    report = hydrant.evaluate(out, (texts[30:], labels[30:]), strange, compare=[checkpoint], figures=figures)
    single = report.models[1]
    assert (single.name, single.kind, single.members) == (checkpoint.name, "checkpoint", 1)

    model = transformers.AutoModelForSequenceClassification.from_pretrained(checkpoint).eval()
    seen: list[torch.Tensor] = []
    model.classifier.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
    with torch.no_grad():
        inputs = [tokenizer(part, padding=True, return_tensors="pt") for part in (texts[:30], texts[30:], strange)]
        logits = [model(**{name: batch[name] for name in ("input_ids", "attention_mask")}).logits for batch in inputs]
    nll = torch.nn.functional.cross_entropy(logits[1], torch.tensor(labels[30:]))
    assert single.figures["nll"].value == pytest.approx(float(nll), abs=1e-4)
    assert single.latency_ms is not None
    unknown = np.r_[np.zeros(30), np.ones(20)]
    energy = -torch.cat(logits[1:]).logsumexp(dim=1)
    unit = [torch.nn.functional.normalize(vectors, dim=1) for vectors in seen]
    apart = torch.cdist(torch.cat(unit[1:]), unit[0]).sort(dim=1).values[:, 3]  # of the fourth neighbour
    assert single.baselines is not None
    for name, scores in (("energy", energy), ("knn", apart)):
        wanted = sklearn.metrics.roc_auc_score(unknown, scores)
        assert single.baselines.figures[f"{name}.auroc"].value == pytest.approx(wanted, abs=5e-3), name
    assert {"vim.auroc", "mahalanobis.auroc"} <= set(single.baselines.figures)
    mine = report.models[0].baselines
    assert mine is not None
    assert mine.of == "the first of its 2 members alone, which keeps 2 to 4 of 4 heads in a layer"
    refused = "mc-dropout runs families that hydrant declares, and no others: architecture DebertaV2"
    with pytest.raises(UnsupportedModelError, match=refused):
        hydrant.evaluate(out, (texts[30:], labels[30:]), compare=[f"mc-dropout:4:{checkpoint}"])


def test_a_model_whose_blocks_have_unlike_numbers_of_heads_is_whole_with_all_of_them() -> None:
    shape = trace(prepared(make("swin")))
    everything = all_heads(shape, 1)
    fewer = (everything.members[0][0][:1], *everything.members[0][1:])
    for members, whole in ((everything.members, True), ((fewer,), False), (everything.members * 2, False)):
        model = SimpleNamespace(kind="bundle", architecture=shape, plan=replace(everything, members=members))
        assert is_whole_model(model) is whole


def test_baselines_ask_for_the_last_linear_map(bundle: Bundle) -> None:
    ensemble: Any = load_reference(bundle)
    weight, bias = ensemble.last_linear()
    logits, last = ensemble.last_vectors(**inputs_of(ensemble.architecture, 3, 7))
    torch.testing.assert_close(last @ weight + bias, logits)
    ensemble.architecture = replace(ensemble.architecture, classifier="", width=0)
    with pytest.raises(InputError, match="the last linear map of DebertaV2ForSequenceClassification was not found"):
        ensemble.last_linear()


def test_from_fuse_to_verify_with_images(tmp_path: Path) -> None:
    make("swin").save_pretrained(tmp_path / "swin")
    transformers.ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(tmp_path / "swin")
    out, plan = tmp_path / "out", tmp_path / "plan.json"

    def does(*arguments: Any) -> None:
        result = run_cli(*arguments)
        assert result.returncode == 0, result.stderr + result.stdout

    does("plan", tmp_path / "swin", "--traced", "--method", "random", "--keep", "0.5", "--members", "2", "-o", plan)
    does("fuse", tmp_path / "swin", "--traced", "--plan", plan, "-o", out)
    graph, ensemble = hydrant.export_onnx(out, form=MEMBERS), load_reference(out)
    assert isinstance(ensemble, TracedClassifier)
    assert ensemble.architecture.form == "sliced"
    check_hooks("swin", ensemble, Bundle.open(out), graph)
    does("verify", out, "--examples", "100")
    picture = tmp_path / "a.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (16, 16, 3), np.uint8)).save(picture)
    does("predict", out, picture)


def test_probes_are_padded_and_of_several_sizes() -> None:
    read = described(make("deberta-v3"))
    batches = probes(read)
    assert len({len(batch["input_ids"]) for batch in batches}) > 1
    assert any(bool((batch["attention_mask"] == 0).any()) for batch in batches)
