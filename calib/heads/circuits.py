"""Circuits: the heads that uncertainty rests on, found layer by layer (after HeadMap, Wang et al. 2025).

From the first layer to the last: with heads of earlier layers masked, and later layers whole, mask each head of the
layer in turn and evaluate the objective (``calib.heads.objectives``) on the validation set. A head's score is the
objective without it, so a high score marks a head that is missed. The k heads of highest score are the layer's part of
the circuit and stay, where k is what ``keep`` says of the layer. A layer that keeps all heads is not scored.

Which heads of earlier layers are masked: by default those that were *pruned*, so that at the end the masked model is
the member that the plan describes. HeadMap masks those that were *selected*; with the few heads that it selects that
asks what they leave to later layers, but with two thirds of them masked little of the model is left to be asked, and
the circuits are worse (docs/research/clinc150.md).

M circuits differ by noise on the scores (ε standard normal, zero in sum over the circuits, times ``noise``, times the
spread of the layer's scores: 1.4826 × their median absolute deviation), or by resamples of the validation set.
The average of M circuits (CircAvg) keeps the heads whose scores, averaged over the circuits, are highest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...bundle.architecture import Architecture
from ...bundle.head_plan import Keep
from ...data.examples import Examples
from ...data.processor import Processor
from ...errors import InputError, cut
from ...models.family_registry import read_weights
from ...progress import Progress, no_progress
from .masking import MaskedRuns
from .objectives import Answers, Statistics, evaluate
from .search_state import SearchState, digest_of
from .selection import choose_heads, deviates, resampled_counts


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
        result = Circuits(members, search.scores(), search.figures([everything]), search.figures(members))
    except torch.OutOfMemoryError as error:
        raise InputError(
            f"the GPU has too little free memory for the circuits ({cut(error, 120)}); give smaller batches"
        ) from error
    return result


class _Search:
    """One search: examples, weights, and the scores found so far."""

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
        parts = {f"data {known.source}": known.inputs}
        if unknown is not None:
            parts[f"ood data {unknown.source}"] = unknown.inputs
        self.settings = settings
        self.runs = MaskedRuns(model, parts, processor, batch_size)
        self.architecture: Architecture = self.runs.architecture
        self.answers = Answers(self.architecture, known, self.runs.words)
        if settings.objective != "nll" and not self.answers.has_uncertainty:
            raise InputError(
                f"the objective {settings.objective!r} is of entropies, and a score has none; choose 'nll'"
            )
        circuits, heads, layers = len(settings.counts), self.architecture.heads, self.architecture.layers
        bootstrap = settings.diversity == "bootstrap" and circuits > 1
        sizes = len(known), 0 if unknown is None else len(unknown)
        self._weights = [
            resampled_counts(sizes, settings.seed, circuit) if bootstrap else [np.ones(size) for size in sizes]
            for circuit in range(circuits)
        ]
        noise = settings.noise if settings.diversity == "noise" and circuits > 1 else 0.0
        self._noise = noise * deviates(circuits, (layers, heads), settings.seed) if noise else None
        digest = "" if state is None else self._digest(model, batch_size, sizes)
        self.state = SearchState(state, digest, (circuits, heads))

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
            told = ([float(f"{score:.6g}") for score in row] if count < len(row) else None for row, count in rows)
            found.append(list(told))
        return found

    def figures(self, members: Sequence[Keep]) -> dict[str, float]:
        """Accuracy, NLL and AUROC of averaged probabilities on the validation set; of a regression the RMSE."""
        logits = torch.stack([self.runs.pruned(keep) for keep in members])
        return {name: round(value, 5) for name, value in self.answers.figures(logits).items()}

    def _follow(self, circuit: int, keep: Keep = ()) -> Keep:
        """The circuit from ``keep`` on, up to the first layer whose scores are not known yet."""
        for layer in range(len(keep), self.architecture.layers):
            count = self.settings.counts[circuit][layer]
            if count == self.architecture.heads:
                keep = (*keep, tuple(range(count)))
                continue
            if keep not in self.state:
                break
            scores = self.state[keep][circuit]
            if self._noise is not None:
                scores = scores + self._noise[circuit, layer] * _spread(scores)
            keep = (*keep, *choose_heads(scores[None], [count]))
        return keep

    def _score(self, keep: Keep) -> Iterator[int]:
        """Score the layer above ``keep`` for all circuits, batch after batch."""
        heads, known = self.architecture.heads, len(self.answers.labels)
        losses, entropy = np.empty((heads, known)), np.empty((heads, known + len(self._weights[0][1])))
        for indices, logits in self.runs.each_head_masked(self._running(keep)):
            if not logits.isfinite().all():
                raise InputError(
                    f"the model gives logits that are not finite (NaN or infinity) with a head of layer {len(keep)} "
                    "masked; check its weights"
                )
            self._fill(losses, entropy, indices, logits)
            yield from range(self.architecture.layers - len(keep))
        found = Statistics(losses, entropy[:, :known], entropy[:, known:])
        tables = [evaluate(self.settings.objective, found, *weights) for weights in self._weights]
        self.state.add(keep, np.stack(tables))

    def _running(self, keep: Keep) -> Keep:
        """Heads of earlier layers that are not masked while the layer above ``keep`` is scored."""
        if self.settings.masking == "pruned":
            return keep
        heads = set(range(self.architecture.heads))
        return tuple(kept if len(kept) == len(heads) else tuple(sorted(heads - set(kept))) for kept in keep)

    def _fill(self, losses: np.ndarray, entropy: np.ndarray, indices: np.ndarray, logits: Tensor) -> None:
        labels = self.answers.labels
        inside = np.flatnonzero(indices < len(labels))
        losses[:, indices[inside]] = self.answers.losses(logits[:, inside], labels[indices[inside]])
        entropy[:, indices] = self.answers.entropies(logits)

    def _raw(self, circuit: int, keep: Keep) -> np.ndarray:
        """Scores of the circuit before noise, [L, H]; zero in layers that keep all heads."""
        table = np.zeros((self.architecture.layers, self.architecture.heads))
        for layer, count in enumerate(self.settings.counts[circuit]):
            if count < self.architecture.heads:
                table[layer] = self.state[keep[:layer]][circuit]
        return table

    def _digest(self, model: nn.Module, batch_size: int, sizes: tuple[int, int]) -> str:
        settings: dict[str, Any] = {**vars(self.settings), "batch_size": batch_size, "sizes": sizes}
        settings["counts"] = [list(row) for row in self.settings.counts]
        settings["order"] = [batch.tolist() for batch in self.runs.batches]
        batches = (self.runs.tensors(batch) for batch in range(len(self.runs.batches)))
        return digest_of(settings, read_weights(model), batches, self.answers.labels)


def _spread(scores: np.ndarray) -> float:
    """1.4826 × median absolute deviation: the standard deviation, unmoved by a head that stands out."""
    return float(1.4826 * np.median(np.abs(scores - np.median(scores))))
