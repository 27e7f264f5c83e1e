"""Token classification: from the checkpoint to words and spans, against the hook oracle, in PyTorch and in graphs."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hydrant
import numpy as np
import oracle
import pytest
import torch
from hydrant import GraphForm, Prediction
from hydrant.bundle.calibration import Calibration, Threshold
from hydrant.calib.heads.taylor import taylor_scores
from hydrant.data.examples import Examples
from hydrant.errors import InputError
from hydrant.metrics.spans import Span, find_spans, span_counts, span_metrics, span_scores, spans_in
from hydrant.models.family_registry import architecture_of
from hydrant.serving.datatypes import Tensor
from hydrant.serving.oip import InferRequest, inputs_of, model_metadata, outputs_of
from hypothesis import given
from hypothesis import strategies as st
from support import HEADS, LAYERS, make_inputs, predicted, random_plan
from token_support import TAGS, loss_with_gate, make_tagger, make_word_tokenizer, sentences

TEXTS: list[Any] = ["anna smith lives in paris .", ["bert", "is", "the", "anis"], "the rome"]


def real(inputs: dict[str, torch.Tensor]) -> np.ndarray:
    mask: np.ndarray = inputs["attention_mask"].bool().numpy()
    return mask


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokens")
    ensemble = hydrant.fuse(make_tagger(), random_plan("bert", 3))
    hydrant.save_bundle(ensemble, folder / "bundle", make_word_tokenizer(folder))
    hydrant.export_onnx(folder / "bundle", form=GraphForm(member_outputs=True))
    return folder / "bundle"


def test_several_checkpoints_fuse_exactly(tmp_path: Path) -> None:
    models, inputs = [make_tagger(seed=seed) for seed in (1, 2, 3)], make_inputs("bert")
    ensemble = hydrant.fuse(models, keep_separate="all")
    expected = oracle.ensemble(models, ensemble.plan, inputs)["probabilities"]
    hydrant.save_bundle(ensemble, tmp_path / "bundle")
    hydrant.export_onnx(tmp_path / "bundle", form=GraphForm(lowering="grouped"))
    arrays = {name: tensor.numpy() for name, tensor in inputs.items()}
    prediction = predicted(tmp_path / "bundle", arrays, "onnxruntime")
    np.testing.assert_allclose(prediction.probabilities[real(inputs)], expected[real(inputs)], atol=2e-5)
    merged = hydrant.fuse(models)
    labels = np.where(real(inputs), 1, -100)
    drift = hydrant.measure_drift(merged, ensemble, [(arrays, labels)])
    assert drift.examples == real(inputs).sum()
    assert drift.max_abs_logit_difference > 0.01
    labels_predicted = expected.argmax(axis=-1)[real(inputs)]
    assert drift.unmerged_accuracy == pytest.approx((labels_predicted == 1).mean())


def test_padding_changes_no_score(bundle: Path) -> None:
    """A text alone and in a batch with longer texts."""
    text = TEXTS[2]
    for backend in ("torch", "onnxruntime", "openvino"):
        with hydrant.load(bundle, backend) as predictor:
            alone, together = predictor.predict([text]), predictor.predict(TEXTS)
            size = int(alone.mask.sum())
            for name in ("probabilities", "mutual_information", "energy", "label"):
                mine, its = getattr(alone, name)[0, :size], getattr(together, name)[2, :size]
                np.testing.assert_allclose(mine, its, atol=1e-5)
            assert not together.mask[2, size:].any()
            assert np.isnan(together.confidence[2, size:]).all()
            assert (together.label[2, size:] == -1).all()
            assert np.isnan(together.member_probabilities[2, :, size:]).all()


def flat(**arrays: Any) -> Prediction:
    """A prediction of one text from arrays of its tokens [T, …]."""
    outputs = {name: np.asarray(array, np.float32)[None] for name, array in arrays.items()}
    zeros = np.zeros(outputs["probabilities"].shape[:2], np.float32)
    names = ("predictive_entropy", "expected_entropy", "mutual_information", "disagreement", "energy")
    return Prediction.from_outputs({**dict.fromkeys(names, zeros), **outputs})


def test_words_take_what_their_tokens_say() -> None:
    """Three tokens of one word, between special tokens, and a word of one token."""
    chances = [[0.9, 0.1], [0.6, 0.4], [0.05, 0.95], [0.1, 0.9], [0.8, 0.2], [0.5, 0.5]]
    information = [0.0, 0.1, 0.2, 0.6, 0.3, 0.0]
    tokens = flat(probabilities=chances, mutual_information=information)
    words = np.array([[-1, 0, 0, 0, 1, -1]])
    offsets = np.array([[[0, 0], [0, 2], [2, 4], [4, 5], [6, 9], [0, 0]]])
    tokens = tokens.of_tokens(np.ones((1, 6), bool), words, offsets)
    limit = Calibration(1.0, {"abstain": Threshold("mutual_information", 0.25, {}, {}, 0)})
    wanted = {"first": (0, 0.6, 0.1, False), "max": (1, 0.95, 0.2, False), "mean": (1, 0.75, 0.3, True)}
    from hydrant.runtime.word_predictions import words_of

    for aggregation, (label, confidence, doubt, abstains) in wanted.items():
        [predicted] = words_of(tokens, aggregation, limit)  # type: ignore[arg-type]
        assert predicted.start.tolist() == [0, 6]
        assert predicted.end.tolist() == [5, 9]
        assert predicted.prediction.label.tolist() == [label, 0]
        np.testing.assert_allclose(predicted.prediction.confidence, [confidence, 0.8], rtol=1e-6)
        np.testing.assert_allclose(predicted.prediction.mutual_information, [doubt, 0.3], rtol=1e-6)
        assert predicted.prediction.abstain.tolist() == [abstains, True]
    with pytest.raises(InputError, match="aggregation is 'median'; expected one of first, mean, max"):
        words_of(tokens, "median")  # type: ignore[arg-type]


def test_spans_are_as_sure_as_their_least_sure_word(bundle: Path) -> None:
    chances = np.full((4, 5), 0.02, np.float32)
    for place, (label, confidence) in enumerate([(1, 0.9), (2, 0.5), (0, 0.8), (3, 0.7)]):
        chances[place, label] = confidence
    energy = [-4.0, -1.0, 9.0, -2.0]
    tokens = flat(probabilities=chances, energy=energy, mutual_information=[0.1, 0.3, 0.9, 0.2])
    offsets = np.array([[[0, 4], [5, 10], [11, 13], [14, 18]]])
    tokens = tokens.of_tokens(np.ones((1, 4), bool), np.arange(4)[None], offsets)
    with hydrant.load(bundle, "onnxruntime") as predictor:
        [[person, place]] = predictor.spans(tokens)
        [row] = predictor.rows(tokens, ["anna smith in rome"])
    assert (person.label, person.start, person.end, person.first_word, person.last_word) == ("PER", 0, 10, 0, 1)
    assert (person.confidence, person.mutual_information, person.energy) == pytest.approx((0.5, 0.3, -1.0))
    assert (place.label, place.start, place.end) == ("LOC", 14, 18)
    assert place.abstain is None
    assert [span["text"] for span in row["spans"]] == ["anna smith", "rome"]
    assert [word["label"] for word in row["words"]] == ["B-PER", "I-PER", "O", "B-LOC"]
    json.dumps(row)


def test_taylor_scores_are_slopes_of_the_mean_loss_of_a_text(tmp_path: Path) -> None:
    """Finite differences of the model in double precision, with transformers' own loss."""
    model = make_tagger(hidden_dropout_prob=0.0)
    texts, tags = sentences(3, seed=4)
    tokenizer = make_word_tokenizer(tmp_path)
    from hydrant.data.label_encoding import word_tags
    from hydrant.data.processor import from_transformers

    labels = word_tags(texts, tags, TAGS, ["here"] * 3)
    scores = taylor_scores(model, Examples(texts, labels, "test"), from_transformers(tokenizer, architecture_of(model)))
    model = model.double()
    for row, words in enumerate(texts):
        inputs = tokenizer(words, is_split_into_words=True, return_tensors="pt")
        targets = torch.full((1, inputs["input_ids"].shape[1]), -100)
        owners = inputs.word_ids(0)
        for place, word in enumerate(owners):
            if word is not None and word != owners[place - 1]:
                targets[0, place] = labels[row, word]
        for layer in range(LAYERS):
            for head in range(HEADS):
                losses = [
                    loss_with_gate(model, layer, head, gate, {**inputs, "labels": targets}) for gate in (0.999, 1.001)
                ]
                assert scores[row, layer, head] == pytest.approx(abs(losses[1] - losses[0]) / 0.002, rel=2e-2, abs=2e-3)


