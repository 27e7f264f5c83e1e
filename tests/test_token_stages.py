"""Plans, tuning, calibration and evaluation for token classification."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import hydrant
import numpy as np
import onnx
import oracle
import pytest
import torch
import transformers
from hydrant import Bundle, Jointly, PerMember, Reading
from hydrant.errors import InputError
from hydrant.models.checkpoint import load_processor
from hydrant.tuning.optimizer import member_loss
from support import make_inputs, make_model, random_plan
from test_distance import oracle as mahalanobis
from test_pipeline import assert_alike
from token_support import TAGS, first_tokens, make_tagger, make_word_tokenizer, sentences, trained_tagger


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_tagger(tmp_path_factory.mktemp("tagger"))


@pytest.fixture(scope="module")
def bundle(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Members that diverge at layer 1, calibrated, with a graph."""
    folder = tmp_path_factory.mktemp("stages") / "bundle"
    plan = hydrant.plan_heads(checkpoint, sentences(64, seed=1), keep=2, fork_from=1)
    hydrant.save_bundle(hydrant.fuse(checkpoint, plan), folder, load_processor(checkpoint, "text"))
    hydrant.export_onnx(folder)
    hydrant.calibrate(folder, sentences(200, seed=2))
    return folder


def test_the_loss_is_that_of_the_original_model() -> None:
    """The loss of transformers, over the tokens that have a label."""
    settings: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model, inputs = make_tagger(**settings), make_inputs("bert")
    labels = torch.from_numpy(np.random.default_rng(0).integers(0, 5, inputs["input_ids"].shape))
    labels[inputs["attention_mask"] == 0] = -100
    labels[0, :4] = -100
    ensemble = hydrant.fuse(model, members=2)
    loss = member_loss(ensemble(**inputs).member_logits, labels)
    torch.testing.assert_close(loss, model(**inputs, labels=labels).loss, rtol=1e-4, atol=1e-5)
    loss.backward()
    assert float(member_loss(ensemble(**inputs).member_logits, torch.full_like(labels, -100)).detach()) == 0.0


def test_held_out_metrics_are_those_of_the_original_model(checkpoint: Path) -> None:
    """NLL and accuracy of the single model on labelled words, from its own tokenizer and logits."""
    texts, tags = sentences(160, seed=1)
    plan = hydrant.plan_heads(checkpoint, (texts, tags), keep=hydrant.Budget(1.7))
    from hydrant.calib.heads.selection import split_examples
    from hydrant.calib.heads.trials import TEMPERATURES
    from hydrant.data.examples import read_examples

    _, held_out = split_examples(read_examples((texts, tags), TAGS, task="tokens"), 0)
    model = transformers.BertForTokenClassification.from_pretrained(checkpoint)
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    logits, labels = [], []
    for words, row in zip(held_out.inputs, np.asarray(held_out.labels), strict=True):
        inputs, first = first_tokens(tokenizer, words)
        with torch.no_grad():
            logits.append(model(**inputs).logits[0, first])
        labels += row[: len(first)].tolist()
    stacked, targets = torch.cat(logits), torch.tensor(labels)
    losses = [float(torch.nn.functional.cross_entropy(stacked / t, targets)) for t in TEMPERATURES]
    single = plan.provenance["budget"]["single"]
    assert single["nll"] == pytest.approx(min(losses), abs=2e-5)
    assert single["accuracy"] == pytest.approx(float((stacked.argmax(dim=1) == targets).float().mean()), abs=1e-4)


@pytest.mark.parametrize("how", [Jointly(epochs=1, learning_rate=2e-3), PerMember(epochs=1, learning_rate=2e-3)])
def test_tuning_reads_tags(how: Any, tmp_path: Path, checkpoint: Path) -> None:
    """Tuned from a damaged classifier; below the fork, activations are cached."""
    model = transformers.BertForTokenClassification.from_pretrained(checkpoint)
    torch.manual_seed(0)
    with torch.no_grad():
        model.classifier.weight.add_(0.3 * torch.randn_like(model.classifier.weight))
    plan = hydrant.plan_heads(model, method="random", keep=3, fork_from=2)
    hydrant.save_bundle(hydrant.fuse(model, plan), tmp_path / "bundle", load_processor(checkpoint, "text"))
    report = hydrant.tune(tmp_path / "bundle", sentences(96, seed=3), how, reading=Reading(batch_size=8))
    assert report.improved
    assert report.nll_after < report.nll_before
    assert report.frozen == 2
    assert report.accuracy_after is not None
    assert report.unseen == ("I-LOC",)
    if isinstance(how, PerMember):
        assert report.drift["examples"] > report.validation_examples  # words


