"""Running a study: make the rows, measure, time, and write the JSON file, the tables and the picture."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Protocol

import hydrant
import study_figures as figures
import study_table as tables
from harness import about
from hydrant.metrics.timing import Rules
from study import Bundles, Data
from study_claims import read_taps
from study_picture import draw_rows
from study_rows import DEEP, DROPOUT, LORA, SINGLE, Rows, Settings, results

DOCUMENTS = Path(__file__).parents[1] / "docs/studies"
FINDINGS = DOCUMENTS.parent / "findings.md"


class Subject(Protocol):
    """What a study is of."""

    name: str
    title: str
    settings: Settings
    data: Data
    single: Path
    bundles: Bundles

    def rows(self, *, deep: bool = True, lora: bool = True) -> Rows: ...


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that all programs of the studies have."""
    parser.add_argument("shared", type=Path, help="folder with models/ and data/")
    parser.add_argument("--work", type=Path, help="folder of what takes long (default out/studies/NAME)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="trainings at a time (default: one a core)")
    parser.add_argument("-o", "--output", type=Path, help="JSON file to write")


def finding_options(
    about_it: str | None, kinds: Collection[str], further: Callable[[argparse.ArgumentParser], object] = lambda _: None
) -> argparse.Namespace:
    """The command line of a program that asks one question of either study; ``further`` adds options of its own."""
    parser = argparse.ArgumentParser(description=about_it, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=kinds, help="data set")
    add_options(parser)
    parser.add_argument("--document", type=Path, default=FINDINGS, help="gets the tables (default docs/findings.md)")
    further(parser)
    return parser.parse_args()


def open_subject(kind: Callable[[Path, Path, int], Subject], options: argparse.Namespace) -> Subject:
    name = kind.name  # type: ignore[attr-defined]
    return kind(options.shared, options.work or Path("out/studies") / name, options.jobs)


def main(kind: Callable[[Path, Path, int], Subject], about_it: str | None, given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=about_it, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--seconds", type=float, default=1.0, help="that each row is timed at least (default 1)")
    parser.add_argument("--resamples", type=int, default=200, help="of the bootstrap (default 200)")
    parser.add_argument("--leave-out", nargs="*", default=[], metavar="ROW", help="rows that are not made")
    parser.add_argument(
        "--earlier", type=Path, metavar="JSON", help="earlier -o file: of its rows first seeds alone are made"
    )
    parser.add_argument("--no-latency", action="store_true", help="make and measure, but time nothing")
    parser.add_argument("--document", type=Path, help="gets the tables (default docs/studies/NAME.md)")
    options = parser.parse_args(given)
    run(open_subject(kind, options), options)


def run(subject: Subject, options: argparse.Namespace) -> None:
    """The whole study of one subject."""
    out = set(options.leave_out)
    rows = subject.rows(deep=DEEP not in out, lora=LORA not in out)
    names = [name for name in rows.names() if name not in out]
    earlier = json.loads(options.earlier.read_text()) if options.earlier else None
    if earlier:
        rows.take(earlier)
    rows.make(names, options.jobs)
    found = results(rows, names, [name for name in (f"{SINGLE}, tuned", DEEP) if name in names], options.resamples)
    report: dict[str, Any] = {
        **about(subject.data.sizes()),
        "settings": subject.settings.as_json(),
    }
    if earlier:  # where further seeds are from
        report["earlier"] = {name: earlier[name] for name in ("command", "machine", "cores", "versions")}
    report["baselines"] = baselines(subject, rows)
    if not options.no_latency:
        timed = {name: rows.bundle(name, rows.seeds(name)[0]) for name in names if name != DROPOUT}
        rules = Rules(options.seconds, iterations=30, warm_up=options.seconds / 5)
        reference = DEEP if DEEP in names else None
        passes = {DROPOUT: subject.settings.passes} if DROPOUT in names else {}
        report["latency"] = figures.latencies(timed, subject.data.test, (1, 8), rules, reference, passes)
        for row in found:
            row["latency"] = report["latency"].get(row["name"])
    report["rows"] = found
    if options.output:
        options.output.write_text(json.dumps(report, indent=1, default=vars) + "\n")
    forks = dict(zip(subject.settings.forks, rows.forks, strict=True))
    text = tables.render(report, subject.name, forks, [f"{SINGLE}, tuned", DEEP])
    print(text)
    document = options.document or DOCUMENTS / f"{subject.name}.md"
    tables.put_into(document, text)
    if not options.no_latency:
        picture = draw_rows(found, subject.title, read_taps(subject.name))
        document.with_name(f"{subject.name}.png").write_bytes(picture)


def baselines(subject: Subject, rows: Rows) -> dict[str, Any]:
    """Post-hoc scores of the single model (``evaluate --baselines``)."""
    data = subject.data
    found = hydrant.evaluate(
        rows.bundle(SINGLE, 0), data.test, data.ood_test,
        figures=hydrant.Figures(bootstrap=0, baselines=True, fit=data.train), backend="torch",
    )  # fmt: skip
    report = found.models[0].baselines
    assert report is not None  # asked for
    return {name: figure.value for name, figure in report.figures.items()}
