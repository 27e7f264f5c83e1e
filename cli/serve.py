"""``hydrant serve``: serve bundles over HTTP and gRPC until a signal."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from ..data.specs import Spec, decode
from ..errors import InputError
from ..serving.observers import configure_log
from ..serving.ray_serve import Replicas, serve_on_ray
from ..serving.record import Recording
from ..serving.serve_settings import ServeSettings, is_loopback
from ..serving.server import Ready
from ..serving.stats import Watching
from ..serving.workers import serve
from . import shared
from .command_options import Command, call, count, positive, seconds, value
from .terminal import log, print_json

EXAMPLE = "hydrant serve out/ --port 8000"


def arguments(command: Command) -> None:
    command.take(serve, "folder", "folder", type=str, metavar="BUNDLE")
    command.heading("common")
    command.take(ServeSettings, "host", metavar="ADDRESS")
    command.take_all(ServeSettings, "port", "grpc_port", type=count)
    command.take(ServeSettings, "workers", type=positive)
    command.add("--token-file", type=Path, metavar="FILE",
                help="File with the bearer token that clients must send (default: no authentication)")  # fmt: skip
    command.take_all(ServeSettings, "tls_cert", "tls_key", metavar="FILE")
    command.heading("advanced")
    shared.backend(command, ServeSettings)
    command.take_all(ServeSettings, "threads", "batch_size", type=positive)
    command.take(ServeSettings, "trust", type=str)
    command.take(ServeSettings, "revision", metavar="NAME")
    command.add("--engine", choices=("local", "ray"), default="local",
                help="Run on this machine, or as replicas of Ray Serve at RAY_ADDRESS (default: local)")  # fmt: skip
    command.take(Replicas, "replicas", metavar="N")
    command.take(ServeSettings, "queue", type=positive)
    command.take(ServeSettings, "timeout", type=seconds, metavar="SECONDS")
    command.take(ServeSettings, "max_bytes", type=positive)
    command.take(Recording, "file", "--record")
    command.add("--settings", type=Path, metavar="FILE", help="JSON file with rarer settings, listed below")
    command.notes.append(f"settings: {', '.join(Settings.__struct_fields__)}")


def run(options: argparse.Namespace) -> int:
    file = options.settings
    rare = Settings() if file is None else decode(_text(file).encode(), Settings, file, InputError)
    token = None if options.token_file is None else _text(options.token_file)
    watched = {"watching": Watching(**rare.only("alpha", "psi", "window")), "recording": _recording(options, rare)}
    limits = rare.only("requests", "origins")
    settings = call(ServeSettings, options, token=token, **watched, **limits)

    def announce(ready: Ready) -> None:
        if not is_loopback(settings.host) and settings.token is None:
            log.warning("anyone who reaches %s can send requests; --token-file requires a token", settings.host)
        if options.json:
            print_json(ready)
            return
        models = ", ".join(f"{name} (version {version})" for name, version in ready["models"].items())
        host = f"[{ready['host']}]" if ":" in ready["host"] else ready["host"]
        grpc = "" if ready["grpc_port"] is None else f", gRPC at {host}:{ready['grpc_port']}"
        print(
            f"hydrant: {models} at {ready['scheme']}://{host}:{ready['port']}{grpc}; press Ctrl-C to stop",
            file=sys.stderr,
            flush=True,
        )

    configure_log()
    if options.engine == "ray":
        replicas = call(Replicas, options, **rare.only("replica_cpus", "replica_gpus"))
        serve_on_ray(value(serve, "folder", options), settings, replicas, announce)
        return 0
    if "replicas" in options:
        raise InputError("--replicas needs --engine ray; add it, or omit --replicas")
    call(serve, options, settings=settings, announce=announce)
    return 0


class Settings(Spec, frozen=True, kw_only=True):
    """Rarer settings of a service, read from the file of ``--settings``."""

    requests: int | None = None
    origins: tuple[str, ...] | None = None
    alpha: float | None = None
    psi: float | None = None
    window: int | None = None
    record_rate: float | None = None
    record_bytes: int | None = None
    record_redact: str | None = None
    replica_cpus: float | None = None
    replica_gpus: float | None = None

    def only(self, *names: str) -> dict[str, Any]:
        """Return the settings among ``names`` that the file contains."""
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


def _recording(options: argparse.Namespace, rare: Settings) -> Recording | None:
    """Return the recording; reject its settings without ``--record``."""
    names = {"record_rate": "rate", "record_bytes": "most_bytes", "record_redact": "redact"}
    chosen = {names[name]: each for name, each in rare.only(*names).items()}
    if hasattr(options, "record"):
        return Recording(options.record, **chosen)
    if chosen:
        raise InputError(f"{options.settings} sets {next(iter(rare.only(*names)))}, which needs --record FILE; add it")
    return None


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {file}: {getattr(error, 'strerror', None) or 'not a text file'}") from error
