"""One model of a repository: its configuration and files, and the parts that the configurations have in common."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...version import __version__
from .pbtxt import Message, Word, entries, to_pbtxt
from .settings import TritonSettings
from .tensors import TensorSpec

CONFIG = "config.pbtxt"

MARKER = "hydrant-triton.json"
"""File in a version's folder by which it is known to be ours, and what it takes and gives."""

ENVIRONMENT = "EXECUTION_ENV_PATH"
"""Parameter by which Triton's Python backend finds an environment."""


@dataclass(frozen=True)
class Model:
    """A model of the repository, with one version of it.

    Attributes:
        name: of the model, and of its folder.
        part: what it does: ``"whole"``, or of an ensemble ``"ensemble"``, ``"prepare"``, ``"graph"`` or ``"decide"``.
        config: of Triton, without the name.
        inputs, outputs: what the model takes and gives.
        version_files: in the folder of the version: name → content, or a file to copy.
        files: beside ``config.pbtxt``.
        labels: class names that answers have.
        limits: of an engine, which the configuration repeats.
    """

    name: str
    part: str
    config: Message
    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]
    version_files: Mapping[str, bytes | Path]
    files: Mapping[str, bytes] = field(default_factory=dict)
    labels: Sequence[str] = ()
    limits: Mapping[str, Any] = field(default_factory=dict)

    def config_text(self) -> str:
        """The whole ``config.pbtxt``."""
        head = {"name": self.name}
        tensors = {
            "input": [spec.message() for spec in self.inputs],
            "output": [spec.message() for spec in self.outputs],
        }
        return f"# Written by hydrant {__version__}.\n" + to_pbtxt({**head, **self.config, **tensors})

    def interface(self) -> dict[str, Any]:
        """What all versions of a model must have in common, since they share a configuration, as a JSON object."""
        tensors = {
            kind: sorted([spec.name, spec.datatype, list(spec.dims), spec.optional] for spec in specs)
            for kind, specs in (("inputs", self.inputs), ("outputs", self.outputs))
        }
        runs = {name: str(self.config[name]) for name in ("backend", "platform") if name in self.config}
        limits = {"limits": dict(self.limits)} if self.limits else {}
        return {**tensors, **runs, **limits, "labels": list(self.labels)}


def python_model(kind: str, what: str) -> bytes:
    """The ``model.py`` of a model in Triton's Python backend."""
    return f'''"""{what}; written by hydrant {__version__}."""

try:
    from hydrant.serving.triton.models import {kind}
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"{{error}}: install hydrant for the Python of Triton's Python backend, or name an environment that has it in "
        "config.pbtxt (parameter {ENVIRONMENT}); README.md of the model says how"
    ) from error


class TritonPythonModel({kind}):
    """What Triton looks for."""
'''.encode()


def python_config(settings: TritonSettings, instances: int, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a model in Triton's Python backend, without tensors and warm-up."""
    given = {**parameters, ENVIRONMENT: settings.environment and str(settings.environment)}
    named = {name: {"string_value": str(value)} for name, value in given.items() if value is not None}
    return {
        "backend": "python",
        **batching(settings),
        "instance_group": [{"kind": Word("KIND_CPU"), "count": instances}],
        "version_policy": {"all": {}},
        **({"parameters": entries(named)} if named else {}),
    }


def batching(settings: TritonSettings) -> dict[str, Any]:
    """How requests become batches: what waits runs together, as soon as an instance is free."""
    delay = {"max_queue_delay_microseconds": settings.queue_delay} if settings.queue_delay else {}
    return {"max_batch_size": settings.max_batch, "dynamic_batching": delay}


def warmup(name: str, batch: int, inputs: Iterable[tuple[TensorSpec, Sequence[int], str | None]]) -> Message:
    """A request that a model answers before it is ready."""
    values = {
        spec.name: {
            "data_type": Word(spec.datatype),
            "dims": list(dims),
            **({"zero_data": True} if file is None else {"input_data_file": file}),
        }
        for spec, dims, file in inputs
    }
    return {"name": name, "batch_size": batch, "inputs": entries(values)}


def string_data(content: bytes) -> bytes:
    """One element of a tensor of strings as warm-up files hold it: its length, and its bytes."""
    return struct.pack("<I", len(content)) + content


def marker(model: Model, facts: Mapping[str, Any]) -> bytes:
    """Content of :data:`MARKER`."""
    told = {"schema": 1, "hydrant": __version__, "model": model.name, "part": model.part, **facts}
    return (json.dumps({**told, "interface": model.interface()}, indent=1, ensure_ascii=False) + "\n").encode()
