"""The models of a generated repository, as Triton's Python backend runs them: ``model.py`` there names one of these.

Triton makes one for each instance, calls ``initialize`` once, and ``execute`` with the requests of a batch, to get one
response for each of them, which holds tensors or an error.
"""

from __future__ import annotations

import importlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ...bundle.calibration import Calibration
from ...bundle.store import Bundle
from ...data.processor import load_processor
from ...errors import BackendError, BundleError, HydrantError, InputError, listing
from ...runtime.loading import load
from ...runtime.prediction import Prediction
from ...runtime.predictor import Predictor
from .answers import Given, decided_requests, predicted, prepared, read_inputs
from .tensors import SPANS, answer_arrays, graph_outputs

BUNDLE, LINK = "bundle", "bundle.path"
"""In a version's folder: the bundle, or a file that says where it lies."""

BACKEND, PRECISION, THREADS = "hydrant.backend", "hydrant.precision", "hydrant.threads"
"""Parameters of ``config.pbtxt`` by which the whole predictor is opened."""

SHORTEST, LONGEST = "hydrant.shortest", "hydrant.longest"
"""Parameters of the step before the graph: tokens of the shortest and of the longest text that an engine takes."""

Arrays = Mapping[str, np.ndarray]
Answer = Arrays | HydrantError


