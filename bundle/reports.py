"""Reports on a bundle: storage in the bundle or a separate folder, and the last verification."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated

from msgspec import Meta, Struct

from ..data.specs import convert
from ..errors import BundleError, HydrantError, InputError, short
from .staging import folders_above, owned_folder, telling, write_atomically
from .store import ENGINES, Bundle

log = logging.getLogger(__name__)
REPORT = "reports/verify.json"
MAKE_REPORT = "reports/make.json"
REMEDY = "run `hydrant verify` again"
LONGEST = 200  # characters of a quoted report value


def report_folder(bundle: Bundle, folder: str | Path | None) -> Path | None:
    """The writable folder for reports outside the bundle, or ``None`` for the bundle; call it before long work."""
    if folder is None:
        return None
    chosen = Path(folder).absolute()
    if chosen.resolve().is_relative_to(bundle.path.resolve()):
        raise InputError(f"report folder {folder} is inside the bundle, which stores reports anyway; leave it out")
    existing = next(place for place in (chosen, *chosen.parents) if place.exists())
    with telling(f"cannot write into {folder}", "; choose another folder"), owned_folder(existing, "report"):
        return chosen


def store_reports(
    bundle: Bundle, files: Mapping[str, bytes | Path], folder: Path | None, remove: Collection[str] = ()
) -> list[str]:
    """Store reports in the bundle or in ``folder``, and return names or paths. A failing bundle logs a warning."""
    if folder is None:
        try:
            bundle.add(files, remove=remove, unchanged=bundle.digests())
        except HydrantError as error:
            log.warning("the report was not stored: %s; choose a folder with --report (report=…)", error)
            return []
        return list(files)
    places = {folder / PurePosixPath(name).name: content for name, content in files.items()}
    with folders_above(folder / "report"):
        for place, content in places.items():
            write_atomically(place, content if isinstance(content, bytes) else content.read_bytes())
    return list(map(str, places))


class Verdict(Struct, frozen=True):
    """A backend, its precision, and ``passed``: all its gates passed."""

    backend: Annotated[str, Meta(pattern=r"^[a-z0-9-]{1,40}\Z")]
    precision: Annotated[str, Meta(pattern=r"^[a-z0-9]{1,20}\Z")]
    passed: bool


class Report(Struct, frozen=True):
    """The fields of ``hydrant verify``'s report that are read."""

    backends: list[Verdict]
    files: dict[str, str]
    reference: str
    inputs: str


@dataclass(frozen=True)
class Verification:
    """The last verification: backends with precisions (``"onnxruntime fp32"``); ``current``: files are unchanged."""

    passed: tuple[str, ...]
    failed: tuple[str, ...]
    reference: str
    inputs: str
    current: bool

    @classmethod
    def of(cls, bundle: Bundle) -> Verification | None:
        """Read the last verification; ``None`` if the bundle has none."""
        if not bundle.has(REPORT):
            return None
        try:
            report = convert(bundle.read_json(REPORT), Report, "malformed")
        except BundleError as error:
            raise BundleError(f"{error}; {REMEDY}") from error
        verdicts: dict[bool, list[str]] = {True: [], False: []}
        for each in report.backends:
            verdicts[each.passed].append(f"{each.backend} {each.precision}")
        now = bundle.digests()
        verified = {name: now[name] for name in now if name in report.files or not name.startswith(f"{ENGINES}/")}
        lines = (short(text, LONGEST) for text in (report.reference, report.inputs))  # the bundle may be hostile
        reference, inputs = ("".join(sign if sign.isprintable() else "?" for sign in line) for line in lines)
        return cls(tuple(verdicts[True]), tuple(verdicts[False]), reference, inputs, report.files in (now, verified))
