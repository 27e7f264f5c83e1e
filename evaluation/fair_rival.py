"""The fair rival of an ensemble: the single model, unpruned, calibrated on the same data, with its own distance."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from msgspec import Struct

from ..bundle.calibration import Calibration
from ..bundle.head_plan import HeadPlan
from ..bundle.store import CALIBRATION, DENSITY, WEIGHTS, Bundle
from ..bundle.strict_json import to_json_bytes
from ..calib.decisions.calibrate_bundle import CalibrationReport, calibrate
from ..data.specs import convert
from ..errors import UnsupportedModelError

log = logging.getLogger(__name__)

RIVAL = "single model, calibrated, with distance"

FACTS, DISTANCE = "reports/single-model.json", "reports/single-model.safetensors"


class Stored(Struct, frozen=True):
    """Content of :data:`FACTS`: digest of the single model's weights, and its ``calibration.json``."""

    weights_sha256: str
    calibration: dict[str, Any]


def build_rival(model: str | Path, folder: str | Path, data: Any, ood: Any = None, **how: Any) -> CalibrationReport:
    """Write a checkpoint as a bundle of one member with all heads, and calibrate it; ``how`` is for ``calibrate``."""
    from ..fusion import save_bundle
    from ..models.checkpoint import load_model, load_processor

    single = single_model(load_model(model), model)
    bundle = save_bundle(single, folder, load_processor(model, single.architecture.modality))
    return calibrate(bundle, data, ood, **how)


def single_model(model: Any, source: str | Path) -> Any:
    """Fuse a loaded checkpoint into one member with all heads; undeclared families are traced."""
    from ..fusion import fuse
    from ..models.family_registry import architecture_of

    try:
        shape = architecture_of(model)
        return fuse(model, HeadPlan.all_heads(shape.family, shape.layers, shape.heads))  # no warning
    except UnsupportedModelError as error:
        try:
            return fuse(source, traced=True)
        except UnsupportedModelError:
            raise error from None


def rival_files(rival: Bundle) -> dict[str, bytes]:
    """Return the reports that restore a calibrated single model."""
    facts = {"weights_sha256": rival.digests()[WEIGHTS], "calibration": rival.calibration()}
    distance = {DISTANCE: rival.read(DENSITY)} if rival.has(DENSITY) else {}
    return {FACTS: to_json_bytes(facts), **distance}


def restored_rival(bundle: Bundle, single: Any, folder: Path) -> Bundle | None:
    """Write a bundle's rival from its checkpoint's module; ``None`` without one, or if calibrated anew."""
    from ..fusion import save_bundle

    if not bundle.has(FACTS):
        return None
    stored = convert(bundle.read_json(FACTS), Stored, bundle.path / FACTS)
    rival = save_bundle(single, folder, tensors_only=True)
    if rival.digests()[WEIGHTS] != stored.weights_sha256:
        return None
    distance = {DENSITY: bundle.read(DISTANCE)} if bundle.has(DISTANCE) else {}
    rival = rival.add({CALIBRATION: to_json_bytes(stored.calibration), **distance})
    if _terms(Calibration.of(rival)) != _terms(Calibration.of(bundle)):
        again = "%s was calibrated again, on other data or for other targets: no calibrated single model beside it"
        log.warning(again, bundle.path.name)
        return None
    return rival


def _terms(calibration: Calibration) -> tuple[Any, dict[str, Any]]:
    """Return the data of a calibration, and the targets of its thresholds."""
    fitted = calibration.fitted or {}
    targets = {name: limit.target for name, limit in calibration.thresholds.items()}
    return fitted.get("fingerprints", fitted.get("data")), targets
