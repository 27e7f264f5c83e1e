"""The demo: every stage, end to end, on embedded data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..bundle import Bundle, to_json_bytes
from ..calib.importance import Progress, no_progress
from ..errors import require
from ..files import staged_folder
from ..runtime import VerifyReport, load, verify
from .comparison import Row, latency_ratio, quality
from .digits import DigitsData, load_digits, make_checkpoint
from .picture import draw

MARKER = "demo.json"
PICTURE = "reports/demo.png"
MEMBERS, KEEP = 3, 6


@dataclass(frozen=True)
class DemoReport:
    """What the demo made and measured.

    Attributes:
        folder: holds ``checkpoint/``, ``calibration.npz``, ``plan.json``, ``single/`` and ``bundle/``.
        picture: PNG in the bundle's ``reports/``.
        rows: the single model, then the fused ensemble.
        verified: the bundle's verification.
    """

    folder: Path
    picture: Path
    rows: list[Row]
    verified: VerifyReport

    def to_json(self) -> dict[str, Any]:
        """The report as a JSON object."""
        return {
            "folder": str(self.folder),
            "picture": str(self.picture),
            "rows": [asdict(row) for row in self.rows],
            "verified": self.verified.passed,
        }


def run_demo(
    output: str | Path,
    *,
    seed: int = 0,
    epochs: int = 80,
    force: bool = False,
    say: Callable[[str], None] = lambda _: None,
    progress: Progress = no_progress,
) -> DemoReport:
    """Train a small ViT on digits, then plan, fuse, export, verify, predict and compare.

    Args:
        output: folder to create.
        seed: of data, training and plan.
        epochs: of training.
        force: replace an earlier demo.
        say: called with one line for each stage.
        progress: display for long stages.

    Raises:
        InputError: the folder exists.
        MissingExtraError: an optional library is missing; the message names it.
    """
    for module in ("sklearn", "matplotlib", "onnxruntime", "polygraphy", "scipy"):
        require(module, "demo", "run the demo")
    output = Path(output)
    with staged_folder(output, MARKER, force) as stage:
        report = _stages(stage, seed, epochs, say, progress)
        (stage / MARKER).write_bytes(
            to_json_bytes(report.to_json() | {"folder": str(output), "picture": str(output / "bundle" / PICTURE)})
        )
    return DemoReport(output, output / "bundle" / PICTURE, report.rows, report.verified)


def _stages(stage: Path, seed: int, epochs: int, say: Callable[[str], None], progress: Progress) -> DemoReport:
    from ..calib.planning import plan_heads
    from ..export import export_onnx
    from ..families.checkpoint import load_processor
    from ..fusion import fuse, save_bundle

    data = load_digits(seed)
    checkpoint = stage / "checkpoint"
    say(f"train    a ViT of 4 layers × 8 heads on {len(data.train[1])} handwritten digits, {epochs} epochs")
    make_checkpoint(checkpoint, data, seed, epochs, progress)
    np.savez(stage / "calibration.npz", x=data.calibration[0], y=data.calibration[1])
    say(f"plan     {MEMBERS} members keep {KEEP} of 8 heads, by Taylor importance on {len(data.calibration[1])} digits")
    plan = plan_heads(checkpoint, stage / "calibration.npz", members=MEMBERS, keep=KEEP, seed=seed, progress=progress)
    plan.save(stage / "plan.json")
    processor = load_processor(checkpoint, "image")
    say("fuse     the members into one model; the single model becomes a bundle of one member")
    save_bundle(fuse(checkpoint, plan), stage / "bundle", processor)
    save_bundle(fuse(checkpoint), stage / "single", processor)
    say("export   both to ONNX")
    export_onnx(stage / "bundle")
    export_onnx(stage / "single")
    verified = verify(stage / "bundle", data=(list(data.test[0]), None), seed=seed)
    say(f"verify   ONNX Runtime against PyTorch: {'every gate holds' if verified.passed else 'A GATE FAILED'}")
    rows = _compare(stage, data, say)
    return DemoReport(stage, stage / "bundle" / PICTURE, rows, verified)


def _compare(stage: Path, data: DigitsData, say: Callable[[str], None]) -> list[Row]:
    images, labels = list(data.test[0]), data.test[1]
    with load(stage / "bundle", "onnxruntime") as fused, load(stage / "single", "onnxruntime") as single:
        say(f"predict  {len(images)} unseen digits and {len(data.strange)} images that are no digits")
        predicted = {
            name: (p.predict(images), p.predict(list(data.strange)))
            for name, p in (("single", single), ("fused", fused))
        }
        ratio = latency_ratio(fused, single, data)
        picture = draw(data, *predicted["fused"], fused.labels)
    rows = [
        quality("single model", *predicted["single"], labels, 1.0),
        quality(f"fused ensemble (M = {MEMBERS})", *predicted["fused"], labels, ratio),
    ]
    bundle = Bundle.open(stage / "bundle")
    bundle.add({PICTURE: picture, "reports/demo.json": to_json_bytes([asdict(row) for row in rows])})
    return rows
