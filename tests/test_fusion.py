"""The fused module as a torch module: training, saving, merging, refusing."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
import torch
import transformers
from hydrant import HeadPlan, HydrantError, export_onnx, fuse, load_ensemble, plan_heads, save_bundle
from hydrant.fusion import measure_drift
from hydrant.fusion.dropout import PARTS, dropout
from hydrant.fusion.grouped import GroupedAttention, GroupedLinear
from hydrant.tuning.rank_one import RankOneLinear
from safetensors.torch import load_file
from support import FAMILIES, HEADS, LAYERS, make_inputs, make_model, make_tokenizer, model_type, random_plan


@pytest.mark.parametrize("family", FAMILIES)
def test_training_reaches_every_parameter_and_leaves_padding_heads_empty(family: str) -> None:
    """Members of 1 and 4 heads share a padded weight; its empty heads must stay empty."""
    keep = (((0,),) * LAYERS, (tuple(range(HEADS)),) * LAYERS)
    ensemble = fuse(make_model(family), HeadPlan(model_type(family), LAYERS, HEADS, keep, "random"))
    before = {name: tensor.clone() for name, tensor in ensemble.state_dict().items()}
    inputs, labels = make_inputs(family, batch=8), torch.arange(8) % 5
    optimizer = torch.optim.AdamW(ensemble.parameters(), lr=1e-3)

    def loss() -> torch.Tensor:
        logits = ensemble(**inputs).member_logits  # [M, B, C]
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.repeat(2))

    first = loss().item()
    ensemble.train()
    torch.manual_seed(0)
    for _ in range(6):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    ensemble.eval()
    assert loss().item() < first
    after = ensemble.state_dict()
    for name, parameter in ensemble.named_parameters():
        assert parameter.grad is not None, name
        assert not torch.equal(before[name], after[name]), f"{name} did not move"
    width = ensemble.architecture.head_width
    qkv = after["layers.0.attention.qkv.weight"][0].unflatten(1, (3, HEADS, width))  # member 0 keeps one head
    assert torch.count_nonzero(qkv[:, :, 1:]) == 0
    assert torch.count_nonzero(after["layers.0.attention.output.weight"][0, width:]) == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_the_last_layer_computes_the_tokens_that_are_read(family: str) -> None:
    """The first alone, unless a tap or the classifier reads the others; the logits are the same."""
    ensemble, inputs = fuse(make_model(family), random_plan(family, 2)), make_inputs(family)
    seen: list[int] = []
    last: Any = ensemble.layers[-1]
    last.mlp["down"].register_forward_hook(lambda _module, _inputs, output: seen.append(output.shape[2]))
    with torch.inference_mode():
        logits = ensemble(**inputs).member_logits
        ensemble.features((f"layers.{LAYERS - 1}.first",), **inputs)
        whole, _ = ensemble.features((f"layers.{LAYERS - 1}.mean",), **inputs)
    assert seen[0] == seen[1] == (1 if ensemble.architecture.first_token_only else seen[2])
    assert seen[2] > 1
    torch.testing.assert_close(logits, whole, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize(("groups", "streams"), [(1, 1), (1, 3), (3, 1), (3, 3), ("factors", 1), ("factors", 3)])
def test_the_first_token_without_keys_is_the_first_of_all(groups: int | str, streams: int, biased: bool) -> None:
    """Output and every gradient, of masked batches, in float64; of a BatchEnsemble's factors, too."""
    torch.manual_seed(0)
    count = groups if isinstance(groups, int) else 1

    def linear(inputs: int, outputs: int) -> GroupedLinear:
        weight, bias = torch.randn(count, inputs, outputs), torch.randn(count, 1, outputs)
        return GroupedLinear(weight.double(), bias.double() if biased else None)

    qkv, output = linear(16, 3 * 8), linear(8, 16)
    if groups == "factors":
        qkv, output = RankOneLinear(qkv, 3, 3), RankOneLinear(output, 3, 1)
        for each in (qkv.input_factor, qkv.output_factor, output.input_factor, output.output_factor):
            each.data = 1 + 0.5 * torch.randn_like(each.double())
    attention = GroupedAttention(qkv, output, 4, 0.0)
    x = torch.randn(streams, 5, 7, 16, dtype=torch.float64, requires_grad=True)
    mask = torch.ones(5, 1, 1, 7, dtype=torch.bool)
    mask[1, ..., 4:] = mask[2, ..., :3] = False
    weighed = torch.randn(3, 5, 1, 16)

    def run(first: bool) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        out = attention(x, mask, first)[:, :, :1]
        named = {"x": x, **dict(attention.named_parameters())}
        found = torch.autograd.grad((out * weighed[: len(out)]).sum(), list(named.values()))
        return out.detach(), dict(zip(named, found, strict=True))

    (whole, expected), (own, found) = run(first=False), run(first=True)
    torch.testing.assert_close(own, whole, rtol=1e-10, atol=1e-12)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-8, atol=1e-10, msg=name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.999])
