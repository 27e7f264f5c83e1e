"""``hydrant triton``: write a bundle as models of a Triton repository, atomically, beside other versions."""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...bundle import staging
from ...bundle.hub_download import bundle_name
from ...bundle.manifest import MANIFEST
from ...bundle.store import Bundle, resolve
from ...bundle.strict_json import to_json_bytes
from ...data.specs import Spec, decode
from ...errors import InputError, check_whole, cut, listing
from ...version import __version__
from . import model_files
from .model_files import Device, Model, Source, TritonSettings
from .triton_forms import Engine, engine_for, ensemble_models, whole_model
from .triton_tensors import TensorSpec

log = logging.getLogger(__name__)
README = "README.md"
MARKER = "hydrant-triton.json"  # marks a version's folder as hydrant's, and lists its tensors
STAGE = "hydrant-triton"  # purpose of the hidden staging folder
RUN_BY = {"cpu": ("fp32", "int8", "fp16"), "gpu": ("fp16", "fp32")}
"""ONNX Runtime's precisions on each device, in hydrant's order of preference."""


@dataclass(frozen=True)
class TritonModels:
    """The written models.

    Attributes:
        path: folder of the repository.
        name: name of the model that clients use.
        version: written version.
        device: target device.
        models: names of all models, the steps of an ensemble first.
        runs: backend of the graph: ``"hydrant"``, ``"onnxruntime"`` or ``"tensorrt"``.
        file: name of the graph or engine in the bundle.
        inputs, outputs: names of the clients' tensors.
        size: bytes of the files of this version.
    """

    path: Path
    name: str
    version: int
    device: str
    models: tuple[str, ...]
    runs: str
    file: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    size: int

    def to_json(self) -> dict[str, Any]:
        """The fields as a JSON object."""
        lists = {name: list(getattr(self, name)) for name in ("models", "inputs", "outputs")}
        return {**vars(self), **lists, "path": str(self.path)}


def triton_repository(
    bundle: Bundle | str | Path,
    output: str | Path,
    device: Device = "cpu",
    settings: TritonSettings = TritonSettings(),
    *,
    name: str | None = None,
    version: int = 1,
    force: bool = False,
) -> TritonModels:
    """Write a bundle as a model of a Triton model repository.

    For the CPU, one model runs the whole predictor in Triton's Python backend. For the GPU, an ensemble prepares
    tensors, runs the graph in Triton's ONNX Runtime or TensorRT backend, and decides. Other models and versions in the
    repository stay. Triton must not load from it meanwhile (as with ``--model-control-mode=poll``).

    Args:
        bundle: bundle folder. In Python also an open ``Bundle``.
        output: model repository: a folder, created if absent.
        device: target: cpu (one Python model) or gpu (ensemble with the graph on the GPU). For cpu, one model holds the
            whole predictor.
        settings: Triton's settings.
        name: name of the model (default: the name of the bundle folder).
        version: version of the model, a whole number from 1.
        force: replace this version of the model if it exists.

    Raises:
        InputError: an invalid option or output folder, a missing graph, or other tensors than another version's.
        BundleError: a file of the bundle is missing, altered or inconsistent.
    """
    model_files.check_device(device, settings)
    check_whole("version", version, 1)
    bundle, repository = resolve(bundle), Path(output)
    if (repository.exists() or repository.is_symlink()) and not repository.is_dir():
        raise InputError(f"{repository} exists and is not a folder; choose another output folder")
    if repository.resolve().is_relative_to(bundle.path.resolve()):
        raise InputError(f"{repository} is inside the bundle; choose another output folder")
    name = bundle_name(bundle.path) if name is None else name
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,199}", name):
        raise InputError(f"name is {cut(name)}; expected letters, digits, '_', '-' and '.'; give another --name")
    version = int(version)
    models, source, engine = _models(bundle, device, name, version, settings)
    entry = models[-1]
    models[-1] = replace(entry, files={**entry.files, README: readme(source, models, version, engine)})
    return TritonModels(
        path=repository, name=name, version=version, device=device, models=tuple(model.name for model in models),
        runs="hydrant" if device == "cpu" else "onnxruntime" if engine is None else "tensorrt",
        file=source.graph if engine is None else f"engines/{engine.name}.engine",
        inputs=tuple(spec.name for spec in entry.inputs), outputs=tuple(spec.name for spec in entry.outputs),
        size=_write(repository, models, version, bundle, force),
    )  # fmt: skip


