"""Observations of models that tag tokens → figures: of words, of spans as seqeval counts them, of wrong spans found.

Texts are resampled whole: words and spans of one text depend on each other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..bundle.calibration import ABSTAIN, Calibration
from ..data.examples import Examples
from ..data.tags import IGNORED
from ..metrics import classification as metrics
from ..metrics.bootstrap import resampled
from ..metrics.figures import Answers, detection, named
from ..metrics.resampled import Detector
from ..metrics.spans import Span, span_counts, span_figures, span_scores, spans_in, split_tag
from ..progress import Progress
from ..runtime.prediction import decided
from .figures import differences, diversity, figure
from .models import Model
from .observation import Evidence, Observation
from .report import ModelReport

Draws = dict[str, np.ndarray]

COMPARED = ("accuracy", "nll", "brier", "ece", "span_precision", "span_recall", "span_f1", "span_macro_f1")
"""Figures whose differences between models are reported, beside all of out-of-distribution detection."""


def token_reports(
    models: Sequence[Model], evidence: Evidence, bootstrap: int, seed: int, progress: Progress
) -> list[ModelReport]:
    """A report for each model, the evaluated bundle first."""
    found: list[ModelReport] = []
    first: Draws = {}
    for model, seen, ood in zip(models, evidence.seen, evidence.seen_ood, strict=True):
        tagged = Tagged(seen, evidence.known, evidence.labels)
        outside = None if ood is None or evidence.ood is None else Found(ood, evidence.labels)
        sizes = [len(evidence.known), *([] if evidence.ood is None else [len(evidence.ood)])]
        whole = [np.ones((1, size), np.int32) for size in sizes]
        statistic = Statistic(tagged, outside)
        draws = resampled(statistic, sizes, bootstrap, seed, progress, f"resampling for {model.name}")
        values = {**{name: float(value[0]) for name, value in statistic(whole).items()}, **_detected(tagged, outside)}
        figures = {name: figure(value, draws.get(name)) for name, value in values.items()}
        first = first or draws
        found.append(
            ModelReport(
                name=model.name,
                kind=model.kind,
                backend=model.runs.name,
                precision=model.precision,
                members=len(model.plan.members),
                temperature=model.calibration.temperature,
                figures=figures,
                differences=differences(found[0].figures, figures, first, draws, COMPARED) if found else {},
                diversity=diversity(seen, model.plan),
                decisions=_decisions(tagged, outside, model.calibration),
            )
        )
    return found


def token_quality(seen: Observation, known: Examples, names: Sequence[str]) -> dict[str, float]:
    """The figures of tagged texts, without intervals."""
    figures = Statistic(Tagged(seen, known, names), None)([np.ones((1, len(known)), np.int32)])
    return {name: float(value[0]) for name, value in figures.items()}


class Found:
    """The spans that a model finds in texts, S of them, and how unsure it is of each.

    Args:
        kept: [N] bool, which words count; ``None`` for all.

    Attributes:
        spans: of the words that count.
        scores: uncertainty → [S], the largest of a span's words.
        texts: [S], index of each span's text.
    """

    def __init__(self, seen: Observation, names: Sequence[str], kept: np.ndarray | None = None) -> None:
        assert seen.texts is not None  # of a model that tags tokens
        places = np.arange(len(seen.texts)) if kept is None else np.flatnonzero(kept)
        self.prediction, self.word_texts = seen.prediction.take(places), seen.texts[places]
        self.spans: list[Span] = spans_in(self.word_texts, [names[label] for label in self.prediction.label])
        scores = {name: values[places] for name, values in seen.scores().items()}
        self.scores = span_scores(self.spans, scores)
        self.texts = np.array([span.text for span in self.spans], np.int64)

    def flagged(self, words: np.ndarray) -> np.ndarray:
        """Which spans have a flagged word, [S], from the words that are [N]."""
        return np.array([bool(words[span.first : span.last + 1].any()) for span in self.spans], bool)


class Tagged(Found):
    """The same beside the tags of the data, of the words that have one.

    Attributes:
        wrong: [S], which spans are not in the data with their type and both ends.
        sums: what each text contributes to means over words: [N, 4] number, right ones, loss, Brier terms.
        gaps: [N, bins] of the words' confidences.
        counts: [N, 3, K] spans that are right, found, and known, of each type.
        types: K.
    """

    def __init__(self, seen: Observation, known: Examples, names: Sequence[str]) -> None:
        assert known.labels is not None  # read_examples asks for them
        assert seen.texts is not None  # of a model that tags tokens
        assert seen.words is not None
        inside = seen.words < known.labels.shape[1]
        tags = np.where(inside, known.labels[seen.texts, np.where(inside, seen.words, 0)], IGNORED)
        super().__init__(seen, names, tags != IGNORED)
        labels, size = tags[tags != IGNORED], len(known)
        answers = Answers.of(self.prediction.probabilities, labels, {})
        each = np.stack([np.ones(len(labels)), answers.correct, answers.loss, answers.brier], axis=1)
        bins = metrics.confidence_bins(answers.confidence.astype(np.float64), metrics.BINS)
        gaps = np.eye(metrics.BINS)[bins] * (answers.correct - answers.confidence.astype(np.float64))[:, None]
        self.sums, self.gaps = np.zeros((size, 4)), np.zeros((size, metrics.BINS))
        np.add.at(self.sums, self.word_texts, each)
        np.add.at(self.gaps, self.word_texts, gaps)
        truth = spans_in(self.word_texts, [names[label] for label in labels])
        there = set(truth)
        self.wrong = np.array([span not in there for span in self.spans], bool)
        self.types = sorted({kind for prefix, kind in map(split_tag, names) if prefix != "O"})
        self.counts = np.zeros((size, 3, len(self.types)), np.int64)
        of_text: tuple[dict[int, list[tuple[str, int, int]]], ...] = ({}, {})
        for where, spans in zip(of_text, (truth, self.spans), strict=True):
            for span in spans:
                where.setdefault(span.text, []).append((span.kind, span.first, span.last))
        for text in {*of_text[0], *of_text[1]}:
            self.counts[text] = span_counts(of_text[0].get(text, []), of_text[1].get(text, []), self.types)


class Statistic:
    """Figures of resamples of the texts."""

    def __init__(self, tagged: Tagged, outside: Found | None) -> None:
        self._tagged, self._outside = tagged, outside
        right, wrong = np.flatnonzero(~tagged.wrong), np.flatnonzero(tagged.wrong)
        self._right, self._wrong = tagged.texts[right], tagged.texts[wrong]
        self._errors = {name: Detector(values[right], values[wrong]) for name, values in tagged.scores.items()}
        self._ood = (
            {}
            if outside is None
            else {name: Detector(values, outside.scores[name]) for name, values in tagged.scores.items()}
        )

    def __call__(self, counts: Sequence[np.ndarray]) -> Draws:
        """The figures of R resamples.

        Args:
            counts: how often each drew every text, [R, N] int32, and, where there are any, every out-of-distribution
                one, [R, K].
        """
        tagged, drawn = self._tagged, counts[0].astype(np.float64)
        sums = drawn @ tagged.sums  # [R, 4]
        words = np.maximum(sums[:, 0], 1)
        found = {name: sums[:, place] / words for place, name in enumerate(("accuracy", "nll", "brier"), start=1)}
        found["ece"] = np.abs(drawn @ tagged.gaps).sum(axis=1) / words
        spans = np.tensordot(drawn, tagged.counts, axes=1)  # [R, 3, K]
        found |= span_figures(spans)
        for place, kind in enumerate(tagged.types):
            found[f"span_f1.{kind}"] = span_figures(spans[:, :, place : place + 1])["span_f1"]
        for name, detector in self._errors.items():
            found |= named(f"errors.{name}", detector(counts[0][:, self._right], counts[0][:, self._wrong]))
        if self._outside is not None:
            known, strange = counts[0][:, tagged.texts], counts[1][:, self._outside.texts]
            for name, detector in self._ood.items():
                found |= named(f"ood.{name}", detector(known, strange))
        return found


def _detected(tagged: Tagged, outside: Found | None) -> dict[str, float]:
    """Figures of finding wrong spans, and out-of-distribution ones."""
    found: dict[str, float] = {}
    for name, values in tagged.scores.items():
        found |= named(f"errors.{name}", detection(values[~tagged.wrong], values[tagged.wrong]))
        if outside is not None:
            found |= named(f"ood.{name}", detection(values, outside.scores[name]))
    return found


def _decisions(tagged: Tagged, outside: Found | None, calibration: Calibration) -> dict[str, float]:
    """What the thresholds do to spans; empty for an uncalibrated model."""
    found: dict[str, float] = {}
    prediction = decided(tagged.prediction, calibration)
    strange = None if outside is None else decided(outside.prediction, calibration)
    if ABSTAIN in calibration.thresholds and prediction.abstain is not None and tagged.spans:
        answered = ~tagged.flagged(prediction.abstain)
        found["coverage"] = float(answered.mean())
        if answered.any():
            found["risk"] = float(tagged.wrong[answered].mean())
        if outside is not None and strange is not None and strange.abstain is not None and outside.spans:
            found["ood_abstained"] = float(outside.flagged(strange.abstain).mean())
    if prediction.out_of_distribution is not None and tagged.spans:
        found["false_positive_rate"] = float(tagged.flagged(prediction.out_of_distribution).mean())
    if outside is not None and strange is not None and strange.out_of_distribution is not None and outside.spans:
        found["true_positive_rate"] = float(outside.flagged(strange.out_of_distribution).mean())
    return found
