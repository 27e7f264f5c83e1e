"""Pictures of the studies: quality against measured latency, and the grid of forks and heads."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
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

    The distance is that of a set of taps, or the last tap's where a row has no such set. What is far worse than the
    first row, the single model, stands at the lower edge, with its figure.
    """
    timed = [row for row in rows if row.get("latency")]
    figure = Figure(figsize=(12, 10), dpi=110, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(f"{title}: quality against latency (batch 1, ÷ the plain single model)")
    bases = list(dict.fromkeys(_base(row["name"]) for row in timed))
    panels = figure.subplots(2, 2)
    for axes, (name, label) in zip(panels.flat, PANELS.items(), strict=True):
        found = [(row, values(row, _figure(row, name, taps))) for row in timed]
        points = [(row, row["latency"]["1"]["median"], given) for row, given in found if given]
        floor = _floor([float(np.mean(given)) for _, _, given in points])
        for row, latency, given in points:
            _point(axes, row["name"], bases.index(_base(row["name"])), latency, given, floor)
        front = pareto([(latency, float(np.mean(given))) for _, latency, given in points])
        axes.step(*zip(*front, strict=True), where="post", color="#999999", linewidth=1, zorder=0)
        if any(np.mean(given) < floor for _, _, given in points):
            axes.set_ylim(bottom=floor)
        axes.set_title(label, fontsize=10)
        axes.set_xlabel("latency ÷ the plain single model's", fontsize=8)
        axes.set_xscale("log")
        ticks = [tick for tick in TICKS if tick <= 1.05 * max((latency for _, latency, _ in points), default=1)]
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.grid(visible=True, alpha=0.25)
    _legend(figure, panels.flat)
    return _png(figure)


def _base(name: str) -> str:
    """The row without its tuning, which has its colour and marker."""
    return name.removesuffix(TUNED)


def _floor(means: Sequence[float]) -> float:
    """What is drawn from: as far below the best as four times the single model, the first row, is."""
    return max(means) - 4 * max(max(means) - means[0], 0.002)


def _point(axes: Any, name: str, place: int, latency: float, given: Sequence[float], floor: float) -> None:
    """A row's mean and range, filled where it was tuned; at the lower edge, with name and mean, where it lies below."""
    colour, mean = f"C{place % 10}", float(np.mean(given))
    face = colour if name.endswith(TUNED) else "white"
    if mean < floor:
        axes.plot(latency, floor, marker="v", color=colour, markersize=7, markerfacecolor=face, clip_on=False)
        words = f"{name}: {mean:.3f}"
        height = 4 + 9 * (len(axes.texts) % 2)  # so that neighbours' words do not lie on each other
        axes.annotate(words, (latency, floor), xytext=(6, height), textcoords="offset points", fontsize=7)
        return
    axes.errorbar(latency, mean, [[mean - min(given)], [max(given) - mean]], marker=MARKERS[place // 10 % len(MARKERS)],
                  color=colour, linestyle="", markersize=7, markerfacecolor=face, label=name)  # fmt: skip


def draw_grid(found: dict[str, Any], title: str, figure_names: dict[str, str]) -> bytes:
    """PNG bytes: for each figure heads kept against it, a line for each fork; below, the number of members and methods.

    Dashed and hollow is what was not tuned; shades and bars are ranges over the seeds. What is far worse than the
    single model lies outside.
    """
    drawn = Figure(figsize=(5 * len(figure_names), 9), dpi=110, facecolor="white", layout="constrained")
    FigureCanvasAgg(drawn)
    drawn.suptitle(title)
    above, below = drawn.subplots(2, len(figure_names), squeeze=False)
    for grid, members, (name, label) in zip(above, below, figure_names.items(), strict=True):
        points = found["points"]
        for fork in sorted({point["fork"] for point in points}):
            of_fork = [point for point in points if point["fork"] == fork]
            _lines(grid, of_fork, "keep", name, f"fork at {fork}")
        grid.set_xscale("log", base=2)
        grid.set_xlabel("heads kept in each layer above the fork")
        _lines(members, found["members"], "members", name, "random heads")
        for point in found["methods"]:
            if point["method"] in METHODS:
                _marker(members, point, name)
        first = found["members"][0]
        members.set_xlabel(f"members that fork at {first['fork']} and keep {first['keep']}")
        for axes, rows, across in ((grid, points, "keep"), (members, found["members"], "members")):
            ticks = sorted({row[across] for row in rows})
            axes.set_xticks(ticks, [str(tick) for tick in ticks])
            for key, style in (("single", ":"), ("control", "-.")):
                level = float(np.mean([seed[name] for seed in found[key]]))
                axes.axhline(level, color="black", linewidth=1, linestyle=style,
                             label="single model" + (", tuned in all layers" if key == "control" else ""))  # fmt: skip
            axes.set_title(label, fontsize=10)
            axes.grid(visible=True, alpha=0.25)
            _narrow(axes, float(np.mean([seed[name] for seed in found["single"]])), name)
    _legend(drawn, (above[0], below[0]))
    return _png(drawn)


def _narrow(axes: Any, level: float, name: str) -> None:
    """Leave out what is far worse than the single model, beside which all else would be one line."""
    low, high = axes.get_ylim()
    if name.endswith("fpr95"):
        axes.set_ylim(low, min(high, level + 0.15))
    else:
        axes.set_ylim(max(low, level - 0.05), high)


def _legend(figure: Any, panels: Iterable[Any]) -> None:
    """One legend below all panels."""
    named = {label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=4, frameon=False, fontsize=8)


def _lines(axes: Any, points: Sequence[dict[str, Any]], across: str, name: str, label: str) -> None:
    """A figure's means along one number of the points, tuned and not, with ranges."""
    colour = None
    for tuned in (False, True):
        some = sorted((point for point in points if point["tuned"] == tuned), key=lambda point: point[across])
        at = [point[across] for point in some]
        found = [[seed[name] for seed in point["seeds"]] for point in some]
        (line,) = axes.plot(at, [float(np.mean(values)) for values in found], "-o" if tuned else "--o", color=colour,
                            markersize=5, label=f"{label}, {_words(tuned)}")  # fmt: skip
        colour = line.get_color()
        line.set_markerfacecolor(colour if tuned else "white")
        axes.fill_between(at, [min(values) for values in found], [max(values) for values in found], color=colour,
                          alpha=0.12)  # fmt: skip


def _marker(axes: Any, point: dict[str, Any], name: str) -> None:
    """A figure of one point, beside the random heads of as many members."""
    found, place = [seed[name] for seed in point["seeds"]], list(METHODS).index(point["method"])
    mean, colour = float(np.mean(found)), f"C{place + 1}"
    axes.errorbar(point["members"] + 0.12 * (place + 1), mean, [[mean - min(found)], [max(found) - mean]],
                  marker="sD"[place], linestyle="", color=colour, markersize=5,
                  markerfacecolor=colour if point["tuned"] else "white",
                  label=f"{METHODS[point['method']]}, {_words(point['tuned'])}")  # fmt: skip


def _words(tuned: bool) -> str:
    return "tuned" if tuned else "untuned"


def pareto(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Those that no cheaper point equals, from cheap to dear: (cost, quality)."""
    front: list[tuple[float, float]] = []
    for cost, quality in sorted(points, key=lambda point: (point[0], -point[1])):
        if not front or quality > front[-1][1]:
            front.append((cost, quality))
    return front


def _figure(row: dict[str, Any], name: str, taps: str) -> str:
    if name != "distance":
        return name
    names = [f"ood.distance_{kind}.auroc" for kind in (taps, "last")]
    return next((each for each in names if values(row, each)), names[-1])


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": "hydrant"})
    return buffer.getvalue()
