"""Traced models of every task: one score, several labels, and a class for each token, as DeBERTa-v3 shapes."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import hydrant
import numpy as np
import oracle
import pytest
import torch
import transformers
from hydrant import Bundle, GraphForm, Jointly, tune
from hydrant.bundle.density_file import check_taps
from hydrant.bundle.traced import Traced, read_architecture
from hydrant.calib.taps import named_taps
from hydrant.errors import BundleError, InputError, UnsupportedModelError
from hydrant.fusion import TracedClassifier, load_reference
from hydrant.models.tracing.attention_blocks import hands_out_layers
from hydrant.models.tracing.members import probes, trace
from hydrant.models.tracing.traced_model import prepared
from hydrant.tuning import Taught
from hydrant.tuning.settings import derived_seed
from hydrant.tuning.traced_student import TracedStudent
from hydrant.tuning.tuning_data import epoch_batches
from onnx_reference import run_ort
from safetensors.torch import load_file
from support import make_tokenizer
from test_tune import Data, interrupted_after
from token_support import make_word_tokenizer, sentences
from traced_support import TEXT, build, by_hooks, inputs_of, make, plan_of, silenced

pytestmark = pytest.mark.usefixtures("network_once")

WORDS = ["hello world", "transfer money", "what is the weather today"]

TASKS = {"score": "deberta-v3-score", "multi_label": "deberta-v3-labels", "tokens": "deberta-v3-tokens"}

LABELS = {"score": ("0.25", "0.5", "1.0"), "multi_label": ("LABEL_0", "LABEL_1|LABEL_2", "LABEL_0|LABEL_1|LABEL_2")}


def write(path: Path, task: str, seed: int) -> Path:
    """Labelled data of a task."""
    if task == "tokens":
        tags = ["LABEL_0", "LABEL_1", "LABEL_2"]
        rows = [{"tokens": words, "tags": [tags[len(word) % 3] for word in words]} for words in sentences(60, seed)[0]]
        (path / f"{seed}.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
        return path / f"{seed}.jsonl"
    rows = [f"{WORDS[i % 3]} {'today ' * ((i + seed) % 7)}{'is ' * (i % 4)},{LABELS[task][i % 3]}" for i in range(60)]
    (path / f"{seed}.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    return path / f"{seed}.csv"


def expected_of(task: str, logits: np.ndarray) -> dict[str, np.ndarray]:
    """Expected outputs from members' logits [M, B, C] or [M, B, T, C], by formulas here and in the oracle."""
    if task == "score":
        members = 1 / (1 + np.exp(-logits[..., 0]))
        return {"score": members.mean(axis=0), "score_variance": members.var(axis=0), "member_scores": members.T}
    if task == "tokens":
        return {**oracle.uncertainty(oracle.softmax(logits)), "energy": -np.log(np.exp(logits).sum(axis=-1)).mean(0)}
    return oracle.of_labels(logits)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.slow
