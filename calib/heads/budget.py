"""Head plans under a budget of operations: where to fork, and how many heads to keep in each layer.

A plan *forks* at the first layer where its members differ; below, one trunk keeps every head and runs once.
For every fork the search knows two ways to spread heads over the layers above it: as many in each (uniform), or
by importance, the head that matters most first (ranked). Of each way it tries the largest plan whose estimated
cost fits the budget and three smaller ones, since heads are nearly free in a late layer and members that keep
almost all of them agree on everything.

The objective is the negative log-likelihood of held-out calibration examples: probabilities are averaged, then
one temperature is fitted, then it is measured. Without the temperature it would count the lower confidence of
pruned members, which calibration takes away, and always prefer the plan that prunes least. Of the plans that the
examples cannot tell from the best one (within one standard error of the paired difference), that of highest
mutual information wins: diversity that costs nothing measurable. On a tie, the cheaper one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...bundle.architecture import Architecture
from ...bundle.plan import HeadPlan, Keep
from ...cost.estimate import cost_of
from ...data.batching import batches
from ...data.examples import Examples
from ...data.processor import Processor
from ...errors import InputError
from ...families.registry import architecture_of, layout_of
from ...progress import Progress, no_progress
from .selection import choose_heads
from .taylor import gated_heads

SELECTION = 64, 512
"""Fewest and most examples held out for the choice, where there are enough."""


SHARES = 1.0, 0.75, 0.5, 0.25
"""Of the plans of one fork that fit, smallest first: which are tried."""


TEMPERATURES = tuple(2 ** (step / 4) for step in range(-8, 9))
"""Tried for the calibrated objective: 0.25 to 4."""


@dataclass(frozen=True)
class Candidate:
    """A plan that fits the budget.

    Attributes:
        fork: first layer where members differ; every head stays below.
        counts: heads that each member keeps, [L].
        members: their heads.
        ratio: estimated operations ÷ those of the plain single model.
    """

    fork: int
    counts: tuple[int, ...]
    members: tuple[Keep, ...]
    ratio: float


@dataclass(frozen=True)
class Trial:
    """A candidate measured on held-out examples, after fitting one temperature.

    Attributes:
        candidate: what was measured.
        temperature: of all member logits, fitted on these examples.
        losses: −log averaged probability of the label, nats, [N].
        accuracy: of the averaged probabilities.
        mutual_information: mean over examples, nats.
    """

    candidate: Candidate
    temperature: float
    losses: np.ndarray
    accuracy: float
    mutual_information: float

    @property
    def nll(self) -> float:
        """Mean of the losses."""
        return float(self.losses.mean())

    def to_json(self) -> dict[str, Any]:
        """One row of the table of candidates; figures rounded, the cost ratio upwards."""
        return {
            "fork": self.candidate.fork,
            "counts": list(self.candidate.counts),
            "ratio": round_up(self.candidate.ratio),
            "nll": round(self.nll, 5),
            "temperature": round(self.temperature, 3),
            "accuracy": round(self.accuracy, 4),
            "mutual_information": round(self.mutual_information, 5),
        }


def split_examples(examples: Examples, seed: int) -> tuple[Examples, Examples]:
    """Examples to score heads on, and a random quarter of them held out to choose plans on.

    The quarter is at least 64 and at most 512, but never more than half.

    Raises:
        InputError: fewer than two examples.
    """
    total = len(examples)
    if total < 2:
        raise InputError(
            f"a budget was given with {total} calibration example; expected at least 2, since one part scores heads "
            "and the other compares plans; give more data"
        )
    fewest, most = SELECTION
    held_out = min(max(total // 4, fewest), most, total // 2)
    order = np.random.default_rng([seed, total]).permutation(total)
    return _subset(examples, np.sort(order[held_out:])), _subset(examples, np.sort(order[:held_out]))


def mean_tokens(inputs: Sequence[Any], processor: Processor, architecture: Architecture) -> int | None:
    """Mean length of texts in tokens, rounded up, for the cost; ``None`` for images, which have their own."""
    if architecture.modality == "image":
        return None
    lengths = [item.tokens for item in processor.encode(inputs)]
    return min(math.ceil(sum(lengths) / len(lengths)), architecture.max_sequence)


def check_reachable(
    architecture: Architecture, members: int, budget: float, *, forks: Iterable[int], sequence: int | None
) -> None:
    """Refuse a budget below the cost of every plan, before any long work.

    Raises:
        InputError: not even the cheapest plan fits: one head in each layer from the fork on, the same one in all
            members but in the fork layer.
    """
    scores = np.zeros((members, architecture.layers, architecture.heads))
    scores[0, :, -1] = 1  # the first member prefers the last head, the others the first
    made = [_candidate(architecture, scores, fork, next(_uniform(architecture, fork)), sequence) for fork in forks]
    different = [candidate for candidate in made if candidate is not None]
    if not different:
        raise _alike(members)
    cheapest = min(different, key=lambda candidate: candidate.ratio)
    if cheapest.ratio > budget:
        raise _unreachable(budget, members, cheapest)


def find_candidates(
    architecture: Architecture, scores: np.ndarray, budget: float, *, forks: Iterable[int], sequence: int | None
) -> list[Candidate]:
    """Plans to try: up to eight for each fork, every one within the budget and with members that differ.

    Args:
        architecture: of the model.
        scores: [M, L, H], one table for each member.
        budget: most operations, in those of the plain single model.
        forks: layers to fork at.
        sequence: tokens per text, for the cost.

    Raises:
        InputError: no plan fits, or members never differ.
    """
    cheapest: Candidate | None = None
    found: dict[tuple[Keep, ...], Candidate] = {}
    for fork in forks:
        for allocations in (_uniform(architecture, fork), _ranked(architecture, scores, fork)):
            made = [_candidate(architecture, scores, fork, counts, sequence) for counts in allocations]
            different = [candidate for candidate in made if candidate is not None]
            cheapest = min([*different, *([cheapest] if cheapest else [])], key=lambda one: one.ratio, default=None)
            fitting = [candidate for candidate in different if candidate.ratio <= budget]
            for share in SHARES if fitting else ():
                chosen = fitting[max(0, math.ceil(share * len(fitting)) - 1)]
                found.setdefault(chosen.members, chosen)
    if cheapest is None:
        raise _alike(len(scores))
    if not found:
        raise _unreachable(budget, len(scores), cheapest)
    return list(found.values())


def measure(
    model: nn.Module,
    candidates: Sequence[Candidate],
    examples: Examples,
    processor: Processor,
    *,
    batch_size: int = 32,
    progress: Progress = no_progress,
) -> list[Trial]:
    """Try every candidate on held-out examples.

    Args:
        model: the transformers classifier; it runs in evaluation mode with pruned heads gated off.
        candidates: what to try; a member that several share runs once.
        examples: with labels.
        processor: makes the model's tensors.
        batch_size: examples per pass.
        progress: display.

    Returns:
        One trial for each candidate, in order.
    """
    labels = torch.from_numpy(np.asarray(examples.labels))
    keeps = list(dict.fromkeys(keep for candidate in candidates for keep in candidate.members))
    logits = _logits_of(model, keeps, examples.inputs, processor, batch_size, progress)
    trials = []
    for candidate in progress(candidates, len(candidates), "comparing plans"):
        stacked = torch.stack([logits[keep] for keep in candidate.members])
        trials.append(_trial(candidate, stacked, labels))
    return trials


def choose(trials: Sequence[Trial]) -> Trial:
    """Of the trials within one standard error of the least NLL, the most diverse; on a tie the cheapest."""
    best = min(trials, key=lambda trial: (trial.nll, trial.candidate.ratio))
    level = [trial for trial in trials if _as_good(trial.losses - best.losses)]
    return max(level, key=lambda trial: (trial.mutual_information, -trial.candidate.ratio))


def round_up(ratio: float) -> float:
    """A cost ratio to three decimals, never below it."""
    return math.ceil(ratio * 1000) / 1000


def _alike(members: int) -> InputError:
    return InputError(
        f"the {members} members keep the same heads in every plan, so there is nothing to choose under a budget; "
        "expected members that differ; raise the noise, or use another seed or diversity"
    )


def _unreachable(budget: float, members: int, cheapest: Candidate) -> InputError:
    return InputError(
        f"budget {budget:g} cannot be reached: the cheapest plan of {members} members costs {round_up(cheapest.ratio)} "
        f"× the single model's operations (fork at layer {cheapest.fork}); give a budget of at least "
        f"{round_up(cheapest.ratio)}, or fewer members or a later fork"
    )


def _as_good(differences: np.ndarray) -> bool:
    """Whether losses [N] above the best plan's are within one standard error of none."""
    return bool(differences.mean() <= differences.std() / math.sqrt(len(differences)))


