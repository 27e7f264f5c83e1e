"""Head plans of traced models: by Taylor importance or at random, in whole groups where heads share their keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...bundle.plan import HeadPlan, Keep
from ...bundle.traced import LACKS, Block, Traced
from ...data.batching import item_batches
from ...data.data_options import Reading
from ...data.examples import Examples, read_examples
from ...data.fingerprints import fingerprints
from ...data.label_encoding import batch_labels
from ...data.processor import Processor, from_transformers
from ...errors import InputError, cut
from ...families.checkpoint import load_processor, model_labels, own_processor
from ...progress import Progress
from ...tracing.loading import load_traced, modality_of, taken
from ...tracing.members import trace
from .drawing import drawn_scores
from .options import Budget, Method, Random, Taylor, deviation, name_of
from .selection import choose_apart, counts_of_layers, diversify
from .taylor import Losses, finite, losses_of


def plan_traced(
    model: Any,
    data: Any,
    methods: Sequence[Method],
    members: int,
    keep: Any,
    fork_from: int | None,
    reading: Reading,
    limit: int | None,
    seed: int,
    processor: Any,
    progress: Progress,
) -> HeadPlan:
    """A plan for a model whose attention is found by running it; the arguments are those of ``plan_heads``."""
    method = methods[0]
    if len(methods) > 1 or not isinstance(method, Taylor | Random):
        asked = ",".join(map(name_of, methods))
        raise InputError(f"method {asked} is not for traced models, which do without {LACKS}; choose taylor or random")
    if isinstance(keep, Budget):
        raise InputError(
            "a traced model has no estimate of its cost, and so no budget; say how many heads to keep, as a count or a "
            "share (keep=0.5, --keep 0.5)"
        )
    loaded = load_traced(model) if isinstance(model, str | Path) else taken(model)
    own = processor or own_processor(model, modality_of(type(loaded).__name__))
    architecture = trace(loaded, own)
    fork = _fork(fork_from, architecture)
    counts = group_counts(keep, members, architecture, fork)
    facts: dict[str, Any] = {"seed": seed, "traced": True, **({"fork_from": fork} if fork else {})}
    if isinstance(method, Random):
        if method.systematic:
            raise InputError(
                "systematic is given for a traced model, whose members are each drawn on their own; leave it out "
                "(--systematic)"
            )
        scores = drawn_scores([method] * members, architecture.layers, architecture.heads, seed)
    else:
        task = architecture.task
        drawn = read_examples(data, model_labels(loaded.config), columns=reading, limit=limit, seed=seed, task=task)

        def stored() -> Processor:
            return from_transformers(own or load_processor(model, architecture.modality), architecture)

        if processor is None and not isinstance(model, str | Path) and not drawn.ready:
            raise InputError(
                "the model was not loaded from a folder; give its tokenizer or image processor as processor=…"
            )
        ready = drawn.processor(architecture, stored)
        per_example = taylor_scores(loaded, architecture, drawn, ready, reading.batch_size, progress)
        scores = diversify(per_example, members, method.diversity, deviation(method), seed)
        facts |= {"data": drawn.name, "examples": len(drawn), "diversity": method.diversity}
        facts |= fingerprints(architecture.modality, data=drawn)
    tables = [group_scores(table, architecture.blocks) for table in scores]
    groups = choose_apart(tables, counts, range(members) if isinstance(method, Random) else ())
    chosen = tuple(heads_of_groups(each, architecture.blocks) for each in groups)
    plan = HeadPlan(architecture.family, architecture.layers, architecture.heads, chosen, name_of(method))
    return replace(plan, provenance={**facts, "keep": plan.head_counts(), "overlap": plan.overlap()})


def _fork(fork_from: int | None, architecture: Traced) -> int:
    if fork_from is not None and (type(fork_from) is not int or not 0 <= fork_from < architecture.layers):
        raise InputError(
            f"fork_from is {cut(fork_from)}; expected an attention block of the model, 0 to {architecture.layers - 1}"
        )
    return fork_from or 0


def group_counts(keep: Any, members: int, architecture: Traced, fork: int) -> list[list[int]]:
    """``keep`` as a number of groups [members][blocks]; a share is rounded to whole groups."""
    blocks = architecture.blocks
    rows = counts_of_layers(keep, members, len(blocks), fork)  # [members][blocks]; None below the fork
    return [[_groups(value, block, place) for place, (value, block) in enumerate(zip(row, blocks, strict=True))]
            for row in rows]  # fmt: skip


def _groups(value: Any, block: Block, place: int) -> int:
    size = block.heads // block.groups
    if value is None:
        return block.groups
    if isinstance(value, float) and 0 < value <= 1:
        return max(1, round(value * block.groups))
    if isinstance(value, bool) or not isinstance(value, int | float) or value % size:  # NaN of what is not finite
        raise InputError(
            f"keep is {cut(value)} in block {place}; expected a share, or a number of heads"
            + (f" that is a multiple of {size}, since so many share their keys" if size > 1 else "")
        )
    if not 1 <= value <= block.heads:
        raise InputError(
            f"keep is {value} in block {place}, which has {block.heads} heads; expected 1 to as many, or a share"
        )
    return int(value) // size


def group_scores(scores: np.ndarray, blocks: Sequence[Block]) -> list[np.ndarray]:
    """The summed score of each block's groups, [L] arrays [groups], from those of heads [L, H]."""
    return [row[: block.heads].reshape(block.groups, -1).sum(axis=1) for row, block in zip(scores, blocks, strict=True)]


