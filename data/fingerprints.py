"""Compact records of examples, which measure how many two data sets share: a bottom-k sketch (Cohen & Kaplan 2007)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError
from .examples import Examples
from .raw_inputs import Sound, as_array, is_pair
from .specs import Modality

LOWEST = 4096  # hashes per record; data with at most this many examples are compared exactly
BYTES = 6
FLOATS = {"f": np.float32}  # dtype kind of samples → dtype that is hashed; pixels are unchanged
TENSORS = {**FLOATS, **dict.fromkeys("iub", np.int64)}  # the same for ready tensors


@dataclass(frozen=True)
class Fingerprint:
    """Unique hashes of examples, ascending: all of them, or the :data:`LOWEST`."""

    hashes: tuple[int, ...]
    complete: bool = True
    pairs: bool | None = None

    def share_in(self, earlier: Fingerprint) -> float:
        """Share of these examples that also occur in ``earlier``; an estimate if this record is incomplete."""
        alike = [number for number in self.hashes if earlier.complete or number <= earlier.hashes[-1]]
        earlier_hashes = set(earlier.hashes)
        return sum(number in earlier_hashes for number in alike) / len(alike) if alike else 0.0

    def __or__(self, other: Fingerprint) -> Fingerprint:
        """Union of both records."""
        ends = [each.hashes[-1] for each in (self, other) if not each.complete]
        both = sorted(number for number in {*self.hashes, *other.hashes} if number <= min(ends, default=number))
        return Fingerprint(tuple(both), not ends, self.pairs if self.pairs == other.pairs else None)

    def to_json(self) -> dict[str, Any]:
        """The lowest hashes as a JSON object, with a digest of all."""
        stored = b"".join(number.to_bytes(BYTES, "big") for number in self.hashes)
        lowest, digest = base64.b64encode(stored[: BYTES * LOWEST]).decode(), hashlib.sha256(stored).hexdigest()
        facts = {"complete": self.complete and len(self.hashes) <= LOWEST, "sha256": digest, "lowest": lowest}
        return facts if self.pairs is None else {**facts, "pairs": self.pairs}

    @classmethod
    def from_json(cls, data: Any) -> Fingerprint | None:
        """Rebuild from :meth:`to_json`; ``None`` if invalid, as in bundles of earlier versions."""
        try:
            stored = base64.b64decode(data["lowest"], validate=True)
            complete, pairs = data["complete"], data.get("pairs")
        except (AttributeError, TypeError, KeyError, ValueError, binascii.Error):
            return None
        if not stored or len(stored) % BYTES or not isinstance(complete, bool):
            return None
        numbers = {int.from_bytes(stored[at : at + BYTES], "big") for at in range(0, len(stored), BYTES)}
        return cls(tuple(sorted(numbers)), complete, pairs if isinstance(pairs, bool) else None)


def shared_part(examples: Examples, earlier: Examples, modality: Modality) -> float:
    """Share of examples that also occur in ``earlier``; 0 if unknown."""
    now, then = (fingerprint_of(each.inputs, modality) for each in (examples, earlier))
    return 0.0 if now is None or then is None else now.share_in(then)


def hashes_of(inputs: Sequence[Any], modality: Modality) -> list[int] | None:
    """Hash each raw input; ``None`` if one has no stable form."""
    numbers = []
    for item in inputs:
        try:
            content = _content(Path(item) if modality != "text" and isinstance(item, str) else item)
        except OSError:  # the processor reports the error
            content = None
        if content is None:
            return None
        numbers.append(int.from_bytes(hashlib.blake2b(content, digest_size=BYTES).digest(), "big"))
    return numbers


def fingerprint_of(inputs: Sequence[Any], modality: Modality) -> Fingerprint | None:
    """Fingerprint of raw inputs; ``None`` if empty or without a stable form."""
    numbers = hashes_of(inputs, modality)
    if not numbers:
        return None
    pairs = {is_pair(item) if isinstance(item, str | tuple) else None for item in inputs}
    uniform = modality == "text" and len(pairs) == 1
    return Fingerprint(tuple(sorted({*numbers})), pairs=pairs.pop() if uniform else None)


def fingerprints(modality: Modality, **examples: Examples | None) -> dict[str, Any]:
    """Record of the examples used: ``{"fingerprints": {"data": …}}``; empty without examples."""
    records = {name: fingerprint_of(used.inputs, modality) for name, used in examples.items() if used is not None}
    stored = {name: each.to_json() for name, each in records.items() if each is not None}
    return {"fingerprints": stored} if stored else {}


def _content(item: Any) -> bytes | None:
    """Canonical bytes of an input: spacing and Unicode form of texts do not count."""
    if isinstance(item, str):
        return b"text " + " ".join(unicodedata.normalize("NFC", item).split()).encode(errors="surrogatepass")
    if isinstance(item, Path | bytes | bytearray):  # image or sound file
        content = item if not isinstance(item, Path) else item.read_bytes() if item.is_file() else None
        return None if content is None else b"file " + hashlib.sha256(content).digest()
    if isinstance(item, Mapping):  # ready tensors
        return _joined([part for name in sorted(item) for part in (str(name), _array(item[name], TENSORS))])
    samples = isinstance(item, Sound) or (isinstance(item, tuple | list) and isinstance(next(iter(item), None), float))
    if samples or isinstance(item, np.ndarray) or hasattr(item, "convert"):  # PIL images convert
        array = _array(item.samples if isinstance(item, Sound) else item, FLOATS)
        kind = f"{array.dtype} {list(array.shape)} ".encode()
        return None if array.dtype.hasobject else kind + np.ascontiguousarray(array).tobytes()
    return _joined(item) if isinstance(item, tuple | list) else None  # a pair of texts, or words


def _joined(items: Sequence[Any]) -> bytes | None:
    parts = [_content(item) for item in items]
    return None if None in parts else b"".join(hashlib.sha256(part or b"").digest() for part in parts)


def _array(value: Any, read: Mapping[str, Any]) -> np.ndarray:
    """Convert lists, arrays or torch tensors to arrays of the dtype that models read."""
    try:
        array = as_array(value)
    except InputError:  # lists of unequal lengths: the processor reports the error
        return np.array(None)
    with np.errstate(over="ignore"):
        return array.astype(read.get(array.dtype.kind, array.dtype), copy=False)
