"""Circuits that keep what they must: a plan is taken only if its accuracy on held-out examples stays within a margin.

A circuit is searched for what uncertainty rests on, and may give away what the answers rest on. One that loses more
than the margin is searched again with more heads, then from a later fork, in turn, until one stays within it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from ...bundle.plan import Keep
from ...data.examples import Examples
from .candidates import Candidate, unpruned
from .choosing import AccuracyLossError, Choice, Counts
from .held_out import within
from .trials import Trial, lost_words, measure

log = logging.getLogger(__name__)


def heads_within_margin(choice: Choice, counts: Counts, held_out: Examples) -> tuple[tuple[Keep, ...], dict[str, Any]]:
    """The heads of each member for these counts, or for the first looser ones that keep the accuracy.

    Args:
        counts: heads to keep, [M][L].

    Returns:
        The heads, and what the plan records: under ``"margin"`` every attempt.
    """
    job, margin = choice.job, choice.max_accuracy_loss
    attempts: list[dict[str, Any]] = []

    prepared = job.held_out(held_out)

    def measured(candidate: Candidate) -> Trial:
        [trial] = measure(job.model, [candidate], prepared, progress=job.progress)
        return trial

    single = measured(unpruned(job.architecture))
    first = loss = 0.0
    for asked in looser(counts, job.architecture.heads):
        members = choice.heads(asked)
        tried = Candidate(_fork(asked, job.architecture.heads), tuple(asked[0]), members, 1.0)
        trial = measured(tried)
        loss = trial.lost(single)
        first = first if attempts else loss
        attempts.append({"counts": [list(row) for row in asked], **_told(trial), **_told(single, "single_")})
        if within(loss, margin):
            if len(attempts) > 1:
                log.warning(
                    "circuits as asked for lost %s on %d held-out examples, more than %g; these "
                    "members fork at layer %d and keep %s heads there, and lose %.1f",
                    lost_words(f"{first:.1f}", single), len(held_out), margin,
                    tried.fork, sorted({row[tried.fork] for row in asked}), loss,
                )  # fmt: skip
            facts = {"limit": margin, "examples_held_out": len(held_out), "attempts": attempts}
            return members, {**choice.provenance(asked), "margin": facts}
    raise AccuracyLossError(
        f"circuits lose {lost_words(f'{loss:.1f}', single)} on {len(held_out)} held-out examples even from layer "
        f"{tried.fork} on; expected at most {margin:g} (--max-accuracy-loss); allow more, give more data, or choose "
        "another method"
    )


def _told(trial: Trial, prefix: str = "") -> dict[str, float]:
    """How right a trial is, under a name."""
    if trial.accuracy is not None:
        return {f"{prefix}accuracy": trial.accuracy}
    return {} if trial.rmse is None else {f"{prefix}rmse": trial.rmse}


def looser(counts: Counts, heads: int) -> Iterator[Counts]:
    """The counts, the same with more heads, and both from later forks: halfway to the last layer each time.

    >>> list(looser([[2, 2, 2, 2]], 6))[:3]
    [[[2, 2, 2, 2]], [[4, 4, 4, 4]], [[6, 6, 2, 2]]]
    """
    layers = len(counts[0])
    while True:
        fork = _fork(counts, heads)
        yield counts
        more = [[_halfway(count, heads) for count in row] for row in counts]
        if more != [list(row) for row in counts]:
            yield more
        if fork >= layers - 1:
            return
        later = fork + max(1, (layers - fork) // 2)
        counts = [[heads] * later + list(row[later:]) for row in counts]


def _halfway(count: int, heads: int) -> int:
    """More heads than these, up to all but one; all where all are kept."""
    return count if count == heads else min((count + heads) // 2, heads - 1)


def _fork(counts: Counts, heads: int) -> int:
    """The first layer in which a member prunes; the last where none does."""
    pruned = [layer for layer in range(len(counts[0])) if any(row[layer] < heads for row in counts)]
    return pruned[0] if pruned else len(counts[0]) - 1
