"""The command line's words and options; ``cli.py`` holds what they do."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..bundle.plan import HeadPlan
from ..errors import InputError, cut
from .options import _count, _positive, _prompt_arguments, _source
from .terminal import _show, members_of, progress, table


def _plan_arguments(sub: argparse.ArgumentParser) -> None:
    from_choices = {
        "method": ("taylor", "circuit", "random"),
        "objective": ("separation", "nll", "both"),
        "masking": ("pruned", "selected"),
        "diversity": ("noise", "bootstrap"),
    }
    sub.add_argument("model", metavar="MODEL", help="Hugging Face checkpoint folder or hub name")
    sub.add_argument(
        "--data", metavar="FILE", help="labelled calibration data: .csv .tsv .jsonl .parquet .npz or image folder"
    )
    _prompt_arguments(sub)
    sub.add_argument("--members", type=_positive, default=3, metavar="M", help="number of members (default 3)")
    sub.add_argument(
        "--keep",
        help="heads kept per layer: 8, a share such as 0.66 (1.0: all), or a JSON list (default 8)",
    )
    sub.add_argument(
        "--budget",
        type=float,
        metavar="RATIO",
        help="instead of --keep: choose fork and heads for at most RATIO × the single model's operations, such as 1.25",
    )
    sub.add_argument(
        "--fork-from",
        type=_count,
        metavar="LAYER",
        help="every member keeps all heads below LAYER: one shared trunk (default 0; with --budget: chosen)",
    )
    sub.add_argument("--method", choices=from_choices["method"], default="taylor", help="how heads are scored")
    sub.add_argument(
        "--ood",
        metavar="FILE",
        help="for circuits: out-of-distribution inputs, in any form of --data; labels are not read",
    )
    sub.add_argument(
        "--objective",
        choices=from_choices["objective"],
        help="what circuits are for: OOD separation, likelihood, or both (default separation)",
    )
    sub.add_argument(
        "--masking",
        choices=from_choices["masking"],
        help="for circuits: heads of earlier layers masked while a layer is scored (default pruned)",
    )
    sub.add_argument(
        "--average", action="store_true", help="for circuits: one member, the average of M circuits (CircAvg)"
    )
    sub.add_argument(
        "--diversity",
        choices=from_choices["diversity"],
        help="how members are made to differ (default noise; for circuits bootstrap)",
    )
    sub.add_argument(
        "--noise",
        type=float,
        default=0.5,
        help="standard deviation for noise: of log scores; of circuits' scores ÷ their spread (default 0.5)",
    )
    sub.add_argument(
        "--examples", type=_count, default=2048, help="calibration examples drawn at random; 0 for all (default 2048)"
    )
    sub.add_argument("--label-column", default="label", metavar="NAME", help="column that holds the label")
    sub.add_argument("--batch-size", type=_positive, default=32, help="examples per pass (default 32)")
    sub.add_argument("-o", "--output", type=Path, required=True, metavar="PLAN", help="JSON file to write")


def plan(options: argparse.Namespace) -> int:
    """``hydrant plan``: choose each member's heads."""
    from ..bundle.files import check_file
    from ..calib.heads.planning import plan_heads

    check_file(options.output)
    state = options.output.with_name(f"{options.output.name}.part") if options.method == "circuit" else None
    model = _source(options.model, options)
    try:
        made = plan_heads(
            model,
            options.data,
            members=options.members,
            keep=None if options.keep is None else _keep(options.keep),
            budget=options.budget,
            fork_from=options.fork_from,
            method=options.method,
            ood=options.ood,
            objective=options.objective,
            masking=options.masking,
            average=options.average,
            diversity=options.diversity,
            noise=options.noise,
            examples=options.examples or None,
            seed=options.seed,
            text_column=options.text_column,
            text_pair_column=options.text_pair_column,
            label_column=options.label_column,
            batch_size=options.batch_size,
            state=state,
            progress=progress,
        )
    except KeyboardInterrupt:
        if state is not None and state.exists():
            print(f"hydrant: {state} holds what was found; run the same command again to go on", file=sys.stderr)
        raise
    made.save(options.output)
    _show(options, {"plan": str(options.output), **made.to_json()}, f"{plan_text(made)}\nwrote {options.output}")
    return 0


def _keep(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"--keep is {cut(text)}; expected a number of heads, a share such as 0.66, or a JSON list"
        ) from error


