"""The stages of a tuning: read the data, tune, assemble and write the bundle, report."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..bundle.architecture import check_parts
from ..bundle.data_overlap import warn_of_form
from ..bundle.staging import folders_above
from ..bundle.store import Bundle, onnx_name
from ..data.data_options import DataOptions
from ..data.examples import Examples, check_alike, check_folder, read_examples
from ..data.fingerprints import Fingerprint
from ..data.raw_inputs import is_pair
from ..errors import InputError, cut, listing
from ..fusion import FusedClassifier, TracedClassifier, load_reference
from ..progress import Progress
from ..tasks.regression import loss_of
from .job import Job, Outcome, Weights, stored_form, tune_alone, tune_batch_ensemble, tune_jointly, tune_taught
from .loop import open_accelerator
from .rank_one import adapter_metadata, first_layer
from .settings import BatchEnsemble, Jointly, PerMember, Settings, Taught, TuneReport
from .teachers import Student, checked_teachers
from .traced_student import check_options, tuned_classifier
from .tuned_bundle import Graphs, check_beside, check_output, copy_bundle, write_tuned
from .tuning_data import Source, held_out_share

log = logging.getLogger(__name__)


def tuned(bundle: Bundle, data: Any, validation: Any, how: Jointly, output: str | Path | None, force: bool,
          reading: DataOptions, seed: int, progress: Progress) -> TuneReport:  # fmt: skip
    """Tune a bundle; see :func:`hydrant.tune`."""
    begun = time.monotonic()
    traced = not bundle.any_architecture().is_declared
    if traced:
        check_options(bundle, how)
    settings = Settings(how, reading.batch_size, seed)
    separate = check_parts(how.keep_separate) if isinstance(how, PerMember) else frozenset[str]()
    target, replaces = check_output(bundle, output, force)
    _check_separate(bundle, separate)
    with folders_above(target):
        check_beside(target)
        Graphs.of(bundle, target)  # raises now if a graph cannot be exported again
        job = _job(bundle, data, validation, reading, settings, progress)
        checkpoint = job.checkpoint()
        if separate:  # parts that are already separate stay so
            separate |= set(job.ensemble.provenance.get("separate", []))
        match how:
            case PerMember():
                done = tune_alone(job, separate, checkpoint)
            case BatchEnsemble():
                done = tune_batch_ensemble(job, how, checkpoint)
            case Taught() if not traced:
                done = tune_taught(job, how, checkpoint)
            case _:
                done = tune_jointly(job, checkpoint)
        graphs = None
        dropped: Mapping[str, str] = {}
        if done.weights is not None:
            ensemble = _assembled(job, done.weights, separate, list(done.own))
            graphs = write_tuned(bundle, ensemble, target, replaces, _provenance(job, done), checkpoint)
            dropped = graphs.dropped
        elif target != bundle.path.resolve():
            dropped = copy_bundle(bundle, target, replaces)
    checkpoint.remove()
    place = target if output is not None else bundle.path
    seconds = time.monotonic() - begun
    return _report(job, done, place, graphs, dropped, validation is None, seconds)


def _check_separate(bundle: Bundle, separate: frozenset[str]) -> None:
    """Raise if parts should separate although members share a weight with low-rank updates."""
    updated = [name for name, form in bundle.manifest.get("fusion", {}).get("adapted", {}).items() if form["low_rank"]]
    if separate and updated:
        wrong = f"bundle {bundle.path} has low-rank updates ({listing(updated, 3)})"
        raise InputError(f"{wrong}; omit keep_separate (--keep-separate), or fuse again with --low-rank merge")


def _job(
    bundle: Bundle, data: Any, validation: Any, reading: DataOptions, settings: Settings, progress: Progress
) -> Job:
    """Prepare everything, and read every input once, before the first update."""
    accelerator = open_accelerator(settings.how)
    sources = validation, data, getattr(settings.how, "unlabelled", None)
    chooses, *learns = (Path(each).resolve() if isinstance(each, str | Path) else None for each in sources)
    if chooses is not None and chooses in learns:
        raise InputError(f"validation {validation} is also learnt from; use other data, or omit --validation")
    ensemble: Any = load_reference(bundle)
    traced = isinstance(ensemble, TracedClassifier)
    settings = replace(settings, trunk=0 if traced else _left_alone(ensemble, settings.how))

    def read(source: Any, limit: int | None = None) -> Source:
        task = ensemble.architecture.task
        check_folder(source, ensemble.architecture.modality)
        examples = read_examples(source, bundle.labels, columns=reading, limit=limit, seed=settings.seed, task=task)
        load = partial(bundle.processor_for, "read training data")
        prepared = Source(examples, examples.processor(ensemble.architecture, load), ensemble.architecture)
        if task == "score":  # classes 0 and 1 for relevance, numbers for a regression
            loss = loss_of(prepared.labels, ensemble.architecture.score_activation, prepared.name)
            prepared.labels = prepared.labels.astype(np.int64 if loss == "cross-entropy" else np.float64)
        return prepared

    training = read(data, reading.limit())
    if validation is None:
        chosen = held_out_share(training.labels, settings.seed, training.name)
        training, held_out = training.subset(~chosen), training.subset(chosen)
    else:
        held_out = read(validation)
        _check_alike(training, held_out)
    unseen = _unseen(bundle, training)
    teachers = []
    if isinstance(settings.how, Taught):
        if ensemble.members > 1 and not traced:
            first_layer(ensemble, settings.how)  # raises if members cannot have own weights
        if settings.how.unlabelled is not None:
            training = _with_unlabelled(training, settings.how, bundle, ensemble, reading)
        ready = Examples(training.inputs, None, training.name).ready
        processor = None if ready else bundle.processor_for("compare it with the teachers'")
        student = Student(bundle.labels, ensemble.architecture, processor)
        teachers = checked_teachers(settings.how.teachers, ensemble.members, student, training.inputs)
    digests = training.digest(progress), held_out.digest(progress)
    if rate := ensemble.provenance.get("drop_path_rate"):
        log.warning("the checkpoint has drop_path_rate = %s; hydrant tunes without this stochastic depth", cut(rate))
    warn_of_form(bundle, "tuning", training.name, training.fingerprint())
    if unseen and not teachers:
        log.warning("%s has no example of %s; the members may unlearn it", training.name, listing(unseen))
    return Job(training, held_out, settings, accelerator, progress, bundle, ensemble, digests, unseen, teachers)


def _with_unlabelled(
    training: Source, how: Taught, bundle: Bundle, ensemble: FusedClassifier, reading: DataOptions
) -> Source:
    """Return the training examples with further inputs to learn from."""
    check_folder(how.unlabelled, ensemble.architecture.modality)
    more = read_examples(how.unlabelled, None, columns=reading, role="unlabelled")
    check_alike(Examples(training.inputs, None, training.name), more)
    if any(map(is_pair, more.inputs)) != any(map(is_pair, training.inputs)):
        raise InputError(f"only one of {training.name} and unlabelled {more.source} holds pairs; expected both or none")
    return training.extended(
        more.inputs, more.processor(ensemble.architecture, partial(bundle.processor_for, "read unlabelled data"))
    )


def _left_alone(ensemble: FusedClassifier, how: Jointly) -> int:
    """Return the number of unchanged layers, counted from the input."""
    fork = ensemble.plan.fork
    if isinstance(how, BatchEnsemble) or (isinstance(how, Taught) and how.gives_own(ensemble.members)):
        fork = min(fork, first_layer(ensemble, how))
    elif {"batch_ensemble", "own_weights"} & {*ensemble.provenance}:  # members with the same heads also differ
        fork = min(fork, ensemble.trunk)
    shared = min(fork, ensemble.trunk)
    if how.freeze is None:
        return shared if fork < len(ensemble.layers) and not how.unfreeze else 0
    if how.freeze > shared:
        wrong = f"freeze (--freeze) is {how.freeze}"
        raise InputError(f"{wrong}; expected at most {shared}, the layers of the shared trunk")
    return how.freeze


def _check_alike(training: Source, held_out: Source) -> None:
    if training.labels.dtype != held_out.labels.dtype:
        relevance, numbers = (training, held_out) if training.labels.dtype == np.int64 else (held_out, training)
        wrong = f"the labels of {relevance.name} are all 0 or 1, but {numbers.name} has other numbers"
        raise InputError(f"{wrong}; expected labels of one kind in both")


def _assembled(job: Job, weights: Weights, separate: frozenset[str], own: list[str]) -> Any:
    """Return the tuned module in the form that a bundle stores."""
    if isinstance(job.ensemble, TracedClassifier):
        return tuned_classifier(job.ensemble, weights)
    module = job.module(stored_form(weights, job.ensemble.state_dict()))
    facts = {key: value for key, value in job.ensemble.provenance.items() if key not in ("drift", "tuned")}
    if separate:  # like M checkpoints without averaging of these parts
        facts["checkpoints"] = job.ensemble.members
        facts["separate"] = sorted(separate)
        facts.pop("adapted", None)  # no shared weight with an update is left
    how = job.settings.how
    if own and isinstance(how, BatchEnsemble | Taught):
        kind = "batch_ensemble" if isinstance(how, BatchEnsemble) else "own_weights"
        facts |= {**adapter_metadata(own), kind: {"fork_from": first_layer(job.ensemble, how)}}
    module.provenance = facts
    return module


def _provenance(job: Job, done: Outcome) -> dict[str, Any]:
    """Return the manifest's entries about the tuning; fingerprints also of the data of an earlier one."""
    stored = job.ensemble.provenance.get("tuned", {}).get("fingerprints", {})
    fingerprints = {}
    for name, source in (("data", job.training), ("validation", job.held_out)):
        now, before = source.fingerprint(), Fingerprint.from_json(stored.get(name))
        if now is not None:
            fingerprints[name] = (now if before is None else now | before).to_json()
    names = ["nll", "accuracy", "temperature", *(["rmse"] if done.before.rmse is not None else [])]
    facts = {
        "data": job.training.title, "examples": len(job.training) - job.training.unlabelled,
        "data_sha256": job.digests[0],
        "validation": job.held_out.title, "validation_examples": len(job.held_out),
        "validation_sha256": job.digests[1], "fingerprints": fingerprints, "per_member": bool(done.members),
        "epochs": done.epochs, "best_epoch": done.after.epoch,
        **{name: [getattr(each, name) for each in (done.before, done.after)] for name in names},
        "settings": job.settings.to_json(),
        **({"teachers": [{"name": each.name, "sha256": each.sha256} for each in job.teachers],
            "unlabelled": job.training.unlabelled} if job.teachers else {}),
    }  # fmt: skip
    return {"tuned": facts, **({} if done.drift is None else {"drift": done.drift})}


