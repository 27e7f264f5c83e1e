"""Circuits: the heads that uncertainty rests on, found layer by layer (after HeadMap, Wang et al. 2025).

From the first layer to the last: with heads of earlier layers masked, and later layers whole, mask each head of the
layer in turn and evaluate the objective (``calib.heads.objectives``) on the validation set. A head's score is the
objective without it, so a high score marks a head that is missed. The k heads of highest score are the layer's part of
the circuit and stay, where k is what ``keep`` says of the layer. A layer that keeps all heads is not scored.

By default the heads of earlier layers that were *pruned* are masked, so that at the end the masked model is the member
that the plan describes. HeadMap masks those *selected*, which gives worse circuits of many heads
(docs/research/clinc150.md).

M circuits differ by noise on the scores (ε standard normal, zero in sum over the circuits, times ``noise``, times the
spread of the layer's scores: 1.4826 × their median absolute deviation), or by resamples of the validation set.
The average of M circuits (CircAvg) keeps the heads whose scores, averaged over the circuits, are highest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from ...bundle.head_plan import Keep
from ...bundle.progress_checkpoint import Checkpoint
from ...data.examples import Examples
from ...data.processor import Processor
from ...data.specs import Spec
from ...errors import InputError, cut
from ...models.family_registry import read_weights
from ...progress import Progress, no_progress
from .masking import MaskedRuns
from .objectives import Statistics, evaluate
from .selection import choose_heads, deviates, resampled_counts

SCORES = "scores.json"


class Layer(Spec, frozen=True):
    """Scores [circuits, H] of the layer above the heads that are kept below it."""

    keep: Keep
    scores: list[list[float]]


@dataclass(frozen=True)
class Settings:
    """How circuits are searched; ``counts`` of heads to keep are [circuits][layers]."""

    counts: Sequence[Sequence[int]]
    objective: str
    diversity: str
    noise: float
    average: bool
    seed: int
    masking: str = "pruned"


@dataclass(frozen=True)
class Circuits:
    """Heads that each member of the plan keeps, and figures on the validation set before pruning and after.

    ``scores`` are the objective without each head, [circuits][layers][heads]; ``None`` for a layer that keeps all.
    """

    members: tuple[Keep, ...]
    scores: list[list[list[float] | None]]
    before: dict[str, float]
    after: dict[str, float]


def find_circuits(
    model: nn.Module,
    known: Examples,
    unknown: Examples | None,
    processor: Processor,
    settings: Settings,
    *,
    batch_size: int = 32,
    state: Path | None = None,
    progress: Progress = no_progress,
) -> Circuits:
    """Search circuits of one model; the folder ``state`` keeps what is found."""
    try:
        search = _Search(model, known, unknown, processor, settings, batch_size, state)
        for _ in progress(search.steps(), search.total(), "searching circuits"):
            pass
        members = search.members()
        everything: Keep = (tuple(range(search.architecture.heads)),) * search.architecture.layers
        return Circuits(members, search.scores(), search.figures([everything]), search.figures(members))
    except torch.OutOfMemoryError as error:
        raise InputError(
            f"the GPU has too little free memory for the circuits ({cut(error, 120)}); give smaller batches"
        ) from error


class _Search:
    """One search: examples, weights, and the scores so far, by the heads kept below a layer."""

    def __init__(
        self,
        model: nn.Module,
        known: Examples,
        unknown: Examples | None,
        processor: Processor,
        settings: Settings,
        batch_size: int,
        state: Path | None,
    ) -> None:
        self.settings = settings
        self.runs = MaskedRuns(model, known, unknown, processor, batch_size)
        self.architecture = self.runs.architecture
        if settings.objective != "nll" and self.runs.questions.regression:
            raise InputError(f"the objective {settings.objective!r} is of entropies, and a score has none; use 'nll'")
        circuits, heads, layers = len(settings.counts), self.architecture.heads, self.architecture.layers
        bootstrap = settings.diversity == "bootstrap" and circuits > 1
        self._sizes = len(known), 0 if unknown is None else len(unknown)
        self._weights = [
            resampled_counts(self._sizes, settings.seed, circuit) if bootstrap else [np.ones(n) for n in self._sizes]
            for circuit in range(circuits)
        ]
        noise = settings.noise if settings.diversity == "noise" and circuits > 1 else 0.0
        self._noise = noise * deviates(circuits, (layers, heads), settings.seed) if noise else None
        digest = "" if state is None else self._digest(model, batch_size, known)
        self._checkpoint = Checkpoint(state, {"settings, data or model": digest}, "search")
        saved = self._checkpoint.read(SCORES, list[Layer]) if self._checkpoint.has(SCORES) else []
        self._tables = {layer.keep: np.array(layer.scores, np.float64) for layer in saved}

    def steps(self) -> Iterator[int]:
        """Score every layer of every circuit; one step is one layer's share of one batch."""
        for circuit in range(len(self._weights)):
            keep = self._follow(circuit)
            while len(keep) < self.architecture.layers:
                yield from self._score(keep)
                keep = self._follow(circuit, keep)

    def total(self) -> int:
        """Steps to come, at most: circuits may turn out to be alike."""
        layers, open_layers = self.architecture.layers, set()
        for circuit, counts in enumerate(self.settings.counts):
            keep = self._follow(circuit)
            scored = [layer for layer in range(len(keep), layers) if counts[layer] < self.architecture.heads]
            open_layers |= {(layer, keep if layer == len(keep) else circuit) for layer in scored}
        return len(self.runs.batches) * sum(layers - layer for layer, _ in open_layers)

    def members(self) -> tuple[Keep, ...]:
        """The kept heads of each member."""
        kept = [self._follow(circuit) for circuit in range(len(self._weights))]
        if not self.settings.average:
            return tuple(kept)
        tables = [self._raw(circuit, kept[circuit]) for circuit in range(len(kept))]
        return (choose_heads(np.mean(tables, axis=0), list(self.settings.counts[0])),)

    def scores(self) -> list[list[list[float] | None]]:
        """Scores before noise, six digits; ``None`` for layers that keep all heads."""
        found: list[list[list[float] | None]] = []
        for circuit, counts in enumerate(self.settings.counts):
            rows = zip(self._raw(circuit, self._follow(circuit)), counts, strict=True)
            found.append(
                [[float(f"{score:.6g}") for score in row] if count < len(row) else None for row, count in rows]
            )
        return found

    def figures(self, members: Sequence[Keep]) -> dict[str, float]:
        """Accuracy, NLL and AUROC of averaged probabilities on the validation set; of a regression the RMSE."""
        logits = torch.stack([self.runs.pruned(keep) for keep in members])
        figures = self.runs.questions.figures(logits, sum(self._sizes))
        return {name: round(value, 5) for name, value in figures.items()}

    def _follow(self, circuit: int, keep: Keep = ()) -> Keep:
        """The circuit from ``keep`` on, up to the first layer whose scores are not known yet."""
        for layer in range(len(keep), self.architecture.layers):
            count = self.settings.counts[circuit][layer]
            if count == self.architecture.heads:
                keep = (*keep, tuple(range(count)))
                continue
            if keep not in self._tables:
                break
            scores = self._tables[keep][circuit]
            if self._noise is not None:
                scores = scores + self._noise[circuit, layer] * _spread(scores)
            keep = (*keep, *choose_heads(scores[None], [count]))
        return keep

    def _score(self, keep: Keep) -> Iterator[int]:
        """Score the layer above ``keep`` for all circuits, batch after batch."""
        heads, known = self.architecture.heads, self._sizes[0]
        losses, entropy = np.zeros((heads, known)), np.zeros((heads, sum(self._sizes)))
        for batch, rows in enumerate(self.runs.each_head_masked(self._running(keep))):
            if not rows.isfinite().all():
                raise InputError(
                    f"the model gives logits that are not finite (NaN or infinity) with a head of layer {len(keep)} "
                    "masked; check its weights"
                )
            self.runs.questions.measure(batch, rows, losses, entropy)
            yield from range(self.architecture.layers - len(keep))
        statistics = Statistics(losses, entropy[:, :known], entropy[:, known:])
        tables = [evaluate(self.settings.objective, statistics, *weights) for weights in self._weights]
        self._tables[keep] = np.stack(tables)
        if self._checkpoint.folder is not None:
            self._checkpoint.write(SCORES, [Layer(keep, table.tolist()) for keep, table in self._tables.items()])

    def _running(self, keep: Keep) -> Keep:
        """Heads of earlier layers that are not masked while the layer above ``keep`` is scored."""
        if self.settings.masking == "pruned":
            return keep
        heads = set(range(self.architecture.heads))
        return tuple(kept if len(kept) == len(heads) else tuple(sorted(heads - set(kept))) for kept in keep)

    def _raw(self, circuit: int, keep: Keep) -> np.ndarray:
        """Scores of the circuit before noise, [L, H]; zero in layers that keep all heads."""
        table = np.zeros((self.architecture.layers, self.architecture.heads))
        for layer, count in enumerate(self.settings.counts[circuit]):
            if count < self.architecture.heads:
                table[layer] = self._tables[keep[:layer]][circuit]
        return table

    def _digest(self, model: nn.Module, batch_size: int, known: Examples) -> str:
        """Hexadecimal SHA-256 of everything that decides the search."""
        counts, order = [list(row) for row in self.settings.counts], [batch.tolist() for batch in self.runs.batches]
        settings = {**vars(self.settings), "batch_size": batch_size, "sizes": self._sizes, "counts": counts}
        digest = hashlib.sha256(json.dumps({**settings, "order": order}, sort_keys=True).encode())
        for tensors in (read_weights(model), *map(self.runs.tensors, range(len(self.runs.batches)))):
            for name, tensor in tensors.items():
                digest.update(f"{name} {list(tensor.shape)}".encode())
                digest.update(np.ascontiguousarray(tensor.numpy()).data)
        digest.update(np.ascontiguousarray(known.labels).data)
        return digest.hexdigest()


def _spread(scores: np.ndarray) -> float:
    """1.4826 × median absolute deviation: the standard deviation, unmoved by a head that stands out."""
    return float(1.4826 * np.median(np.abs(scores - np.median(scores))))
