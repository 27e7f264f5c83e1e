"""Prediction with an open bundle."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from ..bundle.calibration import Calibration
from ..bundle.data_overlap import FORMS, REMEDY, form_used
from ..bundle.store import Bundle
from ..bundle.traced import AnyArchitecture
from ..data.batching import READER, WINDOW_BATCHES, item_batches
from ..data.processor import load_processor
from ..data.python_inputs import given_inputs, is_table, ordered
from ..data.raw_inputs import are_tensors, is_pair
from ..data.specs import InputSpec
from ..data.tensors import checked_tensors
from ..data.text import NO_WORD, Piece, TextProcessor, WordProcessor
from ..errors import BackendError, InputError, check_choice, check_whole
from ..tasks import DISTANCE, LENGTH_DEVIATION, PER_CLASS, TASKS
from .backends.dlpack import DeviceArray
from .backends.protocol import Backend, parts_of
from .lifecycle import Closable
from .prediction import Prediction, decided, prediction_rows
from .word_predictions import Aggregation, Span, Words, spans_of, token_rows, words_of

log = logging.getLogger(__name__)

BATCH_SIZE = 32

INSTEAD_OF_PROBABILITIES = {
    "score": "use predict(inputs).score and its score_variance",
    "tokens": "use predict(inputs).probabilities of every token, or words(prediction)",
}
"""Remedy for tasks without class probabilities of an input."""


class Predictor(Closable):
    """Predicts with one bundle on one backend. Thread-safe; may be closed while other threads predict.

    Attributes:
        labels: class names in class order; for regression the name of the score.
        members: number of members M.
        path: folder of the bundle.
        backend: name of the backend.
        precision: precision of its weights and activations.
        fallbacks: (backend, reason) for each skipped backend.
        modality: input type: ``"text"``, ``"image"`` or ``"audio"``.
        task: ``"classification"``, ``"score"`` (regression), ``"tokens"`` (token classification) or ``"multi_label"``.
        activation: function from the model's output to the score: ``"identity"`` or ``"sigmoid"``.
        regression: true if the checkpoint's ``problem_type`` is regression.
        calibration: temperature, thresholds and prediction sets of the bundle.
        spec: names, shapes and limits of the model's tensors.
        takes_raw: true if it accepts raw texts, images or sounds; a bundle without a processor needs ready tensors.
        pairs: true if the bundle is known to be made on pairs of texts.
    """

    def __init__(
        self, bundle: Bundle, architecture: AnyArchitecture, backend: Backend, fallbacks: list[tuple[str, str]]
    ) -> None:
        super().__init__("the predictor")
        self.labels = bundle.labels
        self.members = bundle.members
        self.backend = backend.name
        self.precision = backend.precision
        self.fallbacks = fallbacks
        self.modality = architecture.modality
        self.task = architecture.task
        self.activation = architecture.score_activation
        self.regression = bundle.manifest.get("fusion", {}).get("problem_type") == "regression"
        self.calibration = Calibration.of(bundle)
        self.path = bundle.path
        self._form = form_used(bundle) if self.modality == "text" and not architecture.every_token else None
        self.pairs = self._form is not None and self._form[0]
        self._architecture = architecture
        self._running = backend
        self._reader = READER
        if backend.longest is not None and 4 <= backend.longest < architecture.max_sequence:
            self._reader = f"this bundle's {backend.name} engine takes"
            excess = architecture.max_sequence - backend.longest
            architecture = replace(architecture, positions=architecture.positions - excess)
        folder = bundle.processor_folder()
        self._processor = load_processor(folder, architecture) if folder else None
        self.spec: InputSpec = architecture
        self.takes_raw = self._processor is not None

    def __repr__(self) -> str:
        reads = self.modality if self.task == "classification" else f"{self.modality}, {TASKS[self.task].gives}"
        return (
            f"{type(self).__name__}({str(self.path)!r}, {self.members} members, {reads}, {len(self.labels)} "
            f"label{'s' * (len(self.labels) > 1)}, {self.backend} {self.precision})"
        )

    def warm_up(self, batch_size: int = 1) -> None:
        """Run a blank batch, so that the first real one is not slower than the others.

        Args:
            batch_size: inputs in the batch.

        Raises:
            BackendError: the backend failed, or the predictor was closed.
        """
        with self._use():
            self._running.run(blank_inputs(self.spec, batch_size))

    def predict(
        self,
        inputs: Any,
        *,
        batch_size: int = BATCH_SIZE,
        first: int = 0,
        on_error: str = "raise",
        text_column: str | None = None,
        text_pair_column: str | None = None,
        max_length: int | None = None,
    ) -> Prediction:
        """Predict one input, many inputs, a table or ready tensors.

        Args:
            inputs: texts, or pairs of texts as tuples; for token classification also lists of words, each one text.
                Images as paths, file contents, PIL images, uint8 arrays [H, W] or [H, W, 3], or torch's uint8 tensors
                [C, H, W]. Rows as dicts with the key ``text`` (and ``text_pair``), ``tokens`` or ``image``. All these
                also in a list, generator or data set. A table (pandas, polars, pyarrow or ``datasets``) with such a
                column, or with one column. Ready tensors (NumPy, torch) as a dict by the graph's input names, where
                ``token_type_ids`` is optional. A tuple of two strings is one pair, a list of strings is many texts:
                ``predict(("a", "b"))`` returns one row, ``predict(["a", "b"])`` two. Texts longer than the model or
                engine reads are truncated, with a warning in the log.
            batch_size: inputs per run; memory grows with it, not with the number of inputs.
            first: index of the first input in messages.
            on_error: ``"raise"`` raises for the first unusable input; ``"row"`` sets its ``error`` and continues.
                Ready tensors always raise.
            text_column: column of a table, or key of rows, to read instead.
            text_pair_column: column or key of the second texts, for text pairs.
            max_length: tokens at which texts are truncated, if fewer than the model reads.

        Raises:
            InputError: an input cannot be used; the message contains its index.
            BackendError: the backend returned values that are not finite, or the predictor was closed.
        """
        _check(batch_size, on_error)
        with self._use():
            if are_tensors(inputs) and text_column is None:
                arrays = checked_tensors(inputs, self._architecture)
                parts = [self._run(part) for part in parts_of(arrays, batch_size)]
            else:
                options: dict[str, Any] = {"text_column": text_column, "text_pair_column": text_pair_column}
                options |= {"first": first, "on_error": on_error, "max_length": max_length}
                parts = list(self.stream(inputs, batch_size=batch_size, **options))
        return Prediction.concatenate(parts) if parts else self.nothing()

    def stream(
        self,
        inputs: Iterable[Any],
        *,
        batch_size: int = BATCH_SIZE,
        first: int = 0,
        on_error: str = "raise",
        text_column: str | None = None,
        text_pair_column: str | None = None,
        max_length: int | None = None,
    ) -> Iterator[Prediction]:
        """Predict an iterable of any length, with memory bounded by ``batch_size``.

        Args:
            inputs: as in ``predict``, except ready tensors; so are the other arguments.

        Yields:
            Predictions in the order of the inputs, several batches at a time.

        Raises:
            InputError, BackendError: as in ``predict``.
        """
        _check(batch_size, on_error)
        if self._processor is None:
            raise InputError(
                f"bundle {self.path} has no processor; pass ready tensors as a dict, or fuse with a processor"
            )
        iterator = iter(given_inputs(inputs, self.modality, text_column, text_pair_column))
        while window := list(islice(iterator, batch_size * WINDOW_BATCHES)):
            with self._use():
                failed: dict[int, str] | None = {} if on_error == "row" else None
                predicted = self._predict_window(window, first, batch_size, failed, max_length)
            yield predicted
            first += len(window)

    @property
    def classes_(self) -> np.ndarray:
        """Class names [C] in alphabetical order, which scikit-learn's metrics expect: columns of ``predict_proba``."""
        return np.unique(self.labels)

    def predict_proba(self, inputs: Any, *, batch_size: int = BATCH_SIZE) -> np.ndarray:
        """Probabilities of the classes as scikit-learn, cleanlab and the like expect them.

        Args:
            inputs: as in :meth:`predict`.
            batch_size: as in :meth:`predict`.

        Returns:
            float64 [N, C]. Columns are in the alphabetical order of ``classes_``, unlike those of ``predict``. Each
            row sums to 1; for multi-label models each label has an independent probability.

        Raises:
            InputError: as in :meth:`predict`; or the model predicts scores or classifies tokens.
            BackendError: as in :meth:`predict`.
        """
        if self.task in INSTEAD_OF_PROBABILITIES:
            raise InputError(
                f"predict_proba returns one row of class probabilities for each input, but this model returns "
                f"{TASKS[self.task].gives}; {INSTEAD_OF_PROBABILITIES[self.task]}"
            )
        columns = self.predict(inputs, batch_size=batch_size).probabilities[:, np.argsort(self.labels)]
        exact = columns.astype(np.float64)
        return exact if self.task == "multi_label" else exact / exact.sum(axis=1, keepdims=True)

    def __sklearn_tags__(self) -> Any:
        """Description for scikit-learn's scorers, and for its displays of a ``FrozenEstimator``."""
        from sklearn.utils import ClassifierTags, Tags, TargetTags

        kind = None if self.task in INSTEAD_OF_PROBABILITIES else "classifier"
        return Tags(kind, TargetTags(required=False), classifier_tags=ClassifierTags(), requires_fit=False)

    def words(self, prediction: Prediction, aggregation: Aggregation = "first") -> list[Words]:
        """The words of every text, with the decisions of this bundle's thresholds; for token classification.

        Args:
            prediction: prediction of this predictor, from texts or lists of words.
            aggregation: token that decides for its word: the ``"first"`` or the most confident (``"max"``); or the
                ``"mean"`` of the tokens' probabilities and scores.

        Raises:
            InputError: the prediction is of whole inputs, of ready tensors, or of another model; or the aggregation
                is unknown.
        """
        self._check_own(prediction)
        return words_of(prediction, aggregation, self.calibration)

    def spans(self, prediction: Prediction, aggregation: Aggregation = "first") -> list[list[Span]]:
        """The spans of every text, such as its named entities, with their uncertainties and decisions.

        Args:
            prediction: prediction of this predictor.
            aggregation: as in :meth:`words`.

        Raises:
            InputError: as in :meth:`words`.
        """
        return [spans_of(words, self.labels) for words in self.words(prediction, aggregation)]

    def rows(
        self,
        prediction: Prediction,
        inputs: Sequence[Any] | None = None,
        *,
        first: int = 0,
        probabilities: bool = False,
        aggregation: Aggregation = "first",
    ) -> list[dict[str, Any]]:
        """One JSON-ready dict for each input; for token classification with its words and spans.

        Args:
            prediction: prediction of this predictor.
            inputs: list of the predicted inputs, to repeat them in the rows.
            first: index of the first input.
            probabilities: add the probability of every class by name; not for regression.
            aggregation: for token classification, as in :meth:`words`.

        Raises:
            InputError: as in :meth:`words`, or ``inputs`` has another length than the prediction.
        """
        self._check_own(prediction)
        repeated = None if inputs is None else self._repeated(inputs, len(prediction))
        common = prediction, repeated, self.labels, first, probabilities
        if prediction.mask is None:
            return prediction_rows(*common)
        return token_rows(*common, aggregation, self.calibration)

    def pieces(self, inputs: Sequence[Any]) -> list[list[Piece]]:
        """The T tokens of each text or list of words, for token classification.

        Args:
            inputs: as in ``predict``.

        Raises:
            InputError: the model does not classify tokens, or the bundle has no tokenizer.
        """
        if not isinstance(self._processor, WordProcessor):
            raise InputError(f"bundle {self.path} has no tokenizer for words; expected a token classification model")
        return [self._processor.pieces(text, index) for index, text in enumerate(inputs)]

    def joined(self, tokens: Sequence[str]) -> str:
        """The text of some tokens, by the bundle's tokenizer."""
        return self._processor.joined(tokens) if isinstance(self._processor, WordProcessor) else " ".join(tokens)

    def run_device(self, tensors: Mapping[str, Any]) -> dict[str, DeviceArray]:
        """Run one batch of GPU tensors and leave the outputs on the GPU; nothing is copied.

        For services that prepare inputs or continue on the GPU. Requires backend ``"tensorrt"``, ``"tensorrt-rtx"``,
        ``"onnxruntime-tensorrt"`` or ``"onnxruntime-cuda"``. The batch is not padded, split or truncated, and neither
        input nor output values are checked.

        Args:
            tensors: all of the graph's inputs by name, contiguous, on the first GPU, from any library that exports
                DLPack (PyTorch, CuPy, JAX): text int64 [batch, sequence], images float32 [batch, 3, height, width].
                Do not change them before the call returns. The GPU waits for pending work on them.

        Returns:
            The graph's float32 outputs by name (``probabilities`` [batch, classes], scores [batch]). They are
            complete, so no stream has to wait. Each has memory of its own, which ``torch.from_dlpack``,
            ``cupy.asarray`` and the like read without a copy. It is freed with its last reader, also after
            ``close``. Thresholds are not applied.

        Raises:
            InputError: a tensor is missing, on another device, or has another type, shape or batch size.
            BackendError: the backend runs on the CPU or failed, or the predictor was closed.
        """
        with self._use():
            return self._running.run_device(tensors)

    def _release(self) -> None:
        self._running.close()

    def _check_own(self, prediction: Prediction) -> None:
        """Reject a prediction with another task or number of classes than this model."""
        classes = 0 if prediction.task == "score" else prediction.probabilities.shape[-1]
        if prediction.task != self.task or classes not in (0, len(self.labels)):
            raise InputError(
                f"the prediction has {TASKS[prediction.task].gives} ({classes} classes), but this model returns "
                f"{TASKS[self.task].gives} ({len(self.labels)}); pass it to the predictor that created it"
            )

    def _repeated(self, inputs: Any, count: int) -> Sequence[Any]:
        """The inputs as a list, one for each prediction."""
        items = list(ordered(inputs, self.modality))
        if is_table(inputs) or isinstance(inputs, Mapping) or len(items) != count:
            raise InputError(
                f"inputs has {len(items)} items for a prediction of {count} inputs; expected the predicted inputs"
            )
        return items

    def _predict_window(
        self,
        window: Sequence[Any],
        first: int,
        batch_size: int,
        failed: dict[int, str] | None,
        max_length: int | None = None,
    ) -> Prediction:
        """Predict inputs in batches of similar length; unusable ones go to ``failed``, or raise if it is ``None``."""
        processor, reader = self._processor, self._reader
        assert processor is not None  # checked by stream
        if max_length is not None and isinstance(processor, TextProcessor) and max_length < processor.max_tokens:
            processor, reader = copy(processor), "max_length allows"
            processor.max_tokens = max_length
        self._warn_of_form(window, first)
        parts, order = [], []
        for places, items, tensors in item_batches(
            window, processor, self._architecture, batch_size, first=first, reader=reader, failed=failed
        ):
            parts.append(self._run(tensors, items if self._architecture.every_token else None))
            order.append(places)
        if not parts:  # every input failed
            parts, order = [self.nothing()], [np.zeros(0, np.int64)]
        prediction, places = Prediction.concatenate(parts), np.concatenate(order)
        return prediction.take(np.argsort(places)) if failed is None else prediction.among_failed(places, failed)

    def _warn_of_form(self, window: Sequence[Any], first: int) -> None:
        """Warn once about pairs for a bundle made on single texts, or single texts for one made on pairs."""
        if self._form is None:
            return
        pairs, words = self._form
        other = (isinstance(item, str | tuple) and is_pair(item) is not pairs for item in window)
        if (index := next((index for index, is_other in enumerate(other, first) if is_other), None)) is not None:
            self._form = None
            text = "predicting %s (first: input %d), and the bundle was %s; %s"
            log.warning(text, FORMS[not pairs], index, words, REMEDY[not pairs])

    def _run(self, arrays: Mapping[str, np.ndarray], items: Sequence[Any] | None = None) -> Prediction:
        """Predict one batch; ``items`` are prepared texts, which know the words of their tokens."""
        prediction = Prediction.from_outputs(self._running.run(arrays), self.labels)
        if (name := prediction.not_finite()) is not None:
            raise BackendError(
                f"backend {self.backend} gave values of {name} that are not finite; check the inputs, or compare "
                "backends with `hydrant verify`"
            )
        if self._architecture.every_token:
            mask = arrays["attention_mask"].astype(bool)
            prediction = prediction.of_tokens(mask, *(_words_of(items, mask.shape[1]) if items is not None else ()))
        return decided(prediction, self.calibration)

    def nothing(self) -> Prediction:
        """The prediction of zero inputs, with the names, types and axes of any other prediction."""
        task, classes, every_token = TASKS[self.task], len(self.labels), self._architecture.every_token
        tokens = (0,) if every_token else ()
        names = (*task.outputs, DISTANCE, LENGTH_DEVIATION)
        axes = {name: (*tokens, classes) if name in PER_CLASS else tokens for name in names}
        axes[task.member_output] = (self.members,) if self.task == "score" else (self.members, *tokens, classes)
        outputs = {name: np.zeros((0, *axes[name]), np.float32) for name in self._running.outputs if name in axes}
        prediction = Prediction.from_outputs(outputs, self.labels)
        if every_token:
            prediction = prediction.of_tokens(np.zeros((0, 0), bool), *_words_of((), 0))
        return decided(prediction, self.calibration)


