"""What is fuzzed: every reader of a file that travels, with the seeds that its corpus begins with.

A target takes bytes. It reads them as one file of a bundle (its digest fixed in the manifest, as an attacker would), or
as data of a user. It may refuse them with one of hydrant's errors; whatever else is raised is a finding, and so is a
file that is taken and then does not say the same twice, or holds numbers that are not finite.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from hydrant.bundle.calibration import Calibration
from hydrant.bundle.density import Density
from hydrant.bundle.graphs import graph_metadata
from hydrant.bundle.journal import JOURNAL, NEW, PURPOSE
from hydrant.bundle.manifest import MANIFEST
from hydrant.bundle.plan import HeadPlan
from hydrant.bundle.store import ARCHITECTURE, CALIBRATION, DENSITY, PLAN, WEIGHTS, Bundle
from hydrant.bundle.weights import check_fused
from hydrant.data.arrays import read_npz
from hydrant.data.columns import Columns
from hydrant.data.readers import stream_rows
from hydrant.engines.metadata import read_metadata
from hydrant.errors import HydrantError

ROWS = 200
"""So many rows of a data file are read; a reader streams, so that more say nothing new."""


@dataclass(frozen=True)
class Target:
    """One reader.

    Attributes:
        read: takes the bytes; raises for a finding.
        seeds: what it should take, or nearly take.
    """

    read: Callable[[bytes], None]
    seeds: tuple[bytes, ...]


def targets(bundle: Path, folder: Path) -> dict[str, Target]:
    """Every target by its name.

    Args:
        bundle: a calibrated text bundle with a distance, a graph and a processor.
        folder: where each target keeps its files.
    """
    read: dict[str, tuple[str, Callable[[Bundle], Any]]] = {
        "plan": (PLAN, _plan),
        "architecture": (ARCHITECTURE, lambda bundle: bundle.any_architecture()),
        "calibration": (CALIBRATION, _calibration),
        "density": (DENSITY, _density),
        "weights": (WEIGHTS, _weights),
        "tokenizer": ("processor/tokenizer.json", _processor),
        "tokenizer-settings": ("processor/tokenizer_config.json", _processor),
        "engine": ("engines/one.json", _engine),
    }
    found = {"manifest": Target(_manifest(_copy(bundle, folder, "manifest")), ((bundle / MANIFEST).read_bytes(),))}
    for name, (file, use) in read.items():
        seeds = SEEDS[name] if name in SEEDS else ((bundle / file).read_bytes(),)
        found[name] = Target(_forged(_copy(bundle, folder, name), file, use), seeds)
    graph = next(bundle.glob("model.*.onnx"))
    found["graph"] = Target(lambda data: _graph(folder / "graph.onnx", data), (graph.read_bytes()[-20000:],))
    found["journal"] = Target(_journal(_copy(bundle, folder, "journal")), SEEDS["journal"])
    for ending in ("csv", "tsv", "jsonl", "conll", "npz"):
        found[ending] = Target(lambda data, ending=ending: _rows(folder / f"data.{ending}", data), SEEDS[ending])
    return found


def _copy(bundle: Path, folder: Path, name: str) -> Path:
    place = folder / "bundles" / name
    if not place.exists():
        shutil.copytree(bundle, place)
    return place


def _forged(bundle: Path, file: str, use: Callable[[Bundle], Any]) -> Callable[[bytes], None]:
    """Reads a bundle in which one file is what is given, with the digest that fits."""
    manifest = json.loads((bundle / MANIFEST).read_bytes())
    (bundle / file).parent.mkdir(exist_ok=True)

    def run(data: bytes) -> None:
        (bundle / file).write_bytes(data)
        entry = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        with contextlib.suppress(HydrantError):
            use(Bundle(bundle, {**manifest, "files": {**manifest["files"], file: entry}}))

    return run


def _manifest(bundle: Path) -> Callable[[bytes], None]:
    def run(data: bytes) -> None:
        (bundle / MANIFEST).write_bytes(data)
        with contextlib.suppress(HydrantError):
            opened = Bundle.open(bundle)
            assert opened.members >= 1
            assert opened.labels
            for name in opened.manifest["files"]:
                assert (bundle / name).resolve().is_relative_to(bundle.resolve()), name
            opened.processor_folder()

    return run


def _journal(bundle: Path) -> Callable[[bytes], None]:
    """Opens a bundle in which a writer is said to have been killed; what lies beside the bundle stays as it is."""
    stage, beside = bundle / f".{PURPOSE}.0123456789ab.stage", bundle.parent / "beside.json"
    manifest = (bundle / MANIFEST).read_bytes()
    beside.write_text("mine")

    def run(data: bytes) -> None:
        shutil.rmtree(stage, ignore_errors=True)
        (stage / NEW).mkdir(parents=True)
        (stage / NEW / PLAN).write_text("{}")
        (stage / JOURNAL).write_bytes(data)
        with contextlib.suppress(HydrantError):
            Bundle.open(bundle)
        assert beside.read_text() == "mine"
        (bundle / MANIFEST).write_bytes(manifest)

    return run


def _plan(bundle: Bundle) -> None:
    plan = bundle.plan()
    assert HeadPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    assert all(0 <= head < plan.heads for member in plan.members for keep in member for head in keep)


def _calibration(bundle: Bundle) -> None:
    found = Calibration.of(bundle)
    assert 0 < found.temperature < float("inf")
    assert all(np.isfinite(each.value) for each in found.thresholds.values())


def _density(bundle: Bundle) -> None:
    found = Density.of(bundle)
    assert found is not None
    assert all(np.isfinite(array).all() for array in found.arrays().values())


def _weights(bundle: Bundle) -> None:
    from hydrant.errors import BundleError
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(bundle.file(WEIGHTS), "np") as file:
            shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118 - no mapping
    except SafetensorError as error:
        raise BundleError(str(error)) from error
    check_fused(shapes, bundle.architecture(), bundle.plan(), bundle.labels, bundle.members)


def _processor(bundle: Bundle) -> None:
    processor = bundle.processor()
    assert processor is not None
    tensors = processor.collate(processor.encode(["alpha beta"]))
    assert all(array.dtype.kind in "if" for array in tensors.values())


def _engine(bundle: Bundle) -> None:
    found = read_metadata(bundle, "one")
    assert type(found).from_json(json.loads(json.dumps(found.to_json())), "again") == found


def _graph(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    assert all(isinstance(key, str) for key in graph_metadata(path))


def _rows(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    with contextlib.suppress(HydrantError):
        for _ in islice(stream_rows(path, Columns()), ROWS):
            pass
        if path.suffix == ".npz":
            read_npz(path)


def _npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


ENGINE = {
    "schema": 1, "library": "tensorrt-rtx", "version": "1.4.0.76", "precision": "fp16",
    "profiles": [{"input_ids": [[1, 8], [8, 64], [32, 128]]}], "compute_capabilities": ["8.9"], "platform": "linux",
    "onnx": "model.fp16.onnx", "onnx_sha256": "0" * 64, "engine_sha256": "1" * 64, "version_compatible": False,
    "hardware_compatibility": "none", "stripped": False, "refittable": False, "attention_blocks": 2, "fused": [2],
    "layers": [9],
}  # fmt: skip
VALUE = re.compile(rb'"[^"]*"|-?[0-9.]+|true|false|null')
SEEDS: dict[str, tuple[bytes, ...]] = {
    "engine": (json.dumps(ENGINE).encode(),),
    "journal": (
        b'{"names": ["plan.json"], "gone": ["a.json"], "fresh": [], "forward": true}',
        b'{"names": ["plan.json", "deep/b.json"], "gone": [], "fresh": ["deep/b.json"], "forward": false}',
        b'{"names": ["a\\u0000/b"], "gone": ["../beside.json"], "fresh": [], "forward": true}',
        b'{"names": [], "gone": ["a\\ud800/b"], "fresh": [], "forward": true}',
    ),
    "csv": (b'text,label\n"a, ""b""",1\nc,two\n', "text;label\nä;1\n".encode("utf-16")),
    "tsv": (b"text\tlabel\na\t1\n",),
    "jsonl": (b'{"text": "a", "label": 1}\n{"text": ["a", "b"], "label": null}\n', b'[{"text": "a"}]'),
    "conll": (b"-DOCSTART- -X- O\n\nEU B-ORG\nrejects O\n\n",),
    "npz": (
        _npz(x=np.zeros((2, 4, 4, 3), np.uint8), y=np.arange(2)),
        _npz(input_ids=np.ones((2, 3), np.int64), attention_mask=np.ones((2, 3), np.int64)),
        _npz(x=np.array(["a", "b"])),
    ),
}

