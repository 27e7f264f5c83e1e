"""Circuits: the heads most important for an objective, searched layer by layer (after HeadMap, Wang et al. 2025).

The search goes from the first layer to the last, and masks each head of a layer in turn. The score of a head is the
objective (``calib.heads.objectives``) without it on the validation set; the circuit keeps the k heads of highest score.
Of earlier layers, the *pruned* heads are masked, so that the final masked model is the member of the plan, or the
*selected* heads, as HeadMap does, which gives worse circuits with many heads (docs/research/clinc150.md).

M circuits differ by resamples of the validation set, or by noise on the scores: ε standard normal with zero sum over
the circuits × ``noise`` × spread of the layer's scores (1.4826 × median absolute deviation). The average of M circuits
(CircAvg) keeps the heads of highest mean score.
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
from .methods import Circuit, deviation
from .objectives import evaluate
from .selection import choose_heads, deviates, resampled_counts

SCORES = "scores.json"
Counts = Sequence[Sequence[int]]  # heads of each member in each layer, [M][L]; groups of heads that share their keys


class Layer(Spec, frozen=True):
    """Scores [circuits, H] of a layer, and the heads that lower layers keep."""

    keep: Keep
    scores: list[list[float]]


@dataclass(frozen=True)
class Circuits:
    """Heads of each member, metrics before and after, ``scores`` [circuits][layers][heads] without each head."""

    members: tuple[Keep, ...]
    scores: list[list[list[float] | None]]
    before: dict[str, float]
    after: dict[str, float]


def find_circuits(model: nn.Module, examples: Examples, ood: Examples | None, processor: Processor, method: Circuit,
                  counts: Counts, seed: int, *, batch_size: int = 32, state: Path | None = None,
                  progress: Progress = no_progress) -> Circuits:  # fmt: skip
    """Search circuits that keep ``counts`` of heads; the folder ``state`` stores intermediate scores."""
    try:
        search = _Search(model, examples, ood, processor, method, counts, seed, batch_size, state)
        for _ in progress(search.steps(), search.total(), "searching circuits"):
            pass
        members = search.members()
        everything: Keep = (tuple(range(search.architecture.heads)),) * search.architecture.layers
        return Circuits(members, search.scores(), search.metrics([everything]), search.metrics(members))
    except torch.OutOfMemoryError as error:
        wrong = f"the GPU ran out of memory during the search of circuits ({cut(error, 120)})"
        raise InputError(f"{wrong}; use smaller batches") from error


class _Search:
    """One search: examples, weights, and the scores so far by the heads kept in lower layers."""

    def __init__(self, model: nn.Module, examples: Examples, ood: Examples | None, processor: Processor,
                 method: Circuit, counts: Counts, seed: int, batch_size: int, state: Path | None) -> None:  # fmt: skip
        self.method, self.counts, self.seed = method, counts, seed
        self.runs = MaskedRuns(model, examples, ood, processor, batch_size)
        self.architecture = self.runs.architecture
        if method.objective != "nll" and self.runs.questions.regression:
            raise InputError(f"the objective {method.objective!r} needs entropies; a regression has none: use 'nll'")
        circuits, heads, layers = len(counts), self.architecture.heads, self.architecture.layers
        bootstrap = method.diversity == "bootstrap" and circuits > 1
        self._sizes = len(examples), 0 if ood is None else len(ood)
        ones = [np.ones(size) for size in self._sizes]
        self._weights = [resampled_counts(self._sizes, seed, m) if bootstrap else ones for m in range(circuits)]
        noise = deviation(method) if method.diversity == "noise" and circuits > 1 else 0.0
        self._noise = noise * deviates(circuits, (layers, heads), seed) if noise else None
        digest = "" if state is None else self._digest(model, batch_size, examples)
        self._checkpoint = Checkpoint(state, {"settings, data or model": digest}, "search")
        saved = self._checkpoint.read(SCORES, list[Layer]) if self._checkpoint.has(SCORES) else []
        self._tables = {layer.keep: np.array(layer.scores, np.float64) for layer in saved}

    def steps(self) -> Iterator[int]:
        """Score every layer of every circuit; each step is one layer of one batch."""
        for circuit in range(len(self._weights)):
            keep = self._follow(circuit)
            while len(keep) < self.architecture.layers:
                yield from self._score(keep)
                keep = self._follow(circuit, keep)

    def total(self) -> int:
        """Largest number of remaining steps; equal circuits share theirs."""
        layers, open_layers = self.architecture.layers, set()
        for circuit, counts in enumerate(self.counts):
            keep = self._follow(circuit)
            scored = [layer for layer in range(len(keep), layers) if counts[layer] < self.architecture.heads]
            open_layers |= {(layer, keep if layer == len(keep) else circuit) for layer in scored}
        return len(self.runs.batches) * sum(layers - layer for layer, _ in open_layers)

    def members(self) -> tuple[Keep, ...]:
        """The heads of each member."""
        keeps = [self._follow(circuit) for circuit in range(len(self._weights))]
        if not self.method.average:
            return tuple(keeps)
        tables = [self._raw(circuit, keep) for circuit, keep in enumerate(keeps)]
        return (choose_heads(np.mean(tables, axis=0), list(self.counts[0])),)

    def scores(self) -> list[list[list[float] | None]]:
        """Scores before noise, with six digits; ``None`` for layers that keep all heads."""
        scores: list[list[list[float] | None]] = []
        for circuit, counts in enumerate(self.counts):
            rows = zip(self._raw(circuit, self._follow(circuit)), counts, strict=True)
            scores.append([[float(f"{each:.6g}") for each in row] if count < len(row) else None for row, count in rows])
        return scores

    def metrics(self, members: Sequence[Keep]) -> dict[str, float]:
        """Accuracy, NLL and AUROC of averaged probabilities on the validation set; RMSE of a regression."""
        metrics = self.runs.questions.metrics(self.runs.pruned(members), sum(self._sizes))
        return {name: round(value, 5) for name, value in metrics.items()}

    def _follow(self, circuit: int, keep: Keep = ()) -> Keep:
        """Extend the circuit ``keep`` up to the first layer without scores."""
        for layer in range(len(keep), self.architecture.layers):
            count = self.counts[circuit][layer]
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
        """Score the layer after ``keep`` for all circuits, batch by batch."""
        heads, count = self.architecture.heads, self._sizes[0]
        losses, entropy = np.zeros((heads, count)), np.zeros((heads, sum(self._sizes)))
        for batch, rows in enumerate(self.runs.each_head_masked(self._running(keep))):
            if not rows.isfinite().all():
                wrong = f"with a head of layer {len(keep)} masked, the model's logits are not finite (NaN or infinity)"
                raise InputError(f"{wrong}; check its weights")
            self.runs.questions.measure(batch, rows, losses, entropy)
            yield from range(self.architecture.layers - len(keep))
        sides = losses, entropy[:, :count], entropy[:, count:]
        tables = [evaluate(self.method.objective, *sides, *weights) for weights in self._weights]
        self._tables[keep] = np.stack(tables)
        if self._checkpoint.folder is not None:
            self._checkpoint.write(SCORES, [Layer(keep, table.tolist()) for keep, table in self._tables.items()])

    def _running(self, keep: Keep) -> Keep:
        """Unmasked heads of earlier layers during the scoring of the layer after ``keep``."""
        if self.method.masking == "pruned":
            return keep
        heads = set(range(self.architecture.heads))
        return tuple(row if len(row) == len(heads) else tuple(sorted(heads - set(row))) for row in keep)

    def _raw(self, circuit: int, keep: Keep) -> np.ndarray:
        """Scores of the circuit before noise, [L, H]; zero in layers that keep all heads."""
        table = np.zeros((self.architecture.layers, self.architecture.heads))
        for layer, count in enumerate(self.counts[circuit]):
            if count < self.architecture.heads:
                table[layer] = self._tables[keep[:layer]][circuit]
        return table

    def _digest(self, model: nn.Module, batch_size: int, examples: Examples) -> str:
        """Hexadecimal SHA-256 of everything that affects the search."""
        counts, order = [list(row) for row in self.counts], [batch.tolist() for batch in self.runs.batches]
        settings = {name: getattr(self.method, name) for name in ("objective", "masking", "average", "diversity")}
        settings |= {"noise": deviation(self.method), "seed": self.seed, "batch_size": batch_size, "counts": counts}
        settings |= {"sizes": self._sizes, "order": order}
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
        for tensors in (read_weights(model), *map(self.runs.tensors, range(len(self.runs.batches)))):
            for name, tensor in tensors.items():
                digest.update(f"{name} {list(tensor.shape)}".encode())
                digest.update(np.ascontiguousarray(tensor.numpy()).data)
        digest.update(np.ascontiguousarray(examples.labels).data)
        return digest.hexdigest()


def _spread(scores: np.ndarray) -> float:
    """1.4826 × median absolute deviation: a standard deviation robust to outliers."""
    return float(1.4826 * np.median(np.abs(scores - np.median(scores))))
