"""The bundle: one folder with everything that a fused ensemble needs to run (docs/reference/bundle.md)."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any

from ..data.processor import Processor, load_processor
from ..errors import BundleError, InputError, PlanError, listing
from . import staging
from .architecture import Architecture
from .head_plan import HeadPlan
from .hub_download import Snapshot, contains, local_folder
from .manifest import MANIFEST, MAX_MANIFEST_BYTES, SCHEMA, check_apart, read_manifest, safe_name, validated
from .strict_json import from_json_bytes, to_json_bytes
from .traced import LACKS, AnyArchitecture, read_architecture

WEIGHTS = "fused.safetensors"
ARCHITECTURE = "config.json"
PLAN = "plan.json"
CALIBRATION = "calibration.json"
DENSITY = "density.safetensors"
PROCESSOR = "processor"
ENGINES = "engines"
TOKENIZER_GRAPH = "tokenizer.onnx"
MEANWHILE = "was changed by another process meanwhile; run the command again"


def onnx_name(precision: str) -> str:
    """File name of the ONNX graph of a precision, for example ``model.fp32.onnx``."""
    return f"model.{precision}.onnx"


@dataclass(frozen=True)
class Bundle:
    """A bundle on disk, with its manifest read and validated; a file is checked whenever it is read.

    Attributes:
        path: the folder.
        manifest: the decoded ``hydrant.json``.

    Raises:
        BundleError: from every method that reads: a file is not listed, missing, altered, malformed, or replaced by
            another process since the bundle was opened; or its download failed.
    """

    path: Path
    manifest: Mapping[str, Any]

    @classmethod
    def open(cls, path: str | Path) -> Bundle:
        """Open a folder, after completing the writes that a killed process left unfinished (``staging.py``)."""
        folder = Path(path)
        if folder.is_dir():
            staging.recover(folder)
        return cls(folder, read_manifest(folder))

    @property
    def family(self) -> str:
        """Model family, for example ``"bert"``."""
        return str(self.manifest["family"])

    @property
    def members(self) -> int:
        """Number of ensemble members M."""
        return int(self.manifest["members"])

    @property
    def labels(self) -> list[str]:
        """Class names, in class order."""
        return list(self.manifest["labels"])

    def has(self, name: str) -> bool:
        """Return True if the manifest lists the file ``name`` (relative, with ``/``)."""
        return name in self.manifest["files"]

    def digests(self) -> dict[str, str]:
        """SHA-256 of every file except the reports, which describe the others: file name → digest."""
        files = self.manifest["files"]
        return {name: entry["sha256"] for name, entry in files.items() if not name.startswith("reports/")}

    def stated(self) -> dict[str, Any]:
        """The manifest without reports; bundles with equal manifests predict the same."""
        return {**self.manifest, "files": self.digests()}

    def file(self, name: str) -> Path:
        """Path of a file of the bundle, checked against the manifest."""
        with self._reporting(name):
            path = self._place(name)
            self._compare(name, staging.sha256_of(path))
        return path

    def read(self, name: str) -> bytes:
        """Bytes of a small file of the bundle, checked against the manifest."""
        with self._reporting(name):
            content = self._place(name).read_bytes()
            self._compare(name, sha256(content).hexdigest())
        return content

    def is_local(self, name: str) -> bool:
        """Return True unless the file ``name`` has still to be downloaded from the Hub."""
        return Snapshot.of(self.path) is None or (self.path / name).is_file()

    def fetch(self, name: str) -> None:
        """Download the file ``name`` of a bundle of the Hub, unless it is in the cache."""
        if not (self.path / name).is_file() and (snapshot := Snapshot.of(self.path)) is not None:
            snapshot.fetch(name)

    @contextmanager
    def _reporting(self, name: str) -> Iterator[None]:
        """Report files that another process has replaced since."""
        try:
            yield
        except BundleError:
            files = self.manifest["files"]
            with suppress(BundleError), self.kept() as now:
                files = now.manifest["files"]
            if files.get(name) != self.manifest["files"].get(name):
                raise BundleError(f"{self.path / name} {MEANWHILE}") from None
            raise

    def _place(self, name: str) -> Path:
        """Path of a file, after a check of its size."""
        entry = self.manifest["files"].get(name)
        if entry is None:
            remedy = "make the bundle again"
            if name.endswith(".onnx"):
                remedy = "make it with `hydrant export`"
            elif name == WEIGHTS:
                remedy = "this copy only predicts, so use the bundle that it was made from"
            raise BundleError(f"bundle {self.path} has no {name}; {remedy}")
        path = self.path / name
        self.fetch(name)
        if not path.is_file() or not contains(self.path, path):
            raise BundleError(f"{path} is listed in {MANIFEST} but is not a file there; make the bundle again")
        size = path.stat().st_size
        if size != entry["bytes"]:
            wrong = f"{path} has {size} bytes, but the manifest says {entry['bytes']}: it was truncated or altered"
            raise BundleError(f"{wrong}; {self._repair()}")
        return path

    def _compare(self, name: str, digest: str) -> None:
        expected = self.manifest["files"][name]["sha256"]
        if digest != expected:
            digests = f"its SHA-256 is {digest[:12]}…, but the manifest says {expected[:12]}…"
            raise BundleError(f"{self.path / name} was altered: {digests}; {self._repair()}")

    def _repair(self) -> str:
        """The remedy for an altered file."""
        if (snapshot := Snapshot.of(self.path)) is None:
            return "write it again with hydrant"
        return f"remove it with `hf cache rm model/{snapshot.repository}` and download it again"

    def read_json(self, name: str) -> Any:
        """Decode a JSON file of the bundle after checking its digest."""
        return from_json_bytes(self.read(name), self.path / name)

    def plan(self) -> HeadPlan:
        """The head plan that made this bundle."""
        try:
            return HeadPlan.from_json(self.read_json(PLAN))
        except PlanError as error:
            raise BundleError(f"{self.path / PLAN}: {error}; make the bundle again") from error

    def calibration(self) -> dict[str, Any]:
        """The decoded ``calibration.json``."""
        return dict(self.read_json(CALIBRATION))

    def architecture(self) -> Architecture:
        """Shapes and settings of the members' common model; ``InputError`` for a traced bundle."""
        architecture = self.any_architecture()
        if not architecture.is_declared:
            traced = f"bundle {self.path} is traced ({architecture.model_class})"
            raise InputError(f"{traced}, which does not support {LACKS}; expected a declared family")
        return architecture

    def any_architecture(self) -> AnyArchitecture:
        """Description of the members' common model, for declared and traced bundles."""
        return read_architecture(self.read_json(ARCHITECTURE))

    def processor(self) -> Processor | None:
        """Processor of raw inputs, or ``None`` for a bundle that takes tensors only; ``InputError`` if it misfits."""
        folder = self.processor_folder()
        return None if folder is None else load_processor(folder, self.any_architecture())

    def processor_for(self, use: str) -> Processor:
        """Processor of raw inputs; without one, the ``InputError`` says that the bundle cannot ``use``: a verb."""
        processor = self.processor()
        if processor is None:
            raise InputError(f"bundle {self.path} has no processor, so it cannot {use}; fuse with one")
        return processor

    def processor_folder(self) -> Path | None:
        """The checked processor folder, or ``None`` for a bundle that takes tensors only."""
        names = {name for name in self.manifest["files"] if name.startswith(f"{PROCESSOR}/")}
        for name in sorted(names):
            self.file(name)
        folder = self.path / PROCESSOR
        unlisted = {path.relative_to(self.path).as_posix() for path in folder.rglob("*") if path.is_file()} - names
        if unlisted:
            raise BundleError(f"{folder} holds {listing(sorted(unlisted))}, which {MANIFEST} does not list; remove it")
        return folder if names else None

    def state(self) -> tuple[int, int]:
        """Identity of the manifest file, which changes with the bundle; waits for other processes."""
        with self.kept():
            status = (self.path / MANIFEST).stat()
        return status.st_ino, status.st_mtime_ns

    def now(self) -> Bundle:
        """The bundle with its current manifest; interrupted writes are not completed."""
        return Bundle(self.path, read_manifest(self.path))

    @contextmanager
    def kept(self) -> Iterator[Bundle]:
        """The current bundle, locked against other processes until the block ends."""
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(staging.locked(self.path))
                staging.settle(self.path)
            except OSError as error:
                raise BundleError(f"bundle {self.path} is gone ({error.strerror or error})") from error
            yield self.now()

    def add(
        self, files: Mapping[str, bytes | Path], remove: Collection[str] = (), unchanged: Collection[str] = ()
    ) -> Bundle:
        """Put ``files`` (relative name → bytes, or a file on the same disk to move) into the bundle.

        Files are staged and digested in the folder, then renamed together with the new manifest, which keeps
        files that other processes have added since. On failure, the bundle is unchanged. A link in place of a
        file is replaced, never followed, so no write leaves the bundle.

        Args:
            files: to add or replace.
            remove: names of files to remove, if present.
            unchanged: names of files that ``files`` depend on; they must not have changed since the bundle was opened.

        Returns:
            The bundle with its new manifest.

        Raises:
            BundleError: a name leaves the folder, or is not unique on every system.
            InputError: the folder cannot be written, or a file in ``unchanged`` has changed.
        """
        self.check_own()
        inside = {self.path / above for name in files for above in PurePosixPath(name).parents}
        new_folders = sorted((folder for folder in inside if not folder.exists()), reverse=True)  # the innermost first
        staging.recover(self.path)
        try:
            with staging.stage_in(self.path) as stage:
                entries = {name: entry_of(staged(self.path, stage, name, content)) for name, content in files.items()}
                with staging.locked(self.path), staging.uninterrupted():
                    staging.settle(self.path)  # the last holder of the lock may have been killed
                    manifest = dict(self.now().manifest)
                    if not stage.is_dir():  # removed together with the old folder
                        raise InputError(f"bundle {self.path} {MEANWHILE}")
                    for name in unchanged:
                        if manifest["files"].get(name) != self.manifest["files"].get(name):
                            raise InputError(f"{self.path / name} {MEANWHILE}")
                    gone = set(remove) & set(manifest["files"]) - set(files)
                    listed = {**manifest["files"], **entries}
                    manifest["files"] = {name: listed[name] for name in sorted(listed.keys() - gone)}
                    check_apart([MANIFEST, *manifest["files"]], self.path / MANIFEST)
                    staged(self.path, stage, MANIFEST, to_json_bytes(manifest))
                    staging.commit(self.path, stage, [*files, MANIFEST], sorted(gone))
        finally:
            staging.remove_empty(new_folders)
        return Bundle(self.path, manifest)

    def check_addable(self, name: str) -> None:
        """Check that ``add`` can write a file, and raise as it would; call this before long work."""
        self.check_own()
        with staging.stage_in(self.path) as stage:
            staged(self.path, stage, name, b"")
            place = self.path / name
            above = next(folder for folder in place.parents if folder.exists())
            if place.is_dir() or not above.is_dir() or not os.access(above, os.W_OK):
                raise PermissionError(errno.EACCES, f"{name} cannot have its place")

    def check_own(self) -> None:
        """Reject changes of a Hub download, which other programs share."""
        if (snapshot := Snapshot.of(self.path)) is not None:
            what = f"bundle {self.path} is in the Hub's cache and cannot be changed; download a copy of your own"
            raise InputError(f"{what}: hf download {snapshot.repository} --local-dir FOLDER")


