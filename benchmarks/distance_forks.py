"""What the distance of tuned late forks tells by each set of taps, on CLINC150's out-of-scope queries and on noise.

    python benchmarks/distance_forks.py ../shared -o benchmarks/results/distance-forks.json

Takes the folder that holds ``models/minilm-clinc150`` and ``data/clinc150``. The single model, and the forks of the
study (``study_clinc150.FORKS``) that cost about as much as it does, planned and tuned from three seeds each. Every set
of taps has the rank that ``calibrate`` gives it. The table of the test split is written into docs/studies/clinc150.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import hydrant
import numpy as np
from harness import about
from distance_rank import TAPS, by_taps, clinc150
from study_clinc150 import FORKS, Clinc150
from study_rows import SINGLE, TUNED
from study_table import put_into, table

DOCUMENT = Path(__file__).parents[1] / "docs/studies/clinc150.md"

COSTS = (0.9, 1.05)
"""Of the forks: operations, those of the plain single model being 1."""


def measured(shared: Path, work: Path) -> list[dict[str, Any]]:
    """A row for each bundle and set of taps."""
    rows, case = Clinc150(shared, work, jobs=1).rows(deep=False, lora=False), clinc150(shared)
    named = dict(zip(FORKS, rows.forks, strict=True))
    found = []
    for name in (SINGLE, *(f"{named[cost]}{TUNED}" for cost in COSTS)):
        for seed in rows.seeds(name):
            for row in by_taps(hydrant.Bundle.open(rows.bundle(name, seed)), case, (), 1):
                found.append({"row": name, "seed": seed, **row})
                print(json.dumps(found[-1]), flush=True)
    return found


def markdown(rows: Sequence[Mapping[str, Any]], split: str = "test") -> str:
    """A line for each row and set of taps, mean and range of its seeds."""
    lines = []
    for name in dict.fromkeys(row["row"] for row in rows):
        for taps in TAPS:
            there = [row for row in rows if (row["row"], row["taps"]) == (name, taps)]
            rank = there[0]["rank"]
            lines.append([name, taps, "the whole" if rank is None else str(rank)])
            lines[-1] += [_spread([row[split][figure] for row in there]) for figure in there[0][split]]
    return table(["", "taps", "rank", *rows[0][split]], lines)


def _spread(values: Sequence[float]) -> str:
    mean = f"{np.mean(values):.3f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.3f} to {max(values):.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shared", type=Path, help="folder with models/ and data/")
    parser.add_argument("--work", type=Path, default=Path("out/studies/clinc150"), help="folder of what takes long")
    parser.add_argument("-o", "--output", type=Path, help="JSON file to write")
    parser.add_argument("--document", type=Path, default=DOCUMENT, help="gets the table")
    options = parser.parse_args()
    rows = measured(options.shared, options.work)
    put_into(options.document, markdown(rows), "forks-distance")
    if options.output:
        options.output.write_text(json.dumps({**about({}), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
