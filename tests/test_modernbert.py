"""ModernBERT and its blocks: rotary positions, windows, a gated MLP, norms without bias, the mean of real tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import oracle
import pytest
import torch
import torch_onnx
import transformers
from hydrant import Bundle, GraphForm, Reading, estimate_cost, export_onnx, fuse, load, save_bundle
from hydrant.bundle.architecture import Architecture
from hydrant.calib.heads.masking import entered, pruned_layer
from hydrant.calib.taps import named_taps
from hydrant.errors import BundleError, UnsupportedModelError
from hydrant.export import export
from hydrant.export.random_model import PLAIN, random_model
from hydrant.families.functions import turned
from hydrant.families.registry import architecture_of, read_weights
from hydrant.fusion import FusedClassifier
from hydrant.fusion.ensemble import whole_model
from hydrant.tuning.job import shared_form
from hydrant.tuning.rank_one import adapter_metadata, draw, merged, with_factors
from hypothesis import given, settings
from hypothesis import strategies as st
from support import HEADS, LAYERS, OLDEST, VOCABULARY, make_inputs, make_model, make_tokenizer, random_plan, run_cli
from test_cost import counted
from test_parity import assert_parity, run_onnx
from test_rewrites import forked
from token_support import make_tagger, make_word_tokenizer, write_json_lines
from transformers.models.modernbert.modeling_modernbert import ModernBertRotaryEmbedding

EVERY_BIAS = {"norm_bias": True, "attention_bias": True, "mlp_bias": True, "classifier_bias": True}
LOCAL = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "local_attention": 2}
FORMS: dict[str, dict[str, Any]] = {
    "first": {},
    "mean": {"classifier_pooling": "mean"},
    "norm-biases": {"norm_bias": True, "classifier_activation": "relu"},
    "every-bias": {**EVERY_BIAS, "classifier_pooling": "mean", "classifier_activation": "tanh"},
    "windows": {**LOCAL, "hidden_activation": "silu"},
}
"""Settings of a tiny model."""


def tiny(form: str, seed: int = 0) -> Any:
    return make_model("modernbert", seed=seed, **FORMS[form])


# Parity with the hooked original


@pytest.mark.parametrize(
    ("form", "separate"), [*((form, False) for form in FORMS), ("first", True), ("every-bias", True)]
)
def test_module_and_graphs_match_the_oracle(form: str, separate: bool, tmp_path: Path) -> None:
    """One checkpoint, and three kept apart; both lowerings and operators, with every rewrite that holds, and none."""
    models = [tiny(form, seed) for seed in ((1, 2, 3) if separate else (1,))]
    plan, inputs = random_plan("modernbert", 3), make_inputs("modernbert", batch=5)
    ensemble = fuse(models if separate else models[0], plan, keep_separate="all" if separate else ())
    assert_parity(models, ensemble, inputs, tmp_path / "bundle")  # unrolled and primitive, with all of them
    expected = oracle.ensemble(models, plan, inputs)
    for lowering, attention, without in (
        ("unrolled", "onnx", ()),
        ("grouped", "primitive", ()),
        ("unrolled", "primitive", tuple(PLAIN)),
        ("grouped", "onnx", tuple(PLAIN)),
    ):
        chosen = GraphForm(lowering=lowering, attention=attention, without=without)
        found = run_onnx(export_onnx(tmp_path / "bundle", form=chosen), inputs)
        for name in ("probabilities", "mutual_information", "disagreement"):
            np.testing.assert_allclose(found[name], expected[name], atol=1e-5, err_msg=f"{chosen} {name}")


@pytest.mark.parametrize("fork", [1, LAYERS - 1])
def test_late_forks_run_the_trunk_once(fork: int, tmp_path: Path) -> None:
    model, plan = tiny("mean"), forked("modernbert", fork)
    ensemble = fuse(model, plan)
    assert ensemble.trunk == fork
    assert_parity([model], ensemble, make_inputs("modernbert"), tmp_path / "bundle")


def test_rewrites_that_do_not_hold_are_left_out_and_said_so(tmp_path: Path) -> None:
    """Rotary keys keep their bias, and are not absorbed; the mean needs every token of the last layer."""
    done, reasons, keys = {}, {}, {}
    for form in ("first", "every-bias"):
        save_bundle(fuse(tiny(form), random_plan("modernbert", 2)), tmp_path / form, tensors_only=True)
        made = export(tmp_path / form)
        done[form], reasons[form] = {change.rewrite for change in made.changes}, made.reasons
        names = [tensor.name for tensor in onnx.load(made.path).graph.initializer]
        keys[form] = [name for name in names if ".attention.key" in name and name.endswith("bias")]
    assert {"fork-heads", "pooled-token", "fold-norms", "fold-softmax-scale"} == done["first"]
    assert {"fork-heads", "fold-norms", "fold-softmax-scale", "fold-value-bias"} == done["every-bias"]
    assert len(keys["every-bias"]) == LAYERS
    assert not keys["first"]
    assert "keys turn by their position" in reasons["first"]["absorb-keys"]
    assert "keys turn by their position" in reasons["first"]["drop-key-bias"]
    assert "pooled-token" not in reasons["first"]
    for name in ("pooled-token", "absorb-keys"):
        assert reasons["every-bias"][name].startswith("not applied: the classifier reads the mean of all real tokens")


@pytest.mark.parametrize("form", ["first", "every-bias"])
def test_taggers_keep_the_dense_layer_and_its_norm_on_every_token(form: str, tmp_path: Path) -> None:
    """Of several checkpoints that share nothing, in both lowerings, and of a late fork."""
    models, inputs = [make_tagger("modernbert", seed, **FORMS[form]) for seed in (1, 2, 3)], make_inputs("modernbert")
    real = inputs["attention_mask"].bool().numpy()
    for source, plan, separate in (
        (models, random_plan("modernbert", 3), "all"),
        (models[:1], forked("modernbert", 2), ()),
    ):
        ensemble, expected = fuse(source, plan, keep_separate=separate), oracle.ensemble(source, plan, inputs)
        bundle = save_bundle(ensemble, tmp_path / f"{len(source)}", tensors_only=True)
        with torch.no_grad():
            found = ensemble(**inputs)
        outputs = [
            run_onnx(export_onnx(bundle, form=GraphForm(lowering=each)), inputs) for each in ("grouped", "unrolled")
        ]
        for each in ({name: getattr(found, name).numpy() for name in outputs[0]}, *outputs):
            for name in ("probabilities", "mutual_information", "disagreement"):
                np.testing.assert_allclose(
                    each[name][real], expected[name][real], atol=2e-5, err_msg=f"{separate} {name}"
                )
        cost = estimate_cost(bundle, batch=3, sequence=9).fused
        graph = counted(onnx.load(bundle.path / "model.fp32.onnx"), make_inputs("modernbert", batch=3))
        assert graph == (cost.flops, cost.parameters, cost.bytes)


# Positions, windows, padding


def test_angles_are_those_of_the_original_to_the_longest_text() -> None:
    """Heads of 64 channels, token 8191: angles there are thousands of radians."""
    config = transformers.ModernBertConfig()
    rotary = ModernBertRotaryEmbedding(config)
    query = torch.randn(1, 1, config.max_position_embeddings, 64)
    places = torch.arange(config.max_position_embeddings)[None]
    for kind, base in (("full_attention", 160_000.0), ("sliding_attention", 10_000.0)):
        cos, sin = rotary(query, places, kind)
        halves = torch.cat([-query[..., 32:], query[..., :32]], dim=-1)
        torch.testing.assert_close(turned(query, base), query * cos + halves * sin, rtol=1e-3, atol=3e-3)


@pytest.fixture(scope="module")
def padded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A model with windows that reads the mean, and its graphs and module."""
    folder = tmp_path_factory.mktemp("padded")
    model = make_model("modernbert", **LOCAL, classifier_pooling="mean")
    ensemble = fuse(model, random_plan("modernbert", 2))
    bundle, sessions = save_bundle(ensemble, folder / "out", tensors_only=True), {}
    for lowering in ("unrolled", "grouped"):
        path = export_onnx(bundle, form=GraphForm(lowering=lowering))
        sessions[lowering] = onnxruntime.InferenceSession(str(path))
    return {"model": model, "ensemble": ensemble, **sessions}


