"""Tuning: gradients and updates are those of Hugging Face's models, what was shared stays so, nothing gets worse."""

import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import hydrant
import numpy as np
import oracle
import pytest
import torch
import transformers
from hydrant import (
    Bundle,
    GraphForm,
    HeadPlan,
    HydrantError,
    Jointly,
    PerMember,
    Reading,
    TuneReport,
    calibrate,
    export_onnx,
    fuse,
    load_ensemble,
    save_bundle,
    tune,
)
from hydrant.bundle.calibration import Calibration
from hydrant.bundle.progress_checkpoint import DESCRIPTION
from hydrant.bundle.signature import SIGNATURE
from hydrant.bundle.staging import sha256_of
from hydrant.cli import main as cli
from hydrant.cli.inspect import inspect_bundle
from hydrant.cli.tune import tune_text
from hydrant.fusion import FusedClassifier
from hydrant.models.checkpoint import load_processor
from hydrant.tuning import loop, tuning_data
from hydrant.tuning.job import member_seed, shared_form
from hydrant.tuning.optimizer import member_loss
from hydrant.tuning.tuned_bundle import StoredProcessor
from hydrant.tuning.tuning_data import epoch_batches, held_out_share
from hypothesis import given
from hypothesis import strategies as st
from support import CLASSES, HEADS, LAYERS, make_inputs, make_model, random_plan, save_checkpoint

KEYS = ["hello", "world", "transfer", "money", "weather"]
FILLERS = ["today", "what", "is", "the"]
NO_DROPOUT: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}

LEARNING: dict[str, Any] = {"epochs": 6, "batch_size": 4, "learning_rate": 3e-3}


def how(*, per_member: bool = False, batch_size: int = 32, **numbers: Any) -> dict[str, Any]:
    """Arguments of ``tune`` from hyperparameters."""
    return {"how": (PerMember if per_member else Jointly)(**numbers), "reading": Reading(batch_size=batch_size)}


Data = tuple[list[Any], list[str]]


def sentences(count: int, seed: int, shift: int = 0) -> Data:
    """Texts whose first word decides the label, shifted by ``shift`` classes."""
    rng = np.random.default_rng(seed)
    texts = [" ".join([KEYS[i % 5], *rng.choice(FILLERS, rng.integers(1, 6))]) for i in range(count)]
    return texts, ["abcde"[(i + shift) % 5] for i in range(count)]


def write_csv(path: Path, data: Data) -> Path:
    path.write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in zip(*data, strict=True)))
    return path


def pictures(count: int, seed: int) -> Data:
    """Noise images that are brighter in one channel or in none, and their labels."""
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 128, (count, 12, 12, 3), np.uint8)
    for index, image in enumerate(images):
        if index % 5 < 3:
            image[..., index % 5] += 100
    return list(images), [f"LABEL_{index % 5}" for index in range(count)]


def make_bundle(path: Path, checkpoint: Path, plan: HeadPlan | None) -> Path:
    save_bundle(fuse(checkpoint, plan), path, load_processor(checkpoint, "text"))
    return path


