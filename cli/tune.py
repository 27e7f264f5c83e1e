"""``hydrant tune``: fine-tune the members of a bundle."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ..errors import InputError
from ..tuning import tune
from ..tuning.settings import BatchEnsemble, Epoch, Jointly, PerMember, TuneReport
from . import shared
from .command_options import Command, call, parts, positive
from .fuse import merge_error_text
from .terminal import show, table

EXAMPLE = "hydrant tune out/ --data train.csv --validation validation.csv -o tuned/"


def arguments(command: Command) -> None:
    """Its options."""
    every = (Jointly, PerMember, BatchEnsemble)
    command.heading("input")
    shared.bundle(command, tune)
    command.take(tune, "data", metavar="FILE")
    command.take(tune, "validation", metavar="FILE")
    shared.data_options(command)
    command.heading("method")
    command.take(every, "epochs", type=positive, metavar="N")
    command.take(every, "learning_rate", metavar="RATE")
    command.take(every, "unfreeze")
    command.take(every, "freeze", metavar="LAYERS")
    command.take(every, "mixed_precision")
    with command.one_of():
        command.add("--per-member", action="store_true",
                    help="Tune each member alone, merge them, and report the drift of merging")  # fmt: skip
        command.add("--batch-ensemble", action="store_true",
                    help="Tell members apart by factors of rank one around the weights they share, and tune all "
                    "jointly")  # fmt: skip
    command.take(PerMember, "keep_separate", type=parts, action="store", metavar="PARTS")
    command.take(BatchEnsemble, "fork_from", metavar="LAYER", also="; for --batch-ensemble")
    command.heading("output")
    command.take(tune, "output", "-o", "--output", metavar="BUNDLE")
    command.take(tune, "force")


def run(options: argparse.Namespace) -> int:
    """Tune, and tell what it brought."""
    if not options.per_member and hasattr(options, "keep_separate"):
        raise InputError("--keep-separate is given without --per-member; members tuned jointly share these parts")
    if hasattr(options, "fork_from") and not options.batch_ensemble:
        raise InputError("--fork-from is given without --batch-ensemble, which it is for; add it")
    place = (getattr(options, "output", None) or options.bundle).resolve()
    state = place.with_name(f"{place.name}.tune.part")
    kind = PerMember if options.per_member else BatchEnsemble if options.batch_ensemble else Jointly
    how = call(kind, options, state=state)
    with shared.resumable(state, "tuned"):
        report = call(tune, options, how=how, reading=shared.read_options(options))
    show(options, report.to_json(), tune_text(report))
    return 0


def tune_text(report: TuneReport) -> str:
    """What was tuned on, what each epoch brought, and what there is to do now."""
    figures = {
        "NLL": (report.nll_before, report.nll_after),
        "accuracy": (report.accuracy_before, report.accuracy_after),
        "ECE": (report.ece_before, report.ece_after),
        "RMSE": (report.rmse_before, report.rmse_after),
    }
    rows = [[title, *(f"{value:.4f}" for value in pair)] for title, pair in figures.items() if None not in pair]
    alone = [f"member {member}, alone\n{_history(each)}" for member, each in enumerate(report.members, start=1)]
    source = "held out of it: one in ten" if report.held_out else f"of {report.validation}"
    lines = [
        f"tuned on {report.examples} examples of {report.data}, judged on {report.validation_examples} {source} "
        f"({report.device}, {report.seconds:.0f} s)",
        *([f"layers below {report.frozen} were left as they are"] if report.frozen else []),
        "",
        "\n\n".join(alone) or _history(report.history),
        "",
        table(["validation", "before", "after"], rows),
        "",
    ]
    if report.drift is not None:
        lines.append(merge_error_text(dict(report.drift)))
    return "\n".join([*lines, *_outcome(report)])


def _history(history: Sequence[Epoch]) -> str:
    rows = [
        [
            str(entry.epoch),
            "–" if entry.loss is None else f"{entry.loss:.4f}",
            f"{entry.nll:.4f}",
            f"{entry.rmse if entry.accuracy is None else entry.accuracy:.4f}",
        ]
        for entry in history
    ]
    quality = "RMSE" if history and history[0].accuracy is None else "accuracy"
    return table(["epoch", "loss", "validation NLL", quality], rows)


def _outcome(report: TuneReport) -> list[str]:
    """What stands where, and what follows."""
    again = [f"{name} does not hold any more; make it again: {command}" for name, command in report.dropped.items()]
    if not report.improved:
        return [f"no epoch was better than the weights as they were: {report.bundle} holds them unchanged", *again]
    kept = "the merged members" if report.members else f"the weights after epoch {report.best_epoch}"
    lines = [f"wrote {report.bundle}: {kept}; exported again: {', '.join(report.graphs) or 'no graph, there was none'}"]
    before, after = report.accuracy_before, report.accuracy_after
    if before is not None and after is not None and after < before:
        lines.append(
            f"accuracy fell by {100 * (before - after):.2f} points while NLL improved; "
            "judge on other data which counts: hydrant evaluate"
        )
    lines += again
    lines.append(
        f"{'temperature' if before is not None else 'intervals'}, thresholds and distance are gone; fit them again: "
        f"hydrant calibrate {report.bundle} --data FILE --fit FILE"
    )
    return lines
