"""Triton's configuration text, tensor specifications, and predictions as tensors ([B, 1] for [B])."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...bundle.calibration import RATES, Calibration
from ...bundle.graphs import GraphTensor
from ...runtime.prediction import Prediction
from ...tasks import MEMBER_OUTPUTS, PER_CLASS, TaskName

Message = Mapping[str, Any]
"""A protocol buffer: field → text, number, flag, :class:`Word`, another message, or a list of these."""

STRING, FLOAT, WHOLE, FLAG = "TYPE_STRING", "TYPE_FP32", "TYPE_INT64", "TYPE_BOOL"
KINDS = {1: FLOAT, 7: WHOLE}  # ONNX's type numbers in hydrant's graphs
LABELS = "labels.txt"  # class names for Triton's classification extension
WIDE = frozenset((*PER_CLASS, *MEMBER_OUTPUTS))  # graph outputs with an axis after the batch, even of length 1
SPANS = "spans"  # output for token classification: the spans of each text, as in ``hydrant predict --json``


class Word(str):
    """An enumeration value such as ``TYPE_FP32``, written without quotes."""


def to_pbtxt(message: Message) -> str:
    """A message as protocol-buffer text: one field a line, messages indented by two spaces.

    >>> print(to_pbtxt({"name": "a", "input": [{"dims": [-1]}], "kind": Word("KIND_CPU"), "all": {}}), end="")
    name: "a"
    input {
      dims: [ -1 ]
    }
    kind: KIND_CPU
    all {
    }
    """
    return "".join(f"{line}\n" for line in _lines(message, ""))


def entries(values: Mapping[str, Any]) -> list[Message]:
    """A map as protocol buffers write it: a list of keys and values."""
    return [{"key": key, "value": value} for key, value in values.items()]


def _lines(message: Message, margin: str) -> Iterator[str]:
    for name, value in message.items():
        repeated = isinstance(value, Sequence) and not isinstance(value, str)
        items = value if repeated else [value]
        if any(isinstance(item, Mapping) for item in items):
            for item in items:
                yield f"{margin}{name} {{"
                yield from _lines(item, f"{margin}  ")
                yield f"{margin}}}"
        elif repeated:
            yield f"{margin}{name}: [ {', '.join(map(_plain, items))} ]"
        else:
            yield f"{margin}{name}: {_plain(value)}"


def _plain(value: Any) -> str:
    if isinstance(value, Word | int | float):
        return str(value).lower() if isinstance(value, bool) else str(value)
    characters = (chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\{byte:03o}" for byte in value.encode())
    return f'"{"".join(characters)}"'


@dataclass(frozen=True)
class TensorSpec:
    """An input or output of a model in Triton."""

    name: str
    datatype: str
    dims: tuple[int, ...]  # without the batch; −1 for any length
    optional: bool = False
    flat: bool = False  # the graph's tensor has only a batch axis
    labelled: bool = False  # the last axis has the classes of LABELS

    def message(self) -> Message:
        """The entry in ``config.pbtxt``."""
        reshape: dict[str, Any] = {"reshape": {"shape": []}} if self.flat else {}
        optional = {"optional": True} if self.optional else {}
        labels = {"label_filename": LABELS} if self.labelled else {}
        dims = list(self.dims)
        return {"name": self.name, "data_type": Word(self.datatype), "dims": dims, **reshape, **optional, **labels}


def graph_specs(tensors: Iterable[GraphTensor]) -> list[TensorSpec]:
    """The tensors of a graph."""
    specs = []
    for tensor in tensors:
        dims = tuple(-1 if size is None else size for size in tensor.shape[1:])
        specs.append(TensorSpec(tensor.name, KINDS[tensor.kind], dims or (1,), flat=not dims))
    return specs


def answer_specs(graph: Iterable[TensorSpec], task: TaskName, calibration: Calibration, raw: bool) -> list[TensorSpec]:
    """Every field of the bundle's predictions, in the order of ``Prediction``; labels as names and indices."""
    outputs = {spec.name: spec for spec in graph}
    probabilities = outputs.get("probabilities")
    each = (-1,) if task == "tokens" else (1,)
    classes = () if probabilities is None else probabilities.dims
    named = probabilities if task != "tokens" else None
    specs = [TensorSpec(each.name, each.datatype, each.dims, labelled=each is named) for each in outputs.values()]
    if task in ("classification", "tokens"):
        first = [TensorSpec("label", STRING, each), TensorSpec("label_index", WHOLE, each)]
        specs = [*first, TensorSpec("confidence", FLOAT, each), *specs]
    if task == "multi_label":
        specs.insert(0, TensorSpec("assigned", FLAG, classes))
    specs += [TensorSpec(name, FLAG, each) for name, key in RATES.items() if key in calibration.thresholds]
    if calibration.conformal is not None:
        specs.append(TensorSpec("prediction_set", FLAG, classes))
    if calibration.intervals is not None:
        specs += [TensorSpec(name, FLOAT, each) for name in ("interval_low", "interval_high")]
    if task == "tokens":
        specs.append(TensorSpec("mask", FLAG, each))
        if raw:
            specs += [TensorSpec("words", WHOLE, each), TensorSpec("offsets", WHOLE, (-1, 2))]
            specs.append(TensorSpec(SPANS, STRING, (1,)))
    return specs


def answer_arrays(prediction: Prediction, labels: Sequence[str]) -> dict[str, np.ndarray]:
    """The fields of a prediction declared by :func:`answer_specs`, except the spans."""
    arrays = {name: array for name, array in prediction.arrays.items() if name != "error"}
    if prediction.label is not None:
        names = np.array([*(label.encode() for label in labels), b""], object)  # −1 is padding
        arrays |= {"label": names[prediction.label], "label_index": prediction.label}
    return {name: array[:, None] if array.ndim == 1 else array for name, array in arrays.items()}


def graph_outputs(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Outputs in the graph's shapes: scores [B, 1] become [B]."""
    return {name: array if name in WIDE else array[:, 0] for name, array in arrays.items()}


def label_lines(labels: Sequence[str]) -> bytes:
    """Class names, one a line."""
    return "".join(f"{' '.join(label.split())}\n" for label in labels).encode()
