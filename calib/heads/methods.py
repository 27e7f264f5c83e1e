"""Options of head plans: one type for each method, and a budget in place of a number of heads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from ...errors import InputError, check_choice, cut

Diversity = Literal["noise", "bootstrap"]
Objective = Literal["separation", "nll", "both"]
Masking = Literal["pruned", "selected"]
NOISE = 0.5  # default standard deviation of the noise
PSEUDO = "auto"  # value of ``ood`` that synthesises OOD data from the labelled data (``data.corruptions``)


@dataclass(frozen=True)
class Taylor:
    """Keep the heads of highest Taylor importance.

    Attributes:
        diversity: source of differences between members: noise on scores, or resamples of examples (bootstrap). A
            single member has neither.
        noise: standard deviation of the noise on scores (default: 0.5). With ε standard normal and summing to zero over
            the members, Taylor scores are multiplied by exp(noise · ε). Circuits' scores are increased by
            noise · ε · (spread of the layer's scores).
    """

    diversity: Diversity = "noise"
    noise: float | None = None

    def __post_init__(self) -> None:
        _check_diversity(self.diversity, self.noise)


@dataclass(frozen=True)
class Circuit:
    """Keep the heads whose removal hurts an objective most, searched layer by layer (``calib.heads.circuits``).

    The search uses an NVIDIA GPU if PyTorch has one.

    Attributes:
        ood: OOD data, or auto to synthesise them from the labelled data. They take any form of the labelled data;
            labels are ignored. ``auto`` makes texts of shuffled words, halves of two texts and another script; images
            of shuffled patches, halves of two images and corruptions. Not needed for the objective ``"nll"``.
        objective: what circuits are for: to separate out-of-distribution inputs from the others by predictive entropy,
            likelihood (nll), or both.
        masking: heads of earlier layers that are masked while a layer is scored: those pruned, or those selected, as
            HeadMap does.
        average: make a plan of one member, the average of all circuits (CircAvg).
        diversity: as in ``Taylor``.
        noise: as in ``Taylor``.
        max_accuracy_loss: percentage points of accuracy that may be lost. They are measured on examples held out of the
            search; for regression, it is per cent by which RMSE may rise. Beyond it more heads are kept, or members
            fork later. 100 or more takes any circuit, and holds nothing out.
        state: folder that keeps what the search has found. If it exists the search goes on where it was interrupted;
            when the search is complete, or its circuits lose too much, it is deleted.
    """

    ood: Any = field(default=None, compare=False)  # a plan has at most one
    objective: Objective = "separation"
    masking: Masking = "pruned"
    average: bool = False
    diversity: Diversity = "bootstrap"
    noise: float | None = None
    max_accuracy_loss: float = 0.5
    state: str | Path | None = None

    def __post_init__(self) -> None:
        check_choice("objective", self.objective, get_args(Objective))
        check_choice("masking", self.masking, get_args(Masking))
        check_margin(self.max_accuracy_loss)
        _check_diversity(self.diversity, self.noise)
        if self.ood is None and self.objective != "nll":
            raise InputError(f"objective {self.objective!r} needs out-of-distribution data; give ood (--ood) or 'nll'")


@dataclass(frozen=True)
class Random:
    """Keep random heads, each with the same probability.

    Attributes:
        systematic: sample heads so that members share as few as possible. It is a systematic sample of each layer's
            heads instead of an independent one for each member. If each of M members keeps k of a layer's H heads,
            every head is kept by ⌊kM/H⌋ or ⌈kM/H⌉ of them.
    """

    systematic: bool = False


@dataclass(frozen=True)
class Dropout:
    """Drop each head with a probability, independently by member and layer: dropout with fixed masks.

    At least one head stays in every layer. Kept heads are not scaled by 1 / (1 − rate), unlike in training: a plan does
    not change weights.

    Attributes:
        rate: probability to drop a head, above 0 and below 1.
    """

    rate: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.rate < 1:
            raise InputError(f"rate is {cut(self.rate)}; expected a probability above 0 and below 1, such as 0.1")


Method = Taylor | Circuit | Random | Dropout  # method that chooses the heads of a member
METHODS: dict[str, type[Method]] = {"taylor": Taylor, "circuit": Circuit, "random": Random, "dropout": Dropout}


@dataclass(frozen=True)
class Budget:
    """Largest cost of a plan in operations, which decides fork and number of heads.

    Attributes:
        ratio: largest cost in operations, relative to the single model, such as 1.25. Fork and number of heads follow.
        to_tune: plan for tuning: few heads for each member, and as early a fork as the budget allows. Members keep a
            third of the heads or two at most, from the earliest layer of the last third that the budget allows. Such
            members detect OOD inputs best once they are tuned; before, they may be worse than members that keep more.
    """

    ratio: float = 1.0
    to_tune: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.ratio < math.inf:
            raise InputError(f"budget is {cut(self.ratio)}; expected a positive number such as 1.25")


def method_of(method: str | Method) -> Method:
    """The method itself, or the method of this name with default options."""
    if isinstance(method, Method):
        return method
    check_choice("method", method, METHODS)
    return METHODS[method]()


def methods_of(method: str | Method | Sequence[str | Method], members: int) -> list[Method]:
    """One method for all members, or one for each."""
    if members < 1:
        raise InputError(f"members is {members}; expected a whole number, 1 or more")
    several = method.split(",") if isinstance(method, str) else [method] if isinstance(method, Method) else list(method)
    if len(several) not in (1, members):
        raise InputError(f"method has {len(several)} entries {cut(method)} for {members} members; give 1 or {members}")
    methods = [method_of(one) for one in several]
    for each in methods if len(methods) > 1 else []:
        if isinstance(each, Dropout):
            raise InputError("method 'dropout' applies to all members, so cannot be combined with others; use it alone")
        if isinstance(each, Circuit) and each.average:
            raise InputError("average needs one method, since averaged circuits form one member; give one method")
    return methods


def of_members(methods: Sequence[Method], members: int) -> tuple[Method, ...]:
    """The method of each member; a single method applies to all."""
    return tuple(methods) * (members if len(methods) == 1 else 1)


def groups_of(methods: Sequence[Method]) -> list[tuple[Method, list[int]]]:
    """Each method with the members whose heads it chooses together."""
    groups: dict[Method, list[int]] = {}
    for member, method in enumerate(methods):
        groups.setdefault(method, []).append(member)
    return list(groups.items())


def check_margin(points: float) -> None:
    """Raise ``InputError`` for a margin that is not a number of percentage points."""
    if not 0 <= points < math.inf:
        raise InputError(f"max_accuracy_loss is {cut(points)}; expected percentage points, 0 or more")


def is_pseudo(ood: Any) -> bool:
    """Return True if OOD data are to be synthesised from the labelled data."""
    return isinstance(ood, str) and ood == PSEUDO


def name_of(method: Method) -> str:
    """The name of a method in plans."""
    return next(name for name, kind in METHODS.items() if isinstance(method, kind))


def deviation(method: Taylor | Circuit) -> float:
    """The noise of a method, or its default."""
    return NOISE if method.noise is None else method.noise


def _check_diversity(diversity: str, noise: float | None) -> None:
    check_choice("diversity", diversity, get_args(Diversity))
    if noise is None:
        return
    if not 0 <= noise < math.inf:
        raise InputError(f"noise is {cut(noise)}; expected a finite number, 0 or more")
    if diversity != "noise":
        raise InputError(f"noise has no effect with diversity {diversity!r}; use diversity 'noise', or omit noise")
