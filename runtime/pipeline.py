"""``hydrant.pipeline``: a bundle in the place of a pipeline of transformers, by its rules; its answers contain more."""

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
from ..errors import InputError, cut, is_whole
from ..metrics.gates import Precision
from ..tasks import TASKS
from .loading import load
from .prediction import Prediction, shortest
from .predictor import BATCH_SIZE, Predictor
from .word_predictions import Aggregation, aggregated, flat, worst

UNASKED = "unasked"
"""Default of ``top_k``: pipelines of transformers then answer in another shape."""

MAX_LABELS = 5  # of an image or sound without ``top_k``, as in transformers

FUNCTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "classification": ("the mean of its members' softmax, and no logits", ("softmax",)),
    "score": ("one score", ("sigmoid", "none")),
    "multi_label": ("the mean of its members' sigmoids, and no logits", ("sigmoid",)),
}
"""Task of a bundle → its output, and the values of ``function_to_apply`` that it takes."""

AGGREGATIONS: dict[str, Aggregation] = {"simple": "first", "first": "first", "average": "mean", "max": "max"}


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
        bundle: bundle folder. In Python also an open ``Bundle``.
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
    predictor = load(bundle, backend, threads=threads, precision=precision, trust=trust)
    try:
        if predictor.task == "tokens":
            if top_k != UNASKED or function_to_apply is not None:
                raise InputError("top_k and function_to_apply are not for models that tag tokens; leave them out")
            return TokenPipeline(predictor, aggregation_strategy, ignore_labels, batch_size)
        if aggregation_strategy != "none" or ignore_labels is not None:
            raise InputError("aggregation_strategy and ignore_labels are for models that tag tokens; leave them out")
        return Pipeline(predictor, top_k, batch_size, function_to_apply)
    except BaseException:
        predictor.close()
        raise


class _Pipeline:
    """Answers one input, many, or a stream of them."""

    def __init__(self, predictor: Predictor, batch_size: int | None) -> None:
        self.predictor, self._batch_size = predictor, batch_size

    def close(self) -> None:
        """Release the bundle's backend; a stream that is being read ends with an error."""
        self.predictor.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _all(self, inputs: Any, whole: bool, batch_size: int | None, *options: Any) -> Any:
        """A list of answers to a list or an array of inputs, a lazy iterator for other inputs."""
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
        super().__init__(predictor, batch_size)
        _check_top_k(top_k)
        if predictor.task not in FUNCTIONS:
            gives = TASKS[predictor.task].gives
            raise InputError(f"this pipeline classifies whole inputs, and this bundle gives {gives}; use TokenPipeline")
        self.task = f"{predictor.modality}-classification"
        self._top_k, self._function = top_k, function_to_apply
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
        _check_top_k(top_k)
        if truncation is not True:
            raise InputError(f"truncation is {cut(truncation)}; expected True: long texts are always truncated")
        unasked = top_k == UNASKED
        options = self._top_k if unasked else top_k, self._squashes(function_to_apply or self._function)
        if self._is_one(inputs):
            (answer,) = self._answers([inputs], 0, 1, *options)
            return [answer] if isinstance(inputs, str) and unasked and self.predictor.modality == "text" else answer
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

    def _squashes(self, function: str | None) -> bool:
        """Whether the bundle's score still goes through a sigmoid."""
        gives, allowed = FUNCTIONS[self.predictor.task]
        name = None if function is None else str(function).lower()
        if name is not None and name not in allowed:
            raise InputError(
                f"function_to_apply is {cut(function)}, and this bundle gives {gives}; expected {' or '.join(allowed)}"
            )
        if self.predictor.task != "score":
            return False
        if self.predictor.activation != "sigmoid":
            return name == "sigmoid" or (name is None and not self.predictor.regression)
        if name == "none":
            raise InputError("function_to_apply is 'none', but the model itself ends in a sigmoid; leave it out")
        return False

    def _answers(self, inputs: Any, first: int, size: int, *options: Any) -> list[Any]:
        top_k, squash = options
        prediction = self.predictor.predict(inputs, batch_size=size, first=first)
        labels, rows = self.predictor.labels, prediction.rows(self.predictor.labels)
        if prediction.score is not None:
            scores = (_sigmoid(prediction.score) if squash else prediction.score)[:, None]
        else:
            scores = prediction.probabilities
        alone = top_k == UNASKED and self.predictor.modality == "text"
        count = _count(top_k, self.predictor.modality)
        answers: list[Any] = []
        for row, values in zip(rows, scores, strict=True):
            more, order = _uncertainties(row, squash), np.argsort(-values, kind="stable")[:count]
            each = [{"label": labels[place], "score": float(values[place]), **more} for place in order]
            answers.append(each[0] if alone else each)
        return answers


