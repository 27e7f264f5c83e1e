"""Multi-label models: from the checkpoint to the labels that apply, against the hook oracle and Hugging Face's loss."""

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import hydrant
import numpy as np
import oracle
import pytest
import scipy.special
import torch
import transformers
from hydrant import GraphForm, Jointly, Reading
from hydrant.bundle.calibration import Calibration, LabelDecisions
from hydrant.data.examples import Examples, read_examples
from hydrant.errors import BundleError, InputError
from hydrant.models.checkpoint import load_processor
from hydrant.tuning import tune
from hydrant.tuning.optimizer import member_loss
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx_reference import run_ort
from support import LAYERS, ReadyTensors, examples_of, make_inputs, make_model, predicted, random_plan
from task_support import NAMES, Case, make_case
from token_support import loss_with_gate

MULTI_LABEL = "multi_label_classification"
TEMPERATURES = (0.5, 1.0, 2.0, 0.8, 1.5)


def make_labeller(family: str = "bert", seed: int = 0, **settings: Any) -> Any:
    """A tiny multi-label model."""
    model = make_model(family, seed=seed, **settings)
    model.config.problem_type = MULTI_LABEL
    return model


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return make_case("multi_label", tmp_path_factory.mktemp("labels"), train=160, validation=120)


@pytest.fixture(scope="module")
def bundle(case: Case, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fused with a random plan, and exported."""
    folder = tmp_path_factory.mktemp("bundle") / "out"
    plan = hydrant.plan_heads(case.checkpoint, method="random", keep=2)
    hydrant.save_bundle(hydrant.fuse(case.checkpoint, plan), folder, load_processor(case.checkpoint, "text"))
    hydrant.export_onnx(folder, form=GraphForm(member_outputs=True))
    return folder


@pytest.fixture
def own(bundle: Path, tmp_path: Path) -> Path:
    """A copy for those who change it."""
    return Path(shutil.copytree(bundle, tmp_path / "own"))


@pytest.mark.parametrize(("family", "lowering"), [("bert", "unrolled"), ("vit", "grouped")])
def test_labels_are_those_of_the_pruned_originals(family: str, lowering: str, tmp_path: Path) -> None:
    """With a temperature for each; of every family, without one, in ``test_every_task``."""
    model = make_labeller(family)
    plan, inputs = random_plan(family, 3), make_inputs(family)
    expected = oracle.labels([model], plan, inputs, TEMPERATURES)
    assert expected["label_mutual_information"].max() > 1e-3
    ensemble = hydrant.fuse(model, plan)
    ensemble.label_temperatures = TEMPERATURES
    with torch.no_grad():
        fused = ensemble(**inputs)
    hydrant.save_bundle(ensemble, tmp_path / "bundle", tensors_only=True)
    path = hydrant.export_onnx(tmp_path / "bundle", form=GraphForm(lowering=lowering, member_outputs=True))
    arrays = {name: tensor.numpy() for name, tensor in inputs.items()}
    exported = run_ort(path, arrays)
    assert set(exported) == {*expected, "logits"}
    for name, wanted in expected.items():
        np.testing.assert_allclose(getattr(fused, name).numpy(), wanted, rtol=1e-4, atol=1e-5, err_msg=f"fused {name}")
        np.testing.assert_allclose(exported[name], wanted, rtol=1e-4, atol=1e-4, err_msg=f"ONNX {name}")
    if lowering == "unrolled":
        for backend in ("torch", "onnxruntime", "openvino"):
            prediction = predicted(tmp_path / "bundle", arrays, backend=backend)
            for name, wanted in expected.items():
                values = getattr(prediction, name)
                np.testing.assert_allclose(values, wanted, rtol=1e-4, atol=1e-4, err_msg=f"{backend} {name}")
            np.testing.assert_array_equal(prediction.assigned, prediction.probabilities > 0.5)


def test_low_precision_follows_the_reference(own: Path, case: Case) -> None:
    hydrant.export_onnx(own, "fp16")
    report = hydrant.verify(own, data=case.train, reading=Reading(examples=100))
    names = {gate.name for backend in report.backends for gate in backend.gates}
    assert {"label flips", "max |Δ label entropy|", "max |Δ label mutual information|"} <= names
    assert report.passed, [gate for backend in report.backends for gate in backend.gates if not gate.passed]


def test_a_calibration_of_labels_is_read_again_and_checked(own: Path) -> None:
    opened = hydrant.Bundle.open(own)
    made = Calibration(labels=LabelDecisions((0.5, 1.0, 2.0), (0.1, 0.5, 0.9)))
    from hydrant.bundle.store import CALIBRATION
    from hydrant.bundle.strict_json import to_json_bytes

    def written(**changes: Any) -> Calibration:
        facts = made.to_json()
        facts["labels"] |= changes
        return Calibration.of(opened.add({CALIBRATION: to_json_bytes(facts)}))

    assert written() == made
    assert made.temperatures == (0.5, 1.0, 2.0)
    with pytest.raises(BundleError, match=r"has label decisions 'None', but calibration\.json says"):
        hydrant.load(own)
    two = {"thresholds": [0.5, 0.5], "temperatures": [1.0, 1.0]}
    for changes in ({"thresholds": [0.5]}, {"thresholds": [0.5, 2, 0.5]}, {"temperatures": [1, 0, 1]}, two):
        with pytest.raises(BundleError, match=next(iter(changes))):
            written(**changes)


def test_predictions_of_texts(bundle: Path, case: Case) -> None:
    texts = ["hello money", "what is the weather", "transfer"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(case.checkpoint)
    tensors = dict(tokenizer(texts, padding=True, return_tensors="pt"))
    model = transformers.AutoModelForSequenceClassification.from_pretrained(case.checkpoint)
    expected = oracle.labels([model], hydrant.Bundle.open(bundle).plan(), tensors)
    with hydrant.load(bundle) as predictor:
        prediction = predictor.predict(texts)
        np.testing.assert_allclose(prediction.probabilities, expected["probabilities"], atol=1e-5)
        assert prediction.label is prediction.confidence is prediction.disagreement is prediction.score is None
        np.testing.assert_array_equal(prediction[1].assigned, prediction.assigned[1:2])
        for place, row in enumerate(prediction.rows(predictor.labels)):
            order = [name for _, name in sorted(zip(-prediction.probabilities[place], NAMES, strict=True))]
            applies = [name for name in order if prediction.assigned[place][NAMES.index(name)]]
            assert [each["label"] for each in row["labels"]] == applies
            for each in row["labels"]:
                at = NAMES.index(each["label"])
                assert each["entropy"] == float(str(prediction.label_entropy[place, at]))
                assert each["probability"] == float(str(prediction.probabilities[place, at]))
        assert predictor.predict([]).assigned.shape == (0, 3)
        failed = predictor.predict([texts[0], 3], on_error="row")
        assert failed.failed.tolist() == [False, True]
        assert not failed.assigned[1].any()
        assert "error" in failed.rows(predictor.labels)[1]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=8))
def test_every_form_means_the_same(matrix: list[list[bool]]) -> None:
    names = ["a", "b|c", "3", "d e"]
    lists = [[name for name, on in zip(names, row, strict=True) if on] for row in matrix]
    inputs = ["x"] * len(matrix)
    for form in (matrix, lists, [json.dumps(row) for row in lists], [[int(on) for on in row] for row in matrix]):
        read_labels = read_examples((inputs, form), names, task="multi_label").labels
        assert read_labels.tolist() == matrix


def test_labels_from_files(tmp_path: Path) -> None:
    names, expected = ["one", "two"], [[True, True], [False, True], [False, False]]
    (tmp_path / "data.csv").write_text('text,label\na,one|two\nb,"[""two""]"\nc,[]\n')
    lines = [{"text": "a", "label": ["one", "two"]}, {"text": "b", "label": "two"}, {"text": "c", "label": []}]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    np.savez(tmp_path / "data.npz", x=np.array(["a", "b", "c"]), y=np.array(expected, np.int64))
    for name in ("data.csv", "data.jsonl", "data.npz"):
        read_labels = read_examples(tmp_path / name, names, task="multi_label").labels
        assert read_labels.tolist() == expected, name


@pytest.mark.parametrize(("label", "message"), [
    ("one|four", "label 'four' at .* row 2 is not a class of the model"),
    ("[one]", r"label '\[one\]' at .* row 2"),
    ("", r"row 2 .*\[\]"),
    ("one|one", r"'one\|one' at .* row 2"),
])  # fmt: skip
def test_labels_that_cannot_be_read(label: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text(f"text,label\na,one\nb,{label}\n")
    with pytest.raises(InputError, match=message):
        read_examples(tmp_path / "data.csv", ["one", "two", "three"], task="multi_label")


def test_taylor_importance_is_that_of_transformers_own_loss() -> None:
    from hydrant.calib.heads.taylor import taylor_scores

    model, drawn = make_labeller(), examples_of("bert", 3)
    labels = np.array([[1, 0, 0, 1, 0], [0, 0, 0, 0, 0], [1, 1, 1, 0, 1]], bool)
    scores = taylor_scores(model, Examples(drawn.inputs, labels, "test"), ReadyTensors(0))  # type: ignore[arg-type]
    double = copy.deepcopy(model).double()
    for row, item in enumerate(drawn.inputs):
        tensors = {name: torch.from_numpy(array)[None] for name, array in item.tensors.items()}
        truth = torch.from_numpy(labels[row]).double()[None]
        for layer in range(LAYERS):
            for head in range(4):
                losses = [
                    loss_with_gate(double, layer, head, gate, {**tensors, "labels": truth}) for gate in (0.999, 1.001)
                ]
                slope = abs(losses[1] - losses[0]) / 0.002
                assert scores[row, layer, head] == pytest.approx(slope, rel=2e-2, abs=1e-4)


def test_the_loss_is_transformers_own() -> None:
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model, inputs = make_labeller("bert", **dropout), make_inputs("bert")
    ensemble = hydrant.fuse(model, members=2)
    labels = torch.from_numpy(np.random.default_rng(0).random((4, 5)) < 0.4)
    expected = model(**inputs, labels=labels.float()).loss
    loss = member_loss(ensemble(**inputs).member_logits, labels)
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-5)
    ensemble.classifier.weight.grad = None
    loss.backward()
    expected.backward()
    last = model.classifier.weight.grad
    torch.testing.assert_close(ensemble.classifier.weight.grad[0].T, last, rtol=1e-3, atol=1e-5)


def test_tuning_lowers_the_loss(bundle: Path, case: Case, tmp_path: Path) -> None:
    how = Jointly(epochs=2, learning_rate=0.003, unfreeze=True)
    report = tune(bundle, case.train, how, validation=case.validation, output=tmp_path / "tuned")
    assert report.nll_after < report.nll_before
    with hydrant.load(tmp_path / "tuned", "torch") as predictor:
        examples = read_examples(case.validation, NAMES, task="multi_label")
        prediction = predictor.predict(examples.inputs)
    assert examples.labels is not None
    assert prediction.member_probabilities is not None
    odds = scipy.special.logit(prediction.member_probabilities) / report.history[report.best_epoch].temperature
    right = (scipy.special.expit(odds).mean(axis=1) > 0.5) == examples.labels
    assert report.accuracy_after == pytest.approx(right.all(axis=1).mean())
    (tmp_path / "some.csv").write_text("text,label\n" + "hello,greeting\nworld,[]\n" * 12)
    told = tune(bundle, tmp_path / "some.csv", Jointly(epochs=1, learning_rate=1e-5), output=tmp_path / "other")
    assert told.unseen == ("money", "weather")
