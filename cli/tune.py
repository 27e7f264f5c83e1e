"""``hydrant tune``: train a bundle's members on labelled data."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from ..errors import InputError
from ..tuning import tune
from ..tuning.settings import BatchEnsemble, Epoch, Jointly, PerMember, Taught, TuneReport
from . import shared
from .command_options import Command, call, parts, positive
from .fuse import merge_error_text
from .terminal import show, table

EXAMPLE = "hydrant tune out/ --data train.csv --validation validation.csv -o tuned/"


def arguments(command: Command) -> None:
    """Define the options."""
    by_labels = (Jointly, PerMember, BatchEnsemble)
    every = (*by_labels, Taught)
    shared.bundle(command, tune)
    command.take(tune, "data", metavar="FILE")
    command.heading("common")
    command.take(tune, "validation", metavar="FILE")
    command.take(tune, "output", "-o", "--output", metavar="BUNDLE")
    command.take(tune, "force")
    command.take(every, "epochs", type=positive, metavar="N", also=" (default: 5, with --teachers 4)")
    command.take(every, "learning_rate", metavar="RATE", also=" (default: 5e-05, with --teachers 0.0002)")
    command.take(Taught, "teachers", nargs="+", action="extend", metavar="MODEL")
    command.take(Taught, "unlabelled", metavar="FILE", also="; with --teachers")
    command.heading("advanced")
    shared.data_options(command)
    command.take(by_labels, "unfreeze")
    command.take(every, "freeze", metavar="LAYERS", also="; with --teachers 0")
    command.take(every, "mixed_precision")
    with command.one_of():
        command.add("--per-member", action="store_true",
                    help="Tune each member independently, then merge them and report the merge error")  # fmt: skip
        command.add("--batch-ensemble", action="store_true",
                    help="Give each member its own rank-one factors, and tune all members jointly")  # fmt: skip
    command.take(PerMember, "keep_separate", type=parts, action="store", metavar="PARTS")
    command.take((BatchEnsemble, Taught), "fork_from", metavar="LAYER", also="; with --teachers own linear maps")


def run(options: argparse.Namespace) -> int:
    """Tune and print the improvement."""
    if not options.per_member and hasattr(options, "keep_separate"):
        raise InputError("--keep-separate needs --per-member; members tuned jointly share these parts")
    taught = hasattr(options, "teachers")
    if hasattr(options, "fork_from") and not (options.batch_ensemble or taught):
        raise InputError("--fork-from needs --batch-ensemble or --teachers; add one, or omit --fork-from")
    if hasattr(options, "unlabelled") and not taught:
        raise InputError("--unlabelled needs --teachers; add them, or omit --unlabelled")
    if taught and (options.per_member or options.batch_ensemble or hasattr(options, "unfreeze")):
        raise InputError("--teachers excludes --per-member, --batch-ensemble and --unfreeze; omit them")
    place = Path(getattr(options, "output", None) or options.bundle).resolve()
    state = place.with_name(f"{place.name}.tune.part")
    kind = PerMember if options.per_member else BatchEnsemble if options.batch_ensemble else Jointly
    kind = Taught if taught else kind
    how = call(kind, options, state=state)
    with shared.resumable(state):
        report = call(tune, options, how=how, reading=shared.read_options(options))
    show(options, report.to_json(), tune_text(report))
    return 0


def tune_text(report: TuneReport) -> str:
    """Format the data, every epoch, the metrics before and after, and the next command."""
    rows = []
    for name, title in {"nll": "NLL", "accuracy": "accuracy", "ece": "ECE", "rmse": "RMSE"}.items():
        pair = [getattr(report, f"{name}_{when}") for when in ("before", "after")]
        rows += [] if None in pair else [[title, *(f"{value:.4f}" for value in pair)]]
    alone = [f"member {member}\n{_history(each)}" for member, each in enumerate(report.members, start=1)]
    source = "held-out examples, one in ten" if report.held_out else f"examples of {report.validation}"
    more = f" and {report.unlabelled} unlabelled inputs" if report.unlabelled else ""
    data = f"{report.examples} examples of {report.data}{more}, validated on {report.validation_examples} {source}"
    lines = [f"tuned on {data} ({report.device}, {report.seconds:.0f} s)"]
    lines += [f"layers below {report.frozen} were not tuned"] if report.frozen else []
    lines += ["", "\n\n".join(alone) or _history(report.history)]
    lines += ["", table(["validation", "before", "after"], rows), ""]
    if report.drift is not None:
        lines.append(merge_error_text(dict(report.drift)))
    return "\n".join([*lines, *_outcome(report)])


def _history(history: Sequence[Epoch]) -> str:
    rows = []
    for entry in history:
        loss, value = entry.loss, entry.rmse if entry.accuracy is None else entry.accuracy
        rows.append([str(entry.epoch), "–" if loss is None else f"{loss:.4f}", f"{entry.nll:.4f}", f"{value:.4f}"])
    quality = "RMSE" if history and history[0].accuracy is None else "accuracy"
    return table(["epoch", "loss", "validation NLL", quality], rows)


def _outcome(report: TuneReport) -> list[str]:
    """Describe the written files and the next command."""
    again = [f"{name} is outdated; recreate it: {command}" for name, command in report.dropped.items()]
    if not report.improved:
        return [f"no epoch improved the model: {report.bundle} holds the previous weights", *again]
    weights = "the merged members" if report.members else f"the weights after epoch {report.best_epoch}"
    lines = [f"wrote {report.bundle}: {weights}; exported again: {', '.join(report.graphs) or 'no graphs'}"]
    before, after = report.accuracy_before, report.accuracy_after
    if before is not None and after is not None and after < before:
        fell = f"accuracy fell by {100 * (before - after):.2f} points while NLL improved"
        lines.append(f"{fell}; compare both on test data: hydrant evaluate")
    lines += again
    removed = f"{'intervals' if before is None else 'temperature'}, thresholds and distance were removed"
    return [*lines, f"{removed}; refit them: hydrant calibrate {report.bundle} --data FILE --fit FILE"]