def test_served_tokens_have_no_padding_of_other_texts(bundle: Path) -> None:
    text = Tensor("text", "BYTES", np.array([b"the rome"], object))
    request = InferRequest(None, (text,))
    with hydrant.load(bundle) as predictor:
        served: Any = SimpleNamespace(name="tags", version="1", predictor=predictor, ready=True)
        alone = predictor.predict(inputs_of(request, served))
        beside = predictor.predict(["the rome", "anna smith lives in paris ."])[0]
        described = {each["name"]: each["shape"] for each in model_metadata(served)["outputs"]}
        outputs, others = (
            {each.name: each.data for each in outputs_of(prediction, request, served)} for prediction in (alone, beside)
        )
    assert beside.mask.shape[1] > alone.mask.shape[1]
    assert list(outputs) == list(others) == list(described) and "member_probabilities" in described
    for name, array in outputs.items():
        assert all(size in (-1, length) for size, length in zip(described[name], array.shape, strict=True)), name
        if array.dtype.kind == "f":
            np.testing.assert_allclose(array, others[name], atol=1e-6, err_msg=name)
        else:
            np.testing.assert_array_equal(array, others[name], err_msg=name)
    assert outputs["label"].tolist() == [[predictor.labels[index].encode() for index in alone.label[0]]]


