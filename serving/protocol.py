"""The Open Inference Protocol v2 for a model that is served: its tensors in, every field of its prediction out.

``messages`` reads and writes what goes over the wire, ``datatypes`` the tensors in it; REST and gRPC share all of it.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..data.spec import InputSpec
from ..errors import cut, listing
from ..runtime.prediction import Prediction
from ..runtime.predictor import Predictor
from ..version import __version__
from .datatypes import Tensor, text_array
from .errors import ServeError
from .messages import HEADER, InferRequest, InferResponse, RequestedOutput, read_request, unknown, write_response
from .observe import Served

__all__ = [
    "EXTENSIONS",
    "HEADER",
    "InferRequest",
    "InferResponse",
    "RequestedOutput",
    "Tensor",
    "inputs_of",
    "model_metadata",
    "outputs_of",
    "read_request",
    "server_metadata",
    "write_response",
]

EXTENSIONS = ("binary_tensor_data", "model_repository", "model_repository(unload_dependents)", "parameters")
"""Of the protocol, by the names that Triton gives them."""

BLANKS = b" \t\r\n"
"""What may stand within base64, as programs break its lines."""

BASE64 = re.compile(rb"(?:[A-Za-z0-9+/]{64,76}\r?\n)*[A-Za-z0-9+/]+={0,2}\r?\n?")
"""What no file of an image or a sound consists of: it holds other bytes, or breaks its lines elsewhere."""

_DATATYPES = {"f": "FP32", "i": "INT64", "b": "BOOL"}


def server_metadata() -> dict[str, Any]:
    """What ``GET /v2`` answers."""
    return {"name": "hydrant", "version": __version__, "extensions": list(EXTENSIONS)}


def model_metadata(served: Served, versions: Sequence[str] | None = None) -> dict[str, Any]:
    """What ``GET /v2/models/NAME`` answers: name, versions, inputs and outputs; −1 stands for a length that varies."""
    predictor = served.predictor
    outputs = [
        {"name": name, "datatype": datatype, "shape": shape}
        for name, (datatype, shape) in outputs_given(predictor).items()
    ]
    return {
        "name": served.name,
        "versions": list(versions or [served.version]),
        "platform": f"hydrant_{predictor.backend}",
        "inputs": _inputs(predictor),
        "outputs": outputs,
        "parameters": {"task": predictor.task, "modality": predictor.modality, "labels": list(predictor.labels)},
    }


def outputs_given(predictor: Predictor) -> dict[str, tuple[str, list[int]]]:
    """Datatype and shape of every output of a model, by name; −1 stands for a length that varies."""
    fields = predictor.nothing().to_dict()
    tensors = [_output(name, fields, predictor.labels) for name in _names(fields)]
    return {tensor.name: (tensor.datatype, [size or -1 for size in tensor.data.shape]) for tensor in tensors}


def inputs_of(request: InferRequest, served: Served) -> list[Any] | dict[str, np.ndarray]:
    """What ``Predictor.predict`` takes, as many inputs as the tensors have rows, at least one.

    Args:
        request: with ``text`` (and ``text_pair``), BYTES [B] or [B, 1] of UTF-8; or ``image`` or ``audio``, BYTES [B]
            or [B, 1] of files, which may be in base64; or ready tensors under the names of the graph's inputs.
    """
    _check_outputs(request, served.predictor)
    tensors = {tensor.name: tensor for tensor in request.inputs}
    spec = served.predictor.spec
    counts = {name: tensor.data.shape[0] if tensor.data.ndim else 0 for name, tensor in tensors.items()}
    if min(counts.values()) == 0 or len(set(counts.values())) > 1:
        shapes = listing(f"{cut(name)} {list(tensor.data.shape)}" for name, tensor in tensors.items())
        raise ServeError(400, f"the inputs have shapes {shapes}; expected the same first axis of all, 1 or more")
    raw = _raw_names(served.predictor)
    if "text" not in raw and set(tensors) == set(raw):
        return _files(tensors[raw[0]])
    if "text" in tensors and set(tensors) <= set(raw):
        texts = _texts(tensors["text"])
        return list(zip(texts, _texts(tensors["text_pair"]), strict=True)) if "text_pair" in tensors else texts
    ready = [*spec.input_names, *(["token_type_ids"] if spec.modality == "text" else [])]
    if not set(tensors) <= set(ready):
        raise unknown("inputs", request.names, [*raw, *spec.input_names])
    return {name: _ready(tensor) for name, tensor in tensors.items()}


def outputs_of(prediction: Prediction, request: InferRequest, served: Served) -> tuple[Tensor, ...]:
    """The fields of a prediction as tensors: those that the request names, in its order, or all."""
    fields = _cut_to_longest(prediction).to_dict()
    known = _names(fields)
    asked = [output.name for output in request.outputs]
    missing = [name for name in asked if name not in known]
    if missing:
        raise unknown("outputs", missing, known)
    return tuple(_output(name, fields, served.predictor.labels) for name in asked or known)


def _names(fields: Mapping[str, np.ndarray]) -> list[str]:
    """The outputs that come of the fields of a prediction."""
    return [name for field in fields for name in ((field, "label_index") if field == "label" else (field,))]


def _output(name: str, fields: Mapping[str, np.ndarray], labels: Sequence[str]) -> Tensor:
    """One field as a tensor; the label of an input that failed, and of padding, is an empty text."""
    if name == "label_index":
        return Tensor(name, "INT64", fields["label"])
    array = fields[name]
    if name == "label":
        return Tensor(name, "BYTES", text_array([*labels, ""], (len(labels) + 1,))[array])
    if name == "error":
        return Tensor(name, "BYTES", text_array([text or "" for text in array], array.shape))
    return Tensor(name, _DATATYPES[array.dtype.kind], array)


def _cut_to_longest(prediction: Prediction) -> Prediction:
    """Of tokens, without the padding that longer texts of other requests brought with them."""
    mask = prediction.mask
    if mask is None or not mask.size or mask[:, -1].any():
        return prediction
    longest = int(np.flatnonzero(mask.any(axis=0))[-1]) + 1 if mask.any() else 0
    return prediction.shortened(longest)


def _check_outputs(request: InferRequest, predictor: Predictor) -> None:
    """Refuse outputs that a model has not before it runs."""
    if request.outputs:
        known = outputs_given(predictor)
        missing = [output.name for output in request.outputs if output.name not in known]
        if missing:
            raise unknown("outputs", missing, list(known))


def _raw_names(predictor: Predictor) -> tuple[str, ...]:
    """Inputs that are no tensors of the graph."""
    if not predictor.takes_raw:
        return ()
    return ("text", "text_pair") if predictor.modality == "text" else (predictor.modality,)


def _inputs(predictor: Predictor) -> list[dict[str, Any]]:
    """The inputs of a model: raw ones where it has a processor, or the tensors of its graph."""
    if predictor.takes_raw:
        names = _raw_names(predictor)[: 2 if predictor.pairs else 1]
        return [{"name": name, "datatype": "BYTES", "shape": [-1]} for name in names]
    spec: InputSpec = predictor.spec
    if spec.modality == "image":
        shape = [-1, spec.channels, spec.image_height, spec.image_width]
        return [{"name": "pixel_values", "datatype": "FP32", "shape": shape}]
    if spec.spectrogram:
        return [{"name": name, "datatype": "FP32", "shape": [-1, *spec.spectrogram]} for name in spec.input_names]
    kinds = {"input_values": "FP32"}
    return [{"name": name, "datatype": kinds.get(name, "INT64"), "shape": [-1, -1]} for name in spec.input_names]


def _column(tensor: Tensor, expected: str) -> list[bytes]:
    """The elements of a tensor of BYTES [B] or [B, 1]."""
    shape = tensor.data.shape
    if tensor.datatype != "BYTES" or len(shape) > 2 or shape[1:] not in ((), (1,)):
        raise ServeError(400, f"input {cut(tensor.name)} is {tensor.datatype} {list(shape)}; expected {expected}")
    return list(tensor.data.ravel())


def _texts(tensor: Tensor) -> list[str]:
    texts = []
    for index, item in enumerate(_column(tensor, "BYTES [batch], each a text in UTF-8")):
        try:
            texts.append(item.decode())
        except UnicodeDecodeError as error:
            raise ServeError(
                400, f"element {index} of input {cut(tensor.name)} is not UTF-8 ({error.reason}); expected text"
            ) from None
    return texts


def _files(tensor: Tensor) -> list[bytes]:
    return [_file(item) for item in _column(tensor, "BYTES [batch], each a file or the base64 of one")]


def _file(item: bytes) -> bytes:
    """The bytes of an image or sound file, which may be in base64."""
    if BASE64.fullmatch(item):
        try:
            return from_base64(item)
        except ValueError:
            return item
    return item


def from_base64(text: bytes) -> bytes:
    """What base64 stands for; blanks and line breaks within it are passed over."""
    plain = text.translate(None, BLANKS) if any(blank in text for blank in BLANKS) else text
    return base64.b64decode(plain, validate=True)


def _ready(tensor: Tensor) -> np.ndarray:
    """The array of a tensor that goes to the graph as it is; which type it must have is checked there."""
    if tensor.datatype == "BYTES":
        raise ServeError(400, f"input {cut(tensor.name)} is BYTES; expected numbers, as the model's graph reads")
    return tensor.data
