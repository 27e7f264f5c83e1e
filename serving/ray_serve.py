"""Bundles on Ray Serve: replicas of the service behind Ray's HTTP server, which scales them with the traffic."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import MutableMapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..bundle.hub_download import local_folder
from ..bundle.staging import signals_to
from ..bundle.store import Bundle
from ..errors import BackendError, InputError, cut, require
from ..runtime.offline.ray_cluster import Pool, check_room, cluster
from .observers import configure_log
from .serve_settings import ServeSettings
from .server import Announce, Monitor, assembled, bound
from .service import Service, list_bundles

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

PURPOSE = "serve on many machines"
NAME = "hydrant"  # of the application and its deployment in Ray

UNSUPPORTED_SETTINGS = {
    "workers": ("--workers", "replicas (--replicas) are Ray's workers"),
    "grpc_port": ("--grpc-port", "Ray serves REST only"),
    "tls_cert": ("--tls-cert", "use a proxy that speaks TLS"),
    "recording": ("--record", "every replica would write a separate file on its machine"),
}


@dataclass(frozen=True)
class Replicas:
    """The replicas of Ray Serve; raises ``InputError`` for an invalid number.

    Attributes:
        replicas: number of replicas, or MIN:MAX to autoscale.
        replica_cpus: CPUs and threads per replica; default 1, or less if the cluster has fewer CPUs than replicas.
        replica_gpus: GPUs that each replica takes, which may be a part of one.
    """

    replicas: str = "1"
    replica_cpus: float | None = None
    replica_gpus: float = 0.0

    def __post_init__(self) -> None:
        self.pool  # noqa: B018 - checks itself

    @property
    def pool(self) -> Pool:
        """The number of replicas, and the resources of each."""
        return Pool.parse(self.replicas, self.replica_cpus, self.replica_gpus, "replica")


class Replica:
    """The service in each Ray process."""

    async def __init__(self, folder: str, settings: ServeSettings) -> None:  # type: ignore[misc]  # Ray awaits it
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
    """Serve bundles until SIGTERM or SIGINT, on the cluster ``RAY_ADDRESS`` or on this machine."""
    usual = ServeSettings()
    for name, (flag, instead) in UNSUPPORTED_SETTINGS.items():
        if getattr(settings, name) != getattr(usual, name):
            raise InputError(f"{flag} cannot be used with --engine ray: {instead}; omit it")
    if settings.port == 0:
        raise InputError("port is 0, but Ray does not report a chosen port; use the number of a free port")
    folder = local_folder(folder, settings.revision)
    models = list_bundles(folder)
    for path in [path for versions in models.values() for path in versions.values()]:
        Bundle.open(path)
    with bound(settings.host, settings.port):
        pass  # check that it is free: Ray would try for minutes
    ended = threading.Event()
    with (
        contextlib.redirect_stdout(sys.stderr),  # Ray prints the ends of its processes
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
            raise BackendError(f"Ray Serve failed: {cut(error, 300)}; run `serve status` for details") from error
        finally:
            with contextlib.suppress(Exception):  # it never started
                serve.delete(NAME)


def _start(ray: Any, serve: Any, folder: str, settings: ServeSettings, pool: Pool) -> None:
    """Start Ray's HTTP server and the first replicas."""
    resources = ray.cluster_resources()
    share = pool.share(resources.get("CPU", 1.0))
    check_room(resources, pool)
    trust = settings.trust and Path(settings.trust).resolve()  # replicas have other working directories
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
