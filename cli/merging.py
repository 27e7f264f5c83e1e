"""The drift of merging separately tuned members in words."""

from __future__ import annotations

from typing import Any


def drift_text(drift: dict[str, Any]) -> str:
    """The drift in one sentence."""
    text = (
        f"drift of averaging the shared parts, on {drift['inputs']}: "
        f"max |Δ logit| {drift['max_abs_logit_difference']:.3g}"
    )
    if drift["label_changes"] is not None:
        text += f", labels changed {drift['label_changes']:.1%}"
    if drift["accuracy"] is not None:
        text += f", accuracy {drift['accuracy']:.4f} (unmerged {drift['unmerged_accuracy']:.4f})"
    return text
