"""What the studies should show, in words, with what was found and whether it holds."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np

Row = Mapping[str, Any]

SIGNS = {"≥": operator.ge, "≤": operator.le, ">": operator.gt}

ENTROPY = "ood.predictive_entropy"


def read_taps(study: str) -> str:
    """The set of taps that claims stand on: of texts balanced, by which all rows were measured; of images the last."""
    return "balanced" if study == "clinc150" else "last"


def claims(study: str, rows: Mapping[str, Row], forks: Mapping[float, str], examples: int) -> list[dict[str, Any]]:
    """The claims of a study, of means over the seeds, calibrated.

    Args:
        study: ``"clinc150"`` or ``"vision"``.
        rows: name → row.
        forks: most operations → the row that is to stay within them, untuned.
        examples: of the test split.
    """
    chosen = {limit: rows.get(f"{name}, tuned") for limit, name in forks.items()}
    distance = f"ood.distance_{read_taps(study)}"
    return [
        line
        for make in ((_clinc150,) if study == "clinc150" else (_vision,))
        for line in make(rows, {limit: row for limit, row in chosen.items() if row is not None}, distance)
    ] + [_flags(row, taps, examples) for row in rows.values() for taps in _read_by(row, study)]


def _clinc150(rows: Mapping[str, Row], forks: Mapping[float, Row], distance: str) -> list[dict[str, Any]]:
    single, found = _mean(rows["single"], "accuracy"), []
    if 1.05 in forks:
        row = forks[1.05]
        found += [
            _line(f"{row['name']}: operations", row["operations"], "≤", 1.05),
            _line(f"{row['name']}: accuracy, at most 0.3 points below the single model", _mean(row, "accuracy"), "≥",
                  single - 0.003),
            _line(f"{row['name']}: AUROC by entropy", _mean(row, f"{ENTROPY}.auroc"), "≥", 0.960),
            _line(f"{row['name']}: FPR95 by entropy", _mean(row, f"{ENTROPY}.fpr95"), "≤", 0.170),
            _line(f"{row['name']}: ECE", _mean(row, "ece"), "≤", 0.015),
            _line(f"{row['name']}: AUROC by distance", _mean(row, f"{distance}.auroc"), "≥", 0.976),
            _line(f"{row['name']}: FPR95 by distance", _mean(row, f"{distance}.fpr95"), "≤", 0.095),
            *(_line(f"{row['name']}: latency at batch {size}", at["median"], "≤", 1.10)
              for size, at in (row.get("latency") or {}).items()),
        ]  # fmt: skip
    if 0.9 in forks:
        row = forks[0.9]
        found += [
            _line(f"{row['name']}: operations", row["operations"], "≤", 0.90),
            _line(f"{row['name']}: accuracy, not below the single model", _mean(row, "accuracy"), "≥", single),
            _line(f"{row['name']}: AUROC by distance", _mean(row, f"{distance}.auroc"), "≥", 0.975),
        ]
    return found


def _vision(rows: Mapping[str, Row], forks: Mapping[float, Row], distance: str) -> list[dict[str, Any]]:
    single, control, found = rows["single"], rows.get("single, tuned"), []
    for limit, row in sorted(forks.items()):
        found += [
            _line(f"{row['name']}: operations", row["operations"], "≤", limit),
            _line(f"{row['name']}: accuracy, not below the single model", _mean(row, "accuracy"), "≥",
                  _mean(single, "accuracy")),
            _line(f"{row['name']}: AUROC by entropy", _mean(row, f"{ENTROPY}.auroc"), "≥", 0.878),
            _line(f"{row['name']}: AUROC by distance", _mean(row, f"{distance}.auroc"), "≥", 0.893),
        ]  # fmt: skip
        if control is not None:
            kept = sum(seed.get("best_epoch") == 0 for seed in control["seeds"])  # no epoch made them better
            told = f" ({kept} of its {len(control['seeds'])} seeds kept its weights)" if kept else ""
            text = f"{row['name']}: AUROC by entropy, above the single model tuned alike{told}"
            found.append(_line(text, _mean(row, f"{ENTROPY}.auroc"), ">", _mean(control, f"{ENTROPY}.auroc")))
    return found


def _flags(row: Row, score: str, examples: int) -> dict[str, Any]:
    """Whether the share of flagged test inputs lies within the 95 % binomial interval of 5 %, for every seed."""
    from scipy.stats import binom

    low, high = (float(bound) / examples for bound in binom.interval(0.95, examples, 0.05))
    shares = [seed["flagged"][score]["test"] for seed in row["seeds"]]
    return {
        "claim": f"{row['name']}: flagged of the test inputs at a false-alarm rate of 5 %, by distance",
        "found": f"{', '.join(f'{100 * share:.2f} %' for share in shares)} in {100 * low:.2f} to {100 * high:.2f} %",
        "holds": all(low <= share <= high for share in shares),
    }


def _read_by(row: Row, study: str) -> list[str]:
    """The distance that claims on a row stand on: members without a trunk have their last taps alone."""
    names = [f"distance_{taps}" for taps in (read_taps(study), "last")]
    return [name for name in names if f"ood.{name}.auroc" in row["seeds"][0]["after"]][:1]


def _mean(row: Row, figure: str) -> float:
    return float(np.mean([seed["after"][figure] for seed in row["seeds"]]))


def _line(text: str, left: float, sign: str, right: float) -> dict[str, Any]:
    return {"claim": text, "found": f"{left:.4f} {sign} {right:.4f}", "holds": bool(SIGNS[sign](left, right))}
