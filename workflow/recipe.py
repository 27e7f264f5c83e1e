"""Options of ``make``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..bundle.architecture import Architecture
from ..calib.decisions.targets import Coverage, FalseAlarm
from ..calib.heads.methods import Budget, Circuit, Dropout, Method, name_of
from ..calib.taps import DistanceForm
from ..errors import InputError, check_plain, cut, is_whole
from ..tasks import TaskName
from ..tuning.settings import Device, Jointly, MixedPrecision, Taught

EVERY_TOKEN = 1.5
"""Default budget if the last layer runs on every token: three members can diverge in the last third."""

MEMBERS, EPOCHS, LEARNING_RATE = 3, 2, 1e-4

OF_ENSEMBLES = ("budget", "method", "control")
OF_TUNING = ("epochs", "learning_rate", "mixed_precision", "device")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Settings of ``make``.

    Attributes:
        members: number of members (default: 3, with teachers 1). 1 calibrates the single model and fits its distance,
            in seconds; with teachers it first learns their mean. As many members as teachers learn one each.
        budget: largest cost, relative to the single model's operations (default: 1.0, or 1.5). It is 1.5 if
            the classifier reads every token or patch of the last layer.
        method: head ranking: taylor, circuit or random, or one per member. A list such as taylor,random,random has one
            for each member. Circuits are searched for separation on the OOD data that choose; without such data, and
            for regression, for likelihood. In Python also an option object: ``Taylor(noise=1.0)``.
        fast: a first look: calibrate the single model with its distance, in seconds. Settings of ensembles must then
            keep their defaults.
        control: also tune the single model alike, to compare with. It is tuned above the members' fork and as a whole;
            both bundles are kept in ``OUTPUT.control``.
        epochs: largest number of passes over the training data (default: 2, with teachers 4).
        learning_rate: peak learning rate (default: 1e-4 above the fork; with teachers 2e-4 in all layers).
        mixed_precision: bf16 tunes in bfloat16 where the hardware supports it; weights stay in float32.
        device: device to tune on; auto is a GPU if PyTorch finds one.
        abstain: threshold for abstention.
        flags: threshold for flagging OOD inputs.
        distance_form: standardization of the distance, as in ``calibrate``: length or constant.
    """

    members: int | None = None
    budget: float | None = None
    method: str | Method = "taylor"
    fast: bool = False
    control: bool = False
    epochs: int | None = None
    learning_rate: float | None = None
    mixed_precision: MixedPrecision = "no"
    device: Device = "auto"
    abstain: Coverage = field(default_factory=Coverage)
    flags: FalseAlarm = field(default_factory=FalseAlarm)
    distance_form: DistanceForm = "length"

    def __post_init__(self) -> None:
        check_plain(self)
        Budget(1.0 if self.budget is None else self.budget)
        self.tuning()
        if self.members is not None and not is_whole(self.members, 1):
            raise InputError(f"members is {cut(self.members)}; expected a whole number, 1 or more")
        self._check_single(OF_ENSEMBLES)
        if self.fast and self.members not in (None, 1):
            raise InputError(f"members = {self.members} and fast exclude each other; omit one of them")
        if isinstance(self.method, Dropout) or "dropout" in _names(self.method):
            raise InputError(
                "method 'dropout' has no budget; expected taylor, circuit or random (for dropout: "
                "`hydrant plan --method dropout`, then `hydrant fuse`)"
            )

    @property
    def single(self) -> bool:
        """True for a bundle of one member with all heads, tuned only from teachers."""
        return self.fast or self.members == 1

    def resolved(self, teachers: int) -> Recipe:
        """Return the recipe with its defaults for a number of teachers."""
        if not teachers:
            self._check_single(OF_TUNING)
            members = 1 if self.single else self.members or MEMBERS
            rate = self.learning_rate or LEARNING_RATE
            return replace(self, members=members, epochs=self.epochs or EPOCHS, learning_rate=rate)
        if self.fast or self.control:
            name = "fast" if self.fast else "control"
            raise InputError(f"{name} excludes teachers, which train all members and their control; omit one of them")
        members = self.members or 1
        if members not in (1, teachers):
            wrong = f"members is {members} with {teachers} teachers"
            raise InputError(f"{wrong}; expected one for each, or 1, which learns their mean")
        rate = self.learning_rate or Taught.learning_rate
        return replace(self, members=members, epochs=self.epochs or Taught.epochs, learning_rate=rate)

    def _check_single(self, names: Sequence[str]) -> None:
        """Reject settings that a single model does not have."""
        for name in names if self.single else ():
            if getattr(self, name) != getattr(type(self), name):
                raise InputError(
                    f"{name} = {getattr(self, name)} is a setting of ensembles, but fast or members=1 asks for the "
                    "single model; omit one of them"
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
        return Jointly(**self._tuning())

    def teaching(self, teachers: Sequence[str | Path], unlabelled: Any) -> Taught:
        """Return the settings of learning from teachers."""
        return Taught(**self._tuning(), teachers=teachers, unlabelled=unlabelled)

    def _tuning(self) -> dict[str, Any]:
        return {name: value for name in OF_TUNING if (value := getattr(self, name)) is not None}


def _names(method: str | Method) -> list[str]:
    """Return the names in a comma-separated method."""
    return method.split(",") if isinstance(method, str) else []
