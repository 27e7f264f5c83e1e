"""``hydrant demo``: every stage on a small built-in data set."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..bundle.staging import staged_folder
from ..bundle.store import Bundle
from ..bundle.strict_json import to_json_bytes
from ..data.examples import read_examples
from ..errors import require
from ..metrics.timing import Ratio, Rules, interleave
from ..progress import Progress, no_progress
from ..runtime import Prediction, load
from ..runtime.prediction import prediction_rows
from .data_splits import parted
from .digits_data import DigitsData, load_digits, make_checkpoint, one_thread
from .make_bundle import make
from .recipe import Recipe
from .stage_summaries import MakeReport

MARKER = "demo.json"

PICTURE = "reports/demo.png"

MEMBERS, BUDGET = 3, 1.25

COLUMNS = 10

CERTAIN, DOUBTFUL, OUTSIDE = "#1b7f5c", "#c77700", "#b3261e"


@dataclass(frozen=True)
class Row:
    """One model's metrics; ``latency_ratio``: median time of a batch of 32 ÷ the single model's."""

    name: str
    accuracy: float
    nll: float
    ece: float
    ood_auroc: float
    distance_auroc: float
    latency_ratio: float


@dataclass(frozen=True)
class DemoReport:
    """Results of the demo: folder, picture, metrics, and predictions of some images."""

    folder: Path
    picture: Path
    rows: list[Row]
    examples: list[dict[str, Any]]
    verified: bool

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        return {**asdict(self), "folder": str(self.folder), "picture": str(self.picture)}


def run_demo(
    output: str | Path = "hydrant-demo",
    *,
    seed: int = 0,
    epochs: int = 80,
    force: bool = False,
    say: Callable[[str], None] = lambda _: None,
    progress: Progress = no_progress,
) -> DemoReport:
    """Train a small ViT on digits, turn it into an ensemble (``hydrant.make``), predict and compare.

    Args:
        output: folder to create.
        seed: of data, training and plan.
        epochs: epochs of training the small vision transformer.
        force: replace an earlier demo in the output folder.
        say: called with one line for each stage.
        progress: display for long stages.
    """
    for module in ("sklearn", "matplotlib", "onnxruntime", "polygraphy", "scipy", "accelerate"):
        require(module, "demo", "run the demo")
    output = Path(output)
    with staged_folder(output, MARKER, force) as stage:
        data = load_digits(seed)
        made = _stages(stage, data, seed, epochs, say, progress)
        rows, examples = _compare(stage, data, made, say)
        report = DemoReport(output, output / "bundle" / PICTURE, rows, examples, made.verified)
        (stage / MARKER).write_bytes(to_json_bytes(report.to_json()))
    return report


def _stages(
    stage: Path, data: DigitsData, seed: int, epochs: int, say: Callable[[str], None], progress: Progress
) -> MakeReport:
    """Train a model, and build the ensemble and the single model's bundle."""
    from PIL import Image

    from ..evaluation.fair_rival import build_rival
    from ..export import export_onnx

    checkpoint = stage / "checkpoint"
    say(f"train     a ViT of 4 layers × 8 heads on {len(data.train[1])} handwritten digits, {epochs} epochs")
    with one_thread():
        make_checkpoint(checkpoint, data, seed, epochs, progress)
    for name, (images, labels) in {"train": data.train, "calibration": data.calibration, "test": data.test}.items():
        np.savez(stage / f"{name}.npz", x=images, y=labels)
    np.savez(stage / "ood.npz", x=data.ood)
    (stage / "samples").mkdir()  # to predict by path
    for name, image in {"digit": data.test[0][0], "letter": data.ood[0], "photograph": data.ood[-1]}.items():
        Image.fromarray(image).save(stage / "samples" / f"{name}.png")
    with one_thread():
        tests: dict[str, Any] = {"test": stage / "test.npz", "test_ood": stage / "ood.npz"}
        settings: dict[str, Any] = {"output": stage / "bundle", "seed": seed, "say": say, "progress": progress}
        recipe = Recipe(members=MEMBERS, budget=BUDGET)
        report = make(checkpoint, stage / "train.npz", stage / "calibration.npz", recipe=recipe, **tests, **settings)
        say("single    the model as a bundle of one member, calibrated on the same examples")
        bundle = Bundle.open(stage / "bundle")
        bundle.plan().save(stage / "plan.json")
        train, validation, test = (
            read_examples(stage / f"{name}.npz", bundle.labels) for name in ("train", "calibration", "test")
        )
        parts = parted(train, validation, test, None, None, seed)
        build_rival(checkpoint, stage / "single", parts.fitting, fit=parts.training, seed=seed)
        export_onnx(stage / "single")
    return report


