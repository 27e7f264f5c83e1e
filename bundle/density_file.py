"""``density.safetensors``: the distance of an input's features from the training data.

A *tap* is a vector f of the network: ``layers.3.first`` and ``layers.3.mean``, the first token and the mean over real
tokens after a shared layer; or ``last.0``, the input of a member's pooler or classifier (``last.0.mean`` the mean
if it reads both). Token classification has ``layers.3.token`` and ``last.0`` for every token. With f of unit length,
the squared Mahalanobis distance to the nearest class (Lee et al. 2018; unit length: Müller & Hein 2025) is

    d = min_c |(f − centre) W − μ_c|²        W Wᵀ the inverse of the shrunk covariance within classes

and the distance of an input is the mean over its taps of (d − location) / scale.

A mean over few tokens varies more than one over many. In the form with the length, location and scale of a text with n
tokens (the sum of the attention mask) are therefore lines in 1/n, and its *length deviation* is the standardised log n.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from ..data.specs import Spec, convert
from ..errors import BundleError, literal
from .store import DENSITY, WEIGHTS, Bundle
from .strict_json import check_schema, from_json_bytes
from .traced import AnyArchitecture

SCHEMA, CONSTANT = 2, 1  # with the length of a text, and without
METADATA = "density"
FLOAT32 = "F32"
TENSORS = ("centre", "whitening", "means", "location", "scale")
LENGTH_TENSORS = ("location_slope", "scale_slope", "log_length")
TAP = re.compile(r"layers\.(\d+)\.(first|mean|token)|last\.(\d+)(\.mean)?")


class Facts(Spec, frozen=True):
    """The metadata; ``weights_sha256`` is the digest of the weights with these features."""

    schema: int
    taps: tuple[str, ...]
    weights_sha256: str
    fitted: dict[str, Any]


@dataclass(frozen=True, eq=False)
class Density:
    """The fitted distance of a bundle: K taps of width d, and R classes with examples.

    ``centre`` [K, d], ``whitening`` W [K, d, r], ``means`` μ_c [K, R, r], whitened; ``location`` and ``scale`` [K] are
    mean and standard deviation on in-distribution validation data, the latter divided by the tap's weight.

    With the length of a text, ``location`` + ``location_slope`` / n and ``scale`` + ``scale_slope`` / n replace them,
    and ``log_length`` [2] holds mean and standard deviation of log n; otherwise the three are ``None``.
    """

    taps: tuple[str, ...]
    centre: np.ndarray
    whitening: np.ndarray
    means: np.ndarray
    location: np.ndarray
    scale: np.ndarray
    fitted: Mapping[str, Any] = field(default_factory=dict)
    location_slope: np.ndarray | Any = None
    scale_slope: np.ndarray | Any = None
    log_length: np.ndarray | Any = None

    def arrays(self) -> dict[str, np.ndarray]:
        """The tensors by their names in the file."""
        names = TENSORS if self.log_length is None else (*TENSORS, *LENGTH_TENSORS)
        return {name: np.ascontiguousarray(getattr(self, name), np.float32) for name in names}

    def to_json(self) -> dict[str, Any]:
        """Summary for reports: the taps, a rank below d, and the data of fit and choice."""
        width, rank = self.whitening.shape[1:]
        fitted = {name: each for name, each in self.fitted.items() if name != "fingerprints"}
        form = {"form": "constant" if self.log_length is None else "length"}
        return {"taps": list(self.taps), **({"rank": rank} if rank < width else {}), **form, **fitted}

    def to_bytes(self, weights_sha256: str) -> bytes:
        """The file."""
        schema = CONSTANT if self.log_length is None else SCHEMA
        facts = msgspec.structs.asdict(Facts(schema, self.taps, weights_sha256, dict(self.fitted)))
        return save(self.arrays(), {METADATA: json.dumps(facts, sort_keys=True)})

    @classmethod
    def of(cls, bundle: Bundle) -> Density | None:
        """Read the distance of a bundle; ``None`` without a fitted one."""
        if not bundle.has(DENSITY):
            return None
        path = bundle.file(DENSITY)
        where = f"{path} (fit it again with `hydrant calibrate --fit`)"
        try:
            with safe_open(path, "np") as file:
                stored = (file.metadata() or {}).get(METADATA, "{}")
                kinds = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118 (not a mapping)
                arrays = {name: file.get_tensor(name) for name, kind in kinds.items() if kind == FLOAT32}
        except (SafetensorError, OSError, ValueError) as error:
            raise BundleError(f"{where} is not a safetensors file ({error})") from error
        decoded = from_json_bytes(stored.encode(errors="surrogatepass"), where)
        check_schema(decoded, SCHEMA, where, earlier=CONSTANT)
        facts = convert(decoded, Facts, where)
        if facts.weights_sha256 != bundle.digests().get(WEIGHTS, facts.weights_sha256):
            raise BundleError(f"{where} was fitted for other weights than this bundle's")
        try:
            names = TENSORS if facts.schema == CONSTANT else (*TENSORS, *LENGTH_TENSORS)
            if set(arrays) != set(names) or set(kinds) != set(names):
                raise ValueError(f"tensors {literal(kinds)}; expected {', '.join(names)}, each {FLOAT32}")
            density = cls(facts.taps, **arrays, fitted=facts.fitted)
            _check(density, bundle)
        except ValueError as error:
            raise BundleError(f"{where} is malformed ({error})") from error
        return density


def fitted_on(bundle: Bundle) -> Mapping[str, Any]:
    """Data that a bundle's distance was fitted on, from the file's metadata; empty without a readable distance."""
    if not bundle.has(DENSITY):
        return {}
    try:
        with safe_open(bundle.file(DENSITY), "np") as file:
            return dict(json.loads((file.metadata() or {})[METADATA])["fitted"])
    except (SafetensorError, OSError, ValueError, TypeError, KeyError, RecursionError):
        return {}  # reported where the distance is needed


def _check(density: Density, bundle: Bundle) -> None:
    """Raise ValueError unless names, shapes and numbers fit the bundle's model."""
    architecture = bundle.any_architecture()
    check_taps(density.taps, architecture, bundle.members)
    count, width, rows = len(density.taps), architecture.width, density.means.shape[1] if density.means.ndim > 1 else 0
    rank = density.whitening.shape[2] if density.whitening.ndim == 3 else 0
    if not 0 < rank <= width or not 0 < rows <= len(bundle.labels):
        raise ValueError(f"whitening to {rank} of {width} numbers, and means of {rows} of {len(bundle.labels)} classes")
    shapes = {"centre": (count, width), "whitening": (count, width, rank), "means": (count, rows, rank)}
    shapes["log_length"] = (2,)
    for name, array in density.arrays().items():
        shape = shapes.get(name, (count,))
        if array.shape != shape or not np.isfinite(array).all():
            raise ValueError(f"{name} is {list(array.shape)}; expected {list(shape)} of finite numbers")
    scales = [density.scale]
    if density.log_length is not None:
        if not has_length(architecture):
            raise ValueError("it depends on the length of a text, which this model's inputs lack")
        scales += [density.scale + density.scale_slope, density.log_length[1:]]
    if not all((scale > 0).all() for scale in scales):
        raise ValueError("scale has numbers of 0 or below; expected positive ones")


def has_length(architecture: AnyArchitecture) -> bool:
    """Return True for texts with one distance each; images have no length, and each token has its own vector."""
    return architecture.modality == "text" and not architecture.every_token


def check_taps(taps: Sequence[str], architecture: AnyArchitecture, members: int) -> None:
    """Raise ValueError for no taps, duplicates, or a name that is not a tap of a model of this shape."""
    if not taps or len(set(taps)) != len(taps):
        raise ValueError(f"taps {literal(list(taps))}; expected different ones, at least one")
    for tap in taps:
        match = TAP.fullmatch(tap)
        layer, kind, member, mean = match.groups() if match else (None,) * 4
        if layer is None:
            valid = match is not None and int(member or 0) < members and (mean or "") in architecture.last_taps
        else:
            valid = int(layer) in architecture.tapped_layers and kind in architecture.layer_taps
        if not valid:
            raise ValueError(f"tap {literal(tap)} of a model of {architecture.layers} layers and {members} members")
