"""Circuits as a method of planning: which options they take, and what their plans record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from ...bundle.plan import Keep
from ...data.examples import Examples, check_apart
from ...data.processor import Processor
from ...errors import InputError, cut
from ...progress import Progress, no_progress
from .circuits import MASKING, Circuits, Settings, find_circuits
from .objectives import OBJECTIVES, needs_ood

DEFAULT_OBJECTIVE = "separation"
"""The objective of the highest OOD AUROC on the validation split of CLINC150."""


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
    """Search circuits (``calib.circuits.find_circuits``).

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


def check_options(
    method: str,
    data: Any,
    ood: Any,
    objective: str | None,
    masking: str | None,
    *,
    average: bool,
    budget: float | None,
) -> None:
    """Refuse options that only circuits have, with another method, and circuits without what they need.

    Raises:
        InputError: what was found, expected, and to do.
    """
    if method != "circuit":
        given = {
            "ood data": ood is not None,
            "an objective": objective is not None,
            "masking": masking is not None,
            "average": average,
        }
        for name in (name for name, there in given.items() if there):
            raise InputError(
                f"{name} is given for method {method!r}, which has no use for it; expected method 'circuit'"
            )
        return
    objective = objective or DEFAULT_OBJECTIVE
    if objective not in OBJECTIVES:
        raise InputError(f"objective {cut(objective)} is unknown; expected one of {', '.join(OBJECTIVES)}")
    if masking is not None and masking not in MASKING:
        raise InputError(f"masking {cut(masking)} is unknown; expected one of {', '.join(MASKING)}")
    if budget is not None:
        raise InputError(
            f"budget {budget:g} is given for method 'circuit', whose scores depend on how many heads each earlier "
            "layer keeps; expected keep, and fork_from for a shared trunk; leave the budget out, or use method 'taylor'"
        )
    if data is None:
        raise InputError("method 'circuit' needs labelled validation data; give it with data=… (--data)")
    if ood is None and needs_ood(objective):
        raise InputError(
            f"objective {objective!r} needs out-of-distribution data; give it with ood=… (--ood), or choose the "
            "objective 'nll'"
        )
    check_apart(data, ood)


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
