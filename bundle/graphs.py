"""Metadata of ONNX graphs, read without a library or the weights, and compared with the bundle."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ..errors import BundleError, HydrantError, cut
from .calibration import Calibration
from .manifest import MANIFEST
from .store import CALIBRATION, DENSITY, PROCESSOR, TOKENIZER_GRAPH, WEIGHTS, Bundle, onnx_name

METADATA, KEY, VALUE = 14, 1, 2  # fields of ONNX's ModelProto and StringStringEntryProto
GRAPH, INPUT, OUTPUT = 7, 11, 12  # fields of ModelProto and GraphProto
_Fact = tuple[str, Any, Callable[[str], Any]]  # source file, expected value, decoder of the graph's text


def graph_metadata(path: Path) -> dict[str, str]:
    """``metadata_props`` of an ONNX file; empty for other files."""
    if not path.is_file():
        return {}
    with path.open("rb") as file, suppress(ValueError):
        entries = _fields(file, METADATA, 0, file.seek(0, os.SEEK_END))
        return {_inner(entry, KEY).decode(): _inner(entry, VALUE).decode() for entry in entries}
    return {}


def tokenizer_source(bundle: Bundle) -> str:
    """Digests of the tokenizer's files, which identify the source of ``tokenizer.onnx``."""
    digests = bundle.digests()
    names = (f"{PROCESSOR}/tokenizer.json", f"{PROCESSOR}/tokenizer_config.json")
    return " ".join(digests[name] for name in names if name in digests)


def checked_graph(bundle: Bundle, precisions: Sequence[str], raises: type[HydrantError]) -> tuple[Path, str]:
    """File and precision of the first graph that a bundle has, with digests and metadata checked."""
    precision = next((each for each in precisions if bundle.has(onnx_name(each))), None)
    if precision is None:
        option = "" if precisions[0] == "fp32" else f" --precision {precisions[0]}"
        wrong = f"bundle {bundle.path} has no {onnx_name(precisions[0])}"
        raise raises(f"{wrong}; make it with `hydrant export {bundle.path}{option}`")
    name = onnx_name(precision)
    path = bundle.file(name)
    check_graph(bundle, name)
    if bundle.has(f"{name}.data"):
        bundle.file(f"{name}.data")
    return path, precision


def check_all_graphs(bundle: Bundle) -> None:
    """Reject a bundle if any of its graphs contradicts it, except graphs that are still to be downloaded."""
    check_graph(bundle, *(name for name in bundle.digests() if name.endswith(".onnx") and name != TOKENIZER_GRAPH))


def check_graph(bundle: Bundle, *names: str) -> None:
    """Reject graphs whose metadata contradict their bundle; absent metadata are not compared."""
    facts = _expected(bundle) if names else {}
    for path in (bundle.path / name for name in names):
        metadata = graph_metadata(path)
        for key in sorted(set(facts) & set(metadata)):
            source, expected, decoded = facts[key]
            try:
                value = decoded(metadata[key])
            except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
                value = metadata[key]
            if value != expected:
                ours, theirs = value, expected
                if isinstance(value, list) and isinstance(expected, list) and len(value) == len(expected):
                    ours, theirs = next(pair for pair in zip(value, expected, strict=True) if pair[0] != pair[1])
                what = f"{key.removeprefix('hydrant.').replace('_', ' ')} {cut(ours)}, but {source} says {cut(theirs)}"
                raise BundleError(f"{path} has {what}; export the graph again with `hydrant export`")


