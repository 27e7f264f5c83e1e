"""Requests that Triton hands over together → an answer, or an error, for each; nothing here knows Triton.

A request holds one or more inputs. Those of all requests are predicted at once; what is wrong with one of them is told
to its own request alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ...bundle.calibration import Calibration
from ...data.batching import Prepared
from ...data.processor import Processor
from ...data.spec import InputSpec
from ...errors import BackendError, HydrantError, InputError
from ...runtime.decisions import decided
from ...runtime.prediction import Prediction
from ...runtime.predictor import Predictor

Given = list[Any] | dict[str, np.ndarray]
"""The inputs of a request: raw ones, or the graph's own tensors."""

MULTIPLE = 16
"""Texts are padded to a multiple of so many tokens: Triton batches requests of equal shapes only."""


def read_inputs(arrays: Mapping[str, np.ndarray]) -> Given:
    """The inputs of a request from its tensors (``tensors.raw_inputs``), or these as they are.

    Args:
        arrays: ``text`` and ``text_pair``, or ``image``, each [B, 1] of bytes; or the graph's tensors.
    """
    if "image" in arrays:
        return [bytes(item) for item in arrays["image"].reshape(-1)]  # never a path
    if "text" not in arrays:
        return dict(arrays)
    texts = _decoded(arrays["text"], "text")
    if "text_pair" not in arrays:
        return texts
    return list(zip(texts, _decoded(arrays["text_pair"], "text_pair"), strict=True))


def predicted(predictor: Predictor, requests: Sequence[Given]) -> list[Prediction | HydrantError]:
    """What the predictor says of each request, as if it were the only one."""
    if len(requests) > 1 and (joined := _joined(requests)) is not None:
        try:
            found = predictor.predict(joined, batch_size=_count(joined), **_rows(joined))
        except HydrantError:
            return [_alone(predictor, request) for request in requests]
        return [
            _alone(predictor, request) if part.failed.any() else _own(part, request)
            for request, part in zip(requests, _parts(found, requests), strict=True)
        ]
    return [_alone(predictor, request) for request in requests]


def prepared(processor: Processor, spec: InputSpec, inputs: Sequence[Any], shortest: int = 1) -> dict[str, np.ndarray]:
    """The graph's tensors of a request's raw inputs; texts padded to a multiple of :data:`MULTIPLE` tokens."""
    _, tensors = Prepared(inputs, processor, spec).batch(np.arange(len(inputs)))
    if spec.modality == "image":
        return tensors
    tokens = next(iter(tensors.values())).shape[1]
    room = max(shortest, min(padded_length(tokens), spec.max_sequence)) - tokens
    fill = {"input_ids": spec.padding_token}
    return {
        name: np.pad(array, ((0, 0), (0, room)), constant_values=fill.get(name, 0)) for name, array in tensors.items()
    }


def padded_length(tokens: int) -> int:
    """The multiple of :data:`MULTIPLE` that so many tokens are padded to."""
    return -(-tokens // MULTIPLE) * MULTIPLE


def decided_outputs(outputs: Mapping[str, np.ndarray], calibration: Calibration) -> Prediction:
    """What a graph gave for one request or more, with the decisions of the bundle."""
    found = Prediction.from_outputs(outputs)
    if (name := found.not_finite()) is not None:
        raise BackendError(
            f"the graph gave values of {name} that are not finite; check the inputs, or compare backends with "
            "`hydrant verify`"
        )
    return decided(found, calibration)


def decided_requests(
    requests: Sequence[Mapping[str, np.ndarray]], calibration: Calibration
) -> list[Prediction | HydrantError]:
    """As :func:`decided_outputs` for each of several requests, all at once where nothing is wrong with any."""
    names = list(requests[0])
    counts = [len(request[names[0]]) for request in requests]
    joined = {name: np.concatenate([request[name] for request in requests]) for name in names}
    try:
        found = decided_outputs(joined, calibration)
    except HydrantError as error:
        if len(requests) == 1:
            return [error]
        return [answer for request in requests for answer in decided_requests([request], calibration)]
    starts = np.cumsum([0, *counts])
    return [found.take(np.arange(start, end)) for start, end in pairwise(starts)]


def _decoded(array: np.ndarray, name: str) -> list[str]:
    texts = []
    for index, item in enumerate(array.reshape(-1)):
        try:
            texts.append(item if isinstance(item, str) else bytes(item).decode())
        except UnicodeDecodeError as error:
            raise InputError(f"input {index} has a {name} that is not UTF-8 ({error.reason}); encode it") from error
    return texts


def _joined(requests: Sequence[Given]) -> Given | None:
    """The inputs of all requests, where they can be predicted together."""
    if all(isinstance(request, list) for request in requests):
        return [item for request in requests for item in request]
    tensors = [request for request in requests if isinstance(request, dict)]
    shapes = [{name: (array.dtype, array.shape[1:]) for name, array in request.items()} for request in tensors]
    if len(tensors) < len(requests) or any(shape != shapes[0] for shape in shapes):
        return None
    return {name: np.concatenate([request[name] for request in tensors]) for name in shapes[0]}


def _count(given: Given) -> int:
    return len(given) if isinstance(given, list) else len(next(iter(given.values())))


def _rows(given: Given) -> dict[str, Any]:
    return {"on_error": "row"} if isinstance(given, list) else {}


def _parts(found: Prediction, requests: Sequence[Given]) -> list[Prediction]:
    starts = np.cumsum([0, *map(_count, requests)])
    return [found.take(np.arange(start, end)) for start, end in pairwise(starts)]


def _alone(predictor: Predictor, request: Given) -> Prediction | HydrantError:
    try:
        return predictor.predict(request, batch_size=max(1, _count(request)))
    except HydrantError as error:
        return error


def _own(part: Prediction, request: Given) -> Prediction:
    """A request's part without the padding that texts of other requests needed; its own tensors are as they were."""
    if part.mask is None or not isinstance(request, list):
        return part
    return part.shortened(int(part.mask.sum(axis=1).max()))
