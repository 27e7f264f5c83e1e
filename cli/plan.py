"""``hydrant plan``: choose each member's heads."""

from __future__ import annotations

import argparse
import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..bundle.head_plan import HeadPlan
from ..bundle.staging import check_file, destination, write_atomically
from ..calib.heads.methods import METHODS, Budget, Circuit, Random
from ..calib.heads.planning import plan_heads
from ..data.data_sources import check_named
from ..errors import InputError, cut, require
from ..workflow.explore import Exploration, Grid, explore
from ..workflow.picture import DRAWS, draw_exploration
from . import shared
from .command_options import Command, call, choose, positive, value
from .terminal import members_of, show, table

EXAMPLE = "hydrant plan checkpoint/ --data train.csv --members 3 -o plan.json"
BESIDE = Path()  # marks a picture without a name; no file can have this path


def arguments(command: Command) -> None:
    command.take((plan_heads, explore), "model", "model", metavar="MODEL")
    command.add("-o", "--output", type=Path, required=True, metavar="PLAN", help="JSON file for the plan")
    command.heading("common")
    command.take((plan_heads, explore), "data")
    command.take((plan_heads, explore), "members", type=positive, metavar="M")
    with command.one_of():
        command.take(plan_heads, "keep", type=_keep, action="store", metavar="KEEP")
        command.take(Budget, "ratio", "--budget", metavar="RATIO")
    command.take(plan_heads, "fork_from", metavar="LAYER")
    command.take(plan_heads, "method", action="store", metavar="METHOD", also=" (default: taylor)")
    command.heading("advanced")
    shared.prompts(command)
    shared.data_options(command)
    command.take(Budget, "to_tune")
    command.take(plan_heads, "traced")
    command.take(Random, "systematic", also="; with random")
    command.take((Circuit, explore), "ood", also="; with circuit or --explore")
    command.take((Circuit, Grid), "max_accuracy_loss", metavar="POINTS", also="; with circuit or --explore")
    command.add(
        "--explore", type=Path, metavar="PICTURE", nargs="?", const=BESIDE,
        help="Measure many plans, plot quality against cost (default: PLAN.png), and choose one",
    )  # fmt: skip
    command.take(explore, "train", also="; with --explore")
    command.take(explore, "compare", metavar="MODEL", also="; with --explore")


def run(options: argparse.Namespace) -> int:
    check_file(options.output)
    if (data := value(plan_heads, "data", options)) is not None:
        check_named(data)  # also if the method needs none
    if options.explore is not None:
        return _explore(options)
    for name in ("train", "compare"):
        if hasattr(options, name):
            raise InputError(f"--{name} needs --explore; add it, or omit --{name}")
    names = value(plan_heads, "method", options).split(",")
    amounts = [f"--{name.replace('_', '-')}" for name in ("keep", "budget", "to_tune") if hasattr(options, name)]
    if "dropout" in names and amounts:
        raise InputError(f"{amounts[0]} does not apply to --method dropout, whose rate decides; omit it")
    if {"--keep", "--to-tune"} <= set(amounts):
        raise InputError("--keep and --to-tune exclude each other; use --budget with --to-tune")
    state = options.output.with_name(f"{options.output.name}.part")  # state of the search
    searches = "circuit" in names and destination(options.output) is not None
    method = choose("--method", METHODS, names, options, **({"state": state} if searches else {}))
    budget = {"keep": call(Budget, options)} if {"--budget", "--to-tune"} & set(amounts) else {}
    model = shared.source(options.model, options)
    with shared.resumable(state):
        plan = call(plan_heads, options, model=model, method=method, reading=shared.read_options(options), **budget)
    plan.save(options.output)
    facts = {"plan": str(options.output), **plan.to_json()}
    show(options, facts, f"{plan_text(plan)}\nwrote {options.output}", options.output)
    return 0