def test_from_plan_to_prediction(task: str, tmp_path: Path, undrawn: None) -> None:
    checkpoint, out = tmp_path / "checkpoint", tmp_path / "out"
    model = make(TASKS[task])
    model.save_pretrained(checkpoint)
    tokenizer = (make_word_tokenizer if task == "tokens" else make_tokenizer)(tmp_path / "words")
    tokenizer.save_pretrained(checkpoint)
    data, more = write(tmp_path, task, 1), write(tmp_path, task, 2)
    fork = model.config.num_hidden_layers - 1
    plan = hydrant.plan_heads(checkpoint, data, keep=0.5, fork_from=fork, members=2, traced=True)
    assert plan.head_counts() == [[4] * fork + [2]] * 2
    *trunk, last = plan.members[0]
    other = tuple(sorted({0, 1, 2, 3} - set(last)))  # members that share no head of the last block
    plan = replace(plan, members=((*trunk, last), (*trunk, other)))
    hydrant.save_bundle(hydrant.fuse(checkpoint, plan, traced=True), out, tokenizer)
    check_graph(hydrant.export_onnx(out, form=GraphForm(member_outputs=True)), task, model, out)
    hydrant.calibrate(out, more, fit=data, taps="all" if task == "tokens" else "auto", force=True)
    assert hydrant.verify(out, "onnxruntime", reading=hydrant.Reading(examples=20)).passed
    report = hydrant.evaluate(out, data, figures=hydrant.Figures(bootstrap=0), force=True)
    assert [entry.name for entry in report.models] == ["out"]
    backends = ("torch", "onnxruntime", "openvino") if task == "tokens" else ("torch", "onnxruntime")
    predictors = {name: hydrant.load(out, name) for name in backends}
    answers = {name: predictor.predict(WORDS) for name, predictor in predictors.items()}
    names = ["score", "score_variance"] if task == "score" else ["probabilities", "mutual_information", "energy"]
    names += ["label_entropy"] if task == "multi_label" else []
    for name in (*names, "distance"):
        wanted = getattr(answers["torch"], name)
        scale = max(1.0, float(np.nanmax(np.abs(wanted))))
        for found in answers.values():
            np.testing.assert_allclose(getattr(found, name), wanted, atol=1e-4 * scale)
    rows = predictors["onnxruntime"].rows(answers["onnxruntime"], WORDS)
    assert len(rows) == len(WORDS)
    if task == "tokens":
        assert {"words", "spans"} <= set(rows[0])
    elif task == "score":
        assert rows[0]["interval_low"] <= rows[0]["score"] <= rows[0]["interval_high"]
    else:
        assert hydrant.load(out).calibration.labels is not None


def check_graph(graph: Path, task: str, model: Any, out: Path) -> None:
    """Compare graph and PyTorch module with the original whose heads are silenced by hooks."""
    ensemble = load_reference(out)
    assert isinstance(ensemble, TracedClassifier)
    assert ensemble.architecture.form == "sliced"
    for batch, tokens in ((1, 3), (4, 17)):
        inputs = inputs_of(ensemble.architecture, batch, tokens)
        real = inputs["attention_mask"].numpy().astype(bool)
        logits = by_hooks(TASKS[task], model, ensemble.plan, inputs)
        given = run_ort(graph, {key: each.numpy() for key, each in inputs.items()})
        with torch.no_grad():
            module = ensemble(**inputs)
        for name, wanted in expected_of(task, logits).items():
            for found in (given[name], getattr(module, name).numpy()):
                assert found.shape == wanted.shape
                both = (found[real], wanted[real]) if task == "tokens" else (found, wanted)
                np.testing.assert_allclose(*both, atol=1e-4 if name == "energy" else 2e-5)
    assert float(np.abs(logits[0] - logits[1]).max()) > 1e-4  # heads matter, so agreement means something


def test_taps_of_taggers_are_the_hidden_states_of_transformers() -> None:
    traced = trace(prepared(make("deberta-v3-tokens")))
    last, both = ("last.0", "last.1"), ("layers.0.token", "last.0", "last.1")
    assert (traced.classifier, traced.width, traced.hidden_states) == ("classifier", 32, True)
    assert named_taps("auto", traced, 1, 2) == {"last": last, "all": both, "balanced": both}
    assert named_taps("auto", traced, 0, 2) == {"last": last}  # members that diverge in the first layer
    check_taps(both, traced, 2)
    shared = trace(prepared(transformers.AlbertForTokenClassification(transformers.AlbertConfig(**ALBERT)).eval()))
    assert (shared.width, shared.hidden_states, shared.layers) == (32, False, 1)  # three vectors, and one block
    whole = trace(prepared(make("deberta-v3")))
    for few in (shared, whole, replace(traced, hidden_states=False)):
        assert named_taps("auto", few, 1, 2) in ({"last": last}, {"last": last[:1]})
        with pytest.raises(InputError, match=r"taps is .*expected last"):
            named_taps("all", few, 1, 2)
        with pytest.raises(ValueError, match=r"tap 'layers\.0\.token' of a model of"):
            check_taps(both, few, 2)
    with pytest.raises(InputError, match="has no known feature vectors"):
        named_taps("auto", replace(traced, width=0, classifier="", hidden_states=False), 1, 2)


