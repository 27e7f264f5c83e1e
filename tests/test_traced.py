"""Tracing: any classifier of transformers, compared with the original under this file's hooks."""

import copy
import json
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import hydrant
import numpy as np
import onnxruntime
import oracle
import pytest
import torch
import transformers
from hydrant import GraphForm, HeadPlan
from hydrant.bundle.store import Bundle
from hydrant.bundle.traced import Traced, read_architecture
from hydrant.errors import BundleError, InputError, PlanError, UnsupportedModelError
from hydrant.fusion import TracedClassifier, load_reference
from hydrant.models.tracing.attention_blocks import find_blocks
from hydrant.models.tracing.members import trace
from hydrant.models.tracing.traced_model import described, load_traced, prepared, rebuild
from PIL import Image
from safetensors.torch import load_file
from support import make_inputs, make_model, make_tokenizer, random_plan, run_cli, stdout_of
from token_support import CLASSES, make_tagger
from torch import nn
from traced_support import TEXT, by_hooks, inputs_of, make, plan_of

FORMS = {"deberta": "masked", "qwen3": "sliced", "gemma": "sliced", "beit": "sliced"}
"""DeBERTa-v3 and Swin are compared with hooks below, where their graphs are verified."""

EXPORTED = {"deberta", "qwen3"}
"""Models of either form, and with heads that share their keys."""

MEMBERS = GraphForm(member_outputs=True)


def check_hooks(name: str, ensemble: Any, bundle: Bundle, graph: Path | None = None) -> None:
    """Compare an ensemble, its bundle in PyTorch and its graph of ``MEMBERS`` with the original under hooks."""
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
    """Its distance reads the same vectors, behind a dense layer on every token if the model has one."""
    model, plan, inputs = make_tagger(family), random_plan(family, 2), make_inputs(family)
    real, taps = inputs["attention_mask"].bool(), ("layers.0.token", "last.0", "layers.1.token", "last.1")
    with torch.no_grad():
        either = hydrant.fuse(model, plan), hydrant.fuse(model, plan, traced=True)
        declared, traced = (ensemble(**inputs) for ensemble in either)
        wanted, features = (ensemble.features(taps, **inputs)[1] for ensemble in either)
        wanted[[1, 3]] = either[0].penultimate(wanted[[1, 3]])
    torch.testing.assert_close(features[:, real], wanted[:, real], rtol=1e-3, atol=1e-4)
    for name in ("probabilities", "mutual_information", "energy"):
        np.testing.assert_allclose(getattr(traced, name)[real], getattr(declared, name)[real], atol=1e-4)


def test_threads_that_share_an_ensemble_get_their_own_vectors() -> None:
    """Each thread records its own classifier inputs."""
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
    for threaded, wanted in zip(together, alone * 12, strict=True):
        torch.testing.assert_close(threaded, wanted)


@pytest.mark.parametrize(("name", "groups"), [("qwen3", 2), ("gpt2", 4), ("swin", 4), ("albert", 4)])
def test_blocks_are_found_by_running(name: str, groups: int) -> None:
    traced = trace(prepared(make(name)))
    assert [block.heads for block in traced.blocks] == {"swin": [2, 4, 4], "albert": [4]}.get(name, [4, 4])
    assert traced.blocks[-1].groups == groups
    assert traced.width == 32
    assert Traced.from_json(json.loads(json.dumps(traced.to_json()))) == traced


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


def test_mixed_heads_are_rejected() -> None:
    model = Mixed(transformers.BertConfig(**TEXT)).eval()
    inputs = inputs_of(trace(prepared(make("deberta-v3"))), 3, 11)
    with pytest.raises(UnsupportedModelError, match="attention heads were not understood"):
        find_blocks(model, inputs)


@pytest.mark.parametrize(("change", "error", "message"), [
    ({"keep_separate": "mlp"}, InputError, "keep-separate"),
    ({"models": 2}, InputError, "2 models were given with traced; expected one"),
    ({"heads": 3}, PlanError, "keeps head 3, but that block has 2 heads"),
])  # fmt: skip
def test_unsupported_models_are_rejected(change: dict[str, Any], error: type[Exception], message: str) -> None:
    model = make("swin")
    plan = HeadPlan("swin", 3, 4, (((change.get("heads", 1),), (0,), (0,)),), "random")
    options = {name: value for name, value in change.items() if name == "keep_separate"}
    with pytest.raises(error, match=message):
        hydrant.fuse([model] * change.get("models", 1), plan, traced=True, **options)


def test_taylor_scores_are_those_of_the_declared_family() -> None:
    from hydrant.calib.heads.taylor import taylor_scores
    from support import ReadyTensors, examples_of

    model, examples = make_model("bert"), examples_of("bert", 12)
    wanted = taylor_scores(model, examples, ReadyTensors(0))
    architecture = trace(prepared(model))
    scores = taylor_scores(model, examples, ReadyTensors(0), architecture, batch_size=5)
    np.testing.assert_allclose(scores, wanted, rtol=1e-3, atol=1e-5)


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
    ensemble = hydrant.fuse(checkpoint, plan, traced=True)
    return hydrant.save_bundle(ensemble, checkpoint.parent / "out", tensors_only=True)


