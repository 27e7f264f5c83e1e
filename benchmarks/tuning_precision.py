"""What tuning in bfloat16 does to the answers: the forks of CLINC150's study, tuned in float32 and with bf16.

    python benchmarks/tuning_precision.py ../shared -o benchmarks/results/tuning-precision-clinc150.json

Each fork is planned and tuned from three seeds, in both precisions; the temperature is fitted on the validation
split, the figures are those of the test splits. Data and settings are those of benchmarks/study_clinc150.py.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import study_figures as figures
from about import about
from hydrant.tuning.settings import MixedPrecision
from study import Fork
from study_clinc150 import SETTINGS, Clinc150
from study_run import Subject, add_options, open_subject

FIGURES = {
    "accuracy": "accuracy",
    "nll": "NLL",
    "ood.predictive_entropy.auroc": "entropy AUROC",
    "ood.predictive_entropy.fpr95": "entropy FPR95",
    "ood.distance_balanced.auroc": "distance AUROC",
    "ood.distance_balanced.fpr95": "distance FPR95",
}

PRECISIONS: dict[str, MixedPrecision] = {"float32": "no", "bf16": "bf16"}


def tuned(subject: Subject, fork: Fork, seed: int, precision: MixedPrecision) -> dict[str, float]:
    """Figures of a fork on the test splits."""
    name = f"highest-{fork.layer}-{fork.keep}-{seed}"
    source = subject.bundles.pruned(name, subject.single, fork, seed)
    how = replace(SETTINGS.tune, mixed_precision=precision)
    bundle = subject.bundles.tuned(f"{name}-{precision}", source, how, seed=seed, batch_size=SETTINGS.batch_size)
    found = subject.bundles.outputs(bundle)
    every = figures.measure(found, subject.data, figures.temperature_of(found, subject.data))
    return {name: round(float(every[name]), 4) for name in FIGURES}


def row(subject: Subject, fork: Fork, seeds: tuple[int, ...]) -> dict[str, Any]:
    """A fork in both precisions, from every seed."""
    found = {name: [tuned(subject, fork, seed, precision) for seed in seeds] for name, precision in PRECISIONS.items()}
    return {"fork": asdict(fork), "seeds": list(seeds), **found}


def told(each: dict[str, Any]) -> str:
    """Means over the seeds, and the range of their differences."""
    lines = [f"fork at {each['fork']['layer']}, keep {each['fork']['keep']}: float32, bf16, difference by seed"]
    for name, title in FIGURES.items():
        plain, mixed = (np.array([seed[name] for seed in each[way]]) for way in PRECISIONS)
        by_seed = mixed - plain
        lines.append(
            f"  {title:<16}{plain.mean():8.4f}{mixed.mean():10.4f}   {by_seed.min():+.4f} to {by_seed.max():+.4f}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--seeds", type=int, default=3, help="0, 1, … of plan and tuning (default 3)")
    options = parser.parse_args()
    subject = open_subject(Clinc150, options)
    subject.bundles.precision = "highest"  # the study's own multiplies float32 in bfloat16, where the CPU can
    forks = [fork for price, fork in SETTINGS.forks.items() if price <= 1.05]
    rows = [row(subject, fork, tuple(range(options.seeds))) for fork in forks]
    for each in rows:
        print(told(each))
    if options.output:
        report = {**about(subject.data.sizes()), "rows": rows}
        options.output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
