"""A study: makes, calibrates, measures and times every row, and writes the tables and the picture of its document.

    python benchmarks/study_run.py clinc150 ../shared -o benchmarks/results/study-clinc150.json
    python benchmarks/study_run.py vision ../shared -o benchmarks/results/study-vision.json

Takes the folder that holds ``models/`` and ``data/`` (study_subjects.py), and trains what is missing.
Everything long is kept in ``--work`` and used again.
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
    made = harness.parser(__doc__)
    made.add_argument("study", choices=KINDS, help="data set")
    made.add_argument("shared", type=Path, help="folder with models/ and data/")
    made.add_argument("--work", type=Path, help="folder of what takes long (default out/studies/NAME)")
    made.add_argument("--jobs", type=int, default=os.cpu_count(), help="trainings at a time (default: one a core)")
    made.add_argument("--document", type=Path, help="gets the tables (default: benchmarks/results/NAME-tables.md)")
    made.add_argument("--seconds", type=float, default=1.0, help="that each row is timed at least (default 1)")
    made.add_argument("--resamples", type=int, default=200, help="of the bootstrap (default 200)")
    made.add_argument("--leave-out", nargs="*", default=[], metavar="ROW", help="rows that are not made")
    made.add_argument("--no-latency", action="store_true", help="make and measure, but time nothing")
    options = made.parse_args()
    kind: Any = KINDS[options.study]
    run(kind(options.shared, options.work or Path("out/studies") / options.study, options.jobs), options)


def run(subject: Subject, options: argparse.Namespace) -> None:
    """The whole study of one subject."""
    out = set(options.leave_out)
    rows = subject.rows(deep=DEEP not in out, lora=LORA not in out)
    names = [name for name in rows.names() if name not in out]
    rows.make(names, options.jobs)
    found = results(rows, names, [name for name in (CONTROL, DEEP) if name in names], options.resamples)
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
        for row in found:
            row["latency"] = report["latency"].get(row["name"])
    report["rows"] = found
    harness.save(options.output, report)
    text = tables.render(report, [CONTROL, DEEP])
    print(text)
    document = options.document or ROOT / f"benchmarks/results/{subject.name}-tables.md"
    harness.put_into(document, text)
    if not options.no_latency:
        picture = draw_rows(found, subject.title, subject.taps)
        (options.document or ROOT / f"docs/research/{subject.name}.md").with_suffix(".png").write_bytes(picture)


def baselines(subject: Subject, rows: Rows) -> dict[str, Any]:
    """Post-hoc scores of the single model (``evaluate --baselines``)."""
    data = subject.data
    found = hydrant.evaluate(
        rows.bundle(SINGLE, 0), data.test, data.ood_test,
        figures=hydrant.EvaluationOptions(bootstrap=0, baselines=True, fit=data.train), backend="torch",
    )  # fmt: skip
    report = found.models[0].baselines
    assert report is not None  # asked for
    return {name: figure.value for name, figure in report.figures.items()}


if __name__ == "__main__":
    main()
