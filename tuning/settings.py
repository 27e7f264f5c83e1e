"""How a tuning runs: the numbers that decide its result, checked before any long work."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from ..bundle.architecture import check_parts
from ..errors import InputError, check_plain, check_seed, cut, is_whole

Device = Literal["auto", "cpu"]
MixedPrecision = Literal["no", "bf16"]


@dataclass(frozen=True, kw_only=True)
class Jointly:
    """Tune all members at once: the loss is the mean of their cross-entropies.

    Attributes:
        epochs: passes over the data, at most.
        learning_rate: highest learning rate, reached after the warm-up.
        weight_decay: weight decay of AdamW, of everything but biases and LayerNorms.
        warmup: share of all updates over which the learning rate rises.
        patience: epochs without a better validation NLL after which tuning stops.
        unfreeze: also tune the layers below the fork, which all members share; without it they stay as they are, and
            an epoch costs the layers above them alone.
        freeze: number of layers, counted from the input, that stay as they are, instead of those below the fork: of
            one model, or of members that keep the same heads, which have no fork; 0 tunes all.
        device: device to tune on: a GPU if accelerate finds one (auto), or the CPU.
        mixed_precision: with bf16, products of matrices are computed in bfloat16, forward and back: faster where the
            GPU (compute capability 8.0 or more) or the CPU (AMX, AVX512-BF16) multiplies it itself. Weights, updates,
            the trunk and the judge of an epoch stay in float32.
        state: file that keeps how far tuning has come. If it exists, tuning goes on where it was interrupted, to the
            same weights; when the result is written it is deleted.
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
        for name, value in (("epochs", self.epochs), ("patience", self.patience)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"{name} is {cut(value)}; expected a whole number of 1 or more")
        for name, number, low, high, words in (
            ("learning_rate", self.learning_rate, 0.0, math.inf, "a finite number above 0, such as 5e-5"),
            ("weight_decay", self.weight_decay, -math.inf, math.inf, "a finite number, 0 or more"),
            ("warmup", self.warmup, -math.inf, 1.0, "a share of all updates, 0 or more and below 1"),
        ):
            fits = isinstance(number, int | float) and not isinstance(number, bool) and low < number < high
            if not fits or number < 0:
                raise InputError(f"{name} is {cut(number)}; expected {words}")
        if self.freeze is not None and not is_whole(self.freeze, 0):
            raise InputError(f"freeze is {cut(self.freeze)}; expected a number of layers, 0 or more")
        if self.freeze is not None and self.unfreeze:
            raise InputError(
                "freeze (--freeze) and unfreeze (--unfreeze) are given; expected one of them: how many layers stay as "
                "they are, or none"
            )
        for name, kinds in (("device", Device), ("mixed_precision", MixedPrecision)):
            if getattr(self, name) not in get_args(kinds):
                found, known = cut(getattr(self, name)), " or ".join(get_args(kinds))
                raise InputError(f"{name} {found} is unknown; expected {known}")


@dataclass(frozen=True, kw_only=True)
class PerMember(Jointly):
    """Tune each member alone, then merge them: own attention heads stay, what they shared is averaged.

    Each sees the examples in an order of its own, and has dropout of its own.

    Attributes:
        keep_separate: parts that are not averaged: embeddings, norms, mlp, pooler, classifier, or all.
    """

    keep_separate: str | Sequence[str] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_parts(self.keep_separate)


@dataclass(frozen=True, kw_only=True)
class BatchEnsemble(Jointly):
    """Tell members apart by factors of rank one around shared linear maps, then tune all jointly (Wen et al. 2020).

    Member m's weight is W ∘ (r_m s_mᵀ). From ``fork_from`` on each linear map that all members share gets factors:
    query, key, value, output projection, both of the MLP, pooler and classifier. Biases and LayerNorms stay shared.
    Afterwards the factors are multiplied into weights of each member's own.

    Attributes:
        fork_from: first layer that gets factors; what lies below stays one trunk. Without it the layer where the plan's
            members fork, or 0 where all members keep the same heads.
        deviation: standard deviation of the factors around 1, before the first update.
        factors_only: tune the factors alone and leave all shared weights as they are.
    """

    fork_from: int | None = None
    deviation: float = 0.05
    factors_only: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_plain(self)
        number = self.deviation
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number < math.inf:
            raise InputError(f"deviation is {cut(number)}; expected a finite number above 0, such as 0.05")
        if self.factors_only and self.unfreeze:
            raise InputError(
                "factors_only (--factors-only) and unfreeze (--unfreeze) are given; expected one of them: leave all "
                "shared weights as they are, or tune them below the fork, too"
            )


@dataclass(frozen=True)
class Settings:
    """Numbers of one tuning.

    Attributes:
        how: jointly or each member alone, and at which rates.
        batch_size: examples per update.
        seed: of the order of the examples, of dropout and of factors.
        trunk: layers, counted from the input, that stay as they are.
    """

    how: Jointly
    batch_size: int
    seed: int
    trunk: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed)

    def to_json(self) -> dict[str, Any]:
        """What decides the result, as a JSON object."""
        numbers: tuple[str, ...] = ("learning_rate", "weight_decay", "warmup", "patience")
        if isinstance(self.how, BatchEnsemble):
            numbers += ("fork_from", "deviation", "factors_only")
        return {
            "epochs": self.how.epochs,
            "batch_size": self.batch_size,
            **{name: getattr(self.how, name) for name in numbers},
            "seed": self.seed,
            "device": self.how.device,
            "mixed_precision": self.how.mixed_precision,
            "frozen": self.trunk,
        }
