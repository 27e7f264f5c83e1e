"""The token classification pipeline compared with transformers' on the same checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import hydrant
import numpy as np
import pytest
import transformers
from hydrant.errors import InputError
from hydrant.models.checkpoint import load_processor
from support import make_model, random_plan
from test_pipeline import assert_alike
from token_support import make_tagger, make_word_tokenizer, sentences

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
