"""Candidate plans within a budget of operations: forks, and numbers of heads above them.

A plan *forks* at the first layer where its members differ; the trunk below keeps every head and runs once. Above a fork
heads are distributed in two ways: equally over layers (uniform), or by importance (ranked). For each way the largest
plan within the budget and three smaller plans are tried, since members with almost all heads agree too much.
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

SHARES = 1.0, 0.75, 0.5, 0.25  # places of the tried plans among all plans of a fork within the budget, smallest first
Search = Callable[[Sequence[int]], tuple[Keep, ...]]  # function from head counts [L] to the heads of each member


@dataclass(frozen=True)
class Candidate:
    """A plan: its fork, head counts by layer, heads of each member, and operations ÷ the single model's operations."""

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
    """Raise ``InputError`` for a budget below the cost of every plan."""
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
    """The cheapest plan whose members keep their head of ``first_heads`` in each layer from the fork on."""
    scores = np.zeros((len(first_heads), architecture.layers, architecture.heads))
    scores[np.arange(len(first_heads)), :, first_heads] = 1
    plans = []
    for fork in forks:
        counts = next(_uniform(architecture, fork))
        members = tuple(choose_heads(each, counts) for each in scores)
        plans.append(_costed(architecture, members, fork, counts, sequence))
    return min((candidate for candidate in plans if candidate is not None), key=lambda each: each.ratio, default=None)


def find_candidates(architecture: Architecture, scores: np.ndarray, budget: float, *, forks: Iterable[int],
                    sequence: int | None, search: Search | None = None, drawn: Collection[int] = (),
                    to_tune: bool = False) -> list[Candidate]:  # fmt: skip
    """Up to eight affordable plans for each fork, with different members; one for tuning: early fork, few heads."""
    costed: list[Candidate] = []
    candidates: dict[tuple[Keep, ...], Candidate] = {}
    for fork in forks:
        uniform: Iterable[list[int]] = _uniform(architecture, fork)
        if to_tune:
            uniform = islice(uniform, max(2, architecture.heads // 3))
        for way in [uniform] if to_tune or search else [uniform, _ranked(architecture, scores, fork)]:
            plans = ((counts, choose_apart(list(scores), [counts] * len(scores), drawn)) for counts in way)
            tried = [_costed(architecture, tuple(members), fork, counts, sequence) for counts, members in plans]
            different = [candidate for candidate in tried if candidate is not None]
            costed += different
            fitting = [candidate for candidate in different if candidate.ratio <= budget]
            some = [fitting[max(0, math.ceil(share * len(fitting)) - 1)] for share in SHARES if fitting]
            for chosen in different[::-1] if to_tune else some:
                members = search(chosen.counts) if search else chosen.members
                exact = _costed(architecture, members, fork, chosen.counts, sequence)
                if exact is not None and exact.ratio <= budget:
                    candidates.setdefault(exact.members, exact)
                    if to_tune:
                        return [exact]
    if not candidates:
        raise _none(budget, len(scores), min(costed, key=lambda each: each.ratio, default=None))
    return list(candidates.values())


def round_up(ratio: float) -> float:
    """A cost ratio rounded up to three decimals."""
    return math.ceil(ratio * 1000) / 1000


def _none(budget: float, members: int, cheapest: Candidate | None) -> InputError:
    """The error without a candidate: the budget is too small, or members keep the same heads at every fork."""
    if cheapest is not None and cheapest.ratio > budget:
        return _unreachable(budget, members, cheapest)
    wrong = f"all {members} members keep the same heads at the fork of every plan"
    return InputError(f"{wrong}; raise the noise, or use another seed or diversity")


def _unreachable(budget: float, members: int, cheapest: Candidate, enough: float | None = None) -> InputError:
    """The error of a small budget; ``enough`` is the cost of members whose best heads all differ."""
    least = round_up(cheapest.ratio)
    most = max(least, round_up(enough or 0))
    costs = f"{least}" if most == least else f"{least} to {most}, depending on its heads,"
    wrong = f"budget {budget:g} cannot be reached: the cheapest plan of {members} members costs {costs}"
    wrong += f" × the single model's operations (fork at layer {cheapest.fork})"
    return InputError(f"{wrong}; use a budget of at least {most}")


def _uniform(architecture: Architecture, fork: int) -> Iterator[list[int]]:
    """Head counts [L], equal in all layers from the fork on, smallest first."""
    layers, heads = architecture.layers, architecture.heads
    for count in range(1, max(heads, 2)):
        yield [heads] * fork + [count] * (layers - fork)


def _ranked(architecture: Architecture, scores: np.ndarray, fork: int) -> Iterator[list[int]]:
    """Head counts [L], smallest first; each adds the next head by mean importance, normalised by layer."""
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
