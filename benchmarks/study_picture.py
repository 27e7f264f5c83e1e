"""The picture of a study: quality against measured latency."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from study_rows import TUNED
from study_table import values

PANELS = {
    "ood.predictive_entropy.auroc": "OOD AUROC by entropy",
    "ood.energy.auroc": "OOD AUROC by energy",
    "distance": "OOD AUROC by distance",
    "accuracy": "accuracy",
}
TICKS = (0.8, 0.9, 1, 1.2, 1.5, 2, 3, 5, 10)
"""Of latencies."""
MARKERS = "os"
"""Of rows by ten."""


def draw_rows(rows: Sequence[dict[str, Any]], title: str, taps: str = "balanced") -> bytes:
    """PNG bytes: a panel for each quality against latency at batch 1, bars over the seeds; the best trade is a line.

    Rows that were not tuned are hollow. The distance is that of a set of taps, or the last tap's if a row has no such
    set. What is far worse than the single model, the first row, lies outside.
    """
    timed = [row for row in rows if row.get("latency")]
    figure, panels = _panels(2, 2, (12, 10), f"{title}: quality against latency (batch 1, ÷ the plain single model)")
    bases = list(dict.fromkeys(row["name"].removesuffix(TUNED) for row in timed))
    for axes, (name, label) in zip(panels.flat, PANELS.items(), strict=True):
        points = []
        for row in timed:
            names = [name] if name != "distance" else [f"ood.distance_{kind}.auroc" for kind in (taps, "last")]
            given = next((found for each in names if (found := values(row, each))), None)
            if given:
                place, latency = bases.index(row["name"].removesuffix(TUNED)), row["latency"]["1"]["median"]
                _point(
                    axes, latency, given, place, row["name"], MARKERS[place // 10 % len(MARKERS)], TUNED in row["name"]
                )
                points.append((latency, float(np.mean(given))))
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


def _panels(rows: int, columns: int, size: tuple[float, float], title: str) -> tuple[Figure, Any]:
    figure = Figure(figsize=size, dpi=110, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    panels = figure.subplots(rows, columns, squeeze=False)
    for axes in panels.flat:
        axes.grid(visible=True, alpha=0.25)
    return figure, panels


def _point(axes: Any, x: float, given: Sequence[float], place: int, label: str, marker: str, tuned: bool) -> None:
    """Mean and range of a figure, filled if the row was tuned."""
    mean, colour = float(np.mean(given)), f"C{place % 10}"
    axes.errorbar(x, mean, [[mean - min(given)], [max(given) - mean]], marker=marker, color=colour, linestyle="",
                  markersize=6, markerfacecolor=colour if tuned else "white", label=label)  # fmt: skip


def pareto(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Those that no cheaper point equals, from cheap to dear: (cost, quality)."""
    front: list[tuple[float, float]] = []
    for cost, quality in sorted(points, key=lambda point: (point[0], -point[1])):
        if not front or quality > front[-1][1]:
            front.append((cost, quality))
    return front


def _png(figure: Figure, panels: Any) -> bytes:
    """With one legend of all panels."""
    named = {
        label: handle for axes in panels.flat for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=4, fontsize=8)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": "hydrant"})
    return buffer.getvalue()
