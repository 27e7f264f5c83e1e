"""Golden data of engines for the C++ runner: bundles with fake engines, and Python's choices and batch splits.

``make_golden`` writes them into its cases: ``engines/NAME`` are bundles with fake engines, which the C++ tests' fake of
TensorRT runs; ``choices.json`` and ``parts.json`` contain Python's choices and splits.
"""

import itertools
import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fake_tensorrt import MAGIC, put_engine, text_profile
from hydrant import Bundle, HydrantError
from hydrant.engines.metadata import Profile
from hydrant.runtime.backends.tensorrt.choose import Machine, choose_engine, read_engine
from hydrant.runtime.backends.tensorrt.profiles import Profiles
from support import relabel

VERSION = "11.1.0.106"
"""Version of the C++ tests' fake TensorRT."""

GRAPH = "model.fp32.onnx"
TEXT = ("input_ids", "attention_mask", "token_type_ids")
SMALL = text_profile((1, 1, 1), (4, 8, 12), TEXT)
LARGE = text_profile((2, 4, 6), (16, 16, 24), TEXT)
PADDED = text_profile((4, 4, 4), (4, 8, 12), TEXT)
IMAGES: Profile = {"pixel_values": ((2, 3, 12, 12), (2, 3, 12, 12), (4, 3, 12, 12))}

FAULTS = ("run", "context", "profile", "address", "type", "memory")
MACHINES = [
    Machine("tensorrt", VERSION, "8.9"),
    Machine("tensorrt", VERSION, "12.0"),
    Machine("tensorrt", VERSION, None),
    Machine("tensorrt", "10.13.2.6", "7.5"),
    Machine("tensorrt-rtx", VERSION, "8.9"),
    Machine("tensorrt-rtx", VERSION, "9.0"),
    Machine("tensorrt-rtx", VERSION, "7.5"),
]


def make_engines(folder: Path) -> None:
    """Write all data into the cases ``bert``, ``roberta`` and ``vit`` of the golden folder."""
    bundles = {name: with_engine(folder / "bert", name, *changes) for name, changes in BUNDLES.items()}
    for fault in FAULTS:
        with_engine(folder / "bert", f"fault {fault}", plan(fault=fault))
    with_engine(folder / "bert", "unlike", plan(header=[PADDED]))
    with_engine(folder / "bert", "magic", plan(magic=b"another\n"))
    with_engine(folder / "roberta", "fits", plan(profiles=[text_profile((2, 2, 8), (16, 16, 24), TEXT[:2])]))
    with_engine(folder / "vit", "fits", plan(profiles=[IMAGES]))
    choices = [
        choice(bundles[name], machine, precision)
        for name, machine, precision in itertools.product(bundles, MACHINES, (None, "fp32", "fp16", "int8"))
    ]
    (folder / "bert/choices.json").write_text(json.dumps(choices))
    (folder / "bert/parts.json").write_text(json.dumps(all_parts()))


Change = Callable[[Bundle], None]


def plan(
    name: str = "tensorrt-fp32",
    fault: str = "",
    header: list[Profile] | None = None,
    magic: bytes = MAGIC,
    metadata: Callable[[dict[str, Any]], Any] = lambda data: None,
    **changes: Any,
) -> Change:
    """Return a change that adds a fake engine and metadata; ``header`` overrides the engine's profiles."""

    def add(bundle: Bundle) -> None:
        profiles = changes.get("profiles", [SMALL, LARGE])
        first = json.dumps({"profiles": header or profiles, "fault": fault}).encode()
        engine = magic + first + b"\n" + (bundle.path / GRAPH).read_bytes()
        facts = {"version": VERSION, "profiles": profiles, **changes}
        put_engine(bundle, name, engine, GRAPH, facts, metadata)

    return add


