"""Which vectors of a network the distance is computed from."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ..bundle.architecture import Architecture
from ..bundle.traced import AnyArchitecture, Traced
from ..errors import InputError, cut

SETS = ("all", "last")
"""Sets of taps by name: every layer of the trunk and each member's last vector, or these alone."""


def named_taps(asked: Any, architecture: AnyArchitecture, trunk: int, members: int) -> dict[str, tuple[str, ...]]:
    """The sets of taps to choose from; there is one unless ``asked`` is ``"auto"``.

    Args:
        asked: ``"auto"``, ``"all"``, ``"last"``, or layers of the trunk, counted from 0: ``"1,3"`` or ``[1, 3]``.
        architecture: of the model.
        trunk: layers that all members share.
        members: M.

    Returns:
        Name → taps (``bundle.density``); the first is the default where nothing can choose.

    Raises:
        InputError: a name or layer that there is not.
    """
    if isinstance(architecture, Traced):
        return _traced_taps(asked, architecture, members)
    shared = min(trunk, architecture.layers - 1)  # behind the last layer nothing but the first token may be computed
    ends = ("", ".mean") if architecture.token_pooling == "first_and_mean" else ("",)
    last = tuple(f"last.{m}{end}" for m in range(members if trunk < architecture.layers else 1) for end in ends)
    kinds = _kinds(architecture)
    known = {"all": (*_of_layers(range(shared), kinds), *last), "last": last}
    if asked == "auto":
        names = SETS if architecture.modality == "text" and not architecture.every_token else SETS[::-1]
        return {name: known[name] for name in names}
    if asked in SETS:
        return {asked: known[asked]}
    layers = _layers(asked)
    outside = [layer for layer in layers if not 0 <= layer < shared]
    if outside or len(set(layers)) != len(layers) or not layers:
        there = f"0 to {shared - 1}" if shared else "none, since members differ from the first layer on"
        raise InputError(
            f"taps {cut(asked)} name layers; expected different ones of the trunk that all members share ({there}), "
            f"or {', '.join(('auto', *SETS))}"
        )
    return {",".join(map(str, layers)): (*_of_layers(layers, kinds), *last)}


def _traced_taps(asked: Any, architecture: Traced, members: int) -> dict[str, tuple[str, ...]]:
    """Each member's last vector, the only taps that a traced model has."""
    if architecture.every_token:
        raise InputError(
            "a traced model that tags tokens has no distance: what its classifier reads of each token is not looked "
            "for; calibrate without training data (fit=…, --fit), or fuse a family that hydrant writes itself"
        )
    if not architecture.width:
        raise InputError(
            f"the vector that the classifier of {architecture.model_class} reads was not found, so there is no "
            "distance; calibrate without training data (fit=…, --fit)"
        )
    if asked not in ("auto", "last"):
        raise InputError(f"taps is {cut(asked)}; expected last: a traced model has each member's last vector alone")
    return {"last": tuple(f"last.{member}" for member in range(members))}


def _kinds(architecture: Architecture) -> tuple[str, ...]:
    """The vectors of a layer: its mean, and the first token where there is one to tell of the whole input; or each."""
    if architecture.every_token:
        return ("token",)
    first = architecture.modality == "text" or architecture.prefix_tokens > 0
    return ("first", "mean") if first else ("mean",)


def _of_layers(layers: Sequence[int], kinds: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"layers.{layer}.{kind}" for layer in layers for kind in kinds)


def _layers(asked: Any) -> list[int]:
    given = asked.split(",") if isinstance(asked, str) else list(asked) if isinstance(asked, Sequence) else [asked]
    if not all(isinstance(layer, int) or re.fullmatch(r"\s*\d+\s*", str(layer)) for layer in given):
        raise InputError(f"taps is {cut(asked)}; expected auto, {', '.join(SETS)}, or layers such as 1,3")
    return [int(layer) for layer in given]
