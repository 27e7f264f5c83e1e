"""Run a study: create, calibrate, measure and time every row; write the tables and the picture of its document.

    python benchmarks/study_run.py clinc150 ../shared -o benchmarks/results/study-clinc150.json
    python benchmarks/study_run.py vision ../shared -o benchmarks/results/study-vision.json

The argument is the folder with ``models/`` and ``data/`` (study_subjects.py). Missing models are trained; slow steps
are cached in ``--work``.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import harness
import hydrant
import study_figures as figures
import study_table as tables
from harness import ROOT
from hydrant.metrics.timing import Rules
from study_rows import CONTROL, DEEP, DROPOUT, LORA, SINGLE, Rows, Subject, results
from study_subjects import Clinc150, Vision
from study_table import draw_rows

KINDS: dict[str, type[Subject]] = {"clinc150": Clinc150, "vision": Vision}


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("study", choices=KINDS, help="data set")
    parser.add_argument("shared", type=Path, help="folder with models/ and data/")
    parser.add_argument("--work", type=Path, help="cache folder (default out/studies/NAME)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="parallel trainings (default: one per core)")
    parser.add_argument("--document", type=Path, help="file for the tables (default: results/NAME-tables.md)")
    parser.add_argument("--seconds", type=float, default=1.0, help="minimum time of each row (default 1)")
    parser.add_argument("--resamples", type=int, default=200, help="bootstrap resamples (default 200)")
    parser.add_argument("--leave-out", nargs="*", default=[], metavar="ROW", help="rows to skip")
    parser.add_argument("--no-latency", action="store_true", help="skip the timing")
    options = parser.parse_args()
    kind: Any = KINDS[options.study]
    run(kind(options.shared, options.work or Path("out/studies") / options.study, options.jobs), options)


def run(subject: Subject, options: argparse.Namespace) -> None:
    out = set(options.leave_out)
    rows = subject.rows(deep=DEEP not in out, lora=LORA not in out)
    names = [name for name in rows.names() if name not in out]
    rows.make(names, options.jobs)
    reports = results(rows, names, [name for name in (CONTROL, DEEP) if name in names], options.resamples)
    report: dict[str, Any] = {
        **harness.about(subject.data.sizes()),
        "settings": subject.settings.as_json(),
        "baselines": baselines(subject, rows),
    }
    if not options.no_latency:
        timed = {name: rows.bundle(name, rows.seeds(name)[0]) for name in names if name != DROPOUT}
        rules = Rules(options.seconds, iterations=30, warm_up=options.seconds / 5)
        reference = DEEP if DEEP in names else None
        passes = {DROPOUT: subject.settings.passes} if DROPOUT in names else {}
        report["latency"] = figures.latencies(timed, subject.data.test, (1, 8), rules, reference, passes)
        for row in reports:
            row["latency"] = report["latency"].get(row["name"])
    report["rows"] = reports
    harness.save(options.output, report)
    text = tables.render(report, [CONTROL, DEEP])
    print(text)
    document = options.document or ROOT / f"benchmarks/results/{subject.name}-tables.md"
    harness.put_into(document, text)
    if not options.no_latency:
        picture = draw_rows(reports, subject.title, subject.taps)
        (options.document or ROOT / f"docs/research/{subject.name}.md").with_suffix(".png").write_bytes(picture)


def baselines(subject: Subject, rows: Rows) -> dict[str, Any]:
    """Post-hoc scores of the single model (``evaluate --baselines``)."""
    data = subject.data
    evaluation = hydrant.evaluate(
        rows.bundle(SINGLE, 0), data.test, data.ood_test,
        figures=hydrant.EvaluationOptions(bootstrap=0, baselines=True, fit=data.train), backend="torch",
    )  # fmt: skip
    report = evaluation.models[0].baselines
    assert report is not None  # requested above
    return {name: figure.value for name, figure in report.figures.items()}


if __name__ == "__main__":
    main()