GOLDEN = json.loads((Path(__file__).parent / "seqeval_golden.json").read_text())
"""Sequences of tags with seqeval 1.2.2's spans, and its metrics for some texts."""

TYPES = ["LOC", "PER"]


def test_spans_are_those_of_seqeval() -> None:
    assert len(GOLDEN["sequences"]) > 50
    for case in GOLDEN["sequences"]:
        assert [list(span) for span in find_spans(case["tags"])] == case["spans"], case["tags"]


def test_metrics_are_those_of_seqeval() -> None:
    for case in GOLDEN["figures"]:
        types = sorted(
            {kind for rows in (case["known"], case["predicted"]) for row in rows for kind, *_ in find_spans(row)}
        )
        expected, predicted = (
            [Span(text, *span) for text, row in enumerate(case[name]) for span in find_spans(row)]
            for name in ("known", "predicted")
        )
        counts = span_counts(expected, predicted, types, len(case["known"]))
        for name, values in span_metrics(counts.sum(axis=0, keepdims=True)).items():
            assert values[0] == pytest.approx(case[name], abs=1e-9), name


@given(st.lists(st.sampled_from(["O", *(f"{letter}-{kind}" for letter in "BIES" for kind in TYPES)]), max_size=12))
def test_bilou_and_bmes_are_read_as_iobes(tags: list[str]) -> None:
    for letters in (str.maketrans("ES", "LU"), str.maketrans("I", "M")):
        other = [tag[0].translate(letters) + tag[1:] for tag in tags]
        assert find_spans(other) == find_spans(tags)


def test_spans_end_with_their_text() -> None:
    texts, tags = np.array([0, 0, 2, 2]), ["O", "B-PER", "I-PER", "O"]
    spans = [(span.text, span.kind, span.first, span.last) for span in spans_in(texts, tags)]
    assert spans == [(0, "PER", 1, 1), (2, "PER", 2, 2)]
    assert spans_in(np.array([], int), []) == []


def test_a_span_has_the_scores_of_its_least_certain_word() -> None:
    spans = spans_in(np.array([0, 0, 0]), ["B-PER", "I-PER", "O"])
    scores = {"confidence": np.array([0.9, 0.6, 0.1]), "energy": np.array([-3.0, -1.0, 5.0])}
    extremes = span_scores(spans, scores)
    assert extremes["confidence"].tolist() == [0.6]
    assert extremes["energy"].tolist() == [-1.0]
    assert span_scores([], scores)["energy"].shape == (0,)
