"""Fuzz targets: every reader of untrusted data, with its seeds.

A target reads bytes as one file of a bundle (with a matching digest in the manifest), as a user's data, or as a request
(fuzz_given.py). Hydrant's errors are allowed. Other exceptions are findings, and so are accepted inputs with
inconsistent or non-finite values.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import json
import shutil
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from fuzz_given import file_targets, request_targets
from fuzz_target import Made, Target, begun, may_refuse, seeds_of
from hydrant.bundle.calibration import Calibration
from hydrant.bundle.density_file import Density
from hydrant.bundle.graphs import check_graph, graph_tensors
from hydrant.bundle.head_plan import HeadPlan
from hydrant.bundle.manifest import MANIFEST
from hydrant.bundle.reports import REPORT
from hydrant.bundle.staging import JOURNAL, NEW, PURPOSE
from hydrant.bundle.store import ARCHITECTURE, CALIBRATION, DENSITY, PLAN, WEIGHTS, Bundle
from hydrant.bundle.strict_json import json_line
from hydrant.bundle.traced import CHECKPOINT
from hydrant.bundle.weights import check_fused
from hydrant.cli.inspect import inspect_bundle, inspect_text
from hydrant.data.data_files import file_rows
from hydrant.data.data_options import DataOptions
from hydrant.data.examples import read_examples
from hydrant.data.text import WordProcessor
from hydrant.engines.metadata import read_metadata
from hydrant.errors import BundleError
from hydrant.tasks import TASKS

GRAPH = "model.fp32.onnx"

ROWS = 200  # Rows read from a data file; readers stream, so more add nothing
EVERY, ALWAYS = 64, 2  # Slow predictions of original models: the first two and every 64th
TAGS = {"csv": (False,), "tsv": (False,), "conll": (True,), "jsonl": (False, True),
        "npz": (False,)}  # fmt: skip
"""Contents by ending: texts (False), tagged words (True), or both."""


def targets(place: Path) -> dict[str, Made]:
    """All targets by name."""
    return {**_bundled(place / "bundle", place), **_data(place), **file_targets(place), **request_targets(place)}


def copy(bundle: Path, place: Path, name: str, files: Sequence[str] | None = None) -> Path:
    """Copy of a bundle for one target, with all files or, for speed, some."""
    folder = place / "bundles" / name
    if not folder.exists():
        manifest = json.loads((bundle / MANIFEST).read_bytes())
        left = [] if files is None else set(manifest["files"]) - set(files)
        shutil.copytree(bundle, folder)
        for file in left:
            (folder / file).unlink()
            del manifest["files"][file]
        (folder / MANIFEST).write_text(json.dumps(manifest))
    return folder


def _bundled(bundle: Path, place: Path) -> dict[str, Made]:
    """Files of a bundle."""
    files: dict[str, tuple[str, Callable[[Bundle], Any], tuple[str, ...]]] = {
        "plan": (PLAN, _plan, ("plan",)),
        "architecture": (ARCHITECTURE, lambda bundle: bundle.any_architecture(), ("architecture",)),
        "calibration": (CALIBRATION, _calibration, ("calibration",)), "density": (DENSITY, _density, ()),
        "weights": (WEIGHTS, _weights, ()), "tokenizer": ("processor/tokenizer.json", _processor, ()),
        "tokenizer-settings": ("processor/tokenizer_config.json", _processor, ()),
        "engine": ("engines/one.json", _engine, ("engine",)), "graph": (GRAPH, _graph, ("graph",)),
    }  # fmt: skip
    by_name: dict[str, Made] = {"manifest": partial(_manifest, bundle, place)}
    for name, (file, use, more) in files.items():
        source = place / file if file == GRAPH else bundle / file
        seeds = [*(SEEDS.get(name) or [source.read_bytes()]), *(seed for other in more for seed in seeds_of(other))]
        by_name[name] = partial(_forged, partial(copy, bundle, place, name), file, use, seeds)
    beside = (ARCHITECTURE, PLAN, CALIBRATION, WEIGHTS)
    traced = place / "traced"
    for name, whole, needed, file, use, seeds in (
        ("checkpoint", traced, None, CHECKPOINT, partial(_checkpoint, _tensors(), itertools.count()), ()),
        ("verified", bundle, (PLAN,), REPORT, _verified, _reports(bundle)),
        ("inspected-weights", bundle, beside, WEIGHTS, _inspected, ()),
        ("inspected-graph", bundle, (*beside, DENSITY), GRAPH, _inspected, by_name["graph"].args[-1]),  # type: ignore[attr-defined]
    ):
        folder = partial(copy, whole, place, name, needed)
        by_name[name] = partial(begun, partial(_forged, folder, file, use, seeds or [(whole / file).read_bytes()]))
    for name in ("weights", "inspected-weights"):
        by_name[name] = partial(_header, by_name[name])
    by_name["journal"] = partial(_journal, bundle, place)
    return by_name


def _header(whole: Made) -> Target:
    """Safetensors file with a damaged header only: all numbers are valid."""
    target = whole()
    (seed,) = target.seeds
    length = 8 + int.from_bytes(seed[:8], "little")
    return Target(lambda data: target.read(data + seed[length:]), (seed[:length],))


def _data(place: Path) -> dict[str, Made]:
    """Files of rows."""
    endings = ("csv", "tsv", "jsonl", "conll", "npz")
    return {ending: partial(_rows, place / f"data.{ending}") for ending in endings}


def _forged(create: Callable[[], Path], file: str, use: Callable[[Bundle], Any], seeds: Sequence[bytes]) -> Target:
    """Bundle with one fuzzed file and a matching digest."""
    folder = create()
    manifest = json.loads((folder / MANIFEST).read_bytes())
    (folder / file).parent.mkdir(exist_ok=True)

    def run(data: bytes) -> None:
        (folder / file).write_bytes(data)
        with may_refuse("use"):
            use(Bundle(folder, _fixed(folder, manifest, file, data)))

    return Target(run, tuple(seeds), deep=file.endswith(".json"))


def _fixed(folder: Path, manifest: Mapping[str, Any], file: str, data: bytes) -> dict[str, Any]:
    """Update size and digest of a file in the manifest, also on disk."""
    entry = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    fixed = {**manifest, "files": {**manifest["files"], file: entry}}
    (folder / MANIFEST).write_text(json.dumps(fixed))
    return fixed


def _manifest(bundle: Path, place: Path) -> Target:
    folder = copy(bundle, place, "manifest")
    root = folder.resolve()

    def run(data: bytes) -> None:
        (folder / MANIFEST).write_bytes(data)
        with may_refuse("open"):
            opened = Bundle.open(folder)
            assert opened.members >= 1
            assert opened.labels
            for name in opened.manifest["files"]:
                assert (folder / name).resolve().is_relative_to(root), name
            opened.processor_folder()

    return Target(run, ((bundle / MANIFEST).read_bytes(), *seeds_of("manifest")), deep=True)


def _journal(bundle: Path, place: Path) -> Target:
    """Journal of a killed writer; opening the bundle must not change files beside it."""
    folder = copy(bundle, place, "journal")
    stage, beside = folder / f".{PURPOSE}.0123456789ab.stage", folder.parent / "beside.json"
    manifest = (folder / MANIFEST).read_bytes()
    beside.write_text("mine")

    def run(data: bytes) -> None:
        shutil.rmtree(stage, ignore_errors=True)
        (stage / NEW).mkdir(parents=True)
        (stage / NEW / PLAN).write_text("{}")
        (stage / JOURNAL).write_bytes(data)
        with may_refuse("open"):
            Bundle.open(folder)
        assert beside.read_text() == "mine"
        (folder / MANIFEST).write_bytes(manifest)

    return Target(run, SEEDS["journal"], deep=True)


def _plan(bundle: Bundle) -> None:
    plan = bundle.plan()
    assert HeadPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    assert all(0 <= head < plan.heads for member in plan.members for keep in member for head in keep)


def _calibration(bundle: Bundle) -> None:
    calibration = Calibration.of(bundle)
    assert 0 < calibration.temperature < float("inf")
    assert all(np.isfinite(each.value) for each in calibration.thresholds.values())


def _density(bundle: Bundle) -> None:
    density = Density.of(bundle)
    assert density is not None
    assert all(np.isfinite(array).all() for array in density.arrays().values())


def _weights(bundle: Bundle) -> None:
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
    tensors = processor.collate(processor.encode(["alpha beta", "unknown"]))
    assert all(array.dtype.kind in "if" for array in tensors.values())
    words = WordProcessor(bundle.path / "processor", bundle.any_architecture())
    for item in ("alpha unknown", ["alpha", "unknown"]):
        assert len(words.encode([item])[0].ids) == len(words.pieces(item))
        assert isinstance(words.joined([piece.token for piece in words.pieces(item)]), str)


def _engine(bundle: Bundle) -> None:
    metadata = read_metadata(bundle, "one")
    assert type(metadata).from_json(json.loads(json.dumps(metadata.to_json())), "again") == metadata


def _graph(bundle: Bundle) -> None:
    """Check the graph's metadata, inputs and outputs against the bundle."""
    with contextlib.suppress(ValueError):  # not an ONNX file
        for tensor in (each for side in graph_tensors(bundle.path / GRAPH) for each in side):
            assert all(axis is None or axis >= 0 for axis in tensor.shape)
    check_graph(bundle, GRAPH)


