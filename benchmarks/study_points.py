"""Questions behind a study's settings; each compares points: a fork or the single model, and its tuning.

    python benchmarks/study_points.py grid clinc150 ../shared -o benchmarks/results/grid-clinc150.json
    python benchmarks/study_points.py trials vision ../shared -o benchmarks/results/trials-vision.json
    python benchmarks/study_points.py draws vision ../shared --seeds 5 -o benchmarks/results/draws-vision.json
    python benchmarks/study_points.py control vision ../shared -o benchmarks/results/control-vision.json
    python benchmarks/study_points.py control vision ../shared --epochs 10 -o benchmarks/results/control-trained.json
    python benchmarks/study_points.py untuned clinc150 ../shared -o benchmarks/results/clinc150.json

``grid``: where detection comes from: fork × heads kept × tuned or not; the number of members, Taylor importance and
circuits at one point of it. Three seeds, tuned on 6,000 training examples in the layers from the fork on; the single
model tuned in all layers is the control. Writes tables and a picture of docs/findings.md.

``trials``: what a study's forks, epochs and rates were chosen by: points within 1.25 times the operations of the plain
single model. The temperature is fitted on half of the validation split, the figures are those of the other half; no
test input is read.

``draws``: the fork within 1.05 times the operations, with members drawn independently or as a systematic sample
(`hydrant plan --systematic`). ``control``: the single model and this fork tuned at gentler rates; with ``--epochs``, of
a checkpoint of images that was trained for so many epochs. Figures are those of the test inputs at the temperature of
the validation inputs; both write a table of the study's document. ``untuned``: members pruned from the first layer on,
neither tuned nor calibrated; it prints its table.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import harness
import hydrant
import numpy as np
import study_figures as figures
import study_run
from harness import ROOT, table
from hydrant.calib.decisions.temperature import fit_temperature
from hydrant.metrics.figures import Answers
from study import Bundles, Fork, Outputs, note_of
from study_picture import draw_grid
from study_rows import Subject
from study_table import ranged
from study_vision import Vision
from training import in_parallel

FINDINGS = ROOT / "docs/findings.md"
EXAMPLES = 6_000
"""Training examples of the grid."""
SEEDS = (0, 1, 2)
PRICE = 1.05
"""Of each study the fork of this price is drawn, and tuned gently."""
LIMIT = 1.25
"""Most operations of a trial ÷ those of the plain single model."""
RATES = (1e-4, 5e-5, 2e-5)

GRID_FIGURES = {
    "accuracy": "accuracy",
    "ood.predictive_entropy.auroc": "OOD AUROC by entropy",
    "ood.predictive_entropy.fpr95": "OOD FPR95 by entropy",
    "ood.energy.auroc": "OOD AUROC by energy",
}
FIGURES = {
    "accuracy": "accuracy",
    "nll": "NLL",
    "ece": "ECE",
    "ood.predictive_entropy.auroc": "AUROC, entropy",
    "ood.predictive_entropy.fpr95": "FPR95, entropy",
    "ood.energy.auroc": "AUROC, energy",
    "ood.distance.auroc": "AUROC, distance",
    "ood.distance.fpr95": "FPR95, distance",
}
"""Of draws and of the control; the distance is by the study's taps."""
TRIAL_FIGURES = {
    "accuracy": "accuracy",
    "nll": "NLL",
    "ood.predictive_entropy.auroc": "AUROC, entropy",
    "ood.predictive_entropy.fpr95": "FPR95, entropy",
    "ood.energy.auroc": "AUROC, energy",
    "ood.distance_last.auroc": "AUROC, last tap",
    "ood.distance_all.auroc": "AUROC, every layer",
    "ood.distance_all.fpr95": "FPR95, every layer",
}
UNTUNED_FIGURES = {
    "accuracy": "accuracy",
    "nll": "NLL",
    "ece": "ECE",
    "ood.max_probability.auroc": "AUROC",
    "ood.max_probability.fpr95": "FPR95",
    "ood.predictive_entropy.auroc": "AUROC by entropy",
}
PICTURE = (
    "{}: accuracy, AUROC and FPR95 by entropy; above against the heads kept from each fork on, below against the "
    "number of members, with Taylor importance and circuits beside random heads; what is far worse lies outside"
)

Answer = tuple[dict[str, Any], str, tuple[Path, str]]
"""Results, tables, and the document and mark that they belong to; no mark: to none."""


