"""A tuning as text for a terminal."""

from __future__ import annotations

import argparse
import glob
import sys
from collections.abc import Sequence
from pathlib import Path

from ..tuning.report import Epoch, TuneReport
from .fuse import drift_text
from .options import _bundle_argument, _parts, _positive
from .terminal import _show, progress, table


def _tune_arguments(sub: argparse.ArgumentParser) -> None:
    _bundle_argument(sub)
    sub.add_argument("--data", required=True, metavar="FILE",
                     help="labelled data to tune on: a file as of `plan`, or an image folder")  # fmt: skip
    sub.add_argument(
        "--validation", metavar="FILE", help="labelled data to judge on (default: one in ten examples of --data)"
    )
    sub.add_argument("--label-column", default="label", metavar="NAME", help="column that holds the label")
    sub.add_argument("--epochs", type=_positive, default=5, help="passes over the data, at most (default 5)")
    sub.add_argument("--batch-size", type=_positive, default=32, help="examples per update (default 32)")
    sub.add_argument("--learning-rate", type=float, default=5e-5, help="the highest one (default 5e-5)")
    sub.add_argument("--weight-decay", type=float, default=0.01, help="of AdamW (default 0.01)")
    sub.add_argument(
        "--warmup", type=float, default=0.1, help="share of updates over which the learning rate rises (default 0.1)"
    )
    sub.add_argument(
        "--patience", type=_positive, default=2, help="epochs without a better validation NLL to stop after (default 2)"
    )
    sub.add_argument("--per-member", action="store_true", help="tune each member alone, merge, and report the drift")
    sub.add_argument("--keep-separate", type=_parts, default=(), metavar="PARTS",
                     help="with --per-member: parts not averaged, as in `fuse`")  # fmt: skip
    sub.add_argument(
        "--device", choices=("auto", "cpu"), default="auto", help="a GPU if there is one (auto), or the CPU"
    )
    sub.add_argument("--force", action="store_true", help="replace another bundle at --output")
    sub.add_argument(
        "-o", "--output", type=Path, metavar="BUNDLE", help="folder to create (default: replace the bundle)"
    )


def tune(options: argparse.Namespace) -> int:
    """``hydrant tune``: fine-tune the members of a bundle."""
    from ..tuning import tune as tune_bundle

    place = (options.output or options.bundle).resolve()
    state = place.with_name(f"{place.name}.tune.part")
    try:
        report = tune_bundle(
            options.bundle,
            options.data,
            validation=options.validation,
            output=options.output,
            epochs=options.epochs,
            batch_size=options.batch_size,
            learning_rate=options.learning_rate,
            weight_decay=options.weight_decay,
            warmup=options.warmup,
            patience=options.patience,
            per_member=options.per_member,
            keep_separate=options.keep_separate,
            device=options.device,
            seed=options.seed,
            text_column=options.text_column,
            text_pair_column=options.text_pair_column,
            label_column=options.label_column,
            force=options.force,
            state=state,
            progress=progress,
        )
    except KeyboardInterrupt:
        if any(state.parent.glob(f"{glob.escape(state.name)}*")):
            print(f"hydrant: {state} holds what was tuned; run the same command again to go on", file=sys.stderr)
        raise
    _show(options, report.to_json(), tune_text(report))
    return 0


def tune_text(report: TuneReport) -> str:
    """What was tuned on, what each epoch brought, and what there is to do now."""
    source = "held out of it: one in ten of each class" if report.held_out else f"of {report.validation}"
    lines = [
        f"tuned on {report.examples} examples of {report.data}, judged on {report.validation_examples} {source} "
        f"({report.device}, {report.seconds:.0f} s)",
        "",
        *_histories(report),
        "",
        table(
            ["validation", "before", "after"],
            [
                ["NLL", f"{report.nll_before:.4f}", f"{report.nll_after:.4f}"],
                ["accuracy", f"{report.accuracy_before:.4f}", f"{report.accuracy_after:.4f}"],
                ["ECE", f"{report.ece_before:.4f}", f"{report.ece_after:.4f}"],
            ],
        ),
        "",
    ]
    if report.drift is not None:
        lines.append(drift_text(dict(report.drift)))
    return "\n".join([*lines, *_outcome(report)])


def _histories(report: TuneReport) -> list[str]:
    """A table for the joint tuning, or one for each member."""
    if not report.members:
        return [_history(report.history)]
    return [
        line
        for member, history in enumerate(report.members)
        for line in (f"member {member + 1}, alone", _history(history), "")
    ][:-1]


def _history(history: Sequence[Epoch]) -> str:
    rows = [
        [
            str(entry.epoch),
            "–" if entry.loss is None else f"{entry.loss:.4f}",
            f"{entry.nll:.4f}",
            f"{entry.accuracy:.4f}",
        ]
        for entry in history
    ]
    return table(["epoch", "loss", "validation NLL", "accuracy"], rows)


def _outcome(report: TuneReport) -> list[str]:
    """What stands where, and what follows."""
    if not report.improved:
        return [f"no epoch was better than the weights as they were: {report.bundle} holds them unchanged"]
    kept = "the merged members" if report.members else f"the weights after epoch {report.best_epoch}"
    lines = [f"wrote {report.bundle}: {kept}; exported again: {', '.join(report.graphs) or 'no graph, there was none'}"]
    if report.accuracy_after < report.accuracy_before:
        lines.append(
            f"accuracy fell by {100 * (report.accuracy_before - report.accuracy_after):.2f} points while NLL improved; "
            "judge on other data which counts: hydrant evaluate"
        )
    lines += [f"{name} does not hold any more; make it again: {command}" for name, command in report.dropped.items()]
    lines.append(f"temperature and thresholds are gone; fit them again: hydrant calibrate {report.bundle} --data FILE")
    return lines