@pytest.fixture(scope="module")
def source(bert_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of three members with unequal head counts; tests that change it copy it."""
    return make_bundle(tmp_path_factory.mktemp("tune") / "bundle", bert_checkpoint, random_plan("bert", 3))


@pytest.fixture
def bundle(source: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(source, tmp_path / "bundle"))


@pytest.fixture(scope="module")
def learned(source: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TuneReport]:
    """A bundle with graphs and a calibration, and the report of tuning it into ``tuned`` beside it."""
    folder = tmp_path_factory.mktemp("learned")
    bundle = Path(shutil.copytree(source, folder / "bundle"))
    export_onnx(bundle, form=GraphForm(member_outputs=True))
    export_onnx(bundle, "bf16", form=GraphForm(lowering="unrolled"))
    export_onnx(bundle, "fp16")
    calibrate(bundle, sentences(60, 3))
    hydrant.verify(bundle, reading=Reading(examples=10))
    untouched = state(bundle)
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    report = tune(bundle, sentences(100, 0), validation=sentences(50, 1), output=folder / "tuned", **how(**LEARNING))
    assert torch.equal(torch.rand(1), expected), "the caller's random numbers"
    assert state(bundle) == untouched
    return folder / "tuned", report


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint without dropout."""
    return save_checkpoint(tmp_path_factory.mktemp("still") / "bert", **NO_DROPOUT)


def state(bundle: Path) -> dict[str, str]:
    return {str(path.relative_to(bundle)): sha256_of(path) for path in bundle.rglob("*") if path.is_file()}


def weights(bundle: Path) -> dict[str, torch.Tensor]:
    return load_ensemble(bundle).state_dict()


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(tensor, b[name]) for name, tensor in a.items())


