"""Verdicts: better, worse, or no difference between a bundle and a competitor."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from ..bundle.calibration import OOD
from ..tasks import Column
from .deep_ensemble import TEACHERS
from .metric_names import DIFFERENCES, close, is_zero
from .report import Difference, Figure, ModelReport, Verdict

BETTER, WORSE, UNSHOWN, UNJUDGED = "better", "worse", "no difference shown", "not judged"

SCALED = ("nll", "ece", "label_ece")
OWN = ("single", "checkpoint", "control", "taught", TEACHERS)  # models that the sentences on the single model cover
GAINS = ("nll", "rmse")  # metrics of the teachers' gain; the first that is measured
QUALITY = ("accuracy", "rmse")  # needs no threshold: those of labels are fitted for the bundle alone

UNTAUGHT = (
    "No epoch of teaching improved the NLL on validation data: this is the untaught model. Teach it with more rows "
    "(--unlabelled) or epochs."
)

ALONE = "No model to compare with; --compare MODEL, such as the bundle's own checkpoint, shows gains and losses."


def verdicts(models: Sequence[ModelReport]) -> list[Verdict]:
    """Compare the first model with each other one, by the paired differences of ``DIFFERENCES``."""
    return [_verdict(models[0], model) for model in models[1:]]


def headlines(models: Sequence[ModelReport], detection: bool, taught: bool = False) -> list[str]:
    """Return the verdict in at most three short sentences; only the one on teachers has numbers.

    The single model calibrated alike is the fair rival of the members; without it, every competitor has a sentence.
    With it and with teachers, the first sentence compares their gains over it. ``detection``: OOD data were given.
    ``taught``: the bundle was tuned from teachers.
    """
    compared = verdicts(models)
    singles = [each for each, model in zip(compared, models[1:], strict=True) if model.kind == "single"]
    rival = singles[0] if singles and models[0].kind in ("bundle", "taught") else None
    flags = _name(models[0].calibration.get("thresholds", {}).get(OOD, {}).get("score", ""))
    sentences = [] if rival is None else [*_kept(models), *_gains(rival, flags, models[0].kind)]
    if models[0].kind == "single" and any(model.kind == TEACHERS for model in models):
        sentences.append(UNTAUGHT)
    if rival is not None and _unfinished(models, taught):
        sentences.insert(2, "In accuracy or NLL, tuning alone improves the single model: train it further first.")
    for each, model in zip(compared, models[1:], strict=True):
        gaps = [gap.figure for gap in each.differences if gap.figure in SCALED and gap.outcome == WORSE]
        if rival is not None and model.kind == "checkpoint" and gaps:
            lost = _and(DIFFERENCES[name].title for name in gaps)
            sentences.append(f"{each.against}, uncalibrated, is better in {lost}: calibrate on more examples.")
    if not detection:
        sentences.append("Without OOD data, detection was not measured.")
    others = [each for each, model in zip(compared, models[1:], strict=True) if rival is None or model.kind not in OWN]
    return [*sentences, *(_headline(models[0].name, each) for each in others)][:3] if compared else [ALONE]


def _kept(models: Sequence[ModelReport]) -> list[str]:
    """Describe what is kept of the teachers' gain, at which share of their cost, and what members add to that."""
    teachers = next((each for each in models if each.kind == TEACHERS), None)
    name = next((each for each in GAINS if teachers and each in teachers.over_single), None)
    if teachers is None or name is None:
        return []
    gain, title = teachers.over_single[name], DIFFERENCES[name].title
    if gain.value >= 0 or gain.high >= 0 or is_zero(gain.high, DIFFERENCES[name]):  # NaN without intervals
        return [f"No gain of the {teachers.name} in {title} over the single model is shown."]
    ours, single = models[0], next(each for each in models if each.kind == "single")
    share = (ours.figures[name].value - single.figures[name].value) / gain.value
    whose, their = ("'", "their") if teachers.name.endswith("s") else ("'s", "its")
    kept, cost = f"{100 * share:.0f} %" if share > 0 else "none", ""
    if ours.operations and teachers.operations:
        cost = f", at {100 * ours.operations / teachers.operations:.0f} % of {their} operations"
    quality = ""
    if key := next((each for each in QUALITY if each in ours.figures), None):
        values = [f"{each.figures[key].value:.3g}" for each in (ours, teachers)]
        quality = f"; {DIFFERENCES[key].title} {values[0]}, {teachers.name} {values[1]}"
    return [
        f"Keeps {kept} of the {teachers.name}{whose} gain in {title} over the single model{cost}{quality}.",
        *_forks(models),
    ]


