"""Messages of gRPC ↔ the requests and answers that REST has, too."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import cut, listing
from .datatypes import Tensor, checked_head, dtype_of, from_bytes, from_values, object_array, to_bytes
from .errors import ServeError
from .messages import InferRequest, InferResponse, RequestedOutput, check_parameters

CONTENTS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""Datatype → the field of ``InferTensorContents`` that holds its values; of the others there are raw contents alone."""


def read_message(message: Any) -> InferRequest:
    """The request that a ``ModelInferRequest`` holds."""
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        raise ServeError(
            400,
            f"the request has {len(raw)} raw_input_contents for {len(message.inputs)} inputs; expected one for each",
        )
    inputs = tuple(_tensor(given, raw[place] if raw else None) for place, given in enumerate(message.inputs))
    outputs = tuple(RequestedOutput(each.name, parameters_of(each.parameters)) for each in message.outputs)
    return InferRequest(message.id or None, inputs, outputs, parameters_of(message.parameters))


def fill_message(message: Any, response: InferResponse) -> Any:
    """Write an answer into a ``ModelInferResponse``, its data as ``raw_output_contents``."""
    message.model_name, message.model_version, message.id = (
        response.model_name,
        response.model_version,
        response.id or "",
    )
    for tensor in response.outputs:
        message.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.data.shape)
        message.raw_output_contents.append(to_bytes(tensor))
    return message


def parameters_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters by name, each a value of Python; one without a value is left out."""
    chosen = {name: value.WhichOneof("parameter_choice") for name, value in given.items()}
    return {name: getattr(given[name], choice) for name, choice in chosen.items() if choice is not None}


def _tensor(given: Any, raw: bytes | None) -> Tensor:
    """One input, of raw contents or of its own."""
    what = f"input {cut(given.name)}"
    check_parameters(what, parameters_of(given.parameters))
    datatype, shape = checked_head(what, given.datatype, list(given.shape))
    filled = [field.name for field, _ in given.contents.ListFields()]
    if raw is not None:
        if filled:
            raise ServeError(400, f"{what} has {listing(filled)} beside raw_input_contents; expected one of them")
        return Tensor(given.name, datatype, from_bytes(what, datatype, shape, raw))
    field = CONTENTS.get(datatype)
    if field is None:
        raise ServeError(400, f"{what} is {datatype}, of which there are no typed contents; send raw_input_contents")
    if not set(filled) <= {field}:
        raise ServeError(400, f"{what} is {datatype} and has {listing(filled)}; expected {field}")
    return Tensor(given.name, datatype, _array(what, datatype, shape, list(getattr(given.contents, field))))


def _array(what: str, datatype: str, shape: tuple[int, ...], values: list[Any]) -> np.ndarray:
    """Typed contents as an array."""
    if datatype not in ("BYTES", "FP32", "FP64"):
        return from_values(what, datatype, shape, values)
    if len(values) != math.prod(shape):
        raise ServeError(
            400, f"{what} has {len(values)} values; expected {math.prod(shape)}, by its shape {list(shape)}"
        )
    if datatype == "BYTES":
        return object_array(values, shape)
    return np.array(values, dtype_of(datatype)).reshape(shape)