def _models(
    bundle: Bundle, device: str, name: str, version: int, settings: TritonSettings
) -> tuple[list[Model], Source, Engine | None]:
    """The models to write (last the one that clients use), their source, and their engine."""
    engine = engine_for(bundle, settings) if device == "gpu" else None
    precision = settings.precision if engine is None else engine.facts.precision
    if engine is None and precision not in (None, *RUN_BY[device]):
        expected = f"{listing(RUN_BY[device])} (ONNX Runtime on the {device})"
        raise InputError(f"precision is {cut(precision)}; expected one of {expected}")
    source = Source.read(bundle, *(RUN_BY[device] if precision is None else (precision,)))
    if device == "cpu":
        return [whole_model(source, name, settings)], source, None
    if engine is not None and settings.max_batch > engine.max_batch:
        log.warning("max_batch reduced to %d, the limit of engine %s", engine.max_batch, engine.name)
        settings = replace(settings, max_batch=engine.max_batch)
    return ensemble_models(source, name, version, settings, engine), source, engine


def _check_places(repository: Path, models: Iterable[Model], version: int, force: bool) -> None:
    """Refuse to replace foreign folders or existing versions, and to mix incompatible versions."""
    for model in models:
        place = repository / model.name
        if place.is_symlink() or (place.exists() and not place.is_dir()):
            raise InputError(f"{place} exists and is not a folder; choose another --name (name=…)")
        markers = _versions(place)
        for number, marker in markers.items():
            _check_version(place / str(number), marker, model, number == version)
        if version in markers and not force:
            raise InputError(f"{place / str(version)} exists; choose another version, or replace it with --force")


class Marker(Spec, frozen=True):
    """The content of :data:`MARKER`."""

    schema: int
    hydrant: str
    model: str
    part: str
    version: int
    bundle: dict[str, str]
    interface: dict[str, Any]


def _versions(place: Path) -> dict[int, Marker]:
    if not place.is_dir() or not any(place.iterdir()):
        return {}
    numbers = sorted(int(child.name) for child in place.iterdir() if child.name.isdecimal() and child.is_dir())
    files = {number: place / str(number) / MARKER for number in numbers}
    if not files or not all(file.is_file() for file in files.values()):
        raise InputError(f"{place} was not written by `hydrant triton`; choose another --name (name=…)")
    return {number: decode(file.read_bytes(), Marker, file, InputError) for number, file in files.items()}


def _check_version(place: Path, marker: Marker, model: Model, replaced: bool) -> None:
    """Refuse to add a model to a version of another form, or with another interface."""
    if marker.part != model.part:
        raise InputError(f"{place} has form {cut(marker.part)}, not {model.part!r}; choose another --name (name=…)")
    ours, theirs = model.interface(), marker.interface
    if not replaced and (key := next((key for key in {**ours, **theirs} if ours.get(key) != theirs.get(key)), "")):
        old, new = _only(theirs.get(key), ours.get(key)), _only(ours.get(key), theirs.get(key))
        fix = "versions of a model share one config.pbtxt: choose another --name (name=…)"
        raise InputError(f"{place} has other {key} than this bundle: {old}, not {new}; {fix}")


def _only(one: Any, other: Any) -> str:
    """The items of ``one`` that ``other`` lacks; all items if only their order differs."""
    items, others = (value if isinstance(value, list) else [value] for value in (one, other))
    return listing([item for item in items if item not in others] or items)


def _write(repository: Path, models: Sequence[Model], version: int, bundle: Bundle, force: bool) -> int:
    """Stage all models, then move each into place atomically; returns the bytes of the version's files."""
    facts = {"name": bundle_name(bundle.path), "manifest_sha256": staging.sha256_of(bundle.path / MANIFEST)}
    folders: dict[Path, Path] = {}
    size = 0
    told = staging.telling(f"cannot write into {repository}")
    with told, staging.folders_above(repository / README), staging.locked(repository):
        _check_places(repository, models, version, force)  # another process may have written since
        staging.sweep(_staging(repository), STAGE)
        with staging.owned_folder(_staging(repository), STAGE) as stage:
            for model in models:
                place, staged = repository / model.name, stage / model.name
                marker = Marker(1, __version__, model.name, model.part, version, facts, model.interface())
                ours = {**model.version_files, MARKER: to_json_bytes(marker)}
                staging.fill(staged / str(version), ours)
                size += sum((staged / str(version) / file).stat().st_size for file in ours)
                staging.fill(staged, {model_files.CONFIG: model.config_text().encode(), **model.files})
                if not set(_versions(place)) <= {version}:
                    _keep_others(place, staged, version)
                folders[place] = staged
            with staging.uninterrupted():
                staging.place_folders(folders)
    return size


