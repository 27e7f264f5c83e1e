"""The ways to tune: all members jointly in the fused model, as a BatchEnsemble, or each alone and then merged.

Weights that are equal in all members are tuned as one and copied out at the end, so that the shared trunk stays one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..bundle.architecture import PARTS, part_of
from ..bundle.head_plan import HeadPlan
from ..bundle.progress_checkpoint import Checkpoint
from ..bundle.store import ARCHITECTURE, PLAN, PROCESSOR, WEIGHTS, Bundle
from ..data.batching import by_length
from ..fusion import FusedClassifier, measure_merge_error
from ..fusion.grouped import mean_of_members
from .loop import Trained, measure, train
from .rank_one import draw, first_layer, is_factor, merged, with_factors
from .settings import BatchEnsemble, Epoch, best_epoch
from .tuning_data import Given
from .tuning_state import State

log = logging.getLogger(__name__)


SCHEMA = 3  # of a checkpoint's files, and of the order in which dropout draws

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Job(Given):
    """The untuned ensemble, and what it is tuned on, with the digests of the data."""

    bundle: Bundle
    ensemble: FusedClassifier
    digests: tuple[str, str]

    def module(self, weights: Weights, plan: HeadPlan | None = None) -> FusedClassifier:
        """A module of weights [G, …], which it takes over."""
        return FusedClassifier(self.ensemble.architecture, plan or self.ensemble.plan, weights, self.ensemble.labels)

    def figures(self, module: FusedClassifier) -> dict[str, float]:
        """Quality on the validation data, on the CPU afterwards."""
        found = measure(module.to(self.accelerator.device), self.held_out, self.settings)
        module.cpu()
        return found

    def alone(self, member: int) -> Job:
        """The job of one member, with an order of examples and dropout of its own; the first has those of a model."""
        return replace(self, settings=replace(self.settings, seed=member_seed(self.settings.seed, member)))

    def checkpoint(self) -> Checkpoint:
        """Where it keeps how far it has come."""
        folder, used = self.settings.how.state, (WEIGHTS, PLAN, ARCHITECTURE)
        digests = self.bundle.digests()
        files = {name: digest for name, digest in digests.items() if name in used or name.startswith(f"{PROCESSOR}/")}
        facts = {
            "schema": SCHEMA,
            "settings": {**self.settings.to_json(), "how": type(self.settings.how).__name__},
            "data": self.digests,
            "bundle": files,
        }
        return Checkpoint(None if folder is None else Path(folder), facts, "tuning")


@dataclass(frozen=True)
class Outcome:
    """The result: ``weights`` if better, histories of ``members`` tuned alone, modules ``apart`` by factors."""

    weights: Weights | None
    before: Epoch
    after: Epoch
    seconds: float
    history: tuple[Epoch, ...] = ()
    members: tuple[tuple[Epoch, ...], ...] = ()
    drift: dict[str, Any] | None = None
    apart: tuple[str, ...] = ()

    @property
    def epochs(self) -> int:
        """Epochs that ran; of several histories the most."""
        return max(len(history) for history in (self.history, *self.members)) - 1


_STAY_ALIKE = (
    "all members of %s have the same heads and weights, and stay alike when they are %s; to make them disagree tune "
    "with --batch-ensemble, or --per-member --keep-separate all, or fuse by a plan of different heads"
)


def member_seed(seed: int, member: int) -> int:
    """The seed of one member tuned alone; the first has that of the tuning."""
    return seed if member == 0 else int(np.random.SeedSequence([seed, member]).generate_state(1, np.uint64)[0] >> 1)


def tune_jointly(job: Job, checkpoint: Checkpoint) -> Outcome:
    """Tune all members at once."""
    shared = shared_form(job.ensemble.state_dict())
    if job.ensemble.members > 1 and alike(shared):
        log.warning(_STAY_ALIKE, job.bundle.path, "tuned jointly")
    done = train(job, job.module(shared), State(checkpoint, "all"))
    return Outcome(done.weights, done.history[0], done.best, done.seconds, done.history)


def tune_batch_ensemble(job: Job, how: BatchEnsemble, checkpoint: Checkpoint) -> Outcome:
    """Tell the members apart by factors, tune all at once, and multiply the factors into the weights."""
    module = job.module(shared_form(job.ensemble.state_dict()))
    apart = tuple(with_factors(module, first_layer(job.ensemble, how)))
    if how.factors_only:
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(is_factor(name))
    begin = partial(draw, module, how.deviation, job.settings.seed)
    done = train(job, module, State(checkpoint, "all"), begin=begin)
    weights = None if done.weights is None else merged(done.weights)
    return Outcome(weights, done.history[0], done.best, done.seconds, done.history, apart=apart)


def tune_alone(job: Job, separate: frozenset[str], checkpoint: Checkpoint) -> Outcome:
    """Tune each member alone, then merge what they share."""
    shared = shared_form(job.ensemble.state_dict())
    plan = job.ensemble.plan
    if job.ensemble.members > 1 and alike(shared) and not separate:
        log.warning(_STAY_ALIKE, job.bundle.path, "merged")
    tuned: list[Weights] = []
    done: list[Trained] = []
    for member, keep in enumerate(plan.members):
        module = job.module(
            member_form(shared, member), HeadPlan(plan.family, plan.layers, plan.heads, (keep,), plan.method)
        )
        title = f"member {member + 1} of {len(plan.members)}, "
        done.append(train(job.alone(member), module, State(checkpoint, f"member {member}"), title))
        tuned.append(done[-1].weights or member_form(shared, member))
    weights = merge(tuned, shared, separate)
    averaged, unmerged = job.module(_copy(weights)), job.module(merge(tuned, shared, frozenset(PARTS)))
    before = Epoch(0, None, **job.figures(job.module(_copy(shared))))
    after = Epoch(max(best_epoch(each.history) for each in done), None, **job.figures(averaged))
    batches = map(job.held_out.batch, by_length(job.held_out.lengths, job.settings.batch_size))
    drift = {
        "inputs": f"{len(job.held_out)} inputs of {job.held_out.title}",
        **measure_merge_error(averaged.eval(), unmerged.eval(), batches).to_json(),
    }
    histories, seconds = tuple(each.history for each in done), sum(each.seconds for each in done)
    if after.nll < before.nll:
        return Outcome(weights, before, after, seconds, members=histories, drift=drift)
    return Outcome(None, before, before, seconds, members=histories, drift=drift)


def _copy(weights: Weights) -> Weights:
    return {name: tensor.clone() for name, tensor in weights.items()}


def shared_form(weights: Mapping[str, Tensor]) -> Weights:
    """Copies of fused weights [G, …], with G = 1 where all groups are equal, of a linear map those of its bias too."""
    equal = {name: bool((tensor == tensor[:1]).all()) for name, tensor in weights.items()}
    alike = {name for name in weights if equal[name] and equal.get(name.removesuffix("weight") + "bias", True)}
    return {name: (tensor[:1] if name in alike else tensor).clone() for name, tensor in weights.items()}


def member_form(weights: Mapping[str, Tensor], member: int) -> Weights:
    """Copies of what one member has, each [1, …]."""
    return {name: tensor[[member if len(tensor) > 1 else 0]] for name, tensor in weights.items()}


def merge(members: Sequence[Mapping[str, Tensor]], shared: Mapping[str, Tensor], separate: frozenset[str]) -> Weights:
    """Weights of members [1, …] that were tuned apart, in one: what they had in common is averaged, as by ``fuse``."""
    merged = {}
    for name, before in shared.items():
        stacked = torch.cat([member[name] for member in members])  # [M, …]
        part = part_of(name)
        apart = before.shape[0] > 1 or part in separate or (bool(separate) and part == "attention")
        merged[name] = stacked if apart else mean_of_members(stacked)
    return merged


def alike(shared: Mapping[str, Tensor]) -> bool:
    """Whether all members have the very same weights, of a form in which these are one (:func:`shared_form`)."""
    return all(tensor.shape[0] == 1 for tensor in shared.values())


def stored_form(weights: Mapping[str, Tensor], before: Mapping[str, Tensor]) -> Weights:
    """Weights with the group axis that a bundle stores: at least that of ``before``."""
    return {
        name: tensor.expand(max(tensor.shape[0], before[name].shape[0]), *tensor.shape[1:]).contiguous()
        for name, tensor in weights.items()
    }
