"""``hydrant.estimate_cost``: operations, parameters and bytes of an ensemble."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..bundle.architecture import Architecture
from ..bundle.head_plan import HeadPlan
from ..bundle.manifest import MANIFEST
from ..bundle.store import Bundle
from ..models.plan_cost import Cost, cost_of


def estimate_cost(
    model: Any, plan: HeadPlan | None = None, *, batch: int = 1, sequence: int | None = None, precision: str = "fp32"
) -> Cost:
    """Estimate the cost of an ensemble without running it.

    Args:
        model: a transformers classifier, a path or hub name of one, a bundle or its path, or an ``Architecture``.
        plan: the heads of each member; a bundle has its own plan.
        batch: inputs per run B.
        sequence: tokens per input T, for text (default 128, or the model's maximum); images have a fixed number.
        precision: ``"fp32"``, ``"fp16"`` or ``"bf16"``: determines the bytes per number.

    Returns:
        Operations as in the exported graph (unrolled lowering: no padded heads).

    Raises:
        InputError: a batch or sequence that the model does not read, or no plan.
        PlanError: the plan is for a model of another shape.
    """
    if isinstance(model, str | Path) and (Path(model) / MANIFEST).is_file():
        model = Bundle.open(model)
    if not isinstance(model, Bundle | Architecture):
        from ..models.checkpoint import load_model
        from ..models.family_registry import architecture_of

        model = architecture_of(load_model(model) if isinstance(model, str | Path) else model)
    return cost_of(model, plan, batch=batch, sequence=sequence, precision=precision)
