"""Loading a bundle and predicting with it."""

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import hydrant
import numpy as np
import oracle
import pytest
from golden import write_calibration
from hydrant import Bundle, Conformal, HydrantError, Prediction, Predictor, fuse, load, save_bundle
from hydrant.bundle.calibration import Calibration, Intervals
from hydrant.runtime.backends.backend_registry import ON_GPU
from hydrant.runtime.prediction import prediction_rows
from support import feeds, fresh_python, make_model, random_plan

TEXTS = ["hello world", "transfer money today what is the weather", "the", "what is hello", "money money"]


def assert_same(a: Prediction, b: Prediction, atol: float = 1e-6) -> None:
    scores = ["predictive_entropy", "expected_entropy", "mutual_information", "disagreement"]
    for name in ["probabilities", "label", "confidence", *scores]:
        np.testing.assert_allclose(getattr(a, name), getattr(b, name), atol=atol, err_msg=name)


def on_cpu(predictor: Predictor) -> dict[str, str]:
    """Skipped CPU backends with their reasons."""
    return {name: reason for name, reason in predictor.fallbacks if name not in ON_GPU}


@pytest.mark.parametrize("backend", ["onnxruntime", "torch", "auto"])
def test_predictions_of_texts_match_the_oracle(backend: str, text_bundle: Path, bert_checkpoint: Path) -> None:
    """The oracle uses transformers' tokenizer and the original model, and only the plan of hydrant."""
    import transformers

    model = transformers.BertForSequenceClassification.from_pretrained(bert_checkpoint)
    tokenizer = transformers.AutoTokenizer.from_pretrained(bert_checkpoint)
    inputs = dict(tokenizer(TEXTS, padding=True, return_tensors="pt"))
    expected = oracle.ensemble([model.eval()], random_plan("bert", 3), inputs)
    with load(text_bundle, backend) as predictor:
        got = predictor.predict(TEXTS)
        assert predictor.labels == list("abcde")
        assert predictor.backend == ("torch" if backend == "torch" else "onnxruntime")
        assert not on_cpu(predictor)
    for name in ("probabilities", "predictive_entropy", "expected_entropy", "mutual_information", "disagreement"):
        np.testing.assert_allclose(getattr(got, name), expected[name], atol=1e-5, err_msg=name)
        assert getattr(got, name).dtype == np.float32
    np.testing.assert_array_equal(got.label, expected["probabilities"].argmax(1))
    np.testing.assert_allclose(got.confidence, expected["probabilities"].max(1), atol=1e-5)
    assert got.label.dtype == np.int64
    assert got.abstain is None
    assert len(got) == 5


def test_batching_changes_neither_order_nor_values(text_bundle: Path) -> None:
    rng = np.random.default_rng(0)
    words = ["hello", "world", "transfer", "money", "weather", "today", "what", "is", "the"]
    texts = [" ".join(rng.choice(words, rng.integers(1, 30))) for _ in range(150)]
    with load(text_bundle) as predictor:
        alone = Prediction.concatenate([predictor.predict(text) for text in texts])
        assert_same(predictor.predict(texts, batch_size=4), alone)
        assert_same(predictor.predict(texts), alone)
        assert_same(Prediction.concatenate(list(predictor.stream(iter(texts), batch_size=2))), alone)


def test_streaming_reads_no_further_than_its_window(text_bundle: Path) -> None:
    taken = 0

    def endless() -> Iterator[str]:
        nonlocal taken
        while True:
            taken += 1
            yield "hello world"

    with load(text_bundle) as predictor:
        stream = predictor.stream(endless(), batch_size=2)
        assert len(next(stream)) == taken == 2 * 16
        assert len(next(stream)) == 32
        assert taken == 64


