"""``hydrant.pipeline``: a drop-in replacement for a transformers pipeline, with uncertainties in the answers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np

from ..bundle.store import Bundle
from ..data.python_inputs import given_inputs
from ..data.raw_inputs import image_array, is_pair, is_record, is_tensor, is_words
from ..data.text import Piece
from ..errors import InputError, cut, is_whole, listing
from ..metrics.gates import Precision
from ..metrics.labels import sigmoid
from ..tasks import TASKS
from .loading import load
from .prediction import Prediction, shortest
from .predictor import BATCH_SIZE, Predictor
from .word_predictions import Aggregation, aggregated, flat, worst

DEFAULT_TOP_K = "unasked"
"""Default of ``top_k``, which changes the nesting of the answers, as in transformers."""

MAX_LABELS = 5  # for images and sounds without ``top_k``, as in transformers

FUNCTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "classification": ("the mean of its members' softmax, and no logits", ("softmax",)),
    "score": ("one score", ("sigmoid", "none")),
    "multi_label": ("the mean of its members' sigmoids, and no logits", ("sigmoid",)),
}
"""Task → its output, and the values of ``function_to_apply`` that it supports."""

ENCODING = {
    "truncation": (None, True, "longest_first"),  # long texts are always truncated
    "padding": (None, True, False, "longest", "max_length", "do_not_pad"),  # no value changes an answer
}
"""Values of the options of tokenizers."""

TASK_NAMES = {
    **{name: name for name in ("text-classification", "image-classification", "audio-classification")},
    **dict.fromkeys(("token-classification", "ner"), "token-classification"),
    "sentiment-analysis": "text-classification",
}
"""Names of tasks, and their other names, as in transformers."""

AGGREGATIONS: dict[str, Aggregation] = {"simple": "first", "first": "first", "average": "mean", "max": "max"}


def pipeline(
    bundle: Bundle | str | Path | None = None,
    model: Bundle | str | Path | None = None,
    *,
    task: str | None = None,
    backend: str = "auto",
    precision: Precision | None = None,
    threads: int | None = None,
    trust: str | Path | None = None,
    revision: str | None = None,
    top_k: int | str | None = DEFAULT_TOP_K,
    batch_size: int | None = None,
    function_to_apply: str | None = None,
    truncation: bool | str | None = None,
    padding: bool | str | None = None,
    max_length: int | None = None,
    aggregation_strategy: str = "none",
    ignore_labels: Sequence[str] | None = None,
) -> Pipeline | TokenPipeline:
    """Open a bundle as a replacement for ``transformers.pipeline``: text, image, audio or token classification.

    ``pipeline("text-classification", model="out/")`` is the same as ``pipeline("out/")``.

    Args:
        bundle: as in ``load``, like ``backend`` to ``revision``; with ``model``, the name of its task.
        model: as in ``load``, for calls in the form of transformers.
        task: name of the task, as in transformers; checked.
        top_k: labels in each answer, the most probable first; ``None`` for all (default: one for a text, five for an
            image or a sound).
        batch_size: inputs per run (default: 32, and 1 for streams, so that no answer waits for later inputs).
        function_to_apply: as in ``Pipeline.__call__``, like ``truncation``, ``padding`` and ``max_length``.
        aggregation_strategy: for token classification, as in ``TokenPipeline``, like ``ignore_labels``.

    Returns:
        A ``Pipeline``, or for token classification a ``TokenPipeline``.

    Raises:
        InputError: an option is invalid, or is for another task.
        BackendError, MissingExtraError, BundleError: as in ``load``.
    """
    if task is not None:
        bundle, model = task, bundle if model is None else model
    opened = bundle if model is None else model
    if opened is None or (model is None and str(bundle) in TASK_NAMES and not Path(str(bundle)).exists()):
        raise InputError("no bundle is named; use pipeline('out/') or pipeline('text-classification', model='out/')")
    predictor = load(opened, backend, threads=threads, precision=precision, trust=trust, revision=revision)
    encoding = truncation, padding, max_length
    try:
        own = "token-classification" if predictor.task == "tokens" else f"{predictor.modality}-classification"
        if model is not None and bundle is not None and TASK_NAMES.get(str(bundle), bundle) != own:
            raise InputError(f"the task is {cut(bundle)}, but this bundle is for {own}; pass {own!r}")
        if predictor.task == "tokens":
            if top_k != DEFAULT_TOP_K or (function_to_apply, *encoding) != (None,) * 4:
                options = "top_k, function_to_apply, truncation, padding and max_length"
                raise InputError(f"{options} are not for token classification; omit them")
            return TokenPipeline(predictor, aggregation_strategy, ignore_labels, batch_size)
        if aggregation_strategy != "none" or ignore_labels is not None:
            raise InputError("aggregation_strategy and ignore_labels are for token classification; omit them")
        return Pipeline(predictor, top_k, batch_size, function_to_apply, *encoding)
    except BaseException:
        predictor.close()
        raise


class _Pipeline:
    """Answers one input, many inputs or a stream."""

    def __init__(self, predictor: Predictor, batch_size: int | None) -> None:
        self.predictor, self._batch_size = predictor, batch_size

    def close(self) -> None:
        """Release the bundle's backend; open streams end with an error."""
        self.predictor.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _all(self, inputs: Any, whole: bool, batch_size: int | None, *options: Any) -> Any:
        """A list of answers if ``whole``, else a lazy iterator."""
        size = batch_size or self._batch_size
        if whole:
            return self._answers(inputs, 0, size or BATCH_SIZE, *options)
        return self._stream(iter(given_inputs(inputs, self.predictor.modality)), size or 1, *options)

    def _stream(self, items: Iterator[Any], size: int, *options: Any) -> Iterator[Any]:
        first = 0
        while chunk := list(islice(items, size)):
            yield from self._answers(chunk, first, size, *options)
            first += len(chunk)

    @abstractmethod
    def _answers(self, inputs: Any, first: int, size: int, *options: Any) -> list[Any]:
        """One answer for each input; ``first`` is the index of the first one."""