@settings(max_examples=25, deadline=None)
@given(length=st.integers(1, 20), before=st.integers(0, 9), after=st.integers(0, 18), seed=st.integers(0, 99))
def test_padding_never_changes_a_score(padded: dict[str, Any], length: int, before: int, after: int, seed: int) -> None:
    """On either side, also so far from the text that nothing real is in a padding token's window."""
    ids = np.random.default_rng(seed).integers(5, VOCABULARY, (1, length))
    short = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    after = min(after, padded["ensemble"].architecture.max_sequence - before - length)
    long = {name: np.pad(array, ((0, 0), (before, after))) for name, array in short.items()}
    with torch.no_grad():
        plain = {name: torch.from_numpy(array) for name, array in short.items()}
        expected = oracle.ensemble([padded["model"]], padded["ensemble"].plan, plain)["probabilities"]
        found = padded["ensemble"](**{name: torch.from_numpy(array) for name, array in long.items()})
    np.testing.assert_allclose(found.probabilities, expected, atol=1e-5)
    for lowering in ("unrolled", "grouped"):
        np.testing.assert_allclose(padded[lowering].run(["probabilities"], long)[0], expected, atol=1e-5)


@pytest.mark.skipif(OLDEST, reason="transformers 5.12 takes no configuration whose layers are all of one kind")
def test_windows_keep_distant_tokens_apart() -> None:
    """Three layers that reach two tokens: the first token's vector knows nothing of the eighth."""
    kinds = ["sliding_attention"] * LAYERS
    ensemble = fuse(make_model("modernbert", layer_types=kinds, local_attention=4))
    inputs = make_inputs("modernbert", batch=1, padded=False)
    changed = {**inputs, "input_ids": inputs["input_ids"].clone()}
    with torch.no_grad():
        before = ensemble(**inputs).member_logits
        changed["input_ids"][0, 7:] = 7
        assert torch.equal(ensemble(**changed).member_logits, before)
        changed["input_ids"][0, 6] = 7
        assert not torch.equal(ensemble(**changed).member_logits, before)


