"""``hydrant serve``: bundles behind a port, until a signal ends it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ..errors import InputError
from ..serving.observers import configure_log
from ..serving.ray_serve import Replicas, serve_on_ray
from ..serving.record import Recording
from ..serving.serve_settings import ServeSettings
from ..serving.server import Ready
from ..serving.stats import Watching
from ..serving.workers import serve
from . import shared
from .options import Command, call, value
from .terminal import log, print_json
from .words import count, positive, seconds, share

EXAMPLE = "hydrant serve out/ --port 8000"


def arguments(command: Command) -> None:
    """Its options."""
    command.heading("input")
    command.take(serve, "folder", "folder", metavar="BUNDLE")
    command.heading("where it listens")
    command.take(ServeSettings, "host", metavar="ADDRESS")
    command.take(ServeSettings, "port", type=count, metavar="N")
    command.take(ServeSettings, "grpc_port", type=count, metavar="N")
    command.take(ServeSettings, "workers", type=positive, metavar="N")
    command.heading("how it runs")
    command.take(ServeSettings, "backend", metavar="NAME", also=f": auto, {shared.BACKENDS}")
    command.take(ServeSettings, "precision")
    command.take(ServeSettings, "threads", type=positive, metavar="N")
    command.take(ServeSettings, "batch_size", type=positive, metavar="N")
    command.take(ServeSettings, "trust", type=str, metavar="FILE")
    command.heading("scale")
    command.add(
        "--engine",
        choices=("local", "ray"),
        default="local",
        help="What runs the service: this machine (local, the default), or replicas of Ray Serve (ray), on the cluster "
        "that RAY_ADDRESS names or on this machine",
    )
    command.take(Replicas, "replicas", metavar="N")
    command.take(Replicas, "replica_cpus", type=float, metavar="CPUS")
    command.take(Replicas, "replica_gpus", type=float, metavar="GPUS")
    command.heading("who may ask, and how much")
    command.add("--token-file", type=Path, metavar="FILE",
                help="File that holds the secret which clients send as Authorization: Bearer …; without it anyone who "
                "reaches the port may ask")  # fmt: skip
    command.take(ServeSettings, "tls_cert", metavar="FILE")
    command.take(ServeSettings, "tls_key", metavar="FILE")
    command.take(ServeSettings, "origins", "--origin", metavar="URL")
    command.take(ServeSettings, "queue", type=positive, metavar="N")
    command.take(ServeSettings, "requests", type=positive, metavar="N")
    command.take(ServeSettings, "timeout", type=seconds, metavar="SECONDS")
    command.take(ServeSettings, "max_bytes", type=positive, metavar="N")
    command.heading("what is watched and recorded")
    command.take(Watching, "alpha", type=share, metavar="SHARE")
    command.take(Watching, "psi", metavar="PSI")
    command.take(Watching, "window", type=positive, metavar="N")
    command.take(Recording, "file", "--record", metavar="FILE")
    command.take(Recording, "rate", "--record-rate", metavar="SHARE")
    command.take(Recording, "most_bytes", "--record-bytes", type=positive, metavar="N")
    command.take(Recording, "redact", "--record-redact", metavar="MODULE:FUNCTION")


def run(options: argparse.Namespace) -> int:
    """Serve."""
    watched = {"watching": call(Watching, options), "recording": _recording(options)}
    settings = call(ServeSettings, options, token=_token(options.token_file), **watched)

    def announce(ready: Ready) -> None:
        if not settings.loopback and settings.token is None:
            log.warning("%s is open to whoever reaches it; --token-file asks for a secret", settings.host)
        if options.json:
            print_json(ready)
            return
        models = ", ".join(f"{name} (version {version})" for name, version in ready["models"].items())
        host = f"[{ready['host']}]" if ":" in ready["host"] else ready["host"]
        grpc = "" if ready["grpc_port"] is None else f", gRPC at {host}:{ready['grpc_port']}"
        print(
            f"hydrant: {models} at {ready['scheme']}://{host}:{ready['port']}{grpc}; Ctrl-C ends it",
            file=sys.stderr,
            flush=True,
        )

    configure_log()
    if options.engine == "ray":
        serve_on_ray(value(serve, "folder", options), settings, call(Replicas, options), announce)
        return 0
    given = [name for name in ("replicas", "replica_cpus", "replica_gpus") if name in options]
    if given:
        raise InputError(f"--{given[0].replace('_', '-')} is for --engine ray; give that, too, or leave it out")
    call(serve, options, settings=settings, announce=announce)
    return 0


def _recording(options: argparse.Namespace) -> Recording | None:
    """What is recorded; options of the record without a file are refused."""
    if hasattr(options, "record"):
        found: Recording = call(Recording, options)
        return found
    for name in ("record_rate", "record_bytes", "record_redact"):
        if hasattr(options, name):
            raise InputError(f"--{name.replace('_', '-')} is given without --record; give the file to record in")
    return None


def _token(file: Path | None) -> str | None:
    """The secret in a file, without the space around it."""
    if file is None:
        return None
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {file}: {getattr(error, 'strerror', None) or 'it is not text'}") from error