@dataclass(frozen=True)
class Point:
    """What is made and measured.

    Attributes:
        fork: of the members; ``None`` is the single model.
        seed: of plan and tuning.
        tune: how it is tuned; ``None``: not at all.
        how: further options of the fork's method.
    """

    fork: Fork | None
    seed: int = 0
    tune: hydrant.Jointly | None = None
    how: tuple[tuple[str, Any], ...] = ()


class Points:
    """Makes the points of one question, kept under its name, and measures them."""

    def __init__(self, question: str, subject: Subject, batch_size: int | None = None) -> None:
        self.question, self.bundles, self.single = question, subject.bundles, subject.single
        self.data, self.taps = subject.data, subject.taps
        self.batch_size = batch_size or subject.settings.batch_size

    def bundle(self, point: Point) -> Path:
        fork, tune = point.fork, point.tune
        if tune is not None:
            source = self.bundle(replace(point, tune=None))
            name = f"{source.name}-tuned-{point.seed}-{tune.epochs}-{tune.learning_rate:g}"
            return self.bundles.tuned(name, source, tune, seed=point.seed, batch_size=self.batch_size)
        if fork is None:
            return self.bundles.joined(f"{self.question}-{self.single.name}", [self.single])
        words = [word for option in point.how for word in option]
        name = "-".join(map(str, (self.question, self.single.name, *asdict(fork).values(), *words, point.seed)))
        return self.bundles.pruned(name, self.single, fork, point.seed, **dict(point.how))

    def operations(self, point: Point) -> float:
        """Operations ÷ those of the plain single model; of texts at 128 tokens."""
        return figures.cost(self.bundle(point), None)["operations"]

    def make(self, points: Iterable[Point], jobs: int, measure: Callable[[Point], Any]) -> dict[Point, Any]:
        """Every point's figures; what others start from is made first."""
        wanted = list(dict.fromkeys(points))
        sources = list(dict.fromkeys(replace(point, tune=None) for point in wanted))
        for first in (True, False):  # the single model, which all start from
            in_parallel([(self.bundle, each) for each in sources if (each.fork is None) == first], jobs)
        return dict(zip(wanted, in_parallel([(measure, each) for each in wanted], jobs), strict=True))

    def on_test(self, point: Point) -> dict[str, float]:
        """Figures of the test splits, calibrated."""
        return self._figures(self.bundles.outputs(self.bundle(point), distance=False))

    def reported(self, point: Point) -> dict[str, float]:
        """:data:`FIGURES` of the test splits, operations, NLL of the validation split, and whether tuning was kept."""
        bundle = self.bundle(point)
        found = self.bundles.outputs(bundle)
        every = self._figures(found)
        probabilities, _ = figures.scores_of(found, "validation", figures.temperature_of(found, self.data))
        known = Answers.of(probabilities, figures.labels_of(self.data.validation), {}).loss.mean()
        kept = point.tune is not None and note_of(bundle.parent)["report"]["best_epoch"] > 0
        named = {name: every[name.replace("distance", f"distance_{self.taps}")] for name in FIGURES}
        return {"validation NLL": float(known), "tuned": float(kept), **named, "operations": self.operations(point)}

    def uncalibrated(self, point: Point) -> dict[str, float]:
        """Figures of the test splits as they are."""
        found = self.bundles.outputs(self.bundle(point), distance=False)
        every = figures.measure(found, self.data, 1.0)
        return {name: every[name] for name in UNTUNED_FIGURES}

    def _figures(self, found: Outputs) -> dict[str, float]:
        return figures.measure(found, self.data, figures.temperature_of(found, self.data))

    def on_validation(self, point: Point) -> dict[str, float]:
        """:data:`TRIAL_FIGURES` of half of the validation split, calibrated on the other, and operations."""
        found = self.bundles.outputs(self.bundle(point), splits=("validation", "ood_validation"))
        labels, logits = figures.labels_of(self.data.validation), found.logits["validation"]
        fitted, judged = halves(len(labels))
        temperature = fit_temperature(logits[fitted], labels[fitted])
        probabilities, inside = figures.scores_of(found, "validation", temperature)
        _, outside = figures.scores_of(found, "ood_validation", temperature)
        there = {name: values[judged] for name, values in inside.items()}
        every = figures.figures(Answers.of(probabilities[judged], labels[judged], there), outside)
        named = {name: every[name] for name in TRIAL_FIGURES if name in every}
        return named | {"operations": self.operations(point)}