def test_dropout_keeps_each_element_by_chance_and_the_mean(rate: float, dtype: torch.dtype) -> None:
    """Against the binomial distribution: of all elements, and of pairs that came from one draw."""
    x = torch.ones(200, 1000, dtype=dtype, requires_grad=True)
    torch.manual_seed(3)
    found = dropout(x, rate)
    found.sum().backward()
    gone = (found == 0).numpy()
    assert abs(gone.mean() - rate) < 5 * np.sqrt(rate * (1 - rate) / gone.size) + 1 / PARTS
    kept = found.detach().float()[torch.from_numpy(~gone)]
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / (1 - rate)), rtol=1e-2, atol=0)  # rates are rounded
    assert found.dtype == dtype
    torch.testing.assert_close(x.grad, found.detach())  # the same elements pass the gradient on
    for apart in (1, 2, 3):  # lanes of one number are as independent as those of two
        both = gone[:, :-apart] & gone[:, apart:]
        assert abs(both.mean() - rate**2) < 6 * np.sqrt(rate**2 / both.size)
    torch.manual_seed(3)
    assert torch.equal(dropout(x, rate), found)


@pytest.mark.parametrize("shape", [(0,), (1,), (3, 5), (2, 0, 4), ()])
def test_dropout_of_any_shape(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    assert torch.equal(dropout(x, 0.0), x)
    assert torch.equal(dropout(x, 1.0), torch.zeros(shape))
    assert dropout(x, 0.3).shape == shape


def test_the_output_has_what_a_prediction_of_classes_has() -> None:
    output = fuse(make_model("bert"), random_plan("bert", 2))(**make_inputs("bert"))
    given = ("probabilities", "label", "confidence", "energy", "disagreement", "member_probabilities")
    given += ("predictive_entropy", "expected_entropy", "mutual_information")
    absent = ("distance", "abstain", "out_of_distribution")  # nothing was fitted; thresholds belong to the runtime
    assert [name for name in (*given, *absent) if getattr(output, name) is None] == list(absent)
    assert output.member_logits.shape == output.member_probabilities.transpose(0, 1).shape


def test_fusing_copies_the_checkpoint() -> None:
    model, inputs = make_model("bert"), make_inputs("bert")
    ensemble = fuse(model, random_plan("bert", 2))
    with torch.no_grad():
        before = model(**inputs).logits
        for parameter in ensemble.parameters():
            parameter.zero_()
        torch.testing.assert_close(model(**inputs).logits, before)


@pytest.mark.parametrize("family", ["bert", "deit"])
def test_state_dict_round_trip_through_a_bundle(family: str, tmp_path: Path) -> None:
    ensemble = fuse(make_model(family), random_plan(family, 3))
    ensemble.temperature = 1.5
    save_bundle(ensemble, tmp_path / "bundle")
    loaded = load_ensemble(tmp_path / "bundle")
    assert loaded.temperature == 1.5
    assert not loaded.training
    assert (
        loaded.state_dict().keys()
        == ensemble.state_dict().keys()
        == load_file(tmp_path / "bundle/fused.safetensors").keys()
    )
    with torch.no_grad():
        for a, b in zip(
            vars(loaded(**make_inputs(family))).values(), vars(ensemble(**make_inputs(family))).values(), strict=True
        ):
            assert a is b is None or torch.equal(a, b)


def test_merged_parts_are_means_and_attention_stays_apart() -> None:
    models = [make_model("bert", seed=seed) for seed in (1, 2, 3)]
    ensemble = fuse(models, keep_separate=["classifier"])
    state, name = ensemble.state_dict(), "bert.encoder.layer.1.intermediate.dense.weight"
    mean = torch.stack([model.state_dict()[name] for model in models]).mean(0)
    torch.testing.assert_close(state["layers.1.mlp.up.weight"][0].T, mean)
    assert state["layers.1.mlp.up.weight"].shape[0] == 1
    assert state["classifier.weight"].shape[0] == 3
    assert state["layers.1.attention.qkv.weight"].shape[0] == 3
    torch.testing.assert_close(state["classifier.weight"][2].T, models[2].state_dict()["classifier.weight"])


def test_equal_checkpoints_are_merged_bit_by_bit() -> None:
    """A mean of equal numbers is not always that number."""
    one, three = (fuse([make_model("bert")] * count).state_dict() for count in (1, 3))
    assert all(torch.equal(tensor, three[name][:1]) for name, tensor in one.items())


def test_members_that_are_alike_are_told_with_what_tells_them_apart(caplog: pytest.LogCaptureFixture) -> None:
    """However they came to be; one plan may hold some that are and one that is not."""
    model, plan = make_model("bert"), random_plan("bert", 2)
    again = replace(plan, members=(*plan.members, plan.members[0]))
    same = "members {} have the same heads and weights; they cannot disagree until something tells them apart: {}"
    for make, who, remedy in (
        (lambda: fuse(model, members=3), "0, 1 and 2", "`hydrant tune --batch-ensemble`, or a plan of other heads"),
        (lambda: fuse(model, again), "0 and 2", "`hydrant tune --batch-ensemble`, or a plan of other heads"),
        (lambda: fuse([model, model], keep_separate="all"), "0 and 1", "other checkpoints, adapters or heads"),
    ):
        caplog.clear()
        make()
        assert caplog.messages == [same.format(who, remedy)]
    caplog.clear()
    fuse(model, plan)
    fuse([model, make_model("bert", seed=1)])
    assert caplog.messages == []


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu", "quick_gelu", "silu"])
def test_a_fused_module_can_be_pickled(activation: str) -> None:
    ensemble, inputs = fuse(make_model("bert", hidden_act=activation)), make_inputs("bert")
    with torch.no_grad():
        again = pickle.loads(pickle.dumps(ensemble))(**inputs)  # noqa: S301 (our own bytes)
        assert torch.equal(again.member_logits, ensemble(**inputs).member_logits)


@pytest.mark.parametrize("part", ["embeddings", "norms", "mlp", "pooler", "classifier"])
def test_any_part_can_stay_separate(part: str, tmp_path: Path) -> None:
    """The graph with one part grouped equals the module, whose parts are checked against the oracle."""
    models = [make_model("bert", seed=seed) for seed in (1, 2)]
    ensemble, inputs = fuse(models, keep_separate=[part]), make_inputs("bert")
    grouped = {n for n, t in ensemble.state_dict().items() if t.shape[0] == 2 and "attention." not in n}
    assert grouped
    assert all(part.rstrip("s") in name for name in grouped), grouped
    import onnxruntime

    save_bundle(ensemble, tmp_path / "bundle")
    session = onnxruntime.InferenceSession(str(export_onnx(tmp_path / "bundle")))
    got = session.run(["probabilities"], {name: tensor.numpy() for name, tensor in inputs.items()})[0]
    with torch.no_grad():
        np.testing.assert_allclose(got, ensemble(**inputs).probabilities, atol=1e-5)


def test_drift_of_equal_checkpoints_is_nil_and_of_different_ones_measured() -> None:
    inputs, labels = make_inputs("bert", batch=6), np.arange(6) % 5
    same = [make_model("bert", seed=1), make_model("bert", seed=1)]
    nil = measure_drift(fuse(same), fuse(same, keep_separate="all"), [(inputs, labels)])
    assert nil.max_abs_logit_difference < 1e-5
    assert nil.label_changes == 0
    models = [make_model("bert", seed=1), make_model("bert", seed=2)]
    merged, unmerged = fuse(models), fuse(models, keep_separate="all")
    drift = measure_drift(merged, unmerged, [(inputs, labels)])
    expected = oracle.ensemble(models, unmerged.plan, inputs)
    with torch.no_grad():
        largest = np.abs(merged(**inputs).member_logits.double().numpy() - expected["member_logits"]).max()
    assert drift.max_abs_logit_difference == pytest.approx(largest, rel=1e-4)
    assert drift.unmerged_accuracy == pytest.approx((expected["probabilities"].argmax(1) == labels).mean())
    assert drift.examples == 6
    unlabelled = measure_drift(merged, unmerged, [(inputs, None)])
    assert unlabelled.accuracy is None


REFUSED = [
    (lambda: fuse([]), "was given no model"),
    (
        lambda: fuse(make_model("bert"), random_plan("vit", 2)),
        "plan was made for a 'vit' model, but this model is 'bert'",
    ),
    (lambda: fuse(make_model("bert", num_hidden_layers=2), random_plan("bert", 2)), "plan is for 3 layers of 4 heads"),
    (lambda: fuse([make_model("bert")] * 2, random_plan("bert", 3)), "2 models for a plan of 3 members"),
    (lambda: fuse(make_model("bert"), keep_separate=["mlp"]), "one checkpoint has nothing to separate"),
    (
        lambda: fuse([make_model("bert")] * 2, keep_separate=["head"]),
        "cannot keep 'head' separate; expected some of emb",
    ),
    (
        lambda: fuse([make_model("bert"), make_model("bert", vocab_size=50)]),
        "models 0 and 1 differ in vocabulary 99 and 50",
    ),
    (lambda: fuse([make_model("bert"), make_model("roberta")]), "differ in family 'bert' and 'roberta'"),
    (
        lambda: fuse([make_model("bert"), make_model("bert", id2label=dict(enumerate("vwxyz")))]),
        "models 0 and 1 have different labels",
    ),
    (
        lambda: fuse(make_model("bert", num_labels=1, problem_type="multi_label_classification")),
        "supported: regression where num_labels is 1",
    ),
    (
        lambda: fuse(make_model("bert", is_decoder=True)),
        "bert model has is_decoder = True.*supported: is_decoder = False",
    ),
    (lambda: fuse(make_model("bert", is_decoder=True, add_cross_attention=True)), r"is_decoder|add_cross_attention"),
    (
        lambda: fuse(make_model("bert", position_embedding_type="relative_key")),
        "position_embedding_type = 'relative_key'",
    ),
    (lambda: fuse(make_model("bert", problem_type="regression")), "problem_type = 'regression'"),
    (lambda: fuse(make_model("bert", hidden_act="mish")), "hidden_act = 'mish'.*supported: gelu"),
    (
        lambda: fuse(transformers.BertForQuestionAnswering(transformers.BertConfig(num_hidden_layers=1))),
        "BertForQuestionAnswering is not supported: .* BertForSequenceClassification .*; supported: Bert",
    ),
]


@pytest.mark.parametrize(("attempt", "message"), REFUSED, ids=[message[:40] for _, message in REFUSED])
def test_refusals_name_what_was_found_and_expected(attempt: Any, message: str) -> None:
    with pytest.raises(HydrantError, match=message):
        attempt()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_non_finite_weights_are_named(value: float, tmp_path: Path) -> None:
    model = make_model("vit")
    ensemble = fuse(model)
    with torch.no_grad():
        model.vit.layers[1].mlp.fc1.weight[3, 4] = value
        ensemble.classifier.bias[0, 0, 1] = value
    with pytest.raises(HydrantError, match=r"weight vit\.layers\.1\.mlp\.fc1\.weight holds 1 non-finite"):
        fuse(model)
    with pytest.raises(HydrantError, match=r"weight classifier\.bias holds non-finite values"):
        save_bundle(ensemble, tmp_path / "bundle")
    assert list(tmp_path.iterdir()) == []


def test_inputs_of_the_other_modality_and_long_sequences() -> None:
    text, image = fuse(make_model("bert")), fuse(make_model("vit"))
    with pytest.raises(HydrantError, match="reads input_ids, not pixel_values"):
        text(pixel_values=torch.zeros(1, 3, 12, 12))
    with pytest.raises(HydrantError, match="reads pixel_values, not input_ids"):
        image(input_ids=torch.zeros(1, 3, dtype=torch.long))
    with pytest.raises(HydrantError, match=r"pixel_values has shape \[1, 3, 8, 8\]; expected \[batch, 3, 12, 12\]"):
        image(pixel_values=torch.zeros(1, 3, 8, 8))
    with pytest.raises(HydrantError, match="sequence has 41 tokens; this model reads at most 40"):
        text(input_ids=torch.zeros(1, 41, dtype=torch.long))


def test_a_processor_that_does_not_fit_leaves_no_bundle(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(tmp_path / "source")
    ensemble = fuse(make_model("bert", vocab_size=6))
    with pytest.raises(HydrantError, match="tokenizer has token ids up to 13"):
        save_bundle(ensemble, tmp_path / "bundle", tokenizer)
    with pytest.raises(HydrantError, match="processor is a str; expected a transformers tokenizer"):
        save_bundle(ensemble, tmp_path / "bundle", "tokenizer")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_unreadable_checkpoints(tmp_path: Path, bert_checkpoint: Path) -> None:
    with pytest.raises(HydrantError, match="does not exist; expected a Hugging Face checkpoint"):
        fuse(str(tmp_path / "absent"))
    with pytest.raises(HydrantError, match=r"model 'nowhere/' does not exist; expected a Hugging Face checkpoint"):
        fuse("nowhere/")
    with pytest.raises(HydrantError, match=r"there is no folder nowhere, and no model .* from the hub"):
        fuse("nowhere")
    with pytest.raises(HydrantError, match="is not a folder; expected a Hugging Face checkpoint"):
        fuse(bert_checkpoint / "config.json")
    with pytest.raises(HydrantError, match=r"holds no config\.json"):
        fuse(tmp_path)
    truncated = tmp_path / "truncated"
    truncated.mkdir()
    for file in bert_checkpoint.iterdir():
        if file.is_file():
            (truncated / file.name).write_bytes(file.read_bytes())
    whole = (truncated / "model.safetensors").read_bytes()
    (truncated / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(HydrantError, match=r"cannot load the weights of .*truncated"):
        fuse(truncated)


def test_what_is_no_model_and_no_plan(bert_checkpoint: Path) -> None:
    model = make_model("bert")
    with torch.device("meta"):
        hollow = type(model)(model.config)
    with pytest.raises(HydrantError, match=r"weight bert\..* lies on the device meta, which holds no numbers"):
        fuse(hollow)
    with pytest.raises(HydrantError, match="lies on the device meta"):
        plan_heads(hollow, keep=2, method="random")
    with pytest.raises(HydrantError, match="lies on the device meta"):
        fuse(hollow, members=2, traced=True)
    for given, name in ((None, "NoneType"), (model.config, "BertConfig"), ([model, 3], "int")):
        with pytest.raises(HydrantError, match=f"a model is '{name}'; expected a classifier of transformers, the fold"):
            fuse(given)
    with pytest.raises(HydrantError, match=r"keep_separate is '5'; expected some of embeddings, .*, or all"):
        fuse([model, model], keep_separate=5)  # type: ignore[call-overload]
    with pytest.raises(HydrantError, match=r"plan is 'plan\.json'; expected a HeadPlan, such as HeadPlan\.load"):
        fuse(bert_checkpoint, "plan.json")
    for wrapped, remedy in (
        (torch.nn.DataParallel(model), r"give the model inside, model\.module;"),
        (torch.compile(model), r"give the model that torch\.compile was given"),
    ):
        with pytest.raises(HydrantError, match=f"it is a wrapper around a model; {remedy}"):
            fuse(wrapped)
        with pytest.raises(HydrantError, match=f"is a wrapper around a model; {remedy.removesuffix(';')}"):
            fuse(wrapped, traced=True)


def test_a_checkpoint_without_its_classifier_is_refused(tmp_path: Path) -> None:
    """transformers would fill the missing weights at random."""
    make_model("bert").bert.save_pretrained(tmp_path / "encoder")
    config = transformers.BertConfig.from_pretrained(tmp_path / "encoder")
    config.architectures = ["BertForSequenceClassification"]
    config.save_pretrained(tmp_path / "encoder")
    with pytest.raises(
        HydrantError, match=r"lacks classifier\.bias, classifier\.weight; those weights would be random"
    ):
        fuse(tmp_path / "encoder")
