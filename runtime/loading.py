"""Opening a bundle for prediction, with all checks before the first input."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from ..bundle.graphs import check_all_graphs
from ..bundle.reports import REMEDY, Verification
from ..bundle.signature import check_signature
from ..bundle.store import Bundle, located, resolve
from ..errors import BundleError, HydrantError, InputError, is_whole
from ..metrics.gates import Precision
from .backends.backend_registry import open_backend
from .predictor import Predictor

log = logging.getLogger(__name__)


def checked_threads(threads: int | None) -> int | None:
    """Validate ``threads`` (``None`` stays ``None``)."""
    most = 4 * (os.cpu_count() or 1)
    if threads is not None and not is_whole(threads, 1, most):
        raise InputError(f"threads is {threads!r:.60}; expected 1 to {most}, four times the cores of this machine")
    return None if threads is None else int(threads)


def load(
    bundle: Bundle | str | Path,
    backend: str = "auto",
    *,
    threads: int | None = None,
    precision: Precision | None = None,
    trust: str | Path | None = None,
    revision: str | None = None,
) -> Predictor:
    """Open a bundle for prediction.

    Args:
        bundle: bundle folder, or USER/NAME on the Hugging Face Hub. In Python also an open ``Bundle``. Of a repository
            only the needed files are downloaded, once, into the Hub's cache.
        backend: backend that runs the bundle; auto takes the first that works. It is one of ``"tensorrt"``,
            ``"tensorrt-rtx"``, ``"onnxruntime-tensorrt"``, ``"onnxruntime-cuda"``, ``"onnxruntime"``, ``"openvino"``
            and ``"torch"``.
        threads: CPU threads per run (default: the backend's own).
        precision: precision of the graph (default: the backend's choice).
        trust: PEM file with the public key, or issuer certificates, that must have signed the bundle. Without it
            the signature is not checked.
        revision: branch, tag or commit on the Hub (default: main).

    Raises:
        BackendError: the backend is unknown, or no backend can run.
        MissingExtraError: the named backend's library, or for ``trust`` model-signing, is not installed.
        BundleError: the bundle is missing, altered, malformed or not signed as required; one of its graphs
            contradicts it; or its calibration is for another task.
        InputError: ``threads`` or ``trust`` cannot be used.
    """
    options = backend, checked_threads(threads), precision, trust
    source = located(bundle, revision)
    before = source.state()
    source = resolve(source)
    try:
        predictor = _open_once(source, *options)
    except HydrantError:
        if source.state() == before:
            raise
    else:
        if source.state() == before:
            return predictor
        predictor.close()  # another process changed files meanwhile: old and new may be mixed
    with source.kept() as locked:
        return _open_once(locked, *options)


def _open_once(
    bundle: Bundle, backend: str, threads: int | None, precision: Precision | None, trust: str | Path | None
) -> Predictor:
    """Open a bundle; warn if the backend failed the last verification."""
    if trust is not None:
        check_signature(bundle, trust)
    architecture = bundle.any_architecture()
    if len(bundle.labels) != architecture.classes:
        raise BundleError(
            f"bundle {bundle.path} has {len(bundle.labels)} labels for {architecture.classes} classes; "
            "recreate it with `hydrant fuse`"
        )
    check_all_graphs(bundle)
    running, fallbacks = open_backend(bundle, backend, threads, precision)
    try:
        predictor = Predictor(bundle, architecture, running, fallbacks)
        fitted = predictor.calibration
        entries = {"classification": fitted.conformal, "score": fitted.intervals, "multi_label": fitted.labels}
        if any(entry is not None and task != predictor.task for task, entry in entries.items()):
            raise BundleError(f"calibration.json of {bundle.path} is for another task; run `hydrant calibrate` again")
        if failure := _failure(bundle, f"{running.name} {running.precision}"):
            log.warning("%s", failure, extra={"always": True})  # for each bundle, even if repeated
        return predictor
    except BaseException:
        running.close()
        raise


def _failure(bundle: Bundle, backend: str) -> str:
    """Return a warning if a backend (with its precision) failed the last verification of these files."""
    try:
        last = Verification.of(bundle)
    except BundleError:
        return f"the last verification of {bundle.path} cannot be read; {REMEDY}"
    if last is None or not last.current or backend not in last.failed:
        return ""
    return (
        f"{backend} failed the last verification of {bundle.path} (against {last.reference}, {last.inputs}): its "
        "answers differ from the reference by more than the gates allow; run `hydrant verify` for the differences"
    )