def halves(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Places to fit on and places to judge on, at random, the same for all."""
    order = np.random.default_rng(0).permutation(count)
    return order[: count // 2], order[count // 2 :]


# -- grid -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Grid:
    """Layers of the forks × heads kept above them; members and methods are compared at one ``point``."""

    forks: tuple[int, ...]
    heads: tuple[int, ...]
    point: tuple[int, int]
    tune: hydrant.Jointly
    batch_size: int
    members: tuple[int, ...] = (1, 2, 3, 5)

    def parts(self) -> dict[str, list[Fork]]:
        return {
            "points": [Fork(layer, keep) for layer in self.forks for keep in self.heads],
            "members": [Fork(*self.point, members=count) for count in self.members],
            "methods": [Fork(*self.point, method=method) for method in ("random", "taylor", "circuit")],
        }


GRIDS = {
    "clinc150": Grid((3, 4, 5), (12, 8, 4, 2, 1), (4, 2), hydrant.Jointly(epochs=3, learning_rate=1e-4), 64),
    "vision": Grid((8, 10, 11), (3, 2, 1), (10, 1), hydrant.Jointly(epochs=1, learning_rate=5e-5), 32),
}


def grid(subject: Subject, options: argparse.Namespace) -> Answer:
    """Every point of the grid, tuned and not, from every seed."""
    asked, whole = GRIDS[subject.name], subject.bundles
    subject.data = replace(subject.data, train=subject.data.train.take(drawn(len(subject.data.train))))
    subject.bundles = Bundles(whole.work / "grid", subject.data, whole.processor, whole.precision)
    points, parts = Points("grid", subject, asked.batch_size), asked.parts()

    def seeds(fork: Fork | None, is_tuned: bool) -> list[Point]:
        tune = replace(asked.tune, freeze=fork.layer) if fork else asked.tune
        return [Point(fork, seed, tune if is_tuned else None) for seed in (SEEDS if fork or is_tuned else SEEDS[:1])]

    forks = [None, *itertools.chain(*parts.values())]
    every = [point for fork in forks for is_tuned in (False, True) for point in seeds(fork, is_tuned)]
    by = points.make(every, options.jobs, points.on_test)

    def row(fork: Fork, is_tuned: bool) -> dict[str, Any]:
        same = seeds(fork, is_tuned)
        facts = {**asdict(fork), "fork": fork.layer, "tuned": is_tuned, "operations": points.operations(same[0])}
        return {**facts, "seeds": [by[point] for point in same]}

    found = {
        "grid": json.loads(json.dumps(asdict(asked), default=str)),
        "single": [by[point] for point in seeds(None, False)],
        "control": [by[point] for point in seeds(None, True)],
        "single_operations": points.operations(Point(None)),
        **{name: [row(fork, tuned) for fork in part for tuned in (False, True)] for name, part in parts.items()},
    }
    picture = f"findings-{subject.name}.png"
    named = {name: GRID_FIGURES[name] for name in list(GRID_FIGURES)[:3]}
    (options.document or FINDINGS).with_name(picture).write_bytes(draw_grid(found, subject.title, named))
    text = f"![{PICTURE.format(subject.title)}]({picture})\n\n{render_grid(found)}"
    return found, text, (FINDINGS, subject.name)


def drawn(count: int) -> np.ndarray:
    """Places of the training examples that points are tuned on: at random, the same for all."""
    return np.sort(np.random.default_rng(0).permutation(count)[:EXAMPLES])


def render_grid(found: Mapping[str, Any]) -> str:
    """The grid, the numbers of members and the methods as Markdown."""

    def line(name: Sequence[str], seeds: Sequence[Mapping[str, float]]) -> list[str]:
        values = [[seed[figure] for seed in seeds] for figure in GRID_FIGURES]
        return [*name, *(ranged(each) if len(each) > 1 else f"{each[0]:.3f}" for each in values)]

    def of(name: Sequence[Any], row: Mapping[str, Any]) -> list[str]:
        words = "tuned" if row["tuned"] else "untuned"
        return line([*map(str, name), words, f"{row['operations']:.2f}"], row["seeds"])

    head, single = ["operations", *GRID_FIGURES.values()], f"{found['single_operations']:.2f}"
    lines = [
        line(["single model", "", "untuned", single], found["single"]),
        line(["single model", "", "tuned in all layers", single], found["control"]),
        *(of([row["fork"], row["keep"]], row) for row in found["points"]),
    ]
    parts = [table(["fork at layer", "heads kept", "", *head], lines)]
    for key, name, column in (("members", "members", "number of members"), ("methods", "method", "method")):
        first = found[key][0]
        title = f"Fork at layer {first['fork']}, keep {first['keep']}, by {column}:"
        parts.append(f"{title}\n\n{table([column, '', *head], [of([row[name]], row) for row in found[key]])}")
    return "\n\n".join(parts)


# -- trials -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trials:
    """Forks that are tried beside the single model; validation NLL may end a tuning before its ``epochs``."""

    points: tuple[Fork, ...]
    epochs: tuple[int, ...]
    rates: tuple[float, ...]
    batch_size: int
    seeds: tuple[int, ...] = (0, 1)


TRIALS = {
    "clinc150": Trials(
        (Fork(5, 1), Fork(5, 2), Fork(5, 3), Fork(5, 4, "taylor"), Fork(5, 2, members=5), Fork(4, 2)),
        epochs=(3,),
        rates=(1e-4, 2e-4),
        batch_size=64,
    ),
    "vision": Trials(
        (Fork(11, 2), Fork(10, 1), Fork(10, 2), Fork(9, 1), Fork(9, 2), Fork(8, 2)),
        epochs=(5,),
        rates=(1e-4,),
        batch_size=32,
    ),
}


def trials(subject: Subject, options: argparse.Namespace) -> Answer:
    """Every trial that is cheap enough, from every seed."""
    asked = TRIALS[subject.name]
    points = Points("try", subject, asked.batch_size)
    some = [fork for fork in (None, *asked.points) if points.operations(Point(fork)) <= LIMIT]
    ways = list(itertools.product(some, asked.epochs, asked.rates))

    def seeds(fork: Fork | None, epochs: int, rate: float) -> list[Point]:
        how = hydrant.Jointly(epochs=epochs, learning_rate=rate)
        return [Point(fork, seed, how) for seed in asked.seeds]

    every = [point for way in ways for point in seeds(*way)]
    by = points.make(every, options.jobs, points.on_validation)
    rows = []
    for fork, epochs, rate in ways:
        measured = [by[point] for point in seeds(fork, epochs, rate)]
        facts = {"fork": fork and asdict(fork), "epochs": epochs, "learning_rate": rate}
        rows.append({**facts, "operations": measured[0]["operations"], "seeds": measured})
    return {"trials": asdict(asked), "rows": rows}, render_trials(rows), (FINDINGS, "")


def render_trials(rows: Sequence[Mapping[str, Any]]) -> str:
    """Means over the seeds."""
    lines = []
    for row in rows:
        fork = row["fork"]
        name = "fork at {layer}, keep {keep}, {method}, M = {members}".format(**fork) if fork else "single model"
        means = [f"{np.mean([seed[figure] for seed in row['seeds']]):.4f}" for figure in TRIAL_FIGURES]
        how = [str(row["epochs"]), f"{row['learning_rate']:g}", f"{row['operations']:.2f}"]
        lines.append([name, *how, *means])
    return table(["", "epochs", "rate", "operations", *TRIAL_FIGURES.values()], lines)


# -- draws and the control --------------------------------------------------------------------------------------------


def draws(subject: Subject, options: argparse.Namespace) -> Answer:
    """The fork drawn in both ways, from every seed."""
    points, fork = Points("draws", subject), subject.settings.forks[PRICE]
    ways = {
        name: [Point(fork, seed, subject.settings.tune, how) for seed in range(options.seeds)]
        for name, how in (("systematic", (("systematic", True),)), ("independent", ()))
    }
    by = points.make(itertools.chain(*ways.values()), options.jobs, points.reported)
    rows = {name: [by[point] for point in same] for name, same in ways.items()}
    return {"fork": asdict(fork), "rows": rows}, render_draws(rows), (study_run.document_of(subject), "draws")


def render_draws(rows: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    """Means over the seeds, with their ends."""
    lines = []
    for how, seeds in rows.items():
        cells = [ranged([seed[name] for seed in seeds]) for name in FIGURES]
        lines.append([how, f"{np.mean([seed['operations'] for seed in seeds]):.2f}", str(len(seeds)), *cells])
    return table(["drawn", "operations", "seeds", *FIGURES.values()], lines)


def control(subject: Subject, options: argparse.Namespace) -> Answer:
    """The single model and the fork, as they are and tuned at every rate."""
    if options.epochs:
        subject.single = subject.members.full(0, options.epochs)
    points, settings = Points("control", subject), subject.settings
    ways: dict[tuple[str, float | None], list[Point]] = {}
    for rate in (None, *options.rates):
        how = None if rate is None else hydrant.Jointly(epochs=settings.tune.epochs, learning_rate=rate)
        for name, fork in (("single", None), ("late fork", settings.forks[PRICE])):
            seeds = settings.seeds if fork or how else settings.seeds[:1]
            ways[name, rate] = [Point(fork, seed, how) for seed in seeds]
    by = points.make(itertools.chain(*ways.values()), options.jobs, points.reported)
    order = sorted(ways, key=lambda way: (way[1] is not None, way[0] != "single"))
    rows = [{"model": way[0], "rate": way[1], "seeds": [by[point] for point in ways[way]]} for way in order]
    place = study_run.document_of(subject), "trained" if options.epochs else "control"
    return {"checkpoint epochs": options.epochs, "rows": rows}, render_control(rows), place


def render_control(rows: Sequence[Mapping[str, Any]]) -> str:
    """Means over the seeds, with their ends."""
    lines = []
    for row in rows:
        seeds, rate = row["seeds"], row["rate"]
        name = f"{row['model']}, {'untuned' if rate is None else f'{rate:g}'}"
        tuned = "" if rate is None else f"{sum(seed['tuned'] for seed in seeds):.0f} of {len(seeds)}"
        lines.append([name, tuned, *(ranged([seed[each] for seed in seeds]) for each in ("validation NLL", *FIGURES))])
    head = ["model, learning rate", "seeds that tuning served", "NLL, validation", *FIGURES.values()]
    return table(head, lines)


# -- untuned ----------------------------------------------------------------------------------------------------------


UNTUNED: dict[str, Point] = {
    "single model": Point(None),
    "pruned single, keep 8": Point(Fork(0, 8, "taylor", 1)),
    "random × 3, keep 8": Point(Fork(0, 8)),
    **{
        f"Taylor × 3, {diversity}, keep {keep}": Point(Fork(0, keep, "taylor"), how=(("diversity", diversity),))
        for diversity in ("bootstrap", "noise")
        for keep in (10, 8)
    },
}
"""Of CLINC150; the first two are made from one seed."""


def untuned(subject: Subject, options: argparse.Namespace) -> Answer:
    """Every way of pruning, from every seed."""
    points = Points("untuned", subject)
    seeds = {name: range(1 if point.fork is None or point.fork.members == 1 else options.seeds)
             for name, point in UNTUNED.items()}  # fmt: skip
    ways = {name: [replace(point, seed=seed) for seed in seeds[name]] for name, point in UNTUNED.items()}
    by = points.make(itertools.chain(*ways.values()), options.jobs, points.uncalibrated)
    lines = []
    for name, same in ways.items():
        values = [[by[point][figure] for point in same] for figure in UNTUNED_FIGURES]
        lines.append([name, *(ranged(each) if len(each) > 1 else f"{each[0]:.3f}" for each in values)])
    rows = [{"name": name, "seed": each.seed, **by[each]} for name, same in ways.items() for each in same]
    return {"rows": rows}, table(["heads", *UNTUNED_FIGURES.values()], lines), (FINDINGS, "")


QUESTIONS = {"grid": grid, "trials": trials, "draws": draws, "control": control, "untuned": untuned}


def run(question: str, subject: Subject, options: argparse.Namespace) -> None:
    """Answer a question."""
    found, text, (page, mark) = QUESTIONS[question](subject, options)
    print(text)
    harness.save(options.output, {**harness.about(subject.data.sizes()), **found})
    if mark:
        harness.put_into(options.document or page, text, mark)


def main() -> None:
    parser = study_run.parser(__doc__, QUESTIONS)
    parser.add_argument("--seeds", type=int, default=5, help="of draws and untuned (default 5)")
    parser.add_argument("--epochs", type=int, help="of a checkpoint that is trained first, of the control")
    parser.add_argument("--rates", type=float, nargs="*", default=RATES, help="of the control (default 1e-4 5e-5 2e-5)")
    options = parser.parse_args()
    if options.epochs is not None and (options.study != Vision.name or options.epochs < 1):
        parser.error(f"--epochs is {options.epochs}; expected 1 or more, of the study of vision alone")
    run(options.question, study_run.open_subject(options), options)


if __name__ == "__main__":
    main()
