"""What one model alone says of the spans that it finds: the post-hoc scores of a tagger's baselines.

A span is as unsure as its least sure word, as those of an ensemble are, so that its score is the largest of its words'
scores (``metrics.logit_scores``). Words of the labelled texts that have no tag count nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..data.examples import Examples
from ..metrics.logit_scores import logit_scores
from ..metrics.spans import span_scores, spans_in
from ..progress import Progress
from ..runtime.backends.reference import TorchSingle
from ..runtime.collect import collect_words
from .models import Model


@dataclass(frozen=True)
class SpanScores:
    """Scores of the spans in N texts, S of them.

    Attributes:
        scores: by name, [S]; higher means less like the training data.
        texts: [S], index of each span's text.
        count: N.
    """

    scores: dict[str, np.ndarray]
    texts: np.ndarray
    count: int


def scores_of_spans(
    single: TorchSingle, model: Model, examples: Examples, names: Sequence[str], batch_size: int, progress: Progress
) -> SpanScores:
    """The spans that a single model finds, and its scores of them."""
    found = collect_words(
        single, model.processor, model.architecture, examples.inputs, lambda outputs: {"logits": outputs["logits"]},
        batch_size=batch_size, progress=progress, title=f"single model of {model.name} on {examples.name}",
    )  # fmt: skip
    if examples.labels is not None:
        found, _ = found.tagged(examples.labels)
    logits = found.outputs["logits"][:, model.columns]
    spans = spans_in(found.texts, [names[label] for label in logits.argmax(axis=1)])
    return SpanScores(
        span_scores(spans, logit_scores(logits)), np.array([span.text for span in spans], np.int64), len(examples)
    )
