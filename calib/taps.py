"""Taps: the feature vectors inside a network from which the distance is computed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np

from ..bundle.traced import AnyArchitecture
from ..errors import InputError, cut

DistanceForm = Literal["length", "constant"]  # location and scale of a tap: lines in 1/n for n tokens, or constants
WEIGHED = ("means", "balanced")  # sets in which the members' last vectors and the trunk have equal total weight


def named_taps(taps: Any, architecture: AnyArchitecture, trunk: int, members: int) -> dict[str, tuple[str, ...]]:
    """Sets of taps (``bundle.density_file``) by name: all for ``"auto"``, default first, or the requested set."""
    kinds, ends = architecture.layer_taps, architecture.last_taps
    if not ends:
        raise InputError(f"{architecture.family} has no known feature vectors for a distance; omit --fit")
    if taps not in ("auto", "last") and not kinds:
        raise InputError(f"taps is {cut(taps)}; expected last: traced models have only the members' last vectors")
    shared = min(trunk, len(architecture.tapped_layers))
    last = tuple(f"last.{m}{end}" for m in range(members if trunk < architecture.layers else 1) for end in ends)
    everything = (*_of_layers(range(shared), kinds), *last)
    sets = {"last": last, "all": everything, "balanced": everything}
    if architecture.modality == "text" and not architecture.every_token:
        second = range(shared)[::-2][::-1]  # counted from the last one
        sets["means"] = (*_of_layers(second, ("mean",)), *last)
        sets = dict(reversed(sets.items()))
    if taps == "auto":
        return sets if shared else {"last": last}
    if isinstance(taps, str) and taps in sets:
        return {taps: sets[taps]}
    layers = _layers(taps, sets)
    invalid = [layer for layer in layers if not 0 <= layer < shared]
    if invalid or len(set(layers)) != len(layers) or not layers:
        valid = f"0 to {shared - 1}" if shared else "none, since members differ from the first layer on"
        names = ", ".join(("auto", *sets))
        raise InputError(f"taps is {cut(taps)}; expected distinct layers of the trunk ({valid}), or {names}")
    return {",".join(map(str, layers)): (*_of_layers(layers, kinds), *last)}


def tap_weights(name: str, taps: Sequence[str]) -> np.ndarray:
    """Weight of each tap of a set in the distance, [K] with mean 1."""
    last = np.array([tap.startswith("last.") for tap in taps])
    if name not in WEIGHED or last.all():
        return np.ones(len(taps))
    return np.where(last, 1 / last.sum(), 1 / (~last).sum()) * len(taps) / 2


def _of_layers(layers: Sequence[int], kinds: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"layers.{layer}.{kind}" for layer in layers for kind in kinds)


def _layers(taps: Any, names: Iterable[str]) -> list[int]:
    layers = taps.split(",") if isinstance(taps, str) else list(taps) if isinstance(taps, Sequence) else [taps]
    if not all(isinstance(layer, int) or re.fullmatch(r"\s*\d+\s*", str(layer)) for layer in layers):
        raise InputError(f"taps is {cut(taps)}; expected {', '.join(('auto', *names))}, or layers such as 1,3")
    return [int(layer) for layer in layers]