def _tensors() -> dict[str, np.ndarray]:
    """Two texts as token ids; the second is shorter."""
    mask = np.array([[1, 1, 1, 1], [1, 1, 0, 0]])
    return {"input_ids": mask * np.arange(3, 7), "attention_mask": mask}


@cache
def _stored(path: Path) -> dict[str, Any]:
    """Unchanged weights of a bundle."""
    from safetensors.torch import load_file

    return load_file(path)


def _checkpoint(tensors: dict[str, np.ndarray], calls: Iterator[int], bundle: Bundle) -> None:
    """Rebuild the original from its configuration and the bundle's weights; predict now and then."""
    from hydrant import load
    from hydrant.models.tracing.members import load_original

    architecture, stored = bundle.any_architecture(), _stored(bundle.path / WEIGHTS)
    rebuilt = load_original(bundle, architecture).state_dict()
    assert rebuilt.keys() == stored.keys()
    assert all(bool((rebuilt[name] == tensor).all()) for name, tensor in stored.items())
    if (number := next(calls)) >= ALWAYS and number % EVERY:
        return
    with load(bundle, "torch") as predictor:
        prediction = predictor.predict(tensors)
    np.testing.assert_allclose(prediction.probabilities.sum(axis=1), 1, atol=1e-5)


def _inspected(bundle: Bundle) -> None:
    """Inspect the bundle; an unusable file must be listed as a problem."""
    facts = inspect_bundle(bundle.path)
    assert inspect_text(facts)
    assert json_line(facts)
    assert any(file["state"] == "unusable" for file in facts["files"].values()) == bool(facts["problems"])
    if facts["problems"]:
        raise BundleError(facts["problems"][0])


