"""Pictures of the studies: quality against measured latency, and the grid of forks and heads."""

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
METHODS = {"taylor": "Taylor importance", "circuit": "circuits"}
"""What is drawn beside random heads, in words."""


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


def draw_grid(found: dict[str, Any], title: str, figure_names: dict[str, str]) -> bytes:
    """PNG bytes: for each figure heads kept against it, a line for each fork; below, the number of members and methods.

    Dashed and hollow is what was not tuned; shades and bars are ranges over the seeds. What is far worse than the
    single model lies outside.
    """
    figure, panels = _panels(2, len(figure_names), (5 * len(figure_names), 9), title)
    points, first = found["points"], found["members"][0]
    for above, below, (name, label) in zip(*panels, figure_names.items(), strict=True):
        for fork in sorted({point["fork"] for point in points}):
            _lines(above, [point for point in points if point["fork"] == fork], "keep", name, f"fork at {fork}")
        _lines(below, found["members"], "members", name, "random heads")
        for point in found["methods"]:
            if point["method"] in METHODS:
                place = list(METHODS).index(point["method"]) + 1
                given, words = [seed[name] for seed in point["seeds"]], _words(METHODS[point["method"]], point["tuned"])
                _point(below, point["members"] + 0.12 * place, given, place, words, "osD"[place], point["tuned"])
        above.set_xscale("log", base=2)
        above.set_xlabel("heads kept in each layer above the fork")
        below.set_xlabel(f"members that fork at {first['fork']} and keep {first['keep']}")
        for axes, rows, across in ((above, points, "keep"), (below, found["members"], "members")):
            ticks = sorted({row[across] for row in rows})
            axes.set_xticks(ticks, [str(tick) for tick in ticks])
            for key, style, words in (("single", ":", ""), ("control", "-.", ", tuned in all layers")):
                level = float(np.mean([seed[name] for seed in found[key]]))
                axes.axhline(level, color="black", linewidth=1, linestyle=style, label=f"single model{words}")
            axes.set_title(label, fontsize=10)
            (low, high), level = axes.get_ylim(), float(np.mean([seed[name] for seed in found["single"]]))
            worse = name.endswith("fpr95")
            axes.set_ylim(low if worse else max(low, level - 0.05), min(high, level + 0.15) if worse else high)
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


def _lines(axes: Any, points: Sequence[dict[str, Any]], across: str, name: str, label: str) -> None:
    """A figure along one number of the points, tuned and not, with ranges."""
    colour = None
    for tuned in (False, True):
        some = sorted((point for point in points if point["tuned"] == tuned), key=lambda point: point[across])
        at = [point[across] for point in some]
        found = [[seed[name] for seed in point["seeds"]] for point in some]
        (line,) = axes.plot(at, [float(np.mean(given)) for given in found], "-o" if tuned else "--o", color=colour,
                            markersize=5, label=_words(label, tuned))  # fmt: skip
        colour = line.get_color()
        line.set_markerfacecolor(colour if tuned else "white")
        axes.fill_between(at, list(map(min, found)), list(map(max, found)), color=colour, alpha=0.12)


def _words(label: str, tuned: bool) -> str:
    return f"{label}, {'tuned' if tuned else 'untuned'}"


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