# Weights


def test_one_linear_map_becomes_three() -> None:
    model = tiny("every-bias")
    weights, fused = read_weights(model), model.get_submodule("model.layers.1.attn.Wqkv")
    for kind in ("weight", "bias"):
        parts = [weights[f"layers.1.attention.{name}.{kind}"] for name in ("query", "key", "value")]
        assert torch.equal(torch.cat(parts), getattr(fused, kind))
    assert not any(name.endswith("bias") for name in read_weights(tiny("first")) if name != "classifier.bias")
    assert "layers.0.attention_norm.weight" not in weights


# One output, factors of one


def test_a_score_is_that_of_the_original(tmp_path: Path) -> None:
    stored = {"activation_fn": "torch.nn.modules.activation.Sigmoid"}
    model = make_model("modernbert", num_labels=1, sentence_transformers=stored)
    plan, inputs = random_plan("modernbert", 3), make_inputs("modernbert")
    save_bundle(fuse(model, plan), tmp_path / "out", tensors_only=True)
    found = run_onnx(export_onnx(tmp_path / "out"), inputs)
    expected = oracle.scores([model], plan, inputs, "sigmoid")
    for name in ("score", "score_variance"):
        np.testing.assert_allclose(found[name], expected[name], atol=1e-5, err_msg=name)


