"""How heads are chosen: one option type for each method, and a budget instead of a number of heads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from ...errors import InputError, cut

Diversity = Literal["noise", "bootstrap"]
Objective = Literal["separation", "nll", "both"]
Masking = Literal["pruned", "selected"]

NOISE = 0.5
"""Standard deviation of the noise where none is given."""

PSEUDO = "auto"
"""As out-of-distribution data: made from the labelled data (``data.corruptions``)."""


@dataclass(frozen=True)
class Taylor:
    """Keep the heads of highest Taylor importance.

    Attributes:
        diversity: how members are made to differ: by noise on the scores, or each scored on its own resample, with
            replacement, of the examples. A single member has neither.
        noise: standard deviation of the noise (default: 0.5): of the logarithm of Taylor scores, and of circuits'
            scores in units of their spread. With ε standard normal and summing to zero over the members,
            Taylor scores are multiplied by exp(noise · ε), and noise · ε · (spread of the layer's scores) is added to
            those of circuits.
    """

    diversity: Diversity = "noise"
    noise: float | None = None

    def __post_init__(self) -> None:
        _check_diversity(self.diversity, self.noise)


@dataclass(frozen=True)
class Circuit:
    """Keep the heads whose absence hurts an objective most, found layer by layer (``calib.heads.circuits``).

    The layers run on an NVIDIA GPU where PyTorch sees one.

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

    ood: Any = field(default=None, compare=False)  # a plan has one at most
    objective: Objective = "separation"
    masking: Masking = "pruned"
    average: bool = False
    diversity: Diversity = "bootstrap"
    noise: float | None = None
    max_accuracy_loss: float = 0.5
    state: str | Path | None = None

    def __post_init__(self) -> None:
        _check_name("objective", self.objective, get_args(Objective))
        _check_name("masking", self.masking, get_args(Masking))
        check_margin(self.max_accuracy_loss)
        _check_diversity(self.diversity, self.noise)
        if self.ood is None and self.objective != "nll":
            raise InputError(
                f"objective {self.objective!r} needs out-of-distribution data (--ood), or choose the objective 'nll'"
            )


@dataclass(frozen=True)
class Random:
    """Keep any heads, each with the same probability.

    Attributes:
        systematic: sample heads so that members share as few as possible. It is a systematic sample of each layer's
            heads instead of an independent one for each member. If each of M members keeps k of a layer's H heads,
            every head is kept by ⌊kM/H⌋ or ⌈kM/H⌉ of them.
    """

    systematic: bool = False


@dataclass(frozen=True)
class Dropout:
    """Drop each head with a probability, for each member and layer on its own: dropout whose masks are drawn once.

    At least one head stays in every layer. What stays is not scaled by 1 / (1 − rate), as dropout in training scales
    it: a plan says which heads are kept, and nothing of their weights.

    Attributes:
        rate: probability that a head is dropped, above 0 and below 1.
    """

    rate: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.rate < 1:
            raise InputError(f"rate is {cut(self.rate)}; expected a probability above 0 and below 1, such as 0.1")


Method = Taylor | Circuit | Random | Dropout
"""How the heads of a member are chosen."""

METHODS: dict[str, type[Method]] = {"taylor": Taylor, "circuit": Circuit, "random": Random, "dropout": Dropout}
"""The name of each method in plans; alone it means the defaults."""


@dataclass(frozen=True)
class Budget:
    """Most operations that a plan may cost: where to fork and how many heads to keep follows from it.

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
            raise InputError(f"budget is {cut(self.ratio)}; expected a positive number, as 1.25")


def method_of(asked: str | Method) -> Method:
    """A method, given as such or by its name."""
    if isinstance(asked, Method):
        return asked
    _check_name("method", asked, tuple(METHODS))
    return METHODS[asked]()


def methods_of(asked: str | Method | Sequence[str | Method], members: int) -> list[Method]:
    """The method of all members, or one for each."""
    if members < 1:
        raise InputError(f"members is {members}; expected a whole number, 1 or more")
    several = asked.split(",") if isinstance(asked, str) else [asked] if isinstance(asked, Method) else list(asked)
    if len(several) not in (1, members):
        raise InputError(
            f"method has {len(several)} entries {cut(asked)} for {members} members; expected 1 or {members}"
        )
    methods = [method_of(one) for one in several]
    for method in methods if len(methods) > 1 else []:
        if isinstance(method, Dropout):
            raise InputError("method 'dropout' is given beside others; its rate decides for all members: give it alone")
        if isinstance(method, Circuit) and method.average:
            raise InputError("average is given with a method for each member; averaged circuits make one member")
    return methods


def of_members(methods: Sequence[Method], members: int) -> tuple[Method, ...]:
    """The method of each member: one may stand for all."""
    return tuple(methods) * (members if len(methods) == 1 else 1)


def groups_of(methods: Sequence[Method]) -> list[tuple[Method, list[int]]]:
    """Each method with the members that it chooses, and makes differ from each other."""
    groups: dict[Method, list[int]] = {}
    for member, method in enumerate(methods):
        groups.setdefault(method, []).append(member)
    return list(groups.items())


def check_margin(points: float) -> None:
    """Refuse what is no share of the answers that a plan may lose."""
    if not 0 <= points < math.inf:
        raise InputError(f"max_accuracy_loss is {cut(points)}; expected percentage points, 0 or more")


def is_pseudo(ood: Any) -> bool:
    """Whether out-of-distribution data are to be made from the labelled ones."""
    return isinstance(ood, str) and ood == PSEUDO


def name_of(method: Method) -> str:
    """By which plans call a method."""
    return next(name for name, kind in METHODS.items() if isinstance(method, kind))


def deviation(method: Taylor | Circuit) -> float:
    """The noise of a method, or what it is where none is given."""
    return NOISE if method.noise is None else method.noise


def _check_name(what: str, value: Any, known: tuple[str, ...]) -> None:
    if value not in known:
        raise InputError(f"{what} {cut(value)} is unknown; expected one of {', '.join(known)}")


def _check_diversity(diversity: str, noise: float | None) -> None:
    _check_name("diversity", diversity, get_args(Diversity))
    if noise is None:
        return
    if not 0 <= noise < math.inf:
        raise InputError(f"noise is {cut(noise)}; expected a finite number, 0 or more")
    if diversity != "noise":
        raise InputError(f"noise is given for diversity {diversity!r}; expected diversity 'noise', or neither")
