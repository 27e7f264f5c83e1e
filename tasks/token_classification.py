"""Token classification: a class for each token; tokens form words, and words form spans.

A span has the uncertainty of its least certain word. Texts are resampled whole, since their words are dependent.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ..data.label_encoding import IGNORED
from ..metrics.class_metrics import ClassMetrics, Draws, ScoreDetection
from ..metrics.gates import SCORES
from ..metrics.spans import span_counts, span_metrics, span_scores, spans_in, split_tag
from ..metrics.uncertainty import logit_scores
from .classification import compare_classes
from .task import Column, Task, TaskMetrics, share

NO_VECTOR = "needs one vector per input; token classification has one per token"


class PredictedSpans:
    """The S predicted spans of texts, with scores and text indices; ``mask`` [N] selects words (default: all)."""

    def __init__(self, observation: Any, names: Any, mask: np.ndarray | None = None) -> None:
        places = np.arange(len(observation.texts)) if mask is None else np.flatnonzero(mask)
        self.prediction, self.word_texts = observation.prediction.take(places), observation.texts[places]
        self.spans = spans_in(self.word_texts, [names[label] for label in self.prediction.label])
        self.scores = span_scores(self.spans, {name: each[places] for name, each in observation.scores().items()})
        self.texts = np.array([span.text for span in self.spans], np.int64)

    def flagged(self, name: str) -> np.ndarray | None:
        """True for spans with a flagged word, [S] bool; ``None`` without a decision or without spans."""
        words = getattr(self.prediction, name)
        if words is None or not self.spans:
            return None
        return np.array([bool(words[span.first : span.last + 1].any()) for span in self.spans])


class TokenMetrics(TaskMetrics):
    """Metrics of spans as in seqeval, of tagged words, and detection of wrong spans."""

    def prepare(self) -> None:
        """Compute tagged words, and counts of correct, predicted and labelled spans by type, [N, 3, K]."""
        inside = self.labelled.words < self.labels.shape[1]
        words = np.where(inside, self.labelled.words, 0)
        tags = np.where(inside, self.labels[self.labelled.texts, words], IGNORED)
        self._spans = PredictedSpans(self.labelled, self.names, tags != IGNORED)
        self._ood_spans = None if self.ood is None else PredictedSpans(self.ood, self.names)
        self.scores = self._spans.scores
        labels, texts, size = tags[tags != IGNORED], self._spans.word_texts, len(self.examples)
        self._words = ClassMetrics(self._spans.prediction.probabilities, labels, texts, size)
        truth = spans_in(texts, [self.names[label] for label in labels])
        labelled = set(truth)
        self.wrong = np.array([span not in labelled for span in self._spans.spans], bool)
        self.types = sorted({kind for prefix, kind in map(split_tag, self.names) if prefix != "O"})
        self._counts = span_counts(truth, self._spans.spans, self.types, size)

    def detector(self) -> ScoreDetection:
        """Detection of wrong spans and of spans in out-of-distribution texts."""
        ood = self._ood_spans
        texts = None if ood is None else ood.texts
        return ScoreDetection(self.scores, {} if ood is None else ood.scores, self.wrong, self._spans.texts, texts)

    def own(self, counts: np.ndarray) -> Draws:
        """Metrics of resamples of the texts."""
        spans = np.tensordot(counts.astype(np.float64), self._counts, axes=1)  # [R, 3, K]
        draws = {**self._words(counts), **span_metrics(spans)}
        for place, kind in enumerate(self.types):
            draws[f"span_f1.{kind}"] = span_metrics(spans[:, :, place : place + 1])["span_f1"]
        return draws

    def flags(self, name: str, ood: bool) -> np.ndarray | None:
        """One decision of every span."""
        spans = self._ood_spans if ood else self._spans
        return None if spans is None else spans.flagged(name)


TOKEN_CLASSIFICATION = Task(
    name="tokens",
    gives="a class for each token",
    outputs=("probabilities", *SCORES, "energy"),
    member_output="member_probabilities",
    answer="spans",
    one_class=True,
    compare=partial(compare_classes, tokens=True),
    metrics=TokenMetrics,
    columns={
        "span_precision": share("span precision", better="high"),
        "span_recall": share("span recall", better="high"),
        "span_f1": share("span F1", better="high"),
        "span_macro_f1": share("span F1, mean of the types", better="high"),
        "accuracy": share("accuracy of words", better="high"),
        "nll": Column("NLL of words"),
        "brier": Column("Brier of words"),
        "ece": share("ECE of words", "{:.2f}"),
    },
    compared=("accuracy", "nll", "brier", "ece", "span_precision", "span_recall", "span_f1", "span_macro_f1"),
    noise=("span_f1", "accuracy", "nll", "ece"),
    wrong="wrong spans",
    unit="spans",
    heading="Spans and words",
    hint="A span is correct if its type and both ends are (seqeval). Its least certain word sets its uncertainty.",
    logit_scores=logit_scores,
    lacks=dict.fromkeys(("knn", "vim", "mahalanobis", "relative_mahalanobis", "vilu"), NO_VECTOR),
)
