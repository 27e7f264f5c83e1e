"""Spans of tags and their metrics, compared with seqeval and with regular expressions."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hydrant.metrics.spans import Span, find_spans, span_counts, span_metrics, span_scores, spans_in
from hypothesis import given
from hypothesis import strategies as st

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
