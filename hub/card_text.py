"""Text of a model card: what a bundle is, knows, measured, promises, and how to use it."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..bundle.calibration import ABSTAIN, OOD, Calibration
from ..bundle.density_file import Density
from ..bundle.manifest import MANIFEST, BaseModel, Fusion, Manifest
from ..bundle.reports import Verification
from ..bundle.store import Bundle, onnx_name
from ..calib.decisions.decision_lines import calibration_lines, distance_lines
from ..data.specs import convert
from ..errors import short
from ..evaluation.metric_names import DECISIONS, DETECTION, SCORES, ranged
from ..evaluation.report import StoredEvaluation, StoredFigure
from ..evaluation.report_tables import SELECTIVE
from ..metrics.gates import PRECISIONS
from ..tasks import TASKS
from ..tasks.task import Column
from .card_commands import command_lines
from .card_examples import examples

LIMITS = {
    "classification": "It knows {} labels. An input of any other kind gets one of them, too; only the scores show it.",
    "tokens": "It knows {} tags. A word of any other kind gets one of them, too; only the scores show it.",
    "multi_label": "It knows {} labels, any of which may apply. It cannot name any other.",
    "score": "It returns one number, also for inputs unlike its training data; only the scores show it.",
}

MEANINGS = {
    "confidence": "largest mean probability",
    "predictive_entropy": "total uncertainty, in nats",
    "expected_entropy": "uncertainty of the data themselves, in nats",
    "mutual_information": "disagreement of the members, in nats",
    "score_variance": "variance between the members",
    "distance": "Mahalanobis distance to the training data: 0 is typical, 1 is one standard deviation farther",
}

PROMISES = {
    "coverage": "answers, on average, at least {coverage:.1%} of new {unit}s; not that the answers are right",
    "risk": "at most {risk:.1%} of the answers are wrong, with {confidence:.0%} confidence",
    "false_alarm": "flags, on average, at most {false_alarm:.1%} of new in-distribution {unit}s",
}

MARKS = re.compile(r"([\\`*_\[\]|~$#])")


def plain(text: object, limit: int = 300) -> str:
    """Escape text for one line or table cell of Markdown."""
    words = "".join(sign if sign.isprintable() else " " for sign in str(text)).split()
    return MARKS.sub(r"\\\1", html.escape(short(" ".join(words), limit), quote=False))


def card_text(bundle: Bundle, evaluation: StoredEvaluation | None, tag: str, repository: str | None) -> str:
    """The Markdown below the front matter; ``tag`` is the pipeline of other libraries."""
    calibration, density = Calibration.of(bundle), Density.of(bundle)
    distance = None if density is None else density.to_json()
    sections = {
        f"# {plain(repository or untitled(bundle))}": _about(bundle),
        "## What it knows, and what it does not": _knowledge(bundle, calibration, distance is not None),
        "## Results": [] if evaluation is None else _results(bundle, evaluation),
        "## Decisions": _decisions(bundle, calibration),
        "## Use": examples(bundle, tag, repository or "USER/REPO"),
        "## How it was made": _origin(bundle, calibration, evaluation, distance),
        "## Citation": ["The method is Hydra Ensembles (ICLR 2026). Cite the base model and the data, too."],
    }
    return "\n\n".join("\n\n".join([title, *parts]) for title, parts in sections.items() if parts) + "\n"


def untitled(bundle: Bundle) -> str:
    """A title without a repository."""
    return f"{bundle.family} {'classifier' if bundle.members == 1 else 'ensemble'}"


def _about(bundle: Bundle) -> list[str]:
    """Members, heads, graphs and labels."""
    plan, arch = bundle.plan(), bundle.any_architecture()
    facts = bundle.manifest.get("fusion", {})
    graphs = ", ".join(kind.upper() for kind in PRECISIONS if bundle.has(onnx_name(kind)))
    kind = "one model" if bundle.members == 1 else f"an ensemble of {bundle.members} members in one model"
    origin = "one checkpoint" if facts.get("checkpoints", 1) == 1 else f"{facts['checkpoints']} checkpoints"
    lines = [f"It is fused from {origin} of {plain(bundle.family)}."]
    if adapters := facts.get("adapters"):
        lines.append(f"Each member has a LoRA adapter of its own ({len(adapters)} in all).")
    if plan.fork < plan.layers:
        counts = sorted({count for row in plan.head_counts() for count in row[plan.fork :]})
        kept = " to ".join(str(count) for count in dict.fromkeys((counts[0], counts[-1])))
        where = f"From layer {plan.fork} of {plan.layers} on" if plan.fork else f"In all {plan.layers} layers"
        lines.append(f"{where}, the members keep different attention heads: {kept} of {plan.heads} in each layer.")
    if facts.get("zero_shot"):
        lines.append("Its classes are fixed prompts of CLIP.")
    gives = TASKS[arch.task].gives.partition(" (")[0] if arch.task != "multi_label" else "the labels that apply"
    gives = f"Hydrant returns, for every input, {gives}"
    return [
        f"This is {kind}, which measures its own uncertainty. {gives}, and how uncertain it is. {' '.join(lines)}",
        *([f"ONNX graphs: {graphs}. Each holds all members and all scores."] if graphs else []),
        *([f"Labels: {plain(', '.join(bundle.labels), 600)}"] if arch.task != "score" else []),
    ]


def _knowledge(bundle: Bundle, calibration: Calibration, has_distance: bool) -> list[str]:
    """Meaning of the scores, and limits."""
    task = bundle.any_architecture().task
    has = {*TASKS[task].outputs, "confidence" if TASKS[task].one_class else "", "distance" if has_distance else ""}
    scores = "; ".join(f"`{name}` ({words})" for name, words in MEANINGS.items() if name in has)
    fitted = "calibrated" if calibration.fitted else "not calibrated: read them as an order, not as rates"
    lines = [LIMITS[task].format(len(bundle.labels)), f"Scores of every input: {scores}."]
    lines += [f"Its probabilities are {fitted}."] if task != "score" else []
    if bundle.members == 1:
        lines.append("With one member there is no disagreement to measure.")
    return [_bullets([*lines, _unknown(calibration)])]


def _unknown(calibration: Calibration) -> str:
    """What is known about the detection of OOD inputs, and no more."""
    threshold, fitted = calibration.thresholds.get(OOD), calibration.fitted or {}
    if threshold is None:
        return "It flags no out-of-distribution (OOD) inputs: no threshold was fitted."
    found = threshold.measured.get("true_positive_rate")
    if found is None:
        text = "It flags out-of-distribution (OOD) inputs. Its threshold was fitted without OOD data"
        return f"{text}; see Results, if any, for how many it finds."
    data = f"{fitted.get('ood_examples', '?')} OOD examples of {plain(fitted.get('ood'))}"
    false = threshold.measured.get("false_positive_rate", 0.0)
    chance = "This is no better than chance." if found <= false else "Other kinds may be found less often."
    return f"It flagged {found:.1%} of the {data} in calibration, and {false:.1%} of the other examples. {chance}"


def _results(bundle: Bundle, evaluation: StoredEvaluation) -> list[str]:
    """The verdict, and a table of all models' metrics."""
    models, quality = evaluation.models, TASKS[bundle.any_architecture().task].columns
    columns = {name: column for name, column in quality.items() if name not in SELECTIVE}
    for score, words in SCORES.items():
        for name in ("auroc", "fpr95"):
            columns[f"ood.{score}.{name}"] = replace(DETECTION[name], title=f"OOD {DETECTION[name].title} by {words}")
    rows = []
    for name, column in columns.items():
        if any(name in model.figures for model in models):
            rows.append([column.title, *(_cell(model.figures.get(name), column) for model in models)])
    for name, column in DECISIONS.items():
        if any(name in model.decisions for model in models):
            rows.append([column.title, *(column.text(model.decisions.get(name)) for model in models)])
    ood = f"; OOD: {evaluation.ood_examples} examples of {plain(evaluation.ood)}" if evaluation.ood else ""
    about = f"On {evaluation.examples} examples of {plain(evaluation.data)}{ood}."
    if evaluation.resamples:
        about += f" Ranges are 95 % intervals of {evaluation.resamples} bootstrap resamples."
    verdicts = [f"Verdict: {plain(verdict.sentence, 2000)}" for verdict in evaluation.verdict]
    return [*verdicts, about, _table(["", *(plain(model.name) for model in models)], rows)]