FP16 = plan("tensorrt-fp16", precision="fp16", onnx="model.fp16.onnx")
BUNDLES: dict[str, tuple[Change, ...]] = {
    "none": (),
    "fits": (plan(),),
    "small": (plan(profiles=[SMALL]),),
    "padded": (plan(profiles=[PADDED]),),
    "no graph": (plan(), FP16),
    "stale": (plan(onnx_sha256="0" * 64), plan("b", onnx_sha256="1" * 64)),
    "second": (plan("a", version="1"), plan("b")),
    "names": (plan("a"), plan("a-b"), plan("a.b")),
    "longest": (plan("a", profiles=[PADDED]), plan("b", profiles=[SMALL, LARGE])),
    "largest": (plan("a", profiles=[SMALL]), plan("b", profiles=[PADDED])),
    "platform": (plan(platform="linux-riscv64"),),
    "version": (plan(version="10.9.0.34", version_compatible=True),),
    "gpu": (plan(compute_capabilities=("8.6", "12.0"), refittable=True),),
    "any gpu": (plan(compute_capabilities=()),),
    "ampere": (plan(compute_capabilities=("8.0",), hardware_compatibility="ampere+"),),
    "rtx": (plan("it's mine", library="tensorrt-rtx", compute_capabilities=("8.6", "8.9"), stripped=True),),
    "both": (plan(), plan("rtx", library="tensorrt-rtx", profiles=[SMALL, SMALL], compute_capabilities=("7.5",))),
    "stripped": (plan(stripped=True),),
    "stripped and whole": (plan("a", stripped=True), plan("b")),
    "digest": (plan(engine_sha256="0" * 64),),
    "contradiction": (lambda bundle: relabel(bundle.path, members="2"), plan()),
    "schema": (plan(metadata=lambda data: data.update(schema=2)),),
    "keys": (plan(metadata=lambda data: (data.pop("version"), data.update(extra=1, stripped="no"))),),
    "library": (plan(library="tensorflow"),),
    "profiles": (plan(metadata=lambda data: data.update(profiles=[])),),
    "profile": (plan(metadata=lambda data: data.update(profiles=[{"input_ids": [[1, 2], [3, 4]]}])),),
    "size": (plan(metadata=lambda data: data.update(profiles=[{"input_ids": [[1, 0], [3, 4], [5, 6]]}])),),
}  # fmt: skip


def with_engine(case: Path, name: str, *changes: Change) -> Path:
    """A copy of a case's bundle, with engines."""
    path = shutil.copytree(case / "bundle", case / "engines" / name)
    for change in changes:
        change(Bundle.open(path))
    return path


def choice(path: Path, machine: Machine, precision: str | None) -> dict[str, Any]:
    """Python's choice or type of error; ``{bundle}`` replaces the bundle's folder."""
    request = {"bundle": path.name, **vars(machine), "precision": precision}
    bundle = Bundle.open(path)
    try:
        chosen = choose_engine(bundle, machine, precision)
        read_engine(bundle, chosen)
    except HydrantError as error:
        return request | {"error": type(error).__name__}
    return request | {"name": chosen.name, "rebuild": chosen.rebuild.replace(shlex.quote(str(path)), "{bundle}")}


def all_parts() -> list[dict[str, Any]]:
    """Splits of batches of many sizes by engines with several profiles."""
    engines = [[SMALL], [LARGE], [PADDED], [SMALL, LARGE], [LARGE, SMALL, PADDED], [IMAGES]]
    entries = []
    for profiles, rows, tokens in itertools.product(engines, (1, 2, 3, 6, 7, 13, 32), (1, 4, 9, 12, 13, 24, 25)):
        number = None if profiles == [IMAGES] else tokens
        command = "hydrant build out --sequence 4:8:12 --precision fp32"
        entry: dict[str, Any] = {"profiles": profiles, "rebuild": command.split(), "rows": rows, "tokens": number}
        split = Profiles(profiles, command)
        entry |= {"longest": split.longest, "largest": split.largest(rows, number)}
        try:
            entry["parts"] = [vars(part) for part in split.parts(rows, number)]
        except HydrantError as error:
            entry["text"] = str(error)
        entries.append(entry)
    return entries