def trained_by_hand(folder: Path, data: Data, epochs: int, rate: float, bf16: bool = False) -> Any:
    """The checkpoint after AdamW on Hugging Face's own loss, batches, gradients and schedule, and autocast."""
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    names = [name for name, _ in model.named_parameters()]
    plain = {name for name in names if name.endswith("bias") or "norm" in name.lower()}
    groups = [
        {"params": [p for n, p in model.named_parameters() if n not in plain], "weight_decay": 0.01},
        {"params": [p for n, p in model.named_parameters() if n in plain], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=rate, fused=False, foreach=False)
    inputs, labels = data[0], torch.tensor([int(model.config.label2id[label]) for label in data[1]])
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    lengths = np.array([len(tokenizer(text)["input_ids"]) for text in inputs])
    steps = -(-len(inputs) // 8)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, 0, epochs * steps)
    model.train()
    for epoch in range(1, epochs + 1):
        for indices in epoch_batches(lengths, 8, 0, epoch):
            tensors = tokenizer([inputs[index] for index in indices], padding=True, return_tensors="pt")
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                loss = model(**tensors, labels=labels[indices]).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    return model.eval()


def tuned_whole(checkpoint: Path, folder: Path, **numbers: Any) -> tuple[Path, Data, TuneReport]:
    """A tuned bundle of one whole member, its data, and the report."""
    data, path = sentences(20, 1), make_bundle(folder, checkpoint, None)
    given = how(batch_size=8, epochs=2, learning_rate=1e-3, warmup=0.0, **numbers)
    return path, data, tune(path, data, validation=data, **given)


@pytest.fixture(scope="module")
def single(still: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Data, TuneReport]:
    """A whole member tuned in float32."""
    return tuned_whole(still, tmp_path_factory.mktemp("whole") / "bundle")


def test_one_whole_member_is_tuned_as_hugging_face_would(single: tuple[Path, Data, TuneReport], still: Path) -> None:
    path, data, report = single
    assert report.best_epoch == 2
    expected = trained_by_hand(still, data, 2, 1e-3)
    inputs = make_inputs("bert", batch=6)
    with torch.no_grad():
        logits = load_ensemble(path)(**inputs).member_logits[0]
        torch.testing.assert_close(logits, expected(**inputs).logits, atol=2e-4, rtol=0)
    moved = fuse(still).state_dict()
    target = fuse(expected).state_dict()
    for name, tensor in weights(path).items():
        if not name.endswith("qkv.bias"):  # keys need no bias: its gradient is rounding, which AdamW makes large
            torch.testing.assert_close(tensor, target[name], atol=1e-4, rtol=0, msg=name)
    assert not torch.equal(target["layers.0.mlp.up.weight"], moved["layers.0.mlp.up.weight"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_is_refused_where_there_is_none() -> None:
    with pytest.raises(HydrantError, match="gpu"):
        loop.open_accelerator(Jointly(device="gpu"))


def test_bfloat16_updates_are_those_of_hugging_face_under_autocast(
    single: tuple[Path, Data, TuneReport], still: Path, tmp_path: Path
) -> None:
    """Up to bfloat16's rounding, and unlike float32's updates; weights and evaluation stay in float32."""
    whole, data, other = single
    path, _, report = tuned_whole(still, tmp_path / "bundle", mixed_precision="bf16")
    start, target = (fuse(model).state_dict() for model in (still, trained_by_hand(still, data, 2, 1e-3, bf16=True)))
    tensors = weights(path)
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float32}
    assert not same(tensors, weights(whole))
    assert report.history[0] == other.history[0], "evaluation is not rounded"
    assert report.history[-1].loss == pytest.approx(other.history[-1].loss, rel=0.02)
    for name in ("layers.0.mlp.up.weight", "layers.1.attention.output.weight", "classifier.weight"):
        mine, theirs = tensors[name] - start[name], target[name] - start[name]
        assert torch.cosine_similarity(mine.flatten(), theirs.flatten(), dim=0) > 0.98, name


def test_shared_weights_get_the_mean_of_the_members_gradients() -> None:
    model, plan = make_model("bert"), random_plan("bert", 3)
    inputs, labels = make_inputs("bert", batch=6), torch.arange(6) % CLASSES
    fused = fuse(model, plan)
    ensemble = FusedClassifier(fused.architecture, plan, shared_form(fused.state_dict()), ["x"] * CLASSES).eval()
    member_loss(ensemble(**inputs).member_logits, labels).backward()
    expected = []
    read = [model.bert.encoder.layer[1].intermediate.dense.weight, model.classifier.weight]
    for keep in plan.members:
        with oracle.silenced(model, keep, HEADS):
            expected.append(torch.autograd.grad(model(**inputs, labels=labels).loss, read))
    shared = ensemble.layers[1].mlp.up.weight, ensemble.classifier.weight
    for weight, gradients in zip(shared, zip(*expected, strict=True), strict=True):
        gradient = weight.grad
        torch.testing.assert_close(gradient[0].T, torch.stack(gradients).mean(0), atol=1e-5, rtol=1e-4)


def forked_bundle(checkpoint: Path, folder: Path) -> Path:
    """A bundle that forks at layer 1."""
    rest = tuple((0, 1, 2, 3)[:kept] for kept in (2, 3))
    members = tuple(((0, 1, 2, 3), own, rest[index % 2]) for index, own in enumerate(((0, 1), (1, 2), (3,))))
    return make_bundle(folder, checkpoint, HeadPlan("bert", LAYERS, HEADS, members, "random"))


@pytest.mark.parametrize(("per_member", "unfreeze"), [(False, False), (True, True)])
def test_the_trunk_runs_once_and_is_frozen_by_default(
    per_member: bool, unfreeze: bool, bert_checkpoint: Path, tmp_path: Path
) -> None:
    path = forked_bundle(bert_checkpoint, tmp_path / "bundle")
    before = weights(path)
    options = how(epochs=2, learning_rate=1e-3, per_member=per_member, unfreeze=unfreeze)
    report = tune(path, sentences(60, 0), **options)
    assert report.improved
    assert report.frozen == (0 if unfreeze else 1)
    after = weights(path)
    assert [len(after[f"layers.{layer}.attention.qkv.weight"]) for layer in range(LAYERS)] == [1, 3, 3]
    kept = {name for name in before if torch.equal(before[name], after[name])}
    trunk = set() if unfreeze else {name for name in before if name.startswith(("embeddings.", "layers.0."))}
    assert kept >= trunk
    assert not {name for name in kept if name.endswith("mlp.up.weight")} - trunk


@pytest.mark.parametrize("frozen", [0, LAYERS])
def test_members_without_a_fork_are_tuned_from_the_layer_that_is_named(
    frozen: int, bert_checkpoint: Path, tmp_path: Path
) -> None:
    """The control of a late fork: the single model, tuned in the same layers."""
    path = make_bundle(tmp_path / "bundle", bert_checkpoint, HeadPlan.all_heads("bert", LAYERS, HEADS))
    before = weights(path)
    numbers = {"epochs": 2, "learning_rate": 3e-3, "batch_size": 8, "freeze": frozen}
    report = tune(path, sentences(60, 0), validation=sentences(25, 1), **how(**numbers))
    assert report.improved
    assert report.frozen == frozen
    after = weights(path)
    below = tuple(f"layers.{layer}." for layer in range(frozen)) + ("embeddings.",) * (frozen > 0)
    kept = {name for name in before if torch.equal(before[name], after[name])}
    assert kept >= {name for name in before if name.startswith(below)}
    changed = {f"layers.{layer}.mlp.up.weight" for layer in range(frozen, LAYERS)} | {"classifier.weight"}
    assert not kept & changed


def test_kept_activations_change_nothing(
    bert_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In memory, in a file, or computed anew for each batch: the same weights, up to the rounding of other batches."""
    data, judges, made = sentences(40, 0), sentences(25, 1), {}
    for place, room in {"memory": tuning_data._room, "file": None, "nowhere": lambda *_: None}.items():
        if room is None:
            monkeypatch.setattr(tuning_data, "MEMORY_BYTES", 0)
        else:
            monkeypatch.setattr(tuning_data, "_room", room)
        path = forked_bundle(bert_checkpoint, tmp_path / place)
        assert tune(path, data, validation=judges, **how(epochs=2, learning_rate=3e-3, batch_size=8)).improved
        made[place] = weights(path)
        monkeypatch.undo()
    assert same(made["memory"], made["file"])
    for name, tensor in made["nowhere"].items():
        torch.testing.assert_close(tensor, made["memory"][name], atol=2e-3, rtol=1e-2, msg=name)


def test_an_epoch_is_judged_at_its_best_temperature(learned: tuple[Path, TuneReport], tmp_path: Path) -> None:
    """An epoch is evaluated after calibration, however sharp the members are."""
    bundle = Path(shutil.copytree(learned[0], tmp_path / "bundle"))
    ensemble = load_ensemble(bundle)
    with torch.no_grad():
        ensemble.classifier.weight.mul_(5)  # the same predictions, overconfident
        ensemble.classifier.bias.mul_(5)
    sharp = save_bundle(ensemble, tmp_path / "sharp", StoredProcessor(bundle / "processor"))
    plain, scaled = (tune(each, sentences(60, 4), **how(epochs=1, learning_rate=1e-9)) for each in (bundle, sharp))
    assert scaled.nll_before == pytest.approx(plain.nll_before, abs=1e-4)
    assert scaled.history[0].temperature == pytest.approx(5 * plain.history[0].temperature, rel=1e-3)


def test_a_tuned_bundle_is_better_and_as_good_as_any(learned: tuple[Path, TuneReport], tmp_path: Path) -> None:
    path, report = learned
    assert report.bundle == path
    assert report.nll_after < report.nll_before - 0.5
    assert report.accuracy_after > report.accuracy_before + 0.3
    assert report.history[report.best_epoch].nll == report.nll_after == min(epoch.nll for epoch in report.history)
    assert report.graphs == ("model.fp32.onnx", "model.bf16.onnx")
    assert report.dropped == {
        "model.fp16.onnx": f"hydrant export {path} --precision fp16 [--data FILE]",
        "reports/verify.json": f"hydrant verify {path}",
    }
    tuned = Bundle.open(path)
    assert not tuned.has("model.fp16.onnx")
    assert Calibration.of(tuned) == Calibration(temperature=1.0)
    facts = tuned.manifest["fusion"]["tuned"]
    assert facts["nll"] == [report.nll_before, report.nll_after]
    assert facts["settings"]["learning_rate"] == LEARNING["learning_rate"]
    with hydrant.load(tuned, "onnxruntime") as predictor:
        members = np.log(predictor.predict(sentences(50, 1)[0]).member_probabilities)  # logits up to a constant
    probabilities = oracle.softmax(members / report.history[report.best_epoch].temperature).mean(axis=1)
    assert (probabilities.argmax(1) == np.arange(50) % 5).mean() == pytest.approx(report.accuracy_after)
    copy = Path(shutil.copytree(path, tmp_path / "copy"))
    graphs = [(copy / name).read_bytes() for name in report.graphs]
    assert export_onnx(copy, form=GraphForm(member_outputs=True)).read_bytes() == graphs[0]
    assert export_onnx(copy, "bf16", form=GraphForm(lowering="unrolled")).read_bytes() == graphs[1]
    assert hydrant.verify(copy, reading=Reading(examples=10)).passed
    calibrate(copy, sentences(60, 3))
    assert inspect_bundle(copy)["calibration"]["fitted"] is not None


def test_nothing_gets_worse(learned: tuple[Path, TuneReport], tmp_path: Path) -> None:
    """If the data contradict the validation data, tuning stops early and the bundle is unchanged."""
    bundle = Path(shutil.copytree(learned[0], tmp_path / "bundle"))
    before = state(bundle)
    wrong, right = sentences(25, 1, shift=1), sentences(25, 1)
    report = tune(bundle, wrong, validation=right, **how(**LEARNING, patience=2))
    assert (report.best_epoch, report.epochs, report.improved) == (0, 2, False)
    assert report.nll_after == report.nll_before
    assert state(bundle) == before
    (bundle / SIGNATURE).write_text("{}")
    alone = how(**LEARNING, patience=2, per_member=True)
    merged = tune(bundle, wrong, validation=right, output=tmp_path / "copy", **alone)
    assert merged.bundle == tmp_path / "copy"
    assert merged.best_epoch == 0
    assert merged.dropped == {SIGNATURE: f"hydrant sign {tmp_path / 'copy'} --key KEY"}
    assert f"{SIGNATURE} is outdated; recreate it: hydrant sign" in tune_text(merged)
    copied = state(tmp_path / "copy")
    assert {**before, "hydrant.json": ""} == {**copied, "hydrant.json": ""}
    assert Bundle.open(tmp_path / "copy").digests() == Bundle.open(bundle).digests()


def test_members_tuned_alone(still: Path, tmp_path: Path) -> None:
    """Kept separate they are members tuned as bundles of their own, by their seeds; merged, shared parts are means."""
    data = sentences(60, 0)
    numbers, judges = {"epochs": 2, "learning_rate": 5e-4}, sentences(25, 1)
    bundle, alone = make_bundle(tmp_path / "bundle", still, random_plan("bert", 3)), []
    for member, keep in enumerate(random_plan("bert", 3).members):
        plan = HeadPlan("bert", LAYERS, HEADS, (keep,), "random")
        path = make_bundle(tmp_path / f"alone{member}", still, plan)
        assert tune(path, data, Jointly(**numbers), validation=judges, seed=member_seed(0, member)).improved
        alone.append(load_ensemble(path))
    separate = PerMember(**numbers, keep_separate="all")
    apart = tune(bundle, data, separate, validation=judges, output=tmp_path / "apart")
    merged = tune(bundle, data, PerMember(**numbers), validation=judges, output=tmp_path / "merged")
    assert [len(history) for history in merged.members] == [3, 3, 3]
    assert merged.history == ()
    inputs = make_inputs("bert")
    with torch.no_grad():
        logits = torch.cat([member(**inputs).member_logits for member in alone])
        torch.testing.assert_close(load_ensemble(tmp_path / "apart")(**inputs).member_logits, logits, atol=1e-5, rtol=0)
    mean = torch.stack([member.state_dict()["layers.1.mlp.up.weight"][0] for member in alone]).mean(0)
    torch.testing.assert_close(weights(tmp_path / "merged")["layers.1.mlp.up.weight"][0], mean)
    assert apart.drift["max_abs_logit_difference"] == 0
    assert merged.drift["max_abs_logit_difference"] > 1e-3
    assert merged.drift["unmerged_accuracy"] == apart.accuracy_after
    assert merged.drift["accuracy"] == merged.accuracy_after
    manifest = Bundle.open(tmp_path / "apart").manifest
    assert manifest["fusion"]["checkpoints"] == 3
    assert manifest["fusion"]["separate"] == ["classifier", "embeddings", "mlp", "norms", "pooler"]
    assert hydrant.estimate_cost(tmp_path / "apart").fork == 0


def interrupted_after(updates: int, part: str = "epoch") -> Callable[[Iterable[Any], int, str], Iterable[Any]]:
    """A progress display that stops after some steps of the parts whose title contains ``part``."""
    left = [updates]

    def progress(steps: Iterable[Any], total: int, title: str) -> Iterable[Any]:
        for step in steps:
            if part in title:
                if not left[0]:
                    raise KeyboardInterrupt
                left[0] -= 1
            yield step

    return progress


@pytest.mark.parametrize(("per_member", "late"), [(False, False), (True, False), (False, True)])
def test_interrupted_tuning_goes_on_to_the_same_weights(
    per_member: bool, late: bool, bundle: Path, bert_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With dropout, after an epoch and within one; with a late fork, on its cached activations."""
    if late:
        shutil.rmtree(bundle)
        forked_bundle(bert_checkpoint, bundle)
    numbers: dict[str, Any] = {"epochs": 3, "batch_size": 16, "learning_rate": 1e-3, "patience": 3}
    numbers["per_member"] = per_member
    data, place = sentences(60, 0), tmp_path / "out.tune.part"
    expected = tune(bundle, data, output=tmp_path / "whole", **how(**numbers))
    assert expected.frozen == late
    before = state(bundle)
    for updates, seconds in ((5, 999.0), (3, 0.0), *(((9, 0.0),) if per_member else ())):
        monkeypatch.setattr(loop, "SAVE_SECONDS", seconds)
        options = {**how(**numbers, state=place), "progress": interrupted_after(updates)}
        with pytest.raises(KeyboardInterrupt):
            tune(bundle, data, output=tmp_path / "out", **options)
        assert not (tmp_path / "out").exists()
    report = tune(bundle, data, output=tmp_path / "out", **how(**numbers, state=place))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", "out", "whole"]
    assert state(bundle) == before
    assert report.history == expected.history
    assert report.members == expected.members
    assert same(weights(tmp_path / "out"), weights(tmp_path / "whole"))


NUMBERS: dict[str, Any] = {"epochs": 3, "learning_rate": 1e-3}
CHANGED = [{"seed": 1}, how(**{**NUMBERS, "mixed_precision": "bf16"}), {"data": sentences(60, 5)}]


def test_state_of_another_tuning_is_refused(bundle: Path, tmp_path: Path) -> None:
    place = tmp_path / "bundle.tune.part"
    given: dict[str, Any] = {"data": sentences(60, 0), "how": Jointly(**NUMBERS, state=place)}
    with pytest.raises(KeyboardInterrupt):
        tune(bundle, progress=interrupted_after(3), **given)
    kept = (place / "all").read_bytes()
    for change in CHANGED:
        with pytest.raises(HydrantError, match=r"interrupted tuning with other (settings|data).*delete"):
            changed = {**given, **change}
            tune(bundle, **{**changed, "how": replace(changed["how"], state=place)})
    for content in (kept[:-100], kept.replace(b"updates", b"upd8tes", 1)):
        (place / "all").write_bytes(content)
        with pytest.raises(HydrantError, match=r"is not the state of a tuning.*delete"):
            tune(bundle, **given)
    (place / DESCRIPTION).unlink()
    with pytest.raises(HydrantError, match=rf"no {DESCRIPTION}.*delete"):
        tune(bundle, **given)


def test_a_loss_that_is_not_finite_stops_the_tuning(bundle: Path, tmp_path: Path) -> None:
    """No member's state remains: it would reject the next learning rate."""
    before = state(bundle)
    numbers: dict[str, Any] = {"epochs": 3, "warmup": 0.0, "per_member": True}
    with pytest.raises(HydrantError, match=r"(loss|NLL) became (nan|inf).*lower learning rate than 1e\+30"):
        tune(bundle, sentences(60, 0), **how(**numbers, learning_rate=1e30, state=tmp_path / "s.part"))
    assert state(bundle) == before
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_a_bundle_that_changed_meanwhile_is_not_replaced(bundle: Path, bert_checkpoint: Path) -> None:
    def progress(steps: Iterable[Any], total: int, title: str) -> Iterable[Any]:
        if "epoch" in title:
            processor = load_processor(bert_checkpoint, "text")
            save_bundle(fuse(make_model("bert", seed=9), random_plan("bert", 3)), bundle, processor, force=True)
        yield from steps

    with pytest.raises(HydrantError, match="changed while it was tuned"):
        tune(bundle, sentences(60, 0), how=Jointly(epochs=1, learning_rate=1e-3), progress=progress)
    assert same(weights(bundle), fuse(make_model("bert", seed=9), random_plan("bert", 3)).state_dict())


@given(st.lists(st.integers(1, 40), min_size=1, max_size=300), st.integers(1, 9), st.integers(0, 3), st.integers(1, 4))
def test_an_epoch_has_every_example_once(lengths: list[int], batch_size: int, seed: int, epoch: int) -> None:
    made = epoch_batches(np.array(lengths), batch_size, seed, epoch)
    assert sorted(np.concatenate(made).tolist()) == list(range(len(lengths)))
    assert len(made) == -(-len(lengths) // batch_size)
    assert sum(len(batch) < batch_size for batch in made) <= 1
    again = epoch_batches(np.array(lengths), batch_size, seed, epoch)
    assert all(map(np.array_equal, made, again))


@given(st.lists(st.integers(0, 4), min_size=2, max_size=200), st.integers(0, 9))
def test_a_share_of_every_class_is_held_out(labels: list[int], seed: int) -> None:
    counts = np.bincount(labels, minlength=5)
    if counts.max() < 2:
        with pytest.raises(HydrantError, match=r"no class with two examples.*--validation"):
            held_out_share(np.array(labels), seed, "test")
        return
    chosen = held_out_share(np.array(labels), seed, "test")
    assert chosen.any()
    for found, total in zip(np.bincount(np.array(labels)[chosen], minlength=5), counts, strict=True):
        assert total // 10 - 1 <= found <= -(-total // 10)
        assert total == 0 or found < total


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"data": (["hello"], ["f"])}, "label 'f' at example 0"),
    ({"data": (["hello"] * 9, None)}, "has no label"),
    ({"seed": -1}, "seed is '-1'"),
    ({"how": Jointly(freeze=2)}, "is 2; expected at most 0"),
]


@pytest.mark.parametrize(("change", "message"), REFUSED, ids=lambda value: str(value)[:40])
def test_refused(change: dict[str, Any], message: str, source: Path) -> None:
    before = state(source)
    with pytest.raises(HydrantError, match=message):
        tune(source, **{"data": sentences(30, 0), "how": Jointly(epochs=1), **change})
    assert state(source) == before


def test_interrupted_command_reports_how_to_continue(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train = write_csv(tmp_path / "train.csv", sentences(60, 0))
    monkeypatch.setattr("hydrant.cli.command_options.progress", interrupted_after(3))
    before = state(bundle)
    assert cli.main(["tune", str(bundle), "--data", str(train), "--epochs", "2"]) == 130
    assert "run the same command again" in capsys.readouterr().err
    assert state(bundle) == before
    assert (tmp_path / "bundle.tune.part").exists()
