"""Rivals: the bundle of `make`, the calibrated single model, the controls and a Deep Ensemble, from three seeds.

    python benchmarks/rivals.py clinc150 ../shared -o benchmarks/results/rivals-clinc150.json
    python benchmarks/rivals.py banking77-oos ../shared --texts BANKING77-OOS -o benchmarks/results/rivals-banking.json
    python benchmarks/rivals.py vision ../shared -o benchmarks/results/rivals-vision.json

BANKING77-OOS (Zhang et al. 2021; BANKING77: Casanueva et al. 2020, CC BY 4.0) is read from a copy of its folder in
github.com/jianguoz/Few-Shot-Intent-Detection, and its MiniLM is trained here. Each seed is one call of ``hydrant.make``
with ``control``; data that choose never report.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import harness
import hydrant
import numpy as np
from hydrant.bundle.reports import MAKE_REPORT
from hydrant.data.examples import Examples
from hydrant.evaluation.report import REPORT
from hydrant.models.checkpoint import load_processor
from hydrant.workflow.recipe import Recipe
from study import Bundles, Data
from study_rows import Subject
from study_subjects import Clinc150, TextMembers, Vision
from training import fresh_minilm

FIGURES = {
    "accuracy": "accuracy", "nll": "NLL", "ece": "ECE", "ood.predictive_entropy": "entropy",
    "ood.mutual_information": "mutual information", "ood.energy": "energy", "ood.distance": "distance",
}  # fmt: skip
DECISIONS = {
    "coverage": "answered", "risk": "wrong among answers", "true_positive_rate": "OOD flagged",
    "false_positive_rate": "false alarms",
}  # fmt: skip


class BankingMembers(TextMembers):
    """MiniLM's base weights, fine-tuned on the 50 intents of BANKING77-OOS; the reference is one of them."""

    def __init__(self, labels: list[str], *arguments: Any) -> None:
        super().__init__(*arguments)
        self.labels = labels

    def fresh(self, seed: int) -> Any:
        return fresh_minilm(self.labels, seed)


class Banking(Subject):
    """BANKING77-OOS: 50 intents against queries of 27 other intents of banking (*near*)."""

    name = "banking77-oos"

    def __init__(self, shared: Path, work: Path, jobs: int, texts: Path) -> None:
        def lines(name: str) -> list[str]:
            return (texts / name).read_text(encoding="utf-8").splitlines()

        def part(name: str, known: bool = True) -> Examples:
            places = [labels.index(label) for label in lines(f"{name}/label")] if known else None
            return Examples(lines(f"{name}/seq.in"), None if places is None else np.array(places, np.int64), name)

        labels = sorted(set(lines("train/label")))
        tokenizer = load_processor(shared / "models/minilm-clinc150", "text")

        def filled(examples: Examples) -> Examples:
            return examples.take(np.flatnonzero([bool(text.strip()) for text in examples.inputs]))

        train = part("train")
        self.data = Data(
            filled(train), filled(part("valid")), filled(part("id-oos/valid", False)),
            filled(part("test")), filled(part("id-oos/test", False)),
        )  # fmt: skip
        self.members = BankingMembers(labels, Path(), tokenizer, train, work, jobs)
        self.single = self.members.reference = self.members.full(0)
        self.bundles = Bundles(work, self.data, tokenizer, TextMembers.recipe.matmul)


def set_parser(description: str | None) -> argparse.ArgumentParser:
    """Parser with a set, its folders and the number of seeds, for :func:`subject_of`."""
    parser = harness.parser(description)
    parser.add_argument("set", choices=["clinc150", "banking77-oos", "vision"])
    parser.add_argument("shared", type=Path, help="folder with models/ and data/")
    parser.add_argument("--texts", type=Path, help="folder BANKING77-OOS")
    parser.add_argument("--work", type=Path, help="cache folder (default out/studies/SET)")
    parser.add_argument("--seeds", type=int, default=3)
    return parser


def subject_of(options: argparse.Namespace) -> tuple[Subject, Path]:
    """Subject of a set, and its cache folder."""
    work = options.work or Path("out/studies") / options.set
    if options.set == Banking.name:
        return Banking(options.shared, work, 1, options.texts), work
    kinds: dict[str, Any] = {"clinc150": Clinc150, "vision": Vision}
    return kinds[options.set](options.shared, work, 1), work


