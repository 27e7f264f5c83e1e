"""``hydrant.tune``: a bundle and data → a bundle whose members were tuned."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from ..bundle.store import Bundle, onnx_name, resolve
from ..data.examples import read_examples
from ..errors import InputError, listing
from ..fusion import FusedClassifier, load_ensemble
from ..fusion.ensemble import check_parts
from ..progress import Progress, no_progress
from .examples import Source, held_out_share
from .job import Job, Outcome, tune_alone, tune_jointly
from .loop import open_accelerator
from .report import TuneReport
from .settings import Settings
from .weights import Weights, stored_form
from .writing import Graphs, check_output, copy_bundle, write_tuned

log = logging.getLogger(__name__)


def tune(
    bundle: Bundle | str | Path,
    data: Any,
    *,
    validation: Any = None,
    output: str | Path | None = None,
    epochs: int = 5,
    batch_size: int = 32,
    learning_rate: float = 5e-5,
    weight_decay: float = 0.01,
    warmup: float = 0.1,
    patience: int = 2,
    per_member: bool = False,
    keep_separate: Iterable[str] = (),
    device: str = "auto",
    seed: int = 0,
    text_column: str = "text",
    text_pair_column: str | None = None,
    label_column: str = "label",
    force: bool = False,
    state: str | Path | None = None,
    progress: Progress = no_progress,
) -> TuneReport:
    """Fine-tune the members of a bundle on labelled data.

    All members are tuned jointly in the fused model: the loss is the mean of their cross-entropies, so that what
    they share (the MLP among it) stays one and nothing drifts apart. Stored weights that are equal in all members
    before stay so (query, key and value are stored as one): a shared trunk goes on running once. Dropout has the
    rates of the checkpoint's configuration; AdamW with linear warm-up and decay; gradients of a norm above 1 are
    scaled down.

    After each epoch the NLL of the averaged probabilities is measured on the validation data, at temperature 1. The
    weights of the best epoch are kept; where none is better than before tuning, the bundle stays as it is.

    Args:
        bundle: the bundle, or its path.
        data: labelled data (what ``calib.data.read_examples`` takes).
        validation: likewise, to judge on; ``None`` holds one in ten examples of each class out of ``data``.
        output: folder of the tuned bundle; ``None`` replaces the bundle.
        epochs: passes over the data, at most.
        batch_size: examples per update.
        learning_rate: the highest one, reached after the warm-up.
        weight_decay: of everything but biases and LayerNorms.
        warmup: share of all updates over which the learning rate rises.
        patience: epochs without a better validation NLL after which tuning stops.
        per_member: tune each pruned member alone, then merge them: own attention heads stay, what they shared is
            averaged, and the drift is reported. The merged ensemble is kept if it is better than the bundle.
        keep_separate: with ``per_member``, parts that are not averaged, as in ``hydrant.fuse``.
        device: ``"auto"`` (a GPU if accelerate finds one) or ``"cpu"``.
        seed: of the held-out share, the order of the examples and dropout. On a CPU the same seed gives the same
            weights.
        text_column, text_pair_column, label_column: of tabular data; the second for pairs of texts.
        force: replace another bundle that stands at ``output``.
        state: a file that keeps how far tuning has come. If it exists, tuning goes on where it was interrupted, to
            the same weights; when the result is written it is deleted.
        progress: display.

    Returns:
        What was done. The tuned bundle is uncalibrated; its FP32 and BF16 graphs are exported again, its other
        graphs and its engines are not.

    Raises:
        InputError: unusable data, options or state, or a loss that is not finite; the bundle is as it was.
        BundleError: the bundle is missing, altered or malformed.
        MissingExtraError: accelerate is not installed.
    """
    settings = Settings(epochs, batch_size, learning_rate, weight_decay, warmup, patience, seed, device)
    settings.check()
    separate = check_parts(keep_separate)
    if separate and not per_member:
        raise InputError("keep_separate is given without per_member; members tuned jointly share these parts")
    accelerator = open_accelerator(device)
    bundle = resolve(bundle)
    target, replaces = check_output(bundle, output, force)
    Graphs.of(bundle, target)  # what could not be carried over is refused now
    _check_separate(bundle, separate)
    columns: dict[str, Any] = {
        "text_column": text_column,
        "text_pair_column": text_pair_column,
        "label_column": label_column,
    }
    job = _job(bundle, data, validation, columns, settings, accelerator, progress)
    place = None if state is None else Path(state)
    if separate:  # what is separate already stays so
        separate |= set(job.ensemble.provenance.get("separate", []))
    done = tune_alone(job, separate, place) if per_member else tune_jointly(job, place)
    graphs = None
    if done.weights is not None:
        tuned = _assembled(job, done.weights, separate)
        graphs = write_tuned(bundle, tuned, target, replaces, _provenance(job, done))
    elif target != bundle.path.resolve():
        copy_bundle(bundle, target, replaces)
    for finished in done.states:
        finished.remove()
    return _report(job, done, target if output is not None else bundle.path, graphs, held_out=validation is None)


def _check_separate(bundle: Bundle, separate: frozenset[str]) -> None:
    """Refuse to part members that share a weight which their updates are added to."""
    forms = bundle.manifest.get("fusion", {}).get("adapted", {})
    kept = [name for name, form in forms.items() if form["low_rank"]]
    if separate and kept:
        raise InputError(
            f"bundle {bundle.path} keeps updates of low rank ({listing(kept, 3)}), whose weight all members share, so "
            "they cannot part; leave keep_separate (--keep-separate) out, or fuse again with --low-rank merge"
        )


def _job(
    bundle: Bundle,
    data: Any,
    validation: Any,
    columns: dict[str, Any],
    settings: Settings,
    accelerator: Any,
    progress: Progress,
) -> Job:
    """Everything ready, and every input found readable, before the first update."""
    given = [Path(name).resolve() for name in (data, validation) if isinstance(name, str | Path)]
    if len(given) == 2 and given[0] == given[1]:
        raise InputError(
            f"{data} is given both as data and as validation; leave validation (--validation) out to hold a share out"
        )
    ensemble = load_ensemble(bundle)

    def read(given: Any) -> Source:
        found = read_examples(given, bundle.labels, **columns)
        load = partial(bundle.processor_for, "read data to tune on")
        return Source(found, found.processor(ensemble.architecture, load), ensemble.architecture)

    known = read(data)
    if validation is None:
        chosen = held_out_share(known.labels, settings.seed, known.name)
        known, judges = known.subset(~chosen), known.subset(chosen)
    else:
        judges = read(validation)
    digests = known.digest(progress), judges.digest(progress)
    unseen = _unseen(bundle, known)
    if unseen:
        pronoun = "it" if len(unseen) == 1 else "them"
        log.warning("%s has no example of %s; the members may unlearn %s", known.name, listing(unseen), pronoun)
    return Job(bundle, ensemble, known, judges, digests, settings, accelerator, progress)


def _assembled(job: Job, weights: Weights, separate: frozenset[str]) -> FusedClassifier:
    """The tuned module as a bundle stores it."""
    module = job.module(stored_form(weights, job.ensemble.state_dict()))
    facts = {key: value for key, value in job.ensemble.provenance.items() if key not in ("drift", "tuned")}
    if separate:  # as M checkpoints, of which these parts were not averaged
        facts["checkpoints"] = job.ensemble.members
        facts["separate"] = sorted(separate)
        facts.pop("adapted", None)  # no weight of theirs is a shared one with an update any more
    module.provenance = facts
    return module


def _provenance(job: Job, done: Outcome) -> dict[str, Any]:
    """What the manifest tells about the tuning."""
    facts = {
        "data": job.known.title,
        "examples": len(job.known),
        "data_sha256": job.digests[0],
        "validation": job.held_out.title,
        "validation_examples": len(job.held_out),
        "validation_sha256": job.digests[1],
        "per_member": bool(done.members),
        "epochs": _epochs(done),
        "best_epoch": done.after.epoch,
        "nll": [done.before.nll, done.after.nll],
        "accuracy": [done.before.accuracy, done.after.accuracy],
        "settings": job.settings.to_json(),
    }
    return {"tuned": facts, **({} if done.drift is None else {"drift": done.drift})}


def _report(job: Job, done: Outcome, path: Path, graphs: Graphs | None, held_out: bool) -> TuneReport:
    before, after = done.before, done.after
    return TuneReport(
        bundle=path,
        data=job.known.title,
        examples=len(job.known),
        validation=job.held_out.title,
        validation_examples=len(job.held_out),
        held_out=held_out,
        device=str(job.accelerator.device),
        epochs=_epochs(done),
        best_epoch=after.epoch,
        nll_before=before.nll,
        nll_after=after.nll,
        accuracy_before=before.accuracy,
        accuracy_after=after.accuracy,
        ece_before=before.ece,
        ece_after=after.ece,
        history=done.history,
        members=done.members,
        drift=done.drift,
        unseen=tuple(_unseen(job.bundle, job.known)),
        graphs=tuple(map(onnx_name, graphs.again)) if graphs else (),
        dropped=graphs.dropped if graphs else {},
        seconds=done.seconds,
    )


def _epochs(done: Outcome) -> int:
    """Epochs that ran; of several histories the most."""
    return max(len(history) for history in (done.history, *done.members)) - 1


def _unseen(bundle: Bundle, source: Source) -> list[str]:
    """Classes without an example."""
    seen = set(source.labels.tolist())
    return [name for index, name in enumerate(bundle.labels) if index not in seen]
