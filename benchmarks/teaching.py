"""Learning from teachers: forks taught each by one checkpoint, one model taught by their mean, and the teachers.

    python benchmarks/teaching.py clinc150 ../shared -o benchmarks/results/teaching-clinc150.json
    python benchmarks/teaching.py banking77-oos ../shared --texts BANKING77-OOS -o …
    python benchmarks/teaching.py vision ../shared -o …
    python benchmarks/teaching.py clinc150 ../shared --labelled 2000 --unlabelled 10000 -o …

Three teachers are trained once by the recipe of the study (``training.Members.full``); the first is MODEL. Every row is
calibrated on the same half of the validation data (the other half chooses the epoch), with its distance; test data
report. A variant is written as ``name:option=value,…`` with options of ``Taught`` and ``fork``, ``keep``, ``members``.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import harness
import hydrant
import numpy as np
from hydrant.bundle.head_plan import HeadPlan
from hydrant.data.data_options import DataOptions
from hydrant.data.examples import Examples, random_parts
from hydrant.evaluation.report import REPORT
from hydrant.models.plan_cost import cost_of
from hydrant.tuning import Jointly, Taught
from rivals import DECISIONS, FIGURES, decision_cells, figure_cells, set_parser, subject_of, values_of, write_tables
from study import Data
from training import matmul

FORKS, MEAN, TUNED = "forks", "mean", "tuned as a whole"
SETTINGS = {
    "clinc150": {"fork": 5, "keep": 4},
    "banking77-oos": {"fork": 5, "keep": 4},
    "vision": {"fork": 11, "keep": 2},
}
PAIRED = {"accuracy": "accuracy", "nll": "NLL", "ood.predictive_entropy.auroc": "entropy"}


class Study:
    """One set: splits, teachers, and a folder for bundles."""

    def __init__(
        self, subject: Any, work: Path, labelled: int | None, unlabelled: int | None, train: Any, quick: bool
    ) -> None:
        self.subject, self.work, self.quick = subject, work, quick
        data: Data = subject.data
        self.choosing, self.fitting = random_parts(data.validation, 2, 0)
        order = np.random.default_rng(0).permutation(len(data.train))
        self.train = data.train if labelled is None else data.train.take(np.sort(order[:labelled]))
        self.unlabelled = None
        if unlabelled is not None:
            self.unlabelled = data.train.take(np.sort(order[labelled or 0 :][:unlabelled])).inputs
        self.teachers = [subject.single, *subject.members.deep()[1:]] if train is None else train(self.train)
        self.model = self.teachers[0]
        self.processor = subject.bundles.processor
        self.precision = subject.bundles.precision

    def calibrated(self, folder: Path) -> dict[str, Any]:
        """Calibrate and evaluate a bundle; return figures, decisions and operations."""
        data = self.subject.data
        fit = None if self.quick else self.train
        hydrant.calibrate(folder, self.fitting, data.ood_validation, fit=fit)
        hydrant.evaluate(folder, data.test, data.ood_test)
        bundle = hydrant.Bundle.open(folder)
        model = bundle.read_json(REPORT)["models"][0]
        found = {"figures": values_of(model), "decisions": model["decisions"], "temperature": model["temperature"]}
        return {**found, "operations": cost_of(bundle).ratio}

    def plan(self, options: dict[str, Any], seed: int) -> HeadPlan:
        """The plan of a variant: whole members, or pruned by Taylor scores from a fork on."""
        from hydrant.models.checkpoint import load_model
        from hydrant.models.family_registry import architecture_of

        shape = architecture_of(load_model(self.model))
        members, fork, keep = options["members"], options["fork"], options["keep"]
        if members == 1 or keep == shape.heads:
            return HeadPlan.all_heads(shape.family, shape.layers, shape.heads, members)
        return hydrant.plan_heads(
            self.model, self.choosing, "taylor", members=members, keep=keep, fork_from=fork, seed=seed,
            processor=self.processor,
        )  # fmt: skip

    def place(self, name: str) -> Path:
        """Folder of a row's bundle."""
        return self.work / f"{'quick-' * self.quick}{name.replace(' ', '-')}"

    def remembered(self, name: str, build: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
        """Figures of the bundle that ``build`` writes, from an earlier run if there was one."""
        place = self.place(name)
        done = place.with_suffix(".json")
        if not done.is_file():
            shutil.rmtree(place, ignore_errors=True)
            facts = {**build(place), **self.calibrated(place)}
            done.write_text(json.dumps(facts, default=str))
        return json.loads(done.read_text())

    def taught(self, place: Path, seed: int, how: Any, options: dict[str, Any]) -> dict[str, Any]:
        """Tune one variant; return its cost and epochs."""
        untuned = place.with_suffix(".untuned")
        shutil.rmtree(untuned, ignore_errors=True)
        hydrant.save_bundle(hydrant.fuse(self.model, self.plan(options, seed)), untuned, self.processor)
        started, cpu = time.perf_counter(), time.process_time()
        with matmul(self.precision):
            report = hydrant.tune(
                untuned, self.train, how, validation=self.choosing, output=place, seed=seed,
                reading=DataOptions(batch_size=32),
            )  # fmt: skip
        spent = {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - cpu}
        shutil.rmtree(untuned)
        return {"seed": seed, **spent, "epochs": report.epochs, "best_epoch": report.best_epoch}

    def paired(self, forks: Path, mean: Path) -> dict[str, list[float]]:
        """Figures of forks minus those of one model taught by the mean, each with its paired 95 % interval."""
        data = self.subject.data
        gaps = hydrant.evaluate(forks, data.test, data.ood_test, compare=[mean]).verdict[0].differences
        return {gap.figure: [gap.value, gap.low, gap.high] for gap in gaps if gap.figure in PAIRED}

    def fused(self, place: Path, models: Sequence[Path]) -> dict[str, Any]:
        """Write the single model, or the teachers as an exact Deep Ensemble."""
        separate: dict[str, Any] = {"keep_separate": ["all"]} if len(models) > 1 else {}
        hydrant.save_bundle(hydrant.fuse(list(map(str, models)), **separate), place, self.processor)
        return {}


def main() -> None:
    parser = set_parser(__doc__)
    parser.add_argument("--labelled", type=int, help="labelled training examples (default: all)")
    parser.add_argument("--unlabelled", type=int, help="further examples whose labels are hidden")
    parser.add_argument("--variants", nargs="*", default=[FORKS, MEAN, TUNED], help="NAME or NAME:OPTION=VALUE,…")
    parser.add_argument("--speed", action="store_true", help="only time an epoch, taught and tuned by labels")
    parser.add_argument("--quick", action="store_true", help="without the distance, for curves")
    options = parser.parse_args()
    subject, work = subject_of(options)
    place = work / ("teaching" if options.labelled is None else f"teaching-{options.labelled}-{options.unlabelled}")
    place.mkdir(parents=True, exist_ok=True)
    train = None if options.labelled is None else lambda examples: few(subject, place, examples)
    study = Study(subject, place, options.labelled, options.unlabelled, train, options.quick)
    report: dict[str, Any] = {**harness.about(subject.data.sizes()), "rows": {}}
    if options.speed:
        harness.save(options.output, {**report, **speed(study, variant_of(FORKS, study, options.set))})
        return
    rows = report["rows"]
    for name, models in (("single", study.teachers[:1]), ("teachers", study.teachers)):
        rows[name] = [study.remembered(name, partial(study.fused, models=models))]
    for seed in range(options.seeds):
        for variant in options.variants:
            name, how, plan = variant_of(variant, study, options.set)
            build = partial(study.taught, seed=seed, how=how, options=plan)
            rows.setdefault(name, []).append(study.remembered(f"{name}-{seed}", build))
            harness.save(options.output, report)
    forks, mean = (next((name for name in rows if name.startswith(kind)), None) for kind in (FORKS, MEAN))
    if forks and mean:
        seeds = range(options.seeds)
        report["paired"] = [study.paired(*(study.place(f"{name}-{seed}") for name in (forks, mean))) for seed in seeds]
        harness.save(options.output, report)
    write_tables(options.output, f"Teaching: {options.set}", tables(rows) + paired_table(report.get("paired", [])))


def paired_table(seeds: list[dict[str, list[float]]]) -> str:
    """Differences of forks and the one taught model, with intervals."""
    lines = [
        [str(seed), *("{:+.4f} ({:+.4f} to {:+.4f})".format(*gaps[name]) for name in PAIRED)]
        for seed, gaps in enumerate(seeds)
    ]
    return f"\n\nForks minus mean:\n\n{harness.table(['seed', *PAIRED.values()], lines)}" if seeds else ""


def speed(study: Study, variant: tuple[str, Any, dict[str, Any]], rows: int = 1000, rounds: int = 3) -> dict[str, Any]:
    """Seconds of an epoch on some rows: taught, teachers' pass aside, and by labels with the trunk unfrozen."""
    _, how, plan = variant
    how = replace(how, epochs=1)
    untuned = study.work / "speed"
    hydrant.save_bundle(hydrant.fuse(study.model, study.plan(plan, 0)), untuned, study.processor, force=True)
    some = study.train.take(np.arange(rows))
    seconds: dict[str, list[float]] = {"taught": [], "tuned": []}
    for _ in range(rounds + 1):
        for name, each in (("taught", how), ("tuned", Jointly(epochs=1, unfreeze=True))):
            started = time.process_time()
            hydrant.tune(untuned, some, each, validation=study.choosing, output=study.work / "speed-out", force=True)
            seconds[name].append(time.process_time() - started)
    medians = {name: float(np.median(each[1:])) for name, each in seconds.items()}  # the first pass runs the teachers
    print(facts := {"seconds": seconds, "ratio": medians["taught"] / medians["tuned"]})
    return facts


def few(subject: Any, place: Path, examples: Examples) -> list[Path]:
    """Teachers trained on few labelled examples, in as many updates as on 8,000; all three are new."""
    members = subject.members
    members.examples, members.work = examples, place
    members.recipe = replace(
        members.recipe, epochs=max(members.recipe.epochs, round(members.recipe.epochs * 8000 / len(examples)))
    )
    return [subject.members.full(seed) for seed in range(3)]


def variant_of(text: str, study: Study, kind: str) -> tuple[str, Any, dict[str, Any]]:
    """Parse a variant → its name, how to tune, and its plan."""
    kind_of, _, more = text.partition(":")
    options = {key: json.loads(value) for key, value in (each.split("=") for each in more.split(",") if each)}
    plan = {"members": 3 if kind_of == FORKS else 1, **SETTINGS[kind]}
    plan |= {name: options.pop(name) for name in list(options) if name in plan}
    common = {"patience": 10, **options}
    if kind_of == TUNED:
        return text, Jointly(freeze=0, **{"epochs": Taught.epochs, **common}), plan
    how = Taught(teachers=study.teachers, unlabelled=study.unlabelled, teacher_outputs=study.work / "outputs", **common)
    return text, how, plan


def tables(rows: dict[str, list[dict[str, Any]]]) -> str:
    """Means over the seeds with their range, and the share of the teachers' gain in NLL that was kept."""
    single, teachers = (rows[name][0]["figures"]["nll"] for name in ("single", "teachers"))
    lines, decisions = [], []
    for name, each in rows.items():
        kept = (single - np.mean([row["figures"]["nll"] for row in each])) / (single - teachers)
        shown = name if name in ("single", "teachers") else f"{name} ({len(each)} seeds)"
        cells = figure_cells([row["figures"] for row in each])
        lines.append([shown, f"{each[0]['operations']:.2f}", *cells, f"{kept:.0%}"])
        decisions.append([shown, *decision_cells(each)])
    head = ["", "operations", *FIGURES.values(), "NLL gain kept"]
    return f"{harness.table(head, lines)}\n\n{harness.table(['', *DECISIONS.values()], decisions)}"


if __name__ == "__main__":
    main()