def _verified(bundle: Bundle) -> None:
    """Inspect the report of ``verify``: backends shown as passed must have passed, for these files."""
    facts = inspect_bundle(bundle.path)
    assert inspect_text(facts)
    assert facts["files"][REPORT]["state"] != "altered"
    if not facts["verified"].startswith("passed: "):
        raise BundleError(facts["verified"])
    report, files = bundle.read_json(REPORT), bundle.manifest["files"]
    assert all(report["files"][name] == entry["sha256"] for name, entry in files.items() if name != REPORT)
    for each in facts["verified"].split(" (against")[0].split(";")[0].removeprefix("passed: ").split(", "):
        assert any(f"{one['backend']} {one['precision']}" == each and one["passed"] for one in report["backends"])


def _reports(bundle: Path) -> list[bytes]:
    """Reports of ``verify``: passed, failed, and for another plan."""
    digests = {PLAN: json.loads((bundle / MANIFEST).read_bytes())["files"][PLAN]["sha256"]}
    gate = {"name": "max_abs", "value": 1e-6, "limit": 1e-4, "passed": True}
    backend = {"backend": "onnxruntime", "precision": "fp32", "outputs": {"probabilities": {"max_abs": 1e-6}},
               "agreement": {"labels": 1.0}, "tolerances": {}, "gates": [gate], "bisection": None,
               "passed": True}  # fmt: skip
    report = {"hydrant": "0.2.0", "passed": True, "reference": "torch", "inputs": "256 synthetic inputs",
              "files": dict(digests), "backends": [backend], "skipped": []}  # fmt: skip
    failed = {**report, "passed": False, "backends": [backend, {**backend, "backend": "openvino", "passed": False}]}
    return [json.dumps(each).encode() for each in (report, failed, {**report, "files": {PLAN: "0" * 64}})]


