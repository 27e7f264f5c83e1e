"""The models that Triton's Python backend runs: a generated ``model.py`` imports one of these classes."""

from __future__ import annotations

import importlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ...bundle.calibration import Calibration
from ...bundle.store import Bundle
from ...data.batching import Prepared
from ...data.processor import Processor, load_processor
from ...errors import BackendError, HydrantError, InputError, cut, listing
from ...runtime.loading import load
from ...runtime.prediction import Prediction, decided
from ...runtime.predictor import Predictor
from .triton_tensors import SPANS, answer_arrays, graph_outputs

BUNDLE, LINK = "bundle", "bundle.path"  # in a version's folder: the bundle, or a file with its path
BACKEND, PRECISION, THREADS = "hydrant.backend", "hydrant.precision", "hydrant.threads"
SHORTEST, LONGEST = "hydrant.shortest", "hydrant.longest"
"""Parameters of ``config.pbtxt``: of the whole predictor, and the token limits of an engine."""

MULTIPLE = 16  # texts are padded to a multiple of this number of tokens: Triton batches only requests of equal shapes
Arrays = Mapping[str, np.ndarray]
Answer = Arrays | HydrantError
Inputs = list[Any] | dict[str, np.ndarray]  # raw inputs, or the graph's tensors


class PythonModel(ABC):
    """Reads the tensors of requests, and writes the answer or error of each."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Open the bundle in the version's folder."""
        self._triton = importlib.import_module("triton_python_backend_utils")
        config = json.loads(args["model_config"])
        self._inputs, self._outputs = ([entry["name"] for entry in config[key]] for key in ("input", "output"))
        self._parameters = {name: entry["string_value"] for name, entry in config.get("parameters", {}).items()}
        folder = Path(args["model_repository"]) / args["model_version"]
        link = folder / LINK
        self.open(Bundle.open(link.read_text(encoding="utf-8").rstrip("\n") if link.is_file() else folder / BUNDLE))

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer each request of a batch with its tensors or its error."""
        triton = self._triton
        cancelled = triton.TritonError("the client cancelled the request", triton.TritonError.CANCELLED)
        waiting = [place for place, request in enumerate(requests) if not request.is_cancelled()]
        answers = self.answers([self._read(requests[place]) for place in waiting]) if waiting else []
        responses = [triton.InferenceResponse(error=cancelled) for _ in requests]
        for place, answer in zip(waiting, answers, strict=True):
            responses[place] = self._response(requests[place], answer)
        return responses

    @abstractmethod
    def open(self, bundle: Bundle) -> None:
        """Open the bundle of this version."""

    @abstractmethod
    def together(self, requests: Sequence[Arrays]) -> list[Answer]:
        """Tensors by name for each of one or more requests; may raise the error of one."""

    def answers(self, requests: Sequence[Arrays]) -> list[Answer]:
        """Tensors by name, or an error, for each request; after an error each is answered separately."""
        try:
            return self.together(requests)
        except HydrantError as error:
            if len(requests) == 1:
                return [error]
            return [answer for request in requests for answer in self.answers([request])]

    def setting(self, name: str) -> str | None:
        """A parameter of ``config.pbtxt``; ``None`` if absent or empty."""
        return self._parameters.get(name) or None

    def number(self, name: str) -> int | None:
        """A parameter that is a whole number; ``None`` if absent or empty."""
        text = self.setting(name) or ""
        if text and not text.isdecimal():
            raise InputError(f"parameter {name} in config.pbtxt is {cut(text)}; expected a whole number, 1 or more")
        return int(text) if text else None

    def _read(self, request: Any) -> Arrays:
        tensors = {name: self._triton.get_input_tensor_by_name(request, name) for name in self._inputs}
        return {name: tensor.as_numpy() for name, tensor in tensors.items() if tensor is not None}

    def _response(self, request: Any, answer: Answer) -> Any:
        triton = self._triton
        wanted = set(request.requested_output_names() or self._outputs)
        names = [name for name in self._outputs if name in wanted]
        if not isinstance(answer, HydrantError) and (absent := [name for name in names if name not in answer]):
            fix = "write the model again with `hydrant triton --force`"
            answer = BackendError(f"config.pbtxt declares {listing(absent)}, which this bundle does not return; {fix}")
        if isinstance(answer, HydrantError):
            error = triton.TritonError
            code = error.INVALID_ARG if isinstance(answer, InputError) else error.INTERNAL
            return triton.InferenceResponse(error=error(str(answer), code))
        return triton.InferenceResponse([triton.Tensor(name, np.ascontiguousarray(answer[name])) for name in names])


class Whole(PythonModel):
    """The whole predictor: raw inputs or ready tensors → every field of their predictions."""

    _predictor: Predictor

    def open(self, bundle: Bundle) -> None:
        """Load the bundle, with the parameters' backend, precision and threads."""
        precision: Any = self.setting(PRECISION)
        threads = self.number(THREADS)
        self._predictor = load(bundle, self.setting(BACKEND) or "auto", threads=threads, precision=precision)

    def together(self, requests: Sequence[Arrays]) -> list[Answer]:
        """Predict all requests as one batch."""
        inputs = [read_inputs(request) for request in requests]
        answers: list[Answer] = []
        for request, read, part in zip(requests, inputs, predicted(self._predictor, inputs), strict=True):
            # alone, an invalid request gets its own error
            answers += self.answers([request]) if part.failed.any() else [self._tensors(read, part)]
        return answers

    def finalize(self) -> None:
        """Close the predictor."""
        self._predictor.close()

    def _tensors(self, inputs: Inputs, prediction: Prediction) -> Arrays:
        arrays = answer_arrays(prediction, self._predictor.labels)
        if SPANS in self._outputs and isinstance(inputs, list):
            rows = self._predictor.rows(prediction, inputs)
            arrays[SPANS] = np.array([[json.dumps(row["spans"]).encode()] for row in rows], object)
        return arrays