def _cell(stored: StoredFigure | None, column: Column) -> str:
    figure = StoredFigure().figure() if stored is None else stored.figure()
    return column.text(figure.value) + (f" ({ranged(figure, column)})" if math.isfinite(figure.low) else "")


def _decisions(bundle: Bundle, calibration: Calibration) -> list[str]:
    """Thresholds, sets and intervals, with their promises."""
    if not calibration.fitted:
        return ["It is not calibrated: there are no thresholds to abstain or to flag OOD inputs."]
    lines = calibration_lines(calibration.to_json(), bundle.any_architecture().task == "score")
    promised = _promises(calibration, "span" if TASKS[bundle.any_architecture().task].unit else "input")
    rows = [[title, plain(text), promised.get(title, "")] for title, text in lines]
    words = "The promises hold for new inputs from the source of the calibration data, and for no others."
    return [_table(["decision", "fitted", "promise"], rows), words]


def _promises(calibration: Calibration, unit: str) -> dict[str, str]:
    """Promise of each decision, by its title in ``calibration_lines``."""
    promised = {}
    for title, name in (("abstains", ABSTAIN), ("flags as OOD", OOD)):
        if (threshold := calibration.thresholds.get(name)) is not None:
            forms = [form for goal, form in PROMISES.items() if goal in threshold.target]
            promised[title] = "".join(forms).format(**threshold.target, unit=unit) + f" (n = {threshold.n})"
    sets, intervals = calibration.conformal, calibration.intervals
    if sets is not None:
        promised["sets"] = f"contain the label with probability {1 - sets.alpha:g} or more (n = {sets.n})"
    if intervals is not None:
        share = intervals.confidence
        promised["intervals"] = f"contain the label with probability {share:g} or more (n = {intervals.n})"
    return promised


