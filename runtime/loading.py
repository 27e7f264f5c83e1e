"""Opening a bundle for prediction: what is checked before the first input."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from ..bundle.graphs import check_all_graphs
from ..bundle.reports import REMEDY, Verification
from ..bundle.signature import check_signature
from ..bundle.store import Bundle, resolve
from ..errors import BundleError, HydrantError, InputError, is_whole
from ..metrics.gates import Precision
from .backends.backend_registry import open_backend
from .predictor import Predictor

log = logging.getLogger(__name__)


def checked_threads(threads: int | None) -> int | None:
    """``threads`` within one run, if the machine has use for as many; ``None`` stays."""
    most = 4 * (os.cpu_count() or 1)
    if threads is not None and not is_whole(threads, 1, most):
        raise InputError(f"threads is {threads!r:.60}; expected 1 to {most}: four for each core of this machine")
    return None if threads is None else int(threads)


def load(
    bundle: Bundle | str | Path,
    backend: str = "auto",
    *,
    threads: int | None = None,
    precision: Precision | None = None,
    trust: str | Path | None = None,
) -> Predictor:
    """Open a bundle for prediction.

    Args:
        bundle: bundle folder. In Python also an open ``Bundle``.
        backend: backend that runs the bundle; auto takes the first that works. It is one of ``"tensorrt"``,
            ``"tensorrt-rtx"``, ``"onnxruntime-tensorrt"``, ``"onnxruntime-cuda"``, ``"onnxruntime"``, ``"openvino"``
            and ``"torch"``.
        threads: threads for each run (default: the backend's choice).
        precision: precision of the graph (default: the backend's choice).
        trust: PEM file with the public key or issuer certificates that must have signed the bundle. Without it the
            manifest is believed.

    Raises:
        BackendError: unknown backend, or none can run.
        MissingExtraError: the named backend's library, or for ``trust`` model-signing, is not installed.
        BundleError: the bundle is missing, altered or malformed, not signed as asked, or one of its graphs
            contradicts it.
        InputError: ``threads`` or ``trust`` cannot be used.
    """
    options = backend, checked_threads(threads), precision, trust
    before, found = resolve(bundle).state(), resolve(bundle)
    try:
        predictor = _opened(found, *options)
    except HydrantError:
        if found.state() == before:
            raise
    else:
        if found.state() == before:
            return predictor
        predictor.close()  # another process gave files other contents meanwhile: some may be of each kind
    with found.kept() as still:
        return _opened(still, *options)


def _opened(
    bundle: Bundle, backend: str, threads: int | None, precision: Precision | None, trust: str | Path | None
) -> Predictor:
    """A predictor of a bundle as its manifest was read; warns if it failed its last verification."""
    if trust is not None:
        check_signature(bundle, trust)
    architecture = bundle.any_architecture()
    if len(bundle.labels) != architecture.classes:
        raise BundleError(
            f"bundle {bundle.path} has {len(bundle.labels)} labels for {architecture.classes} classes; "
            "make it again with `hydrant fuse`"
        )
    check_all_graphs(bundle)
    opened, fallbacks = open_backend(bundle, backend, threads, precision)
    try:
        predictor = Predictor(bundle, architecture, opened, fallbacks)
        if failure := _failure(bundle, f"{opened.name} {opened.precision}"):
            log.warning("%s", failure, extra={"always": True})  # of each bundle, whatever was said of another
        return predictor
    except BaseException:
        opened.close()
        raise


def _failure(bundle: Bundle, opened: str) -> str:
    """A warning if a backend and its precision did not pass the last verification of these files."""
    try:
        last = Verification.of(bundle)
    except BundleError:
        return f"the last verification of {bundle.path} cannot be read; {REMEDY}"
    if last is None or not last.current or opened not in last.failed:
        return ""
    return (
        f"{opened} failed the last verification of {bundle.path} (against {last.reference}, {last.inputs}): its "
        "answers differ from the reference by more than the gates allow; `hydrant verify` says by how much"
    )
