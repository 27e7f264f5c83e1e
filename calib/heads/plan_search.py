"""Plans that are compared on held-out examples: the best within a budget of operations, or one that keeps its accuracy.

Circuits that lose more accuracy than their margin are searched again with more heads, then from a later fork, in turn.
"""

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
from .choosing import AccuracyLossError, Choice, Counts
from .methods import Budget
from .selection import ANY, within
from .trials import Trial, choose, lost_words, measure

log = logging.getLogger(__name__)


def mean_tokens(examples: Examples, processor: Processor, architecture: Architecture) -> int | None:
    """Mean length of texts in tokens, rounded up, for the cost; ``None`` for images, which have their own."""
    if architecture.modality == "image":
        return None
    lengths = [item.tokens for item in processor.encode(examples.inputs)]
    return min(math.ceil(sum(lengths) / len(lengths)), architecture.max_sequence)


def plan_within(
    budget: Budget, choice: Choice, members: int, fork: int | None, tokens: int | None, held_out: Examples
) -> tuple[tuple[Keep, ...], dict[str, Any]]:
    """The heads of the best plan within a budget, forking at any layer or at the one given, and what it records."""
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
    single, *trials = measure(
        job.module, [unpruned(architecture), *candidates], job.held_out(held_out), progress=job.progress
    )
    margin = choice.max_accuracy_loss
    anything = budget.to_tune or margin >= ANY  # members that will be tuned are not yet what they will be
    allowed = [trial for trial in trials if anything or within(trial.lost(single), margin)]
    if not allowed:
        best = min(trials, key=lambda trial: trial.lost(single))
        raise AccuracyLossError(
            f"the best of {len(trials)} plans within {limit:g} × the single model's operations has {best.quality()} on "
            f"{len(held_out)} held-out examples, and the single model {single.quality()}; allow a larger budget, or to "
            f"lose more than {lost_words(f'{margin:g}', single)} (--max-accuracy-loss)"
        )
    chosen = choose(allowed)
    facts = {
        "limit": limit,
        "to_tune": budget.to_tune,
        **chosen.to_json(),
        "sequence": tokens,
        "examples_held_out": len(held_out),
        "single": single.to_json(),
        "candidates": [trial.to_json() for trial in sorted(trials, key=lambda trial: trial.nll)],
    }
    return chosen.candidate.members, {**choice.provenance([chosen.candidate.counts] * members), "budget": facts}


def heads_within_margin(choice: Choice, counts: Counts, held_out: Examples) -> tuple[tuple[Keep, ...], dict[str, Any]]:
    """The heads of each member for these counts, or the first looser ones that keep the accuracy, and the attempts."""
    job, margin = choice.job, choice.max_accuracy_loss
    attempts: list[dict[str, Any]] = []
    losses: list[float] = []
    prepared = job.held_out(held_out)
    [single] = measure(job.module, [unpruned(job.architecture)], prepared, progress=job.progress)
    for asked in looser(counts, job.architecture.heads):
        members, fork = choice.heads(asked), _fork(asked, job.architecture.heads)
        [trial] = measure(job.module, [Candidate(fork, tuple(asked[0]), members, 1.0)], prepared, progress=job.progress)
        losses.append(trial.lost(single))
        attempts.append({"counts": [list(row) for row in asked], **_right(trial), **_right(single, "single_")})
        if within(losses[-1], margin):
            if len(attempts) > 1:
                log.warning(
                    "circuits as asked for lost %s on %d held-out examples, more than %g; these members fork at layer "
                    "%d and keep %s heads there, and lose %.1f",
                    lost_words(f"{losses[0]:.1f}", single), len(held_out), margin, fork,
                    sorted({row[fork] for row in asked}), losses[-1],
                )  # fmt: skip
            facts = {"limit": margin, "examples_held_out": len(held_out), "attempts": attempts}
            return members, {**choice.provenance(asked), "margin": facts}
    raise AccuracyLossError(
        f"circuits lose {lost_words(f'{losses[-1]:.1f}', single)} on {len(held_out)} held-out examples even from layer "
        f"{fork} on; expected at most {margin:g} (--max-accuracy-loss); allow more, or give more data"
    )


def _right(trial: Trial, prefix: str = "") -> dict[str, float]:
    """Accuracy of a trial, or its RMSE."""
    figures = {f"{prefix}accuracy": trial.accuracy, f"{prefix}rmse": trial.rmse}
    return {name: value for name, value in figures.items() if value is not None}


def looser(counts: Counts, heads: int) -> Iterator[Counts]:
    """The counts, the same with more heads, and both from later forks: halfway to the last layer each time.

    >>> list(looser([[2, 2, 2, 2]], 6))[:3]
    [[[2, 2, 2, 2]], [[4, 4, 4, 4]], [[6, 6, 2, 2]]]
    """
    layers = len(counts[0])
    while True:
        fork = _fork(counts, heads)
        yield counts
        # halfway to all heads, up to all but one; all where all are kept
        more = [[count if count == heads else min((count + heads) // 2, heads - 1) for count in row] for row in counts]
        if more != [list(row) for row in counts]:
            yield more
        if fork >= layers - 1:
            return
        later = fork + max(1, (layers - fork) // 2)
        counts = [[heads] * later + list(row[later:]) for row in counts]


def _fork(counts: Counts, heads: int) -> int:
    """The first layer in which a member prunes; the last where none does."""
    pruned = [layer for layer in range(len(counts[0])) if any(row[layer] < heads for row in counts)]
    return pruned[0] if pruned else len(counts[0]) - 1
