"""Plans that fit a budget of operations: where members fork, and how many heads they keep from there on.

A plan *forks* at the first layer where its members differ; below, one trunk keeps every head and runs once. Above every
fork heads are spread in two ways: as many in each layer (uniform), or by importance (ranked). Of each way the largest
plan whose estimated cost fits is tried and three smaller ones, since members with almost all heads agree too much.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from ...bundle.architecture import Architecture
from ...bundle.head_plan import HeadPlan, Keep
from ...errors import InputError
from ...models.plan_cost import cost_of
from .selection import choose_apart, choose_heads

SHARES = 1.0, 0.75, 0.5, 0.25
"""Of the plans of one fork that fit, smallest first: which are tried."""

Search = Callable[[Sequence[int]], tuple[Keep, ...]]
"""From head counts [L] to the heads of each member."""


@dataclass(frozen=True)
class Candidate:
    """A plan: its fork, heads that each member keeps by layer, which ones, and its operations ÷ the single model's."""

    fork: int
    counts: tuple[int, ...]
    members: tuple[Keep, ...]
    ratio: float


def unpruned(architecture: Architecture) -> Candidate:
    """The single model as a candidate: every head in every layer."""
    plan = HeadPlan.all_heads(architecture.family, architecture.layers, architecture.heads)
    counts = (architecture.heads,) * architecture.layers
    return Candidate(architecture.layers, counts, plan.members, 1.0)


def check_reachable(
    architecture: Architecture, members: int, budget: float, *, forks: Iterable[int], sequence: int | None
) -> None:
    """Refuse a budget below the cost of every plan, before any long work."""
    one_apart = np.zeros(members, np.int64)
    one_apart[0] = architecture.heads - 1
    cheapest = _cheapest(architecture, one_apart, forks, sequence)
    if cheapest is None:
        raise _none(budget, members, None)
    if cheapest.ratio > budget:
        enough = _cheapest(architecture, np.arange(members) % architecture.heads, forks, sequence) or cheapest
        raise _unreachable(budget, members, cheapest, enough.ratio)


def _cheapest(
    architecture: Architecture, first_heads: np.ndarray, forks: Iterable[int], sequence: int | None
) -> Candidate | None:
    """The cheapest plan of members that keep one given head in each layer from the fork on."""
    scores = np.zeros((len(first_heads), architecture.layers, architecture.heads))
    scores[np.arange(len(first_heads)), :, first_heads] = 1
    made = []
    for fork in forks:
        counts = next(_uniform(architecture, fork))
        made.append(_costed(architecture, tuple(choose_heads(each, counts) for each in scores), fork, counts, sequence))
    return min((candidate for candidate in made if candidate is not None), key=lambda each: each.ratio, default=None)


def find_candidates(
    architecture: Architecture,
    scores: np.ndarray,
    budget: float,
    *,
    forks: Iterable[int],
    sequence: int | None,
    search: Search | None = None,
    drawn: Collection[int] = (),
    to_tune: bool = False,
) -> list[Candidate]:
    """Plans to try: up to eight for each fork, every one within the budget and with members that differ.

    For tuning it is the plan with at most a third of the heads, or two, from the earliest layer that fits: few heads
    and an early fork detect best after tuning (docs/research/findings.md).
    """
    seen: list[Candidate] = []
    found: dict[tuple[Keep, ...], Candidate] = {}
    for fork in forks:
        uniform: Iterable[list[int]] = _uniform(architecture, fork)
        if to_tune:
            uniform = islice(uniform, max(2, architecture.heads // 3))
        for way in [uniform] if to_tune or search else [uniform, _ranked(architecture, scores, fork)]:
            plans = ((counts, choose_apart(list(scores), [counts] * len(scores), drawn)) for counts in way)
            costed = [_costed(architecture, tuple(members), fork, counts, sequence) for counts, members in plans]
            different = [candidate for candidate in costed if candidate is not None]
            seen += different
            fitting = [candidate for candidate in different if candidate.ratio <= budget]
            some = [fitting[max(0, math.ceil(share * len(fitting)) - 1)] for share in SHARES if fitting]
            for chosen in different[::-1] if to_tune else some:
                members = search(chosen.counts) if search else chosen.members
                exact = _costed(architecture, members, fork, chosen.counts, sequence)
                if exact is not None and exact.ratio <= budget:
                    found.setdefault(exact.members, exact)
                    if to_tune:
                        return [exact]
    if not found:
        raise _none(budget, len(scores), min(seen, key=lambda each: each.ratio, default=None))
    return list(found.values())


def round_up(ratio: float) -> float:
    """A cost ratio to three decimals, never below it."""
    return math.ceil(ratio * 1000) / 1000


def _none(budget: float, members: int, cheapest: Candidate | None) -> InputError:
    """The error without a plan: members do not differ at any fork, or the budget is too small."""
    if cheapest is not None and cheapest.ratio > budget:
        return _unreachable(budget, members, cheapest)
    return InputError(
        f"the {members} members keep the same heads at the fork of every plan; raise the noise, or use another seed or "
        "diversity"
    )


def _unreachable(budget: float, members: int, cheapest: Candidate, enough: float | None = None) -> InputError:
    """The error of a small budget; ``enough`` is the cost of members whose best heads differ, before any scores."""
    least = round_up(cheapest.ratio)
    most = max(least, round_up(enough or 0))
    costs = f"{least}" if most == least else f"{least} to {most}, by which heads they keep,"
    return InputError(
        f"budget {budget:g} cannot be reached: the cheapest plan of {members} members costs {costs} "
        f"× the single model's operations (fork at layer {cheapest.fork}); give a budget of at least {most}"
    )


def _uniform(architecture: Architecture, fork: int) -> Iterator[list[int]]:
    """Head counts [L] that are equal in all layers from the fork on, fewest first."""
    layers, heads = architecture.layers, architecture.heads
    for count in range(1, max(heads, 2)):
        yield [heads] * fork + [count] * (layers - fork)


def _ranked(architecture: Architecture, scores: np.ndarray, fork: int) -> Iterator[list[int]]:
    """Head counts [L], fewest first, that add one head after another by the mean importance, normalised by layer."""
    mean = np.asarray(scores, np.float64).mean(axis=0)[fork:]
    share = mean / np.maximum(np.linalg.norm(mean, axis=1, keepdims=True), np.finfo(np.float64).tiny)
    rest = -np.sort(-share, axis=1)[:, 1:]  # [L − fork, H − 1], best first
    counts = [architecture.heads] * fork + [1] * len(mean)
    yield list(counts)
    for index in np.argsort(-rest, axis=None, kind="stable"):
        counts[fork + int(index) // rest.shape[1]] += 1
        yield list(counts)


def _costed(
    architecture: Architecture, members: tuple[Keep, ...], fork: int, counts: Sequence[int], sequence: int | None
) -> Candidate | None:
    plan = HeadPlan(architecture.family, architecture.layers, architecture.heads, members, "budget")
    if plan.fork != fork:
        return None
    return Candidate(fork, tuple(counts), members, cost_of(architecture, plan, sequence=sequence).ratio)
