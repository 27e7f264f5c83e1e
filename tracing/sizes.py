"""What a stored configuration may ask for: a model of the weights that lie beside it, and no larger.

A bundle may come from a stranger, and transformers makes whatever a configuration says, of any number of layers and
any width, before it can be compared with anything. So the model is first made without memory (PyTorch's device
``meta``), and given up as soon as it is larger than its weights.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from math import prod
from typing import Any

import torch

from ..errors import LARGEST as LONGEST
from ..errors import listing, literal
from .unfilled import Unfilled

LARGEST = 2**22
"""No size in a configuration is larger, unless a stored weight is as long: no number of layers, no vocabulary."""

LENGTHS = "position", "length", "window"
"""In the names of a configuration's numbers that nothing counts up to: a text may be as long as positions tell apart.
What is made of them is bounded as it is made."""

BASE = "theta"
"""In the names of a configuration's numbers that are no sizes: bases of rotary positions."""

TIMES, NUMBERS = 8, 2**26
"""A making goes through its weights' numbers twice or so; it may as often as this, and through so many more."""

CALLS, MORE_CALLS = 50, 10_000
"""It calls PyTorch six times or so for each weight; it may as often as this, and so many times more."""


def check_numbers(
    configuration: Mapping[str, Any], known: Collection[str], classes: int, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Any]:
    """Refuse sizes that no model of some weights has, since a class of configurations counts up to them.

    Args:
        configuration: as it is stored.
        known: names that its class knows; of others, which are notes of whoever trained it, large numbers are left out.
        classes: C.
        shapes: of the stored weights, by name.

    Returns:
        The configuration without these.

    Raises:
        ValueError: a number is too large.
    """
    most = max([LARGEST, *(side for shape in shapes.values() for side in shape)])
    found = {}
    for name, value in configuration.items():
        try:
            _check(value, classes, most, name)
        except ValueError:
            if name in known:
                raise
        else:
            found[name] = value
    return found


def _check(configuration: Any, classes: int, most: int, name: str) -> None:
    """Refuse what stands under a name; ``most`` is the largest size that is none of a text."""
    if isinstance(configuration, Mapping):
        for key, value in configuration.items():
            _check(value, classes, most, str(key))
    elif isinstance(configuration, list):
        for value in configuration:
            _check(value, classes, most, name)
    elif isinstance(configuration, int) and BASE not in name:
        size = LONGEST if any(part in name for part in LENGTHS) else most
        largest = classes if name == "num_labels" else size
        if configuration > largest:
            raise ValueError(f"{name[:60]} is {literal(configuration)}, beyond {largest}")


def check_made(make: Callable[[], Any], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse a model that has other weights than are stored; it is made without memory.

    Args:
        make: makes it.
        shapes: of the stored weights, by name.

    Raises:
        ValueError: it has others.
    """
    with torch.device("meta"), _Bounded(shapes):
        found = {name: tuple(tensor.shape) for name, tensor in make().state_dict().items()}
    wrong = sorted(name for name in {*found, *shapes} if found.get(name) != shapes.get(name))
    if wrong:
        raise ValueError(f"the weights beside it have other names or shapes: {listing(wrong, 3)}")


class _Bounded(Unfilled):
    """Within it, PyTorch makes no more than a model of some weights can need, in this thread."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        super().__init__()
        self._numbers = TIMES * sum(map(prod, shapes.values())) + NUMBERS
        self._calls = CALLS * len(shapes) + MORE_CALLS

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = super().__torch_function__(function, types, args, kwargs)
        self._calls -= 1
        if isinstance(made, torch.Tensor) and not any(made is given for given in args):
            self._numbers -= made.numel()
        if self._calls < 0 or self._numbers < 0:
            raise ValueError("it asks for a larger model than the weights beside it")
        return made
