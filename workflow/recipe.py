"""Options of ``make``."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..bundle.architecture import Architecture
from ..calib.decisions.targets import Coverage, FalseAlarm
from ..calib.heads.methods import Budget, Circuit, Dropout, Method, name_of
from ..calib.taps import DistanceForm
from ..errors import InputError, check_plain, cut, is_whole
from ..tasks import TaskName
from ..tuning.settings import Jointly, MixedPrecision

EVERY_TOKEN = 1.5
"""Default budget if the last layer runs on every token: three members can diverge in the last third."""

TUNING = ("epochs", "learning_rate", "mixed_precision")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Settings of ``make``.

    Attributes:
        members: number of members.
        budget: largest cost, relative to the single model's operations (default: 1.0, or 1.5). It is 1.5 if
            the classifier reads every token or patch of the last layer.
        method: head ranking: taylor, circuit or random, or one per member. A list such as taylor,random,random has one
            for each member. Circuits are searched for separation on the OOD data that choose; without such data, and
            for regression, for likelihood. In Python also an option object: ``Taylor(noise=1.0)``.
        fast: skip tuning: saves minutes, but detects OOD inputs less well. The three parameters that follow must then
            keep their defaults.
        epochs: largest number of passes over the training data.
        learning_rate: peak learning rate; only layers above the fork are trained.
        mixed_precision: bf16 tunes in bfloat16 where the hardware supports it; weights stay in float32.
        abstain: threshold for abstention.
        flags: threshold for flagging OOD inputs.
        distance_form: standardization of the distance, as in ``calibrate``: length or constant.
    """

    members: int = 3
    budget: float | None = None
    method: str | Method = "taylor"
    fast: bool = False
    epochs: int = 2
    learning_rate: float = 1e-4
    mixed_precision: MixedPrecision = "no"
    abstain: Coverage = field(default_factory=Coverage)
    flags: FalseAlarm = field(default_factory=FalseAlarm)
    distance_form: DistanceForm = "length"

    def __post_init__(self) -> None:
        check_plain(self)
        Budget(1.0 if self.budget is None else self.budget)
        self.tuning()
        for name in TUNING:
            if self.fast and getattr(self, name) != getattr(type(self), name):
                raise InputError(
                    f"{name} = {getattr(self, name)} and fast exclude each other: fast skips tuning; omit one of them"
                )
        if not is_whole(self.members, 2):
            raise InputError(f"members is {cut(self.members)}; expected a whole number, 2 or more")
        if isinstance(self.method, Dropout) or "dropout" in _names(self.method):
            raise InputError(
                "method 'dropout' has no budget; expected taylor, circuit or random (for dropout: "
                "`hydrant plan --method dropout`, then `hydrant fuse`)"
            )

    def limit(self, architecture: Architecture) -> float:
        """Return the largest cost of a plan for this architecture."""
        if self.budget is not None:
            return self.budget
        return 1.0 if architecture.first_token_only else EVERY_TOKEN

    def methods(self, unknown: Any, task: TaskName, state: Path | None = None) -> Method | list[str | Method]:
        """Return the rankings of heads; circuits search on the OOD examples and save their state."""
        if isinstance(self.method, Circuit) and self.method.state is None:
            return replace(self.method, state=state)
        if not isinstance(self.method, str):
            return self.method
        blind = unknown is None or task == "score"
        circuit = Circuit(objective="nll", state=state) if blind else Circuit(ood=unknown, state=state)
        return [circuit if name == name_of(circuit) else name for name in _names(self.method)]

    def tuning(self) -> Jointly:
        """Return the settings of the tuning."""
        return Jointly(epochs=self.epochs, learning_rate=self.learning_rate, mixed_precision=self.mixed_precision)


def _names(method: str | Method) -> list[str]:
    """Return the names in a comma-separated method."""
    return method.split(",") if isinstance(method, str) else []