class Pipeline(_Pipeline):
    """Answers like a transformers pipeline: the keys ``label`` and ``score`` in the same nesting.

    Every answer also has the uncertainties and decisions of ``Prediction`` that the bundle supports:
    ``predictive_entropy``, ``expected_entropy``, ``mutual_information``, ``disagreement``, ``energy``, ``distance``,
    ``length_deviation``, ``abstain``, ``out_of_distribution`` and ``prediction_set``; for regression also
    ``score_variance``, ``interval_low`` and ``interval_high``. Thread-safe.

    Args:
        predictor: predictor to use; closed with the pipeline.
        top_k: as in :func:`pipeline`, like the others.

    Attributes:
        predictor: the predictor.
        task: ``"text-classification"``, ``"image-classification"`` or ``"audio-classification"``.
    """

    def __init__(
        self,
        predictor: Predictor,
        top_k: int | str | None = DEFAULT_TOP_K,
        batch_size: int | None = None,
        function_to_apply: str | None = None,
        truncation: bool | str | None = None,
        padding: bool | str | None = None,
        max_length: int | None = None,
    ) -> None:
        super().__init__(predictor, batch_size)
        _check_top_k(top_k)
        if predictor.task not in FUNCTIONS:
            gives = TASKS[predictor.task].gives
            raise InputError(f"Pipeline classifies whole inputs, but this bundle returns {gives}; use TokenPipeline")
        self.task = f"{predictor.modality}-classification"
        self._top_k, self._function = top_k, function_to_apply
        self._squashes(function_to_apply)
        self._max_length = self._longest(truncation, padding, max_length)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.task}, {self.predictor!r})"

    def __call__(
        self,
        inputs: Any,
        *,
        top_k: int | str | None = DEFAULT_TOP_K,
        batch_size: int | None = None,
        function_to_apply: str | None = None,
        truncation: bool | str | None = None,
        padding: bool | str | None = None,
        max_length: int | None = None,
    ) -> Any:
        """Classify one input, a list of them, or a stream.

        Args:
            inputs: a text, ``{"text": …, "text_pair": …}``, an image (path, PIL image, bytes, uint8 array), a sound
                (path, bytes, float array, ``{"array" or "raw": …, "sampling_rate": …}``), or many of these. A list or
                an array returns a list; a generator or data set returns a lazy iterator.
            top_k: as in :func:`pipeline`, like ``batch_size``.
            function_to_apply: ``"sigmoid"`` or ``"none"`` for regression (default: ``"none"`` if the checkpoint's
                ``problem_type`` is regression, else ``"sigmoid"``). Other tasks accept only what they always apply:
                ``"softmax"`` for classes, ``"sigmoid"`` for multi-label.
            truncation: ``True`` or ``"longest_first"``: longer texts are always truncated, pairs at their longer text.
            padding: any of transformers' values; it changes no answer, because padding is masked.
            max_length: tokens at which texts are truncated, if fewer than the model reads.

        Returns:
            ``[answer]`` for a text, ``answer`` for a dict and for each item of a list or stream. With ``top_k``, and
            for images and sounds, each answer is a list. The nesting is that of transformers.

        Raises:
            InputError: an input or option cannot be used.
            BackendError: the backend failed, or the pipeline was closed.
        """
        _check_top_k(top_k)
        longest = self._longest(truncation, padding, max_length) or self._max_length
        by_default = top_k == DEFAULT_TOP_K
        options = self._top_k if by_default else top_k, self._squashes(function_to_apply or self._function), longest
        if self._is_one(inputs):
            (answer,) = self._answers([inputs], 0, 1, *options)
            return [answer] if isinstance(inputs, str) and by_default and self.predictor.modality == "text" else answer
        return self._all(inputs, _is_whole(inputs), batch_size, *options)

    def _is_one(self, inputs: Any) -> bool:
        pair = self.predictor.modality == "text" and is_pair(inputs)
        inputs = image_array(inputs) if is_tensor(inputs) else inputs
        grid = isinstance(inputs, np.ndarray) and inputs.dtype.kind not in "USO"
        if self.predictor.modality == "audio":
            listed = isinstance(inputs, list) and isinstance(next(iter(inputs), None), float)
            one = listed or (grid and inputs.ndim == 1)
        else:
            one = hasattr(inputs, "convert") or (grid and (inputs.ndim == 2 or inputs.shape[2:] == (3,)))
        return pair or one or is_record(inputs) or isinstance(inputs, str | Path | bytes | bytearray)

    def _longest(self, truncation: Any, padding: Any, max_length: int | None) -> int | None:
        """Check the options of tokenizers, and return the largest number of tokens; ``None`` for that of the model."""
        for name, option in {"truncation": truncation, "padding": padding}.items():
            if option not in ENCODING[name]:
                raise InputError(f"{name} is {cut(option)}; expected one of {listing(ENCODING[name])}")
        if max_length is not None and not (is_whole(max_length, 1) and self.predictor.modality == "text"):
            raise InputError(f"max_length is {cut(max_length)}; expected a number of tokens, for a model of texts")
        return max_length

    def _squashes(self, function: str | None) -> bool:
        """Return True if the bundle's score needs a sigmoid."""
        gives, allowed = FUNCTIONS[self.predictor.task]
        name = None if function is None else str(getattr(function, "value", function)).lower()
        if name is not None and name not in allowed:
            raise InputError(
                f"function_to_apply is {cut(function)}, but this bundle returns {gives}; "
                f"expected {' or '.join(allowed)}"
            )
        if self.predictor.task != "score":
            return False
        if self.predictor.activation != "sigmoid":
            return name == "sigmoid" or (name is None and not self.predictor.regression)
        if name == "none":
            raise InputError("function_to_apply is 'none', but the model itself ends in a sigmoid; omit it")
        return False

    def _answers(self, inputs: Any, first: int, size: int, *options: Any) -> list[Any]:
        top_k, squash, max_length = options
        prediction = self.predictor.predict(inputs, batch_size=size, first=first, max_length=max_length)
        labels, rows = self.predictor.labels, prediction.rows()
        if prediction.score is not None:
            scores = (sigmoid(prediction.score) if squash else prediction.score)[:, None]
        else:
            scores = prediction.probabilities
        alone = top_k == DEFAULT_TOP_K and self.predictor.modality == "text"
        count = _count(top_k, self.predictor.modality)
        answers: list[Any] = []
        for row, values in zip(rows, scores, strict=True):
            more, order = _uncertainties(row, squash), np.argsort(-values, kind="stable")[:count]
            each = [{"label": labels[place], "score": float(values[place]), **more} for place in order]
            answers.append(each[0] if alone else each)
        return answers


