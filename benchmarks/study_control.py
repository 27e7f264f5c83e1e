"""Whether tuning alone does it: the single model at gentler learning rates, beside the late fork tuned as gently.

    python benchmarks/study_control.py vision ../shared -o benchmarks/results/control-vision.json
    python benchmarks/study_control.py vision ../shared --epochs 10 -o benchmarks/results/control-vision-trained.json

Of either study (study_vision.py, study_clinc150.py) the single model and the late fork within 1.05 times its work,
tuned at each rate from every seed, all else as the study has it. The figures are those of the test inputs at the
temperature of the validation inputs; the NLL of the latter, by which one would choose a rate, stands beside them. With
``--epochs`` the checkpoint of images is not the shared one, which saw two epochs, but one that was trained for so many
from the same ImageNet weights, on the images that are tuned on.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import hydrant
import study_figures as figures
import study_table as tables
from harness import about
from hydrant.metrics.figures import Answers
from study import note_of
from study_claims import read_taps
from study_clinc150 import Clinc150
from study_draws import FIGURES, PRICE, reported
from study_run import DOCUMENTS, Subject, add_options, open_subject
from study_vision import Vision
from training import in_parallel

KINDS: dict[str, type] = {"clinc150": Clinc150, "vision": Vision}
RATES = (1e-4, 5e-5, 2e-5)
SINGLE, FORK = "single", "late fork"

Trial = tuple[str, float | None, int]
"""Model, learning rate (``None``: not tuned), seed."""


class Maker:
    """Makes and measures the single model and the fork, as they are and tuned."""

    def __init__(self, subject: Subject) -> None:
        self.bundles, self.data, self.single = subject.bundles, subject.data, subject.single
        self.settings, self.fork, self.taps = subject.settings, subject.settings.forks[PRICE], read_taps(subject.name)

    def untuned(self, point: tuple[str, int]) -> Path:
        model, seed = point
        if model == SINGLE:
            return self.bundles.joined(f"control-{self.single.name}", [self.single])
        return self.bundles.pruned(f"control-fork-{self.single.name}-{seed}", self.single, self.fork, seed)

    def measured(self, trial: Trial) -> dict[str, float]:
        """Figures on the test splits, NLL on the validation split, and whether tuning was kept."""
        model, rate, seed = trial
        bundle, kept = self.untuned((model, seed)), 0
        if rate is not None:
            how = hydrant.Jointly(epochs=self.settings.tune.epochs, learning_rate=rate)
            name, batch_size = f"{bundle.name}-{rate:g}-{seed}", self.settings.batch_size
            bundle = self.bundles.tuned(name, bundle, how, seed=seed, batch_size=batch_size)
            kept = note_of(bundle.parent)["report"]["best_epoch"] > 0
        found = self.bundles.outputs(bundle)
        temperature = figures.temperature_of(found, self.data)
        probabilities, _ = figures.scores_of(found, "validation", temperature)
        known = Answers.of(probabilities, figures.labels_of(self.data.validation), {}).loss.mean()
        told = reported(found, self.data, temperature, self.taps)
        return {"validation NLL": float(known), "tuned": float(kept), **told}


def render(rows: list[dict[str, Any]]) -> str:
    """Means over the seeds, with their ends."""
    lines = []
    for row in rows:
        seeds = row["seeds"]
        name = f"{row['model']}, untuned" if row["rate"] is None else f"{row['model']}, {row['rate']:g}"
        tuned = "" if row["rate"] is None else f"{sum(seed['tuned'] for seed in seeds):.0f} of {len(seeds)}"
        shown = ["validation NLL", *FIGURES]
        lines.append([name, tuned, *(tables.ranged([seed[each] for seed in seeds]) for each in shown)])
    head = ["model, learning rate", "seeds that tuning served", "NLL, validation", *FIGURES.values()]
    return tables.table(head, lines)


def run(subject: Subject, options: argparse.Namespace) -> None:
    if isinstance(subject, Vision) and options.epochs:
        subject.single = subject.members.full(0, options.epochs)
    seeds = subject.settings.seeds
    trials: list[Trial] = [(SINGLE, None, 0), *((FORK, None, seed) for seed in seeds)]
    trials += [(model, rate, seed) for model in (SINGLE, FORK) for rate in options.rates for seed in seeds]
    maker = Maker(subject)
    maker.untuned((SINGLE, 0))
    in_parallel([(maker.untuned, (FORK, seed)) for seed in seeds], options.jobs)
    measured = in_parallel([(maker.measured, trial) for trial in trials], options.jobs)
    found = dict(zip(trials, measured, strict=True))
    rows = [
        {"model": way[0], "rate": way[1], "seeds": [found[trial] for trial in trials if trial[:2] == way]}
        for way in dict.fromkeys(trial[:2] for trial in trials)
    ]
    text = render(rows)
    print(text)
    if options.output:
        report = {**about(subject.data.sizes()), "checkpoint epochs": options.epochs, "rows": rows}
        options.output.write_text(json.dumps(report, indent=1) + "\n")
    document = options.document or DOCUMENTS / f"{subject.name}.md"
    tables.put_into(document, text, "trained" if options.epochs else "control")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=KINDS, help="data set")
    add_options(parser)
    parser.add_argument("--epochs", type=int, help="of a checkpoint that is trained first (default: the shared one)")
    parser.add_argument("--rates", type=float, nargs="*", default=RATES, help="learning rates (default 1e-4 5e-5 2e-5)")
    parser.add_argument("--document", type=Path, help="gets the table (default docs/studies/NAME.md)")
    options = parser.parse_args()
    if options.epochs is not None and options.study != Vision.name:
        parser.error("leave --epochs out: CLINC150's checkpoint was trained for six epochs, and is not trained here")
    if options.epochs is not None and options.epochs < 1:
        parser.error(f"--epochs is {options.epochs}; expected 1 or more")
    run(open_subject(KINDS[options.study], options), options)


if __name__ == "__main__":
    main()