def _forks(models: Sequence[ModelReport]) -> list[str]:
    """Describe what members add to one model that learnt the teachers' mean."""
    taught = next((each for each in models[1:] if each.kind == "taught" and models[0].kind == "bundle"), None)
    outcomes = {} if taught is None else _outcomes(_verdict(models[0], taught))
    if not outcomes or UNJUDGED in outcomes.values():
        return []
    better, worse = (_titles(outcomes, name) for name in (BETTER, WORSE))
    advice = "" if better else ": `hydrant make --teachers … --members 1` is simpler"
    gain = f"improve {_and(better)}" if better else "show no clear gain"
    lost = f", and worsen {_and(worse)}" if worse else ""
    return [f"Over one model taught by the teachers' mean, the members {gain}{lost}{advice}."]


def _gains(verdict: Verdict, flags: str, kind: str) -> list[str]:
    """Describe what the members, or teaching, add to the single model; ``flags`` is the score that flags inputs."""
    who, s, do = ("Teaching", "s", "does") if kind == "taught" else ("The members", "", "do")
    outcomes = _outcomes(verdict)
    better, worse = (_titles(outcomes, name) for name in (BETTER, WORSE))
    if UNJUDGED in outcomes.values():
        return [f"The {verdict.against}, was compared without intervals."]
    lost = f", and worsen{s} {_and(worse)}" if worse else ""
    if not better:
        advice = "`hydrant make --members 1` builds that model, which is simpler."
        return [f"{who} show{s} no clear gain over the {verdict.against}{lost}.", advice]
    sentences = [f"{who} improve{s} {_and(better)} over the {verdict.against}{lost}."]
    if flags in outcomes:
        verb = {BETTER: f"improve{s}", WORSE: f"worsen{s}"}.get(outcomes.pop(flags), f"{do} not clearly change")
        sentences.append(f"Flags use the {flags}, which {who.lower()} {verb}.")
    if same := _titles(outcomes, UNSHOWN):
        sentences.append(f"No difference is shown in {_and(same)}.")
    return sentences


def _name(figure: str) -> str:
    """Return a metric, or the score that a metric of detection judges."""
    return figure.removeprefix("ood.").split(".")[0].replace("predictive_", "")


def _outcomes(verdict: Verdict) -> dict[str, str]:
    """Return outcomes by metric and score; "" if it rounds to zero, or AUROC and FPR95 disagree."""
    outcomes = {}
    for name, group in groupby(verdict.differences, lambda each: _name(each.figure)):
        pair = [(each, DIFFERENCES[each.figure]) for each in group]
        clear = {each.outcome for each, column in pair if not (is_zero(each.low, column) or is_zero(each.high, column))}
        if any(each.value * (-1 if column.better == "high" else 1) > 0 for each, column in pair):
            clear.discard(BETTER)
        unclear = UNSHOWN if all(each.outcome == UNSHOWN for each, _ in pair) else ""
        outcomes[name] = next((each for each in (WORSE, UNJUDGED, BETTER) if each in clear), unclear)
    return outcomes


def _titles(outcomes: Mapping[str, str], name: str) -> list[str]:
    """Return the titles of metrics with an outcome; scores in one phrase."""
    found = [key for key, each in outcomes.items() if each == name]
    scores = [key for key in found if key not in DIFFERENCES]
    titles = [DIFFERENCES[key].title for key in found if key in DIFFERENCES]
    return [*titles, *([f"OOD detection by {_and(scores)}"] if scores else [])]


def _unfinished(models: Sequence[ModelReport], taught: bool) -> bool:
    """Return True if tuning alone raises the accuracy, or lowers the NLL by more than the members do.

    The evidence is a control, the single model tuned alike; without one, the bundle's members alone, which keep fewer
    heads than a control and so understate what tuning brings. Members that teachers taught are no evidence.
    """
    ours, rival = models[0], next(model for model in models[1:] if model.kind == "single")
    cases = [(each.over_single, "", each.figures) for each in models if each.kind == "control"]
    for differences, prefix, tuned in cases or [(rival.differences, "member_", ours.figures)] * (not taught):
        accuracy, nll = (differences.get(prefix + name) for name in ("accuracy", "nll"))
        if accuracy is not None and accuracy.low > 0:
            return True
        if nll is not None and nll.high < 0 and -nll.value > tuned[f"{prefix}nll"].value - ours.figures["nll"].value:
            return True
    return False


