"""Selection of heads from scores and counts, with diversity between members; held-out examples, margins of loss."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ...bundle.head_plan import Keep
from ...bundle.traced import Block
from ...data.examples import Examples
from ...errors import InputError, cut, listing
from .methods import Method, Random, groups_of

Table = np.ndarray | Sequence[np.ndarray]  # a member's score of every head, [L, H]


def diversify(per_example: np.ndarray, members: int, diversity: str, noise: float, seed: int) -> np.ndarray:
    """Score tables of the members, [M, L, H], from importances by example, [N, L, H]; one member has the mean."""
    mean = per_example.mean(axis=0, dtype=np.float64)
    if members == 1:
        return mean[None]
    if diversity == "noise":
        return mean * np.exp(noise * deviates(members, mean.shape, seed))
    count = len(per_example)
    generators = [np.random.default_rng([seed, member]) for member in range(members)]
    return np.stack([per_example[rng.integers(0, count, size=count)].mean(axis=0) for rng in generators])


def deviates(members: int, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Standard normal numbers for M ≥ 2 members, [M, *shape], with zero sum over the members."""
    drawn = np.stack([np.random.default_rng([seed, member]).standard_normal(shape) for member in range(members)])
    return (drawn - drawn.mean(axis=0)) * np.sqrt(members / (members - 1))  # variance 1 again


def resampled_counts(sizes: Sequence[int], seed: int, member: int) -> list[np.ndarray]:
    """Counts of examples in a bootstrap resample of each set: arrays [size]."""
    rng = np.random.default_rng([seed, member])
    return [np.bincount(rng.integers(0, max(size, 1), size=size), minlength=size).astype(float) for size in sizes]


def choose_heads(scores: Table, counts: Sequence[int]) -> Keep:
    """The ``counts[layer]`` heads of highest score in every layer; ties prefer the lower index."""
    return next(sets_by_score(scores, counts))


def choose_apart(tables: Sequence[Table], counts: Sequence[Sequence[int]], drawn: Collection[int] = (),
                 fixed: Mapping[int, Keep] | None = None) -> list[Keep]:  # fmt: skip
    """The best heads of each member that no other member has, if any; ``drawn`` and ``fixed`` members may repeat."""
    chosen = {member: choose_heads(tables[member], counts[member]) for member in drawn} | dict(fixed or {})
    taken = set(chosen.values())
    for member, (scores, row) in enumerate(zip(tables, counts, strict=True)):
        if member not in chosen:
            free = next((keep for keep in sets_by_score(scores, row) if keep not in taken), None)
            chosen[member] = choose_heads(scores, row) if free is None else free
            taken.add(chosen[member])
    return [chosen[member] for member in range(len(tables))]


def sets_by_score(scores: Table, counts: Sequence[int]) -> Iterator[Keep]:
    """All sets of ``counts[layer]`` heads in every layer, by summed score, highest first (best-first search)."""
    orders = [np.argsort(-row, kind="stable") for row in scores]
    best = tuple(tuple(range(count)) for count in counts)  # as places in the orders
    visited, waiting = {best}, [(0.0, 0, best)]  # lost score, unique number, set
    while waiting:
        lost, _, ranks = heapq.heappop(waiting)
        yield tuple(tuple(sorted(order[list(row)].tolist())) for order, row in zip(orders, ranks, strict=True))
        for layer in reversed(range(len(ranks))):
            row, order, score = ranks[layer], orders[layer], scores[layer]
            for place, rank in enumerate(row):
                if rank + 1 == len(order) or rank + 1 in row:
                    continue
                worse = (*ranks[:layer], (*row[:place], rank + 1, *row[place + 1 :]), *ranks[layer + 1 :])
                if worse not in visited:
                    step = float(score[order[rank]]) - float(score[order[rank + 1]])
                    heapq.heappush(waiting, (lost + step, len(visited), worse))
                    visited.add(worse)


def drop_heads(members: int, layers: int, heads: int, fork_from: int, rate: float, seed: int) -> tuple[Keep, ...]:
    """Heads that remain, [members][layers], if heads from ``fork_from`` on are dropped at a rate; at least one."""
    drawn = np.random.default_rng(seed).random((members, layers, heads))
    stays = (drawn >= rate) | (drawn == drawn.max(axis=2, keepdims=True))
    stays[:, :fork_from] = True
    return tuple(tuple(tuple(np.flatnonzero(row).tolist()) for row in member) for member in stays)


def drawn_scores(methods: Sequence[Method], layers: int, heads: int, seed: int) -> np.ndarray:
    """Random scores [M, L, H]; members keep the heads of highest score."""
    scores = np.random.default_rng(seed).random((len(methods), layers, heads))
    for method, members in groups_of(methods):
        if isinstance(method, Random) and method.systematic:
            scores[members] = systematic_scores(len(members), layers, heads, seed)
    return scores