def test_ready_tensors(text_bundle: Path) -> None:
    inputs = feeds("bert", batch=5)
    with load(text_bundle) as predictor, load(text_bundle, "torch") as reference:
        assert_same(predictor.predict(inputs, batch_size=2), reference.predict(inputs), atol=1e-5)
        zeros = {**inputs, "token_type_ids": np.zeros_like(inputs["input_ids"])}
        without = {name: array for name, array in inputs.items() if name != "token_type_ids"}
        assert_same(predictor.predict(without), predictor.predict(zeros))
        assert reference.predict(inputs).member_probabilities.shape == (5, 3, 5)
        assert predictor.predict(inputs).member_probabilities is None


def test_long_text_is_truncated_with_a_warning(text_bundle: Path, caplog: pytest.LogCaptureFixture) -> None:
    with load(text_bundle) as predictor, caplog.at_level(logging.WARNING):
        got = predictor.predict(["hello", "money " * 20_000])
        assert_same(got.take(np.array([1])), predictor.predict("money " * 38))
    assert "1 of 2 texts were truncated to the 40 tokens this model reads (first: input 1)" in caplog.text


SCORES = ("confidence", "predictive_entropy", "expected_entropy", "mutual_information", "disagreement")


@pytest.mark.parametrize("backend", ["onnxruntime", "torch"])
def test_failed_inputs_get_rows_with_errors(backend: str, text_bundle: Path) -> None:
    mixed = ["", TEXTS[0], None, TEXTS[1], TEXTS[2], 3, "\x00"]
    with load(text_bundle, backend) as predictor:
        prediction = predictor.predict(mixed, batch_size=2, first=5, on_error="row")
        assert_same(prediction.take(np.array([1, 3, 4])), predictor.predict(TEXTS[:3]))
        for place, error in enumerate(prediction.error):
            assert error is None if place in (1, 3, 4) else f"input {place + 5}" in error
        assert prediction.failed.tolist() == [True, False, True, False, False, True, True]
        assert prediction.label[prediction.failed].tolist() == [-1] * 4
        for name in ("probabilities", *SCORES):
            assert np.isnan(getattr(prediction, name)[prediction.failed]).all(), name
        if backend == "torch":
            assert np.isnan(prediction.member_probabilities).any(axis=(1, 2)).tolist() == prediction.failed.tolist()
        rows = prediction_rows(prediction, list(map(str, mixed)), predictor.labels, first=5)
        assert rows[2] == {"index": 7, "input": "None", "error": prediction.error[2]}
        assert [row["index"] for row in rows] == list(range(5, 12))
        assert [row.get("label") is None for row in rows] == prediction.failed.tolist()
        assert predictor.predict(TEXTS, on_error="row").error.tolist() == [None] * 5
        assert predictor.predict(TEXTS).error is None