def _origin(
    bundle: Bundle, calibration: Calibration, evaluation: StoredEvaluation | None, distance: Mapping[str, Any] | None
) -> list[str]:
    """Recorded steps and versions."""
    plan, fusion = bundle.plan(), bundle.manifest.get("fusion", {})
    bases, training = fusion_of(bundle).base, None if distance is None else distance.get("data")
    lines = [f"Base: {link}." for link in dict.fromkeys(map(_base_link, bases)) if link]
    lines.append(f"Heads: method {plain(plan.method)}{_data(plan.provenance)}.")
    if isinstance(tuned := fusion.get("tuned"), Mapping):
        epochs = f", {plain(tuned.get('epochs'))} epochs, the weights after epoch {plain(tuned.get('best_epoch'))}"
        teachers = ", ".join(plain(each.get("name")) for each in tuned.get("teachers", ()))
        lines.append(f"{f'Taught by {teachers}' if teachers else 'Tuned above the fork'}{_data(tuned)}{epochs}.")
    else:
        lines.append("Not tuned after the fusion.")
    if calibration.fitted:
        lines.append(f"Calibrated{_data(calibration.fitted)}.")
    lines += [f"Distance: {plain(text)}." for _, text in distance_lines(distance)]
    if (verified := Verification.of(bundle)) is not None and verified.current:
        for words, names in (("Verified", verified.passed), ("**Failed the comparison**", verified.failed)):
            lines += [f"{words} against {plain(verified.reference)}: {plain(', '.join(names))}."] if names else []
    versions = {"hydrant": bundle.manifest["hydrant"], **bundle.manifest.get("versions", {})}
    lines.append(f"Versions: {', '.join(f'{plain(name)} {plain(number)}' for name, number in versions.items())}.")
    base = next((each.name for each in bases if each.name), None)
    code = "\n".join(command_lines(bundle, calibration, evaluation, base, training)).replace("```", "'''")
    words = "The commands, from what the bundle records: files without their folders, and not every option."
    return [_bullets(lines), words, f"```sh\n{code}\n```"]


def fusion_of(bundle: Bundle) -> Fusion:
    """The facts about the fusion that have a fixed form."""
    return convert(dict(bundle.manifest), Manifest, bundle.path / MANIFEST).fusion


def _base_link(base: BaseModel) -> str:
    """Link to a base model at its commit; empty without a hub name."""
    at = f"/tree/{base.revision}" if re.fullmatch("[0-9a-f]+", base.revision or "") else ""
    return f"[{plain(base.name)}](https://huggingface.co/{base.name}{at})" if base.name else ""


def _data(facts: Mapping[str, Any]) -> str:
    """Data and seed of a step, where recorded."""
    data = f" on {plain(facts.get('examples', '?'))} examples of {plain(facts['data'])}" if facts.get("data") else ""
    return data + (f", seed {plain(facts['seed'])}" if "seed" in facts else "")


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in [header, ["---"] * len(header), *rows])