def drawn_facts(methods: Sequence[Method]) -> dict[str, Any]:
    """Provenance of random members: empty if all are independent, a list by member if they differ."""
    systematic = [method.systematic if isinstance(method, Random) else None for method in methods]
    if True not in systematic:
        return {}
    return {"systematic": systematic if False in systematic else True}


def systematic_scores(members: int, layers: int, heads: int, seed: int) -> np.ndarray:
    """Scores [M, L, H] of a systematic sample (Madow & Madow 1944): members share as few heads as possible.

    In every layer the heads form a circle in random order, and the members start at evenly spaced places, also in
    random order. A member with k heads keeps the next k heads, so scores do not depend on k.
    """
    random = np.random.default_rng(seed)
    places = random.permuted(np.tile(np.arange(heads), (layers, 1)), axis=1)  # [L, H]
    starts = random.permuted(np.tile(np.arange(members), (layers, 1)), axis=1).T  # [M, L]
    behind = (places * members - starts[..., None] * heads) % (heads * members)  # in units of 1 ÷ M places: integers
    return -behind.astype(np.float64)


def group_counts(keep: Any, members: int, blocks: Sequence[Block], fork_from: int = 0) -> list[list[int]]:
    """``keep`` as numbers of groups of heads that share keys (mostly single heads), by member and layer."""
    several = isinstance(keep, list | tuple) and any(isinstance(row, list | tuple) for row in keep)
    if several and (len(keep) != members or not all(isinstance(row, list | tuple) for row in keep)):
        raise InputError(f"keep has {len(keep)} entries; expected {members} lists, one for each member")
    rows = [_of_layers(row, len(blocks), fork_from) for row in (keep if several else [keep] * members)]
    trunk = [block.groups for block in blocks[:fork_from]]
    return [trunk + list(map(_groups, row, blocks[fork_from:])) for row in rows]


def _of_layers(keep: Any, layers: int, fork_from: int) -> list[Any]:
    """One entry for each layer from the fork on."""
    values, forked = list(keep) if isinstance(keep, list | tuple) else [keep], layers - fork_from
    if len(values) == 1:
        values *= forked
    if len(values) != forked:
        where = f" from layer {fork_from} on" if fork_from else ""
        wrong = f"keep has {len(values)} entries {listing(values)}"
        raise InputError(f"{wrong}; expected one, or one for each of {forked} layers{where}")
    return values


def _groups(value: Any, block: Block) -> int:
    """A count or share of heads as a number of a block's groups."""
    value, size = value.item() if isinstance(value, np.generic) else value, block.heads // block.groups
    if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
        raise InputError(f"keep is {cut(value)}; expected a number of heads, or a share of them such as 0.66")
    if isinstance(value, float) and 0 < value <= 1:
        return max(1, round(value * block.groups))
    if value % size or not 1 <= value <= block.heads:
        whole = f" in multiples of {size}, since {size} heads share keys," if size > 1 else ""
        raise InputError(f"keep is {value}; expected 1 to {block.heads} heads,{whole} or a share between 0 and 1")
    return int(value) // size


def group_scores(scores: np.ndarray, blocks: Sequence[Block]) -> list[np.ndarray]:
    """The summed scores of each block's groups, L arrays [groups], from scores of heads [L, H]."""
    return [row[: block.heads].reshape(block.groups, -1).sum(axis=1) for row, block in zip(scores, blocks, strict=True)]


def heads_of_groups(keep: Keep, blocks: Sequence[Block]) -> Keep:
    """The heads in the groups that each block keeps."""
    sizes = [block.heads // block.groups for block in blocks]
    rows = zip(keep, sizes, strict=True)
    return tuple(tuple(group * size + head for group in row for head in range(size)) for row, size in rows)


MIN_HELD_OUT, MAX_HELD_OUT = 64, 512  # limits of the number of held-out examples


def split_examples(examples: Examples, seed: int) -> tuple[Examples, Examples]:
    """Examples that score heads, and a random quarter (64 to 512, at most half) that compares plans."""
    total = len(examples)
    if total < 2:
        raise InputError(f"calibration data have {total} example; expected 2 or more, to score heads and compare plans")
    held_out = min(max(total // 4, MIN_HELD_OUT), MAX_HELD_OUT, total // 2)
    order = np.random.default_rng([seed, total]).permutation(total)
    return examples.take(np.sort(order[held_out:])), examples.take(np.sort(order[:held_out]))


ANY = 100.0  # margin that allows any loss


def within(loss: float, margin: float) -> bool:
    """Return True if a loss is at most the margin, except for rounding."""
    return loss <= margin + 1e-9


def error_kept(single: float, plan: float, margin: float) -> bool:
    """Return True if a plan's RMSE is at most ``margin`` per cent above the single model's."""
    return 100 * (plan - single) <= margin * single + 1e-9


def accuracy_kept(single: float, plan: float, margin: float) -> bool:
    """Return True if a plan loses at most ``margin`` percentage points of accuracy to the single model."""
    return 100 * (single - plan) <= margin + 1e-9
