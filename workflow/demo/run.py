"""The demo: every stage, end to end, on embedded data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...bundle.plan import HeadPlan
from ...bundle.staging import staged_folder
from ...bundle.store import Bundle
from ...bundle.strict_json import to_json_bytes
from ...data.examples import read_examples
from ...errors import require
from ...progress import Progress, no_progress
from ...runtime import load
from ...runtime.prediction import prediction_rows
from ..make import make
from ..options import Recipe
from ..parts import parted
from .comparison import Row, latency_ratio, quality
from .digits import DigitsData, load_digits, make_checkpoint, one_thread
from .picture import draw

MARKER = "demo.json"


PICTURE = "reports/demo.png"


MEMBERS, BUDGET = 3, 1.25


@dataclass(frozen=True)
class DemoReport:
    """What the demo made and measured.

    Attributes:
        folder: holds ``checkpoint/``, ``plan.json``, ``bundle/``, ``single/``, ``samples/`` and the images as ``.npz``.
        picture: PNG in the bundle's ``reports/``.
        rows: the single model, then the fused ensemble.
        examples: predictions of a few digits and of things that are no digits, as ``predict`` gives them.
        verified: whether the bundle passed every gate of its verification.
    """

    folder: Path
    picture: Path
    rows: list[Row]
    examples: list[dict[str, Any]]
    verified: bool

    def to_json(self) -> dict[str, Any]:
        """The report as a JSON object."""
        return {
            "folder": str(self.folder),
            "picture": str(self.picture),
            "rows": [asdict(row) for row in self.rows],
            "examples": self.examples,
            "verified": self.verified,
        }


def run_demo(
    output: str | Path = "hydrant-demo",
    *,
    seed: int = 0,
    epochs: int = 80,
    force: bool = False,
    say: Callable[[str], None] = lambda _: None,
    progress: Progress = no_progress,
) -> DemoReport:
    """Train a small ViT on digits, make an ensemble of it (``hydrant.make``), predict and compare.

    Args:
        output: folder to create.
        seed: of data, training and plan.
        epochs: epochs of training the small ViT.
        force: replace an earlier demo in the output folder.
        say: called with one line for each stage.
        progress: display for long stages.

    Raises:
        InputError: the folder exists.
        MissingExtraError: an optional library is missing; the message names it.
    """
    for module in ("sklearn", "matplotlib", "onnxruntime", "polygraphy", "scipy", "accelerate"):
        require(module, "demo", "run the demo")
    output = Path(output)
    with staged_folder(output, MARKER, force) as stage:
        data = load_digits(seed)
        verified = _stages(stage, data, seed, epochs, say, progress)
        rows, examples = _compare(stage, data, say)
        report = DemoReport(output, output / "bundle" / PICTURE, rows, examples, verified)
        (stage / MARKER).write_bytes(to_json_bytes(report.to_json()))
    return report


def _stages(
    stage: Path, data: DigitsData, seed: int, epochs: int, say: Callable[[str], None], progress: Progress
) -> bool:
    """Train a model, make the ensemble and the single model's bundle; whether every gate holds."""
    from ...export import export_onnx
    from ...families.checkpoint import load_processor
    from ...fusion import fuse, save_bundle
    from ...measure.calibrate import calibrate

    checkpoint = stage / "checkpoint"
    say(f"train     a ViT of 4 layers × 8 heads on {len(data.train[1])} handwritten digits, {epochs} epochs")
    with one_thread():
        make_checkpoint(checkpoint, data, seed, epochs, progress)
    for name, (images, labels) in {"train": data.train, "calibration": data.calibration, "test": data.test}.items():
        np.savez(stage / f"{name}.npz", x=images, y=labels)
    np.savez(stage / "ood.npz", x=data.ood)
    _save_samples(stage / "samples", {"digit": data.test[0][0], "letter": data.ood[0], "photograph": data.ood[-1]})
    with one_thread():
        made = make(
            checkpoint,
            stage / "train.npz",
            stage / "calibration.npz",
            test=stage / "test.npz",
            test_ood=stage / "ood.npz",
            output=stage / "bundle",
            recipe=Recipe(members=MEMBERS, budget=BUDGET),
            seed=seed,
            say=say,
            progress=progress,
        )
        say("single    the model itself, as a bundle of one member, calibrated on the same examples")
        plan = Bundle.open(stage / "bundle").plan()
        plan.save(stage / "plan.json")
        single = HeadPlan.all_heads(plan.family, plan.layers, plan.heads)
        save_bundle(fuse(checkpoint, single), stage / "single", load_processor(checkpoint, "image"))
        export_onnx(stage / "single")
        read = partial(read_examples, labels=Bundle.open(stage / "single").labels)
        train, validation, test = (read(stage / f"{name}.npz") for name in ("train", "calibration", "test"))
        parts = parted(train, validation, test, None, None, seed)
        calibrate(stage / "single", parts.fitting, fit=parts.training, seed=seed)
    return made.verified


def _save_samples(folder: Path, images: dict[str, np.ndarray]) -> None:
    """One PNG for each kind of image, to predict by path."""
    from PIL import Image

    folder.mkdir()
    for name, image in images.items():
        Image.fromarray(image).save(folder / f"{name}.png")


def _compare(stage: Path, data: DigitsData, say: Callable[[str], None]) -> tuple[list[Row], list[dict[str, Any]]]:
    """Predict with the fused and the single model; write the picture and figures into the bundle."""
    images, labels = list(data.test[0]), data.test[1]
    with load(stage / "bundle", "onnxruntime") as fused, load(stage / "single", "onnxruntime") as single:
        say(f"predict   {len(images)} unseen digits and {len(data.ood)} images that are no digits")
        predicted = {
            name: (p.predict(images), p.predict(list(data.ood))) for name, p in (("single", single), ("fused", fused))
        }
        ratio = latency_ratio(fused, single, data.test[0][:32].transpose(0, 3, 1, 2).astype(np.float32) / 127.5 - 1)
        picture = draw(data, *predicted["fused"], fused.labels)
    digits, ood = predicted["fused"]
    shown = np.argsort(digits.predictive_entropy, kind="stable")[[0, len(digits) // 2, -2, -1]]
    names = [f"digit {labels[index]} (test.npz, x[{index}])" for index in shown]
    examples = prediction_rows(digits.take(shown), names, fused.labels)
    shown = np.linspace(0, len(ood) - 1, 4).astype(int)
    names = [f"{'letter' if index < len(ood) // 2 else 'photograph'} (ood.npz, x[{index}])" for index in shown]
    examples += prediction_rows(ood.take(shown), names, fused.labels, len(examples))
    rows = [
        quality("single model", *predicted["single"], labels, 1.0),
        quality(f"fused ensemble (M = {MEMBERS})", *predicted["fused"], labels, ratio),
    ]
    bundle = Bundle.open(stage / "bundle")
    bundle.add({PICTURE: picture, "reports/demo.json": to_json_bytes([asdict(row) for row in rows])})
    return rows, examples
