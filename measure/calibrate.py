"""Calibrating a bundle: the PyTorch reference runs on labelled data, and every graph gets the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..bundle.calibration import Calibration, Score
from ..bundle.files import temporary_folder
from ..bundle.store import CALIBRATION, Bundle, resolve, to_json_bytes
from ..bundle.uses import overlaps
from ..calib.decisions.fit import fit
from ..calib.decisions.targets import Conformal, Coverage, Risk, Targets
from ..data.columns import Reading
from ..data.examples import Examples, check_apart, read_examples
from ..data.fingerprints import fingerprints
from ..errors import InputError, require
from ..progress import Progress, no_progress
from ..runtime.backends.registry import open_backend
from ..runtime.collect import collect


@dataclass(frozen=True)
class CalibrationReport:
    """What ``calibrate`` fitted and changed.

    Attributes:
        calibration: written to ``calibration.json``.
        graphs: names of the graphs that now carry it.
        outdated: names of the engines that were built from an earlier form of them.
        notes: what to know of the data, such as that the bundle was tuned on them.
    """

    calibration: Calibration
    graphs: list[str]
    outdated: list[str]
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """The report as a JSON object: ``calibration.json`` and what it touched."""
        touched = {"graphs": self.graphs, "outdated_engines": self.outdated}
        return {**self.calibration.to_json(), **touched, "notes": self.notes}


def calibrate(
    bundle: Bundle | str | Path,
    data: Any,
    ood: Any = None,
    *,
    abstain: Coverage | Risk = Coverage(),
    ood_score: Score = "predictive_entropy",
    sets: Conformal | None = None,
    reading: Reading = Reading(),
    seed: int = 0,
    progress: Progress = no_progress,
) -> CalibrationReport:
    """Fit temperature and thresholds, and write them into ``calibration.json`` and every graph of the bundle.

    The float32 PyTorch reference runs; a graph of lower precision follows it within its gates. All files
    change together or not at all. Engines keep the graph that they were built from: build them again.

    Args:
        bundle: bundle made by `hydrant fuse`: a folder. In Python also an open ``Bundle``.
        data: labelled data that the model was not tuned on: .csv, .tsv, .jsonl, .parquet, .npz, or an image folder. In
            Python also what ``data.examples.read_examples`` takes.
        ood: out-of-distribution data, whose labels are not read; brings a threshold that catches 95 % of it.
        abstain: when to abstain: ``Coverage(0.95)`` or ``Risk(0.02)``.
        ood_score: score that tells what is out of distribution.
        sets: prediction sets: ``Conformal(0.1)``, or none.
        reading: columns, number (all) and batch size of the examples.
        seed: of the draw.
        progress: display.

    Raises:
        InputError: unusable data or options, or examples too few for what is asked.
        BackendError: the model gives values that are not finite.
        MissingExtraError: torch or onnx is not installed, or scipy for ``risk``.
        BundleError: the bundle is missing, altered or malformed, or holds a graph that cannot be calibrated.
    """
    for module in ("torch", "onnx"):
        require(module, "fuse", "calibrate a bundle")
    from ..export.recalibrate import check_graphs

    targets = Targets(abstain, ood_score, sets)
    check_apart(data, ood)
    bundle = resolve(bundle)
    bundle.check_addable(CALIBRATION)
    graphs = check_graphs(bundle)  # before the long work
    known = read_examples(data, bundle.labels, columns=reading, limit=reading.limit(), seed=seed)
    assert known.labels is not None  # read_examples asks for them
    ood = None if ood is None else read_examples(ood, None, columns=reading)
    notes = overlaps(bundle, "calibrating", {"data": known, "ood": ood}, calibrated=False)
    logits = _member_logits(bundle, known, reading.batch_size, progress)
    ood_logits = None if ood is None else _member_logits(bundle, ood, reading.batch_size, progress)
    about = {
        "data": known.name,
        "examples": len(known),
        "ood": None if ood is None else ood.name,
        "ood_examples": None if ood is None else len(ood),
        "seed": seed,
        **fingerprints(bundle.architecture().modality, data=known, ood=ood),
    }
    fitted = fit(logits, known.labels, ood_logits, targets, about, progress)
    return CalibrationReport(fitted, graphs, _outdated(_changed(bundle, graphs, fitted)), notes)


def _changed(bundle: Bundle, graphs: Sequence[str], calibration: Calibration) -> Bundle:
    """The bundle with its calibration and graphs replaced, all together."""
    from ..export.recalibrate import GRAPHS, write_recalibrated

    try:
        with temporary_folder(bundle.path, "calibrate") as folder:
            files: dict[str, bytes | Path] = {CALIBRATION: to_json_bytes(calibration.to_json())}
            for name in graphs:
                files[name] = folder / name
                write_recalibrated(bundle.file(name), calibration, folder / name)
            return bundle.add(files, unchanged=[CALIBRATION, *GRAPHS])
    except OSError as error:
        raise InputError(f"cannot write into bundle {bundle.path}: {error.strerror or error}") from error


def _member_logits(bundle: Bundle, examples: Examples, batch_size: int, progress: Progress) -> np.ndarray:
    """[N, M, C] before any temperature, of the PyTorch reference."""
    architecture = bundle.architecture()
    processor = examples.processor(architecture, lambda: bundle.processor_for(f"read {examples.source}"))
    with open_backend(bundle, "torch")[0] as backend:
        found = collect(
            backend,
            processor,
            architecture,
            examples.inputs,
            lambda outputs: {"logits": outputs["member_logits"]},
            batch_size=batch_size,
            progress=progress,
            title=f"running on {examples.name}",
        )
    return found["logits"]


def _outdated(bundle: Bundle) -> list[str]:
    """Engines whose graph has changed since they were built."""
    from ..engines.metadata import engine_names, graph_digest, read_metadata

    known = {name: read_metadata(bundle, name) for name in engine_names(bundle)}
    return [name for name, facts in known.items() if graph_digest(bundle, facts.onnx) != facts.onnx_sha256]