def _expected(bundle: Bundle) -> dict[str, _Fact]:
    """Expected metadata of the bundle's graphs."""
    calibration, digests = Calibration.of(bundle), bundle.digests()
    stored = calibration.to_json()
    return {
        "hydrant.family": (MANIFEST, bundle.family, str),
        "hydrant.members": (MANIFEST, bundle.members, int),
        "hydrant.labels": (MANIFEST, bundle.labels, json.loads),
        **({"hydrant.weights_sha256": (MANIFEST, digests[WEIGHTS], str)} if WEIGHTS in digests else {}),
        "hydrant.density_sha256": (MANIFEST, digests.get(DENSITY), str),
        "hydrant.temperature": (CALIBRATION, calibration.temperature, float),
        "hydrant.thresholds": (CALIBRATION, _limits(stored["thresholds"]), lambda text: _limits(json.loads(text))),
        "hydrant.conformal": _decides(stored["conformal"], "method", "quantile"),
        "hydrant.intervals": _decides(stored.get("intervals"), "quantile", "floor", "bounds"),
        "hydrant.label_decisions": _decides(stored.get("labels"), "temperatures", "thresholds"),
    }


def _decides(stored: Any, *names: str) -> _Fact:
    """The fields of a calibration entry that decide; notes may differ between versions."""

    def decided(entry: Any) -> Any:
        return entry and [entry[name] for name in names]

    return CALIBRATION, decided(stored), lambda text: decided(json.loads(text))


def _limits(thresholds: Any) -> dict[str, tuple[Any, Any]]:
    return {name: (entry["score"], entry["value"]) for name, entry in sorted(thresholds.items())}


@dataclass(frozen=True)
class GraphTensor:
    """An input or output: ``kind`` as ONNX's ``TensorProto.DataType`` (1 float32, 7 int64), dynamic axes ``None``."""

    name: str
    kind: int
    shape: tuple[int | None, ...]


def graph_tensors(path: Path) -> tuple[list[GraphTensor], list[GraphTensor]]:
    """Inputs and outputs of a graph, in its order."""
    with path.open("rb") as file:
        whole = file.seek(0, os.SEEK_END)
        places = ((begin, end) for number, begin, end in _entries(file, 0, whole) if number == GRAPH and end >= 0)
        start, end = next(places, (0, 0))
        inputs, outputs = ([_tensor(part) for part in _fields(file, field, start, end)] for field in (INPUT, OUTPUT))
    if not inputs or not outputs:
        raise ValueError("a graph without inputs or outputs")
    return inputs, outputs


def _tensor(info: bytes) -> GraphTensor:
    """Name, element type and shape of a ValueInfoProto."""
    tensor = _inner(_inner(info, 2), 1)
    shape = _inner(tensor, 2)
    axes = tuple(_value(axis, 1) for axis in _fields(io.BytesIO(shape), 1, 0, len(shape)))
    return GraphTensor(_inner(info, 1).decode(), _value(tensor, 1) or 0, axes)


def _inner(message: bytes, wanted: int) -> bytes:
    """The first field with this number that contains bytes; empty without one."""
    return next(_fields(io.BytesIO(message), wanted, 0, len(message)), b"")


def _value(message: bytes, wanted: int) -> int | None:
    """The number in a field; ``None`` without the field."""
    entries = _entries(io.BytesIO(message), 0, len(message))
    return next((value for number, value, end in entries if number == wanted and end < 0), None)


def _fields(file: IO[bytes], wanted: int, start: int, end: int) -> Iterator[bytes]:
    """Contents of a message's fields with one number that contain bytes."""
    for number, begin, behind in _entries(file, start, end):
        if number == wanted and behind >= 0:
            file.seek(begin)
            yield file.read(behind - begin)


def _entries(file: IO[bytes], start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Number of each field, with begin and end of its bytes; for numeric fields with value and −1."""
    place = start
    while place < end:
        file.seek(place)
        key = _number(file)
        if key & 7 == 0:
            value = _number(file)
            place = file.tell()
            yield key >> 3, value, -1
            continue
        length = {1: 8, 5: 4}.get(key & 7) or (_number(file) if key & 7 == 2 else end)
        begin = file.tell()
        if length > end - begin:
            raise ValueError("a field beyond the end of its message")
        place = begin + length
        if key & 7 == 2:
            yield key >> 3, begin, place


def _number(file: IO[bytes]) -> int:
    """A varint: seven bits a byte, the lowest first."""
    number = 0
    for shift in range(0, 70, 7):
        byte = file.read(1)
        if not byte:
            break
        number |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return number
    raise ValueError("a number without an end")
