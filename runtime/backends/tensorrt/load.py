"""Turning the checked bytes of an engine into an engine of the library that is what its metadata says."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from ....engines.gpu import make_logger, without_place
from ....engines.metadata import EngineFile, Shape
from ....errors import BackendError, BundleError, cut
from .choose import Chosen
from .profiles import DTYPES

log = logging.getLogger(__name__)


class NativeLog:
    """The library's latest errors; its warnings go to the log at INFO."""

    def __init__(self) -> None:
        self._errors: deque[str] = deque(maxlen=8)

    def add(self, severity: str, text: str) -> None:
        """Keep an error, pass a warning on."""
        if "ERROR" in severity:
            self._errors.append(without_place(text))
        elif severity == "WARNING":
            log.info("%s", text.strip())

    def last(self) -> str:
        """The latest errors, for a message; they are forgotten."""
        text = "; ".join(dict.fromkeys(self._errors)) or "no reason given"
        self._errors.clear()
        return cut(text, 300)


@dataclass(frozen=True)
class Loaded:
    """An engine in memory.

    Attributes:
        trt: its library.
        engine: the ``ICudaEngine``.
        inputs: name → type.
        outputs: name → shape, with −1 for the batch.
        messages: what the library says from now on.
        keep: objects that must outlive the engine.
    """

    trt: ModuleType
    engine: Any
    inputs: dict[str, np.dtype[Any]]
    outputs: dict[str, Shape]
    messages: NativeLog
    keep: tuple[Any, ...]


def load_engine(trt: ModuleType, data: bytes, chosen: Chosen, graph: Path | None) -> Loaded:
    """Deserialise an engine; engine host code stays disallowed."""
    messages = NativeLog()
    logger = make_logger(trt, messages.add)
    try:
        runtime = trt.Runtime(logger)
        if hasattr(runtime, "engine_host_code_allowed"):
            runtime.engine_host_code_allowed = False
        engine = runtime.deserialize_cuda_engine(data)
        if engine is None:
            raise BackendError(_refusal(trt, chosen, messages))
        if graph is not None:
            _refit(trt, engine, logger, graph, chosen, messages)
        inputs, outputs = _tensors(trt, engine, chosen)
        _check_profiles(engine, chosen, set(inputs))
    except (BackendError, BundleError):
        raise
    except Exception as error:  # whatever the library's binding raises
        raise BackendError(
            f"{trt.__name__} {trt.__version__} failed on engine {chosen.name}: {cut(error, 200)}; rebuild it with "
            f"`{chosen.rebuild}`"
        ) from error
    return Loaded(trt, engine, inputs, outputs, messages, (runtime, logger))


def _refusal(trt: ModuleType, chosen: Chosen, messages: NativeLog) -> str:
    return (
        f"{trt.__name__} {trt.__version__} cannot load engine {chosen.name}: {messages.last()}; rebuild it with "
        f"`{chosen.rebuild}`"
    )


def _refit(trt: ModuleType, engine: Any, logger: Any, graph: Path, chosen: Chosen, messages: NativeLog) -> None:
    """Give a stripped engine the weights of its graph."""
    refitter = trt.Refitter(engine, logger)
    parser = trt.OnnxParserRefitter(refitter, logger)
    if not parser.refit_from_file(str(graph)):
        said = "; ".join(parser.get_error(index).desc() for index in range(parser.num_errors))
        raise BackendError(
            f"{trt.__name__} cannot take the weights of engine {chosen.name} from {graph.name}: "
            f"{cut(said, 200) if said else messages.last()}; rebuild it with `{chosen.rebuild}`"
        )
    if not refitter.refit_cuda_engine():
        raise BackendError(
            f"{trt.__name__} cannot put the weights of {graph.name} into engine {chosen.name}: {messages.last()}; "
            f"rebuild it with `{chosen.rebuild}`"
        )


def _tensors(trt: ModuleType, engine: Any, chosen: Chosen) -> tuple[dict[str, np.dtype[Any]], dict[str, Shape]]:
    """Inputs with their types and outputs with their shapes; others than hydrant's graphs have are refused."""
    inputs: dict[str, np.dtype[Any]] = {}
    outputs: dict[str, Shape] = {}
    for index in range(engine.num_io_tensors):
        name = engine.get_tensor_name(index)
        kind = engine.get_tensor_dtype(name).name
        shape = tuple(engine.get_tensor_shape(name))
        if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT:
            right, expected = kind in DTYPES, "INT64 or FLOAT"
            if right:
                inputs[name] = DTYPES[kind]
        else:
            right, expected = kind == "FLOAT" and shape[:1] == (-1,) and -1 not in shape[1:], "FLOAT [-1, …]"
            outputs[name] = shape
        if not right:
            raise BundleError(
                f"engine {chosen.name} has {cut(name)} as {kind} {list(shape)}; expected {expected}; rebuild it with "
                f"`{chosen.rebuild}`"
            )
    return inputs, outputs


def _check_profiles(engine: Any, chosen: Chosen, inputs: set[str]) -> None:
    """The metadata's profiles must be the engine's: buffers are sized by them."""
    facts: EngineFile = chosen.facts
    found = [
        {name: tuple(tuple(shape) for shape in engine.get_tensor_profile_shape(name, index)) for name in inputs}
        for index in range(engine.num_optimization_profiles)
    ]
    if found != list(facts.profiles):
        raise BundleError(
            f"engine {chosen.name} has the optimization profiles {cut(found, 200)}, but its metadata says "
            f"{cut(list(facts.profiles), 200)}; rebuild it with `{chosen.rebuild}`"
        )
