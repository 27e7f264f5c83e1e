"""Results of a study as Markdown tables and as a picture."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from harness import table
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from study_rows import TUNED

SCORES = {
    "max_probability": "max probability", "predictive_entropy": "entropy", "mutual_information": "mutual information",
    "energy": "energy", "distance_last": "distance, last tap", "distance_all": "distance, every layer",
    "distance_balanced": "distance, balanced",
}  # fmt: skip

BASELINES = {
    "max_probability": "max probability", "max_logit": "max logit", "predictive_entropy": "entropy", "energy": "energy",
    "gen": "GEN", "knn": "kNN", "vim": "ViM", "mahalanobis": "Mahalanobis",
    "relative_mahalanobis": "relative Mahalanobis",
}  # fmt: skip

MAIN = "Calibrated: means over the seeds; AUROC / FPR95 of each score; costs ÷ the plain single model's, at batch 1 / 8"

Row = Mapping[str, Any]


def values(row: Row, figure: str, state: str = "after") -> list[float]:
    """Values of a row's metric for each seed; empty if a seed lacks the score, as in earlier reports."""
    seeds = [seed[state] for seed in row["seeds"]]
    return [seed[figure] for seed in seeds] if all(figure in seed for seed in seeds) else []


def main_table(rows: Sequence[Row], state: str = "after") -> str:
    """Table of the rows: cost, quality, and AUROC / FPR95 of detection by each score; means over the seeds."""
    scores = [score for score in SCORES if any(values(row, f"ood.{score}.auroc") for row in rows)]
    head = ["", "operations", "latency", "parameters", "accuracy", "NLL", "ECE", *(SCORES[score] for score in scores)]
    lines = []
    for row in rows:
        quality = [f"{np.mean(values(row, name, state)):.3f}" for name in ("accuracy", "nll", "ece")]
        operations = f"{row['operations']:.2f}"
        if row.get("mean_tokens"):
            operations += f" ({row['operations_at_mean']:.2f})"
        costs = [operations, _latency(row), f"{row['parameters']:.2f}"]
        lines.append([row["name"], *costs, *quality, *(_detection(row, score, state) for score in scores)])
    return table(head, lines)


def _latency(row: Row) -> str:
    latency = row.get("latency")
    return "–" if latency is None else " / ".join(f"{at['median']:.2f}" for at in latency.values())


def _detection(row: Row, score: str, state: str) -> str:
    metrics = [values(row, f"ood.{score}.{name}", state) for name in ("auroc", "fpr95")]
    return " / ".join(f"{np.mean(figure):.3f}" for figure in metrics) if all(metrics) else "–"


def spread_table(rows: Sequence[Row]) -> str:
    """Mean and range over the seeds, for rows with several seeds."""
    wanted = {
        "accuracy": "accuracy", "ece": "ECE", "ood.predictive_entropy.auroc": "AUROC, entropy",
        "ood.predictive_entropy.fpr95": "FPR95, entropy", "ood.distance_balanced.auroc": "AUROC, balanced",
        "ood.distance_balanced.fpr95": "FPR95, balanced", "ood.distance_last.auroc": "AUROC, last tap",
        "ood.distance_last.fpr95": "FPR95, last tap",
    }  # fmt: skip
    lines = [[row["name"], *(ranged(values(row, name)) for name in wanted)] for row in rows if len(row["seeds"]) > 1]
    return table(["", *wanted.values()], lines)


def ranged(seeds: Sequence[float]) -> str:
    """Mean of the seeds, with minimum and maximum."""
    return f"{np.mean(seeds):.3f} ({min(seeds):.3f}–{max(seeds):.3f})" if seeds else "–"


