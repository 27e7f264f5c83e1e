"""The plot of a profile: latency against batch, one line for each model, backend and sequence."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from ..errors import require
from .drawing import new_figure, png
from .profile_report import Case, Settings

STYLES = ("-", "--", ":", "-.")
"""Of lines, by sequence."""


def draw_latency(cases: Sequence[Case], settings: Settings) -> bytes:
    """PNG bytes: medians, with a band up to the 95th percentile, on logarithmic axes."""
    require("matplotlib", "report", "draw latency against batch")
    lines: dict[tuple[str, str, str, int], list[Case]] = defaultdict(list)
    for case in cases:
        lines[case.model, case.backend, case.precision, case.sequence].append(case)
    models = list(dict.fromkeys(key[:3] for key in lines))
    sequences = sorted({case.sequence for case in cases})
    figure, axes = new_figure(10, 5)
    for (model, backend, precision, sequence), found in lines.items():
        line = sorted(found, key=lambda case: case.batch)
        batches = [case.batch for case in line]
        colour = f"C{models.index((model, backend, precision)) % 10}"
        medians, ends = ([getattr(case.latency_ms, name) for case in line] for name in ("p50", "p95"))
        name = ", ".join(filter(None, (model, f"{backend} {precision}", settings.length(sequence))))
        style = STYLES[sequences.index(sequence) % len(STYLES)]
        axes.plot(batches, medians, style, marker="o", markersize=4, color=colour, label=name)
        axes.fill_between(batches, medians, ends, color=colour, alpha=0.15, linewidth=0)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ticks = sorted({case.batch for case in cases})
    axes.set_xticks(ticks, [str(batch) for batch in ticks])
    axes.set_xlabel("batch (inputs)")
    axes.set_ylabel("latency of the batch (ms): median, band to the 95th percentile")
    axes.yaxis.set_major_formatter("{x:g}")
    figure.legend(frameon=False, fontsize=8, loc="outside right upper")
    return png(figure)
