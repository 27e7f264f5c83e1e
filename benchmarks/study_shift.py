"""What the model still gets right and a score flags all the same: typing errors and image corruptions, five severities.

    python benchmarks/study_shift.py clinc150 ../shared -o benchmarks/results/shift-clinc150.json
    python benchmarks/study_shift.py vision ../shared -o benchmarks/results/shift-vision.json

The single model, the same tuned in the same way, and the tuned late fork within 1.05 times its operations, from every
seed of plan, tuning and noise. Thresholds allow 5 % false alarms on the clean validation split; shares are of 1,500
test inputs drawn with seed 0, corrupted. Writes the tables of docs/findings.md, means over the seeds.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from typing import Any

import harness
import numpy as np
import study_figures as figures
import study_run
from harness import ROOT, table
from hydrant.calib.decisions.thresholds import false_alarm_threshold
from hydrant.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt, typos
from hydrant.data.examples import Examples
from hydrant.metrics.uncertainty import area_under_roc
from study import Data, Outputs
from study_rows import CONTROL, SINGLE, TUNED, Subject
from study_rows import Rows as StudyRows
from study_table import SCORES
from training import in_parallel

FINDINGS = ROOT / "docs/findings.md"
INPUTS = 1_500
LIMIT = 1.05
"""Operations of the late fork."""

Rows = list[dict[str, Any]]
"""Of one seed: a row for each severity, the clean one first."""


def corrupted(examples: Examples, seed: int = 0) -> dict[str, Examples]:
    """The same examples at every severity, clean ones first: of images, each kind of corruption in turn."""
    is_text = isinstance(examples.inputs[0], str)
    found = {"clean": examples}
    for severity in SEVERITIES:
        if is_text:
            changed = typos(examples.inputs, severity, seed)
        else:
            kinds = list(CORRUPTIONS)
            changed = [
                corrupt([image], kinds[place % len(kinds)], severity, seed, place)[0]
                for place, image in enumerate(examples.inputs)
            ]
        found[f"severity {severity}"] = Examples(changed, examples.labels, f"severity {severity}")
    return found


def measure(found: Outputs, data: Data, labels: np.ndarray, parts: Mapping[str, Examples]) -> Rows:
    """For every severity: accuracy, and by each score the shares flagged and the AUROC of finding wrong answers."""
    temperature = figures.temperature_of(found, data)
    _, clean = figures.scores_of(found, "validation", temperature)
    limits = {
        score: false_alarm_threshold(values.astype(np.float32), figures.FALSE_ALARM, math.inf)
        for score, values in clean.items()
    }  # fmt: skip
    rows = []
    for name in parts:
        probabilities, scores = figures.scores_of(found, name, temperature)
        right = probabilities.argmax(axis=1) == labels
        row: dict[str, Any] = {"name": name, "accuracy": float(right.mean()), "scores": {}}
        for score, limit in limits.items():
            flagged = scores[score] > limit
            row["scores"][score] = {
                "right_flagged": float(flagged[right].mean()),
                "wrong_flagged": float(flagged[~right].mean()),
                "accuracy_unflagged": float(right[~flagged].mean()),
                "errors_auroc": area_under_roc(scores[score][right], scores[score][~right]),
            }
        rows.append(row)
    return rows


def mean_of(same: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One row of several seeds as their mean."""
    scores = {
        score: {name: float(np.mean([row["scores"][score][name] for row in same])) for name in names}
        for score, names in same[0]["scores"].items()
    }
    return {"name": same[0]["name"], "accuracy": float(np.mean([row["accuracy"] for row in same])), "scores": scores}


def render(found: Mapping[str, Sequence[Rows]]) -> str:
    """A table for each model: right answers flagged / accuracy of what is not flagged / AUROC of wrong answers."""
    parts = []
    for model, seeds in found.items():
        rows = list(map(mean_of, zip(*seeds, strict=True)))
        there = list(rows[0]["scores"])
        lines = []
        for row in rows:
            cells = [
                f"{100 * at['right_flagged']:.1f} % / {at['accuracy_unflagged']:.3f} / {at['errors_auroc']:.3f}"
                for at in row["scores"].values()
            ]
            lines.append([row["name"], f"{row['accuracy']:.3f}", *cells])
        head = ["", "accuracy", *(SCORES[score] for score in there)]
        parts.append(f"{model[0].upper()}{model[1:]}:\n\n{table(head, lines)}")
    return "\n\n".join(parts)


def drawn(examples: Examples, count: int = INPUTS) -> Examples:
    """Some examples in their order, drawn with seed 0: files often have one class behind the other."""
    chosen = np.random.default_rng(0).permutation(len(examples))[:count]
    return examples.take(np.sort(chosen))


class Maker:
    """Makes and measures a model of one seed, on noise of that seed."""

    def __init__(self, subject: Subject, rows: StudyRows) -> None:
        self.rows, self.data, self.some = rows, subject.data, drawn(subject.data.test)

    def measured(self, row: tuple[str, int]) -> Rows:
        name, seed = row
        parts = corrupted(self.some, seed)
        bundle = self.rows.bundle(name, seed if seed in self.rows.seeds(name) else 0)
        found = self.rows.bundles.outputs(bundle, parts)
        return measure(found, self.data, figures.labels_of(self.some), parts)


def run(subject: Subject, options: argparse.Namespace) -> None:
    rows = subject.rows(deep=False, lora=False)
    fork = list(rows.forks)[list(subject.settings.forks).index(LIMIT)] + TUNED
    names, seeds = [SINGLE, CONTROL, fork], subject.settings.seeds
    rows.bundle(SINGLE, 0)  # which others start from
    maker = Maker(subject, rows)
    measured = in_parallel([(maker.measured, (name, seed)) for name in names for seed in seeds], options.jobs)
    found = {name: measured[place * len(seeds) :][: len(seeds)] for place, name in enumerate(names)}
    text = render(found)
    print(text)
    report = {**harness.about(subject.data.sizes()), "inputs": len(maker.some), "models": found}
    harness.save(options.output, report)
    harness.put_into(options.document or FINDINGS, text, f"shift-{subject.name}")


if __name__ == "__main__":
    given = study_run.parser(__doc__).parse_args()
    run(study_run.open_subject(given), given)
