"""Batching of requests: greedy batches, a bounded queue, deadlines.

An input waits only while another batch runs. Then the oldest input runs with inputs of similar length, if their padding
costs less than a separate batch. If an input makes a batch fail, the requests of the batch run separately.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from dataclasses import dataclass, field, replace
from heapq import nsmallest
from itertools import accumulate
from time import perf_counter
from typing import Any

import numpy as np

from ..errors import HydrantError
from ..runtime.prediction import Prediction
from ..runtime.predictor import Predictor
from .http_refusals import ServeError
from .predict_request import check_count

Inputs = Sequence[Any] | Mapping[str, np.ndarray]
"""Raw inputs, or tensors [B, …] by name."""

RUN, RUN_ON_GPU = 128, 4096
"""Characters of padding that cost as much as a batch: on CPUs 60 (BERT-base) to 170 (MiniLM); on GPUs an estimate."""

TOGETHER = 2**18
"""Most characters in a batch of several texts."""

MAX_CHARACTERS = 2**20
"""Most characters in one text, pair or list of words: tokenizing takes 100 bytes per character or more."""


@dataclass(eq=False)
class _Job:
    """One request: the number of its pending inputs, and predictions with their places."""

    on_error: str
    left: int = 0
    answer: asyncio.Future[Prediction] | None = None  # None once abandoned: an error in it would make a cycle
    parts: list[tuple[np.ndarray, Prediction]] = field(default_factory=list)

    def take(self, items: Sequence[Item], outcome: Prediction | BaseException) -> None:
        if self.answer is None or self.answer.done():
            return
        if isinstance(outcome, BaseException):
            self.answer.set_exception(outcome)
            return
        self.parts.append((np.array([item.place for item in items]), outcome))
        self.left -= len(items)
        try:
            if not self.left:
                self.answer.set_result(self._joined())
        except Exception as error:  # the batcher must continue
            self.answer.set_exception(error)

    def give_up(self, seconds: float) -> None:
        message = f"the request was not answered within {seconds:g} s; send fewer inputs, or retry later"
        self.take([], ServeError(504, message))

    def _joined(self) -> Prediction:
        places, prediction = self.parts[0]
        if len(self.parts) == 1 and (len(places) == 1 or (np.diff(places) > 0).all()):
            return prediction
        joined = Prediction.concatenate([part for _, part in self.parts])
        return joined.take(np.argsort(np.concatenate([place for place, _ in self.parts])))


@dataclass(eq=False, frozen=True)
class Item:
    """One waiting input, raw or as tensors [1, …], and its place in its request."""

    job: _Job
    place: int
    value: Any
    kind: tuple[Any, ...]  # only one kind runs together: raw inputs, or tensors of one form
    length: int


class Batcher:
    """Runs the inputs of one model, in a separate thread."""

    def __init__(
        self,
        predictor: Predictor,
        *,
        batch_size: int,
        queue: int,
        run: float = RUN,
        ran: Callable[[int, float], None] = lambda size, seconds: None,  # noqa: ARG005
        waits: Callable[[int], None] = lambda depth: None,  # noqa: ARG005
    ) -> None:
        self._predictor, self._batch_size, self._limit = predictor, batch_size, queue
        self._run_costs, self._ran, self._waits = run, ran, waits
        self._waiting: list[Item] = []
        self._closing, self._wake = False, asyncio.Event()
        self._seconds = 0.0  # moving average of a run
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="hydrant-batches")
        # a separate context, or batches would belong to the trace of the request that loaded the model
        self._task = asyncio.get_running_loop().create_task(self._run(), context=Context())

    @property
    def depth(self) -> int:
        """Number of waiting inputs."""
        return len(self._waiting)

    async def submit(self, inputs: Inputs, timeout: float, on_error: str = "raise") -> Prediction:
        """Predict the inputs of one request; if cancelled, they leave the queue."""
        loop, job, count = asyncio.get_running_loop(), _Job(on_error), _count(inputs)
        check_count(count, self._limit)  # before creating items
        if self._closing:
            raise ServeError(503, "this version of the model is being unloaded; retry", retry_after=1)
        if self.depth + count > self._limit:
            after = max(1, math.ceil(self.depth / self._batch_size * self._seconds))
            message = f"the queue has {self.depth} of at most {self._limit} inputs; retry later"
            raise ServeError(503, message, retry_after=after)
        items = _items(job, inputs)
        if not items:
            return await loop.run_in_executor(self._pool, self._predict, inputs)
        job.left, job.answer = len(items), loop.create_future()
        self._waiting += items
        self._wake.set()
        self._waits(self.depth)
        timer = loop.call_later(timeout, job.give_up, timeout)
        try:
            return await job.answer
        finally:
            timer.cancel()
            job.answer = None
            if job.left:  # abandoned: its inputs leave the queue
                self._waiting = [item for item in self._waiting if item.job is not job]
                self._waits(self.depth)

    async def close(self) -> None:
        """Answer the waiting inputs, and end; a second call also waits."""
        self._closing = True
        self._wake.set()
        await asyncio.shield(self._task)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                while not self._waiting and not self._closing:
                    self._wake.clear()
                    await self._wake.wait()
                if not self._waiting:
                    return
                batch = next_batch(self._waiting, self._batch_size, self._run_costs)
                taken = set(map(id, batch))
                self._waiting = [item for item in self._waiting if id(item) not in taken]
                self._waits(self.depth)
                started = perf_counter()
                try:
                    outcomes = await loop.run_in_executor(self._pool, self._answers, batch)
                except Exception as error:  # the next batch must run in any case
                    outcomes = [(item.job, [item], error) for item in batch]
                seconds = perf_counter() - started
                self._seconds = seconds if self._seconds == 0 else 0.8 * self._seconds + 0.2 * seconds
                self._ran(len(batch), seconds)
                for job, items, outcome in outcomes:
                    job.take(items, outcome)
                outcomes.clear()  # breaks a cycle: errors refer to frames, and these to this list
        finally:
            self._pool.shutdown(wait=False)

    def _answers(self, batch: Sequence[Item]) -> list[tuple[_Job, list[Item], Prediction | BaseException]]:
        """The results of each request of a batch; runs in the thread."""
        shares: dict[_Job, list[int]] = {}
        for row, item in enumerate(batch):
            shares.setdefault(item.job, []).append(row)
        inputs: Any = [item.value for item in batch]
        if batch[0].kind:
            inputs = {name: np.concatenate([tensors[name] for tensors in inputs]) for name in inputs[0]}
        try:
            whole = self._predict(inputs, "row")
        except Exception as error:  # reported to its own request only
            if len(shares) == 1:
                return [(batch[0].job, list(batch), error)]
            return [each for rows in shares.values() for each in self._answers([batch[row] for row in rows])]
        outcomes: list[tuple[_Job, list[Item], Prediction | BaseException]] = []
        for job, rows in shares.items():
            items = [batch[row] for row in rows]
            each = slice(rows[0], rows[0] + 1) if len(rows) == 1 else np.asarray(rows)  # a slice copies nothing
            part = whole if len(rows) == len(whole) else whole.take(each)
            outcomes.append((job, items, part if part.error is None else self._with_errors(job, items, part)))
        return outcomes

    def _with_errors(self, job: _Job, items: Sequence[Item], part: Prediction) -> Prediction | BaseException:
        """The rows of one request, with errors if ``on_error="row"``; else the error of its first invalid input."""
        reasons = (error and self._why(item, error) for item, error in zip(items, part.error, strict=True))  # type: ignore[arg-type]
        if job.on_error == "row":
            return replace(part, error=np.array([each and str(each) for each in reasons], object))
        return next(filter(None, reasons), replace(part, error=None))

    def _why(self, item: Item, error: str) -> BaseException:
        """The error of an input, with its place in the request."""
        try:
            self._predictor.predict([item.value], first=item.place)
        except HydrantError as alone:
            return alone
        return ServeError(400, error)

    def _predict(self, inputs: Any, on_error: str = "raise") -> Prediction:
        return self._predictor.predict(inputs, batch_size=self._batch_size, on_error=on_error)


def next_batch(waiting: Sequence[Item], most: int, run: float = RUN) -> list[Item]:
    """The oldest input, and inputs of similar length that are cheapest to run with it, up to :data:`TOGETHER`."""
    oldest = waiting[0]
    if len(waiting) == 1:
        return [oldest]
    fit = [item for item in waiting if item.kind == oldest.kind]
    if len(fit) > most:
        fit = nsmallest(most, fit, key=lambda item: abs(item.length - oldest.length))
    lengths = sorted(item.length for item in fit)
    shortest, longest = next(each for each in batches(lengths, run) if each[0] <= oldest.length <= each[1])
    fit = [item for item in fit if shortest <= item.length <= longest]
    total = accumulate(item.length for item in fit)
    return [item for item, length in zip(fit, total, strict=True) if length <= TOGETHER or item is oldest]


def batches(lengths: Sequence[int], run: float) -> list[tuple[int, int]]:
    """The shortest and longest of each batch in the cheapest partition of sorted lengths; a batch costs ``run``."""
    # for the first n inputs: the cost, and the start of their last batch
    least, begins = np.zeros(len(lengths) + 1), [0]
    for end, longest in enumerate(lengths, 1):
        costs = least[:end] + np.arange(end, 0, -1) * float(longest)
        begins.append(int(costs.argmin()))
        least[end] = costs[begins[-1]] + run
    ranges, end = [], len(lengths)
    while end:
        ranges.append((lengths[begins[end]], lengths[end - 1]))
        end = begins[end]
    return ranges


def _items(job: _Job, inputs: Inputs) -> list[Item]:
    if isinstance(inputs, Mapping):
        kind = tuple(sorted((name, array.dtype.str, array.shape[1:]) for name, array in inputs.items()))
        rows = range(_count(inputs))
        return [Item(job, row, {name: array[row : row + 1] for name, array in inputs.items()}, kind, 1) for row in rows]
    items = [Item(job, place, value, (), _length(value)) for place, value in enumerate(inputs)]
    for item in items:
        if item.length > MAX_CHARACTERS:
            raise ServeError(413, f"input {item.place} has {item.length} characters; expected at most {MAX_CHARACTERS}")
    return items


def _count(inputs: Inputs) -> int:
    return len(next(iter(inputs.values()))) if isinstance(inputs, Mapping) else len(inputs)


def _length(value: Any) -> int:
    """Characters of a text, pair or list of words, at least 1 for each text; 1 for a file."""
    if isinstance(value, str):
        return max(1, len(value))
    return sum(map(_length, value)) if isinstance(value, list | tuple) else 1
