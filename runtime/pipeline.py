"""``hydrant.pipeline``: a bundle that is called and answers as a pipeline of transformers, with more to say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ..bundle.precision import Precision
from ..bundle.store import Bundle
from ..bundle.tasks import GIVES
from ..data.python_inputs import given_inputs
from ..data.raw_inputs import image_array, is_pair, is_record, is_tensor
from ..errors import InputError, cut, is_whole
from .loading import load
from .prediction import Prediction
from .predictor import BATCH_SIZE, Predictor
from .token_pipeline import TokenPipeline

Answer = dict[str, Any]
"""A label, its score, and what is known of the input."""

UNASKED = "unasked"
"""``top_k`` where nobody asked for a number: pipelines of transformers then answer in another shape."""

MOST_LABELS = 5
"""Labels of an image or sound where nobody asked for a number, as in transformers."""

_FUNCTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "classification": ("the mean of its members' softmax, and no logits", ("softmax",)),
    "score": ("one score", ("sigmoid", "none")),
    "multi_label": ("the mean of its members' sigmoids, and no logits", ("sigmoid",)),
}
"""By the task of a bundle what it gives, and the functions that lead from there to what may be asked for."""

SUPERSEDED = ("index", "label", "score", "confidence")
"""What rows of predictions say in other words than a pipeline."""


def pipeline(
    bundle: Bundle | str | Path,
    *,
    backend: str = "auto",
    precision: Precision | None = None,
    threads: int | None = None,
    trust: str | Path | None = None,
    top_k: int | str | None = UNASKED,
    batch_size: int | None = None,
    function_to_apply: str | None = None,
    aggregation_strategy: str = "none",
    ignore_labels: Sequence[str] | None = None,
) -> Pipeline | TokenPipeline:
    """Open a bundle in the place of ``transformers.pipeline("text-classification")``, or that of images or sounds.

    Args:
        bundle: bundle made by `hydrant fuse`: a folder. In Python also an open ``Bundle``.
        backend: as of ``load``.
        precision: as of ``load``.
        threads: as of ``load``.
        trust: as of ``load``.
        top_k: labels in each answer, the most probable first; ``None`` for all. Without it the best one for a text,
            and five for an image or a sound.
        batch_size: inputs per run; without it 32, and 1 for streams, whose answers then wait for no further input.
        function_to_apply: as of ``Pipeline.__call__``.
        aggregation_strategy: of a model that tags tokens, as of ``TokenPipeline``.
        ignore_labels: of a model that tags tokens, as of ``TokenPipeline``.

    Returns:
        A ``Pipeline``, or of a model that tags tokens a ``TokenPipeline``.

    Raises:
        InputError: an option that cannot be used, or is of another task.
        BackendError, MissingExtraError, BundleError: as of ``load``.
    """
    _check(top_k, batch_size)
    predictor = load(bundle, backend, threads=threads, precision=precision, trust=trust)
    try:
        if predictor.task == "tokens":
            _check_unasked(top_k, function_to_apply)
            return TokenPipeline(predictor, aggregation_strategy, ignore_labels, batch_size)
        if aggregation_strategy != "none" or ignore_labels is not None:
            raise InputError(
                "aggregation_strategy and ignore_labels are for models that tag tokens, and this bundle gives "
                f"{GIVES[predictor.task]}; leave them out"
            )
        return Pipeline(predictor, top_k, batch_size, function_to_apply)
    except BaseException:
        predictor.close()
        raise


class Pipeline:
    """Answers as a pipeline of transformers: its keys ``label`` and ``score``, in the same nesting.

    Every answer also has the input's uncertainties and decisions under the names of ``Prediction``:
    ``predictive_entropy``, ``expected_entropy``, ``mutual_information``, ``disagreement``, ``energy``, ``distance``,
    ``abstain``, ``out_of_distribution`` and ``prediction_set``, as far as the bundle has them; of a model of one output
    ``score_variance``, ``interval_low`` and ``interval_high``. Safe to use from many threads.

    Args:
        predictor: that predicts; closed with the pipeline.
        top_k: as of :func:`pipeline`.
        batch_size: as of :func:`pipeline`.
        function_to_apply: as of :func:`pipeline`.

    Attributes:
        predictor: the same.
        task: ``"text-classification"``, ``"image-classification"`` or ``"audio-classification"``.
    """

    def __init__(
        self,
        predictor: Predictor,
        top_k: int | str | None = UNASKED,
        batch_size: int | None = None,
        function_to_apply: str | None = None,
    ) -> None:
        _check(top_k, batch_size)
        if predictor.task not in _FUNCTIONS:
            raise InputError(
                f"this pipeline classifies whole inputs, and this bundle gives {GIVES[predictor.task]}; use "
                "hydrant.pipeline or TokenPipeline"
            )
        self.predictor = predictor
        self.task = f"{predictor.modality}-classification"
        self._top_k, self._batch_size, self._function = top_k, batch_size, function_to_apply
        self._squashes(function_to_apply)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.task}, {self.predictor!r})"

    def __call__(
        self,
        inputs: Any,
        *,
        top_k: int | str | None = UNASKED,
        batch_size: int | None = None,
        function_to_apply: str | None = None,
        truncation: bool = True,
    ) -> Any:
        """Classify one input, a list of them, or a stream.

        Args:
            inputs: a text, ``{"text": …, "text_pair": …}``, an image (path, PIL image, bytes, uint8 array), a sound
                (path, bytes, float array, ``{"array" or "raw": …, "sampling_rate": …}``), or many of
                these. A list or an array gives a list; a generator or a data set gives an iterator, which reads on as
                it is asked.
            top_k: as of :func:`pipeline`.
            batch_size: as of :func:`pipeline`.
            function_to_apply: ``"softmax"``, which classes have anyway, as labels of a multi-label model have
                ``"sigmoid"``; of a model of one output ``"sigmoid"`` or ``"none"``. Without it as transformers: a
                sigmoid, but for checkpoints that call themselves regressions.
            truncation: texts are always cut to what the model reads; anything but ``True`` is refused.

        Returns:
            For a text ``[answer]``, for a dict ``answer``, in a list or stream ``answer`` for each; with ``top_k``, and
            for images and sounds, a list of answers in the place of each. So does transformers.

        Raises:
            InputError: an input or option cannot be used.
            BackendError: the backend failed, or the pipeline was closed.
        """
        _check(top_k, batch_size)
        if truncation is not True:
            raise InputError(
                f"truncation is {cut(truncation)}; expected True, since texts are always cut to what the model reads"
            )
        unasked = top_k == UNASKED
        shape = self._top_k if unasked else top_k
        squash = self._squashes(function_to_apply or self._function)
        size = batch_size or self._batch_size
        if self._is_one(inputs):
            (answer,) = self._answers(self.predictor.predict([inputs]), shape, squash)
            return [answer] if isinstance(inputs, str) and unasked and self.predictor.modality == "text" else answer
        if _is_whole(inputs):
            return self._answers(self.predictor.predict(inputs, batch_size=size or BATCH_SIZE), shape, squash)
        return self._stream(iter(given_inputs(inputs, self.predictor.modality)), size or 1, shape, squash)

    def close(self) -> None:
        """Release the bundle's backend; a stream that is being read ends with an error."""
        self.predictor.close()

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _is_one(self, inputs: Any) -> bool:
        """Whether this is one input, and not many."""
        pair = self.predictor.modality == "text" and is_pair(inputs)
        inputs = image_array(inputs) if is_tensor(inputs) else inputs
        grid = isinstance(inputs, np.ndarray) and inputs.dtype.kind not in "USO"
        image = hasattr(inputs, "convert") or (grid and (inputs.ndim == 2 or inputs.shape[2:] == (3,)))
        if self.predictor.modality == "audio":
            listed = isinstance(inputs, list) and isinstance(next(iter(inputs), None), float)
            image = listed or (grid and inputs.ndim == 1)
        return pair or image or is_record(inputs) or isinstance(inputs, str | Path | bytes | bytearray)

    def _stream(self, items: Iterator[Any], size: int, shape: Any, squash: bool) -> Iterator[Any]:
        """Answers as inputs come, ``size`` of them at a time."""
        first = 0
        while chunk := list(islice(items, size)):
            yield from self._answers(self.predictor.predict(chunk, batch_size=size, first=first), shape, squash)
            first += len(chunk)

    def _squashes(self, function: str | None) -> bool:
        """Whether the bundle's score still goes through a sigmoid.

        Raises:
            InputError: a function that does not lead from what the bundle gives to what is asked for.
        """
        score = self.predictor.task == "score"
        why, allowed = _FUNCTIONS[self.predictor.task]
        name = str(function).lower()
        if function is not None and name not in allowed:
            raise InputError(
                f"function_to_apply is {cut(function)}, and this bundle gives {why}; expected {' or '.join(allowed)}"
            )
        done = self.predictor.activation == "sigmoid"
        if score and done and name == "none" and function is not None:
            raise InputError(
                "function_to_apply is 'none', but this bundle's scores stand behind the model's own sigmoid; leave it "
                "out"
            )
        return score and not done and (name == "sigmoid" or (function is None and not self.predictor.regression))

    def _answers(self, prediction: Prediction, top_k: int | str | None, squash: bool) -> list[Any]:
        """One answer for each input, or one list of them."""
        labels = self.predictor.labels
        rows = prediction.rows(labels)
        if prediction.score is not None:
            scores = _sigmoid(prediction.score) if squash else prediction.score
            found = [scores[:, None], np.zeros((len(rows), 1), np.int64)]
        else:
            order = np.argsort(-prediction.probabilities, axis=1, kind="stable")
            found = [np.take_along_axis(prediction.probabilities, order, axis=1), order]
        alone = top_k == UNASKED and self.predictor.modality == "text"
        most = _most(top_k, self.predictor.modality)
        answers: list[Any] = []
        for row, values, places in zip(rows, *found, strict=True):
            about = _about(row, squash)
            each = [
                {"label": labels[place], "score": float(value), **about}
                for value, place in zip(values[:most], places[:most], strict=True)
            ]
            answers.append(each[0] if alone else each)
        return answers


