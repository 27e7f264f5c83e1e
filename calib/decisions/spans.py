"""Member logits of tagged words → calibration: one temperature for words, thresholds for the spans they make up.

The temperature makes the tags of words most likely. A threshold is fitted on the spans that the model finds: one is
wrong where the data have no span of its type with both its ends, and is as uncertain as its least certain word
(``metrics.spans``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...bundle.calibration import ABSTAIN, OOD, Calibration
from ...errors import InputError
from ...metrics.spans import Span, span_scores, spans_in
from ...metrics.uncertainty import summarise
from ...progress import Progress, no_progress
from .fit import abstention, flag_threshold, quality, scores_of
from .targets import Targets
from .temperature import check_logits, fit_temperature


def check_targets(targets: Targets) -> None:
    """Refuse what tags have not."""
    if targets.sets is not None:
        raise InputError(
            "prediction sets are asked for, which are of one class for an input, and this model gives a class for each "
            "token; leave them (sets=…, --conformal) out"
        )


def fit_spans(
    member_logits: np.ndarray,
    texts: np.ndarray,
    labels: np.ndarray,
    names: Sequence[str],
    outside: tuple[np.ndarray, np.ndarray] | None,
    targets: Targets,
    about: Mapping[str, Any],
    progress: Progress = no_progress,
    *,
    distance: np.ndarray | None = None,
    ood_distance: np.ndarray | None = None,
) -> Calibration:
    """Fit the temperature on words, and thresholds on the spans that are found in them.

    Args:
        member_logits: [N, M, C] of tagged words, before any temperature.
        texts: [N], index of each word's text, ascending.
        labels: [N] class indices.
        outside: logits [K, M, C] and texts [K] of words of out-of-distribution texts, or ``None``.
        distance, ood_distance: of the words from the training data, [N] and [K], where it was fitted.
    """
    check_logits(member_logits, labels)
    temperature = fit_temperature(member_logits, labels, progress)
    words = scores_of(member_logits, temperature, distance)
    spans, known = found_spans(words, texts, names)
    if not spans:
        raise InputError(
            f"the model finds no span in the {len(labels)} tagged words of {about['data']}, and thresholds are fitted "
            "on spans; give more data, with some"
        )
    beyond = None
    if outside is not None:
        check_logits(outside[0])
        strange, beyond = found_spans(scores_of(outside[0], temperature, ood_distance), outside[1], names)
        if not strange:
            raise InputError(
                f"the model finds no span in the out-of-distribution data {about['ood']}, so that nothing could be "
                "flagged in them; leave them (ood=…, --ood) out"
            )
    truth = set(spans_in(texts, [names[label] for label in labels]))
    wrong = np.array([span not in truth for span in spans])
    thresholds = {
        ABSTAIN: abstention(known, wrong, targets.abstain),
        OOD: flag_threshold(known, beyond, targets.flags),
    }
    fitted = {
        **about,
        "words": len(labels),
        "spans": len(spans),
        "wrong_spans": int(wrong.sum()),
        "before": quality(summarise(member_logits, 1.0), member_logits, labels, 1.0),
        "after": quality(words, member_logits, labels, temperature),
    }
    return Calibration(temperature, thresholds, None, fitted)


def found_spans(
    words: Mapping[str, np.ndarray], texts: np.ndarray, names: Sequence[str]
) -> tuple[list[Span], dict[str, np.ndarray]]:
    """The spans that a model finds, S of them, and their scores [S]; ``probabilities`` [S, C] of the least sure words.

    Args:
        words: ``probabilities`` [N, C] and scores [N], as of :func:`summarise`.
        texts: [N], index of each word's text.
    """
    probabilities = words["probabilities"]
    spans = spans_in(texts, [names[label] for label in probabilities.argmax(axis=1)])
    scores = span_scores(spans, {name: values for name, values in words.items() if values.ndim == 1})
    least = [span.first + int(np.argmin(words["confidence"][span.first : span.last + 1])) for span in spans]
    return spans, {**scores, "probabilities": probabilities[least]}