def _headline(ours: str, verdict: Verdict) -> str:
    """Return the verdict on one competitor in one short sentence, without numbers."""
    outcomes = _outcomes(verdict)
    parts = [f"{name} in {_and(titles)}" for name in (BETTER, WORSE) if (titles := _titles(outcomes, name))]
    if parts:
        return f"{ours} is {' and '.join(parts)} than {verdict.against}."
    if UNJUDGED in outcomes.values():
        return f"{ours} and {verdict.against} were compared without intervals."
    return f"No clear difference between {ours} and {verdict.against} is shown."


def outcome(difference: Figure, column: Column) -> str:
    """Name a difference from a competitor; value and interval must agree."""
    if not math.isfinite(difference.low):
        return UNJUDGED
    ends = (difference.value, difference.low, difference.high)
    if all(end > 0 for end in ends):
        return BETTER if column.better == "high" else WORSE
    if all(end < 0 for end in ends):
        return WORSE if column.better == "high" else BETTER
    return UNSHOWN


def best_apart(figures: Sequence[Figure | None], column: Column) -> int | None:
    """Return the index of the best metric, if its interval overlaps with no other."""
    finite = [(place, figure) for place, figure in enumerate(figures) if figure and math.isfinite(figure.value)]
    if len(finite) < 2:
        return None
    high = column.better == "high"
    finite.sort(key=lambda item: item[1].value, reverse=high)
    (place, best), *others = finite
    return place if all(best.low > other.high if high else best.high < other.low for _, other in others) else None


def _verdict(ours: ModelReport, model: ModelReport) -> Verdict:
    differences = tuple(
        Difference(name, outcome(figure, column), figure.value, figure.low, figure.high)
        for name, column in DIFFERENCES.items()
        if (figure := model.differences.get(name)) is not None and math.isfinite(figure.value)
    )
    sentence = _sentence(ours.name, model.name, differences)
    scaled = [each for each in differences if each.figure in SCALED and each.outcome == BETTER]
    if scaled and ours.scaled and not model.scaled:
        names = _and(DIFFERENCES[each.figure].title for each in scaled)
        sentence += f" {model.name} has no temperature, which alone may bring as much in {names}."
    return Verdict(model.name, sentence, differences)


def _sentence(ours: str, other: str, differences: Sequence[Difference]) -> str:
    groups = {
        name: [each for each in differences if each.outcome == name] for name in (BETTER, WORSE, UNSHOWN, UNJUDGED)
    }
    parts = [f"{name} in {_and(map(_gap, groups[name]))}" for name in (BETTER, WORSE) if groups[name]]
    sentences = [f"Compared with {other}, {ours} is {', and '.join(parts)}."] if parts else []
    if groups[UNSHOWN]:
        pair = "" if parts else f" between {ours} and {other}"
        names = _and(DIFFERENCES[each.figure].title for each in groups[UNSHOWN])
        shared = all(each.low <= 0 <= each.high for each in groups[UNSHOWN])
        why = "interval includes zero" if len(groups[UNSHOWN]) == 1 else "intervals include zero"
        sentences.append(f"No difference{pair} is shown in {names}{f': the 95 % {why}' if shared else ''}.")
    if groups[UNJUDGED]:
        named = ((DIFFERENCES[each.figure], each.value) for each in groups[UNJUDGED])
        gaps = _and(f"{column.title} {column.text(value)}" for column, value in named)
        sentences.append(f"{ours} minus {other}: {gaps}; without an interval this may be chance.")
    return " ".join(sentences) or f"No metric is available for both {ours} and {other}."


def _gap(difference: Difference) -> str:
    """Return the absolute difference with its interval."""
    column = DIFFERENCES[difference.figure]
    low, high = sorted((abs(difference.low), abs(difference.high)))
    sizes = [close(size, column).lstrip("+") for size in (abs(difference.value), low, high)]
    return f"{column.title} by {sizes[0]}{column.unit} (95 % interval {sizes[1]} to {sizes[2]})"


def _and(items: Iterable[str]) -> str:
    """Join words: "a", "a and b", "a, b and c"."""
    *first, last = items
    return f"{', '.join(first)} and {last}" if first else last
