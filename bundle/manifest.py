"""``hydrant.json``, the manifest of a bundle: its schema, the model, and its files with size and SHA-256."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from msgspec import Meta, Struct

from ..data.specs import Spec, convert
from ..errors import BundleError, cut, listing
from .strict_json import check_schema, from_json_bytes

SCHEMA = 1
MANIFEST = "hydrant.json"
FOLDER = "hydrant"  # of the bundle inside a repository of the Hub
MAX_MANIFEST_BYTES = 16 * 2**20
MAX_FILES = 4096
LONGEST_PART, LONGEST = 255, 1024  # UTF-8 bytes of a name and of a path
# Names of devices on Windows, in every folder and with every ending.
DEVICE = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9¹²³])(\..*)?", re.IGNORECASE | re.DOTALL)
FORBIDDEN = re.compile(r'[\x00-\x1f<>"|?*]')


class FileEntry(Spec, frozen=True):
    """Size and digest of a file."""

    bytes: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    sha256: Annotated[str, Meta(min_length=64, max_length=64)]


class UpdateForm(Struct, frozen=True):
    """Rank and form of a module's update by an adapter."""

    rank: Annotated[int, Meta(ge=1)]
    low_rank: bool


PART = "[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
Repository = Annotated[str, Meta(pattern=rf"^{PART}(/{PART})?\Z")]  # of a model or data set of the hub


class BaseModel(Struct, frozen=True, omit_defaults=True):
    """Hub name and commit of a fused checkpoint, and facts from its own card."""

    name: Repository | None = None
    revision: str | None = None
    license: str | None = None
    license_name: str | None = None
    license_link: str | None = None
    datasets: list[Repository] = []
    language: list[str] = []


class Fusion(Struct, frozen=True):
    """Facts about the fusion that are read."""

    checkpoints: Annotated[int, Meta(ge=1)] = 1
    separate: list[str] = []
    adapters: list[dict[str, Any]] = []
    adapted: dict[str, UpdateForm] = {}
    base: list[BaseModel] = []


class Manifest(Struct, frozen=True):
    """Required fields of a manifest, and facts about the fusion."""

    hydrant: str
    family: str
    members: Annotated[int, Meta(ge=1, le=2**20)]
    labels: Annotated[list[str], Meta(min_length=1)]
    files: dict[str, FileEntry]
    fusion: Fusion = Fusion()


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest of a bundle."""
    file = folder / MANIFEST
    if not file.is_file():
        what = "does not exist" if not folder.exists() else f"has no {MANIFEST}" if folder.is_dir() else "is a file"
        what = "is a checkpoint" if (folder / "config.json").is_file() else what
        if (folder / FOLDER / MANIFEST).is_file():
            raise BundleError(f"{folder} holds a repository of the Hub; use the bundle in it, {folder / FOLDER}")
        raise BundleError(f"{folder} {what}; expected a bundle from `hydrant make` or `hydrant fuse`")
    if file.stat().st_size > MAX_MANIFEST_BYTES:
        raise BundleError(f"{file} is larger than {MAX_MANIFEST_BYTES} bytes; this is not a hydrant manifest")
    return validated(from_json_bytes(file.read_bytes(), file), file)


def validated(manifest: Any, file: Path) -> dict[str, Any]:
    """Check the decoded manifest of a file, and return it."""
    check_schema(manifest, SCHEMA, file)
    labels, files = convert(manifest, Manifest, file).labels, manifest["files"]
    if len(set(labels)) < len(labels):
        raise BundleError(f"{file} has labels {listing(labels)}; expected each name once")
    for name in files:
        safe_name(name, file)
    check_apart([MANIFEST, *sorted(files)], file)
    return dict(manifest)


def safe_name(name: str, file: Path) -> str:
    """Check a name that the manifest ``file`` lists: inside the folder, and valid on every system."""
    path, parts = name.encode(errors="surrogatepass"), name.split("/")
    if len(path) > LONGEST or any(len(part) > LONGEST_PART for part in path.split(b"/")):
        why = f", a name of more than {LONGEST_PART} bytes between two /, or {LONGEST} in all; use a shorter one"
    elif not stays_inside(name):
        why = "; a bundle's files must stay inside its folder"
    elif any(part.endswith((".", " ")) or FORBIDDEN.search(part) or DEVICE.fullmatch(part) for part in parts):
        why = ", a name that is invalid on Windows; use another"
    else:
        return name
    raise BundleError(f"{file} lists the file {cut(name)}{why}")


def stays_inside(name: str) -> bool:
    """Return True if a name is a path inside the folder, on every system."""
    path = PurePosixPath(name)
    normal = bool(name) and name != "." and path.as_posix() == name
    return normal and not (path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name or "\0" in name)


def check_apart(names: Sequence[str], file: Path) -> None:
    """Reject too many names, and names that differ only in letter case or Unicode form."""
    if len(names) > MAX_FILES:
        raise BundleError(f"{file} lists {len(names)} files, itself included; expected at most {MAX_FILES}")
    seen: dict[str, str] = {}
    for name in names:
        folded = unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())
        if folded in seen:
            same = f"{cut(seen[folded])} and {cut(name)}, which are the same file on macOS and Windows"
            raise BundleError(f"{file} lists the files {same}; rename one of them")
        seen[folded] = name
