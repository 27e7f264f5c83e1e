"""The Open Inference Protocol v2: requests → inputs of a predictor, predictions → answers; shared by REST and gRPC.

REST uses JSON with the binary tensor extension of Triton and KServe. The header ``Inference-Header-Content-Length`` is
the length of the JSON; the data of tensors with ``binary_data_size`` follow, in order.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np

from ..data.raw_inputs import FLOATS
from ..errors import cut, is_whole, listing
from ..runtime.prediction import Prediction
from ..runtime.predictor import Predictor
from ..tasks import LOGITS
from ..version import __version__
from .datatypes import Tensor, checked_head, from_bytes, from_values, text_array, to_bytes, to_values
from .http_refusals import ServeError, convert_fields, decode_json
from .observers import Served
from .predict_request import from_base64

T = TypeVar("T")

SIZE, HEADER = "binary_data_size", "Inference-Header-Content-Length"

UNSUPPORTED_PARAMETERS = {
    "classification": "use the outputs label and probabilities",
    "sequence_id": "the service keeps no state between requests",
    "shared_memory_region": "send the tensor itself; the service reads no shared memory",
}

BASE64 = re.compile(rb"(?:[A-Za-z0-9+/]{64,76}\r?\n)*[A-Za-z0-9+/]+={0,2}\r?\n?")  # unlike any image or sound file

_DATATYPES = {"f": "FP32", "i": "INT64", "b": "BOOL"}

_Name = Annotated[str, msgspec.Meta(min_length=1)]


class _Input(msgspec.Struct, frozen=True):
    name: _Name
    datatype: str
    shape: list[int]
    parameters: dict[str, Any] | None = None
    data: list[Any] | None = None


class _Output(msgspec.Struct, frozen=True):
    name: _Name
    parameters: dict[str, Any] | None = None


class InferBody(msgspec.Struct, frozen=True):
    """The JSON of a request of the Open Inference Protocol."""

    inputs: list[_Input]
    id: str | None = None
    outputs: list[_Output] | None = None
    parameters: dict[str, Any] | None = None


class _RequestParameters(msgspec.Struct, frozen=True):
    timeout: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0  # microseconds
    binary_data_output: bool | None = None


class _OutputParameters(msgspec.Struct, frozen=True):
    binary_data: bool | None = None


class LoadParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of the verb ``load``."""

    version: str | None = None
    keep: bool | None = None


class UnloadParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of the verb ``unload``; ``unload_dependents`` has no effect."""

    version: str | None = None
    unload_dependents: bool | None = None


class IndexBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of the verb ``index``; ``ready`` omits models that are not loaded."""

    ready: bool | None = None


class LoadBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of the verb ``load``."""

    parameters: LoadParameters | None = None


class UnloadBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of the verb ``unload``."""

    parameters: UnloadParameters | None = None


@dataclass(frozen=True)
class InferRequest:
    """A request; ``outputs`` (empty for all) maps names to binary or not, ``None`` for the default ``binary``."""

    id: str | None
    inputs: tuple[Tensor, ...]
    outputs: Mapping[str, bool | None] = field(default_factory=dict)
    binary: bool = False
    timeout: float | None = None


def infer_request(
    id: str | None,  # noqa: A002
    inputs: Sequence[Tensor],
    outputs: Sequence[tuple[str, Mapping[str, Any]]],
    parameters: Mapping[str, Any],
) -> InferRequest:
    """Create and check a request of REST or gRPC."""
    if not inputs:
        raise ServeError(400, "the request has no inputs; expected at least one tensor")
    for kind, names in (("input", [tensor.name for tensor in inputs]), ("output", [name for name, _ in outputs])):
        name, times = next(iter(Counter(names).most_common(1)), ("", 0))
        if times > 1:
            raise ServeError(400, f"the request has {kind} {cut(name)} {times} times; expected each name once")
    check_parameters("the request", parameters)
    options = convert_fields(parameters, _RequestParameters, "parameters of the request")
    wanted = {}
    for name, fields in outputs:
        check_parameters(f"output {cut(name)}", fields)
        wanted[name] = convert_fields(fields, _OutputParameters, f"parameters of output {cut(name)}").binary_data
    return InferRequest(id, tuple(inputs), wanted, bool(options.binary_data_output), options.timeout / 1e6 or None)


def check_parameters(what: str, parameters: Mapping[str, Any]) -> None:
    """Refuse parameters that would change the answer and are not supported (400)."""
    for name, instead in UNSUPPORTED_PARAMETERS.items():
        if parameters.get(name) not in (None, 0, ""):
            raise ServeError(400, f"{what} has parameter {name}, which is not supported; {instead}")


