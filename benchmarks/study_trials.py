"""What a study's settings were chosen by: forks, heads, epochs and learning rates on the validation splits alone.

    python benchmarks/study_trials.py vision ../shared -o benchmarks/results/trials-vision.json
    python benchmarks/study_trials.py clinc150 ../shared -o benchmarks/results/trials-clinc150.json

Every point within 1.25 times the operations of the plain single model, untuned, is made and tuned from each seed, and
so is the control, the single model tuned alike. The temperature is fitted on half of the validation split; the figures
are those of the other half; no test input is read.
"""

from __future__ import annotations

import argparse
import itertools
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import hydrant
import numpy as np
import study_figures as figures
import study_table as tables
from harness import about
from hydrant.calib.decisions.temperature import fit_temperature
from hydrant.metrics.figures import Answers
from study import Fork
from study_clinc150 import Clinc150
from study_run import Subject, add_options, open_subject
from study_vision import Vision
from training import in_parallel

LIMIT = 1.25
"""Most operations of a point ÷ those of the plain single model."""

FIGURES = {
    "accuracy": "accuracy",
    "nll": "NLL",
    "ood.predictive_entropy.auroc": "AUROC, entropy",
    "ood.predictive_entropy.fpr95": "FPR95, entropy",
    "ood.energy.auroc": "AUROC, energy",
    "ood.distance_last.auroc": "AUROC, last tap",
    "ood.distance_all.auroc": "AUROC, every layer",
    "ood.distance_all.fpr95": "FPR95, every layer",
}


@dataclass(frozen=True)
class Trials:
    """What is tried.

    Attributes:
        points: tried beside the single model.
        epochs: at most; validation NLL stops earlier.
        rates: learning rates.
        batch_size: examples of an update.
        seeds: of plan and tuning.
    """

    points: tuple[Fork, ...]
    epochs: tuple[int, ...]
    rates: tuple[float, ...]
    batch_size: int
    seeds: tuple[int, ...] = (0, 1)


KINDS: dict[str, tuple[type, Trials]] = {
    "clinc150": (
        Clinc150,
        Trials(
            (Fork(5, 1), Fork(5, 2), Fork(5, 3), Fork(5, 4, "taylor"), Fork(5, 2, members=5), Fork(4, 2)),
            epochs=(3,),
            rates=(1e-4, 2e-4),
            batch_size=64,
        ),
    ),
    "vision": (
        Vision,
        Trials(
            (Fork(11, 2), Fork(10, 1), Fork(10, 2), Fork(9, 1), Fork(9, 2), Fork(8, 2)),
            epochs=(5,),
            rates=(1e-4,),
            batch_size=32,
        ),
    ),
}

Trial = tuple[Fork | None, int, float, int]
"""Members (``None``: the single model), epochs, learning rate, seed."""


class Maker:
    """Makes trials and measures them on the validation splits."""

    def __init__(self, subject: Subject, batch_size: int) -> None:
        self.bundles, self.data, self.single = subject.bundles, subject.data, subject.single
        self.batch_size = batch_size

    def untuned(self, point: tuple[Fork | None, int]) -> Path:
        fork, seed = point
        if fork is None:
            return self.bundles.joined("single", [self.single])
        return self.bundles.pruned(
            f"try-{fork.method}-{fork.layer}-{fork.keep}-{fork.members}-{seed}", self.single, fork, seed
        )

    def measured(self, trial: Trial) -> dict[str, float]:
        fork, epochs, rate, seed = trial
        source = self.untuned((fork, seed))
        name = f"{source.name}-{epochs}-{rate:g}-{seed}"
        how = hydrant.Jointly(epochs=epochs, learning_rate=rate)
        tuned = self.bundles.tuned(name, source, how, seed=seed, batch_size=self.batch_size)
        found = self.bundles.outputs(tuned, splits=("validation", "ood_validation"))
        labels, logits = figures.labels_of(self.data.validation), found.logits["validation"]
        fitted, judged = halves(len(labels))
        temperature = fit_temperature(logits[fitted], labels[fitted])
        probabilities, inside = figures.scores_of(found, "validation", temperature)
        _, outside = figures.scores_of(found, "ood_validation", temperature)
        there = {name: values[judged] for name, values in inside.items()}
        every = figures.figures(Answers.of(probabilities[judged], labels[judged], there), outside)
        costs = figures.cost(tuned, None)  # a tuned member shares no heads of the fork layer, so that it costs more
        return {name: every[name] for name in FIGURES if name in every} | {"operations": costs["operations"]}

    def operations(self, fork: Fork | None) -> float:
        return figures.cost(self.untuned((fork, 0)), None)["operations"]


def halves(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Places to fit on and places to judge on, at random, the same for all."""
    order = np.random.default_rng(0).permutation(count)
    return order[: count // 2], order[count // 2 :]


def run(subject: Subject, trials: Trials, jobs: int) -> list[dict[str, Any]]:
    """Every trial from every seed."""
    maker = Maker(subject, trials.batch_size)
    maker.untuned((None, 0))
    in_parallel([(maker.untuned, (fork, seed)) for fork in trials.points for seed in trials.seeds], jobs)
    operations = {fork: maker.operations(fork) for fork in (None, *trials.points)}
    some = [fork for fork in (None, *trials.points) if operations[fork] <= LIMIT]
    ways = list(itertools.product(some, trials.epochs, trials.rates))
    wanted: list[Trial] = [(*way, seed) for way in ways for seed in trials.seeds]
    found = dict(zip(wanted, in_parallel([(maker.measured, each) for each in wanted], jobs), strict=True))
    return [
        {
            "fork": None if way[0] is None else asdict(way[0]),
            "epochs": way[1],
            "learning_rate": way[2],
            "operations": found[(*way, trials.seeds[0])]["operations"],
            "seeds": [found[(*way, seed)] for seed in trials.seeds],
        }
        for way in ways
    ]


def render(found: list[dict[str, Any]]) -> str:
    """Means over the seeds."""
    lines = []
    for row in found:
        fork = row["fork"]
        name = (
            "single model" if fork is None else "fork at {layer}, keep {keep}, {method}, M = {members}".format(**fork)
        )
        means = [f"{np.mean([seed[figure] for seed in row['seeds']]):.4f}" for figure in FIGURES]
        lines.append([name, str(row["epochs"]), f"{row['learning_rate']:g}", f"{row['operations']:.2f}", *means])
    return tables.table(["", "epochs", "rate", "operations", *FIGURES.values()], lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=KINDS, help="data set")
    add_options(parser)
    options = parser.parse_args()
    kind, trials = KINDS[options.study]
    subject = open_subject(kind, options)
    found = run(subject, trials, options.jobs)
    print(render(found))
    if options.output:
        report = {**about(subject.data.sizes()), "trials": json.loads(json.dumps(asdict(trials))), "rows": found}
        options.output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