def difference_table(rows: Sequence[Row], reference: str) -> str:
    """Differences from a reference row with paired 95 % bootstrap intervals, for the first seeds."""
    wanted = {
        "accuracy": "accuracy",
        "nll": "NLL",
        "ood.predictive_entropy.auroc": "AUROC, entropy",
        "ood.predictive_entropy.fpr95": "FPR95, entropy",
    }
    (base,) = [row for row in rows if row["name"] == reference]
    lines = []
    for row in rows:
        against = row["against"].get(reference)
        if against is not None:
            cells = [
                f"{values(row, name)[0] - values(base, name)[0]:+.3f} ({against[name]['low']:+.3f} to "
                f"{against[name]['high']:+.3f})"
                for name in wanted
            ]
            lines.append([row["name"], *cells])
    return table(["", *wanted.values()], lines)


def flag_table(rows: Sequence[Row]) -> str:
    """Shares of test and OOD inputs flagged at a threshold for 5 % false alarms."""
    wanted = [score for score in ("predictive_entropy", "energy", "distance_last", "distance_all", "distance_balanced")
              if any(score in row["seeds"][0]["flagged"] for row in rows)]  # fmt: skip
    lines = []
    for row in rows:
        shares = [seed["flagged"] for seed in row["seeds"]]
        cells = [
            " / ".join(f"{100 * np.mean([share[score][side] for share in shares]):.1f} %" for side in ("test", "ood"))
            if all(score in share for share in shares) else "–"
            for score in wanted
        ]  # fmt: skip
        lines.append([row["name"], *cells])
    return table(["", *(SCORES[score] for score in wanted)], lines)


def baseline_table(metrics: Mapping[str, float]) -> str:
    """Detection by post-hoc scores of the single model."""
    lines = [
        [title, *(f"{metrics[f'{name}.{figure}']:.3f}" for figure in ("auroc", "aupr", "fpr95"))]
        for name, title in BASELINES.items() if f"{name}.auroc" in metrics
    ]  # fmt: skip
    return table(["", "AUROC", "AUPR", "FPR95"], lines)


def render(report: Mapping[str, Any], references: Sequence[str]) -> str:
    """All tables of a study's JSON report, with differences from the reference rows."""
    rows = report["rows"]
    named = {row["name"]: row for row in rows}
    parts = [
        (MAIN, main_table(rows)),
        ("The single model by post-hoc scores (`evaluate --baselines`)", baseline_table(report["baselines"])),
        ("Mean and range over the seeds", spread_table(rows)),
        *((f"Minus *{reference}*, first seeds, with 95 % bootstrap intervals", difference_table(rows, reference))
          for reference in references if reference in named),
        ("Flagged at `--false-alarm 0.05`: of the test inputs / of those out of distribution", flag_table(rows)),
        ("Not calibrated", main_table([{**row, "latency": None} for row in rows], "before")),
    ]  # fmt: skip
    return "\n\n".join(f"**{title}**\n\n{text}" for title, text in parts)


PANELS = {
    "ood.predictive_entropy.auroc": "OOD AUROC by entropy",
    "ood.energy.auroc": "OOD AUROC by energy",
    "distance": "OOD AUROC by distance",
    "accuracy": "accuracy",
}
TICKS = (0.8, 0.9, 1, 1.2, 1.5, 2, 3, 5, 10)  # Ticks of latencies
MARKERS = "os"  # One marker for every ten rows


