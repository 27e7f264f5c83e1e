"""Calibrating a bundle: the PyTorch reference runs on labelled data, and every graph gets the result."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..bundle.calibration import Calibration
from ..bundle.store import CALIBRATION, Bundle, resolve, to_json_bytes
from ..calib.decisions.fit import Targets, fit
from ..data.examples import Examples, check_apart, read_examples
from ..errors import InputError
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
    """

    calibration: Calibration
    graphs: list[str]
    outdated: list[str]

    def to_json(self) -> dict[str, Any]:
        """The report as a JSON object: ``calibration.json`` and what it touched."""
        return {**self.calibration.to_json(), "graphs": self.graphs, "outdated_engines": self.outdated}


def calibrate(
    bundle: Bundle | str | Path,
    data: Any,
    ood: Any = None,
    *,
    coverage: float | None = None,
    risk: float | None = None,
    score: str = "confidence",
    ood_score: str = "predictive_entropy",
    conformal: float | None = None,
    conformal_method: str = "lac",
    examples: int | None = None,
    seed: int = 0,
    text_column: str = "text",
    text_pair_column: str | None = None,
    label_column: str = "label",
    batch_size: int = 32,
    progress: Progress = no_progress,
) -> CalibrationReport:
    """Fit temperature and thresholds, and write them into ``calibration.json`` and every graph of the bundle.

    The float32 PyTorch reference runs; a graph of lower precision follows it within its gates. All files
    change together or not at all. Engines keep the graph that they were built from: build them again.

    Args:
        bundle: the bundle, or its path.
        data: labelled in-distribution data that the model was not tuned on (what ``calib.data.read_examples`` takes).
        ood: out-of-distribution data, whose labels are not read; brings the OOD threshold, which catches 95 %.
        coverage: share of inputs to answer (default 0.95); the others are abstained from.
        risk: instead: share of answers that may be wrong, kept with 95 % confidence.
        score: that abstention stands on: ``"confidence"`` or an entropy or mutual information by name.
        ood_score: likewise, for the OOD threshold.
        conformal: α; brings prediction sets that hold the label with probability at least 1 − α.
        conformal_method: ``"lac"`` (smallest sets) or ``"aps"`` (adaptive; covers more).
        examples: use this many of the labelled examples, drawn at random; ``None`` for all.
        seed: of the draw.
        text_column, text_pair_column, label_column: of tabular data; the second for pairs of texts.
        batch_size: inputs per run.
        progress: display.

    Raises:
        InputError: unusable data or options, or examples too few for what is asked.
        BackendError: the model gives values that are not finite.
        MissingExtraError: torch is not installed, or scipy for ``risk``.
        BundleError: the bundle is missing, altered or malformed, or holds a graph that cannot be calibrated.
    """
    from ..export.recalibrate import check_graphs

    targets = Targets(coverage, risk, score, ood_score, conformal, conformal_method)
    targets.check()
    check_apart(data, ood)
    bundle = resolve(bundle)
    bundle.check_addable(CALIBRATION)
    graphs = check_graphs(bundle)  # before the long work
    texts: dict[str, Any] = {"text_column": text_column, "text_pair_column": text_pair_column}
    known = read_examples(data, bundle.labels, limit=examples, seed=seed, label_column=label_column, **texts)
    assert known.labels is not None  # read_examples asks for them
    ood = None if ood is None else read_examples(ood, None, **texts)
    logits = _member_logits(bundle, known, batch_size, progress)
    ood_logits = None if ood is None else _member_logits(bundle, ood, batch_size, progress)
    about = {
        "data": known.name,
        "examples": len(known),
        "ood": None if ood is None else ood.name,
        "ood_examples": None if ood is None else len(ood),
        "seed": seed,
    }
    fitted = fit(logits, known.labels, ood_logits, targets, about, progress)
    return CalibrationReport(fitted, graphs, _outdated(_changed(bundle, graphs, fitted)))


def _changed(bundle: Bundle, graphs: Sequence[str], calibration: Calibration) -> Bundle:
    """The bundle with its calibration and graphs replaced, all together."""
    from ..export.recalibrate import GRAPHS, write_recalibrated

    try:
        with tempfile.TemporaryDirectory(dir=bundle.path, prefix=".calibrate.") as folder:
            files: dict[str, bytes | Path] = {CALIBRATION: to_json_bytes(calibration.to_json())}
            for name in graphs:
                files[name] = Path(folder) / name
                write_recalibrated(bundle.file(name), calibration, Path(folder) / name)
            return bundle.add(files, unchanged=[CALIBRATION, *GRAPHS])
    except OSError as error:
        raise InputError(f"cannot write into bundle {bundle.path}: {error.strerror or error}") from error


def _member_logits(bundle: Bundle, examples: Examples, batch_size: int, progress: Progress) -> np.ndarray:
    """[N, M, C] before any temperature, of the PyTorch reference."""
    if batch_size < 1:
        raise InputError(f"batch_size is {batch_size}; expected 1 or more")
    architecture = bundle.architecture()
    processor = examples.processor(architecture, lambda: bundle.processor_for(f"read {examples.source}"))
    backend, _ = open_backend(bundle, "torch")
    with closing(backend):
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