def resolve(bundle: Bundle | str | Path) -> Bundle:
    """Reopen a bundle from its path or an earlier :class:`Bundle`."""
    return Bundle.open(bundle.path if isinstance(bundle, Bundle) else bundle)


def located(bundle: Bundle | str | Path, revision: str | None = None) -> Bundle:
    """As :func:`resolve`, also for the name of a bundle on the Hub."""
    return Bundle.open(local_folder(bundle.path if isinstance(bundle, Bundle) else bundle, revision))


@contextmanager
def new_bundle(target: str | Path, manifest: Mapping[str, Any], force: bool = False) -> Iterator[Path]:
    """Create a bundle: fill the folder it yields; on a clean exit it gets its manifest and name."""
    with staging.staged_folder(Path(target), MANIFEST, force) as stage:
        yield stage
        names = sorted(path.relative_to(stage).as_posix() for path in stage.rglob("*") if path.is_file())
        sealed = {"schema": SCHEMA, **manifest, "files": {name: entry_of(stage / name) for name in names}}
        validated(sealed, stage / MANIFEST)
        content = to_json_bytes(sealed)
        if len(content) > MAX_MANIFEST_BYTES:
            raise InputError(f"the manifest of {target} has more than {MAX_MANIFEST_BYTES} bytes; give fewer prompts")
        staging.write_atomically(stage / MANIFEST, content)


def staged(folder: Path, stage: Path, name: str, content: bytes | Path) -> Path:
    """Write or move the new content of the file ``name`` into ``stage``; return its path."""
    path = folder / safe_name(name, folder / MANIFEST)
    if not path.parent.resolve().is_relative_to(folder.resolve()):
        raise BundleError(f"{path.parent} is a link out of the bundle; remove it")
    part = stage / staging.NEW / name
    part.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, Path):
        content.replace(part)
    else:
        part.write_bytes(content)
    return part


def entry_of(path: Path) -> dict[str, Any]:
    """Manifest entry of a file: its size in bytes and its SHA-256."""
    return {"bytes": path.stat().st_size, "sha256": staging.sha256_of(path)}
