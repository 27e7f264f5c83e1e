"""Settings of a model in a Triton repository."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from ...errors import InputError, check_plain, cut, is_whole, listing
from ...metrics.gates import Precision

Device = Literal["cpu", "gpu"]

GraphBackend = Literal["auto", "onnxruntime", "tensorrt"]


@dataclass(frozen=True)
class TritonSettings:
    """How Triton runs a bundle; all of it can be changed in ``config.pbtxt`` later.

    Attributes:
        max_batch: inputs that a request, and a batch of requests, may hold.
        queue_delay: microseconds that a batch waits for more requests; 0 takes those that wait already.
        instances: copies of the predictor, or of the graph, that run beside each other.
        precision: precision of the graph; without it the first choice of the backend that runs it.
        threads: threads of each predictor, for the device cpu; without it all cores.
        graph_backend: what runs the graph, for the device gpu: onnxruntime; tensorrt, which needs an engine in the
            bundle; or auto, tensorrt where the bundle has an engine that Triton can run.
        environment: folder of a virtual environment, or packed file of a conda one, with hydrant for Triton's Python,
            where the machine has it that serves; without it hydrant is expected in that Python.
        linked: leave the bundle where it lies, and let the model open it there, for the device cpu; without it the
            repository holds a copy, with weights that Triton does not need.

    Raises:
        InputError: a value out of range.
    """

    max_batch: int = 32
    queue_delay: int = 0
    instances: int = 1
    precision: Precision | None = None
    threads: int | None = None
    graph_backend: GraphBackend = "auto"
    environment: str | Path | None = None
    linked: bool = False

    def __post_init__(self) -> None:
        check_plain(self)
        limits = {"max_batch": (1, 4096), "queue_delay": (0, 10_000_000), "instances": (1, 1024)}
        if self.threads is not None:
            limits["threads"] = (1, 1024)
        for name, (least, most) in limits.items():
            if not is_whole(getattr(self, name), least, most):
                raise InputError(f"{name} is {cut(getattr(self, name))}; expected a whole number, {least} to {most}")
        for name, known in (("precision", (None, *get_args(Precision))), ("graph_backend", get_args(GraphBackend))):
            if getattr(self, name) not in known:
                raise InputError(f"{name} is {cut(getattr(self, name))}; expected one of {listing(known)}")


def check_device(device: str, settings: TritonSettings) -> None:
    """Refuse an unknown device, and settings that only the other one has."""
    if device not in get_args(Device):
        raise InputError(f"device is {cut(device)}; expected one of {listing(get_args(Device))}")
    given = {"graph_backend": settings.graph_backend != "auto"} if device == "cpu" else {}
    if device == "gpu":
        given = {"threads": settings.threads is not None, "linked": settings.linked}
    if wrong := next((name for name, is_given in given.items() if is_given), None):
        raise InputError(f"{wrong} is given, and is not for the device {device}; leave it out, or use the other device")
