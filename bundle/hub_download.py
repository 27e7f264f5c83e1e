"""Bundles on the Hugging Face Hub: each file is downloaded into the Hub's cache when it is first read.

A bundle is the folder ``hydrant/`` of its repository. In the cache it is a *snapshot* of one commit,
``models--USER--NAME/snapshots/COMMIT/hydrant/``, whose files are links into ``models--USER--NAME/blobs/``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ..errors import BundleError, InputError, cut, require
from .manifest import FOLDER, MANIFEST

GRAPHS = "onnx"  # folder of a repository with the graphs for other readers
REPOSITORY = re.compile(r"(?!.*(--|\.\.|\.git$))\w([\w.-]{0,94}\w)?/\w([\w.-]{0,94}\w)?", re.ASCII)
SEPARATOR = "--"  # in the cache's names of folders


@dataclass(frozen=True)
class Snapshot:
    """A repository at one commit in a cache of the Hub; ``cache`` holds all repositories."""

    cache: Path
    repository: str
    commit: str

    @classmethod
    def of(cls, folder: Path) -> Snapshot | None:
        """The snapshot whose bundle ``folder`` is; ``None`` for other folders."""
        *above, kept, snapshots, commit, name = ("", "", "", *folder.absolute().parts)
        kind, *parts = kept.split(SEPARATOR)
        if (name, snapshots, kind, len(parts)) != (FOLDER, "snapshots", "models", 2):
            return None
        return cls(Path(*filter(None, above)), "/".join(parts), commit)

    def fetch(self, name: str) -> None:
        """Download a file of the bundle, unless it is in the cache."""
        _download(self.repository, self.commit, name, self.cache)

    def has(self, name: str) -> bool:
        """Download a file of the bundle, and return False if the repository does not have it."""
        try:
            self.fetch(name)
        except BundleError as error:
            from huggingface_hub.errors import RemoteEntryNotFoundError

            if isinstance(error.__cause__, RemoteEntryNotFoundError):
                return False
            raise
        return True


def contains(folder: Path, path: Path) -> bool:
    """Return True if a path, with links followed, lies in the bundle, or in the blobs of its repository or cache."""
    target, inside = path.resolve(), folder.resolve()
    places = [inside]
    if snapshot := Snapshot.of(inside):
        places += [inside.parents[2] / "blobs", snapshot.cache / "blobs"]  # the latter is shared by all repositories
    return any(target.is_relative_to(place) for place in places)


def is_foreign_link(folder: Path, path: Path) -> bool:
    """Return True for a link in a bundle, except one that the Hub's cache made."""
    return path.is_symlink() and not (Snapshot.of(folder.resolve()) is not None and contains(folder, path))


def bundle_name(folder: Path) -> str:
    """The name of a bundle: of its folder, or of the repository whose folder ``hydrant/`` it is."""
    folder = folder.resolve()
    if snapshot := Snapshot.of(folder):
        return snapshot.repository.partition("/")[2]
    return folder.parent.name if unwrapped(folder.parent) == folder else folder.name


def unwrapped(folder: Path) -> Path:
    """The bundle ``hydrant/`` of a folder that holds a repository; other folders unchanged."""
    nested = folder / FOLDER
    is_repository = (folder / GRAPHS).is_dir() or Snapshot.of(nested) is not None
    return nested if is_repository and (nested / MANIFEST).is_file() and not (folder / MANIFEST).is_file() else folder


def local_folder(bundle: str | Path, revision: str | None = None) -> Path:
    """Folder of a bundle: the path itself, its ``hydrant/`` if it holds a repository, or a download from the Hub."""
    folder = Path(bundle)
    if not isinstance(bundle, str) or folder.exists() or not REPOSITORY.fullmatch(bundle):
        if revision is not None:
            raise InputError(f"{folder} is a path and has no revision {cut(revision)}; expected USER/NAME, or omit it")
        return unwrapped(folder)
    return _download(bundle, revision, MANIFEST, None).parent


def _download(repository: str, revision: str | None, name: str, cache: Path | None) -> Path:
    """Path of a bundle's file in the cache, downloaded if it is not there."""
    hub = require("huggingface_hub", "hub", f"look for {repository}, which is not a folder, on the Hugging Face Hub")
    try:
        path = hub.hf_hub_download(repository, f"{FOLDER}/{name}", revision=revision, cache_dir=cache)
    except Exception as error:  # of huggingface_hub and its HTTP library, which share no type
        raise BundleError(_explained(error, repository, revision, name)) from error
    return Path(path)


def _explained(error: Exception, repository: str, revision: str | None, name: str) -> str:
    """A failed download in words, with its remedy."""
    from huggingface_hub import errors

    file, login = f"{FOLDER}/{name}", "log in with `hf auth login`, or set HF_TOKEN"
    offline = isinstance(error.__cause__, errors.OfflineModeIsEnabled)
    reasons = {
        errors.GatedRepoError: f"access to {repository} needs its owner's consent; ask on its page, then {login}",
        errors.RepositoryNotFoundError: f"{repository} is neither a folder nor a repository of the Hub that you may "
        f"read; check the name, or for a private repository {login}",
        errors.RevisionNotFoundError: f"repository {repository} has no revision {cut(revision)}; expected a branch, a "
        "tag or a commit",
        errors.RemoteEntryNotFoundError: f"repository {repository} has no file {file}; expected a repository from "
        "`hydrant push`",
        errors.LocalEntryNotFoundError: f"{repository} is not a folder, {file} is not in the Hub's cache, and "
        f"{'HF_HUB_OFFLINE is set' if offline else 'the Hub does not answer'}; check the name and the connection, then "
        "run the command again",
    }
    status = status_of(error) or status_of(error.__cause__)
    known = next((reason for kind, reason in reasons.items() if isinstance(error, kind)), None)
    if status == 401 and not isinstance(error, errors.RepositoryNotFoundError):
        known = f"the Hub rejects the access token with which {repository} was requested; {login} to a valid one"
    elif status is not None and isinstance(error, errors.LocalEntryNotFoundError):
        known = f"the Hub answers a request for {file} of {repository} with status {status}; try again later"
    problem = f"cannot download {file} of {repository} ({cut(without_token(error), 200)})"
    return known or f"{problem}; run the command again: it continues where it stopped"


def status_of(error: BaseException | None) -> int | None:
    """HTTP status of the answer that caused an error."""
    return getattr(getattr(error, "response", None), "status_code", None)


def without_token(error: Exception) -> str:
    """Text of an error of the HTTP library, which repeats malformed headers."""
    text = str(error)
    return "the access token is malformed" if "Bearer" in text else text