def test_failed_inputs_of_a_calibrated_bundle_abstain(text_bundle: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(text_bundle, tmp_path / "bundle")
    hydrant.calibrate(
        copy, (TEXTS * 20, [0, 1, 2, 3, 4] * 20), ood=(["what world", "today"] * 20, None), sets=Conformal(0.1)
    )
    with load(copy) as predictor:
        prediction = predictor.predict(["", "hello"], on_error="row")
        assert prediction.abstain[0]
        assert not prediction.prediction_set[0].any()
        assert not prediction.out_of_distribution[0]
        assert prediction.abstain[1] == predictor.predict("hello").abstain[0]
        rows = prediction_rows(prediction, ["", "hello"], predictor.labels)
        assert list(rows[0]) == ["index", "input", "error"]


def test_rows_repeat_the_predicted_inputs(text_bundle: Path) -> None:
    import pandas

    with load(text_bundle) as predictor:
        prediction = predictor.predict(TEXTS)
        assert [row["input"] for row in predictor.rows(prediction, pandas.Series(TEXTS))] == TEXTS
        assert predictor.rows(predictor.predict("hello"), "hello")[0]["input"] == "hello"
        with pytest.raises(HydrantError, match=r"2 items .* 5 inputs"):
            predictor.rows(prediction, TEXTS[:2])
        with pytest.raises(HydrantError, match="inputs"):
            predictor.rows(prediction, pandas.DataFrame({"text": TEXTS}))
        with pytest.raises(HydrantError, match=r"2 labels .* 5 classes"):
            prediction.rows(["a", "b"])
        assert repr(predictor) == f"Predictor('{text_bundle}', 3 members, text, 5 labels, onnxruntime fp32)"


def test_invalid_options_and_a_closed_predictor(text_bundle: Path) -> None:
    with pytest.raises(HydrantError, match="threads is 0; expected 1 to"):
        load(text_bundle, threads=0)
    with pytest.raises(HydrantError, match="tensorflow"):
        load(text_bundle, "tensorflow")
    predictor = load(text_bundle, threads=1)
    with pytest.raises(HydrantError, match="batch_size"):
        predictor.predict("hello", batch_size=0)
    for inputs, message in ((["hello", ""], "input 1"), (5, "inputs is a int"), ({"ids": np.zeros((1, 2))}, "ids")):
        with pytest.raises(HydrantError, match=message):
            predictor.predict(inputs)
    predictor.close()
    predictor.close()
    with pytest.raises(HydrantError, match="the predictor was closed"):
        predictor.predict("hello")


def test_without_a_graph_auto_falls_back_with_the_reason(tmp_path: Path) -> None:
    save_bundle(fuse(make_model("bert"), random_plan("bert", 2)), tmp_path / "bundle")
    with load(tmp_path / "bundle") as predictor:
        assert predictor.backend == "torch"
        assert list(on_cpu(predictor)) == ["onnxruntime", "openvino"]
        reason = on_cpu(predictor)["onnxruntime"]
        assert "has no model.fp32.onnx; make it with `hydrant export" in reason
        with pytest.raises(HydrantError, match="has no processor"):
            predictor.predict("hello")
        inputs = feeds("bert")
        assert len(predictor.predict(inputs)) == 4


def test_a_damaged_graph_is_an_error_without_fallback(text_bundle: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(text_bundle, tmp_path / "bundle")
    graph = copy / "model.fp32.onnx"
    data = bytearray(graph.read_bytes())
    data[-100] ^= 1
    graph.write_bytes(data)
    with pytest.raises(HydrantError, match="was altered"):
        load(copy)
    with load(copy, "torch") as predictor:
        assert len(predictor.predict("hello")) == 1


def test_a_backend_that_gives_nan_is_an_error(text_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with load(text_bundle) as predictor:
        run = predictor._running.run
        monkeypatch.setattr(predictor._running, "run", lambda inputs: {k: v * np.nan for k, v in run(inputs).items()})
        with pytest.raises(HydrantError, match="gave values of probabilities that are not finite"):
            predictor.predict("hello")


def test_a_calibration_for_another_task_is_rejected(text_bundle: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(text_bundle, tmp_path / "bundle")
    write_calibration(Bundle.open(copy), Calibration(intervals=Intervals(0.9, 1.0, 0.1, 1.0)))
    with pytest.raises(HydrantError, match=r"calibration\.json"):
        load(copy)


ABSENT = ("torch", "transformers", "datasets", "onnx", "ml_dtypes", "tqdm", "scipy", "sklearn", "matplotlib")
"""Libraries that create, tune and evaluate bundles, absent where bundles only predict."""


def test_prediction_imports_no_library_of_bundle_creation(text_bundle: Path, image_bundle: Path) -> None:
    code = (
        "import sys\n"
        f"sys.modules.update(dict.fromkeys({ABSENT!r}))\n"
        "import numpy, hydrant, hydrant.runtime\n"
        "assert 'onnxruntime' not in sys.modules\n"
        "image = numpy.zeros((20, 30, 3), numpy.uint8)\n"
        f"for path, inputs in (({str(text_bundle)!r}, 'hello world'), ({str(image_bundle)!r}, [image])):\n"
        "    with hydrant.load(path, 'onnxruntime') as predictor:\n"
        "        assert len(predictor.predict(inputs)) == 1\n"
        "rooms = {name.split('.')[1] for name in sys.modules if name.startswith('hydrant.')}\n"
        "print(sorted(rooms & {'build', 'calib', 'export', 'fusion', 'tuning'}))\n"
    )
    done = fresh_python(code)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
