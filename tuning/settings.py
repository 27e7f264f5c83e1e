"""Options of a tuning, and its report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from ..bundle.architecture import check_parts
from ..errors import InputError, check_seed, cut

Device = Literal["auto", "cpu", "gpu"]
MixedPrecision = Literal["no", "bf16"]


@dataclass(frozen=True, kw_only=True)
class Jointly:
    """Tune all members at once: the loss is the mean of their cross-entropies.

    Attributes:
        epochs: largest number of passes over the training data.
        learning_rate: peak learning rate, reached after the warm-up.
        weight_decay: AdamW weight decay; biases and LayerNorms do not decay.
        warmup: share of all updates over which the learning rate rises.
        patience: epochs without a better validation NLL after which tuning stops.
        unfreeze: also tune the shared layers below the fork; takes longer. Without it an epoch costs only the layers
            above the fork.
        freeze: number of first layers left untuned (default: those below the fork). For one model, or
            members that keep the same heads and have no fork. 0 tunes all.
        device: device to tune on; auto is a GPU if PyTorch finds one.
        mixed_precision: bf16 computes matrix products in bfloat16. Faster on GPUs of compute capability 8.0 or more
            and CPUs with AMX or AVX512-BF16. Weights, updates, the trunk and evaluation stay in float32.
        state: folder for progress; an interrupted tuning resumes from it, with the same result. Deleted once the result
            is written.
    """

    epochs: int = 5
    learning_rate: float = 5e-5
    weight_decay: float = 0.01
    warmup: float = 0.1
    patience: int = 2
    unfreeze: bool = False
    freeze: int | None = None
    device: Device = "auto"
    mixed_precision: MixedPrecision = "no"
    state: str | Path | None = None

    def __post_init__(self) -> None:
        _check(self, "epochs", self.epochs >= 1, "a whole number, 1 or more")
        _check(self, "patience", self.patience >= 1, "a whole number, 1 or more")
        _check(self, "learning_rate", 0 < self.learning_rate < math.inf, "a finite number above 0, such as 5e-5")
        _check(self, "weight_decay", 0 <= self.weight_decay < math.inf, "a finite number, 0 or more")
        _check(self, "warmup", 0 <= self.warmup < 1, "a share of all updates, 0 or more and below 1")
        _check(self, "freeze", self.freeze is None or self.freeze >= 0, "a number of layers, 0 or more")
        if self.freeze is not None and self.unfreeze:
            raise InputError("freeze (--freeze) excludes unfreeze (--unfreeze); expected one of them")
        for name, kinds in (("device", Device), ("mixed_precision", MixedPrecision)):
            _check(self, name, getattr(self, name) in get_args(kinds), " or ".join(get_args(kinds)))


@dataclass(frozen=True, kw_only=True)
class PerMember(Jointly):
    """Tune each member alone, then merge them: own attention heads stay, shared parts are averaged.

    Each member has its own order of examples and its own dropout.

    Attributes:
        keep_separate: parts that are not averaged: embeddings, norms, mlp, pooler, classifier, or all.
    """

    keep_separate: str | Sequence[str] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_parts(self.keep_separate)


@dataclass(frozen=True, kw_only=True)
class BatchEnsemble(Jointly):
    """Give members rank-one factors around shared linear maps, then tune all jointly (Wen et al. 2020).

    Member m's weight is W ∘ (r_m s_mᵀ). From ``fork_from`` on, each shared linear map gets factors: query, key, value,
    output projection, both MLP maps, pooler and classifier. Biases and LayerNorms stay shared. After tuning, factors
    are multiplied into one weight for each member.

    Attributes:
        fork_from: first layer with own factors (default: the plan's fork). Layers below it stay one trunk. The
            default is 0 if all members keep the same heads.
        deviation: standard deviation of the initial factors around 1.
        factors_only: tune only the factors, not the shared weights.
    """

    fork_from: int | None = None
    deviation: float = 0.05
    factors_only: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(self, "deviation", 0 < self.deviation < math.inf, "a finite number above 0, such as 0.05")
        if self.factors_only and self.unfreeze:
            raise InputError("factors_only (--factors-only) excludes unfreeze (--unfreeze); expected one of them")


@dataclass(frozen=True, kw_only=True)
class Taught(Jointly):
    """Learn from teachers: each member from one, or one member from their mean (Hinton et al. 2015, Tran et al. 2020).

    A teacher is a checkpoint of the same classes and preprocessing, of any size. Each member learns its teacher's
    probabilities; labels only choose the epoch. All layers are trained. From ``fork_from`` on, each member has its own
    linear maps.

    Attributes:
        teachers: checkpoints to learn from, one for each member; one member learns their mean.
        unlabelled: further inputs to learn from; labels are ignored.
        softening: temperature of the softmax of teachers and members in the loss.
        mean_epochs: first epochs in which every member learns the teachers' mean.
        mean_of_teachers: every member learns the teachers' mean in all epochs.
        views: number of fixed views of the inputs; each epoch takes the next. The first is unchanged; in others images
            are mirrored and shifted, and in texts 15 % of the tokens are hidden (token cutoff, Shen et al. 2020).
        fork_from: first layer with own linear maps (default: the plan's fork, else the last layer).
        teacher_outputs: folder that keeps the teachers' logits for later calls (default: with the progress).
    """

    teachers: Sequence[str | Path] = ()
    unlabelled: Any = None
    epochs: int = 4
    learning_rate: float = 2e-4
    freeze: int | None = 0
    softening: float = 1.0
    mean_epochs: int = 0
    mean_of_teachers: bool = False
    views: int = 4
    fork_from: int | None = None
    teacher_outputs: str | Path | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(self, "softening", 0 < self.softening < math.inf, "a finite number above 0, such as 1")
        _check(self, "views", self.views >= 1, "a whole number, 1 or more")

    def gives_own(self, members: int) -> bool:
        """Return True if each member gets linear maps of its own."""
        return members > 1 and not self.mean_of_teachers


def _check(options: Jointly, name: str, fits: bool, expected: str) -> None:
    if not fits:
        raise InputError(f"{name} is {cut(getattr(options, name))}; expected {expected}")


TAUGHT = ["softening", "mean_epochs", "mean_of_teachers", "views", "fork_from"]  # settings of the result


@dataclass(frozen=True)
class Settings:
    """Settings of one tuning; ``trunk`` counts the unchanged layers, from the input."""

    how: Jointly
    batch_size: int
    seed: int
    trunk: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed)

    def to_json(self) -> dict[str, Any]:
        """The settings that determine the result, as a JSON object."""
        names = ["epochs", "learning_rate", "weight_decay", "warmup", "patience", "device", "mixed_precision"]
        names += ["fork_from", "deviation", "factors_only"] if isinstance(self.how, BatchEnsemble) else []
        names += TAUGHT if isinstance(self.how, Taught) else []
        chosen = {name: getattr(self.how, name) for name in names}
        return {**chosen, "batch_size": self.batch_size, "seed": self.seed, "frozen": self.trunk}


@dataclass(frozen=True)
class Epoch:
    """Metrics of the ensemble on the validation data after an epoch, at its best temperature (``loop.measure``)."""

    epoch: int  # 0: before tuning
    loss: float | None  # mean training loss of the epoch's updates, nats
    nll: float  # nats; summed over labels for multi-label, under normal errors for regression
    accuracy: float | None  # for multi-label, the share of examples without an error
    ece: float | None
    temperature: float
    rmse: float | None = None  # for regression, which has no accuracy and no ECE


def derived_seed(seed: int, number: int) -> int:
    """A seed for one of many draws, independent of the others."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)[0] >> 1)


def best_epoch(history: Sequence[Epoch]) -> int:
    """Return the epoch with the lowest validation NLL, the earliest of equal ones; 0: before tuning."""
    return min(range(len(history)), key=lambda epoch: history[epoch].nll)


@dataclass(frozen=True)
class TuneReport:
    """Report of ``tune``.

    Attributes:
        bundle: the tuned bundle; without an improvement, the unchanged bundle (or a copy of it at ``output``).
        data, examples: name and number of the labelled training examples.
        validation, validation_examples: name and number of the validation examples.
        held_out: True if these were held out of ``data``.
        device: device that tuning ran on.
        epochs: number of epochs that ran; for members tuned alone, the largest.
        best_epoch: epoch of the saved weights; 0: no epoch improved, and the weights are unchanged.
        nll_before, nll_after, accuracy_before, accuracy_after, ece_before, ece_after: of the averaged probabilities on
            the validation data, each at its best temperature; after: with the saved weights. A regression has no
            accuracy and no ECE.
        history: epoch by epoch; empty for members tuned alone.
        members: for members tuned alone, the history of each.
        drift: merge error of members tuned alone (``fusion.MergeReport``), else ``None``.
        unseen: classes without a training example.
        graphs: graphs of the bundle that were exported again.
        dropped: files of the untuned bundle that the tuned one lacks → the command that makes each again.
        frozen: number of unchanged layers, counted from the input.
        seconds: duration of the call.
        unlabelled: number of further inputs that teachers labelled.
        rmse_before, rmse_after: RMSE of regression scores; ``None`` for other tasks.
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
    unlabelled: int = 0
    rmse_before: float | None = None
    rmse_after: float | None = None

    @property
    def improved(self) -> bool:
        """True if the weights changed."""
        return self.best_epoch > 0

    def to_json(self) -> dict[str, Any]:
        """The fields as a JSON object."""
        return {**asdict(self), "bundle": str(self.bundle)}