def test_calibration_fits_words_and_decides_for_spans(bundle: Path) -> None:
    facts = json.loads((bundle / "calibration.json").read_text())
    assert facts["fitted"]["words"] > facts["fitted"]["spans"] > facts["fitted"]["wrong_spans"] > 0
    assert facts["thresholds"]["abstain"]["n"] == facts["thresholds"]["ood"]["n"] == facts["fitted"]["spans"]
    texts, _ = sentences(200, seed=2)
    with hydrant.load(bundle, "torch") as predictor:
        spans = [span for each in predictor.spans(predictor.predict(texts)) for span in each]
    assert len(spans) == facts["fitted"]["spans"]
    answered = np.mean([not span.abstain for span in spans])
    assert answered == pytest.approx(facts["thresholds"]["abstain"]["measured"]["coverage"], abs=2.1 / len(spans))
    assert answered >= 0.95
    assert np.mean([span.out_of_distribution for span in spans]) <= 0.05
    graph = onnx.load(bundle / "model.fp32.onnx")
    stored = {entry.key: entry.value for entry in graph.metadata_props}
    assert float(stored["hydrant.temperature"]) == facts["temperature"]


@pytest.fixture(scope="module")
def far_bundle(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle with a distance from the trunk's tokens and each member's last layer."""
    folder = shutil.copytree(bundle, tmp_path_factory.mktemp("far") / "bundle")
    report = hydrant.calibrate(folder, sentences(60, seed=2), fit=sentences(120, seed=1), taps="all")
    assert report.density.taps == ("layers.0.token", "last.0", "last.1", "last.2")
    return folder


def vectors(checkpoint: Path, bundle: Path, texts: list[list[str]]) -> np.ndarray:
    """Hidden states of transformers' model at the first token of every word, [words, taps, d]: after the first layer,
    and for each member, with the other heads silenced, after the last."""
    model = transformers.BertForTokenClassification.from_pretrained(checkpoint).eval()
    tokenizer, plan = transformers.AutoTokenizer.from_pretrained(checkpoint), Bundle.open(bundle).plan()
    states = []
    for words in texts:
        inputs, first = first_tokens(tokenizer, words)
        layers = []
        for keep in plan.members:
            with oracle.silenced(model, keep, plan.heads), torch.no_grad():
                hidden = model(**inputs, output_hidden_states=True).hidden_states
            layers.append(hidden[-1][0, first])
        states.append(torch.stack([hidden[1][0, first], *layers], dim=1).double().numpy())
    return np.concatenate(states)


def test_the_distance_of_words_is_scikit_learns(far_bundle: Path, checkpoint: Path) -> None:
    """Classes are tags, standardised by the words of the validation data; equal on all backends."""
    (train, tags), (held_out, _), (texts, _) = sentences(120, seed=1), sentences(60, seed=2), sentences(12, seed=5)
    labels = np.array([TAGS.index(tag) for row in tags for tag in row])
    fitted, validation, new = (vectors(checkpoint, far_bundle, each) for each in (train, held_out, texts))
    expected = np.zeros(len(new))
    for tap in range(4):
        near, far = (mahalanobis(fitted[:, tap], labels, each[:, tap]) for each in (validation, new))
        expected += (far - near.mean()) / near.std() / 4
    for backend in ("torch", "onnxruntime", "openvino"):
        with hydrant.load(far_bundle, backend) as predictor:
            prediction = predictor.predict(texts)
            words = predictor.words(prediction)
        distances = np.concatenate([each.prediction.distance for each in words])
        np.testing.assert_allclose(distances, expected, rtol=2e-3, atol=2e-3, err_msg=backend)
        assert prediction.distance.shape == prediction.mask.shape
        assert np.isnan(prediction.distance[~prediction.mask]).all()


TEXTS = ["anna smith lives in paris.", "carlna is unknownword , bert and rome", " ".join(["anna paris"] * 30), "zzz"]
"""Words of several pieces, unknown words, punctuation, a truncated text, and a text of unknown words only."""

WORDS = sentences(6, 5)[0]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Any]]:
    """Transformers' and hydrant's pipelines."""
    folder = tmp_path_factory.mktemp("tagger")
    make_tagger().save_pretrained(folder / "checkpoint")
    make_word_tokenizer(folder / "words").save_pretrained(folder / "checkpoint")
    theirs = transformers.pipeline("token-classification", str(folder / "checkpoint"), device="cpu")
    ensemble = hydrant.fuse(folder / "checkpoint")
    hydrant.save_bundle(ensemble, folder / "out", load_processor(folder / "checkpoint", "text"))
    with hydrant.pipeline(folder / "out", backend="torch") as ours:
        yield theirs, ours


@pytest.mark.parametrize("strategy", [None, "simple", "first", "average", "max"])
@pytest.mark.parametrize("texts", [TEXTS[1], TEXTS], ids=["one", "many"])
def test_texts_are_tagged_as_by_transformers(pair: tuple[Any, Any], texts: Any, strategy: Any) -> None:
    theirs, ours = pair
    options = {} if strategy is None else {"aggregation_strategy": strategy}
    expected = theirs(texts, **options)
    assert_alike(ours(texts, **options), expected)
    assert any(expected)


@pytest.mark.parametrize("texts", ["  ", ["", TEXTS[0], " \t", TEXTS[1]]], ids=["one", "some"])
def test_blank_texts_have_no_tags(pair: tuple[Any, Any], texts: Any) -> None:
    theirs, ours = pair
    assert_alike(ours(texts, aggregation_strategy="first"), theirs(texts, aggregation_strategy="first"))
    if isinstance(texts, list):
        assert_alike(list(ours(text for text in texts)), theirs(texts))
        with pytest.raises(InputError, match=rf"^input {len(texts)} is "):
            ours([*texts, 5])


@pytest.mark.parametrize("strategy", ["simple", "average"])
def test_lists_of_words_and_other_ignored_labels(pair: tuple[Any, Any], strategy: str) -> None:
    theirs, ours = pair
    options = {"aggregation_strategy": strategy, "is_split_into_words": True, "ignore_labels": ["PER", "B-PER"]}
    for words in WORDS:
        assert_alike(ours(words, **options), theirs(words, **options))
    assert_alike(ours(TEXTS[0], ignore_labels=[]), theirs(TEXTS[0], ignore_labels=[]))


def test_streams_and_disagreement_of_members(tmp_path: Path) -> None:
    make_tagger().save_pretrained(tmp_path / "checkpoint")
    make_word_tokenizer(tmp_path / "words").save_pretrained(tmp_path / "checkpoint")
    ensemble = hydrant.fuse(tmp_path / "checkpoint", random_plan("bert", 3))
    out = hydrant.save_bundle(ensemble, tmp_path / "out", load_processor(tmp_path / "checkpoint", "text"))
    with hydrant.pipeline(out, backend="torch", aggregation_strategy="first", ignore_labels=[]) as ours:
        assert ours.task == "token-classification"
        whole = ours(TEXTS)
        for one, other in zip(ours(text for text in TEXTS), whole, strict=True):
            assert [entity["word"] for entity in one] == [entity["word"] for entity in other]
            np.testing.assert_allclose([each["energy"] for each in one], [each["energy"] for each in other], atol=1e-5)
        assert ours([]) == []
        assert max(entity["mutual_information"] for entities in whole for entity in entities) > 1e-3
        threshold = hydrant.bundle.calibration.Threshold("predictive_entropy", 0.0, {"coverage": 0.5}, {}, 1)
        ours.predictor.calibration = replace(ours.predictor.calibration, thresholds={"abstain": threshold})
        assert all(entity["abstain"] for entity in ours(TEXTS[0]))


def test_options_of_other_tasks_are_rejected(pair: tuple[Any, Any], tmp_path: Path) -> None:
    ours = pair[1]
    with pytest.raises(InputError, match="aggregation_strategy is 'median'"):
        ours(TEXTS[0], aggregation_strategy="median")
    whole = hydrant.save_bundle(hydrant.fuse(make_model("bert")), tmp_path / "whole", tensors_only=True)
    with pytest.raises(InputError, match="aggregation_strategy and ignore_labels"):
        hydrant.pipeline(whole, backend="torch", aggregation_strategy="simple")
