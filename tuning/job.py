"""The ways to tune: all members jointly in the fused model, as a BatchEnsemble, or each alone and then merged."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ..bundle.architecture import PARTS
from ..bundle.plan import HeadPlan
from ..bundle.store import ARCHITECTURE, PLAN, PROCESSOR, WEIGHTS, Bundle
from ..data.batching import by_length
from ..fusion import FusedClassifier, measure_merge_error
from ..progress import Progress
from .examples import Source
from .loop import measure, train
from .rank_one import draw, first_layer, is_factor, merged, with_factors
from .report import Epoch, best_epoch
from .settings import BatchEnsemble, Settings
from .state import State
from .weights import Weights, alike, member_form, merge, shared_form

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    """What is tuned, on what, and how.

    Attributes:
        bundle: that holds it.
        ensemble: untuned; left as it is.
        known, held_out: examples to tune on, and to judge on.
        digests: of both, in that order.
        settings: of the tuning.
        accelerator: of ``tuning.loop.open_accelerator``.
        progress: display.
    """

    bundle: Bundle
    ensemble: FusedClassifier
    known: Source
    held_out: Source
    digests: tuple[str, str]
    settings: Settings
    accelerator: Any
    progress: Progress

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

    def state(self, place: Path | None, member: int | None = None) -> State:
        """The state of one tuning, in a file of its own."""
        others: list[Path] = []
        if place is not None and member is not None:
            others = [place.with_name(f"{place.name}.{index}") for index in range(self.ensemble.members)]
            place = others[member]
        used = (WEIGHTS, PLAN, ARCHITECTURE)
        digests = self.bundle.digests()
        files = {name: digest for name, digest in digests.items() if name in used or name.startswith(f"{PROCESSOR}/")}
        facts = {"settings": self.settings.to_json(), "data": self.digests, "bundle": files, "member": member}
        return State(place, hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest(), others)


@dataclass(frozen=True)
class Outcome:
    """What came of it.

    Attributes:
        weights: [G, …]; ``None`` when they are no better than before.
        before, after: on the validation data; after: of the weights that are kept.
        history: of a joint tuning, epoch by epoch.
        members: of members tuned alone, likewise.
        drift: of merging them, or ``None``.
        states: files that are done with once the result is written.
        seconds: that it took.
        apart: modules whose members were told apart by factors.
    """

    weights: Weights | None
    before: Epoch
    after: Epoch
    history: tuple[Epoch, ...]
    members: tuple[tuple[Epoch, ...], ...]
    drift: dict[str, Any] | None
    states: tuple[State, ...]
    seconds: float
    apart: tuple[str, ...] = ()


_STAY_ALIKE = (
    "all members of {path} have the same heads and weights, and stay alike when they are {how}, so that they cannot "
    "disagree; to tell them apart tune with BatchEnsemble() (--batch-ensemble), or with "
    "PerMember(keep_separate='all') (--per-member --keep-separate all), or fuse by a plan of different heads"
)


def member_seed(seed: int, member: int) -> int:
    """The seed of one member tuned alone; the first has that of the tuning."""
    return seed if member == 0 else int(np.random.SeedSequence([seed, member]).generate_state(1, np.uint64)[0] >> 1)


def tune_jointly(job: Job, place: Path | None) -> Outcome:
    """Tune all members at once."""
    state = job.state(place)
    shared = shared_form(job.ensemble.state_dict())
    if job.ensemble.members > 1 and alike(shared):
        log.warning("%s", _STAY_ALIKE.format(path=job.bundle.path, how="tuned jointly"))
    module = job.module(shared)
    done = train(module, job.known, job.held_out, job.settings, state, job.accelerator, job.progress)
    kept = done.history[done.best_epoch]
    return Outcome(done.weights, done.history[0], kept, done.history, (), None, (state,), done.seconds)


def tune_batch_ensemble(job: Job, how: BatchEnsemble, place: Path | None) -> Outcome:
    """Tell the members apart by factors, tune all at once, and multiply the factors into the weights."""
    state = job.state(place)
    module = job.module(shared_form(job.ensemble.state_dict()))
    apart = tuple(with_factors(module, first_layer(job.ensemble, how)))
    if how.factors_only:
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(is_factor(name))
    begin = partial(draw, module, how.deviation, job.settings.seed)
    given = (module, job.known, job.held_out, job.settings, state, job.accelerator, job.progress)
    done = train(*given, begin=begin)
    weights = None if done.weights is None else merged(done.weights)
    kept = done.history[done.best_epoch]
    return Outcome(weights, done.history[0], kept, done.history, (), None, (state,), done.seconds, apart)


def tune_alone(job: Job, separate: frozenset[str], place: Path | None) -> Outcome:
    """Tune each member alone, then merge what they share."""
    shared = shared_form(job.ensemble.state_dict())
    plan = job.ensemble.plan
    if job.ensemble.members > 1 and alike(shared) and not separate:
        log.warning("%s", _STAY_ALIKE.format(path=job.bundle.path, how="merged"))
    tuned: list[Weights] = []
    states, histories, seconds = [], [], 0.0
    for member, keep in enumerate(plan.members):
        own = job.alone(member)
        state = own.state(place, member)
        alone = HeadPlan(plan.family, plan.layers, plan.heads, (keep,), plan.method)
        module = job.module(member_form(shared, member), alone)
        title = f"member {member + 1} of {len(plan.members)}, "
        done = train(module, job.known, job.held_out, own.settings, state, job.accelerator, job.progress, title)
        tuned.append(done.weights or member_form(shared, member))
        states.append(state)
        histories.append(done.history)
        seconds += done.seconds
    weights = merge(tuned, shared, separate)
    averaged, unmerged = job.module(_copy(weights)), job.module(merge(tuned, shared, frozenset(PARTS)))
    before = Epoch(0, None, **job.figures(job.module(_copy(shared))))
    after = Epoch(max(map(best_epoch, histories)), None, **job.figures(averaged))
    drift = {
        "inputs": f"{len(job.held_out)} inputs of {job.held_out.title}",
        **measure_merge_error(averaged.eval(), unmerged.eval(), _pairs(job)).to_json(),
    }
    better = after.nll < before.nll
    return Outcome(
        weights if better else None,
        before,
        after if better else before,
        (),
        tuple(histories),
        drift,
        tuple(states),
        seconds,
    )


def _copy(weights: Weights) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in weights.items()}


def _pairs(job: Job) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray]]:
    """Batches of the validation data, with their labels."""
    return (job.held_out.batch(indices) for indices in by_length(job.held_out.lengths, job.settings.batch_size))