def _words_of(items: Sequence[Any], tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Word indices [B, T] and offsets [B, T, 2] of prepared texts, −1 at padding."""
    words = np.full((len(items), tokens), NO_WORD, np.int64)
    offsets = np.full((len(items), tokens, 2), -1, np.int64)
    for row, item in enumerate(items):
        words[row, : item.tokens] = item.words
        offsets[row, : item.tokens] = item.offsets
    return words, offsets


def _check(batch_size: int, on_error: str) -> None:
    check_whole("batch_size", batch_size, 1)
    check_choice("on_error", on_error, ("raise", "row"))


def blank_inputs(spec: InputSpec, batch: int) -> dict[str, np.ndarray]:
    """Blank tensors for warm-up: grey images, silence or short texts."""
    text = spec.modality == "text"
    shape = spec.fixed_shape or ((min(16, spec.max_sequence) if text else 2 * spec.shortest),)
    blank = {name: np.zeros((batch, *shape), np.int64 if text else np.float32) for name in spec.input_names}
    return blank | {name: np.ones((batch, *shape), np.int64) for name in blank if name == "attention_mask"}


def about(predictor: Predictor) -> dict[str, Any]:
    """The ``backend``, and the skipped ``fallbacks`` with their reasons."""
    skipped = [{"backend": name, "reason": reason} for name, reason in predictor.fallbacks]
    return {"backend": predictor.backend, "fallbacks": skipped}


def aggregation_of(predictor: Predictor, aggregation: Aggregation | None) -> Aggregation:
    """A request's aggregation of tokens into words, or the default."""
    if aggregation is not None and predictor.task != "tokens":
        raise InputError("aggregation is for token classification, but this model predicts whole inputs; omit it")
    return aggregation or "first"