class Prepare(PythonModel):
    """The ensemble's step before the graph: raw inputs → the graph's tensors."""

    _processor: Processor

    def open(self, bundle: Bundle) -> None:
        """Load the tokenizer or image processor."""
        spec = bundle.any_architecture()
        self._shortest, longest = self.number(SHORTEST) or 1, self.number(LONGEST)
        if longest is not None and longest < spec.max_sequence:
            spec = replace(spec, positions=spec.positions - (spec.max_sequence - longest))
        folder = bundle.processor_folder()
        assert folder is not None  # only bundles with a processor have this step
        self._spec, self._processor = spec, load_processor(folder, spec)

    def together(self, requests: Sequence[Arrays]) -> list[Answer]:
        """Prepare each request; pads texts to a multiple of :data:`MULTIPLE` tokens."""
        return [self._prepared(request) for request in requests]

    def _prepared(self, arrays: Arrays) -> Arrays:
        inputs, spec = read_inputs(arrays), self._spec
        assert isinstance(inputs, list)  # the configuration has raw inputs only
        _, tensors = Prepared(inputs, self._processor, spec).batch(np.arange(len(inputs)))
        if spec.modality == "image":
            return tensors
        tokens = next(iter(tensors.values())).shape[1]
        longer = max(self._shortest, min(padded_length(tokens), spec.max_sequence))
        fill, width = {"input_ids": spec.padding_token}, ((0, 0), (0, longer - tokens))
        return {name: np.pad(array, width, constant_values=fill.get(name, 0)) for name, array in tensors.items()}


class Decide(PythonModel):
    """The ensemble's step after the graph: the graph's outputs → every field of the predictions."""

    def open(self, bundle: Bundle) -> None:
        """Read thresholds and labels."""
        self._calibration, self._labels = Calibration.of(bundle), bundle.labels

    def together(self, requests: Sequence[Arrays]) -> list[Answer]:
        """Decide all requests as one batch."""
        parts = [graph_outputs(arrays) for arrays in requests]
        prediction = Prediction.from_outputs(_joined(parts))
        if (name := prediction.not_finite()) is not None:
            raise BackendError(f"the graph's {name} is not finite; check the inputs, or run `hydrant verify`")
        decisions = _split(decided(prediction, self._calibration), parts)
        return [answer_arrays(each, self._labels) for each in decisions]


def read_inputs(arrays: Arrays) -> Inputs:
    """The inputs of a request: texts, pairs or images, from bytes [B, 1]; or the graph's tensors."""
    if "image" in arrays:
        return [bytes(item) for item in arrays["image"].reshape(-1)]
    if "text" not in arrays:
        return dict(arrays)
    texts = _decoded(arrays["text"], "text")
    if "text_pair" not in arrays:
        return texts
    return list(zip(texts, _decoded(arrays["text_pair"], "text_pair"), strict=True))


def predicted(predictor: Predictor, requests: Sequence[Inputs]) -> list[Prediction]:
    """The prediction of each request of a batch; the inputs of several may fail, that of a single one raises."""
    each: Any = requests
    inputs = list(chain(*each)) if isinstance(requests[0], list) else _joined(each)
    on_error = "row" if len(requests) > 1 else "raise"
    parts = _split(predictor.predict(inputs, batch_size=max(1, _count(inputs)), on_error=on_error), requests)
    if not isinstance(inputs, list):
        return parts
    # tokens: without padding for other requests
    return [part if part.mask is None else part.shortened(int(part.mask.sum(axis=1).max())) for part in parts]


def padded_length(tokens: int) -> int:
    """The number of tokens after padding to a multiple of :data:`MULTIPLE`."""
    return -(-tokens // MULTIPLE) * MULTIPLE


def _decoded(array: np.ndarray, name: str) -> list[str]:
    texts = []
    for index, item in enumerate(array.reshape(-1)):
        try:
            texts.append(item if isinstance(item, str) else bytes(item).decode())
        except UnicodeDecodeError as error:
            raise InputError(f"input {index} has a {name} that is not UTF-8 ({error.reason}); encode it") from error
    return texts


def _joined(requests: Sequence[Arrays]) -> Arrays:
    """The tensors of all requests of a batch, which Triton makes of equal shapes only."""
    return {name: np.concatenate([request[name] for request in requests]) for name in requests[0]}


def _count(inputs: Inputs | Arrays) -> int:
    return len(inputs) if isinstance(inputs, list) else len(next(iter(inputs.values())))


def _split(prediction: Prediction, requests: Sequence[Inputs | Arrays]) -> list[Prediction]:
    """Split a prediction by the requests' numbers of inputs."""
    ends = np.cumsum([0, *map(_count, requests)]).tolist()
    return [prediction.take(slice(start, end)) for start, end in pairwise(ends)]
