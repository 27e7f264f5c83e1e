"""A bundle that tags tokens in the place of ``transformers.pipeline("token-classification")``.

The rules by which tokens become words and words become entities are those of that pipeline, so that its callers find
what they know; ``predictor.spans`` reads tags as seqeval does. An entity is as sure as its least sure word: every
uncertainty is the largest of its words, or tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Literal, get_args

import numpy as np

from ..bundle.calibration import Calibration
from ..bundle.tasks import GIVES
from ..data.python_inputs import given_inputs
from ..data.raw_inputs import is_words
from ..data.words import Piece
from ..errors import InputError, cut
from .decisions import decided
from .prediction import Prediction
from .predictor import BATCH_SIZE, Predictor
from .words import UNCERTAINTIES, flat, mean_of

Strategy = Literal["none", "simple", "first", "average", "max"]

STRATEGIES: tuple[str, ...] = get_args(Strategy)

IGNORED = ("O",)
"""Labels that are left out where nobody says which."""


class TokenPipeline:
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
        if predictor.task != "tokens":
            raise InputError(f"this pipeline needs a model that tags tokens, and this gives {GIVES[predictor.task]}")
        self.predictor = predictor
        self._strategy, self._ignored = checked(aggregation_strategy), ignored(ignore_labels)
        self._batch_size = batch_size

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
        strategy = self._strategy if aggregation_strategy is None else checked(aggregation_strategy)
        left_out = self._ignored if ignore_labels is None else ignored(ignore_labels)
        size = batch_size or self._batch_size
        if isinstance(inputs, str):
            return next(self._answers([inputs], 0, BATCH_SIZE, strategy, left_out))
        inputs = [inputs] if is_split_into_words and is_words(inputs) else inputs
        if isinstance(inputs, list | tuple | np.ndarray):
            return list(self._answers(list(inputs), 0, size or BATCH_SIZE, strategy, left_out)) if len(inputs) else []
        return self._stream(iter(given_inputs(inputs, self.predictor.modality)), size or 1, strategy, left_out)

    def close(self) -> None:
        """Release the bundle's backend; a stream that is being read ends with an error."""
        self.predictor.close()

    def __enter__(self) -> TokenPipeline:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _stream(self, items: Iterator[Any], size: int, strategy: str, left_out: frozenset[str]) -> Iterator[Any]:
        first = 0
        while chunk := list(islice(items, size)):
            yield from self._answers(chunk, first, size, strategy, left_out)
            first += len(chunk)

    def _answers(
        self, texts: Sequence[Any], first: int, size: int, strategy: str, left_out: frozenset[str]
    ) -> Iterator[list[dict[str, Any]]]:
        """Answers of texts, of which the first one has an index; a blank text has no tokens, and so no answers."""
        texts = [text if isinstance(text, str | list) else list(text) if is_words(text) else text for text in texts]
        found = self.predictor.predict(list(texts), batch_size=size, first=first, on_error="row")
        blank = [isinstance(text, str) and not text.strip() for text in texts]
        errors = [None] * len(texts) if found.error is None else found.error
        for error, is_blank in zip(errors, blank, strict=True):
            if error is not None and not is_blank:
                raise InputError(error)
        for row, text in enumerate(texts):
            if blank[row]:
                yield []
                continue
            (pieces,) = self.predictor.pieces([text])
            tokens = flat(found, row)
            real = [place for place, piece in enumerate(pieces) if not piece.special]
            named = [pieces[place] for place in real]
            if strategy == "none":
                told = self._tokens(tokens.take(np.array(real, np.int64)), named, real)
            else:
                told = self._entities(tokens, named, real, strategy)
            yield [answer for answer in told if answer.get("entity", answer.get("entity_group")) not in left_out]

    def _tokens(self, found: Prediction, pieces: Sequence[Piece], places: Sequence[int]) -> list[dict[str, Any]]:
        """One answer for each token."""
        labels = self.predictor.labels
        return [
            {
                "entity": labels[found.label[at]],
                "score": float(found.confidence[at]),
                "index": place,
                "word": piece.token,
                "start": piece.start,
                "end": piece.end,
                **_about(found, [at]),
            }
            for at, (place, piece) in enumerate(zip(places, pieces, strict=True))
        ]

    def _entities(
        self, tokens: Prediction, pieces: Sequence[Piece], places: Sequence[int], strategy: str
    ) -> list[dict[str, Any]]:
        """One answer for each run of tokens, or of words, with tags of one type."""
        units = [[at] for at in range(len(pieces))] if strategy == "simple" else _words(pieces)
        found = united(tokens, [[places[at] for at in unit] for unit in units], strategy, self.predictor.calibration)
        labels = [self.predictor.labels[label] for label in found.label]
        texts = [
            pieces[unit[0]].token if strategy == "simple" else self.predictor.joined([pieces[at].token for at in unit])
            for unit in units
        ]
        return [
            {
                "entity_group": labels[run[0]].split("-", 1)[-1],
                "score": float(np.mean(found.confidence[run])),
                "word": self.predictor.joined([texts[at] for at in run]),
                "start": pieces[units[run[0]][0]].start,
                "end": pieces[units[run[-1]][-1]].end,
                **_about(found, run),
            }
            for run in _runs(labels)
        ]


def checked(strategy: Any) -> str:
    """An aggregation strategy."""
    if str(strategy).lower() not in STRATEGIES:
        raise InputError(f"aggregation_strategy is {cut(strategy)}; expected one of {', '.join(STRATEGIES)}")
    return str(strategy).lower()


def ignored(labels: Any) -> frozenset[str]:
    """Labels to leave out."""
    if labels is None:
        return frozenset(IGNORED)
    if isinstance(labels, str) or not all(isinstance(label, str) for label in labels):
        raise InputError(f"ignore_labels is {cut(labels)}; expected a list of labels")
    return frozenset(labels)


def united(tokens: Prediction, units: Sequence[Sequence[int]], strategy: str, calibration: Calibration) -> Prediction:
    """What is said of words, each of some tokens."""
    if strategy == "average":
        return decided(mean_of(tokens, [np.array(unit) for unit in units]), calibration)
    chosen = [unit[0] if strategy != "max" else unit[int(np.argmax(tokens.confidence[list(unit)]))] for unit in units]
    return tokens.take(np.array(chosen, np.int64))


def _words(pieces: Sequence[Piece]) -> list[list[int]]:
    """Places of the tokens of each word."""
    words: list[list[int]] = []
    for at, piece in enumerate(pieces):
        if words and piece.continues:
            words[-1].append(at)
        else:
            words.append([at])
    return words


def _runs(labels: Sequence[str]) -> list[list[int]]:
    """Places of each run of labels of one type, of which a ``B-`` begins a new one."""
    runs: list[list[int]] = []
    for at, label in enumerate(labels):
        same = runs and _type(label) == _type(labels[at - 1]) and not label.startswith("B-")
        if same:
            runs[-1].append(at)
        else:
            runs.append([at])
    return runs


def _type(label: str) -> str:
    return label[2:] if label.startswith(("B-", "I-")) else label


def _about(found: Prediction, places: Sequence[int]) -> dict[str, Any]:
    """The largest of each uncertainty, and whether any is abstained from or flagged."""
    about: dict[str, Any] = {}
    for name in UNCERTAINTIES:
        if (scores := getattr(found, name)) is not None:
            about[name] = float(str(scores[list(places)].max()))
    for name in ("abstain", "out_of_distribution"):
        if (flags := getattr(found, name)) is not None:
            about[name] = bool(flags[list(places)].any())
    return about
