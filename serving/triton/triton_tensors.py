"""The tensors of a bundle's model in Triton, and predictions as these tensors: [B, 1] where a prediction has [B]."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...bundle.calibration import ABSTAIN, OOD, Calibration
from ...bundle.graphs import GraphTensor
from ...errors import BundleError
from ...runtime.prediction import Prediction
from ...tasks import MEMBER_OUTPUTS, PER_CLASS, TaskName
from .pbtxt import Message, Word

STRING, FLOAT, WHOLE, FLAG = "TYPE_STRING", "TYPE_FP32", "TYPE_INT64", "TYPE_BOOL"

KINDS = {1: FLOAT, 7: WHOLE}
"""Numbers of ONNX's types that hydrant's graphs have."""

LABELS = "labels.txt"
"""File of class names, by which Triton's classification extension names the classes of ``probabilities``."""

WIDE = frozenset((*PER_CLASS, *MEMBER_OUTPUTS))
"""Outputs of a graph that have an axis behind the batch, be it of length 1."""

SPANS = "spans"
"""Of a model that tags tokens: the spans of each text, as the JSON of ``hydrant predict --json``."""


@dataclass(frozen=True)
class TensorSpec:
    """An input or output of a model in Triton."""

    name: str
    datatype: str
    dims: tuple[int, ...]  # without the batch; −1 for an axis of any length
    optional: bool = False
    flat: bool = False  # the graph's own tensor has no axis but the batch
    labelled: bool = False  # the last axis has the classes of LABELS

    def message(self) -> Message:
        """The entry in ``config.pbtxt``."""
        found: dict[str, Any] = {"name": self.name, "data_type": Word(self.datatype), "dims": list(self.dims)}
        if self.flat:
            found["reshape"] = {"shape": []}
        if self.optional:
            found["optional"] = True
        if self.labelled:
            found["label_filename"] = LABELS
        return found


def graph_specs(tensors: Iterable[GraphTensor]) -> list[TensorSpec]:
    """The tensors of a graph as they are."""
    found = []
    for tensor in tensors:
        if tensor.kind not in KINDS or not tensor.shape:
            raise BundleError(
                f"the graph's tensor {tensor.name} has type {tensor.kind} and {len(tensor.shape)} axes; expected "
                "float32 or int64 with the batch first; export the graph again with `hydrant export`"
            )
        dims = tuple(-1 if size is None else size for size in tensor.shape[1:])
        found.append(TensorSpec(tensor.name, KINDS[tensor.kind], dims or (1,), flat=not dims))
    return found


def raw_inputs(modality: str, pairs: bool) -> list[TensorSpec]:
    """What a model with a processor takes: texts, of which each may be a pair, or the bytes of image files."""
    if modality == "image":
        return [TensorSpec("image", STRING, (1,))]
    second = [TensorSpec("text_pair", STRING, (1,), optional=True)] if pairs else []
    return [TensorSpec("text", STRING, (1,)), *second]


def answer_specs(graph: Iterable[TensorSpec], task: TaskName, calibration: Calibration, raw: bool) -> list[TensorSpec]:
    """Every field of the bundle's predictions, in the order of ``Prediction``; the ``label`` by name and by index."""
    outputs = {spec.name: spec for spec in graph}
    probabilities = outputs.get("probabilities")
    each = (-1,) if task == "tokens" else (1,)
    classes = () if probabilities is None else probabilities.dims
    found = [
        TensorSpec(spec.name, spec.datatype, spec.dims, labelled=spec is probabilities and task != "tokens")
        for spec in outputs.values()
    ]
    if task in ("classification", "tokens"):
        first = [TensorSpec("label", STRING, each), TensorSpec("label_index", WHOLE, each)]
        found = [*first, TensorSpec("confidence", FLOAT, each), *found]
    if task == "multi_label":
        found.insert(0, TensorSpec("assigned", FLAG, classes))
    decisions = {"abstain": ABSTAIN, "out_of_distribution": OOD}
    found += [TensorSpec(name, FLAG, each) for name, key in decisions.items() if key in calibration.thresholds]
    if calibration.conformal is not None:
        found.append(TensorSpec("prediction_set", FLAG, classes))
    if calibration.intervals is not None:
        found += [TensorSpec(name, FLOAT, each) for name in ("interval_low", "interval_high")]
    if task == "tokens":
        found.append(TensorSpec("mask", FLAG, each))
        if raw:
            found += [TensorSpec("words", WHOLE, each), TensorSpec("offsets", WHOLE, (-1, 2))]
            found.append(TensorSpec(SPANS, STRING, (1,)))
    return found


def answer_arrays(prediction: Prediction, labels: Sequence[str]) -> dict[str, np.ndarray]:
    """The fields of a prediction that are there, as :func:`answer_specs` declares them, but for the spans."""
    found = {name: array for name, array in prediction.to_dict().items() if name != "error"}
    if prediction.label is not None:
        names = np.array([*(label.encode() for label in labels), b""], object)  # −1 stands at padding
        found |= {"label": names[prediction.label], "label_index": prediction.label}
    return {name: array[:, None] if array.ndim == 1 else array for name, array in found.items()}


def graph_outputs(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What a graph gave, as it gave it: scores [B, 1] are [B] again."""
    return {name: array if name in WIDE else array[:, 0] for name, array in arrays.items()}


def label_lines(labels: Sequence[str]) -> bytes:
    """Class names, one a line."""
    return "".join(f"{' '.join(label.split())}\n" for label in labels).encode()