class TokenPipeline(_Pipeline):
    """Answers as the token classification pipeline of transformers: the same keys in the same nesting, and more.

    Each answer also has ``predictive_entropy``, ``expected_entropy``, ``mutual_information``, ``disagreement``,
    ``energy``, ``distance``, ``abstain`` and ``out_of_distribution``, as far as the bundle has them. Safe to use from
    many threads.

    Args:
        predictor: that predicts; closed with the pipeline.
        aggregation_strategy: ``"none"`` for tokens; ``"simple"`` for entities of tokens; ``"first"``, ``"average"`` or
            ``"max"`` for entities of words, each with what its first token says, with the mean of its tokens'
            probabilities, or with what its most probable token says.
        ignore_labels: left out of the answers; without it ``"O"``.
        batch_size: inputs per run; without it 32, and 1 for streams.

    Attributes:
        predictor: the same.
        task: ``"token-classification"``.

    Raises:
        InputError: a bundle of another task, or an unknown option.
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
            raise InputError(f"this pipeline needs a model that tags tokens, and this gives {gives}")
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
            aggregation_strategy: as of :class:`TokenPipeline`.
            ignore_labels: as of :class:`TokenPipeline`.
            batch_size: as of :class:`TokenPipeline`.
            is_split_into_words: a text is a list of its words.

        Returns:
            For a text a list of answers, for a list of texts, or the words of one, a list of these; for a stream an
            iterator. A token has ``entity``, ``score``, ``index``, ``word``, ``start`` and ``end``; an entity
            ``entity_group`` in place of ``entity``, and no ``index``.

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
        """Answers of texts; a blank text has no tokens, and so no answers."""
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

    def _tokens(self, found: Prediction, pieces: Sequence[Piece], places: Sequence[int]) -> list[dict[str, Any]]:
        labels = self.predictor.labels
        return [
            {
                "entity": labels[found.label[at]],
                "score": float(found.confidence[at]),
                "index": place,
                "word": piece.token,
                "start": piece.start,
                "end": piece.end,
                **_known(found, [at]),
            }
            for at, (place, piece) in enumerate(zip(places, pieces, strict=True))
        ]

    def _entities(
        self, tokens: Prediction, pieces: Sequence[Piece], places: Sequence[int], strategy: str
    ) -> list[dict[str, Any]]:
        simple, joined = strategy == "simple", self.predictor.joined
        units = _groups(len(pieces), lambda at: not simple and pieces[at].continues)
        of_units = [np.array([places[at] for at in unit]) for unit in units]
        found = aggregated(tokens, of_units, AGGREGATIONS[strategy], self.predictor.calibration)
        labels = [self.predictor.labels[label] for label in found.label]
        texts = [pieces[unit[0]].token if simple else joined([pieces[at].token for at in unit]) for unit in units]
        return [
            {
                "entity_group": labels[run[0]].split("-", 1)[-1],
                "score": float(np.mean(found.confidence[run])),
                "word": joined([texts[at] for at in run]),
                "start": pieces[units[run[0]][0]].start,
                "end": pieces[units[run[-1]][-1]].end,
                **_known(found, run),
            }
            for run in _groups(len(labels), lambda at: _goes_on(labels[at - 1], labels[at]))
        ]


def _check_top_k(top_k: Any) -> None:
    if top_k is not None and top_k != UNASKED and not is_whole(top_k, 1):
        raise InputError(f"top_k is {cut(top_k)}; expected a whole number, 1 or more, or None")


def _count(top_k: Any, modality: str) -> int | None:
    """Labels in an answer; ``None`` for all, but for images, whose pipelines take ``None`` for five."""
    if top_k == UNASKED:
        return 1 if modality == "text" else MAX_LABELS
    return MAX_LABELS if top_k is None and modality == "image" else top_k


def _uncertainties(row: dict[str, Any], squash: bool) -> dict[str, Any]:
    """A row without what an answer has by itself; an interval goes through the sigmoid that its score went through."""
    more = {name: value for name, value in row.items() if name not in ("index", "label", "score", "confidence")}
    for end in ("interval_low", "interval_high"):
        if squash and end in more:
            more[end] = float(_sigmoid(np.asarray(more[end])))
    return more


def _sigmoid(values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(-values.astype(np.float64))))


def _is_whole(inputs: Any) -> bool:
    """Whether inputs are in memory: lists, arrays, ready tensors, and tables but those of ``datasets``."""
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
    """Places in groups, each with the following places that continue it."""
    starts = [at for at in range(count) if at == 0 or not continues(at)]
    return [list(range(start, end)) for start, end in pairwise([*starts, count])]


def _goes_on(before: str, label: str) -> bool:
    """Whether a label is of the same type as the one before; a ``B-`` begins a new run."""
    kind = before[2:] if before.startswith(("B-", "I-")) else before
    return not label.startswith("B-") and kind == label.removeprefix("I-")


def _known(found: Prediction, places: list[int]) -> dict[str, Any]:
    """The uncertainties and decisions of some tokens or words, without ``None``."""
    known = {name: value for name, value in worst(found, places).items() if value is not None}
    return {name: value if isinstance(value, bool) else shortest(np.float32(value)) for name, value in known.items()}
