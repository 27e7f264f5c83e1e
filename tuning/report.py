"""What a tuning did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Epoch:
    """Quality on the validation data after an epoch, at the temperature that suits it best.

    Attributes:
        epoch: 0 for before tuning.
        loss: mean training loss of the epoch's updates, nats; ``None`` for epoch 0.
        nll: of the averaged probabilities, nats; of a regression under normal errors (``metrics.scores``); where an
            example may have several labels that of all of them, a sum.
        accuracy: of the averaged probabilities; of several labels the share of examples all of whose are right at 0.5;
            ``None`` for a regression.
        ece: expected calibration error of the averaged probabilities, 15 bins, of several labels the mean over them;
            ``None`` for a regression.
        temperature: of least NLL on these data; 1 for a regression.
        rmse: of the scores of a regression; ``None`` otherwise.
    """

    epoch: int
    loss: float | None
    nll: float
    accuracy: float | None
    ece: float | None
    temperature: float
    rmse: float | None = None


def best_epoch(history: Sequence[Epoch]) -> int:
    """The epoch of the least validation NLL, the earliest of equal ones; 0 for before tuning."""
    return min(range(len(history)), key=lambda epoch: history[epoch].nll)


@dataclass(frozen=True)
class TuneReport:
    """What ``tune`` did and wrote.

    Attributes:
        bundle: the tuned bundle; where nothing improved, the bundle as it was (a copy, if another output was named).
        data, examples: name and number of the examples tuned on.
        validation, validation_examples: of those judged on.
        held_out: whether these were held out of ``data``.
        device: that it ran on.
        epochs: that ran; of members tuned alone, the most of any.
        best_epoch: whose weights were kept; 0: none was better than before, and nothing was changed.
        nll_before, nll_after, accuracy_before, accuracy_after, ece_before, ece_after: of the averaged
            probabilities on the validation data, each at its best temperature; after: of the weights that were kept.
            A regression has no accuracy and no ECE.
        history: epoch by epoch; empty for members tuned alone.
        members: for members tuned alone, the history of each.
        drift: of merging members tuned alone (``fusion.Drift``), else ``None``.
        unseen: classes without an example to tune on.
        graphs: graphs of the bundle that were exported again.
        dropped: what the untuned bundle had and the tuned one lacks → the command that makes it again.
        frozen: layers, counted from the input, that were left as they are.
        seconds: that tuning took, interruptions left out.
        rmse_before, rmse_after: of the scores of a regression; ``None`` otherwise.
    """

    bundle: Path
    data: str
    examples: int
    validation: str
    validation_examples: int
    held_out: bool
    device: str
    epochs: int
    best_epoch: int
    nll_before: float
    nll_after: float
    accuracy_before: float | None
    accuracy_after: float | None
    ece_before: float | None
    ece_after: float | None
    history: tuple[Epoch, ...]
    members: tuple[tuple[Epoch, ...], ...]
    drift: Mapping[str, Any] | None
    unseen: tuple[str, ...]
    graphs: tuple[str, ...]
    dropped: Mapping[str, str]
    frozen: int
    seconds: float
    rmse_before: float | None = None
    rmse_after: float | None = None

    @property
    def improved(self) -> bool:
        """Whether the weights were changed."""
        return self.best_epoch > 0

    def to_json(self) -> dict[str, Any]:
        """The fields as a JSON object."""
        return {**asdict(self), "bundle": str(self.bundle)}
