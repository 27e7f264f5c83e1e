"""The demo's picture: what the ensemble is sure of, what it is not, and how the scores separate."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import require
from ...runtime import Prediction
from .digits import DigitsData

COLUMNS = 10


CERTAIN, DOUBTFUL, OOD = "#1b7f5c", "#c77700", "#b3261e"


def draw(data: DigitsData, digits: Prediction, ood: Prediction, labels: list[str]) -> bytes:
    """PNG bytes: certain digits, doubtful digits, things that are no digits, and the entropies of all."""
    require("matplotlib", "demo", "draw the picture").use("Agg")
    from matplotlib import pyplot

    images, truth = data.test
    by_doubt = np.argsort(digits.predictive_entropy, kind="stable")
    by_label = [[index for index in by_doubt if digits.label[index] == digit] for digit in range(len(labels))]
    surest = [indices[0] for indices in by_label if indices]  # of each digit that was predicted at all
    spread = np.linspace(0, len(data.ood) - 1, COLUMNS).astype(int)  # half of them letters
    figure = pyplot.figure(figsize=(14, 7), dpi=110, facecolor="white")
    grid = figure.add_gridspec(4, COLUMNS, height_ratios=[1, 1, 1, 1.25], hspace=0.75, wspace=0.12)
    rows: tuple[tuple[str, np.ndarray, Prediction, Sequence[int], np.ndarray | None, str], ...] = (
        ("surest", images, digits, surest, truth, CERTAIN),
        ("doubtful", images, digits, list(by_doubt[::-1][:COLUMNS]), truth, DOUBTFUL),
        ("not digits", data.ood, ood, list(spread), None, OOD),
    )
    for row, (title, pictures, prediction, chosen, known, colour) in enumerate(rows):
        for column, index in enumerate(chosen):
            axes = figure.add_subplot(grid[row, column])
            axes.imshow(pictures[index], interpolation="nearest")
            axes.set_xticks([])
            axes.set_yticks([])
            _caption(axes, prediction, int(index), labels, None if known is None else int(known[index]), colour)
            if column == 0:
                axes.set_ylabel(title, fontsize=10, color=colour)
    _histogram(figure.add_subplot(grid[3, :]), digits, ood)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", bbox_inches="tight", metadata={"Software": "hydrant"})
    pyplot.close(figure)
    return buffer.getvalue()


def _caption(axes: Any, prediction: Prediction, index: int, labels: list[str], truth: int | None, colour: str) -> None:
    said = labels[prediction.label[index]]
    wrong = truth is not None and labels[truth] != said
    first = f"“{said}”, is {labels[truth]}" if wrong and truth is not None else f"“{said}”"
    axes.set_title(
        f"{first} {prediction.confidence[index]:.2f}\nH {prediction.predictive_entropy[index]:.2f}  "
        f"MI {prediction.mutual_information[index]:.2f}",
        fontsize=7.5,
        color=OOD if wrong else "black",
    )
    for spine in axes.spines.values():
        spine.set_color(colour)
        spine.set_linewidth(1.6)


def _histogram(axes: Any, digits: Prediction, ood: Prediction) -> None:
    top = float(max(digits.predictive_entropy.max(), ood.predictive_entropy.max()))
    bins = np.linspace(0, top, 41)
    for prediction, label, colour in ((digits, "digits", CERTAIN), (ood, "not digits", OOD)):
        weights = np.full(len(prediction), 1 / len(prediction))
        axes.hist(prediction.predictive_entropy, bins=bins, weights=weights, alpha=0.6, label=label, color=colour)
    axes.set_xlabel("predictive entropy H of the fused ensemble (nats); MI: mutual information")
    axes.set_ylabel("share of images\n(stretched)")
    axes.set_yscale("symlog", linthresh=0.05)
    axes.set_yticks([0, 0.02, 0.05, 0.2, 1], ["0", "2 %", "5 %", "20 %", "100 %"])
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