def _report(job: Job, done: Outcome, path: Path, graphs: Graphs | None, dropped: Mapping[str, str], held_out: bool,
            seconds: float) -> TuneReport:  # fmt: skip
    names = ("nll", "accuracy", "ece", "rmse")
    metrics: dict[str, Any] = {f"{name}_before": getattr(done.before, name) for name in names}
    metrics |= {f"{name}_after": getattr(done.after, name) for name in names}
    return TuneReport(
        bundle=path, data=job.training.title, examples=len(job.training) - job.training.unlabelled,
        unlabelled=job.training.unlabelled, validation=job.held_out.title, validation_examples=len(job.held_out),
        held_out=held_out, unseen=tuple(job.unseen),
        device=str(job.accelerator.device), epochs=done.epochs, best_epoch=done.after.epoch, seconds=seconds,
        history=done.history, members=done.members, drift=done.drift, **metrics, frozen=job.settings.trunk,
        graphs=tuple(map(onnx_name, graphs.again)) if graphs else (), dropped=dropped,
    )  # fmt: skip


def _unseen(bundle: Bundle, source: Source) -> list[str]:
    """Return classes or labels without an example; empty for a score."""
    if source.labels.dtype == np.bool_:
        having = np.asarray(source.labels.any(axis=0))
    elif source.labels.dtype == np.int64 and len(bundle.labels) > 1:
        having = np.isin(np.arange(len(bundle.labels)), source.labels)
    else:
        return []
    return [name for name, has_example in zip(bundle.labels, having, strict=True) if not has_example]