def _rows(path: Path) -> Target:
    """Unlabelled rows, and labelled rows for every task; arrays in ``.npz`` files get valid checksums."""

    def run(data: bytes) -> None:
        archived = path.suffix == ".npz" and not data.startswith(b"PK")
        path.write_bytes(_archive(data) if archived else data)
        with may_refuse("stream"):
            for _ in itertools.islice(file_rows(path, DataOptions()), ROWS):
                pass
        if path.suffix == ".npz":
            return
        for task in (task for task in TASKS if (task == "tokens") in TAGS[path.suffix[1:]]):
            with may_refuse(f"read for {task}"):
                names = ["score"] if task == "score" else ["a", "b"]
                examples = read_examples(path, names, task=task, limit=ROWS)
                assert examples.labels is not None
                assert len(examples.labels) == len(examples.inputs)

    more = seeds_of("arrays") if path.suffix == ".npz" else ()
    return Target(run, SEEDS[path.suffix[1:]] + more, deep=path.suffix == ".jsonl")


def _npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def _npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def _archive(array: bytes) -> bytes:
    """Archive ``.npz`` with one array ``x`` of any bytes."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x.npy", array)
    return file.getvalue()


ENGINE = {
    "schema": 1, "library": "tensorrt-rtx", "version": "1.4.0.76", "precision": "fp16",
    "profiles": [{"input_ids": [[1, 8], [8, 64], [32, 128]]}], "compute_capabilities": ["8.9"], "platform": "linux",
    "onnx": "model.fp16.onnx", "onnx_sha256": "0" * 64, "engine_sha256": "1" * 64, "version_compatible": False,
    "hardware_compatibility": "none", "stripped": False, "refittable": False, "attention_blocks": 2, "fused": [2],
    "layers": [9],
}  # fmt: skip
TRACED = {
    "traced": 1, "family": "swin", "model_class": "SwinForImageClassification", "form": "sliced", "modality": "image",
    "classes": 3, "width": 16, "classifier": "classifier", "inputs": ["pixel_values"], "channels": 3,
    "image_height": 8, "image_width": 8,
    "blocks": [{"heads": 2, "groups": 2, "head_width": 8, "output": "a.b.output", "inputs": ["a.q", "a.k", "a.v"],
                "stacked": False, "owner": ""}],
}  # fmt: skip
SEEDS: dict[str, tuple[bytes, ...]] = {
    "architecture": (json.dumps(TRACED).encode(),),
    "engine": (json.dumps(ENGINE).encode(),),
    "journal": (
        b'{"names": ["plan.json"], "gone": ["a.json"], "fresh": [], "forward": true}',
        b'{"names": ["plan.json", "deep/b.json"], "gone": [], "fresh": ["deep/b.json"], "forward": false}',
        b'{"names": ["a\\u0000/b"], "gone": ["../beside.json"], "fresh": [], "forward": true}',
        b'{"names": [], "gone": ["a\\ud800/b"], "fresh": [], "forward": true}',
    ),
    "csv": (
        b'text,label\n"a, ""b""",1\nc,two\n',
        b"text,label\na,a\nb,b\n",
        b"text,label\na,0.5\nb,2\n",
        b'text,label\na,"[""a"", ""b""]"\nb,"[""a""]"\n',
        b'text,label\na,"[""a"", ""b""]"\nb,a\n',
        "text;label\nä;1\n".encode("utf-16"),
    ),
    "tsv": (b"text\tlabel\na\t1\n", b"text\tlabel\na\tb\n", b"text\tlabel\na\ta|b\nb\t\n", b"text\tlabel\na\t0.5\n"),
    "jsonl": (
        b'{"text": "a", "label": 1}\n{"text": ["a", "b"], "label": null}\n',
        b'[{"text": "a"}]',
        b'{"text": "a", "label": "a"}\n{"text": "b", "label": ["a", "b"]}\n',
        b'{"text": "a", "label": 0.5}\n{}\n',
        b'{"text": "a", "label": 1}\n{"text": "b", "label": 0}\n',
        b'{"text": "a", "label": 0.5}\n{"text": "b", "label": 1e3}\n',
        b'{"tokens": ["a", "b"], "label": ["a", "b"]}\n{"tokens": ["c"], "label": ["b"]}\n',
    ),
    "conll": (b"-DOCSTART- -X- O\n\nEU B-ORG\nrejects O\n\n", b"EU a\nrejects b\n\nalpha b\n"),
    "npz": (
        _npz(x=np.zeros((2, 4, 4, 3), np.uint8), y=np.arange(2)),
        _npz(input_ids=np.ones((2, 3), np.int64), attention_mask=np.ones((2, 3), np.int64)),
        _npz(x=np.array(["a", "b"])),
        _npy(np.array([["a", "b"], ["ab", ""]])),
        _npy(np.zeros((1, 4, 4, 3), np.uint8)),
    ),
}
