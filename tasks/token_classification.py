"""Token classification: a class for each token, read as words and the spans that they make up.

A span is as uncertain as its least certain word. Texts are resampled whole: words and spans of one text depend on each
other.
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

NO_VECTOR = "is of one vector for an input, and a tagger has one for each token"


class FoundSpans:
    """The S spans that a model finds in texts, their scores and indices of texts; ``kept`` [N] words count, or all."""

    def __init__(self, seen: Any, names: Any, kept: np.ndarray | None = None) -> None:
        places = np.arange(len(seen.texts)) if kept is None else np.flatnonzero(kept)
        self.prediction, self.word_texts = seen.prediction.take(places), seen.texts[places]
        self.spans = spans_in(self.word_texts, [names[label] for label in self.prediction.label])
        self.scores = span_scores(self.spans, {name: values[places] for name, values in seen.scores().items()})
        self.texts = np.array([span.text for span in self.spans], np.int64)

    def flagged(self, name: str) -> np.ndarray | None:
        """Which spans have a word that a decision flags, [S]; ``None`` without a decision, or without spans."""
        words = getattr(self.prediction, name)
        if words is None or not self.spans:
            return None
        return np.array([bool(words[span.first : span.last + 1].any()) for span in self.spans])


class TokenMetrics(TaskMetrics):
    """Spans as seqeval counts them, tagged words, and detection of wrong spans."""

    def prepare(self) -> None:
        """Words that have a tag, and spans right, found and known, of each type, [N, 3, K]."""
        inside = self.seen.words < self.labels.shape[1]
        tags = np.where(inside, self.labels[self.seen.texts, np.where(inside, self.seen.words, 0)], IGNORED)
        self._found = FoundSpans(self.seen, self.names, tags != IGNORED)
        self._ood_found = None if self.ood is None else FoundSpans(self.ood, self.names)
        self.scores = self._found.scores
        labels, texts, size = tags[tags != IGNORED], self._found.word_texts, len(self.examples)
        self._words = ClassMetrics(self._found.prediction.probabilities, labels, texts, size)
        truth = spans_in(texts, [self.names[label] for label in labels])
        known = set(truth)
        self.wrong = np.array([span not in known for span in self._found.spans], bool)
        self.types = sorted({kind for prefix, kind in map(split_tag, self.names) if prefix != "O"})
        self._counts = span_counts(truth, self._found.spans, self.types, size)

    def detector(self) -> ScoreDetection:
        """Detection of wrong spans and of those in out-of-distribution texts."""
        ood = self._ood_found
        texts = None if ood is None else ood.texts
        return ScoreDetection(self.scores, {} if ood is None else ood.scores, self.wrong, self._found.texts, texts)

    def own(self, counts: np.ndarray) -> Draws:
        """Metrics of resamples of the texts."""
        spans = np.tensordot(counts.astype(np.float64), self._counts, axes=1)  # [R, 3, K]
        found = {**self._words(counts), **span_metrics(spans)}
        for place, kind in enumerate(self.types):
            found[f"span_f1.{kind}"] = span_metrics(spans[:, :, place : place + 1])["span_f1"]
        return found

    def flags(self, name: str, ood: bool) -> np.ndarray | None:
        """One decision of every span."""
        found = self._ood_found if ood else self._found
        return None if found is None else found.flagged(name)


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
    hint="A span is right where its type and both ends are (seqeval); it is as uncertain as its least certain word.",
    logit_scores=logit_scores,
    lacks=dict.fromkeys(("knn", "vim", "mahalanobis", "relative_mahalanobis"), NO_VECTOR),
)
