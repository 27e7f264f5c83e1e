"""What a graph says of itself, and whether the bundle says the same.

An ONNX file is a protocol-buffer message with its metadata in one field at the top, so that they are read without any
library, and without reading the weights.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..errors import BundleError, cut
from .calibration import Calibration
from .manifest import MANIFEST
from .onnx_message import fields
from .store import CALIBRATION, DENSITY, PROCESSOR, TOKENIZER_GRAPH, WEIGHTS, Bundle

METADATA, KEY, VALUE = 14, 1, 2
"""Fields of ONNX's ModelProto and StringStringEntryProto."""

_Facts = Mapping[str, tuple[str, Any, Callable[[str], Any]]]
"""Key of the metadata → the file that answers for it, what that says, and how the graph's text is decoded."""


def graph_metadata(path: Path) -> dict[str, str]:
    """``metadata_props`` of an ONNX file; what cannot be decoded is left to whoever loads the graph."""
    found: dict[str, str] = {}
    if not path.is_file():
        return found
    with path.open("rb") as file:
        try:
            for entry in fields(file, METADATA):
                key, value = (next(fields(io.BytesIO(entry), field), b"").decode() for field in (KEY, VALUE))
                found[key] = value
        except ValueError:  # no ONNX file
            return {}
    return found


def check_all_graphs(bundle: Bundle) -> None:
    """Refuse a bundle with a graph that contradicts it, whatever is to run: labels of one of them would be wrong."""
    names = [name for name in bundle.manifest["files"] if name.endswith(".onnx") and name != TOKENIZER_GRAPH]
    facts = _expected(bundle) if names else {}
    for name in names:
        _compare(bundle.path / name, facts)


def tokenizer_source(bundle: Bundle) -> str:
    """What a ``tokenizer.onnx`` of this bundle is made from: the digests of the tokenizer's files."""
    files = bundle.manifest["files"]
    names = (f"{PROCESSOR}/tokenizer.json", f"{PROCESSOR}/tokenizer_config.json")
    return " ".join(files[name]["sha256"] for name in names if name in files)


def check_graph(bundle: Bundle, name: str) -> None:
    """Refuse a graph whose metadata contradict the bundle that it lies in.

    What a graph does not tell, as one that went through another tool may not, is not compared.
    """
    _compare(bundle.path / name, _expected(bundle))


def _compare(path: Path, facts: _Facts) -> None:
    """Refuse a graph whose metadata say something else than the facts of its bundle."""
    said = graph_metadata(path)
    for key, (source, expected, decoded) in facts.items():
        if key not in said:
            continue
        try:
            value = decoded(said[key])
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
            value = said[key]
        if value != expected:
            ours, theirs = _different(value, expected)
            raise BundleError(
                f"{path} has {key.removeprefix('hydrant.').replace('_', ' ')} {cut(ours)}, but {source} says "
                f"{cut(theirs)}: they are of different bundles, or one was edited; export the graph again with "
                "`hydrant export`"
            )


def _expected(bundle: Bundle) -> _Facts:
    """What the metadata of its graphs must say, as far as they say it."""
    calibration = Calibration.of(bundle)
    facts = calibration.to_json()
    weights, density = (bundle.manifest["files"].get(name, {}).get("sha256") for name in (WEIGHTS, DENSITY))
    return {
        "hydrant.family": (MANIFEST, bundle.family, str),
        "hydrant.members": (MANIFEST, bundle.members, int),
        "hydrant.labels": (MANIFEST, bundle.labels, json.loads),
        **({"hydrant.weights_sha256": (MANIFEST, weights, str)} if weights else {}),
        "hydrant.density_sha256": (MANIFEST, density, str),
        "hydrant.temperature": (CALIBRATION, calibration.temperature, float),
        "hydrant.thresholds": (CALIBRATION, _limits(facts["thresholds"]), lambda text: _limits(json.loads(text))),
        "hydrant.conformal": (CALIBRATION, _sets(facts["conformal"]), lambda text: _sets(json.loads(text))),
        "hydrant.intervals": (CALIBRATION, _ends(facts.get("intervals")), lambda text: _ends(json.loads(text))),
        "hydrant.label_decisions": (
            CALIBRATION,
            _label_decisions(facts.get("labels")),
            lambda text: _label_decisions(json.loads(text)),
        ),
    }


def _limits(thresholds: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[Any, Any]]:
    """What decides: score and value; the notes beside them may differ between versions."""
    return {name: (entry["score"], entry["value"]) for name, entry in sorted(thresholds.items())}


def _sets(conformal: Mapping[str, Any] | None) -> tuple[Any, Any] | None:
    return None if conformal is None else (conformal["method"], conformal["quantile"])


def _ends(intervals: Mapping[str, Any] | None) -> list[Any] | None:
    return None if intervals is None else [intervals["quantile"], intervals["floor"], intervals["bounds"]]


def _label_decisions(labels: Mapping[str, Any] | None) -> list[Any] | None:
    return None if labels is None else [*labels["temperatures"], *labels["thresholds"]]


def _different(value: Any, expected: Any) -> tuple[Any, Any]:
    """The first entries that differ of two lists of one length; other values as they are."""
    if not isinstance(value, list) or not isinstance(expected, list) or len(value) != len(expected):
        return value, expected
    return next((ours, theirs) for ours, theirs in zip(value, expected, strict=True) if ours != theirs)