class TokenPipeline(_Pipeline):
    """Answers like the token classification pipeline of transformers: the same keys in the same nesting.

    Each answer also has the uncertainties and decisions that the bundle supports: ``predictive_entropy``,
    ``expected_entropy``, ``mutual_information``, ``disagreement``, ``energy``, ``distance``, ``abstain`` and
    ``out_of_distribution``. Thread-safe.

    Args:
        predictor: predictor to use; closed with the pipeline.
        aggregation_strategy: ``"none"`` for tokens; ``"simple"`` for entities of tokens; for entities of words
            ``"first"``, ``"average"`` or ``"max"``: the prediction of a word's first token, the mean of its tokens'
            probabilities, or the prediction of its most confident token.
        ignore_labels: labels to leave out of the answers (default: ``"O"``).
        batch_size: inputs per run (default: 32, and 1 for streams).

    Attributes:
        predictor: the predictor.
        task: ``"token-classification"``.

    Raises:
        InputError: the bundle is for another task, or an option is unknown.
    """

    task = "token-classification"

    def __init__(
        self,
        predictor: Predictor,
        aggregation_strategy: str = "none",
        ignore_labels: Sequence[str] | None = None,
        batch_size: int | None = None,
    ) -> None:
        super().__init__(predictor, batch_size)
        if predictor.task != "tokens":
            gives = TASKS[predictor.task].gives
            raise InputError(f"TokenPipeline needs a token classification model, but this one returns {gives}")
        self._strategy, self._ignored = _strategy(aggregation_strategy), _ignored(ignore_labels)

    def __call__(
        self,
        inputs: Any,
        *,
        aggregation_strategy: str | None = None,
        ignore_labels: Sequence[str] | None = None,
        batch_size: int | None = None,
        is_split_into_words: bool = False,
    ) -> Any:
        """Tag one text, a list of them, or a stream.

        Args:
            inputs: a text, a list of texts, or a generator or data set of them.
            aggregation_strategy: as in :class:`TokenPipeline`, like ``ignore_labels`` and ``batch_size``.
            is_split_into_words: each text is a list of its words.

        Returns:
            A list of answers for a text; a list of such lists for many texts or for one list of words; an iterator for
            a stream. A token has ``entity``, ``score``, ``index``, ``word``, ``start`` and ``end``. An entity has
            ``entity_group`` instead of ``entity``, and no ``index``.

        Raises:
            InputError: an input or option cannot be used.
            BackendError: the backend failed, or the pipeline was closed.
        """
        strategy = self._strategy if aggregation_strategy is None else _strategy(aggregation_strategy)
        options = strategy, self._ignored if ignore_labels is None else _ignored(ignore_labels)
        if isinstance(inputs, str):
            return self._answers([inputs], 0, 1, *options)[0]
        inputs = [inputs] if is_split_into_words and is_words(inputs) else inputs
        return self._all(inputs, isinstance(inputs, list | tuple | np.ndarray), batch_size, *options)

    def _answers(self, inputs: Any, first: int, size: int, *options: Any) -> list[Any]:
        """The answers for texts; a blank text has none."""
        strategy, ignored = options
        texts = [list(text) if is_words(text) else text for text in inputs]
        prediction = self.predictor.predict(texts, batch_size=size, first=first, on_error="row")
        blank = [isinstance(text, str) and not text.strip() for text in texts]
        errors: Sequence[str | None] = [] if prediction.error is None else prediction.error.tolist()
        for error, is_blank in zip(errors, blank, strict=False):
            if error is not None and not is_blank:
                raise InputError(error)
        answers: list[Any] = []
        for row, text in enumerate(texts):
            pieces = [] if blank[row] else self.predictor.pieces([text])[0]
            places = [place for place, piece in enumerate(pieces) if not piece.special]
            named, tokens = [pieces[place] for place in places], flat(prediction, row)
            if not places:
                answers.append([])
                continue
            if strategy == "none":
                each, key = self._tokens(tokens.take(np.array(places, np.int64)), named, places), "entity"
            else:
                each, key = self._entities(tokens, named, places, strategy), "entity_group"
            answers.append([answer for answer in each if answer[key] not in ignored])
        return answers

    def _tokens(self, tokens: Prediction, pieces: Sequence[Piece], places: Sequence[int]) -> list[dict[str, Any]]:
        labels = self.predictor.labels
        return [
            {
                "entity": labels[tokens.label[at]],
                "score": float(tokens.confidence[at]),
                "index": place,
                "word": piece.token,
                "start": piece.start,
                "end": piece.end,
                **_scores_at(tokens, [at]),
            }
            for at, (place, piece) in enumerate(zip(places, pieces, strict=True))
        ]

    def _entities(
        self, tokens: Prediction, pieces: Sequence[Piece], places: Sequence[int], strategy: str
    ) -> list[dict[str, Any]]:
        simple, joined = strategy == "simple", self.predictor.joined
        units = _groups(len(pieces), lambda at: not simple and pieces[at].continues)
        of_units = [np.array([places[at] for at in unit]) for unit in units]
        words = aggregated(tokens, of_units, AGGREGATIONS[strategy], self.predictor.calibration)
        labels = [self.predictor.labels[label] for label in words.label]
        texts = [pieces[unit[0]].token if simple else joined([pieces[at].token for at in unit]) for unit in units]
        return [
            {
                "entity_group": labels[run[0]].split("-", 1)[-1],
                "score": float(np.mean(words.confidence[run])),
                "word": joined([texts[at] for at in run]),
                "start": pieces[units[run[0]][0]].start,
                "end": pieces[units[run[-1]][-1]].end,
                **_scores_at(words, run),
            }
            for run in _groups(len(labels), lambda at: _is_continued(labels[at - 1], labels[at]))
        ]