ALBERT: dict[str, Any] = {**TEXT, "embedding_size": 16}


def test_hidden_states_from_elsewhere_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """For other states than block outputs, or another width, the distance reads only the last vectors."""
    model = prepared(make("deberta-v3-tokens"))
    read: Traced = trace(model)
    inputs, whole = probes(read)[-1], model.forward
    given = model(**inputs, output_hidden_states=True).hidden_states
    assert hands_out_layers(model, inputs, read.blocks, read.width)
    assert not hands_out_layers(model, inputs, read.blocks, read.width + 1)
    for states in (lambda each: (each[0], each[2], each[2]), lambda each: each[:2], lambda _: given, lambda _: None):

        def other(states: Any = states, **arguments: Any) -> Any:
            answer = whole(**arguments)
            answer.hidden_states = states(answer.hidden_states)
            return answer

        monkeypatch.setattr(model, "forward", other)
        assert not hands_out_layers(model, inputs, read.blocks, read.width)


def test_a_task_that_contradicts_its_model_is_refused() -> None:
    description = trace(prepared(make("deberta-v3-labels"))).to_json()
    with pytest.raises(BundleError, match="classes"):
        read_architecture({**description, "task": "score"})
    old = {name: value for name, value in description.items() if name not in ("task", "score_activation")}
    assert read_architecture(old).task == "classification"  # older bundles name no task


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Path], Data]:
    """An exported bundle of three members, its checkpoint and a teacher for each, and labelled texts."""
    folder = tmp_path_factory.mktemp("taught")
    tokenizer, checkpoints = make_tokenizer(folder / "words"), [folder / str(seed) for seed in range(4)]
    for seed, path in enumerate(checkpoints):
        torch.manual_seed(seed)
        model = build("deberta-v3").eval()
        model.classifier.weight.data *= 30  # sure of its classes
        model.save_pretrained(path)
        tokenizer.save_pretrained(path)
    plan = plan_of(trace(prepared(model)), members=3, fork=0)
    bundle = hydrant.save_bundle(hydrant.fuse(checkpoints[0], plan, traced=True), folder / "out", tokenizer)
    hydrant.export_onnx(bundle)
    texts = [f"{WORDS[i % 3]} {'today ' * (i % 7)}" for i in range(24)]
    labels = [int(model(**tokenizer(text, return_tensors="pt")).logits.argmax()) for text in texts]
    return bundle.path, checkpoints, (texts, [f"LABEL_{label}" for label in labels])


def test_one_step_from_teachers_is_that_of_plain_pytorch(taught: tuple[Any, ...], tmp_path: Path) -> None:
    """transformers' own model with dropout, run once for each member without its removed heads."""
    bundle, [checkpoint, *teachers], data = taught
    how = Taught(teachers=teachers, epochs=1, softening=2.0, warmup=0.0, learning_rate=3e-3, device="cpu")
    assert tune(bundle, data, how, validation=data, output=tmp_path / "out").improved
    read = transformers.AutoModelForSequenceClassification.from_pretrained
    model, tokenizer = read(checkpoint).train(), transformers.AutoTokenizer.from_pretrained(checkpoint)
    lengths = np.array([len(tokenizer(text)["input_ids"]) for text in data[0]])
    [places] = epoch_batches(lengths, 32, 0, 1)
    inputs = tokenizer([data[0][place] for place in places], padding=True, return_tensors="pt")
    with torch.no_grad():
        targets = [(read(teacher)(**inputs).logits / 2).softmax(dim=-1) for teacher in teachers]
    torch.manual_seed(derived_seed(0, 0))
    plan, losses = Bundle.open(bundle).plan(), []
    for keep, target in zip(plan.members, targets, strict=True):
        with silenced("deberta-v3", model, keep, 4):
            student = (model(**inputs).logits / 2).log_softmax(dim=-1)
        losses.append(4 * torch.nn.functional.kl_div(student, target, reduction="batchmean"))
    torch.stack(losses).mean().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    groups = [{"params": [each], "weight_decay": 0.01 * (each.ndim > 1)} for each in model.parameters()]
    torch.optim.AdamW(groups, lr=3e-3).step()
    stored = load_file(tmp_path / "out" / "fused.safetensors")
    for name, parameter in model.named_parameters():
        steady = parameter.grad.abs() > 1e-5  # AdamW makes the rounding of other gradients large
        torch.testing.assert_close(stored[name][steady], parameter.detach()[steady], atol=1e-5, rtol=0, msg=name)