def heads_of_groups(kept: Keep, blocks: Sequence[Block]) -> Keep:
    """The heads of the groups that each block keeps."""
    sizes = [block.heads // block.groups for block in blocks]
    return tuple(
        tuple(group * size + head for group in row for head in range(size))
        for row, size in zip(kept, sizes, strict=True)
    )


def taylor_scores(
    model: nn.Module,
    architecture: Traced,
    examples: Examples,
    processor: Processor,
    batch_size: int,
    progress: Progress,
) -> np.ndarray:
    """Importance of each head for each example, as of ``calib.heads.taylor``: [N, L, H]; 0 for heads that are not."""
    scores = np.zeros((len(examples), architecture.layers, architecture.heads), np.float32)
    labels = np.asarray(examples.labels)
    loss = losses_of(architecture, examples)
    steps = item_batches(examples.inputs, processor, architecture, batch_size)
    for places, items, arrays in progress(steps, -(-len(examples) // batch_size), "scoring attention heads"):
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        known = torch.from_numpy(batch_labels(items, labels[places], arrays))
        found = _batch_scores(model, architecture.blocks, tensors, known, loss)
        scores[places] = finite(found, architecture.family)
    return scores


def _batch_scores(
    model: nn.Module, blocks: Sequence[Block], inputs: dict[str, Tensor], labels: Tensor, losses: Losses
) -> np.ndarray:
    """[B, L, H] absolute sums of each head's output times its gradient.

    The output projection may read rows of windows or tokens first; rows belong to the examples in order.
    """
    most, count = max(block.heads for block in blocks), len(labels)
    found: dict[int, list[Tensor]] = {place: [] for place in range(len(blocks))}

    def note(place: int) -> Callable[[nn.Module, tuple[Tensor, ...]], tuple[Tensor]]:
        def read(_: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor]:
            states = arguments[0] if arguments[0].requires_grad else arguments[0].detach().requires_grad_()
            found[place].append(states)
            return (states,)

        return read

    handles = [
        model.get_submodule(block.output).register_forward_pre_hook(note(place)) for place, block in enumerate(blocks)
    ]
    try:
        with torch.enable_grad():
            loss = losses(model(**inputs).logits, labels).sum()  # examples stay independent
            flat = [states for place in range(len(blocks)) for states in found[place]]
            gradients = iter(torch.autograd.grad(loss, flat, allow_unused=True))
    finally:
        for handle in handles:
            handle.remove()
    scores = torch.zeros(count, len(blocks), most)
    for place, block in enumerate(blocks):
        total = torch.zeros(count, block.heads)
        for states in found[place]:
            gradient = next(gradients)
            if states.shape[0] % count:
                raise InputError(
                    f"{block.output} reads {list(states.shape)} for {count} inputs, whose rows cannot be told apart; "
                    "choose method 'random'"
                )
            if gradient is not None:
                terms = (states * gradient).detach().reshape(count, -1, block.heads, block.head_width)
                total += terms.sum(dim=(1, 3))
        scores[:, place, : block.heads] = total.abs()
    return scores.numpy()