def _explore(options: argparse.Namespace) -> int:
    """Measure and plot a grid of plans, and write the chosen one; without one, raise the reason."""
    picture = options.output.with_suffix(".png") if options.explore is BESIDE else options.explore
    check_file(picture)
    if destination(picture) is not None and destination(picture) == destination(options.output):
        raise InputError(f"{picture} is the file of both the plan and --explore's picture; name two files")
    _check_explored(options)
    require("matplotlib", *DRAWS)
    grid: dict[str, Any] = {"methods": options.method.split(",")} if hasattr(options, "method") else {}
    budget = {"budget": options.budget} if hasattr(options, "budget") else {}
    result = call(explore, options, grid=call(Grid, options, **grid), reading=shared.read_options(options), **budget)
    plan = None if result.best is None else str(options.output)
    if result.best is not None:
        result.best.save(options.output)
    write_atomically(picture, draw_exploration(result))
    wrote = " and ".join(name for name in (plan, str(picture)) if name)
    facts = {"plan": plan, "picture": str(picture), **result.to_json()}
    show(options, facts, f"{exploration_text(result)}\nwrote {wrote}", options.output)
    if result.best is None:
        raise InputError(f"{result.why}; no plan is written")
    return 0


NOT_EXPLORED = ("keep", "to_tune", "fork_from", "traced", "systematic", "classes", "template")


def _check_explored(options: argparse.Namespace) -> None:
    """Reject options that --explore does not support, and missing data."""
    for flag in NOT_EXPLORED:
        if getattr(options, flag, None) is not None:
            raise InputError(f"--{flag.replace('_', '-')} and --explore exclude each other; omit one of them")
    if value(explore, "data", options) is inspect.Parameter.empty:
        raise InputError("--explore needs labelled validation data; add --data FILE")


def exploration_text(result: Exploration) -> str:
    """Format every plan, cheapest first, and the chosen one."""
    body = []
    for place, row in sorted(enumerate(result.rows), key=lambda item: (item[1].fork is not None, item[1].ratio)):
        plan = "–" if row.fork is None else f"fork {row.fork}, {row.heads} heads"
        quality = f"{row.rmse:.4g}" if row.accuracy is None else f"{row.accuracy:.3f}"
        metrics = [f"{row.ratio:.3f}×", quality, f"{row.nll:.4f}"]
        if result.ood_examples:
            metrics += ["–" if metric is None else f"{metric:.3f}" for metric in (row.auroc, row.fpr95)]
        marks = [*(["tuned"] if row.tuned else []), *(["chosen"] if place == result.chosen else [])]
        body.append([row.name, plan, *metrics, " ".join(marks)])
    regression = result.rows[0].accuracy is None
    by = "variance" if regression else "entropy"
    detection = [f"OOD AUROC, {by}", "FPR95"] if result.ood_examples else []
    quality = "RMSE" if regression else "accuracy"
    shown = table(["", "plan", "cost", quality, "NLL", *detection, ""], body)
    if result.chosen is None:
        return f"{shown}\nmeasured on {result.examples} examples; none is chosen"
    tuned = result.rows[result.chosen].tuned
    after = "; its metrics are those after tuning: fuse it, then run `hydrant tune`" if tuned else ""
    reason = "detects OOD inputs best" if result.ood_examples else "has the lowest NLL"
    which = f"of the plans within {result.budget:g} × that preserve the {quality}, the one that {reason}"
    text = f"chosen: {which}; expect slightly worse metrics on other data{after}"
    return f"{shown}\nmeasured on {result.examples} examples; {text}"


def _keep(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"--keep is {cut(text)}; expected a number of heads, a share, or a JSON list") from error


def plan_text(plan: HeadPlan) -> str:
    """Format the kept heads of each layer and the members' overlap."""
    counts = plan.head_counts()
    headers = ["layer", *(f"member {member}" for member in range(len(plan.members))), "overlap"]
    overlap = plan.overlap()
    rows = []
    for layer in range(plan.layers):
        shared = f"{overlap['per_layer'][layer]:.2f}" if overlap["per_layer"] else "–"
        rows.append([str(layer), *(" ".join(map(str, member[layer])) for member in plan.members), shared])
    ratio = sum(map(sum, counts)) / (len(counts) * plan.layers * plan.heads)
    verb = "keeps" if len(counts) == 1 else "keep"
    kept = f"{members_of(len(counts))} {verb} {ratio:.0%} of {plan.layers} × {plan.heads} heads"
    lines = [table(headers, rows), kept]
    if overlap["mean"] is not None:
        lines[-1] += f"; mean overlap of two members {overlap['mean']:.2f} (1 = the same heads)"
    if overlap["identical"]:
        pairs = ", ".join(f"{a} and {b}" for a, b in overlap["identical"])
        remedy = "keep fewer heads" if ratio == 1 else "change the number of heads, the number of members or the seed"
        lines.append(f"members {pairs} are identical and never disagree; {remedy}")
    if "budget" in plan.provenance:
        lines += ["", budget_text(plan.provenance["budget"])]
    if "margin" in plan.provenance:
        lines += ["", margin_text(plan.provenance["margin"])]
    if plan.method.startswith("circuit") and "validation" in plan.provenance:
        lines += ["", circuit_text(plan.provenance)]
    return "\n".join(lines)