def test_an_interrupted_tuning_goes_on_to_the_same_bundle(taught: tuple[Any, ...], tmp_path: Path) -> None:
    bundle, [_, *teachers], data = taught
    how = Taught(teachers=teachers, epochs=3, learning_rate=2e-3, state=tmp_path / "part")
    options: dict[str, Any] = {"validation": data, "reading": hydrant.Reading(batch_size=8)}
    assert tune(bundle, data, how, output=tmp_path / "whole", **options).improved
    with pytest.raises(KeyboardInterrupt):
        tune(bundle, data, how, output=tmp_path / "out", progress=interrupted_after(5), **options)
    tune(bundle, data, how, output=tmp_path / "out", **options)
    one, other = (Bundle.open(tmp_path / name) for name in ("whole", "out"))
    assert one.digests() == other.digests()
    assert one.read_json("original_check.json")["inputs"][0]["probabilities"] == {}
    assert hydrant.verify(one, "onnxruntime", reading=hydrant.Reading(examples=20)).passed


@pytest.mark.parametrize("task", TASKS)
def test_members_of_every_task_learn(task: str, tmp_path: Path) -> None:
    tokenizer = (make_word_tokenizer if task == "tokens" else make_tokenizer)(tmp_path / "words")
    for seed, name in enumerate(("student", "0", "1")):
        torch.manual_seed(seed)
        build(TASKS[task]).save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    plan = plan_of(trace(prepared(build(TASKS[task]))), fork=0)
    hydrant.save_bundle(hydrant.fuse(tmp_path / "student", plan, traced=True), tmp_path / "out", tokenizer)
    options: dict[str, Any] = {"epochs": 3, "learning_rate": 3e-3, "patience": 3}
    for how in (Jointly(**options), Taught(teachers=[tmp_path / "0", tmp_path / "1"], **options)):
        report = tune(tmp_path / "out", write(tmp_path, task, 1), how, validation=write(tmp_path, task, 2),
                      output=tmp_path / "tuned", force=True)  # fmt: skip
        losses = [epoch.loss for epoch in report.history[1:]]
        assert losses[-1] < losses[0], losses


@pytest.mark.parametrize("name", ["mobilevit", "beit", "wav2vec2"])
def test_only_weights_change_while_a_model_learns(name: str) -> None:
    """Batch norms keep their statistics, and tables that an evaluation cached do not end the training."""
    ensemble = hydrant.fuse(make(name), plan_of(trace(prepared(make(name))), fork=0), traced=True)
    student, inputs = TracedStudent(ensemble), probes(ensemble.architecture)[-1]
    with torch.inference_mode():
        logits = student(**inputs).member_logits
    torch.testing.assert_close(logits, ensemble(**inputs).member_logits, atol=2e-5, rtol=0)
    student.train()(**inputs).member_logits.logsumexp(-1).sum().backward()
    frozen = [name for name, parameter in student.named_parameters() if parameter.grad is None]
    assert frozen == ["original.wav2vec2.masked_spec_embed"] * (name == "wav2vec2")
    for one, other in zip(student.original.buffers(), ensemble.original.buffers(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_a_model_without_gradients_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make("deberta-v3")
    ensemble = hydrant.fuse(model, plan_of(trace(prepared(model))), traced=True)
    monkeypatch.setattr(type(model), "forward", torch.no_grad()(type(model).forward))
    with pytest.raises(UnsupportedModelError, match="DebertaV2ForSequenceClassification cannot be tuned"):
        TracedStudent(ensemble)