def test_a_bundle_holds_data_alone(bundle: Bundle) -> None:
    files = {"calibration.json", "checkpoint.json", "config.json", "fused.safetensors", "plan.json"}
    assert set(bundle.manifest["files"]) == files
    assert isinstance(bundle.any_architecture(), Traced)
    assert "_name_or_path" not in bundle.read_json("checkpoint.json")
    stored, weights = load_file(bundle.file("fused.safetensors")), make("deberta-v3").state_dict()
    assert {name: each.shape for name, each in stored.items()} == {name: each.shape for name, each in weights.items()}


@pytest.mark.parametrize(("change", "message"), [
    ({"traced": 2}, "schema '2'"),
    ({"blocks": []}, "blocks"),
    ({"model_class": "os.system()"}, "model_class"),
    ({"classes": 1}, "classes"),
])  # fmt: skip
def test_a_malformed_description_is_refused(bundle: Bundle, change: dict[str, Any], message: str) -> None:
    with pytest.raises(BundleError, match=message):
        read_architecture({**bundle.read_json("config.json"), **change})


@pytest.mark.parametrize(
    ("name", "change"), [("wav2vec2", {"shortest": 10**9}), ("beit", {"image_height": 2**16, "image_width": 2**16})]
)
def test_inputs_of_another_size_than_the_model_s_are_refused(name: str, change: dict[str, Any], tmp_path: Path) -> None:
    """The check comes before inputs of dozens of gigabytes are built."""
    bundle = untuned(name, tmp_path / "out")
    changed = bundle.add({"config.json": json.dumps({**bundle.read_json("config.json"), **change}).encode()})
    with pytest.raises(BundleError, match=f"config.json says that {next(iter(change))} is "):
        load_reference(changed)


@pytest.mark.parametrize(("change", "message"), [
    ({"num_labels": 4}, r"other names or shapes: classifier\.(bias|weight)"),
    ({"vocab_size": 4 * 10**6, "hidden_size": 4 * 10**6}, "other names or shapes: classifier.weight"),
    ({"model_type": ["deberta"]}, "unhashable"),
    ({"pooler_hidden_act": "gglu"}, r"it does not run on input_ids, .* alone .KeyError"),
])  # fmt: skip
def test_a_configuration_of_another_model_is_refused(
    bundle: Bundle, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    """The check comes before anything large is built: a million words would fill the memory."""
    folder = shutil.copytree(bundle.path, tmp_path / "changed")
    changed = json.dumps({**bundle.read_json("checkpoint.json"), **change}).encode()
    Bundle.open(folder).add({"checkpoint.json": changed})
    with pytest.raises(BundleError, match=message):
        load_reference(Bundle.open(folder))


@pytest.mark.parametrize("name", ["attn_implementation", "_attn_implementation"])
def test_attention_that_a_configuration_names_is_not_fetched(
    bundle: Bundle, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers accepts the name of a hub's kernel there, and would run its code."""
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


@pytest.mark.parametrize(("change", "message"), [
    ({"architecture": "hf-hub:somebody/model"}, "timm_wrapper model has architecture = 'hf-hub:somebody/model'"),
    ({"model_args": {"checkpoint_path": "weights.pth"}}, "has model_args = 'checkpoint_path weights.pth'"),
])  # fmt: skip
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


def test_the_command_line_says_what_a_traced_bundle_lacks(bundle: Bundle, tmp_path: Path) -> None:
    data = tmp_path / "data.csv"
    data.write_text("text,label\nhello,LABEL_0\n")
    for verb, options, message in (
        ("export", ("--lowering", "grouped"), "its graph has one form"),
        ("tune", ("--data", data, "--freeze", "1"), "which are tuned as a whole; omit"),
        ("tune", ("--data", data, "--teachers", data, "--fork-from", "1"), "which are tuned as a whole; omit"),
    ):
        result = run_cli(verb, bundle.path, *options)
        assert (result.returncode, message in result.stderr, result.stderr.count("\n")) == (2, True, 1), result.stderr


def test_from_fuse_to_verify_with_images(tmp_path: Path) -> None:
    make("swin").save_pretrained(tmp_path / "swin")
    transformers.ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(tmp_path / "swin")
    out, plan = tmp_path / "out", tmp_path / "plan.json"

    stdout_of(
        "plan", tmp_path / "swin", "--traced", "--method", "random", "--keep", "0.5", "--members", "2", "-o", plan
    )
    stdout_of("fuse", tmp_path / "swin", "--traced", "--plan", plan, "-o", out)
    graph, ensemble = hydrant.export_onnx(out, form=MEMBERS), load_reference(out)
    assert isinstance(ensemble, TracedClassifier)
    assert ensemble.architecture.form == "sliced"
    check_hooks("swin", ensemble, Bundle.open(out), graph)
    stdout_of("verify", out, "--examples", "100")
    picture = tmp_path / "a.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (16, 16, 3), np.uint8)).save(picture)
    stdout_of("predict", out, picture)


def untuned(name: str, place: Path) -> Bundle:
    """A traced bundle whose two members keep half the heads."""
    ensemble = hydrant.fuse(make(name), plan_of(trace(prepared(make(name))), fork=0), traced=True)
    return hydrant.save_bundle(ensemble, place, tensors_only=True)