def _check_top_k(top_k: Any) -> None:
    if top_k is not None and top_k != DEFAULT_TOP_K and not is_whole(top_k, 1):
        raise InputError(f"top_k is {cut(top_k)}; expected a whole number, 1 or more, or None")


def _count(top_k: Any, modality: str) -> int | None:
    """Labels in an answer; ``None`` means all, and five for images, as in transformers."""
    if top_k == DEFAULT_TOP_K:
        return 1 if modality == "text" else MAX_LABELS
    return MAX_LABELS if top_k is None and modality == "image" else top_k


def _uncertainties(row: dict[str, Any], squash: bool) -> dict[str, Any]:
    """The other fields of a row; an interval gets the same sigmoid as its score."""
    more = {name: value for name, value in row.items() if name not in ("index", "label", "score", "confidence")}
    for end in ("interval_low", "interval_high"):
        if squash and end in more:
            more[end] = float(sigmoid(np.asarray(more[end])))
    return more


def _is_whole(inputs: Any) -> bool:
    """Return True for inputs in memory: lists, arrays, ready tensors, and tables except those of ``datasets``."""
    listed = isinstance(inputs, list | tuple | np.ndarray | Mapping) or is_tensor(inputs)
    return listed or type(inputs).__module__.partition(".")[0] in ("pandas", "polars", "pyarrow")