def read_infer(body: bytes, json_length: int | None = None) -> InferRequest:
    """Read a request from a REST body."""
    if json_length is not None and not is_whole(json_length, 1, len(body)):
        raise ServeError(400, f"{HEADER} is {json_length}; expected the length of the JSON, 1 to {len(body)}")
    end = len(body) if json_length is None else json_length
    message = decode_json(body[:end], InferBody, "the request")
    view, taken, inputs = memoryview(body)[end:], 0, []
    for tensor in message.inputs:
        what, datatype, parameters = f"input {cut(tensor.name)}", tensor.datatype, tensor.parameters or {}
        check_parameters(what, parameters)
        shape = checked_head(what, datatype, tensor.shape)
        if SIZE in parameters:
            size, left = parameters[SIZE], len(view) - taken
            if tensor.data is not None:
                raise ServeError(400, f"{what} has data and {SIZE}; expected one of them")
            if json_length is None:
                raise ServeError(400, f"{what} has {SIZE}, but the request has no header {HEADER}; expected both")
            if not is_whole(size, 0, left):
                raise ServeError(400, f"{what} has {SIZE} {cut(size)}; expected at most the remaining {left} bytes")
            array = from_bytes(what, datatype, shape, view[taken : taken + size])
            taken += size
        elif tensor.data is None:
            raise ServeError(400, f"{what} has no data; expected a list, or {SIZE} among its parameters")
        else:
            array = from_values(what, datatype, shape, tensor.data)
        inputs.append(Tensor(tensor.name, datatype, array))
    if taken != len(view):
        raise ServeError(400, f"{len(view) - taken} bytes follow the last tensor; expected none")
    outputs = [(each.name, each.parameters or {}) for each in message.outputs or ()]
    return infer_request(message.id, inputs, outputs, message.parameters or {})


def write_infer(served: Served, request: InferRequest, tensors: Sequence[Tensor]) -> tuple[bytes, int | None]:
    """The body of a REST answer, and the length of its JSON if binary tensors follow."""
    outputs, tail = [], []
    for tensor in tensors:
        output: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.data.shape)}
        binary = request.outputs.get(tensor.name)
        if request.binary if binary is None else binary:
            tail.append(to_bytes(tensor))
            output["parameters"] = {SIZE: len(tail[-1])}
        else:
            output["data"] = to_values(tensor)
        outputs.append(output)
    message: dict[str, Any] = {"model_name": served.name, "model_version": served.version}
    message |= {} if request.id is None else {"id": request.id}
    head = json.dumps({**message, "outputs": outputs}, allow_nan=False, separators=(",", ":")).encode()
    return b"".join([head, *tail]), len(head) if tail else None


def server_metadata() -> dict[str, Any]:
    """The answer of ``GET /v2``."""
    extensions = ["binary_tensor_data", "model_repository", "model_repository(unload_dependents)", "parameters"]
    return {"name": "hydrant", "version": __version__, "extensions": extensions}


def model_metadata(served: Served, versions: Sequence[str] | None = None) -> dict[str, Any]:
    """The answer of ``GET /v2/models/NAME``; −1 is a variable length."""
    predictor = served.predictor
    outputs = _outputs(predictor.nothing(), predictor.labels).values()
    return {
        "name": served.name,
        "versions": list(versions or [served.version]),
        "platform": f"hydrant_{predictor.backend}",
        "inputs": _model_inputs(predictor),
        "outputs": [
            {"name": each.name, "datatype": each.datatype, "shape": [size or -1 for size in each.data.shape]}
            for each in outputs
        ],
        "parameters": {"task": predictor.task, "modality": predictor.modality, "labels": list(predictor.labels)},
    }


def _model_inputs(predictor: Predictor) -> list[dict[str, Any]]:
    if predictor.takes_raw:
        names = _raw_names(predictor)[: 2 if predictor.pairs else 1]
        return [{"name": name, "datatype": "BYTES", "shape": [-1]} for name in names]
    names, shape = predictor.spec.input_names, [-1, *(predictor.spec.fixed_shape or [-1])]
    return [{"name": name, "datatype": "FP32" if name in FLOATS else "INT64", "shape": shape} for name in names]


