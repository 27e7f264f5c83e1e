"""Picture of an exploration: quality against cost."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import require
from ..evaluation.drawing import new_figure, png
from .explore import Exploration, Row

QUALITIES: tuple[tuple[str, Callable[[Row], float | None]], ...] = (
    ("OOD AUROC by predictive entropy", lambda row: None if row.rmse is not None else row.auroc),
    ("OOD AUROC by the members' variance", lambda row: None if row.rmse is None else row.auroc),
    ("accuracy", lambda row: row.accuracy),
    ("RMSE (lower is better)", lambda row: row.rmse),
    ("NLL, calibrated (nats; lower is better)", lambda row: row.nll),
)

DRAWS = ("report", "draw quality against cost")

MARKERS = "osD^vP"


def draw_exploration(result: Exploration) -> bytes:
    """Draw a panel for each metric: filled if tuned, coloured by fork, labelled with the heads; return PNG bytes."""
    require("matplotlib", *DRAWS)
    points = [row for row in result.rows if row.fork is not None]
    panels = [(title, value) for title, value in QUALITIES if any(value(row) is not None for row in points)]
    forks = sorted({row.fork for row in points if row.fork is not None})
    methods = list(dict.fromkeys(row.name for row in points))
    figure, [columns] = new_figure(5 * len(panels), 4.4, columns=len(panels), squeeze=False)
    for axes, (title, value) in zip(columns, panels, strict=True):
        axes.axvline(result.budget, color="#999999", linewidth=1, linestyle=":")
        if value(result.rows[0]) is not None:  # a single model has no variance
            axes.axhline(value(result.rows[0]), color="#999999", linewidth=1, label="single model")
        for row in result.rows[1:]:
            if value(row) is None:
                continue
            if row.fork is None:
                axes.plot(row.ratio, value(row), "*", color="black", markersize=11, label=row.name)
                continue
            colour = f"C{forks.index(row.fork) % 10}"
            axes.plot(
                row.ratio, value(row), MARKERS[methods.index(row.name) % len(MARKERS)], color=colour, markersize=7,
                markerfacecolor=colour if row.tuned else "white",
            )  # fmt: skip
            place = {"xytext": (5, 3), "textcoords": "offset points"}
            axes.annotate(str(row.heads), (row.ratio, value(row)), fontsize=7, **place)
        best = None if result.chosen is None else result.rows[result.chosen]
        if best is not None and value(best) is not None:
            ring = {"markersize": 14, "markerfacecolor": "none"}
            axes.plot(best.ratio, value(best), "o", color="#b3261e", label="chosen", **ring)
        axes.set_xlabel("operations ÷ the single model's (dotted: the budget)")
        axes.set_title(title, fontsize=10)
    axes = figure.axes[0]
    for index, fork in enumerate(forks):
        axes.plot([], [], "s", color=f"C{index % 10}", label=f"fork at layer {fork}")
    for index, method in enumerate(methods):
        axes.plot([], [], MARKERS[index % len(MARKERS)], color="#555555", markerfacecolor="white", label=method)
    if any(row.tuned for row in points):
        axes.plot([], [], "o", color="#555555", label="filled: tuned")
    lines = {line.get_label(): line for axes in figure.axes for line in axes.lines}
    named = [line for label, line in lines.items() if not str(label).startswith("_")]
    figure.legend(handles=named, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    return png(figure)
