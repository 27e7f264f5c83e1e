"""Bundles on Ray Serve: replicas of the same service, scaled by Ray with the traffic, behind its own HTTP server."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import MutableMapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..bundle.staging import signals_to
from ..bundle.store import Bundle
from ..errors import BackendError, InputError, cut, require
from ..runtime.offline.ray_cluster import Pool, check_room, cluster
from .observers import configure_log
from .serve_settings import ServeSettings
from .server import Announce, Monitor, assembled, bound
from .service import Service, found_bundles

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

PURPOSE = "serve on many machines"
NAME = "hydrant"  # of the application and its deployment in Ray

UNSUPPORTED_SETTINGS = {
    "workers": ("--workers", "replicas (--replicas) are Ray's workers"),
    "grpc_port": ("--grpc-port", "Ray serves REST only"),
    "tls_cert": ("--tls-cert", "put a proxy that speaks TLS before it"),
    "recording": ("--record", "every replica would write a file of its own, on its own machine"),
}


@dataclass(frozen=True)
class Replicas:
    """The replicas of Ray Serve.

    Attributes:
        replicas: number of replicas, or MIN:MAX to autoscale.
        replica_cpus: CPUs that each replica takes, and threads within one run; without it one, or less where the
            cluster has fewer CPUs than replicas.
        replica_gpus: GPUs that each replica takes, which may be a part of one.

    Raises:
        InputError: no such numbers.
    """

    replicas: str = "1"
    replica_cpus: float | None = None
    replica_gpus: float = 0.0

    def __post_init__(self) -> None:
        self.pool  # noqa: B018 - checks itself

    @property
    def pool(self) -> Pool:
        """How many there are, and what each takes."""
        return Pool.parse(self.replicas, self.replica_cpus, self.replica_gpus, "replica")


class Replica:
    """The service in each process of Ray."""

    async def __init__(self, folder: str, settings: ServeSettings) -> None:  # type: ignore[misc]  # Ray waits for it
        configure_log(logging.WARNING)
        monitor = Monitor(settings.watching, settings.recording)
        service = Service(folder, settings, monitor.observers)
        self._app = assembled(service, monitor)
        await service.start()

    async def __call__(self, request: Request) -> Response:
        """Answer a request."""
        from starlette.responses import Response

        head: MutableMapping[str, Any] = {"status": 500, "headers": []}
        body: list[bytes] = []

        async def send(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                head.update(message)
            else:
                body.append(message.get("body", b""))

        await self._app(request.scope, request.receive, send)
        response = Response(b"".join(body), head["status"])
        response.raw_headers = list(head["headers"])
        return response


def serve_on_ray(folder: str | Path, settings: ServeSettings, replicas: Replicas, announce: Announce) -> None:
    """Serve bundles until SIGTERM or SIGINT, on the cluster that ``RAY_ADDRESS`` names or on this machine."""
    usual = ServeSettings()
    for name, (flag, instead) in UNSUPPORTED_SETTINGS.items():
        if getattr(settings, name) != getattr(usual, name):
            raise InputError(f"{flag} has no meaning with --engine ray: {instead}; leave it out")
    if settings.port == 0:
        raise InputError("port is 0, and Ray cannot tell which one it chose; give the number of a free port")
    models = found_bundles(folder)
    for path in [path for versions in models.values() for path in versions.values()]:
        Bundle.open(path)
    with bound(settings.host, settings.port):
        pass  # it is free: otherwise Ray would try for minutes
    ended = threading.Event()
    with (
        contextlib.redirect_stdout(sys.stderr),  # where Ray prints the ends of its processes
        cluster(PURPOSE) as ray,
        signals_to(lambda *_: ended.set(), "SIGTERM", "SIGINT"),
    ):
        serve = require("ray.serve", "ray", PURPOSE)
        try:
            _start(ray, serve, str(Path(folder).resolve()), settings, replicas.pool)
            ready = {"scheme": "http", "host": settings.host, "port": settings.port, "grpc_port": None}
            newest = {name: list(versions)[-1] for name, versions in models.items()}
            with contextlib.redirect_stdout(sys.__stdout__):
                announce({**ready, "workers": replicas.pool.most, "models": newest})
            while not ended.wait(0.2):
                pass
        except RuntimeError as error:
            raise BackendError(f"Ray Serve cannot run it: {cut(error, 300)}; `serve status` tells more") from error
        finally:
            with contextlib.suppress(Exception):  # it never began
                serve.delete(NAME)


def _start(ray: Any, serve: Any, folder: str, settings: ServeSettings, pool: Pool) -> None:
    """Start Ray's HTTP server and the first replicas."""
    resources = ray.cluster_resources()
    share = pool.share(resources.get("CPU", 1.0))
    check_room(resources, pool)
    trust = settings.trust and Path(settings.trust).resolve()  # each replica has a working directory of its own
    own = replace(settings, workers=pool.most, threads=settings.threads or max(1, int(share)), trust=trust)
    limits = {"min_replicas": pool.least, "max_replicas": pool.most, "target_ongoing_requests": settings.batch_size}
    scaling = {"autoscaling_config": limits} if pool.least < pool.most else {"num_replicas": pool.most}
    quiet = {"log_level": "ERROR", "enable_access_log": False}
    deployment = serve.deployment(
        name=NAME,
        max_ongoing_requests=settings.requests,
        max_queued_requests=settings.queue,
        graceful_shutdown_timeout_s=settings.timeout,
        ray_actor_options={"num_cpus": share, "num_gpus": pool.gpus},
        logging_config=quiet,
        **scaling,
    )(Replica)
    for name in ("ray", "ray.serve"):
        logging.getLogger(name).setLevel(logging.ERROR)
    http = {"host": settings.host, "port": settings.port, "request_timeout_s": settings.timeout + 5}
    serve.start(proxy_location="HeadOnly", http_options=http, logging_config=quiet)
    serve.run(deployment.bind(folder, own), name=NAME, route_prefix="/")
