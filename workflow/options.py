"""How a bundle is made: what the stages are told beside the data."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..calib.decisions.targets import Coverage, FalseAlarm
from ..calib.heads.options import Budget, Method
from ..errors import InputError, check_plain, cut, is_whole
from ..tuning.settings import Jointly


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What to make.

    Attributes:
        members: number of members.
        budget: most operations that the plan may cost, in those of the plain single model.
        method: how heads are scored (``plan_heads``).
        fast: leave the tuning out: minutes less, and less of the uncertainty that it brings.
        epochs: passes over the training data, at most.
        learning_rate: highest learning rate of the tuning, which only the layers above the fork take part in.
        abstain: when to abstain.
        flags: what to call out of distribution.
    """

    members: int = 3
    budget: float = 1.0
    method: str | Method = "taylor"
    fast: bool = False
    epochs: int = 2
    learning_rate: float = 1e-4
    abstain: Coverage = field(default_factory=Coverage)
    flags: FalseAlarm = field(default_factory=FalseAlarm)

    def __post_init__(self) -> None:
        check_plain(self)
        Budget(self.budget)
        self.tuning()
        if not is_whole(self.members, 2):
            raise InputError(f"members is {cut(self.members)}; expected a whole number, 2 or more")

    def tuning(self) -> Jointly:
        """How the members are tuned."""
        return Jointly(epochs=self.epochs, learning_rate=self.learning_rate)
