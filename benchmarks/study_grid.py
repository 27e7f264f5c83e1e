"""Where detection comes from: fork × heads kept × tuned or not, with the single model tuned alike as the control.

    python benchmarks/study_grid.py clinc150 ../shared -o benchmarks/results/grid-clinc150.json
    python benchmarks/study_grid.py vision ../shared -o benchmarks/results/grid-vision.json

Beside the grid of random heads: the number of members, and what Taylor importance and circuits add to random heads, at
one point of it. Every point is made from three seeds, tuned on 6,000 training examples in the layers from its fork on,
however many members it has, and measured on the test splits by its calibrated scores. Members that keep all heads are
alike: the single model, tuned from that layer on; that of the control is tuned whole. Writes the tables and the picture
of docs/findings.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import hydrant
import numpy as np
import study_figures as figures
import study_table as tables
from harness import about
from study import Bundles, Fork, Outputs
from study_clinc150 import Clinc150
from study_picture import draw_grid
from study_run import Subject, finding_options, open_subject
from study_vision import Vision
from training import in_parallel

EXAMPLES = 6_000
SEEDS = (0, 1, 2)

FIGURES = {
    "accuracy": "accuracy",
    "ood.predictive_entropy.auroc": "OOD AUROC by entropy",
    "ood.predictive_entropy.fpr95": "OOD FPR95 by entropy",
    "ood.energy.auroc": "OOD AUROC by energy",
}

PICTURE = (
    "{}: accuracy, AUROC and FPR95 by entropy; above against the heads kept from each fork on, below against the "
    "number of members, with Taylor importance and circuits beside random heads; what is far worse lies outside"
)


@dataclass(frozen=True)
class Grid:
    """What is measured.

    Attributes:
        forks: layers.
        heads: kept above them.
        point: fork and heads at which members and methods are compared.
        members: numbers of them.
        tune: how all are tuned.
        batch_size: examples of an update.
    """

    forks: tuple[int, ...]
    heads: tuple[int, ...]
    point: tuple[int, int]
    tune: hydrant.Jointly
    batch_size: int
    members: tuple[int, ...] = (1, 2, 3, 5)

    def random(self) -> list[Fork]:
        return [Fork(layer, keep) for layer in self.forks for keep in self.heads]

    def sizes(self) -> list[Fork]:
        return [Fork(*self.point, members=count) for count in self.members]

    def methods(self) -> list[Fork]:
        return [Fork(*self.point, method=method) for method in ("random", "taylor", "circuit")]


KINDS: dict[str, tuple[type, Grid]] = {
    "clinc150": (
        Clinc150,
        Grid((3, 4, 5), (12, 8, 4, 2, 1), (4, 2), hydrant.Jointly(epochs=3, learning_rate=1e-4), 64),
    ),
    "vision": (
        Vision,
        Grid((8, 10, 11), (3, 2, 1), (10, 1), hydrant.Jointly(epochs=1, learning_rate=5e-5), 32),
    ),
}


class Points:
    """Makes the points of a grid, each from one seed, and measures them."""

    def __init__(self, bundles: Bundles, single: Path, grid: Grid) -> None:
        self.bundles, self.single, self.grid = bundles, single, grid

    def figures(self, point: tuple[Fork | None, bool, int]) -> dict[str, float]:
        """Calibrated figures of members (``None``: of the single model), tuned or not, from a seed."""
        fork, tuned, seed = point
        found = self.outputs(fork, tuned, seed)
        return figures.measure(found, self.bundles.data, figures.temperature_of(found, self.bundles.data))

    def outputs(self, fork: Fork | None, tuned: bool, seed: int) -> Outputs:
        return self.bundles.outputs(self.bundle(fork, tuned, seed), distance=False)

    def bundle(self, fork: Fork | None, tuned: bool, seed: int) -> Path:
        name = "single" if fork is None else f"grid-{fork.method}-{fork.layer}-{fork.keep}-{fork.members}-{seed}"
        if tuned:
            name = f"{name}-{seed}-tuned" if fork is None else f"{name}-tuned"
            source = self.bundle(fork, False, seed)
            how = self.grid.tune if fork is None else replace(self.grid.tune, freeze=fork.layer)
            return self.bundles.tuned(name, source, how, seed=seed, batch_size=self.grid.batch_size)
        if fork is None:
            return self.bundles.joined(name, [self.single])
        return self.bundles.pruned(name, self.single, fork, seed)

    def operations(self, fork: Fork | None, tuned: bool) -> float:
        """Operations ÷ those of the plain single model; of texts at 128 tokens."""
        return figures.cost(self.bundle(fork, tuned, SEEDS[0]), None)["operations"]


def measure(points: Points, jobs: int) -> dict[str, Any]:
    """Every point from every seed."""
    grid = points.grid
    forks = list(dict.fromkeys([*grid.random(), *grid.sizes(), *grid.methods()]))
    wanted: list[tuple[Fork | None, bool, int]] = [(None, False, 0)]
    wanted += [(fork, False, seed) for fork in forks for seed in SEEDS]
    points.figures(wanted[0])
    untuned = in_parallel([(points.figures, each) for each in wanted], jobs)
    further: list[tuple[Fork | None, bool, int]] = [(fork, True, seed) for fork in (None, *forks) for seed in SEEDS]
    tuned = in_parallel([(points.figures, each) for each in further], jobs)
    by = dict(zip([*wanted, *further], [*untuned, *tuned], strict=True))

    def row(fork: Fork, is_tuned: bool) -> dict[str, Any]:
        seeds = [by[fork, is_tuned, seed] for seed in SEEDS]
        return {
            **asdict(fork),
            "fork": fork.layer,
            "tuned": is_tuned,
            "operations": points.operations(fork, is_tuned),
            "seeds": seeds,
        }

    def rows(of: Sequence[Fork]) -> list[dict[str, Any]]:
        return [row(fork, is_tuned) for fork in of for is_tuned in (False, True)]

    return {
        "single": [by[None, False, 0]],
        "control": [by[None, True, seed] for seed in SEEDS],
        "single_operations": points.operations(None, tuned=False),
        "points": rows(grid.random()),
        "members": rows(grid.sizes()),
        "methods": rows(grid.methods()),
    }


def render(found: Mapping[str, Any]) -> str:
    """The grid, the numbers of members and the methods as Markdown."""

    def line(name: Sequence[str], seeds: Sequence[Mapping[str, float]]) -> list[str]:
        cells = []
        for figure in FIGURES:
            values = [seed[figure] for seed in seeds]
            spread = f" ({min(values):.3f}–{max(values):.3f})" if len(values) > 1 else ""
            cells.append(f"{np.mean(values):.3f}{spread}")
        return [*name, *cells]

    def words(row: Mapping[str, Any]) -> str:
        return "tuned" if row["tuned"] else "untuned"

    head = ["operations", *FIGURES.values()]
    single = f"{found['single_operations']:.2f}"
    both = [line(["single model", "", "untuned", single], found["single"]),
            line(["single model", "", "tuned in all layers", single], found["control"])]  # fmt: skip
    grid = [line([str(row["fork"]), str(row["keep"]), words(row), f"{row['operations']:.2f}"], row["seeds"])
            for row in found["points"]]  # fmt: skip
    parts = [tables.table(["fork at layer", "heads kept", "", *head], both + grid)]
    for key, column in (("members", "number of members"), ("methods", "method")):
        first = found[key][0]
        lines = [
            line(
                [str(row[key.removesuffix("s") if key == "methods" else key]), words(row), f"{row['operations']:.2f}"],
                row["seeds"],
            )
            for row in found[key]
        ]
        title = f"Fork at layer {first['fork']}, keep {first['keep']}, by {column}:"
        parts.append(f"{title}\n\n{tables.table([column, '', *head], lines)}")
    return "\n\n".join(parts)


def main() -> None:
    options = finding_options(__doc__, KINDS)
    kind, grid = KINDS[options.study]
    run(open_subject(kind, options), grid, options)


def run(subject: Subject, grid: Grid, options: argparse.Namespace) -> None:
    """The grid of one subject."""
    some = replace(subject.data, train=subject.data.train.take(drawn(len(subject.data.train))))
    bundles = Bundles(subject.bundles.work / "grid", some, subject.bundles.processor, subject.bundles.precision)
    found = measure(Points(bundles, subject.single, grid), options.jobs)
    report = {**about(some.sizes()), "grid": json.loads(json.dumps(asdict(grid), default=str)), **found}
    picture = f"findings-{subject.name}.png"
    text = f"![{PICTURE.format(subject.title)}]({picture})\n\n{render(found)}"
    print(text)
    if options.output:
        options.output.write_text(json.dumps(report, indent=1) + "\n")
    tables.put_into(options.document, text, subject.name)
    drawn_ones = {name: FIGURES[name] for name in list(FIGURES)[:3]}
    options.document.with_name(picture).write_bytes(draw_grid(found, subject.title, drawn_ones))


def drawn(count: int) -> np.ndarray:
    """Places of the training examples that points are tuned on: at random, the same for all."""
    return np.sort(np.random.default_rng(0).permutation(count)[:EXAMPLES])


if __name__ == "__main__":
    main()