WORDS = (
    b"null", b"true", b"-1", b"0", b"1e999", b"NaN", b"1.5", b"9" * 40, b"[]", b"{}", b'""', b"[" * 2000, b'"\\ud800"',
    b"\xff\xfe", b"\x00", b"../x", b"/etc/passwd", b'{"a": ' * 300, b'"__class__"', b"\r\n",
)  # fmt: skip
"""What parsers stumble over."""


def mutations(seeds: Sequence[bytes], count: int, seed: int) -> Iterator[bytes]:
    """``count`` changed copies of the seeds, always the same ones: bytes, numbers and values replaced, parts moved."""
    random = Random(seed)
    for _ in range(count):
        data = bytearray(random.choice(list(seeds)))
        for _ in range(random.randint(1, 3)):
            at, end = sorted(random.randrange(len(data) + 1) for _ in range(2))
            values = list(VALUE.finditer(bytes(data)))
            match random.randrange(5):
                case 0 if values:
                    place = random.choice(values)
                    data[place.start() : place.end()] = random.choice(WORDS)
                case 1:
                    del data[at : min(end, at + 64)]
                case 2:
                    data[at:at] = random.choice(WORDS)
                case 3:
                    data[at:at] = data[at : min(end, at + 64)]
                case _ if data:
                    data[min(at, len(data) - 1)] = random.randrange(256)
        yield bytes(data)
