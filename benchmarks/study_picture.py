"""Pictures of the studies: quality against measured latency, and the grid of forks and heads."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from study_table import values

PANELS = {
    "ood.predictive_entropy.auroc": "OOD AUROC by entropy",
    "ood.energy.auroc": "OOD AUROC by energy",
    "distance": "OOD AUROC by distance",
    "accuracy": "accuracy",
}


def draw_rows(rows: Sequence[dict[str, Any]], title: str, taps: str = "balanced") -> bytes:
    """PNG bytes: a panel for each quality against latency at batch 1, bars over the seeds; the best trade is a line.

    The distance is that of a set of taps, or the last tap's where a row has no such set.
    """
    timed = [row for row in rows if row.get("latency")]
    figure = Figure(figsize=(12, 9), dpi=110, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(f"{title}: quality against latency (batch 1, ÷ the plain single model)")
    for axes, (name, label) in zip(figure.subplots(2, 2).flat, PANELS.items(), strict=True):
        points = []
        for row in timed:
            found = values(row, _figure(row, name, taps))
            if found:
                points.append(
                    (row["latency"]["1"]["median"], float(np.mean(found)), min(found), max(found), row["name"])
                )
        for latency, mean, low, high, label_of in points:
            colour = _colour(label_of)
            axes.errorbar(latency, mean, [[mean - low], [high - mean]], marker="o", color=colour, markersize=6,
                          markerfacecolor=colour if label_of.endswith("tuned") else "white")  # fmt: skip
            axes.annotate(label_of, (latency, mean), xytext=(5, 4), textcoords="offset points", fontsize=7)
        front = pareto([(latency, mean) for latency, mean, *_ in points])
        axes.step(*zip(*front, strict=True), where="post", color="#999999", linewidth=1, zorder=0)
        axes.set_title(label, fontsize=10)
        axes.set_xlabel("latency ÷ the plain single model's", fontsize=8)
        axes.grid(visible=True, alpha=0.25)
    return _png(figure)


def draw_grid(found: dict[str, Any], title: str, figure_names: dict[str, str]) -> bytes:
    """PNG bytes: a panel for each figure; heads kept against it, a line for each fork, dashed where untuned."""
    drawn = Figure(figsize=(5 * len(figure_names), 4.6), dpi=110, facecolor="white", layout="constrained")
    FigureCanvasAgg(drawn)
    drawn.suptitle(title)
    points, heads = found["points"], sorted({point["keep"] for point in found["points"]})
    forks = sorted({point["fork"] for point in points})
    for axes, (name, label) in zip(
        drawn.subplots(1, len(figure_names), squeeze=False)[0], figure_names.items(), strict=True
    ):
        for fork in forks:
            for tuned in (False, True):
                lines = [[seed[name] for seed in point["seeds"]] for keep in heads for point in points
                         if (point["fork"], point["tuned"], point["keep"]) == (fork, tuned, keep)]  # fmt: skip
                means = [float(np.mean(line)) for line in lines]
                colour = f"C{forks.index(fork)}"
                axes.plot(heads, means, "-o" if tuned else "--o", color=colour, markersize=5,
                          markerfacecolor=colour if tuned else "white",
                          label=f"fork at {fork}, {'tuned' if tuned else 'untuned'}")  # fmt: skip
                axes.fill_between(
                    heads, [min(line) for line in lines], [max(line) for line in lines], color=colour, alpha=0.12
                )
        for key, style in (("single", ":"), ("control", "-.")):
            level = float(np.mean([seed[name] for seed in found[key]]))
            axes.axhline(level, color="black", linewidth=1, linestyle=style,
                         label="single model" + (", tuned alike" if key == "control" else ""))  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.set_xticks(heads, [str(keep) for keep in heads])
        axes.set_xlabel("heads kept in each layer above the fork")
        axes.set_title(label, fontsize=10)
        axes.grid(visible=True, alpha=0.25)
    handles, labels = drawn.axes[0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    return _png(drawn)


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


def _colour(name: str) -> str:
    kinds = ("single", "MC", "BatchEnsemble", "LoRA", "Deep", "Hydra", "CircAvg", "fork")
    return f"C{next((place for place, kind in enumerate(kinds) if name.startswith(kind)), 9)}"


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": "hydrant"})
    return buffer.getvalue()
