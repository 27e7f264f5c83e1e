"""How a tuning runs: the numbers that decide its result, checked before any long work."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from ..errors import InputError, cut

DEVICES = ("auto", "cpu")


@dataclass(frozen=True)
class Settings:
    """Numbers of one tuning.

    Attributes:
        epochs: passes over the data, at most.
        batch_size: examples per update.
        learning_rate: the highest one, reached after the warm-up.
        weight_decay: decoupled, of everything but biases and LayerNorms.
        warmup: share of all updates over which the learning rate rises.
        patience: epochs without a better validation NLL after which tuning stops.
        seed: of the order of the examples and of dropout.
        device: ``"auto"`` (what accelerate finds) or ``"cpu"``.
    """

    epochs: int
    batch_size: int
    learning_rate: float
    weight_decay: float
    warmup: float
    patience: int
    seed: int
    device: str

    def check(self) -> None:
        """Refuse numbers that no tuning can have.

        Raises:
            InputError: the first of them, with what was expected.
        """
        for name, value, least in (
            ("epochs", self.epochs, 1),
            ("batch_size", self.batch_size, 1),
            ("patience", self.patience, 1),
            ("seed", self.seed, 0),
        ):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InputError(f"{name} is {cut(value)}; expected a whole number of {least} or more")
        for name, number, low, high, words in (
            ("learning_rate", self.learning_rate, 0.0, math.inf, "a finite number above 0, such as 5e-5"),
            ("weight_decay", self.weight_decay, -math.inf, math.inf, "a finite number, 0 or more"),
            ("warmup", self.warmup, -math.inf, 1.0, "a share of all updates, 0 or more and below 1"),
        ):
            fits = isinstance(number, int | float) and not isinstance(number, bool) and low < number < high
            if not fits or number < 0:
                raise InputError(f"{name} is {cut(number)}; expected {words}")
        if self.device not in DEVICES:
            raise InputError(f"device {cut(self.device)} is unknown; expected {' or '.join(DEVICES)}")

    def to_json(self) -> dict[str, Any]:
        """The fields as a JSON object."""
        return asdict(self)
