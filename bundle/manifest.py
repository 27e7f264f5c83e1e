"""``hydrant.json``, the manifest of a bundle: its schema, what it is of, and its files with size and SHA-256."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import BundleError, cut, is_whole, listing
from .names import LONGEST, LONGEST_PART, is_portable, is_short, same_place, stays_inside
from .schema import is_read, remedy

SCHEMA = 1

MANIFEST = "hydrant.json"

MAX_MANIFEST_BYTES = 16 * 2**20

MOST_MEMBERS = 2**20

MOST_FILES = 4096

LARGEST_FILE = 2**63 - 1
"""That a file system can hold, bytes."""


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a bundle."""
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise BundleError(f"{folder} {what}; expected a bundle, which `hydrant make` or `hydrant fuse` makes")
    file = folder / MANIFEST
    if not file.is_file():
        what = "is a checkpoint" if (folder / "config.json").is_file() else f"holds no {MANIFEST}"
        raise BundleError(f"{folder} {what}; expected a bundle, which `hydrant make` or `hydrant fuse` makes")
    if file.stat().st_size > MAX_MANIFEST_BYTES:
        raise BundleError(f"{file} is larger than {MAX_MANIFEST_BYTES} bytes; this is not a manifest of hydrant's")
    try:
        manifest = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{file} is not JSON ({error}); make the bundle again with `hydrant fuse`") from error
    return validated(manifest, file)


def validated(manifest: Any, file: Path) -> dict[str, Any]:
    """The decoded manifest of a file, as it is."""
    if not isinstance(manifest, dict):
        raise BundleError(f"{file} is a JSON {type(manifest).__name__}; expected an object")
    schema = manifest.get("schema")
    if not is_read(schema, SCHEMA):
        raise BundleError(
            f"{file} has schema {cut(schema)}; this hydrant reads schema {SCHEMA}; "
            f"{remedy(schema, SCHEMA, manifest.get('hydrant'))}"
        )
    for key, kind in (("hydrant", str), ("family", str), ("members", int), ("labels", list), ("files", dict)):
        if not isinstance(manifest.get(key), kind) or isinstance(manifest.get(key), bool):
            raise BundleError(f"{file} has {key} = {cut(manifest.get(key))}; expected a JSON {kind.__name__}")
    if not 1 <= manifest["members"] <= MOST_MEMBERS:
        raise BundleError(f"{file} has {cut(manifest['members'])} members; expected 1 to {MOST_MEMBERS}")
    if not manifest["labels"] or not all(isinstance(label, str) for label in manifest["labels"]):
        raise BundleError(f"{file} has labels {listing(manifest['labels'])}; expected names, one for each output")
    if len(set(manifest["labels"])) < len(manifest["labels"]):
        raise BundleError(f"{file} has labels {listing(manifest['labels'])}; expected each name once")
    _check_fusion(manifest.get("fusion", {}), file)
    for name, entry in manifest["files"].items():
        safe_name(name, file)
        if not (
            isinstance(entry, dict)
            and is_whole(entry.get("bytes"), most=LARGEST_FILE)
            and isinstance(entry.get("sha256"), str)
            and len(entry["sha256"]) == 64
        ):
            raise BundleError(f"{file} lists {cut(name)} without its size in bytes and its SHA-256")
    check_apart([MANIFEST, *sorted(manifest["files"])], file)
    return manifest


def _check_fusion(fusion: Any, file: Path) -> None:
    """How the members were fused: number of checkpoints, the parts kept separate, and adapters."""
    if isinstance(fusion, dict):
        checkpoints = fusion.get("checkpoints", 1)
        lists = _is_list_of(str, fusion.get("separate", [])) and _is_list_of(dict, fusion.get("adapters", []))
        if is_whole(checkpoints, 1) and lists and _are_forms(fusion):
            return
    raise BundleError(
        f"{file} has fusion = {cut(fusion)}; expected checkpoints and separate parts, adapters and forms of updates; "
        "make the bundle again with `hydrant fuse`"
    )


def _is_list_of(kind: type, values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, kind) for value in values)


def _are_forms(fusion: Mapping[str, Any]) -> bool:
    """Whether ``adapted``, if there, tells the rank and form of each updated module."""
    forms = fusion.get("adapted", {})
    return isinstance(forms, dict) and all(
        isinstance(form, dict) and is_whole(form.get("rank"), 1) and type(form.get("low_rank")) is bool
        for form in forms.values()
    )


def safe_name(name: str, file: Path) -> str:
    """A name that the manifest ``file`` lists; refused where it leaves the folder or some system cannot hold it."""
    if not is_short(name):
        raise BundleError(
            f"{file} lists the file {cut(name)}, a name of more than {LONGEST_PART} bytes between two /, or {LONGEST} "
            "in all; give it a shorter one"
        )
    if not stays_inside(name):
        raise BundleError(f"{file} lists the file {cut(name)}; a bundle's files must stay inside its folder")
    if not is_portable(name):
        raise BundleError(f"{file} lists the file {cut(name)}, a name that Windows cannot hold; give it another")
    return name


def check_apart(names: Sequence[str], file: Path) -> None:
    """Refuse names of which two are one file where letter case does not count, and more than a bundle needs."""
    if len(names) > MOST_FILES:
        raise BundleError(f"{file} lists {len(names)} files, itself included; expected at most {MOST_FILES}")
    if (same := same_place(names)) is not None:
        raise BundleError(
            f"{file} lists the files {cut(same[0])} and {cut(same[1])}, which are one file on macOS and Windows; give "
            "one of them another name"
        )
