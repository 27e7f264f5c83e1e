"""Cost of members in each declared family: operations ÷ those of the plain single model, as in `hydrant inspect`.

    python benchmarks/family_costs.py    # write the table in docs/research/latency.md

Costs are from ``hydrant.estimate_cost`` for each family's base-sized configuration in transformers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import harness
import transformers
from harness import ROOT, random_plan
from hydrant.bundle.architecture import Architecture
from hydrant.models.family_registry import LAYOUTS
from hydrant.models.layout import Layout
from hydrant.models.plan_cost import cost_of

PAGE = ROOT / "docs" / "research" / "latency.md"
SHARE = 3  # Heads ÷ kept heads in the layers where members differ
HEAD = ["class", "layers × heads", "tokens", "single, rewritten", "last layer", "last third", "first layer"]

BASE: dict[str, dict[str, Any]] = {
    "electra": {"embedding_size": 768, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
}
"""Base sizes where the configuration's defaults are smaller."""


def main() -> None:
    logging.disable(logging.WARNING)
    harness.put_into(PAGE, table(), "cost")


def table() -> str:
    return harness.table(HEAD, [row(layout, each) for layout, each in shapes()])


def shapes() -> Iterator[tuple[Layout, Architecture]]:
    for layout in LAYOUTS:
        model_class = getattr(transformers, layout.model_class)
        config = model_class.config_class(**BASE.get(layout.family, {}))
        yield layout, layout.architecture(config)


def row(layout: Layout, architecture: Architecture) -> list[str]:
    """Row of one class: cost ratios with forks at three layers."""
    layers, keep = architecture.layers, max(1, architecture.heads // SHARE)
    forks = (layers - 1, layers - max(1, layers // 3), 0)
    costs = [cost_of(architecture, random_plan(architecture, keep, fork)) for fork in forks]
    alone = costs[0].single_rewritten.flops / costs[0].single.flops
    ratios = [f"{each:.2f}" for each in (alone, *(c.ratio for c in costs))]
    return [f"`{layout.model_class}`", f"{layers} × {architecture.heads}", f"{costs[0].sequence}", *ratios]


if __name__ == "__main__":
    main()