class PythonModel(ABC):
    """What every model does: read tensors, answer each request by itself, and tell what is wrong with it."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Open what stands in the version's folder."""
        self._triton = importlib.import_module("triton_python_backend_utils")
        config = json.loads(args["model_config"])
        self._inputs, self._outputs = ([entry["name"] for entry in config[key]] for key in ("input", "output"))
        self._parameters = {name: entry["string_value"] for name, entry in config.get("parameters", {}).items()}
        self.open(Bundle.open(bundle_folder(Path(args["model_repository"]) / args["model_version"])))

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer the requests of a batch, each with its tensors or its error."""
        waiting = [request for request in requests if not request.is_cancelled()]
        answers = iter(self.answers([self._read(request) for request in waiting]) if waiting else [])
        left = {id(request) for request in waiting}
        return [self._response(request, next(answers)) if id(request) in left else self._gone() for request in requests]

    @abstractmethod
    def open(self, bundle: Bundle) -> None:
        """Open the bundle of this version."""

    @abstractmethod
    def answers(self, requests: Sequence[Arrays]) -> list[Answer]:
        """Tensors by name, or an error, for each request; one or more."""

    def setting(self, name: str) -> str | None:
        """A parameter of ``config.pbtxt``; ``None`` where it is absent or empty."""
        return self._parameters.get(name) or None

    def number(self, name: str) -> int | None:
        """A parameter that is a whole number, 1 or more; ``None`` where it is absent or empty."""
        text = self.setting(name)
        if text is not None and not (text.isdecimal() and int(text) > 0):
            raise InputError(f"parameter {name} in config.pbtxt is {text!r:.60}; expected a whole number, 1 or more")
        return None if text is None else int(text)

    def _read(self, request: Any) -> Arrays:
        found = {name: self._triton.get_input_tensor_by_name(request, name) for name in self._inputs}
        return {name: tensor.as_numpy() for name, tensor in found.items() if tensor is not None}

    def _gone(self) -> Any:
        error = self._triton.TritonError
        return self._triton.InferenceResponse(error=error("the client gave this request up", error.CANCELLED))

    def _response(self, request: Any, answer: Answer) -> Any:
        triton = self._triton
        wanted = set(request.requested_output_names() or self._outputs)
        names = [name for name in self._outputs if name in wanted]
        if not isinstance(answer, HydrantError) and (absent := [name for name in names if name not in answer]):
            answer = BackendError(
                f"config.pbtxt declares {listing(absent)}, which this bundle does not give; write the model again with "
                "`hydrant triton --force`"
            )
        if isinstance(answer, HydrantError):
            error = triton.TritonError
            code = error.INVALID_ARG if isinstance(answer, InputError) else error.INTERNAL
            return triton.InferenceResponse(error=error(str(answer), code))
        return triton.InferenceResponse([triton.Tensor(name, np.ascontiguousarray(answer[name])) for name in names])


class Whole(PythonModel):
    """Raw inputs, or ready tensors, → every field of their predictions: the whole predictor."""

    _predictor: Predictor

    def open(self, bundle: Bundle) -> None:
        """Load the bundle, with the backend, precision and threads of the parameters."""
        precision: Any = self.setting(PRECISION)
        threads = self.number(THREADS)
        self._predictor = load(bundle, self.setting(BACKEND) or "auto", threads=threads, precision=precision)

    def answers(self, requests: Sequence[Arrays]) -> list[Answer]:
        """Predict all requests together."""
        given = _each(read_inputs, requests)
        good = [item for item in given if not isinstance(item, HydrantError)]
        found = iter(predicted(self._predictor, good) if good else [])
        return [item if isinstance(item, HydrantError) else self._tensors(item, next(found)) for item in given]

    def finalize(self) -> None:
        """Close the predictor."""
        self._predictor.close()

    def _tensors(self, given: Given, found: Prediction | HydrantError) -> Answer:
        if isinstance(found, HydrantError):
            return found
        arrays = answer_arrays(found, self._predictor.labels)
        if SPANS in self._outputs and isinstance(given, list):
            rows = self._predictor.rows(found, given)
            arrays[SPANS] = np.array([[json.dumps(row["spans"]).encode()] for row in rows], object)
        return arrays


class Prepare(PythonModel):
    """Raw inputs → the graph's tensors: the step of an ensemble before the graph."""

    def open(self, bundle: Bundle) -> None:
        """Load the tokenizer or image processor."""
        spec = bundle.any_architecture()
        self._shortest, self._longest = self.number(SHORTEST) or 1, self.number(LONGEST)
        if self._longest is not None and self._longest < spec.max_sequence:
            spec = replace(spec, positions=spec.positions - (spec.max_sequence - self._longest))
        if (folder := bundle.processor_folder()) is None:
            raise BundleError(f"{bundle.path} has no processor; write the model again with `hydrant triton --force`")
        self._spec, self._processor = spec, load_processor(folder, spec)

    def answers(self, requests: Sequence[Arrays]) -> list[Answer]:
        """Prepare each request by itself."""
        return _each(self._prepared, requests)

    def _prepared(self, arrays: Arrays) -> Arrays:
        given = read_inputs(arrays)
        assert isinstance(given, list)  # the configuration has raw inputs only
        return prepared(self._processor, self._spec, given, self._shortest)


class Decide(PythonModel):
    """The graph's outputs → every field of the predictions: the step of an ensemble behind the graph."""

    def open(self, bundle: Bundle) -> None:
        """Read thresholds and labels."""
        self._calibration, self._labels = Calibration.of(bundle), bundle.labels

    def answers(self, requests: Sequence[Arrays]) -> list[Answer]:
        """Decide all requests together."""
        found = decided_requests([graph_outputs(arrays) for arrays in requests], self._calibration)
        return [item if isinstance(item, HydrantError) else answer_arrays(item, self._labels) for item in found]


def bundle_folder(folder: Path) -> Path:
    """Where the bundle of a version lies."""
    link = folder / LINK
    if (folder / BUNDLE).is_dir() or not link.is_file():
        return folder / BUNDLE
    return Path(link.read_text(encoding="utf-8").rstrip("\n"))


def _each(function: Callable[[Arrays], Any], requests: Sequence[Arrays]) -> list[Any]:
    """What a function makes of each request, or the error that it raises."""
    found: list[Any] = []
    for request in requests:
        try:
            found.append(function(request))
        except HydrantError as error:
            found.append(error)
    return found
