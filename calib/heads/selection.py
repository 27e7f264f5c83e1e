"""From scores and counts to heads: how members' scores are made to differ, and which heads then stay."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ...bundle.plan import Keep
from ...errors import InputError, cut, listing

Table = np.ndarray | Sequence[np.ndarray]
"""A member's score of every head, [L, H]."""


def diversify(per_example: np.ndarray, members: int, diversity: str, noise: float, seed: int) -> np.ndarray:
    """One score table per member from per-example importances.

    Args:
        per_example: [N, L, H].

    Returns:
        [M, L, H]. A single member gets the plain mean: there is nothing to differ from.
    """
    mean = per_example.mean(axis=0, dtype=np.float64)
    if members == 1:
        return mean[None]
    if diversity == "noise":
        return mean * np.exp(noise * deviates(members, mean.shape, seed))
    count = len(per_example)
    generators = [np.random.default_rng([seed, member]) for member in range(members)]
    return np.stack([per_example[rng.integers(0, count, size=count)].mean(axis=0) for rng in generators])


def deviates(members: int, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Standard normal numbers for each of M ≥ 2 members, [M, *shape], that sum to zero over the members.

    What one member underrates, another overrates, so a head that matters is seldom lost by all of them.
    """
    drawn = np.stack([np.random.default_rng([seed, member]).standard_normal(shape) for member in range(members)])
    return (drawn - drawn.mean(axis=0)) * np.sqrt(members / (members - 1))  # variance 1 again


def resampled_counts(sizes: Sequence[int], seed: int, member: int) -> list[np.ndarray]:
    """How often a bootstrap resample of each set of examples draws each one: arrays [size]."""
    rng = np.random.default_rng([seed, member])
    return [np.bincount(rng.integers(0, max(size, 1), size=size), minlength=size).astype(float) for size in sizes]


def choose_heads(scores: Table, counts: Sequence[int]) -> Keep:
    """The ``counts[layer]`` heads of highest score in every layer; on a tie, the lower index.

    Args:
        scores: [L, H]; layers may have different numbers of heads.
        counts: [L].
    """
    return next(sets_by_score(scores, counts))


def choose_apart(
    tables: Sequence[Table],
    counts: Sequence[Sequence[int]],
    drawn: Collection[int] = (),
    found: Mapping[int, Keep] | None = None,
) -> list[Keep]:
    """The heads of highest score of each member, or the next best where another has these: alike, none would add.

    The next best lose the least score in all. Members stay alike where there are no more sets than members.

    Args:
        tables: of the members in their order, M × [L, H].
        counts: [M][L].
    """
    chosen = {member: choose_heads(tables[member], counts[member]) for member in drawn} | dict(found or {})
    taken = set(chosen.values())
    for member, (scores, row) in enumerate(zip(tables, counts, strict=True)):
        if member not in chosen:
            free = next((keep for keep in sets_by_score(scores, row) if keep not in taken), None)
            chosen[member] = choose_heads(scores, row) if free is None else free
            taken.add(chosen[member])
    return [chosen[member] for member in range(len(tables))]


def sets_by_score(scores: Table, counts: Sequence[int]) -> Iterator[Keep]:
    """All sets of ``counts[layer]`` heads in every layer, by their summed score, the highest first.

    Best-first search from the heads of highest score: a set's neighbours have, for one of its heads, the one that comes
    next by score. On a tie, the one that is found first, from the last layer on.
    """
    orders = [np.argsort(-row, kind="stable") for row in scores]
    best = tuple(tuple(range(count)) for count in counts)  # as places in the orders
    found, waiting = {best}, [(0.0, 0, best)]  # score that is lost; a number that no other has; the set
    while waiting:
        lost, _, ranks = heapq.heappop(waiting)
        yield tuple(tuple(sorted(order[list(row)].tolist())) for order, row in zip(orders, ranks, strict=True))
        for layer in reversed(range(len(ranks))):
            row, order, score = ranks[layer], orders[layer], scores[layer]
            for place, rank in enumerate(row):
                if rank + 1 == len(order) or rank + 1 in row:
                    continue
                worse = (*ranks[:layer], (*row[:place], rank + 1, *row[place + 1 :]), *ranks[layer + 1 :])
                if worse not in found:
                    step = float(score[order[rank]]) - float(score[order[rank + 1]])
                    heapq.heappush(waiting, (lost + step, len(found), worse))
                    found.add(worse)


def drop_heads(members: int, layers: int, heads: int, fork_from: int, rate: float, seed: int) -> tuple[Keep, ...]:
    """Heads that stay when each is dropped with a probability, [members][layers].

    A layer that would lose all its heads keeps the one that was nearest to staying; layers below ``fork_from`` keep
    every head.
    """
    drawn = np.random.default_rng(seed).random((members, layers, heads))
    stays = (drawn >= rate) | (drawn == drawn.max(axis=2, keepdims=True))
    stays[:, :fork_from] = True
    return tuple(tuple(tuple(np.flatnonzero(row).tolist()) for row in member) for member in stays)


def head_counts(keep: Any, members: int, layers: int, heads: int, fork_from: int = 0) -> list[list[int]]:
    """``keep`` as one count for each member and layer, [members][layers].

    Layers below ``fork_from`` keep every head; a list in ``keep`` has entries for the other layers only.
    """
    rows = counts_of_layers(keep, members, layers, fork_from)
    return [[heads] * fork_from + [_count(value, heads) for value in row[fork_from:]] for row in rows]


def counts_of_layers(keep: Any, members: int, layers: int, fork_from: int = 0) -> list[list[Any]]:
    """``keep`` spread over members and layers, as it was given: [members][layers]; ``None`` below ``fork_from``."""
    if isinstance(keep, list | tuple) and any(isinstance(row, list | tuple) for row in keep):
        if len(keep) != members or not all(isinstance(row, list | tuple) for row in keep):
            raise InputError(f"keep has {len(keep)} entries; expected one list for each of the {members} members")
        return [_layer_counts(row, layers, fork_from) for row in keep]
    return [_layer_counts(keep, layers, fork_from)] * members


def _layer_counts(keep: Any, layers: int, fork_from: int) -> list[Any]:
    values, forked = list(keep) if isinstance(keep, list | tuple) else [keep], layers - fork_from
    if len(values) == 1:
        values *= forked
    if len(values) != forked:
        where = f" from layer {fork_from} on" if fork_from else ""
        raise InputError(
            f"keep has {len(values)} entries {listing(values)}; expected one, or one for each of {forked} layers{where}"
        )
    return [None] * fork_from + values


def _count(value: Any, heads: int) -> int:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
        raise InputError(f"keep is {cut(value)}; expected a number of heads, or a share of them such as 0.66")
    if isinstance(value, float) and 0 < value <= 1:
        return max(1, round(value * heads))
    if value != int(value) or not 1 <= value <= heads:
        raise InputError(f"keep is {value}; expected 1 to {heads} heads per layer, or a share between 0 and 1")
    return int(value)