def _staging(repository: Path) -> Path:
    """The staging folder: beside the repository if possible, because Triton treats its folders as models."""
    beside = repository.absolute().parent
    return beside if os.access(beside, os.W_OK) and beside.stat().st_dev == repository.stat().st_dev else repository


def _keep_others(place: Path, staged: Path, version: int) -> None:
    """Link the other versions of a model into its staged folder."""

    def superseded(folder: str, names: list[str]) -> list[str]:
        target = staged / Path(folder).relative_to(place).as_posix()
        ours = {path.name for path in target.iterdir() if not path.is_dir()} if target.is_dir() else set()
        return [name for name in names if name in ours or (Path(folder) == place and name == str(version))]

    shutil.copytree(place, staged, symlinks=True, ignore=superseded, copy_function=staging.link, dirs_exist_ok=True)


def readme(source: Source, models: Sequence[Model], version: int, engine: Engine | None) -> bytes:
    """The README of a model: install, start, request, measure, roll back."""
    entry, steps = models[-1], ", ".join(f"`{model.name}`" for model in models[:-1])
    graph = "" if not steps else " and its ONNX Runtime backend" if engine is None else " and its TensorRT backend"
    rollback = ENSEMBLE_ROLLBACK.format(name=entry.name, version=version) if steps else ROLLBACK
    return model_files.template(
        "README.md.txt",
        name=entry.name, hydrant=__version__, next=version + 1, rollback=rollback, environment=model_files.ENVIRONMENT,
        form=f"an ensemble of the models {steps}" if steps else "the whole predictor in Triton's Python backend",
        release="24.12",  # the first whose Python backend reads NumPy 2
        needs=f"its Python backend{graph}", engine="" if engine is None else _engine_lines(engine),
        libraries="hydrant's core" if steps else "hydrant and ONNX Runtime", extra="" if steps else "[onnxruntime]",
        request=_request(source, entry), outputs=_tensor_lines(entry.outputs),
        data=model_files.PERF if model_files.PERF in entry.files else "zero",
        models=", then ".join(f"`{model.name}`" for model in models),
    )  # fmt: skip


ENSEMBLE_ROLLBACK = """The steps serve all their versions; the ensemble serves
version {version}, named in its `config.pbtxt`. Each version's folder has its own `config.pbtxt` for the ensemble: to
roll back, copy an older one over `config.pbtxt`, and load `{name}` again."""

ROLLBACK = """Triton serves all versions; the largest one is the
default. To roll back, request an older version, or remove the newer one's folder and load the model again."""


def _engine_lines(engine: Engine) -> str:
    facts = engine.facts
    later = " or later (`--backend-config=tensorrt,version-compatible=true`)" if facts.version_compatible else ""
    return (
        f"- `model.plan` is the engine {engine.name}, {facts.precision}: TensorRT {facts.version}{later},\n"
        f"  compute capability {', '.join(facts.compute_capabilities)}. For other GPUs or versions, run\n"
        "  `hydrant build` there, and write the model again.\n"
    )


def _tensor_lines(specs: Sequence[TensorSpec]) -> str:
    kinds = {spec.name: spec.datatype.replace("TYPE_STRING", "TYPE_BYTES")[5:] for spec in specs}
    return "\n".join(f"- `{spec.name}`: {kinds[spec.name]} [batch, {', '.join(map(str, spec.dims))}]" for spec in specs)


def _request(source: Source, model: Model) -> str:
    """A request with curl; for images only the inputs."""
    if source.architecture.modality == "image":
        return _tensor_lines(model.inputs)
    names = [spec.name for spec in model.inputs if not spec.optional or source.pairs]
    ready = {"datatype": "INT64", "shape": [1, model_files.TOKENS]}
    tensors: list[dict[str, Any]] = [{"name": name, **ready} for name in names]
    for tensor in tensors:
        text = {"datatype": "BYTES", "shape": [1, 1], "data": [model_files.SHORT]}
        tensor.update(text if source.raw else {"data": [int("mask" in tensor["name"])] * model_files.TOKENS})
    address = f"http://127.0.0.1:8000/v2/models/{model.name}/infer"
    return f"```sh\ncurl -s {address} -d {shlex.quote(json.dumps({'inputs': tensors}))}\n```"
