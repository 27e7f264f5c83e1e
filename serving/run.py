"""``hydrant serve``: what is checked before a port is taken, the port, and who serves behind it."""

from __future__ import annotations

import contextlib
import errno
import socket
import ssl
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ..errors import InputError, cut, require
from .catalog import found_bundles
from .server import Announce, Ready, serve_alone
from .settings import ServeSettings
from .workers import serve_with_workers

BACKLOG = 2048
"""Connections that wait to be accepted."""


def _nobody(ready: Ready) -> None:
    """Told, and tells nobody."""


def serve(folder: str | Path, settings: ServeSettings = ServeSettings(), announce: Announce = _nobody) -> None:
    """Serve bundles until SIGTERM or SIGINT; then answer what is begun, and return.

    Args:
        folder: bundle made by `hydrant fuse`, or a folder of them as NAME/ or NAME/VERSION/. Of several versions the
            newest answers.
        settings: how.
        announce: told once, when every model is warm.

    Raises:
        InputError: no bundle, a port that cannot be had, or a certificate that cannot be read.
        ServeError: a bundle cannot be opened.
        MissingExtraError: the extra ``serve`` is not installed.
    """
    for module in ("fastapi", "uvicorn", "httptools", *(("grpc",) if settings.grpc_port is not None else ())):
        require(module, "serve", "serve bundles")
    found_bundles(folder)
    _check_certificate(settings)
    with bound(settings.host, settings.port) as port, _held(settings) as held:
        run = serve_alone if held.workers == 1 else serve_with_workers
        run(folder, held, port, announce)


@contextlib.contextmanager
def bound(host: str, number: int, *, listens: bool = True) -> Iterator[socket.socket]:
    """A port that is listened on."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, number, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot listen on {cut(host)}: {reason}; give an address of this machine") from error
    with found:
        try:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR if listens else socket.SO_REUSEPORT, 1)
            found.bind(address)
            if listens:
                found.listen(BACKLOG)
        except OSError as error:
            foreign = error.errno == errno.EADDRNOTAVAIL
            advice = "an address of this machine" if foreign else "another port, or 0 for any that is free"
            raise InputError(
                f"cannot listen on port {number} of {cut(host)}: {error.strerror or error}; give {advice}"
            ) from error
        yield found


@contextlib.contextmanager
def _held(settings: ServeSettings) -> Iterator[ServeSettings]:
    """The settings with a port of gRPC that all workers take; it stays theirs while none of them has it."""
    if settings.grpc_port:  # workers share a port also with strangers, and gRPC tells of one that is taken at length
        with bound(settings.host, settings.grpc_port):
            pass
    if settings.workers == 1 or settings.grpc_port is None:
        yield settings
        return
    with bound(settings.host, settings.grpc_port, listens=False) as port:
        yield replace(settings, grpc_port=port.getsockname()[1])


def _check_certificate(settings: ServeSettings) -> None:
    """Read the certificate and its key before a port is taken."""
    if settings.tls_cert is None or settings.tls_key is None:
        return
    for file in (settings.tls_cert, settings.tls_key):
        if not Path(file).is_file():
            raise InputError(f"{cut(file)} is not a file; expected a certificate or a key in PEM form")

    def no_password() -> str:
        raise InputError(f"{cut(settings.tls_key)} has a password; expected a key without one")

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(settings.tls_cert, settings.tls_key, no_password)
    except OSError as error:  # which SSLError is
        raise InputError(
            f"cannot use {cut(settings.tls_cert)} with {cut(settings.tls_key)}: {cut(error, 100)}; expected PEM files "
            "that belong together"
        ) from error