def test_members_told_apart_by_factors_cost_what_their_graph_does(tmp_path: Path) -> None:
    """A BatchEnsemble with its factors, merged, and as a graph."""
    ensemble, inputs = fuse(tiny("mean"), members=2), make_inputs("modernbert", batch=3)
    shape = ensemble.architecture, ensemble.plan
    module = FusedClassifier(*shape, shared_form(ensemble.state_dict()), ensemble.labels).eval()
    facts = adapter_metadata(with_factors(module, 0))
    draw(module, 0.3, seed=4)
    tensors = merged({name: tensor.detach() for name, tensor in module.named_parameters()})
    whole = FusedClassifier(*shape, tensors, ensemble.labels).eval()
    bundle = save_bundle(whole, tmp_path / "out", provenance=facts, tensors_only=True)
    cost, path = estimate_cost(bundle, batch=3, sequence=9), export_onnx(bundle)
    assert counted(onnx.load(path), inputs) == (cost.fused.flops, cost.fused.parameters, cost.fused.bytes)
    with torch.no_grad():
        expected = module(**inputs)
        torch.testing.assert_close(whole(**inputs).member_logits, expected.member_logits, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(run_onnx(path, inputs)["probabilities"], expected.probabilities, atol=1e-5)
    assert (expected.mutual_information > 0).all()


# What plans are made with


@pytest.mark.parametrize("form", ["first", "mean", "windows"])
def test_the_layers_that_circuits_run_on(form: str) -> None:
    model, inputs = tiny(form), make_inputs("modernbert")
    keep = random_plan("modernbert", 1).members[0]
    module = whole_model(model)
    with torch.no_grad():
        x, mask = entered(module, inputs)
        for layer in range(LAYERS):
            x = pruned_layer(module, layer, x, mask, keep[layer])
        found = module.classified(x, mask)[0].numpy()
    np.testing.assert_allclose(found, oracle.member_logits(model, keep, HEADS, inputs), atol=2e-5, rtol=2e-5)


def test_what_the_classifier_reads_is_what_the_distance_reads() -> None:
    model, inputs = tiny("mean"), make_inputs("modernbert")
    ensemble = fuse(model, forked("modernbert", 1, members=2))
    taps = named_taps("last", ensemble.architecture, ensemble.trunk, ensemble.members)["last"]
    with torch.no_grad():
        _, found = ensemble.features(taps, **inputs)
        for member, keep in enumerate(ensemble.plan.members):
            with oracle.silenced(model, keep, HEADS):
                tokens = model.model(**inputs).last_hidden_state
            real = inputs["attention_mask"][..., None]
            expected = (tokens * real).sum(dim=1) / real.sum(dim=1)
            torch.testing.assert_close(found[member], expected, rtol=1e-4, atol=1e-5)


def test_gradients_are_those_of_the_original() -> None:
    """With all heads, in training mode."""
    model, inputs, labels = tiny("every-bias"), make_inputs("modernbert"), torch.tensor([0, 1, 2, 3])
    ensemble = fuse(model).train()
    torch.nn.functional.cross_entropy(ensemble(**inputs).member_logits[0], labels).backward()
    model.train()(**inputs, labels=labels).loss.backward()
    layer, own = model.model.layers[1], ensemble.layers[1]
    for ours, theirs in (
        (own.attention.qkv.weight, layer.attn.Wqkv.weight),
        (own.mlp["up"].weight, layer.mlp.Wi.weight),
        (ensemble.pooler.weight, model.head.dense.weight),
    ):
        torch.testing.assert_close(ours.grad[0].T, theirs.grad, rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(ensemble.pooler_norm.bias.grad[0, 0], model.head.norm.bias.grad, rtol=1e-3, atol=1e-6)
    table = model.model.embeddings.tok_embeddings.weight.grad
    rows = torch.arange(VOCABULARY) != 0  # the row of padding has no gradient there
    torch.testing.assert_close(ensemble.embeddings.word.grad[0][rows], table[rows], rtol=1e-3, atol=1e-6)


# Precisions


@pytest.mark.parametrize(
    ("make", "precision", "lowering"),
    [
        (lambda: tiny("first"), "fp16", "grouped"),
        (lambda: tiny("first"), "bf16", "unrolled"),
        (lambda: make_tagger("modernbert"), "fp16", "unrolled"),
        (lambda: make_tagger("modernbert"), "bf16", "grouped"),
    ],
    ids=["first-fp16-grouped", "first-bf16-unrolled", "tagger-fp16-unrolled", "tagger-bf16-grouped"],
)
def test_half_precision_is_as_good_as_pytorch(make: Any, precision: Any, lowering: Any, tmp_path: Path) -> None:
    """The yardstick is the original model in that type; both against the float32 oracle."""
    plan, inputs = random_plan("modernbert", 3), make_inputs("modernbert", batch=16)
    expected = oracle.ensemble([make()], plan, inputs)["probabilities"]
    kind = torch.float16 if precision == "fp16" else torch.bfloat16
    plain = oracle.ensemble([make().to(kind)], plan, inputs)["probabilities"]
    save_bundle(fuse(make(), plan), tmp_path / "out", tensors_only=True)
    path = export_onnx(tmp_path / "out", precision, form=GraphForm(lowering=lowering))
    arrays = {name: tensor.numpy() for name, tensor in inputs.items()}
    read = arrays["attention_mask"].astype(bool) if expected.ndim == 3 else slice(None)
    got = torch_onnx.run(onnx.load(path), arrays)["probabilities"]  # strictly typed
    ours, theirs = np.abs(got - expected)[read].mean(), np.abs(plain - expected)[read].mean()
    assert 0 < ours <= 1.2 * theirs
    if precision == "fp16":
        np.testing.assert_allclose(run_onnx(path, inputs)["probabilities"][read], expected[read], atol=1e-2)


def test_a_gate_beyond_fp16_is_an_island(tmp_path: Path) -> None:
    model = tiny("first")
    with torch.no_grad():
        model.model.layers[1].mlp.Wi.weight.mul_(150)  # a · b is 22,500 times as large, and Wo takes it back
        model.model.layers[1].mlp.Wo.weight.mul_(150.0**-2)
    plan, inputs = random_plan("modernbert", 2), make_inputs("modernbert")
    save_bundle(fuse(model, plan), tmp_path / "out", tensors_only=True)
    made = export(tmp_path / "out", "fp16")
    assert made.islands is not None
    assert "layers.1.mlp.gated" in made.islands.values
    expected = oracle.ensemble([model], plan, inputs)["probabilities"]
    np.testing.assert_allclose(run_onnx(made.path, inputs)["probabilities"], expected, atol=3e-3)


@pytest.mark.parametrize("make", [lambda: tiny("mean"), lambda: make_tagger("modernbert")], ids=["mean", "tagger"])
def test_int8(make: Any, tmp_path: Path) -> None:
    model = make()
    with torch.no_grad():  # of an ordinary size, so that 8 bits are enough
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.mul_(0.3)
    bundle = save_bundle(fuse(model, random_plan("modernbert", 2)), tmp_path / "out", tensors_only=True)
    arrays = {name: tensor.numpy() for name, tensor in make_inputs("modernbert", batch=64).items()}
    np.savez(tmp_path / "ids.npz", **arrays)
    made = export(bundle, "int8", data=tmp_path / "ids.npz", reading=Reading(examples=32))
    assert made.quantised is not None
    assert made.quantised.quantised + len(made.quantised.left) == 4 * LAYERS
    assert all(gate.passed for gate in made.quantised.gates)


# Cost


@pytest.mark.parametrize("form", ["first", "norm-biases", "every-bias"])
def test_cost_is_that_of_the_graph(form: str, tmp_path: Path) -> None:
    inputs, models = make_inputs("modernbert", batch=3), [tiny(form, seed) for seed in (1, 2, 3)]
    for index, (source, plan, separate) in enumerate([
        (models[0], forked("modernbert", 0), ()), (models[0], forked("modernbert", 2), ()),
        (models, random_plan("modernbert", 3), "norms"), (models, random_plan("modernbert", 3), "all"),
    ]):  # fmt: skip
        bundle = save_bundle(fuse(source, plan, keep_separate=separate), tmp_path / str(index), tensors_only=True)
        cost = estimate_cost(bundle, batch=3, sequence=9)
        found = counted(onnx.load(export_onnx(bundle)), inputs)
        assert found == (cost.fused.flops, cost.fused.parameters, cost.fused.bytes)
    for figures, without in ((cost.single, PLAIN), (cost.single_rewritten, frozenset[str]())):
        found = counted(random_model(architecture_of(models[0]), without=without), inputs)
        assert found == (figures.flops, figures.parameters, figures.bytes)


# Everything from the command line


def test_every_stage_from_the_command_line(text_csv: Path, tmp_path: Path) -> None:
    names = dict(enumerate("abcde"))
    labels = {"id2label": names, "label2id": {name: index for index, name in names.items()}}
    checkpoint, out, plan = tmp_path / "checkpoint", tmp_path / "out", tmp_path / "plan.json"
    make_model("modernbert", classifier_pooling="mean", **labels).save_pretrained(checkpoint)
    make_tokenizer(tmp_path / "words").save_pretrained(checkpoint)
    texts = ["the moon", "green cheese of mice", "quick brown fox", "hello moon", "what of foxes"] * 3
    (tmp_path / "ood.csv").write_text("\n".join(["text", *texts]) + "\n")
    tuned = tmp_path / "tuned"
    for command in (
        ("plan", checkpoint, "--data", text_csv, "--keep", "2", "--members", "2", "--fork-from", "1", "-o", plan),
        ("fuse", checkpoint, "--plan", plan, "-o", out),
        ("tune", out, "--data", text_csv, "--epochs", "1", "-o", tuned),
        ("export", tuned),
        ("calibrate", tuned, "--data", text_csv, "--fit", text_csv, "--ood", tmp_path / "ood.csv", "--force"),
        ("verify", tuned, "--examples", "16"),
    ):
        done = run_cli(*command)
        assert done.returncode == 0, f"{command}: {done.stderr}"
    assert json.loads(run_cli("inspect", tuned, "--json").stdout)["family"] == "modernbert"
    found = {}
    for backend in ("torch", "onnxruntime", "openvino"):
        with load(tuned, backend) as predictor:
            found[backend] = predictor.predict(["hello world", "transfer money today please"])
    for backend in ("onnxruntime", "openvino"):
        for name in ("probabilities", "energy", "distance"):
            expected = getattr(found["torch"], name)
            np.testing.assert_allclose(
                getattr(found[backend], name), expected, atol=1e-4, rtol=1e-4, err_msg=f"{backend} {name}"
            )


def test_the_vector_of_a_tagger_is_what_its_dense_layer_reads() -> None:
    model, plan, inputs = make_tagger("modernbert"), random_plan("modernbert", 2), make_inputs("modernbert")
    read: list[torch.Tensor] = []
    model.head.register_forward_pre_hook(lambda _, arguments: read.append(arguments[0]))
    for keep in plan.members:
        oracle.member_logits(model, keep, HEADS, inputs)
    with torch.no_grad():
        _, found = fuse(model, plan).features(("last.0", "last.1"), **inputs)
    real = inputs["attention_mask"].bool()
    torch.testing.assert_close(found[:, real], torch.stack(read)[:, real], rtol=1e-4, atol=1e-4)


def test_a_tagger_goes_through_every_stage(tmp_path: Path) -> None:
    """With a distance of each token, alike on three backends."""
    tags = write_json_lines(tmp_path / "tags.jsonl", 40)
    checkpoint, out, plan = tmp_path / "checkpoint", tmp_path / "out", tmp_path / "plan.json"
    make_tagger("modernbert").save_pretrained(checkpoint)
    make_word_tokenizer(tmp_path).save_pretrained(checkpoint)
    for command in (
        ("plan", checkpoint, "--data", tags, "--keep", "2", "--members", "2", "--fork-from", "1", "-o", plan),
        ("fuse", checkpoint, "--plan", plan, "-o", out),
        ("tune", out, "--data", tags, "--epochs", "1"),
        ("export", out),
        ("calibrate", out, "--data", tags, "--fit", tags, "--force"),
        ("verify", out, "--examples", "16"),
        ("evaluate", out, "--data", tags, "--compare", checkpoint, "--bootstrap", "0", "--force"),
    ):
        done = run_cli(*command)
        assert done.returncode == 0, f"{command}: {done.stderr}"
    found = {}
    for backend in ("torch", "onnxruntime", "openvino"):
        with load(out, backend) as predictor:
            found[backend] = predictor.predict([["anna", "lives", "in", "paris"], ["rome"]])
    real = found["torch"].mask
    assert real.sum() == 4 + 1 + 2 * 2  # two special tokens around each text
    for backend in ("onnxruntime", "openvino"):
        for name in ("probabilities", "energy", "distance"):
            mine, expected = (getattr(found[each], name)[real] for each in (backend, "torch"))
            np.testing.assert_allclose(mine, expected, atol=1e-4, rtol=1e-4, err_msg=f"{backend} {name}")


# Refusals


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mlp_dropout": 0.1}, "mlp_dropout = 0.1, which hydrant does not support; supported: 0.0, as ModernBERT"),
        ({"attention_dropout": 0.2}, "attention_dropout = 0.2"),
        ({"embedding_dropout": 0.3}, "embedding_dropout = 0.3"),
        ({"classifier_activation": "silu"}, "classifier_activation = 'silu'"),
        ({"hidden_activation": "mish"}, "hidden_act = 'mish'"),
        ({"local_attention": 1}, "local_attention = 1"),
        ({"layer_types": ["full_attention"]}, "layer_types = .* for each of the 3 layers"),
        ({"num_attention_heads": 32}, "num_attention_heads = 32"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope_type = 'linear'"),
    ],
)
def test_settings_that_are_refused(change: dict[str, Any], message: str) -> None:
    model = make_model("modernbert")
    rope = change.get("rope_scaling")
    if rope:
        for kind in model.config.rope_parameters.values():
            kind.update(rope)
    else:
        for name, value in change.items():
            setattr(model.config, name, value)
    with pytest.raises(UnsupportedModelError, match=message):
        architecture_of(model)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rotary": [1e4, 1e4]}, "rotary"),
        ({"rotary": [1e4, 0.0, 1e4]}, "rotary"),
        ({"rotary": [1e4, float("nan"), 1e4]}, "rotary"),
        ({"modality": "image"}, "token_pooling|rotary|channels"),
        ({"windows": [2, -1, 2]}, "windows"),
        ({"bias_free": ["norms", "heads"]}, "bias_free"),
        ({"gated_mlp": 1}, "gated_mlp"),
        ({"token_pooling": "first_and_mean"}, "token_pooling"),
    ],
)
def test_a_bundle_that_no_model_has_is_refused(change: dict[str, Any], message: str) -> None:
    stored = json.loads(json.dumps(architecture_of(make_model("modernbert")).to_json()))
    assert Architecture.from_json(stored) == architecture_of(make_model("modernbert"))
    with pytest.raises(BundleError, match=message):
        Architecture.from_json({**stored, **change})


def test_a_bundle_says_what_it_holds(tmp_path: Path) -> None:
    made = save_bundle(fuse(tiny("first")), tmp_path / "out", tensors_only=True)
    stored = json.loads(made.file("config.json").read_bytes())
    assert stored["rotary"] == [160_000.0, 10_000.0, 10_000.0]
    assert stored["windows"] == [0, 2, 2]
    assert stored["bias_free"] == ["norms", "output", "mlp", "pooler"]
    assert Bundle.open(tmp_path / "out").architecture() == architecture_of(tiny("first"))