def _subset(examples: Examples, indices: np.ndarray) -> Examples:
    labels = None if examples.labels is None else np.asarray(examples.labels)[indices]
    return Examples([examples.inputs[index] for index in indices], labels, examples.source)


def _uniform(architecture: Architecture, fork: int) -> Iterator[list[int]]:
    """Head counts [L] that are equal in all layers from the fork on, fewest first."""
    layers, heads = architecture.layers, architecture.heads
    for count in range(1, max(heads, 2)):
        yield [heads] * fork + [count] * (layers - fork)


def _ranked(architecture: Architecture, scores: np.ndarray, fork: int) -> Iterator[list[int]]:
    """Head counts [L] that add one head after the other by importance, fewest first.

    Importance is the members' mean, divided by its norm in the layer: layers of large scores take no more than
    others. Every layer has one head before any has two.
    """
    mean = np.asarray(scores, np.float64).mean(axis=0)[fork:]
    share = mean / np.maximum(np.linalg.norm(mean, axis=1, keepdims=True), np.finfo(np.float64).tiny)
    rest = -np.sort(-share, axis=1)[:, 1:]  # [L − fork, H − 1], best first
    counts = [architecture.heads] * fork + [1] * len(mean)
    yield list(counts)
    for index in np.argsort(-rest, axis=None, kind="stable"):
        counts[fork + int(index) // rest.shape[1]] += 1
        yield list(counts)


def _candidate(
    architecture: Architecture, scores: np.ndarray, fork: int, counts: Sequence[int], sequence: int | None
) -> Candidate | None:
    """The plan of these counts and its cost; ``None`` where the members do not part at the fork."""
    members = tuple(choose_heads(table, list(counts)) for table in scores)
    plan = HeadPlan(architecture.family, architecture.layers, architecture.heads, members, "budget")
    if plan.fork != fork:
        return None
    return Candidate(fork, tuple(counts), members, cost_of(architecture, plan, sequence=sequence).ratio)


def _trial(candidate: Candidate, logits: Tensor, labels: Tensor) -> Trial:
    """Fit the temperature of member logits [M, N, C] and measure."""
    losses = [_losses(logits / temperature, labels) for temperature in TEMPERATURES]
    best = int(np.argmin([float(loss.mean()) for loss in losses]))
    logs = (logits / TEMPERATURES[best]).double().log_softmax(dim=-1)
    mean = logs.exp().mean(dim=0)
    information = torch.special.entr(mean).sum(dim=-1) + (logs.exp() * logs).sum(dim=-1).mean(dim=0)
    return Trial(
        candidate,
        TEMPERATURES[best],
        losses[best].numpy(),
        float((mean.argmax(dim=-1) == labels).double().mean()),
        float(information.clamp(min=0).mean()),
    )


def _losses(logits: Tensor, labels: Tensor) -> Tensor:
    """−log of the averaged probability of each label, [N] float64, from member logits [M, N, C]."""
    chosen = logits.gather(-1, labels.expand(len(logits), -1)[..., None])[..., 0]
    logs = (chosen - logits.logsumexp(dim=-1)).double()  # [M, N]
    return math.log(len(logits)) - logs.logsumexp(dim=0)


def _logits_of(
    model: nn.Module,
    keeps: Sequence[Keep],
    inputs: Sequence[Any],
    processor: Processor,
    batch_size: int,
    progress: Progress,
) -> dict[Keep, Tensor]:
    """Logits [N, C] float32 of every pruned member; what stands below its first pruned layer runs once a batch."""
    architecture = architecture_of(model)
    found = {keep: torch.empty(len(inputs), architecture.classes) for keep in keeps}
    title = f"running {len(keeps)} pruned members"
    steps = progress(batches(inputs, processor, architecture, batch_size), -(-len(inputs) // batch_size), title)
    training = model.training
    model.eval()
    try:
        for indices, arrays in steps:
            tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
            with torch.no_grad():
                trunk = _layer_outputs(model, tensors)
                for keep in keeps:
                    full = [len(kept) == architecture.heads for kept in keep]
                    fork = full.index(False) if False in full else len(full)
                    with _replayed(model, trunk[:fork]), gated_heads(model, _gates(keep, architecture.heads)):
                        found[keep][torch.from_numpy(indices)] = model(**tensors).logits.float()
    finally:
        model.train(training)
    return found


def _gates(keep: Keep, heads: int) -> list[Tensor]:
    """One [1, 1, H, 1] gate for each layer: 1 for heads that stay."""
    gates = torch.zeros(len(keep), 1, 1, heads, 1)
    for layer, kept in enumerate(keep):
        gates[layer, 0, 0, list(kept)] = 1
    return list(gates)


def _layers(model: nn.Module) -> list[nn.Module]:
    layout = layout_of(model)
    return [model.get_submodule(layout.layer.format(l=layer)) for layer in range(architecture_of(model).layers)]


def _layer_outputs(model: nn.Module, inputs: dict[str, Tensor]) -> list[Any]:
    """What each layer of the unpruned model returns."""
    found: list[Any] = []
    handles = [
        layer.register_forward_hook(lambda _module, _arguments, output: found.append(output))
        for layer in _layers(model)
    ]
    try:
        model(**inputs)
    finally:
        for handle in handles:
            handle.remove()
    return found


@contextmanager
def _replayed(model: nn.Module, outputs: Sequence[Any]) -> Iterator[None]:
    """Let the first layers return recorded outputs instead of running."""
    layers = _layers(model)[: len(outputs)]
    for layer, output in zip(layers, outputs, strict=True):
        layer.forward = lambda *_, output=output, **__: output
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward  # the class's own comes back
