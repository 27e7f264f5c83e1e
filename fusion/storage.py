"""Saving a fused module as a bundle, and loading it back."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from ..bundle.calibration import UNFITTED, Calibration, LabelDecisions
from ..bundle.density_file import Density
from ..bundle.original_check import ORIGINAL_CHECK, check_to_json
from ..bundle.store import ARCHITECTURE, CALIBRATION, PLAN, PROCESSOR, WEIGHTS, Bundle, new_bundle, resolve
from ..bundle.strict_json import to_json_bytes
from ..bundle.traced import CHECKPOINT
from ..bundle.weights import check_fused, stored_weights
from ..data.processor import load_processor, save_processor
from ..errors import InputError
from ..models.tracing.members import load_original
from ..version import __version__
from .module import FusedClassifier
from .traced_ensemble import TracedClassifier

log = logging.getLogger(__name__)


def save_bundle(
    ensemble: FusedClassifier | TracedClassifier,
    path: str | Path,
    processor: Any = None,
    *,
    force: bool = False,
    provenance: Mapping[str, Any] | None = None,
    tensors_only: bool = False,
) -> Bundle:
    """Write a fused module as a bundle, atomically.

    Args:
        ensemble: the fused module.
        path: folder to create.
        processor: transformers tokenizer or image processor of the checkpoint; ``None`` makes a bundle that accepts
            prepared tensors only, and logs a warning without ``tensors_only``.
        force: replace an existing bundle.
        provenance: further JSON entries for ``fusion`` in the manifest.
        tensors_only: a processor is not needed.

    Raises:
        InputError: the folder exists, the processor does not fit, or weights are non-finite.
    """
    if processor is None and not tensors_only:
        modality = ensemble.architecture.modality
        log.warning("bundle %s accepts prepared tensors only; pass processor=… so that it reads %ss", path, modality)
    elif processor is not None and tensors_only:
        raise InputError("tensors_only excludes a processor; omit one of them")
    check = None if processor is None else ensemble.checked_with(processor)
    weights = ensemble.stored_weights()
    for name, tensor in weights.items():
        if not bool(torch.isfinite(tensor).all()):
            raise InputError(f"weight {name} holds non-finite values (NaN or infinity); repair it before saving")
    every = ensemble.label_temperatures
    decisions = None if every is None else LabelDecisions(every, (UNFITTED,) * len(every))
    calibration = Calibration(ensemble.temperature, labels=decisions)
    manifest = {
        "hydrant": __version__,
        "versions": {name: version(name) for name in ("torch", "transformers", "safetensors")},
        "family": ensemble.architecture.family, "members": ensemble.members, "labels": list(ensemble.labels),
        "fusion": {**ensemble.provenance, **(provenance or {})},
    }  # fmt: skip
    with new_bundle(path, manifest, force=force) as folder:
        save_file(weights, folder / WEIGHTS)
        (folder / PLAN).write_bytes(to_json_bytes(ensemble.plan.to_json()))
        shutil.copymode(folder / PLAN, folder / WEIGHTS)  # safetensors makes its files readable by the owner alone
        if (configuration := ensemble.checkpoint_configuration()) is not None:
            (folder / CHECKPOINT).write_bytes(to_json_bytes(configuration))
        (folder / ARCHITECTURE).write_bytes(to_json_bytes(ensemble.architecture.to_json()))
        (folder / CALIBRATION).write_bytes(to_json_bytes(calibration.to_json()))
        if check is not None:
            (folder / ORIGINAL_CHECK).write_bytes(to_json_bytes(check_to_json(check)))
        if processor is not None:
            (folder / PROCESSOR).mkdir()
            save_processor(processor, folder / PROCESSOR)
            load_processor(folder / PROCESSOR, ensemble.architecture)  # fail now rather than at load time
    return Bundle.open(path)


def load_ensemble(bundle: Bundle | str | Path) -> FusedClassifier:
    """Load the fused module of a bundle, in evaluation mode, float32 on the CPU.

    Raises:
        BundleError: a file is missing, altered, or inconsistent with the others.
    """
    bundle = resolve(bundle)
    weights = stored_weights(bundle, load_file)
    architecture, plan = bundle.architecture(), bundle.plan()
    shapes = {name: tensor.shape for name, tensor in weights.items()}
    check_fused(shapes, architecture, plan, bundle.labels, bundle.members)
    return FusedClassifier(architecture, plan, weights, bundle.labels, **_fitted(bundle)).eval()


def load_reference(bundle: Bundle | str | Path) -> FusedClassifier | TracedClassifier:
    """Load the module of a bundle, fused or traced, in evaluation mode, float32 on the CPU."""
    bundle = resolve(bundle)
    architecture = bundle.any_architecture()
    if architecture.is_declared:
        return load_ensemble(bundle)
    original = load_original(bundle, architecture)
    return TracedClassifier(architecture, bundle.plan(), original, bundle.labels, **_fitted(bundle))


def _fitted(bundle: Bundle) -> dict[str, Any]:
    """Arguments of an ensemble that calibration and tuning determine."""
    calibration = Calibration.of(bundle)
    return {
        "temperature": calibration.temperature,
        "provenance": bundle.manifest.get("fusion"),
        "density": Density.of(bundle),
        "label_temperatures": None if calibration.labels is None else calibration.labels.temperatures,
    }
