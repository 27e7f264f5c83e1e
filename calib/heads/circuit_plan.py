"""Circuits as a method of planning: what they read, and what their plans record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from ...bundle.plan import Keep
from ...data.examples import Examples
from ...data.processor import Processor
from ...errors import InputError
from ...progress import Progress, no_progress
from .circuits import Circuits, Settings, find_circuits


def plan_circuits(
    model: nn.Module,
    known: Examples,
    unknown: Examples | None,
    processor: Processor,
    settings: Settings,
    *,
    batch_size: int = 32,
    state: str | Path | None = None,
    progress: Progress = no_progress,
) -> tuple[tuple[Keep, ...], dict[str, Any]]:
    """Search circuits (``calib.heads.circuits.find_circuits``).

    Returns:
        The heads of each member, and what the plan's provenance tells beside the data.

    Raises:
        InputError: inputs that the model cannot read, or a state of another search.
    """
    if settings.average and any(row != settings.counts[0] for row in settings.counts):
        raise InputError("average is given with a keep for each circuit; expected one keep for all of them")
    file = None if state is None else Path(state)
    found = find_circuits(
        model, known, unknown, processor, settings, batch_size=batch_size, state=file, progress=progress
    )
    return found.members, _provenance(unknown, settings, found)


def _provenance(unknown: Examples | None, settings: Settings, found: Circuits) -> dict[str, Any]:
    """OOD data, search and figures; scores by circuit, layer and head."""
    facts: dict[str, Any] = {}
    if unknown is not None:
        facts = {"ood": unknown.name, "ood_examples": len(unknown)}
    facts |= {
        "objective": settings.objective,
        "masking": settings.masking,
        "circuits": len(settings.counts),
        "average": settings.average,
    }
    if len(settings.counts) > 1:
        facts["diversity"] = settings.diversity
        facts |= {"noise": settings.noise} if settings.diversity == "noise" else {}
    return facts | {"scores": found.scores, "validation": {"before": found.before, "after": found.after}}
