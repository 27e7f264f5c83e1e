"""The ways to tune: jointly, as a BatchEnsemble, from teachers, or alone; weights equal in all are tuned as one."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..bundle.architecture import PARTS, part_of
from ..bundle.head_plan import HeadPlan
from ..bundle.progress_checkpoint import Checkpoint
from ..bundle.store import ARCHITECTURE, PLAN, PROCESSOR, WEIGHTS, Bundle
from ..data.batching import by_length
from ..fusion import FusedClassifier, TracedClassifier, measure_merge_error
from ..fusion.grouped import mean_of_members
from .distillation import Targets, distillation_loss
from .loop import Trained, measure, train
from .rank_one import draw, first_layer, is_factor, linear_maps, merged, with_factors
from .settings import BatchEnsemble, Epoch, Taught, best_epoch, derived_seed
from .taught_source import TaughtSource
from .teachers import Teacher
from .traced_student import TracedStudent
from .tuning_data import TuningData
from .tuning_state import State

log = logging.getLogger(__name__)
SCHEMA = 3  # of a checkpoint's files, and of the order of dropout draws
Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Job(TuningData):
    """The untuned ensemble, fused or traced, its tuning data, and the digests of both sources."""

    bundle: Bundle
    ensemble: Any
    digests: tuple[str, str]
    unseen: list[str]  # classes without a labelled example
    teachers: list[Teacher]

    def module(self, weights: Weights, plan: HeadPlan | None = None) -> FusedClassifier:
        """Return a module that takes over weights [G, …]."""
        return FusedClassifier(self.ensemble.architecture, plan or self.ensemble.plan, weights, self.ensemble.labels)

    def validation_metrics(self, module: FusedClassifier) -> dict[str, float]:
        """Return a module's metrics on the validation data; the module is on the CPU afterwards."""
        metrics = measure(module.to(self.accelerator.device), self.held_out, self.settings)
        module.cpu()
        return metrics

    def alone(self, member: int) -> Job:
        """Return the job of one member, with its own example order and dropout; the first member keeps the seed."""
        return replace(self, settings=replace(self.settings, seed=member_seed(self.settings.seed, member)))

    def checkpoint(self) -> Checkpoint:
        """Return the checkpoint that records the progress."""
        folder, used = self.settings.how.state, (WEIGHTS, PLAN, ARCHITECTURE)
        digests = self.bundle.digests()
        files = {name: digest for name, digest in digests.items() if name in used or name.startswith(f"{PROCESSOR}/")}
        chosen = {**self.settings.to_json(), "how": type(self.settings.how).__name__}
        teachers = {"teachers": [each.sha256 for each in self.teachers]} if self.teachers else {}
        facts = {**teachers, "schema": SCHEMA, "settings": chosen, "data": self.digests, "bundle": files}
        return Checkpoint(None if folder is None else Path(folder), facts, "tuning")


@dataclass(frozen=True)
class Outcome:
    """The result: ``weights`` if better, histories of ``members`` tuned alone, each member's ``own`` linear maps."""

    weights: Weights | None
    before: Epoch
    after: Epoch
    history: tuple[Epoch, ...] = ()
    members: tuple[tuple[Epoch, ...], ...] = ()
    drift: dict[str, Any] | None = None
    own: tuple[str, ...] = ()

    @property
    def epochs(self) -> int:
        """Number of epochs that ran; the largest of several histories."""
        return max(len(history) for history in (self.history, *self.members)) - 1


_STAY_ALIKE = (
    "all members of %s have the same heads and weights, and stay equal when they are %s; to make them disagree, tune "
    "with --batch-ensemble or --per-member --keep-separate all, or fuse by a plan with different heads"
)


def member_seed(seed: int, member: int) -> int:
    """Return the seed of one member tuned alone; the first keeps the given seed."""
    return derived_seed(seed, member) if member else seed


def tune_jointly(job: Job, checkpoint: Checkpoint) -> Outcome:
    """Tune all members at once; members of a traced model, which share all weights, also from teachers."""
    if isinstance(job.ensemble, TracedClassifier):
        module: Any = TracedStudent(job.ensemble)
    else:
        shared = shared_form(job.ensemble.state_dict())
        if job.ensemble.members > 1 and alike(shared):
            log.warning(_STAY_ALIKE, job.bundle.path, "tuned jointly")
        module = job.module(shared)
    with _with_teachers(job, checkpoint) as taught:
        done = train(taught, module, State(checkpoint, "all"))
    return Outcome(done.weights, done.history[0], done.best, done.history)


def tune_batch_ensemble(job: Job, how: BatchEnsemble, checkpoint: Checkpoint) -> Outcome:
    """Give each member its own factors, tune all at once, and multiply the factors into the weights."""
    module = job.module(shared_form(job.ensemble.state_dict()))
    factored = tuple(with_factors(module, first_layer(job.ensemble, how)))
    if how.factors_only:
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(is_factor(name))
    done = train(job, module, State(checkpoint, "all"), begin=partial(draw, module, how.deviation, job.settings.seed))
    weights = None if done.weights is None else merged(done.weights)
    return Outcome(weights, done.history[0], done.best, done.history, own=factored)


