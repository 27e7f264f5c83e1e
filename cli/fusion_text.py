"""Adapters, and the error of averaging, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import short


def adapters_text(adapters: Sequence[Mapping[str, Any]], forms: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The members' adapters, and in what form their updates are stored; no line without adapters."""
    if not adapters:
        return []
    kept = [name for name, form in forms.items() if form["low_rank"]]
    ranks = sorted({form["rank"] for form in forms.values()})
    named = ", ".join(short(str(adapter.get("name")), 24) for adapter in adapters if isinstance(adapter, Mapping))
    rank = f", rank {ranks[0]}" if len(ranks) == 1 else f", ranks {ranks[0]}–{ranks[-1]}" if ranks else ""
    told = f": {len(forms) - len(kept)} of {len(forms)} updated weights merged, "
    told += f"low-rank: {short(_layers_text(kept), 90)}"
    return [f"adapters      {short(named, 90)}{rank}{told if forms else ''}"]


def _layers_text(modules: Sequence[str]) -> str:
    """``layers.1.attention.query``, … → ``layer 1 query value; layer 2 …``."""
    layers: dict[str, list[str]] = {}
    for name in modules:
        pieces = name.split(".")
        layers.setdefault(pieces[1] if len(pieces) > 1 else name, []).append(pieces[-1])
    return "; ".join(f"layer {layer} {' '.join(names)}" for layer, names in layers.items()) or "none"


def merge_error_text(drift: Mapping[str, Any]) -> str:
    """The error of averaging members that were tuned separately, in one sentence."""
    text = (
        f"drift of averaging the shared parts, on {drift['inputs']}: "
        f"max |Δ logit| {drift['max_abs_logit_difference']:.3g}"
    )
    if drift["label_changes"] is not None:
        text += f", labels changed {drift['label_changes']:.1%}"
    if drift["accuracy"] is not None:
        text += f", accuracy {drift['accuracy']:.4f} (unmerged {drift['unmerged_accuracy']:.4f})"
    return text