UNTUNED = (
    "chosen: the most diverse plan whose NLL is within one standard error (of the paired difference) or 0.005 nats of "
    "the lowest; the others are sorted by NLL"
)

TO_TUNE = (
    "chosen for tuning: a third of the heads or two at most, from the earliest layer of the last third that the "
    "budget allows"
)


def budget_text(facts: Mapping[str, Any], rows: int = 10) -> str:
    """Format the plan chosen within a budget, and the best other candidates."""
    others = [row for row in facts["candidates"] if any(row[name] != facts[name] for name in row)]
    single = [facts["single"]] if "single" in facts else []  # older plans record none
    body = []
    for row in [*single, facts, *others[: rows - 1]]:
        counts = [f"{count}" for count in row["counts"][row["fork"] :]]
        heads = counts[0] if len(set(counts)) == 1 else " ".join(counts)
        quality = f"{row['accuracy']:.3f}" if "accuracy" in row else f"{row['rmse']:.4g}"
        metrics = [f"{row['ratio']:.3f}×", f"{row['nll']:.4f}", quality]
        if row in single:
            body.append(["–", "all, single model", *metrics, "–", ""])
            continue
        mark = "chosen" if row is facts else ""
        body.append([str(row["fork"]), heads, *metrics, f"{row['mutual_information']:.4f}", mark])
    quality = "accuracy" if "accuracy" in facts else "RMSE"
    headers = ["fork", "heads from the fork on", "cost", "NLL", quality, "mutual information", ""]
    tokens = f" at {facts['sequence']} tokens" if facts["sequence"] else ""
    hidden = len(others) - (rows - 1)
    body += [["…", f"{hidden} more", "", "", "", "", ""]] if hidden > 0 else []
    plans = f"{len(facts['candidates'])} plans within {facts['limit']:g} × the single model's operations{tokens}"
    title = f"{plans}, compared on {facts['examples_held_out']} held-out examples, calibrated:"
    return "\n".join([title, table(headers, body), TO_TUNE if facts.get("to_tune") else UNTUNED])


def circuit_text(facts: Mapping[str, Any]) -> str:
    """Describe the circuits, their data, and the metrics before and after pruning."""
    used = f"{facts['examples']} examples of {facts['data']}"
    if "ood" in facts:
        used += f" and {facts['ood_examples']} of {facts['ood']}"
    kind = f"the average of {facts['circuits']} circuits" if facts["average"] else f"{facts['circuits']} circuits"
    before, after = facts["validation"]["before"], facts["validation"]["after"]
    names = [name for name in before if name in after]
    headers = ["", *(_FIGURES.get(name, name) for name in names)]
    rows = [["single model", *(f"{before[name]:.4f}" for name in names)]]
    rows.append(["this plan", *(f"{after[name]:.4f}" for name in names)])
    note = "measured on the data that chose the heads; expect a smaller effect on other data"
    return f"{kind} for the objective {facts['objective']}, on {used}:\n{table(headers, rows)}\n{note}"


def margin_text(facts: Mapping[str, Any]) -> str:
    """Describe the accuracy lost on held-out examples, and the fallback if it was too large."""
    first, last = facts["attempts"][0], facts["attempts"][-1]
    name, words, unit, form = "accuracy", "accuracy", " points", ".3f"
    if "rmse" in first:
        name, words, unit, form = "rmse", "RMSE", " %", ".4g"
    single = f"single model {first[f'single_{name}']:{form}}"
    text = f"{words} on {facts['examples_held_out']} held-out examples: {last[name]:{form}}, {single}"
    text += f" (a loss of at most {facts['limit']:g}{unit} is allowed)"
    if len(facts["attempts"]) == 1:
        return text
    return f"{text}; the requested plan had {first[name]:{form}} and was replaced"


_AREAS = {"auroc_predictive_entropy": "AUROC by entropy", "auroc_max_probability": "AUROC by max probability"}
_FIGURES = {"nll": "NLL", "rmse": "RMSE", **_AREAS}