def main() -> None:
    parser = set_parser(__doc__)
    parser.add_argument("--deep", action="store_true", help="compare with a Deep Ensemble of three, trained if missing")
    options = parser.parse_args()
    subject, work = subject_of(options)
    report: dict[str, Any] = {**harness.about(subject.data.sizes()), "seeds": []}
    for seed in range(options.seeds):
        report["seeds"].append({"seed": seed, **run(subject, work / f"made-{seed}", seed)})
        if options.deep and not seed:
            report["deep"] = deep(subject, work)
        harness.save(options.output, report)
    write_tables(options.output, f"Rivals: {options.set}", tables(report))


def write_tables(output: Path | None, title: str, text: str) -> None:
    """Print tables, and write them beside the results."""
    print(text)
    if output:
        output.with_name(f"{output.stem}-tables.md").write_text(f"# {title}\n\n{text}\n")


def run(subject: Subject, output: Path, seed: int) -> dict[str, Any]:
    """Make the bundle of a seed with its controls; return its evaluation and the cost of its plan."""
    data = subject.data
    if not output.exists():
        hydrant.make(
            subject.single, data.train, data.validation, data.ood_validation, output=output, test=data.test,
            test_ood=data.ood_test, recipe=Recipe(control=True), seed=seed, say=print,
        )  # fmt: skip
    bundle = hydrant.Bundle.open(output)
    stages = bundle.read_json(MAKE_REPORT)["stages"]
    evaluation = bundle.read_json(REPORT)
    return {"models": evaluation["models"], "headline": evaluation["headline"], "plan": stages.get("plan")}


def deep(subject: Subject, work: Path) -> dict[str, Any]:
    """Figures of a Deep Ensemble of three, calibrated on all validation data, with its distance."""
    folder, data = work / "deep", subject.data
    if not folder.exists():
        members = hydrant.fuse(list(map(str, subject.members.deep())), keep_separate=["all"])
        hydrant.save_bundle(members, folder, subject.bundles.processor)
        hydrant.calibrate(folder, data.validation, data.ood_validation, fit=data.train)
    hydrant.evaluate(folder, data.test, data.ood_test)
    return hydrant.Bundle.open(folder).read_json(REPORT)["models"][0]


def tables(report: dict[str, Any]) -> str:
    """Means over the seeds with their range: quality, detection (AUROC / FPR95), and decisions."""
    names = [model["name"] for model in report["seeds"][0]["models"]]
    names[0] = "`hydrant make`"
    rows = {name: [seed["models"][place] for seed in report["seeds"]] for place, name in enumerate(names)}
    if "deep" in report:
        rows["Deep Ensemble of three"] = [report["deep"]]
    lines = [[name, *figure_cells([values_of(model) for model in models])] for name, models in rows.items()]
    decisions = [[name, *decision_cells(models)] for name, models in rows.items()]
    headlines = "\n".join(f"- seed {seed['seed']}: {' '.join(seed['headline'])}" for seed in report["seeds"])
    quality = harness.table(["", *FIGURES.values()], lines)
    return f"{quality}\n\n{harness.table(['', *DECISIONS.values()], decisions)}\n\nVerdicts:\n\n{headlines}"


def values_of(model: dict[str, Any]) -> dict[str, float]:
    """Figures of a model in a stored report, without intervals."""
    return {name: figure["value"] for name, figure in model["figures"].items()}


def figure_cells(rows: list[dict[str, float]]) -> list[str]:
    """Each of ``FIGURES`` over the seeds; detection as AUROC / FPR95."""
    return [_cell(rows, figure) for figure in FIGURES]


def decision_cells(models: list[dict[str, Any]]) -> list[str]:
    """Each share of ``DECISIONS`` over the seeds."""
    shares = [[model["decisions"].get(each) for model in models] for each in DECISIONS]
    return [_spread(each, "{:.1%}") if None not in each else "–" for each in shares]


def _cell(rows: list[dict[str, float]], figure: str) -> str:
    keys = [f"{figure}.auroc", f"{figure}.fpr95"] if figure.startswith("ood.") else [figure]
    if any(key not in row for key in keys for row in rows):
        return "–"
    return " / ".join(_spread([row[key] for row in rows], "{:.3f}") for key in keys)


def _spread(values: list[float], form: str) -> str:
    """Mean over seeds with its range."""
    mean, low, high = (form.format(value) for value in (np.mean(values), min(values), max(values)))
    return mean if low == high else f"{mean} ({low} to {high})"


if __name__ == "__main__":
    main()