def tune_taught(job: Job, how: Taught, checkpoint: Checkpoint) -> Outcome:
    """Let members learn from their teachers, with linear maps of their own from a layer on."""
    ensemble = job.ensemble
    shared = shared_form(ensemble.state_dict())
    own: list[str] = []
    if how.gives_own(ensemble.members):
        own = [name for name, *_ in linear_maps(job.module(shared), first_layer(ensemble, how))]
    shared |= {f"{name}.weight": _each(shared[f"{name}.weight"], ensemble.members) for name in own}
    with _with_teachers(job, checkpoint) as taught:
        done = train(taught, job.module(shared), State(checkpoint, "all"))
    weights = done.weights
    if weights is not None:  # a bundle stores the bias beside the weight, in as many groups
        biases = {name: f"{name}.bias" for name in own if f"{name}.bias" in weights}
        weights = weights | {bias: _each(weights[bias], ensemble.members) for bias in biases.values()}
    return Outcome(weights, done.history[0], done.best, done.history, own=tuple(own))


@contextmanager
def _with_teachers(job: Job, checkpoint: Checkpoint) -> Iterator[Job]:
    """Yield the job with the teachers' outputs as targets; itself without teachers."""
    how = job.settings.how
    if not isinstance(how, Taught):
        yield job
        return
    if how.teacher_outputs is None and checkpoint.folder is not None:
        checkpoint.create()
    with ExitStack() as ends:
        place = how.teacher_outputs or checkpoint.folder or ends.enter_context(TemporaryDirectory(prefix="hydrant."))
        kind, mean = _targets(job), how.mean_of_teachers or job.ensemble.members == 1
        source = TaughtSource(job, how, job.teachers, kind, mean, job.digests[0], Path(place) / "teachers")
        loss = partial(distillation_loss, kind=kind, softening=how.softening)
        yield replace(job, training=source, loss=loss)


def _each(tensor: Tensor, members: int) -> Tensor:
    """Copy a weight [G, …] for each member, [M, …]."""
    return tensor.expand(members, *tensor.shape[1:]).clone()


def _targets(job: Job) -> Targets:
    """Return the kind of the task's targets."""
    task, labels = job.ensemble.architecture.task, job.training.labels
    if task == "score":
        return "labels" if labels.dtype == np.int64 else "scores"
    return "labels" if task == "multi_label" else "classes"


def tune_alone(job: Job, separate: frozenset[str], checkpoint: Checkpoint) -> Outcome:
    """Tune each member alone, then merge the shared parts."""
    shared = shared_form(job.ensemble.state_dict())
    plan = job.ensemble.plan
    if job.ensemble.members > 1 and alike(shared) and not separate:
        log.warning(_STAY_ALIKE, job.bundle.path, "merged")
    tuned: list[Weights] = []
    done: list[Trained] = []
    for member, keep in enumerate(plan.members):
        module = job.module(member_form(shared, member), replace(plan, members=(keep,)))
        title = f"member {member + 1} of {len(plan.members)}, "
        done.append(train(job.alone(member), module, State(checkpoint, f"member {member}"), title))
        tuned.append(done[-1].weights or member_form(shared, member))
    weights = merge(tuned, shared, separate)
    averaged, unmerged = job.module(_copy(weights)), job.module(merge(tuned, shared, frozenset(PARTS)))
    before = Epoch(0, None, **job.validation_metrics(job.module(_copy(shared))))
    after = Epoch(max(best_epoch(each.history) for each in done), None, **job.validation_metrics(averaged))
    batches = map(job.held_out.batch, by_length(job.held_out.lengths, job.settings.batch_size))
    inputs = f"{len(job.held_out)} inputs of {job.held_out.title}"
    drift = {"inputs": inputs, **measure_merge_error(averaged.eval(), unmerged.eval(), batches).to_json()}
    histories = tuple(each.history for each in done)
    if after.nll < before.nll:
        return Outcome(weights, before, after, members=histories, drift=drift)
    return Outcome(None, before, before, members=histories, drift=drift)


def _copy(weights: Weights) -> Weights:
    return {name: tensor.clone() for name, tensor in weights.items()}


def shared_form(weights: Mapping[str, Tensor]) -> Weights:
    """Copy fused weights [G, …]; G becomes 1 if all groups are equal, and those of a linear map's bias as well."""
    equal = {name: bool((tensor == tensor[:1]).all()) for name, tensor in weights.items()}
    alike = {name for name in weights if equal[name] and equal.get(name.removesuffix("weight") + "bias", True)}
    return {name: (tensor[:1] if name in alike else tensor).clone() for name, tensor in weights.items()}


def member_form(weights: Mapping[str, Tensor], member: int) -> Weights:
    """Copy one member's weights, each [1, …]."""
    return {name: tensor[[member if len(tensor) > 1 else 0]] for name, tensor in weights.items()}


def merge(members: Sequence[Mapping[str, Tensor]], shared: Mapping[str, Tensor], separate: frozenset[str]) -> Weights:
    """Merge weights [1, …] of members that were tuned independently: shared parts are averaged, as by ``fuse``."""
    merged = {}
    for name, before in shared.items():
        stacked = torch.cat([member[name] for member in members])  # [M, …]
        part = part_of(name)
        stacks = before.shape[0] > 1 or part in separate or (bool(separate) and part == "attention")
        merged[name] = stacked if stacks else mean_of_members(stacked)
    return merged


def alike(shared: Mapping[str, Tensor]) -> bool:
    """Return True if all members have equal weights, given in :func:`shared_form`."""
    return all(tensor.shape[0] == 1 for tensor in shared.values())


def stored_form(weights: Mapping[str, Tensor], before: Mapping[str, Tensor]) -> Weights:
    """Expand weights to the group axis that a bundle stores: at least that of ``before``."""
    groups = {name: max(len(tensor), len(before[name])) for name, tensor in weights.items()}
    return {name: tensor.expand(groups[name], *tensor.shape[1:]).contiguous() for name, tensor in weights.items()}
