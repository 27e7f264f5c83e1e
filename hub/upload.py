"""The verb ``push``: a bundle to the Hugging Face Hub, or into a folder of the same layout."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..bundle.hub_download import GRAPHS, REPOSITORY, status_of, without_token
from ..bundle.manifest import FOLDER, MANIFEST
from ..bundle.staging import fill, staged_folder, telling
from ..bundle.store import Bundle, resolve
from ..errors import InputError, cut, require
from ..version import __version__
from .repository_files import Files, repository_files, serving_files

OWNED = (f"{FOLDER}/", f"{GRAPHS}/")  # folders of a repository in which `push` removes outdated files
MARKER = f"{FOLDER}/{MANIFEST}"  # file of an earlier output


def push(
    bundle: Bundle | str | Path,
    repository: str | None = None,
    *,
    to: str | Path | None = None,
    private: bool = False,
    revision: str | None = None,
    token: str | None = None,
    serving: bool = False,
    force: bool = False,
) -> str:
    """Push a bundle to the Hugging Face Hub, as one commit that optimum and transformers.js can read, too.

    An interrupted upload continues with the next call, and unchanged files are not sent again. Outdated files in
    ``hydrant/`` and ``onnx/`` are removed; ``README.md`` is replaced.

    Args:
        bundle: bundle folder. In Python also an open ``Bundle``.
        repository: repository on the Hub, as USER/NAME; created if it does not exist.
        to: folder to write the repository into instead, without a network.
        private: create a private repository.
        revision: branch to push to; created if it does not exist (default: main).
        token: access token of the Hub (default: HF_TOKEN, or that of ``hf auth login``).
        serving: write into the folder a bundle that only predicts: without the weights to train, reports and
            signature. Sign it again.
        force: replace an existing folder.

    Returns:
        The address of the commit, or the path of the folder.

    Raises:
        BundleError: a file is missing, altered or inconsistent, or a graph has no output ``logits``.
        InputError: the options exclude each other, the folder cannot be written, or the Hub rejects the upload.
        MissingExtraError: huggingface_hub is not installed.
    """
    if (repository is None) == (to is None):
        raise InputError("expected either a repository, as USER/NAME, or a folder with --to (to=…)")
    if serving and to is None:
        raise InputError("serving writes into a folder; name it with --to (to=…)")
    if to is not None and (private or revision is not None):
        raise InputError("private and revision are for a repository on the Hub; omit them with --to")
    if repository is not None and not REPOSITORY.fullmatch(repository):
        raise InputError(f"repository is {cut(repository)}; expected USER/NAME")
    opened = resolve(bundle)
    if to is not None:
        if (Path(to) / ".git").exists():
            raise InputError(f"{to} is a git repository; choose another folder, or push to the Hub")
        if Path(to).resolve().is_relative_to(opened.path.resolve()):
            raise InputError(f"{to} is inside the bundle; choose another folder")
        with staged_folder(Path(to), MANIFEST if serving else MARKER, force) as stage, opened.kept() as locked:
            files = serving_files(locked) if serving else repository_files(locked, None)
            with telling(f"cannot write into {stage}"):
                fill(stage, files)
        return str(to)
    assert repository is not None
    before = opened.state()
    address = _commit(repository, repository_files(resolve(opened), repository), private, revision, token)
    if opened.state() != before:  # an upload may take long, and locks nothing
        raise InputError(f"bundle {opened.path} was changed by another process during the upload; push it again")
    return address


def _commit(repository: str, files: Files, private: bool, revision: str | None, token: str | None) -> str:
    """Create the repository and the branch if needed, and one commit; returns its address."""
    hub = require("huggingface_hub", "hub", "push to the Hugging Face Hub")
    api = hub.HfApi(token=token and token.strip(), library_name="hydrant", library_version=__version__)
    with _rejections(repository):
        api.create_repo(repository, private=private or None, exist_ok=True)
        if private and not api.model_info(repository).private:
            wrong = f"{repository} exists and is public"
            raise InputError(f"{wrong}; make it private on its settings page, or omit private")
        if revision is not None:
            api.create_branch(repository, branch=revision, exist_ok=True)
        parent = api.model_info(repository, revision=revision).sha
        changes = [hub.CommitOperationAdd(name, content) for name, content in files.items()]
        present = api.list_repo_files(repository, revision=parent)
        gone = [name for name in present if name.startswith(OWNED) and name not in files]
        changes += [hub.CommitOperationDelete(name) for name in gone]
        message = f"Push of a hydrant {__version__} bundle"
        options = {"commit_message": message, "revision": revision, "parent_commit": parent}
        return str(api.create_commit(repository, changes, **options).commit_url)


@contextmanager
def _rejections(repository: str) -> Iterator[None]:
    """Report what the Hub rejects, or that it does not answer."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # of huggingface_hub and its HTTP library, which share no type
        from huggingface_hub import errors

        if isinstance(error, errors.OfflineModeIsEnabled):
            raise InputError("HF_HUB_OFFLINE is set; unset it, or write a folder with --to FOLDER (to=…)") from error
        status = status_of(error)
        remedy = "run the command again: it continues where it stopped"
        if status in (401, 403, 404):
            remedy = "log in with `hf auth login`, or set HF_TOKEN to a token that may write there"
        elif status == 412:
            remedy = "another process pushed at the same time; run the command again"
        elif status is not None and status < 500:
            remedy = "the Hub rejects the upload for this reason"
        raise InputError(f"cannot push to {repository} ({cut(without_token(error), 200)}); {remedy}") from error
