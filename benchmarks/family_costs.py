"""What members cost in each declared family: operations ÷ those of the plain single model, as `hydrant inspect` says.

    python benchmarks/family_costs.py    # writes the table in docs/research/latency.md

Nothing runs and no weights are made: the shapes are those of each family's base size, from the configurations of
transformers, the figures those of ``hydrant.estimate_cost``, which the tests hold to what exported graphs do.
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
SHARE = 3  # Of how many heads one is kept in the layers where members differ
HEAD = ["class", "layers × heads", "tokens", "single, rewritten", "last layer", "last third", "first layer"]

BASE: dict[str, dict[str, Any]] = {
    "electra": {"embedding_size": 768, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
}
"""What a base-sized model has where the configuration's own defaults are those of a smaller one."""


def main() -> None:
    logging.disable(logging.WARNING)
    harness.put_into(PAGE, table(), "cost")


def table() -> str:
    """The table in Markdown."""
    return harness.table(HEAD, [row(layout, each) for layout, each in shapes()])


def shapes() -> Iterator[tuple[Layout, Architecture]]:
    """Each declared class, and its shape at base size."""
    for layout in LAYOUTS:
        model_class = getattr(transformers, layout.model_class)
        config = model_class.config_class(**BASE.get(layout.family, {}))
        yield layout, layout.architecture(config)


def row(layout: Layout, architecture: Architecture) -> list[str]:
    """One class: the ratios of members that diverge at three layers."""
    layers, keep = architecture.layers, max(1, architecture.heads // SHARE)
    forks = (layers - 1, layers - max(1, layers // 3), 0)
    costs = [cost_of(architecture, random_plan(architecture, keep, fork)) for fork in forks]
    alone = costs[0].single_rewritten.flops / costs[0].single.flops
    ratios = [f"{each:.2f}" for each in (alone, *(c.ratio for c in costs))]
    return [f"`{layout.model_class}`", f"{layers} × {architecture.heads}", f"{costs[0].sequence}", *ratios]


if __name__ == "__main__":
    main()
