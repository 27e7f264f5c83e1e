"""The batcher alone, with a fake predictor that can be held back and records its batches."""

import asyncio
import gc
import itertools
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from hydrant import Prediction
from hydrant.errors import BackendError, InputError
from hydrant.serving.batcher import TOGETHER, Batcher, batches
from hydrant.serving.http_refusals import ServeError
from hypothesis import given, settings
from hypothesis import strategies as st


class Echo:
    """Returns the length of each text as its energy; waits for ``gate``, and records its ``batches``."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.batches: list[list[Any]] = []

    def predict(self, inputs: Any, *, batch_size: int = 1, first: int = 0, on_error: str = "raise") -> Prediction:
        rows = list(inputs["x"]) if isinstance(inputs, Mapping) else list(inputs)
        assert len(rows) <= batch_size, "the predictor would run it in parts"
        self.batches.append(rows)
        assert self.gate.wait(20)
        if "explode" in rows:
            raise BackendError("it exploded")
        errors = [f"input {first + place} is empty" if each == "" else None for place, each in enumerate(rows)]
        if on_error == "raise" and any(errors):
            raise InputError(next(error for error in errors if error))
        values = np.array([len(each) if isinstance(each, str) else float(each) for each in rows], np.float32)
        one = np.ones((len(rows), 1), np.float32)
        prediction = Prediction(one, np.zeros(len(rows), np.int64), *[values] * 5, energy=values)
        if on_error == "raise":
            return prediction
        return Prediction(**{**prediction.arrays, "error": np.array(errors, object)})


@pytest.fixture
def echo() -> Iterator[Echo]:
    predictor = Echo()
    yield predictor
    predictor.gate.set()


def run(echo: Echo, test: Callable[[Batcher], Coroutine[Any, Any, Any]], **limits: Any) -> Any:
    async def main() -> Any:
        batcher = Batcher(echo, **{"batch_size": 4, "queue": 100, **limits})
        try:
            return await asyncio.wait_for(test(batcher), 30)
        finally:
            echo.gate.set()
            await batcher.close()

    return asyncio.run(main())


async def held(echo: Echo, batcher: Batcher) -> asyncio.Task[Prediction]:
    """A request that runs until the gate opens, so that later ones wait."""
    echo.gate.clear()
    task = asyncio.create_task(batcher.submit(["held"], 20))
    while not echo.batches:
        await asyncio.sleep(0.001)
    return task


def energies(prediction: Prediction) -> list[float]:
    return prediction.energy.tolist()


def behind(echo: Echo, *requests: Any, on_error: Iterable[str] = itertools.repeat("raise"), **limits: Any) -> list[Any]:
    """Outcomes of requests that waited together while another one ran."""

    async def test(batcher: Batcher) -> list[Any]:
        first = await held(echo, batcher)
        asked = [batcher.submit(request, 20, how) for request, how in zip(requests, on_error, strict=False)]
        tasks = list(map(asyncio.create_task, asked))
        await asyncio.sleep(0.01)
        echo.gate.set()
        assert energies(await first) == [4]
        return await asyncio.gather(*tasks, return_exceptions=True)

    return run(echo, test, **limits)


def test_waiting_inputs_run_together_and_a_lone_request_runs_at_once(echo: Echo) -> None:
    sizes: list[int] = []
    depths: list[int] = []
    requests = [["a" * length] for length in range(1, 7)]
    answers = behind(echo, *requests, ran=lambda size, seconds: sizes.append(size), waits=depths.append)
    assert list(map(energies, answers)) == [[1], [2], [3], [4], [5], [6]]
    assert sizes == [1, 4, 2]
    assert (depths[-1], max(depths)) == (0, 6)


def ways_to_cut(lengths: list[int]) -> Iterator[list[list[int]]]:
    """Every way to cut a list into consecutive parts."""
    for cuts in itertools.product([False, True], repeat=len(lengths) - 1):
        parts = [[lengths[0]]]
        for cut, length in zip(cuts, lengths[1:], strict=True):
            if cut:
                parts.append([])
            parts[-1].append(length)
        yield parts


@given(st.lists(st.integers(1, 400), min_size=1, max_size=8).map(sorted), st.integers(1, 500))
def test_batches_are_the_cheapest_partition(lengths: list[int], run: int) -> None:
    def cost(parts: list[list[int]]) -> int:
        return sum(run + len(part) * part[-1] for part in parts)

    ranges = batches(lengths, run)
    parts = [[length for length in lengths if low <= length <= high] for low, high in ranges]
    assert sorted(itertools.chain(*parts)) == lengths
    assert cost(parts) == min(map(cost, ways_to_cut(lengths)))


def test_long_texts_run_together_as_far_as_their_characters_are_few(echo: Echo) -> None:
    lengths = [TOGETHER // 2, TOGETHER // 2, TOGETHER // 2, TOGETHER + 1, 10]
    answers = behind(echo, *(["a" * length] for length in lengths))
    assert list(map(energies, answers)) == [[length] for length in lengths]
    assert [list(map(len, batch)) for batch in echo.batches[1:]] == [lengths[:2], [lengths[2]], [lengths[3]], [10]]


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.lists(st.text("ab", min_size=1, max_size=200), max_size=9), min_size=1, max_size=12), st.integers(1, 7)
)
def test_every_answer_belongs_to_its_request_in_its_order(requests: list[list[str]], batch_size: int) -> None:
    async def test(batcher: Batcher) -> list[Prediction]:
        return await asyncio.gather(*(batcher.submit(texts, 20) for texts in requests))

    echo = Echo()
    predictions = run(echo, test, batch_size=batch_size)
    assert [energies(each) for each in predictions] == [[len(text) for text in texts] for texts in requests]
    assert max(map(len, echo.batches)) <= batch_size


def test_an_invalid_input_fails_its_own_request_with_its_place(echo: Echo) -> None:
    requests = [["a"], ["b", ""], ["", "cc"]]
    good, bad, rows = behind(echo, *requests, on_error=("raise", "raise", "row"), batch_size=8)
    assert (energies(good), good.error) == ([1], None)
    assert (type(bad), str(bad)) == (InputError, "input 1 is empty")
    assert rows.error.tolist() == ["input 0 is empty", None]


def test_a_batch_that_fails_runs_again_request_by_request(echo: Echo) -> None:
    first, failed, last = behind(echo, ["a"], ["explode"], ["ccc"])
    assert isinstance(failed, BackendError)
    assert (energies(first), energies(last)) == ([1], [3])
    assert echo.batches[1:] == [["a", "explode", "ccc"], ["a"], ["explode"], ["ccc"]]


class Text(str):
    """A text that supports weak references."""


@pytest.mark.parametrize(("further", "timeout"), [("", 20), ("explode", 20), ("slow", 0.05)])
def test_a_request_that_fails_is_freed_without_the_collector(echo: Echo, further: str, timeout: float) -> None:
    async def test(batcher: Batcher) -> None:
        text = Text("large")
        left = weakref.ref(text)
        if further == "slow":
            echo.gate.clear()
        try:
            await batcher.submit([text, further], timeout)
        except (InputError, BackendError, ServeError):
            del text
        echo.gate.set()
        await batcher.submit(["another"], 20)  # the batcher keeps the last batch
        echo.batches.clear()
        assert left() is None

    gc.collect()
    gc.disable()
    try:
        run(echo, test)
    finally:
        gc.enable()


def test_only_tensors_of_one_shape_run_together(echo: Echo) -> None:
    inputs = [{"x": np.arange(3)}, {"x": np.array([7])}, {"x": np.array([1.5, 2.5])}]
    assert list(map(energies, behind(echo, *inputs, batch_size=8))) == [[0, 1, 2], [7], [1.5, 2.5]]
    assert [len(batch) for batch in echo.batches] == [1, 4, 2]


def test_a_full_queue_refuses_with_retry_after(echo: Echo) -> None:
    async def test(batcher: Batcher) -> None:
        first = await held(echo, batcher)
        waits = asyncio.create_task(batcher.submit(["a"] * 3, 20))
        await asyncio.sleep(0.01)
        with pytest.raises(ServeError, match="has 3 of") as full:
            await batcher.submit(["b"] * 2, 20)
        assert full.value.status == 503
        assert full.value.retry_after is not None
        with pytest.raises(ServeError, match="5 inputs") as never:
            await batcher.submit(["b"] * 5, 20)
        assert (never.value.status, never.value.retry_after) == (413, None)
        echo.gate.set()
        assert len(await waits) == 3
        await first

    run(echo, test, queue=4)


def test_a_cancelled_request_leaves_the_queue_and_a_late_one_times_out(echo: Echo) -> None:
    async def test(batcher: Batcher) -> None:
        first = await held(echo, batcher)
        left = asyncio.create_task(batcher.submit(["left"] * 5, 20))
        stays = asyncio.create_task(batcher.submit(["stays"], 20))
        await asyncio.sleep(0.01)
        left.cancel()
        with pytest.raises(ServeError, match=r"0\.05 s") as late:
            await batcher.submit(["late"], 0.05)
        assert late.value.status == 504
        assert batcher.depth == 1
        echo.gate.set()
        assert energies(await stays) == [5]
        await first

    run(echo, test)
    assert echo.batches == [["held"], ["stays"]]


def test_closing_answers_waiting_inputs_and_refuses_new_ones(echo: Echo) -> None:
    async def test(batcher: Batcher) -> None:
        first = await held(echo, batcher)
        waits = asyncio.create_task(batcher.submit(["aa"], 20))
        await asyncio.sleep(0.01)
        closing = asyncio.create_task(batcher.close())
        await asyncio.sleep(0.01)
        for nothing in (["b"], []):
            with pytest.raises(ServeError, match="unloaded") as refused:
                await batcher.submit(nothing, 20)
            assert refused.value.status == 503
        assert not closing.done()
        echo.gate.set()
        await closing
        assert energies(waits.result()) == [2]
        assert first.done()

    run(echo, test)
