"""Which vectors of a network the distance is computed from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..bundle.traced import AnyArchitecture, Traced
from ..errors import InputError, cut

SETS = ("means", "balanced", "all", "last")
"""Sets of taps: members' last vectors with the means of every second layer of a text trunk, with every layer at equal
total weight, with every layer each weighed alike, or alone."""
WEIGHED = ("means", "balanced")
"""Sets in which the members' last vectors together count as much as the trunk."""


def named_taps(asked: Any, architecture: AnyArchitecture, trunk: int, members: int) -> dict[str, tuple[str, ...]]:
    """The sets of taps (``bundle.density_file``) by name, default first: all for ``"auto"``, or the one asked for."""
    ends: tuple[str, ...] = ("",)
    if isinstance(architecture, Traced):
        _check_traced(asked, architecture)
        shared = min(trunk, len(architecture.tapped_layers))
    else:  # behind the last layer nothing but the first token may be computed
        shared = min(trunk, architecture.layers - 1)
        ends = ("", ".mean") if architecture.token_pooling == "first_and_mean" else ends
    last = tuple(f"last.{m}{end}" for m in range(members if trunk < architecture.layers else 1) for end in ends)
    kinds = _kinds(architecture)
    everything = (*_of_layers(range(shared), kinds), *last)
    known = {"last": last, "all": everything, "balanced": everything}
    if architecture.modality == "text" and not architecture.every_token:
        second = range(shared)[::-2][::-1]  # counted from the last one
        known["means"] = (*_of_layers(second, ("mean",)), *last)
        known = dict(reversed(known.items()))
    if asked == "auto":
        return known if shared else {"last": last}
    if isinstance(asked, str) and asked in known:
        return {asked: known[asked]}
    layers = _layers(asked, known)
    outside = [layer for layer in layers if not 0 <= layer < shared]
    if outside or len(set(layers)) != len(layers) or not layers:
        there = f"0 to {shared - 1}" if shared else "none, since members differ from the first layer on"
        names = ", ".join(("auto", *known))
        raise InputError(f"taps {cut(asked)} name layers; expected different ones of the trunk ({there}), or {names}")
    return {",".join(map(str, layers)): (*_of_layers(layers, kinds), *last)}


def tap_weights(name: str, taps: Sequence[str]) -> np.ndarray:
    """How much each tap of a set counts in the distance, [K] with mean 1."""
    last = np.array([tap.startswith("last.") for tap in taps])
    if name not in WEIGHED or last.all():
        return np.ones(len(taps))
    return np.where(last, 1 / last.sum(), 1 / (~last).sum()) * len(taps) / 2


def _check_traced(asked: Any, architecture: Traced) -> None:
    """Refuse what a traced model does not have; one that does not hand out its layers has each member's last vector."""
    if not architecture.width:
        raise InputError(f"the features of {architecture.model_class} are unknown, so there is no distance; omit --fit")
    if asked not in ("auto", "last") and not architecture.hidden_states:
        raise InputError(f"taps is {cut(asked)}; expected last: a traced model has each member's last vector alone")


def _kinds(architecture: AnyArchitecture) -> tuple[str, ...]:
    """The vectors of a layer: its mean, and the first token where there is one to tell of the whole input; or each."""
    if isinstance(architecture, Traced) or architecture.every_token:  # of traced models taggers alone have layers
        return ("token",)
    first = architecture.modality == "text" or architecture.prefix_tokens > 0
    return ("first", "mean") if first else ("mean",)


def _of_layers(layers: Sequence[int], kinds: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"layers.{layer}.{kind}" for layer in layers for kind in kinds)


def _layers(asked: Any, names: Iterable[str]) -> list[int]:
    given = asked.split(",") if isinstance(asked, str) else list(asked) if isinstance(asked, Sequence) else [asked]
    if not all(isinstance(layer, int) or re.fullmatch(r"\s*\d+\s*", str(layer)) for layer in given):
        raise InputError(f"taps is {cut(asked)}; expected {', '.join(('auto', *names))}, or layers such as 1,3")
    return [int(layer) for layer in given]
