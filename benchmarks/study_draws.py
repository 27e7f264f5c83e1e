"""Random members drawn each on its own, or as a systematic sample (`hydrant plan --systematic`): which does better?

    python benchmarks/study_draws.py vision ../shared --seeds 5 -o benchmarks/results/draws-vision.json

Of either study (study_vision.py, study_clinc150.py) the late fork within 1.05 times the operations of the single model,
planned and tuned as the study does it, from every seed both ways. The figures are those of the test inputs, at the
temperature of the validation inputs; nothing is chosen by them.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

import numpy as np
import study_figures as figures
import study_table as tables
from harness import about
from study import Data, Fork, Outputs
from study_claims import read_taps
from study_clinc150 import Clinc150
from study_run import DOCUMENTS, Subject, add_options, open_subject
from study_vision import Vision
from training import in_parallel

KINDS: dict[str, type] = {"clinc150": Clinc150, "vision": Vision}
PRICE = 1.05
"""Of each study the fork of this price is drawn."""

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
DRAWS: dict[str, dict[str, bool]] = {"systematic": {"systematic": True}, "independent": {}}
"""How members are drawn, and options of the method for it."""

Draw = tuple[str, int]
"""How, and from which seed."""


class Maker:
    """Makes and measures the members of a draw."""

    def __init__(self, subject: Subject, fork: Fork) -> None:
        self.bundles, self.data, self.single = subject.bundles, subject.data, subject.single
        self.settings, self.fork, self.taps = subject.settings, fork, read_taps(subject.name)

    def measured(self, draw: Draw) -> dict[str, float]:
        """Figures on the test splits, and the operations of the single model that they cost."""
        how, seed = draw
        source = self.bundles.pruned(f"{how}-{seed}", self.single, self.fork, seed, **DRAWS[how])
        tune = self.settings.tune
        name = f"{source.name}-{tune.learning_rate:g}-{tune.epochs}"
        tuned = self.bundles.tuned(name, source, tune, seed=seed, batch_size=self.settings.batch_size)
        found = self.bundles.outputs(tuned)
        told = reported(found, self.data, figures.temperature_of(found, self.data), self.taps)
        return told | {"operations": figures.cost(tuned, None)["operations"]}


def reported(found: Outputs, data: Data, temperature: float, taps: str) -> dict[str, float]:
    """:data:`FIGURES` of the test splits, at a temperature; the distance by a set of taps."""
    every = figures.measure(found, data, temperature)
    return {name: every[name.replace("distance", f"distance_{taps}")] for name in FIGURES}


def render(rows: dict[str, list[dict[str, float]]]) -> str:
    """Means over the seeds, with their ends."""
    lines = []
    for how, seeds in rows.items():
        cells = [tables.ranged([seed[name] for seed in seeds]) for name in FIGURES]
        lines.append([how, f"{np.mean([seed['operations'] for seed in seeds]):.2f}", str(len(seeds)), *cells])
    return tables.table(["drawn", "operations", "seeds", *FIGURES.values()], lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=KINDS, help="data set")
    add_options(parser)
    parser.add_argument("--seeds", type=int, default=5, help="of plan and tuning (default 5)")
    parser.add_argument("--draws", nargs="*", default=list(DRAWS), choices=list(DRAWS), help="how (default: both ways)")
    options = parser.parse_args()
    subject = open_subject(KINDS[options.study], options)
    fork = subject.settings.forks[PRICE]
    maker = Maker(subject, fork)
    wanted = [(how, seed) for how in options.draws for seed in range(options.seeds)]
    found = in_parallel([(maker.measured, draw) for draw in wanted], options.jobs)
    rows = {how: [each for draw, each in zip(wanted, found, strict=True) if draw[0] == how] for how in options.draws}
    text = render(rows)
    print(text)
    if options.output:
        report: dict[str, Any] = {**about(subject.data.sizes()), "fork": asdict(fork), "rows": rows}
        options.output.write_text(json.dumps(report, indent=1) + "\n")
    if set(options.draws) == set(DRAWS):  # both ways, which the table compares
        tables.put_into(DOCUMENTS / f"{subject.name}.md", text, "draws")


if __name__ == "__main__":
    main()
