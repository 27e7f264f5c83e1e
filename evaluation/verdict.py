"""Verdicts: better, worse, or no difference between a bundle and a competitor."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from ..tasks import Column
from .metric_names import DIFFERENCES
from .report import Difference, Figure, ModelReport, Verdict

BETTER, WORSE, UNSHOWN, UNJUDGED = "better", "worse", "no difference shown", "not judged"

SCALED = ("nll", "ece", "label_ece")

ALONE = (
    "Compared with no other model; --compare MODEL, the single model for one, shows what the bundle gains and loses."
)


def verdicts(models: Sequence[ModelReport]) -> list[Verdict]:
    """On the first model beside each of the others, by the paired differences of :data:`metric_names.DIFFERENCES`."""
    return [_verdict(models[0], model) for model in models[1:]]


def outcome(difference: Figure, told: Column) -> str:
    """The name of a difference from a competitor; its value and its whole interval must agree."""
    if not math.isfinite(difference.low):
        return UNJUDGED
    ends = (difference.value, difference.low, difference.high)
    if all(end > 0 for end in ends):
        return BETTER if told.better == "high" else WORSE
    if all(end < 0 for end in ends):
        return WORSE if told.better == "high" else BETTER
    return UNSHOWN


def best_apart(figures: Sequence[Figure | None], told: Column) -> int | None:
    """The place of the best figure, if its interval overlaps with no other figure's."""
    known = [(place, figure) for place, figure in enumerate(figures) if figure and math.isfinite(figure.value)]
    if len(known) < 2:
        return None
    high = told.better == "high"
    known.sort(key=lambda item: item[1].value, reverse=high)
    (place, best), *others = known
    return place if all(best.low > other.high if high else best.high < other.low for _, other in others) else None


def _verdict(ours: ModelReport, model: ModelReport) -> Verdict:
    found = tuple(
        Difference(name, outcome(figure, told), figure.value, figure.low, figure.high)
        for name, told in DIFFERENCES.items()
        if (figure := model.differences.get(name)) is not None and math.isfinite(figure.value)
    )
    sentence = _sentence(ours.name, model.name, found)
    scaled = [each for each in found if each.figure in SCALED and each.outcome == BETTER]
    if scaled and ours.scaled and not model.scaled:
        names = _and(DIFFERENCES[each.figure].title for each in scaled)
        sentence += f" {model.name} has no temperature, which alone may bring as much in {names}."
    return Verdict(model.name, sentence, found)


def _sentence(ours: str, other: str, found: Sequence[Difference]) -> str:
    groups = {name: [each for each in found if each.outcome == name] for name in (BETTER, WORSE, UNSHOWN, UNJUDGED)}
    told = [f"{name} in {_and(map(_gap, groups[name]))}" for name in (BETTER, WORSE) if groups[name]]
    sentences = [f"Compared with {other}, {ours} is {', and '.join(told)}."] if told else []
    if groups[UNSHOWN]:
        pair = "" if told else f" between {ours} and {other}"
        names = _and(DIFFERENCES[each.figure].title for each in groups[UNSHOWN])
        shared = all(each.low <= 0 <= each.high for each in groups[UNSHOWN])
        why = "interval includes zero" if len(groups[UNSHOWN]) == 1 else "intervals include zero"
        sentences.append(f"No difference{pair} is shown in {names}{f': the 95 % {why}' if shared else ''}.")
    if groups[UNJUDGED]:
        named = ((DIFFERENCES[each.figure], each.value) for each in groups[UNJUDGED])
        gaps = _and(f"{told.title} {told.text(value)}" for told, value in named)
        sentences.append(f"{ours} minus {other}: {gaps}; without an interval this may be chance.")
    return " ".join(sentences) or f"No figure tells {ours} and {other} apart."


def _gap(difference: Difference) -> str:
    """By how much, as a size without a sign."""
    told = DIFFERENCES[difference.figure]
    low, high = sorted((abs(difference.low), abs(difference.high)))
    sizes = [told.number(size).lstrip("+") for size in (abs(difference.value), low, high)]
    return f"{told.title} by {sizes[0]}{told.unit} (95 % interval {sizes[1]} to {sizes[2]})"


def _and(items: Iterable[str]) -> str:
    """One sentence's list: "a", "a and b", "a, b and c"."""
    *first, last = items
    return f"{', '.join(first)} and {last}" if first else last