def draw_rows(rows: Sequence[dict[str, Any]], title: str, taps: str = "balanced") -> bytes:
    """PNG bytes: a panel for each metric against latency at batch 1, with ranges and the Pareto front.

    Untuned rows are hollow. The distance uses a set of taps, or the last tap if a row lacks the set. Rows far worse
    than the single model, the first row, are cut off.
    """
    timed = [row for row in rows if row.get("latency")]
    figure, panels = _panels(2, 2, (12, 10), f"{title}: quality against latency (batch 1, ÷ the plain single model)")
    bases = list(dict.fromkeys(row["name"].removesuffix(TUNED) for row in timed))
    for axes, (name, label) in zip(panels.flat, PANELS.items(), strict=True):
        points = []
        for row in timed:
            names = [name] if name != "distance" else [f"ood.distance_{kind}.auroc" for kind in (taps, "last")]
            seeds = next((each for name in names if (each := values(row, name))), None)
            if seeds:
                place, latency = bases.index(row["name"].removesuffix(TUNED)), row["latency"]["1"]["median"]
                _point(
                    axes, latency, seeds, place, row["name"], MARKERS[place // 10 % len(MARKERS)], TUNED in row["name"]
                )
                points.append((latency, float(np.mean(seeds))))
        axes.step(*zip(*pareto(points), strict=True), where="post", color="#999999", linewidth=1, zorder=0)
        best, single = max(mean for _, mean in points), points[0][1]
        axes.set_ylim(bottom=max(axes.get_ylim()[0], best - 4 * max(best - single, 0.002)))
        axes.set_title(label, fontsize=10)
        axes.set_xlabel("latency ÷ the plain single model's", fontsize=8)
        axes.set_xscale("log")
        axes.set_xticks([tick for tick in TICKS if tick <= 1.05 * max(latency for latency, _ in points)])
        axes.xaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
    return _png(figure, panels)


TASK_PANELS = {
    "tagger": ("span_f1", "token classification: span F1"),
    "cross-encoder": ("rmse", "reranking: RMSE (lower is better)"),
    "several labels": ("exact_match", "multi-label: all labels right"),
}


def draw_tasks(measured: Sequence[Mapping[str, Any]]) -> bytes:
    """PNG bytes: a panel for each task with a metric against operations, and its range over the seeds."""
    tasks = {task: rows for task in TASK_PANELS if (rows := [one["rows"] for one in measured if one["task"] == task])}
    figure, panels = _panels(1, len(tasks), (4.5 * len(tasks), 5), "Other tasks: mean and range over the seeds")
    for axes, (task, seeds) in zip(panels.flat, tasks.items(), strict=True):
        metric, title = TASK_PANELS[task]
        bases = list(dict.fromkeys(name.removesuffix(TUNED) for name in seeds[0]))
        for name in seeds[0]:
            operations = float(np.mean([rows[name]["costs"]["operations"] for rows in seeds]))
            metrics = [rows[name]["figures"][metric]["value"] for rows in seeds]
            place = bases.index(name.removesuffix(TUNED))
            _point(axes, operations, metrics, place, name, MARKERS[name.endswith(TUNED)], name.endswith(TUNED))
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("operations ÷ the plain single model's", fontsize=8)
    return _png(figure, panels)


def _panels(rows: int, columns: int, size: tuple[float, float], title: str) -> tuple[Figure, Any]:
    figure = Figure(figsize=size, dpi=110, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    panels = figure.subplots(rows, columns, squeeze=False)
    for axes in panels.flat:
        axes.grid(visible=True, alpha=0.25)
    return figure, panels


def _point(axes: Any, x: float, seeds: Sequence[float], place: int, label: str, marker: str, tuned: bool) -> None:
    """Plot mean and range of a metric, filled if the row was tuned."""
    mean, colour = float(np.mean(seeds)), f"C{place % 10}"
    axes.errorbar(x, mean, [[mean - min(seeds)], [max(seeds) - mean]], marker=marker, color=colour, linestyle="",
                  markersize=6, markerfacecolor=colour if tuned else "white", label=label)  # fmt: skip


def pareto(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Pareto front of (cost, quality), by increasing cost."""
    front: list[tuple[float, float]] = []
    for cost, quality in sorted(points, key=lambda point: (point[0], -point[1])):
        if not front or quality > front[-1][1]:
            front.append((cost, quality))
    return front


def _png(figure: Figure, panels: Any) -> bytes:
    """PNG bytes of the figure, with one legend for all panels."""
    named = {
        label: handle for axes in panels.flat for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=4, fontsize=8)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": "hydrant"})
    return buffer.getvalue()