def _strategy(strategy: Any) -> str:
    if (name := str(strategy).lower()) != "none" and name not in AGGREGATIONS:
        raise InputError(f"aggregation_strategy is {cut(strategy)}; expected none, {', '.join(AGGREGATIONS)}")
    return name


def _ignored(labels: Sequence[str] | None) -> frozenset[str]:
    if isinstance(labels, str):
        raise InputError(f"ignore_labels is {cut(labels)}; expected a list of labels")
    return frozenset(("O",) if labels is None else labels)


def _groups(count: int, continues: Callable[[int], bool]) -> list[list[int]]:
    """Consecutive places in groups; a place that continues the one before joins its group."""
    starts = [at for at in range(count) if at == 0 or not continues(at)]
    return [list(range(start, end)) for start, end in pairwise([*starts, count])]


def _is_continued(before: str, label: str) -> bool:
    """Return True if a label continues the entity of the label before; ``B-`` begins a new one."""
    kind = before[2:] if before.startswith(("B-", "I-")) else before
    return not label.startswith("B-") and kind == label.removeprefix("I-")


def _scores_at(prediction: Prediction, places: list[int]) -> dict[str, Any]:
    """The uncertainties and decisions of some tokens or words, without ``None``."""
    scores = {name: value for name, value in worst(prediction, places).items() if value is not None}
    return {name: value if isinstance(value, bool) else shortest(np.float32(value)) for name, value in scores.items()}
