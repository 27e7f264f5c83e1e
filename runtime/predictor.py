"""Loading a bundle and predicting with it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from ..bundle.architecture import Architecture
from ..bundle.calibration import Calibration
from ..bundle.store import Bundle, resolve
from ..data.batching import WINDOW_BATCHES, prepared
from ..data.processor import load_processor
from ..data.tensors import checked_tensors
from ..data.text import is_pair
from ..errors import BackendError, BundleError, InputError
from .backends.protocol import Backend
from .backends.registry import open_backend
from .decisions import decided, out_of_distribution
from .prediction import Prediction


def checked_threads(threads: int | None) -> int | None:
    """``threads`` within one run, if the machine can do something with as many; ``None`` stays.

    Raises:
        InputError: less than one, or more than four for each core.
    """
    most = 4 * (os.cpu_count() or 1)
    if threads is not None and not 1 <= threads <= most:
        raise InputError(f"threads is {threads}; expected 1 to {most}: four for each core of this machine")
    return threads


BATCH_SIZE = 32


SHORTEST = 4
"""Fewest tokens that a text is cut to."""


def load(
    bundle: Bundle | str | Path, backend: str = "auto", *, threads: int | None = None, precision: str | None = None
) -> Predictor:
    """Open a bundle for prediction.

    Args:
        bundle: the bundle, or its path.
        backend: ``"tensorrt"``, ``"tensorrt-rtx"``, ``"onnxruntime-tensorrt"``, ``"onnxruntime-cuda"``,
            ``"onnxruntime"``, ``"openvino"`` or ``"torch"``; or ``"auto"`` for the first of them that can run.
        threads: threads within one run; ``None`` leaves the backend's default.
        precision: ``"fp32"``, ``"fp16"``, ``"bf16"`` or ``"int8"``; ``None`` for the backend's choice.

    Raises:
        BackendError: unknown backend, or none can run.
        MissingExtraError: the named backend's library is not installed.
        BundleError: the bundle is missing, altered or malformed.
    """
    checked_threads(threads)
    bundle = resolve(bundle)
    architecture = bundle.architecture()
    if len(bundle.labels) != architecture.classes:
        raise BundleError(
            f"bundle {bundle.path} has {len(bundle.labels)} labels for {architecture.classes} classes; "
            "make it again with `hydrant fuse`"
        )
    opened, fallbacks = open_backend(bundle, backend, threads, precision)
    try:
        return Predictor(bundle, architecture, opened, fallbacks)
    except BaseException:
        opened.close()
        raise


class Predictor:
    """Predicts with one bundle on one backend. Safe to use from many threads.

    Attributes:
        labels: class names in class order.
        backend: name of the backend that runs.
        precision: of its weights and activations.
        fallbacks: (backend, reason) of each one that was skipped.
        calibration: temperature, thresholds and prediction sets of the bundle.
    """

    def __init__(
        self, bundle: Bundle, architecture: Architecture, backend: Backend, fallbacks: list[tuple[str, str]]
    ) -> None:
        self.labels = bundle.labels
        self.backend = backend.name
        self.precision = backend.precision
        self.fallbacks = fallbacks
        self.calibration = Calibration.of(bundle)
        self._path = bundle.path
        self._architecture = architecture
        self._running: Backend | None = backend
        folder = bundle.processor_folder()
        longest: int | None = getattr(backend, "longest", None)
        self._reader = "this model reads"
        if longest is not None and SHORTEST <= longest < architecture.max_sequence:
            self._reader = f"this bundle's {backend.name} engine takes"
            architecture = replace(architecture, positions=architecture.positions - architecture.max_sequence + longest)
        self._processor = load_processor(folder, architecture) if folder else None

    def predict(self, inputs: Any, *, batch_size: int = BATCH_SIZE, first: int = 0) -> Prediction:
        """Predict a text, a pair of texts or an image, a sequence of them, or ready tensors.

        Args:
            inputs: texts; pairs of texts, each a tuple of two; images as paths, PIL images or uint8 arrays [H, W] or
                [H, W, 3]; or a dict of NumPy tensors under the graph's input names (``token_type_ids`` may be left
                out). For a model that reads text a tuple of two strings is one pair, and a list of strings are as many
                texts: ``predict(("a", "b"))`` has one row, ``predict(["a", "b"])`` two. Texts longer than the model
                reads, or than the engine was built for, are cut, with a warning in the log.
            batch_size: inputs per run; memory grows with it, not with the number of inputs.
            first: index by which messages name the first input.

        Raises:
            InputError: an input cannot be used; it is named by its index.
            BackendError: the backend gave values that are not finite, or the predictor was closed.
        """
        if isinstance(inputs, Mapping):
            parts = list(self._predict_tensors(inputs, batch_size))
        else:
            parts = list(self.stream(self._items(inputs), batch_size=batch_size, first=first))
        return Prediction.concatenate(parts) if parts else self._nothing()

    def stream(self, inputs: Iterable[Any], *, batch_size: int = BATCH_SIZE, first: int = 0) -> Iterator[Prediction]:
        """Predict an iterable of any length, with memory bounded by ``batch_size``.

        Yields:
            Predictions in the order of the inputs, several batches at a time.

        Raises:
            InputError, BackendError: as in :meth:`predict`.
        """
        if batch_size < 1:
            raise InputError(f"batch_size is {batch_size}; expected 1 or more")
        if self._processor is None:
            raise InputError(
                f"bundle {self._path} has no processor; give ready tensors as a dict, or fuse with a processor"
            )
        iterator = iter(inputs)
        while window := list(islice(iterator, batch_size * WINDOW_BATCHES)):
            yield self._predict_window(window, first, batch_size)
            first += len(window)

    def out_of_distribution(self, prediction: Prediction) -> np.ndarray | None:
        """Which inputs of a prediction lie beyond the bundle's OOD threshold, [B] bool; ``None`` if it has none."""
        return out_of_distribution(prediction, self.calibration)

    def close(self) -> None:
        """Release the backend."""
        if self._running is not None:
            self._running.close()
            self._running = None

    def __enter__(self) -> Predictor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _items(self, inputs: Any) -> Sequence[Any]:
        """Inputs as :meth:`predict` takes them, one by one."""
        if self._architecture.modality == "text" and is_pair(inputs):
            return [inputs]
        return _as_sequence(inputs)

    def _predict_window(self, window: Sequence[Any], first: int, batch_size: int) -> Prediction:
        """Predict prepared inputs in batches of similar length; the result is in their own order."""
        processor = self._processor
        assert processor is not None  # checked by stream
        parts, order = [], []
        for places, tensors in prepared(processor, self._architecture, window, batch_size, first, self._reader):
            parts.append(self._run(tensors))
            order.append(places)
        return Prediction.concatenate(parts).take(np.argsort(np.concatenate(order)))

    def _predict_tensors(self, inputs: Mapping[str, Any], batch_size: int) -> Iterator[Prediction]:
        if batch_size < 1:
            raise InputError(f"batch_size is {batch_size}; expected 1 or more")
        arrays = checked_tensors(inputs, self._architecture)
        count = len(next(iter(arrays.values())))
        for start in range(0, count, batch_size):
            yield self._run({name: array[start : start + batch_size] for name, array in arrays.items()})

    def _run(self, arrays: Mapping[str, np.ndarray]) -> Prediction:
        if self._running is None:
            raise BackendError("the predictor was closed; load the bundle again")
        prediction = Prediction.from_outputs(self._running.run(arrays))
        if not np.isfinite(prediction.probabilities).all() or not np.isfinite(prediction.predictive_entropy).all():
            raise BackendError(
                f"backend {self.backend} gave probabilities that are not finite; check the inputs, "
                "or compare backends with `hydrant verify`"
            )
        return decided(prediction, self.calibration)

    def _nothing(self) -> Prediction:
        """The prediction for no inputs at all."""
        none = np.zeros(0, np.float32)
        empty = Prediction(
            np.zeros((0, len(self.labels)), np.float32), np.zeros(0, np.int64), none, none, none, none, none
        )
        return decided(empty, self.calibration)


def _as_sequence(inputs: Any) -> Sequence[Any]:
    """A single text, path or image as a list of one; an array [N, …] as its images."""
    if isinstance(inputs, str | Path) or hasattr(inputs, "convert"):  # PIL images convert
        return [inputs]
    if isinstance(inputs, np.ndarray):
        return [inputs] if inputs.ndim == 2 or (inputs.ndim == 3 and inputs.shape[2] == 3) else list(inputs)
    if not isinstance(inputs, Iterable):
        raise InputError(f"inputs is a {type(inputs).__name__}; expected texts, images or a dict of tensors")
    return inputs if isinstance(inputs, Sequence) else list(inputs)
