"""Settings of a service."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import ip_address
from pathlib import Path

from ..errors import InputError, check_plain, cut
from ..metrics.gates import Precision
from .record import Recording
from .stats import Watching


@dataclass(frozen=True)
class ServeSettings:
    """Settings of a service: addresses, limits, and the backend of its bundles; ``InputError`` for an invalid value.

    Attributes:
        host: address to listen on; 0.0.0.0 accepts other machines. Use that only behind a firewall or proxy.
        port: HTTP port; 0 lets the system choose.
        grpc_port: gRPC port; 0 lets the system choose (default: no gRPC).
        batch_size: largest batch; waiting requests run together. No request waits for others to arrive.
        queue: inputs that may wait for a model; beyond it requests get status 503.
        timeout: seconds allowed for a request, from its first byte to its answer.
        max_bytes: largest request body in bytes.
        requests: most concurrent requests.
        workers: processes that share the port, each with its own copy of the model.
        token: secret that clients send as ``Authorization: Bearer …``; by default no authentication.
        tls_cert: PEM file of the certificate with its chain; enables HTTPS and disables HTTP.
        tls_key: PEM file of the certificate's private key.
        origins: further origin of requests, for proxies and browser pages, as in https://models.example.com.
        backend: backend that runs the bundles; auto takes the first that works.
        precision: precision of the graphs (default: the backend's choice).
        threads: threads per batch; by default the backend's choice.
        trust: PEM file with the public key or issuer certificates that must have signed every bundle.
        revision: branch, tag or commit of a bundle on the Hub (default: main).
        watching: options of drift detection.
        recording: record of abstained and flagged inputs; by default none.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    grpc_port: int | None = None
    batch_size: int = 32
    queue: int = 1024
    timeout: float = 30.0
    max_bytes: int = 64 * 2**20
    requests: int = 256
    workers: int = 1
    token: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    origins: Sequence[str] = ()
    backend: str = "auto"
    precision: Precision | None = None
    threads: int | None = None
    trust: str | Path | None = None
    revision: str | None = None
    watching: Watching = field(default_factory=Watching)
    recording: Recording | None = None

    def __post_init__(self) -> None:
        ports, million = (0, 65535), (1, 10**6)
        check_plain(self, port=ports, grpc_port=ports, batch_size=(1, 4096), queue=million, requests=million,
                    max_bytes=(1, 2**40), workers=(1, 256))  # fmt: skip
        if not 0 < self.timeout <= 86400:
            raise InputError(f"timeout is {cut(self.timeout)}; expected seconds, above 0 and at most 86400 (a day)")
        if not self.host:
            raise InputError("host is empty; expected an address, as in 127.0.0.1")
        if self.token is not None and not re.fullmatch(r"[!-~]{8,}", self.token):  # too short, or invalid in a header
            count = f"{len(self.token)} characters"
            raise InputError(f"the token has {count}; expected 8 or more printable ASCII characters without spaces")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InputError("only one of tls_cert and tls_key is set; TLS needs a certificate and its private key")
        for origin in self.origins:
            if not re.fullmatch(r"https?://[^/]+", origin):
                raise InputError(f"origins has {cut(origin)}; expected an origin, as in https://models.example.com")


@lru_cache(maxsize=256)
def is_loopback(host: str) -> bool:
    """Return True if a host name or address is loopback."""
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