def _compare(
    stage: Path, data: DigitsData, made: MakeReport, say: Callable[[str], None]
) -> tuple[list[Row], list[dict[str, Any]]]:
    """Time the fused and the single model, and predict; write picture and metrics into the bundle."""
    images, labels = list(data.test[0]), data.test[1]
    with load(stage / "bundle", "onnxruntime") as fused, load(stage / "single", "onnxruntime") as single:
        say(f"predict   {len(images)} unseen digits and {len(data.ood)} images of other things")
        digits, ood = fused.predict(images), fused.predict(list(data.ood))
        batch = {"pixel_values": data.test[0][:32].transpose(0, 3, 1, 2).astype(np.float32) / 127.5 - 1}
        runs = [partial(each.predict, batch) for each in (fused, single)]
        seconds = interleave(runs, Rules(seconds=0.0, iterations=60))
        names = fused.labels
    picture = _draw(data, digits, ood, names)
    shown = np.argsort(digits.predictive_entropy, kind="stable")[[0, len(digits) // 2, -2, -1]]
    titles = [f"digit {labels[index]} (test.npz, x[{index}])" for index in shown]
    examples = prediction_rows(digits.take(shown), titles, names)
    shown = np.linspace(0, len(ood) - 1, 4).astype(int)
    titles = [f"{'letter' if index < len(ood) // 2 else 'photograph'} (ood.npz, x[{index}])" for index in shown]
    examples += prediction_rows(ood.take(shown), titles, names, len(examples))
    keys = ("accuracy", "nll", "ece", "predictive_entropy_auroc", "distance_auroc")
    measured: list[list[Any]] = [[figures[key] for key in keys] for figures in made.figures()[:2]]
    rows = [
        Row("single model", *[*measured[1], 1.0]),
        Row(f"fused ensemble (M = {MEMBERS})", *[*measured[0], Ratio.of(*seconds.T).median]),
    ]
    bundle = Bundle.open(stage / "bundle")
    bundle.add({PICTURE: picture, "reports/demo.json": to_json_bytes([asdict(row) for row in rows])})
    return rows, examples


def _draw(data: DigitsData, digits: Prediction, ood: Prediction, labels: list[str]) -> bytes:
    """Draw confident digits, uncertain digits, OOD images, and the entropies of all; return PNG bytes."""
    require("matplotlib", "demo", "draw the picture")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    images, truth = data.test
    by_doubt = np.argsort(digits.predictive_entropy, kind="stable")
    by_label = [[index for index in by_doubt if digits.label[index] == digit] for digit in range(len(labels))]
    surest = [indices[0] for indices in by_label if indices]  # of each predicted digit
    spread = np.linspace(0, len(data.ood) - 1, COLUMNS).astype(int)  # half of them letters
    figure = Figure(figsize=(14, 7), dpi=110, facecolor="white")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(4, COLUMNS, height_ratios=[1, 1, 1, 1.25], hspace=0.75, wspace=0.12)
    rows: tuple[tuple[str, np.ndarray, Prediction, Sequence[int], np.ndarray | None, str], ...] = (
        ("surest", images, digits, surest, truth, CERTAIN),
        ("doubtful", images, digits, list(by_doubt[::-1][:COLUMNS]), truth, DOUBTFUL),
        ("not digits", data.ood, ood, list(spread), None, OUTSIDE),
    )
    for row, (title, pictures, prediction, chosen, targets, color) in enumerate(rows):
        for column, index in enumerate(chosen):
            axes = figure.add_subplot(grid[row, column])
            axes.imshow(pictures[index], interpolation="nearest")
            axes.set(xticks=[], yticks=[])
            predicted, actual = labels[prediction.label[index]], None if targets is None else labels[targets[index]]
            wrong = actual not in (None, predicted)
            caption = f"“{predicted}”{f', is {actual}' * wrong} {prediction.confidence[index]:.2f}\n"
            caption += f"H {prediction.predictive_entropy[index]:.2f}  MI {prediction.mutual_information[index]:.2f}"
            axes.set_title(caption, fontsize=7.5, color=OUTSIDE if wrong else "black")
            axes.spines[:].set(color=color, linewidth=1.6)
            if column == 0:
                axes.set_ylabel(title, fontsize=10, color=color)
    _histogram(figure.add_subplot(grid[3, :]), digits, ood)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", bbox_inches="tight", metadata={"Software": "hydrant"})
    return buffer.getvalue()


def _histogram(axes: Any, digits: Prediction, ood: Prediction) -> None:
    top = float(max(digits.predictive_entropy.max(), ood.predictive_entropy.max()))
    bins = np.linspace(0, top, 41)
    for prediction, label, color in ((digits, "digits", CERTAIN), (ood, "not digits", OUTSIDE)):
        weights = np.full(len(prediction), 1 / len(prediction))
        axes.hist(prediction.predictive_entropy, bins=bins, weights=weights, alpha=0.6, label=label, color=color)
    axes.set_xlabel("predictive entropy H of the fused ensemble (nats); MI: mutual information")
    axes.set_ylabel("share of images\n(stretched)")
    axes.set_yscale("symlog", linthresh=0.05)
    axes.set_yticks([0, 0.02, 0.05, 0.2, 1], ["0", "2 %", "5 %", "20 %", "100 %"])
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
