"""What members cost in each declared family: operations ÷ those of the plain single model, as `hydrant inspect` says.

    python benchmarks/family_costs.py    # writes the table in docs/reference/cost.md

Nothing runs and no weights are made: the shapes are those of each family's base size, from the configurations of
transformers, the figures those of ``hydrant.estimate_cost``, which the tests hold to what exported graphs do.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import transformers
from hydrant import HeadPlan
from hydrant.bundle.architecture import Architecture
from hydrant.cost.estimate import cost_of
from hydrant.families.layout import Layout
from hydrant.families.registry import LAYOUTS

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "cost.md"
START, END = "<!-- cost: start -->", "<!-- cost: end -->"

MEMBERS, TOKENS, SHARE = 3, 128, 3
"""Members, tokens of a text, and of how many heads one is kept in the layers where members differ."""

BASE: dict[str, dict[str, Any]] = {
    "electra": {"embedding_size": 768, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072},
}
"""What a base-sized model has where the configuration's own defaults are those of a smaller one."""


def main() -> None:
    """Write the table into the page."""
    logging.disable(logging.WARNING)
    text = PAGE.read_text(encoding="utf-8")
    head, tail = text[: text.index(START) + len(START)], text[text.index(END) :]
    PAGE.write_text(f"{head}\n\n{table()}\n\n{tail}", encoding="utf-8")


def table() -> str:
    """The table in Markdown."""
    lines = [
        "| class | layers × heads | tokens | single, rewritten | last layer | last third | first layer |",
        "|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*lines, *(row(layout, each) for layout, each in shapes())])


def shapes() -> Iterator[tuple[Layout, Architecture]]:
    """Each declared class, and its shape at base size."""
    for layout in LAYOUTS:
        model_class = getattr(transformers, layout.model_class)
        config = model_class.config_class(**BASE.get(layout.family, {}))
        yield layout, layout.architecture(config)


def row(layout: Layout, architecture: Architecture) -> str:
    """One class: the ratios of members that part at three layers."""
    layers = architecture.layers
    costs = [
        cost_of(architecture, random_plan(architecture, fork)) for fork in (layers - 1, layers - max(1, layers // 3), 0)
    ]
    alone = costs[0].single_rewritten.flops / costs[0].single.flops
    cells = [
        f"{layers} × {architecture.heads}",
        f"{costs[0].sequence}",
        *(f"{each:.2f}" for each in (alone, *(c.ratio for c in costs))),
    ]
    return f"| `{layout.model_class}` | {' | '.join(cells)} |"


def random_plan(architecture: Architecture, fork: int) -> HeadPlan:
    """Every head below the fork, a third of them from it on, each member's drawn at random."""
    draw, whole = np.random.default_rng(0), tuple(range(architecture.heads))
    keep = max(1, architecture.heads // SHARE)
    members = tuple(
        tuple(
            whole if layer < fork else tuple(sorted(draw.choice(architecture.heads, keep, replace=False).tolist()))
            for layer in range(architecture.layers)
        )
        for _ in range(MEMBERS)
    )
    return HeadPlan(architecture.family, architecture.layers, architecture.heads, members, "random")


if __name__ == "__main__":
    main()