def inputs_of(request: InferRequest, served: Served) -> list[Any] | dict[str, np.ndarray]:
    """Inputs for the predictor, one for each row: raw inputs from BYTES [B] or [B, 1], or ready tensors."""
    predictor = served.predictor
    if request.outputs:
        _check_outputs(request, _outputs(predictor.nothing(), predictor.labels, request.outputs))
    tensors = {tensor.name: tensor for tensor in request.inputs}
    counts = {tensor.data.shape[0] if tensor.data.ndim else 0 for tensor in tensors.values()}
    if 0 in counts or len(counts) > 1:
        shapes = listing(f"{cut(name)} {list(tensor.data.shape)}" for name, tensor in tensors.items())
        raise ServeError(400, f"the inputs have shapes {shapes}; expected equal first axes (batch), 1 or more")
    raw = _raw_names(predictor)
    if "text" not in raw and set(tensors) == set(raw):
        return _column(tensors[raw[0]], _file)
    if "text" in tensors and set(tensors) <= set(raw):
        columns = [_column(tensors[name], bytes.decode) for name in raw if name in tensors]
        return list(zip(*columns, strict=True)) if len(columns) > 1 else columns[0]
    spec = predictor.spec
    ready = [*spec.input_names, *(["token_type_ids"] if spec.modality == "text" else [])]
    if not set(tensors) <= set(ready):
        raise _unknown("inputs", list(tensors), [*raw, *spec.input_names])
    for name, tensor in tensors.items():
        if tensor.datatype == "BYTES":
            raise ServeError(400, f"input {cut(name)} is BYTES; expected numbers, as the graph reads them")
    return {name: tensor.data for name, tensor in tensors.items()}


def outputs_of(prediction: Prediction, request: InferRequest, served: Served) -> tuple[Tensor, ...]:
    """The requested fields of a prediction as tensors, in the request's order; by default all but the logits."""
    tensors = _outputs(_without_padding(prediction), served.predictor.labels, request.outputs)
    _check_outputs(request, tensors)
    return tuple(tensors[name] for name in request.outputs or tensors)


def _check_outputs(request: InferRequest, tensors: Mapping[str, Tensor]) -> None:
    missing = [name for name in request.outputs if name not in tensors]
    if missing:
        raise _unknown("outputs", missing, list(tensors))


def _unknown(kind: str, names: Sequence[str], valid: Sequence[str]) -> ServeError:
    return ServeError(400, f"the request has {kind} {listing(map(cut, names))}; expected some of {listing(valid, 40)}")


def _outputs(prediction: Prediction, labels: Sequence[str], requested: Collection[str] = ()) -> dict[str, Tensor]:
    """Every field as a tensor, and the logits if requested; failed inputs and padding have an empty label."""
    tensors = {}
    for name, array in prediction.arrays.items():
        if name == "label":
            tensors[name] = Tensor(name, "BYTES", text_array([*labels, ""], (len(labels) + 1,))[array])
            tensors["label_index"] = Tensor("label_index", "INT64", array)
        elif name == "error":
            tensors[name] = Tensor(name, "BYTES", text_array([text or "" for text in array], array.shape))
        else:
            tensors[name] = Tensor(name, _DATATYPES[array.dtype.kind], array)
    if LOGITS in requested:
        tensors[LOGITS] = Tensor(LOGITS, "FP32", prediction.logits)
    return tensors


def _without_padding(prediction: Prediction) -> Prediction:
    """Token predictions without padding for longer texts of other requests."""
    mask = prediction.mask
    if mask is None or not mask.size or mask[:, -1].any():
        return prediction
    return prediction.shortened(1 + max(np.flatnonzero(mask.any(axis=0)).tolist(), default=-1))


def _raw_names(predictor: Predictor) -> tuple[str, ...]:
    if not predictor.takes_raw:
        return ()
    return ("text", "text_pair") if predictor.modality == "text" else (predictor.modality,)


def _column(tensor: Tensor, read: Callable[[bytes], T]) -> list[T]:
    """The elements of a BYTES tensor [B] or [B, 1], read as texts or files."""
    shape, what = tensor.data.shape, f"input {cut(tensor.name)}"
    if tensor.datatype != "BYTES" or shape[1:] not in ((), (1,)):
        expected = "BYTES [batch], each a text in UTF-8, or a file or the base64 of one"
        raise ServeError(400, f"{what} is {tensor.datatype} {list(shape)}; expected {expected}")
    items = []
    for index, item in enumerate(tensor.data.ravel()):
        try:
            items.append(read(item))
        except UnicodeDecodeError as error:
            raise ServeError(400, f"element {index} of {what} is not UTF-8 ({error.reason})") from None
    return items


def _file(item: bytes) -> bytes:
    """The bytes of an image or sound file; base64 is decoded."""
    with contextlib.suppress(ValueError):
        return from_base64(item) if BASE64.fullmatch(item) else item
    return item
