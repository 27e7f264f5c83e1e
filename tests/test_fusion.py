"""The fused module as a torch module: training, saving, merging, refusing."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import oracle
import pytest
import torch
import transformers
from hydrant import HeadPlan, HydrantError, fuse, save_bundle
from hydrant.fusion import measure_drift
from hydrant.fusion.grouped import PARTS, GroupedAttention, GroupedLinear, dropout
from hydrant.tuning.rank_one import RankOneLinear
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


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize(("groups", "streams"), [(1, 1), (1, 3), (3, 1), (3, 3), ("factors", 1), ("factors", 3)])
def test_the_first_token_without_keys_is_the_first_of_all(groups: int | str, streams: int, biased: bool) -> None:
    """Output and every gradient, a BatchEnsemble's factors included, of masked batches in float64."""
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
        gradients = torch.autograd.grad((out * weighed[: len(out)]).sum(), list(named.values()))
        return out.detach(), dict(zip(named, gradients, strict=True))

    (whole, expected), (own, gradients) = run(first=False), run(first=True)
    torch.testing.assert_close(own, whole, rtol=1e-10, atol=1e-12)
    for name, gradient in expected.items():
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-8, atol=1e-10, msg=name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.999])
def test_dropout_keeps_each_element_by_chance_and_the_mean(rate: float, dtype: torch.dtype) -> None:
    """All elements, and pairs from one draw, are compared with the binomial distribution."""
    x = torch.ones(200, 1000, dtype=dtype, requires_grad=True)
    torch.manual_seed(3)
    output = dropout(x, rate)
    output.sum().backward()
    gone = (output == 0).numpy()
    assert abs(gone.mean() - rate) < 5 * np.sqrt(rate * (1 - rate) / gone.size) + 1 / PARTS
    kept = output.detach().float()[torch.from_numpy(~gone)]
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / (1 - rate)), rtol=1e-2, atol=0)  # rates are rounded
    assert output.dtype == dtype
    torch.testing.assert_close(x.grad, output.detach())  # the same elements pass the gradient on
    for apart in (1, 2, 3):  # lanes of one number are independent, too
        both = gone[:, :-apart] & gone[:, apart:]
        assert abs(both.mean() - rate**2) < 6 * np.sqrt(rate**2 / both.size)
    torch.manual_seed(3)
    assert torch.equal(dropout(x, rate), output)


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


def test_the_log_names_equal_members_and_the_remedy(caplog: pytest.LogCaptureFixture) -> None:
    """Equal members of one or several models; a plan may also mix equal and different members."""
    model, plan = make_model("bert"), random_plan("bert", 2)
    again = replace(plan, members=(*plan.members, plan.members[0]))
    for make, members, remedy in (
        (lambda: fuse(model, members=3), "0, 1 and 2", "--batch-ensemble"),
        (lambda: fuse(model, again), "0 and 2", "--batch-ensemble"),
        (lambda: fuse([model, model], keep_separate="all"), "0 and 1", "different checkpoints"),
    ):
        caplog.clear()
        make()
        [message] = caplog.messages
        assert message.startswith(f"members {members} have the same heads and weights")
        assert remedy in message
    caplog.clear()
    fuse(model, plan)
    fuse([model, make_model("bert", seed=1)])
    assert caplog.messages == []


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


def test_non_finite_weights_are_named(tmp_path: Path) -> None:
    model, value = make_model("vit"), float("nan")
    ensemble = fuse(model)
    with torch.no_grad():
        model.vit.layers[1].mlp.fc1.weight[3, 4] = value
        ensemble.classifier.bias[0, 0, 1] = value
    with pytest.raises(HydrantError, match=r"weight vit\.layers\.1\.mlp\.fc1\.weight holds 1 non-finite"):
        fuse(model)
    with pytest.raises(HydrantError, match=r"weight classifier\.bias holds non-finite values"):
        save_bundle(ensemble, tmp_path / "bundle")
    assert list(tmp_path.iterdir()) == []


def test_a_processor_that_does_not_fit_leaves_no_bundle(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(tmp_path / "source")
    ensemble = fuse(make_model("bert", vocab_size=6))
    with pytest.raises(HydrantError, match="tokenizer has token ids up to 13"):
        save_bundle(ensemble, tmp_path / "bundle", tokenizer)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_unreadable_checkpoints(tmp_path: Path, bert_checkpoint: Path) -> None:
    truncated = Path(shutil.copytree(bert_checkpoint, tmp_path / "truncated"))
    whole = (truncated / "model.safetensors").read_bytes()
    (truncated / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    for source, message in (
        (str(tmp_path / "absent"), "does not exist; expected a Hugging Face checkpoint"),
        ("nowhere", r"folder nowhere .*from the hub"),
        (bert_checkpoint / "config.json", "is not a folder; expected a Hugging Face checkpoint"),
        (tmp_path, r"holds no config\.json"),
        (truncated, r"cannot load the weights of .*truncated"),
    ):
        with pytest.raises(HydrantError, match=message):
            fuse(source)


def test_a_checkpoint_without_its_classifier_is_refused(tmp_path: Path) -> None:
    """transformers would fill the missing weights at random."""
    make_model("bert").bert.save_pretrained(tmp_path / "encoder")
    config = transformers.BertConfig.from_pretrained(tmp_path / "encoder")
    config.architectures = ["BertForSequenceClassification"]
    config.save_pretrained(tmp_path / "encoder")
    with pytest.raises(HydrantError, match=r"lacks classifier\.bias, classifier\.weight"):
        fuse(tmp_path / "encoder")