def plan_text(plan: HeadPlan) -> str:
    """Kept heads per layer and how alike the members are."""
    counts = plan.head_counts()
    headers = ["layer", *(f"member {member}" for member in range(len(plan.members))), "overlap"]
    overlap = plan.overlap()
    rows = []
    for layer in range(plan.layers):
        shared = f"{overlap['per_layer'][layer]:.2f}" if overlap["per_layer"] else "–"
        rows.append([str(layer), *(_heads(member[layer]) for member in plan.members), shared])
    kept = sum(map(sum, counts)) / (len(counts) * plan.layers * plan.heads)
    verb = "keeps" if len(counts) == 1 else "keep"
    lines = [table(headers, rows), f"{members_of(len(counts))} {verb} {kept:.0%} of {plan.layers} × {plan.heads} heads"]
    if overlap["mean"] is not None:
        lines[-1] += f"; mean overlap of two members {overlap['mean']:.2f} (1 = the same heads)"
    if overlap["identical"]:
        pairs = ", ".join(f"{a} and {b}" for a, b in overlap["identical"])
        remedy = "keep fewer heads" if kept == 1 else "keep fewer heads, or try another seed"
        lines.append(f"members {pairs} are identical and cannot disagree; {remedy}")
    if "budget" in plan.provenance:
        lines += ["", budget_text(plan.provenance["budget"])]
    if plan.method == "circuit" and "validation" in plan.provenance:
        lines += ["", circuit_text(plan.provenance)]
    return "\n".join(lines)


def budget_text(facts: Mapping[str, Any], rows: int = 10) -> str:
    """The plan chosen under a budget, and the best of those it was compared with.

    Args:
        facts: what planning recorded; its candidates are in order of their NLL.
        rows: most candidates to show.
    """
    others = [row for row in facts["candidates"] if any(row[name] != facts[name] for name in row)]
    body = []
    for row in [facts, *others[: rows - 1]]:
        counts = [f"{count}" for count in row["counts"][row["fork"] :]]
        heads = counts[0] if len(set(counts)) == 1 else " ".join(counts)
        figures = [f"{row['ratio']:.3f}×", f"{row['nll']:.4f}", f"{row['accuracy']:.3f}"]
        mark = "chosen" if row is facts else ""
        body.append([str(row["fork"]), heads, *figures, f"{row['mutual_information']:.4f}", mark])
    headers = ["fork", "heads from there on", "cost", "NLL", "accuracy", "mutual information", ""]
    tokens = f" at {facts['sequence']} tokens" if facts["sequence"] else ""
    hidden = len(others) - (rows - 1)
    body += [["…", f"{hidden} more", "", "", "", "", ""]] if hidden > 0 else []
    return "\n".join(
        [
            f"{len(facts['candidates'])} plans within {facts['limit']:g} × the single model's operations{tokens}, "
            f"compared on {facts['examples_held_out']} held-out examples, calibrated:",
            table(headers, body),
            "chosen: the most diverse plan whose NLL is within one standard error (of the paired difference) of the "
            "lowest; the others by NLL",
        ]
    )


def circuit_text(facts: Mapping[str, Any]) -> str:
    """What circuits were searched for, on what, and what the pruning changed there."""
    used = f"{facts['examples']} examples of {facts['data']}"
    if "ood" in facts:
        used += f" and {facts['ood_examples']} of {facts['ood']}"
    kind = f"the average of {facts['circuits']} circuits" if facts["average"] else f"{facts['circuits']} circuits"
    before, after = facts["validation"]["before"], facts["validation"]["after"]
    names = [name for name in before if name in after]
    headers = ["", *(_FIGURES.get(name, name) for name in names)]
    rows = [["single model", *(f"{before[name]:.4f}" for name in names)]]
    rows.append(["this plan", *(f"{after[name]:.4f}" for name in names)])
    note = "measured where the heads were chosen; other data will show less of it"
    return f"{kind} for the objective {facts['objective']}, on {used}:\n{table(headers, rows)}\n{note}"


_FIGURES = {
    "nll": "NLL",
    "auroc_predictive_entropy": "AUROC by entropy",
    "auroc_max_probability": "AUROC by max probability",
}
"""Figures of the validation set as they are shown."""


def _heads(kept: Sequence[int]) -> str:
    return " ".join(map(str, kept))
