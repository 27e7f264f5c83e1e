"""How a service runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import ip_address
from pathlib import Path

from ..errors import InputError, check_plain, cut, is_whole
from ..metrics.gates import Precision
from .record import Recording
from .stats import Watching


@dataclass(frozen=True)
class ServeSettings:
    """How a service runs: where it listens, what it takes at most, and what runs its bundles.

    Attributes:
        host: address to listen on; anything but this machine's own is for services behind a firewall or proxy.
        port: port of REST; 0 lets the system choose one.
        grpc_port: port of gRPC, where 0 lets the system choose one; without it there is no gRPC.
        batch_size: most inputs in one run; those that wait run together, and none waits for others to come.
        queue: most inputs that wait for one model; beyond it requests are refused (503), and told when to come again.
        timeout: seconds that a request may take, from its first byte to its answer.
        max_bytes: largest body of a request, in bytes.
        requests: most requests that are read and answered at a time.
        workers: processes that share the port, each with its own copy of the model.
        token: secret that clients send as ``Authorization: Bearer …``; without it anyone who reaches the port may ask.
        tls_cert: PEM file of the certificate (with its chain); with it, the service speaks HTTPS only.
        tls_key: PEM file of the certificate's private key.
        origins: further origin by which a service may be asked, through a proxy and by its pages in browsers, as in
            https://models.example.com.
        backend: backend that runs the bundles, where auto is the first that can run.
        precision: precision of the graphs; without it that of the backend's choice.
        threads: threads within one run; without it the backend's default.
        trust: PEM file with the public key, or the issuers' certificates, that every bundle must be signed by.
        watching: how predictions are watched for drift.
        recording: of inputs that are abstained from or flagged; without it none are.

    Raises:
        InputError: one of them cannot be used.
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
    watching: Watching = field(default_factory=Watching)
    recording: Recording | None = None

    def __post_init__(self) -> None:
        check_plain(self)
        bounds = {
            "port": (0, 65535), "batch_size": (1, 4096), "queue": (1, 10**6), "max_bytes": (1, 2**40),
            "requests": (1, 10**6), "workers": (1, 256), "grpc_port": (0, 65535),
        }  # fmt: skip
        for name, (least, most) in bounds.items():
            value = getattr(self, name)
            if not is_whole(value, least, most) and not (name == "grpc_port" and value is None):
                raise InputError(f"{name} is {cut(value)}; expected a whole number, {least} to {most}")
        if not 0 < self.timeout <= 86400:
            raise InputError(f"timeout is {cut(self.timeout)}; expected seconds, above 0 and at most 86400 (a day)")
        if not self.host:
            raise InputError("host is empty; expected an address, as in 127.0.0.1")
        if self.token is not None and not re.fullmatch(r"[!-~]{8,}", self.token):  # too short, or no header holds it
            count = f"{len(self.token)} characters"
            raise InputError(f"the token has {count}; expected 8 or more printable ASCII characters without spaces")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InputError("tls_cert and tls_key belong together: TLS needs a certificate and its private key")
        for origin in self.origins:
            if not re.fullmatch(r"https?://[^/]+", origin):
                raise InputError(f"origins has {cut(origin)}; expected a scheme and host: https://models.example.com")

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the service."""
        return is_loopback(self.host)


@lru_cache(maxsize=256)
def is_loopback(host: str) -> bool:
    """Whether a host, by name or address, is this machine itself."""
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