def _most(top_k: Any, modality: str) -> int | None:
    """Labels in an answer; ``None`` for all. Pipelines of images know no *all*, and take ``None`` for five."""
    if top_k == UNASKED:
        return 1 if modality == "text" else MOST_LABELS
    if top_k is None and modality == "image":
        return MOST_LABELS
    return None if top_k is None else int(top_k)


def _about(row: dict[str, Any], squash: bool) -> dict[str, Any]:
    """What is known of an input beside its label; an interval goes through the sigmoid that its score went through."""
    about = {name: value for name, value in row.items() if name not in SUPERSEDED}
    for end in ("interval_low", "interval_high"):
        if squash and end in about:
            about[end] = float(_sigmoid(np.asarray(about[end])))
    return about


def _sigmoid(values: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(−z)), in float64."""
    with np.errstate(over="ignore"):
        found: np.ndarray = 1 / (1 + np.exp(-values.astype(np.float64)))
    return found


def _is_whole(inputs: Any) -> bool:
    """Whether inputs are there all at once: lists, arrays, ready tensors, and tables but those of ``datasets``."""
    if isinstance(inputs, list | tuple | np.ndarray | Mapping) or is_tensor(inputs):
        return True
    library = type(inputs).__module__.partition(".")[0]
    return library in ("pandas", "polars", "pyarrow")


def _check_unasked(top_k: Any, function: Any) -> None:
    """Refuse what is of whole inputs where tokens are tagged."""
    if top_k != UNASKED or function is not None:
        raise InputError(
            "top_k and function_to_apply are of whole inputs, and this bundle gives a class for each token; leave them "
            "out"
        )


def _check(top_k: Any, batch_size: Any) -> None:
    if top_k is not None and top_k != UNASKED and not is_whole(top_k, 1):
        raise InputError(f"top_k is {cut(top_k)}; expected a whole number, 1 or more, or None")
    if batch_size is not None and not is_whole(batch_size, 1):
        raise InputError(f"batch_size is {cut(batch_size)}; expected a whole number, 1 or more, or None")
