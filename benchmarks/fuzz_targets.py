"""What is fuzzed: every reader of what comes from elsewhere, with the seeds that its corpus begins with.

A target takes bytes. It reads them as one file of a bundle (its digest fixed in the manifest, as an attacker would), as
data of a user, as what an interrupted command left (fuzz_kept.py), or as a request (fuzz_asked.py). It may refuse them
with one of hydrant's errors; whatever else is raised is a finding, and so is what is taken and then does not say the
same twice, or holds numbers that are not finite.
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
from fuzz_asked import asked
from fuzz_kept import kept
from fuzz_target import Made, Target, begun, may_refuse, seeds_of
from hydrant.bundle.calibration import Calibration
from hydrant.bundle.density import Density
from hydrant.bundle.graphs import check_graph
from hydrant.bundle.journal import JOURNAL, NEW, PURPOSE
from hydrant.bundle.manifest import MANIFEST
from hydrant.bundle.onnx_message import graph_tensors
from hydrant.bundle.plan import HeadPlan
from hydrant.bundle.store import ARCHITECTURE, CALIBRATION, DENSITY, PLAN, WEIGHTS, Bundle
from hydrant.bundle.tasks import TASKS, Task
from hydrant.bundle.traced import CHECKPOINT
from hydrant.bundle.verification import REPORT
from hydrant.bundle.weights import check_fused
from hydrant.cli.inspect import inspect_bundle
from hydrant.cli.inspection_text import inspect_text
from hydrant.cli.terminal import json_lines
from hydrant.data.arrays import read_npz
from hydrant.data.columns import Columns
from hydrant.data.examples import read_examples
from hydrant.data.readers import stream_rows
from hydrant.data.words import WordProcessor
from hydrant.engines.metadata import read_metadata
from hydrant.errors import BundleError

GRAPH = "model.fp32.onnx"

ROWS = 200
"""So many rows of a data file are read; a reader streams, so that more say nothing new."""
EVERY, ALWAYS = 64, 2
"""Of the original models that were made, every so many predict, for it takes most of the time, and the first two: a
process that repeats a finding has read one seed before."""
TAGS = {"csv": (False,), "tsv": (False,), "conll": (True,), "jsonl": (False, True), "npz": (False,)}
"""Whether files of an ending hold texts, or words with their tags, or both."""


def targets(place: Path) -> dict[str, Made]:
    """Every target by its name.

    Args:
        place: what ``fuzz_bundle.make_given`` made there; where each target keeps its files, too.
    """
    return {**_bundled(place / "bundle", place), **_data(place), **kept(place), **asked(place)}


def copy(bundle: Path, place: Path, name: str) -> Path:
    """A bundle for one target alone."""
    folder = place / "bundles" / name
    if not folder.exists():
        shutil.copytree(bundle, folder)
    return folder


def _bundled(bundle: Path, place: Path) -> dict[str, Made]:
    """Files of a bundle."""
    files: dict[str, tuple[str, Callable[[Bundle], Any], tuple[str, ...]]] = {
        "plan": (PLAN, _plan, ("plan",)),
        "architecture": (ARCHITECTURE, lambda bundle: bundle.any_architecture(), ("architecture",)),
        "calibration": (CALIBRATION, _calibration, ("calibration",)),
        "density": (DENSITY, _density, ()),
        "weights": (WEIGHTS, _weights, ()),
        "tokenizer": ("processor/tokenizer.json", _processor, ()),
        "tokenizer-settings": ("processor/tokenizer_config.json", _processor, ()),
        "engine": ("engines/one.json", _engine, ("engine",)),
        "graph": (GRAPH, _graph, ("graph",)),
    }
    found: dict[str, Made] = {"manifest": partial(_manifest, bundle, place)}
    for name, (file, use, more) in files.items():
        found[name] = partial(_forged, bundle, place, name, file, use, more)
    use = partial(_checkpoint, _tensors(), itertools.count())
    found["checkpoint"] = partial(begun, partial(_forged, place / "traced", place, "checkpoint", CHECKPOINT, use, ()))
    found["verified"] = partial(begun, partial(_verified, bundle, place))
    beside = (ARCHITECTURE, PLAN, CALIBRATION, WEIGHTS)  # what `inspect` needs: further files take long to look at
    for name, file, needed in (("weights", WEIGHTS, beside), ("graph", GRAPH, (*beside, DENSITY))):
        small = partial(_few, bundle, place / "bundles" / f"inspected-{name}", needed)
        found[f"inspected-{name}"] = partial(begun, partial(_inspected, small, place, file))
    for name in ("weights", "inspected-weights"):
        found[name] = partial(_header, found[name])
    found["journal"] = partial(_journal, bundle, place)
    return found


def _header(whole: Made) -> Target:
    """A safetensors file of which only what stands before the numbers is damaged: of these any are as good."""
    target = whole()
    (seed,) = target.seeds
    length = 8 + int.from_bytes(seed[:8], "little")
    return Target(lambda data: target.read(data + seed[length:]), (seed[:length],))


def _data(place: Path) -> dict[str, Made]:
    """Files of rows."""
    return {ending: partial(_rows, place / f"data.{ending}") for ending in ("csv", "tsv", "jsonl", "conll", "npz")}


def _forged(
    bundle: Path, place: Path, name: str, file: str, use: Callable[[Bundle], Any], more: Sequence[str]
) -> Target:
    """Reads a bundle in which one file is what is given, with the digest that fits."""
    folder = copy(bundle, place, name)
    manifest = json.loads((folder / MANIFEST).read_bytes())
    (folder / file).parent.mkdir(exist_ok=True)

    def run(data: bytes) -> None:
        (folder / file).write_bytes(data)
        with may_refuse("use"):
            use(Bundle(folder, _fixed(folder, manifest, file, data)))

    seed = place / file if file.endswith(".onnx") else bundle / file
    own = SEEDS[name] if name in SEEDS else (seed.read_bytes(),)
    return Target(run, (*own, *(seed for other in more for seed in seeds_of(other))), deep=file.endswith(".json"))


def _fixed(folder: Path, manifest: Mapping[str, Any], file: str, data: bytes) -> dict[str, Any]:
    """A manifest with the size and digest of a file as it is now; it is written, too, since some read it anew."""
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
    """Opens a bundle in which a writer is said to have been killed; what lies beside the bundle stays as it is."""
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
    found = Calibration.of(bundle)
    assert 0 < found.temperature < float("inf")
    assert all(np.isfinite(each.value) for each in found.thresholds.values())


def _density(bundle: Bundle) -> None:
    found = Density.of(bundle)
    assert found is not None
    assert all(np.isfinite(array).all() for array in found.arrays().values())


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
    found = read_metadata(bundle, "one")
    assert type(found).from_json(json.loads(json.dumps(found.to_json())), "again") == found


def _graph(bundle: Bundle) -> None:
    """What the graph says of itself, against the bundle, and its inputs and outputs."""
    with contextlib.suppress(ValueError):  # no ONNX file
        for tensor in (each for side in graph_tensors(bundle.path / GRAPH) for each in side):
            assert all(axis is None or axis >= 0 for axis in tensor.shape)
    check_graph(bundle, GRAPH)


def _tensors() -> dict[str, np.ndarray]:
    """Two texts as token ids; the second is shorter."""
    mask = np.array([[1, 1, 1, 1], [1, 1, 0, 0]])
    return {"input_ids": mask * np.arange(3, 7), "attention_mask": mask}


@cache
def _stored(path: Path) -> dict[str, Any]:
    """The weights of a bundle, which stay as they are."""
    from safetensors.torch import load_file

    return load_file(path)


def _checkpoint(tensors: dict[str, np.ndarray], calls: Iterator[int], bundle: Bundle) -> None:
    """The original is made again of its configuration, with the weights of the bundle, and now and then predicts."""
    from hydrant import load
    from hydrant.tracing.stored import load_original

    architecture, stored = bundle.any_architecture(), _stored(bundle.path / WEIGHTS)
    made = load_original(bundle, architecture).state_dict()
    assert made.keys() == stored.keys()
    assert all(bool((made[name] == tensor).all()) for name, tensor in stored.items())
    if (number := next(calls)) >= ALWAYS and number % EVERY:
        return
    with load(bundle, "torch") as predictor:
        found = predictor.predict(tensors)
    np.testing.assert_allclose(found.probabilities.sum(axis=1), 1, atol=1e-5)


def _verified(bundle: Path, place: Path) -> Target:
    """The report of `verify`, as `inspect` tells it: what it says passed did so, and of these very files."""
    small = place / "bundles" / "verified"  # of one file: the others take long to look at
    manifest = json.loads((bundle / MANIFEST).read_bytes())
    manifest["files"] = {PLAN: manifest["files"][PLAN]}
    digests = {name: entry["sha256"] for name, entry in manifest["files"].items()}
    (small / REPORT).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(bundle / PLAN, small)

    def run(data: bytes) -> None:
        (small / REPORT).write_bytes(data)
        _fixed(small, manifest, REPORT, data)
        facts = inspect_bundle(small)
        assert facts["files"][REPORT]["state"] != "altered"
        inspect_text(facts)
        json.dumps(facts)
        with may_refuse("tell what passed"):
            if not facts["verified"].startswith("passed: "):
                raise BundleError(facts["verified"])
            told = json.loads(data)
            assert told["files"].items() >= digests.items()
            for each in facts["verified"].split(" (against")[0].split(";")[0].removeprefix("passed: ").split(", "):
                assert any(f"{one['backend']} {one['precision']}" == each and one["passed"] for one in told["backends"])

    gate = {"name": "max_abs", "value": 1e-6, "limit": 1e-4, "passed": True}
    backend = {"backend": "onnxruntime", "precision": "fp32", "outputs": {"probabilities": {"max_abs": 1e-6}},
               "agreement": {"labels": 1.0}, "tolerances": {}, "gates": [gate], "bisection": None,
               "passed": True}  # fmt: skip
    report = {"hydrant": "0.2.0", "passed": True, "reference": "torch", "inputs": "256 synthetic inputs",
              "files": digests, "backends": [backend], "skipped": []}  # fmt: skip
    failed = {**report, "passed": False, "backends": [backend, {**backend, "backend": "openvino", "passed": False}]}
    old = {**report, "files": {**digests, PLAN: "0" * 64}}
    return Target(run, tuple(json.dumps(each).encode() for each in (report, failed, old)), deep=True)


def _few(bundle: Path, folder: Path, names: Sequence[str]) -> Path:
    """A bundle of some files of another."""
    manifest = json.loads((bundle / MANIFEST).read_bytes())
    manifest["files"] = {name: manifest["files"][name] for name in names}
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        shutil.copy(bundle / name, folder)
    (folder / MANIFEST).write_text(json.dumps(manifest))
    return folder


def _inspected(made: Callable[[], Path], place: Path, file: str) -> Target:
    """What `inspect` tells of a bundle that has this file: that it is unusable, or what it tells of the whole one."""
    folder = made()
    whole = (place / file if file == GRAPH else folder / file).read_bytes()
    manifest = json.loads((folder / MANIFEST).read_bytes())

    def told(data: bytes) -> dict[str, Any]:
        (folder / file).write_bytes(data)
        _fixed(folder, manifest, file, data)
        facts = inspect_bundle(folder)
        assert inspect_text(facts)
        assert json_lines([facts])
        return facts

    def run(data: bytes) -> None:
        facts = told(data)
        state = facts["files"][file]["state"]
        assert (state == "unusable") == bool(facts["problems"])
        with may_refuse("tell what it holds"):
            if state != "ok":
                raise BundleError(facts["problems"][0])
            assert all(facts[key] == right[key] for key in facts.keys() - {"files", "graphs"})
            assert all(words.startswith("opset ") for words in facts["graphs"].values())

    right = told(whole)
    return Target(run, (whole, *(seeds_of("graph") if file == GRAPH else ())))


def _rows(path: Path) -> Target:
    """Rows to predict, or labelled ones of a task, which the number of bytes chooses: seeds come in several lengths.

    Of ``.npz`` files, which are read as both, the arrays are damaged as well: in the archive a checksum would tell.
    """

    def stream() -> None:
        with may_refuse("stream"):
            for _ in itertools.islice(stream_rows(path, Columns()), ROWS):
                pass

    def arrays() -> None:
        with may_refuse("read arrays"):
            read_npz(path)

    def examples(task: Task) -> None:
        with may_refuse(f"read for {task}"):
            found = read_examples(path, ["score"] if task == "score" else ["a", "b"], task=task, limit=ROWS)
            assert found.labels is not None
            assert len(found.labels) == len(found.inputs)

    tasks = [task for task in TASKS if (task == "tokens") in TAGS[path.suffix[1:]]]
    uses = [stream, *(partial(examples, task) for task in tasks)]

    def run(data: bytes) -> None:
        archived = path.suffix == ".npz" and not data.startswith(b"PK")
        path.write_bytes(_archive(data) if archived else data)
        for use in (stream, arrays) if path.suffix == ".npz" else (uses[len(data) % len(uses)],):
            use()

    seeds = SEEDS[path.suffix[1:]]
    if path.suffix == ".npz":
        return Target(run, seeds + seeds_of("arrays"))
    padded = (seed + b"\n" * more for seed in seeds for more in range(len(uses)))
    return Target(run, tuple(padded), deep=path.suffix == ".jsonl")


def _npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def _npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def _archive(array: bytes) -> bytes:
    """A whole ``.npz`` file of one array ``x``, whatever that is."""
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
