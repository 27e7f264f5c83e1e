"""Comparison of plans on held-out examples: the best within a budget, or the first that keeps its accuracy."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from typing import Any

from ...bundle.architecture import Architecture
from ...bundle.head_plan import Keep
from ...data.examples import Examples
from ...data.processor import Processor
from .candidates import Candidate, check_reachable, find_candidates, unpruned
from .choosing import AccuracyLossError, Choice
from .circuits import Counts
from .methods import Budget
from .selection import ANY, within
from .trials import Trial, choose, loss_text, measure

log = logging.getLogger(__name__)


def mean_tokens(examples: Examples, processor: Processor, architecture: Architecture) -> int | None:
    """Mean length of texts in tokens, rounded up, for the cost; ``None`` for images."""
    if architecture.modality == "image":
        return None
    lengths = [item.tokens for item in processor.encode(examples.inputs)]
    return min(math.ceil(sum(lengths) / len(lengths)), architecture.max_sequence)


def plan_within(
    budget: Budget, choice: Choice, members: int, fork: int | None, tokens: int | None, held_out: Examples
) -> tuple[tuple[Keep, ...], dict[str, Any]]:
    """Heads of the best plan within a budget, and its provenance; ``fork`` restricts the search to one fork."""
    job, limit = choice.job, budget.ratio
    architecture = job.architecture
    late = architecture.layers - max(1, architecture.layers // 3) if budget.to_tune else 0
    forks = range(late, architecture.layers) if fork is None else [fork]
    check_reachable(architecture, members, limit, forks=forks, sequence=tokens)
    search = (lambda counts: choice.heads([counts] * members)) if choice.searches else None
    candidates = find_candidates(
        architecture, choice.tables, limit,
        forks=forks, sequence=tokens, search=search, drawn=choice.drawn, to_tune=budget.to_tune,
    )  # fmt: skip
    prepared, candidates = job.held_out(held_out), [unpruned(architecture), *candidates]
    single, *trials = measure(job.module, candidates, prepared, progress=job.progress)
    margin = choice.max_accuracy_loss
    anything = budget.to_tune or margin >= ANY  # tuning will change the accuracy
    allowed = [trial for trial in trials if anything or within(trial.lost(single), margin)]
    if not allowed:
        best = min(trials, key=lambda trial: trial.lost(single))
        wrong = f"the best of {len(trials)} plans within {limit:g} × the single model's operations has {best.quality()}"
        wrong += f" on {len(held_out)} held-out examples, but the single model has {single.quality()}"
        remedy = f"a loss of more than {loss_text(f'{margin:g}', single)} (--max-accuracy-loss)"
        raise AccuracyLossError(f"{wrong}; allow a larger budget, or {remedy}")
    chosen = choose(allowed)
    facts = {"limit": limit, "to_tune": budget.to_tune, **chosen.to_json(), "sequence": tokens}
    facts |= {"examples_held_out": len(held_out), "single": single.to_json()}
    facts["candidates"] = [trial.to_json() for trial in sorted(trials, key=lambda trial: trial.nll)]
    return chosen.candidate.members, {**choice.provenance([chosen.candidate.counts] * members), "budget": facts}


def heads_within_margin(choice: Choice, counts: Counts, held_out: Examples) -> tuple[tuple[Keep, ...], dict[str, Any]]:
    """Heads for these counts, or for the first larger ones that keep the accuracy, and the provenance."""
    job, margin = choice.job, choice.max_accuracy_loss
    attempts: list[dict[str, Any]] = []
    losses: list[float] = []
    prepared = job.held_out(held_out)
    [single] = measure(job.module, [unpruned(job.architecture)], prepared, progress=job.progress)
    for tried in looser(counts, job.architecture.heads):
        members, fork = choice.heads(tried), _fork(tried, job.architecture.heads)
        [trial] = measure(job.module, [Candidate(fork, tuple(tried[0]), members, 1.0)], prepared, progress=job.progress)
        losses.append(trial.lost(single))
        attempts.append({"counts": [list(row) for row in tried], **_quality(trial), **_quality(single, "single_")})
        if within(losses[-1], margin):
            if len(attempts) > 1:
                lost = f"{loss_text(f'{losses[0]:.1f}', single)} on {len(held_out)} held-out examples"
                kept = f"keeps {sorted({row[fork] for row in tried})} heads there, and loses {losses[-1]:.1f}"
                now = f"the plan now forks at layer {fork}, {kept}"
                log.warning("the requested circuits lost %s, more than %g; %s", lost, margin, now)
            facts = {"limit": margin, "examples_held_out": len(held_out), "attempts": attempts}
            return members, {**choice.provenance(tried), "margin": facts}
    lost = f"circuits lose {loss_text(f'{losses[-1]:.1f}', single)} on {len(held_out)} held-out examples"
    remedy = f"expected at most {margin:g}; raise --max-accuracy-loss, or give more data"
    raise AccuracyLossError(f"{lost} even with a fork at layer {fork}; {remedy}")


def _quality(trial: Trial, prefix: str = "") -> dict[str, float]:
    """Accuracy or RMSE of a trial."""
    metrics = {f"{prefix}accuracy": trial.accuracy, f"{prefix}rmse": trial.rmse}
    return {name: value for name, value in metrics.items() if value is not None}


def looser(counts: Counts, heads: int) -> Iterator[Counts]:
    """The counts, then more heads, then both from later forks, each halfway to the last layer.

    >>> list(looser([[2, 2, 2, 2]], 6))[:3]
    [[[2, 2, 2, 2]], [[4, 4, 4, 4]], [[6, 6, 2, 2]]]
    """
    layers = len(counts[0])
    while True:
        fork = _fork(counts, heads)
        yield counts
        # halfway to all heads, at most all but one; layers with all heads keep them
        more = [[count if count == heads else min((count + heads) // 2, heads - 1) for count in row] for row in counts]
        if more != [list(row) for row in counts]:
            yield more
        if fork >= layers - 1:
            return
        later = fork + max(1, (layers - fork) // 2)
        counts = [[heads] * later + list(row[later:]) for row in counts]


def _fork(counts: Counts, heads: int) -> int:
    """The first layer in which a member prunes heads, or the last layer."""
    pruned = [layer for layer in range(len(counts[0])) if any(row[layer] < heads for row in counts)]
    return pruned[0] if pruned else len(counts[0]) - 1
