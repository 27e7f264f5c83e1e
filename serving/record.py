"""Inputs that a service abstained from or flagged, as JSON lines, for people to look at: opt-in, and bounded in size.

A row is what ``predictor.rows`` says of the input, with ``time``, ``model``, ``version``, ``why`` (``"abstain"``,
``"out_of_distribution"``) and the ``input``: a text, a pair or words as a list, an image as ``{"base64": …}``, ready
tensors by name. A thread of its own writes; a request never waits for it, and never fails by it. What the thread does
not keep up with is dropped, and counted.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import importlib
import json
import logging
import os
import queue
import random
import stat
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..bundle.reference import RATES
from ..errors import InputError, cut, is_whole
from ..runtime.prediction import Prediction
from .observe import Silent, flagged

if TYPE_CHECKING:
    from .observe import Served

log = logging.getLogger(__name__)

Redact = Callable[[dict[str, Any]], Mapping[str, Any] | None]
"""Takes a row, and gives the one to write, or ``None`` for none."""

WAITING = 1000
"""Requests whose rows wait to be written, at most."""

MOST_WAITING = 256 * 2**20
"""Bytes of the inputs of these, above which further ones are dropped: images are large."""

LEAST_BYTES = 1 << 16


@dataclass(frozen=True)
class Recording:
    """What is recorded of inputs that were abstained from or flagged.

    Attributes:
        file: record inputs that are abstained from or flagged in this file, as JSON lines that only its owner may read.
        rate: share of them that is recorded, drawn at random.
        most_bytes: largest size of the recorded files together; the oldest rows make room (FILE.1 holds those before).
        redact: function that is given each row and gives the row to write, or None for none, as module:function. In
            Python also the function itself.

    Raises:
        InputError: one of them cannot be used.
    """

    file: str | Path
    rate: float = 1.0
    most_bytes: int = 100 * 2**20
    redact: str | Redact | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.file, str | Path) or not str(self.file):
            raise InputError(f"file is {cut(self.file)}; expected the path of a file to record in")
        if isinstance(self.rate, bool) or not isinstance(self.rate, int | float) or not 0 < self.rate <= 1:
            raise InputError(f"rate is {cut(self.rate)}; expected a share above 0, and at most 1")
        if not is_whole(self.most_bytes, LEAST_BYTES, 2**50):
            raise InputError(f"most_bytes is {cut(self.most_bytes)}; expected a whole number, {LEAST_BYTES} or more")
        if not (self.redact is None or isinstance(self.redact, str) or callable(self.redact)):
            raise InputError(f"redact is {cut(self.redact)}; expected module:function, or a function")


def redaction(named: str | Redact | None) -> Redact | None:
    """The function that a name as ``module:function`` stands for."""
    if not isinstance(named, str):
        return named
    module, colon, name = named.partition(":")
    if not (module and colon and name):
        raise InputError(f"redact is {cut(named)}; expected module:function")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except Exception as error:  # whatever importing a module raises
        raise InputError(
            f"redact is {cut(named)}, and {module} cannot be imported: {error}; install it, or name its folder in "
            "PYTHONPATH"
        ) from error
    if not callable(found):
        raise InputError(f"redact is {cut(named)}, and {module} has no function of that name")
    function: Redact = found
    return function


class Recorder(Silent):
    """Records inputs that were abstained from or flagged; an observer.

    Attributes:
        written, dropped, failed: rows that were written; that were not, since too many waited; that could not be made,
            redacted or written.
    """

    def __init__(self, recording: Recording, seed: int | None = None) -> None:
        self._redact = redaction(recording.redact)
        self._rate, self._draw = recording.rate, random.Random(seed)  # noqa: S311 (a sample, no secret)
        self._file = _Rotating(Path(recording.file), recording.most_bytes // 2)
        self.written = self.dropped = self.failed = 0
        self._waiting: queue.Queue[tuple[Any, ...] | None] = queue.Queue(WAITING)
        self._came = self._done = 0  # bytes of inputs; each is counted by one thread alone
        self._thread = threading.Thread(target=self._work, name="hydrant-record", daemon=True)
        self._thread.start()

    def predicted(self, served: Served, inputs: Sequence[Any], prediction: Prediction) -> None:
        """Hand the inputs that were abstained from or flagged to the thread that writes."""
        why = {name: found for name in RATES if (found := flagged(prediction, name)) is not None}
        if not why:
            return
        places = np.flatnonzero(np.logical_or.reduce(list(why.values())) & ~prediction.failed)
        if self._rate < 1:
            places = places[[self._draw.random() < self._rate for _ in places]]
        if not len(places):
            return
        reasons = [[name for name, found in why.items() if found[place]] for place in places]
        chosen = [inputs[int(place)] for place in places]
        size = sum(map(_size, chosen))
        waits = self._came - self._done
        if waits and waits + size > MOST_WAITING:
            self.dropped += len(places)
            return
        try:
            self._waiting.put_nowait((size, served, chosen, prediction.take(places), reasons, datetime.now(UTC)))
        except queue.Full:
            self.dropped += len(places)
        else:
            self._came += size

    def close(self, timeout: float = 10.0) -> None:
        """Write what waits, for some seconds at most, and close the file."""
        with contextlib.suppress(queue.Full):
            self._waiting.put(None, timeout=timeout)
        self._thread.join(timeout)
        if self.dropped or self.failed:
            log.warning("of recorded inputs %d were dropped and %d failed", self.dropped, self.failed)

    def _work(self) -> None:
        while (work := self._waiting.get()) is not None:
            size, *rest = work
            written = self.written
            try:
                self._write(*rest)
            except Exception:  # predictor.rows, of the whole request
                self._fail(len(rest[1]) - (self.written - written))
            self._done += size
        self._file.close()

    def _fail(self, rows: int) -> None:
        """Count rows that could not be recorded; the first failure is told, in one line where its cause is known."""
        error = sys.exception()
        if not self.failed and isinstance(error, InputError):
            log.error("inputs could not be recorded: %s; further failures are counted only", error)
        elif not self.failed:
            log.exception("inputs could not be recorded; further failures are counted only")
        self.failed += rows

    def _write(
        self, served: Served, inputs: Sequence[Any], prediction: Prediction, reasons: Sequence[Any], at: datetime
    ) -> None:
        rows = _rows(served, prediction)
        for given, row, why in zip(inputs, rows, reasons, strict=True):
            row.pop("index", None)
            about = {"time": at.isoformat(), "model": served.name, "version": served.version, "why": why}
            try:
                self._write_row({**about, "input": _plain(given), **row}, why)
            except Exception:  # a row, a hook or a disk may fail in any way; the other rows and the service go on
                self._fail(1)

    def _write_row(self, whole: dict[str, Any], why: Any) -> None:
        told = whole if self._redact is None else self._redact(whole)
        if told is not None:
            # a row that its redaction stripped of "why" must not pass for a log of all traffic
            line = json.dumps({**told, "why": why}, ensure_ascii=False) + "\n"
            self._file.write(line.encode(errors="backslashreplace"))  # as JSON has them: halves of surrogate pairs
            self.written += 1


def _rows(served: Served, prediction: Prediction) -> list[dict[str, Any]]:
    """What is said of each input; of tokens from ready tensors, whose words are not known, nothing."""
    if prediction.mask is not None and prediction.words is None:
        return [{} for _ in range(len(prediction))]
    return served.predictor.rows(prediction)


def _size(given: Any) -> int:
    """Bytes of an input, about."""
    if isinstance(given, Mapping):
        return sum(np.asarray(each).nbytes for each in given.values())
    return len(given) if isinstance(given, str | bytes) else sum(map(_size, given))


def _plain(given: Any) -> Any:
    """An input as JSON can hold it."""
    if isinstance(given, bytes):
        return {"base64": base64.b64encode(given).decode()}
    if isinstance(given, Mapping):
        return {name: np.asarray(value).tolist() for name, value in given.items()}
    return list(given) if isinstance(given, tuple | list) else str(given)


class _Rotating:
    """A file that lines are appended to; beyond a size it becomes FILE.1 and begins anew. Processes may share it."""

    def __init__(self, path: Path, most_bytes: int) -> None:
        self._path, self._most = path, most_bytes
        self._older = path.with_name(f"{path.name}.1")
        for each in (path, self._older):
            if each.is_symlink() or (each.exists() and not each.is_file()):
                raise InputError(f"{each} is no regular file; choose another file to record in")
        self._locks = _locks()
        self._number = self._opened()

    def write(self, line: bytes) -> None:
        """Append a line."""
        if len(line) > self._most:
            raise InputError(f"a row of {len(line)} bytes is larger than half of what may be recorded")
        try:
            if self._moved():  # another process has begun a new one
                self._begin_anew()
            if os.fstat(self._number).st_size + len(line) > self._most:
                self._rotate()
            written = os.write(self._number, line)
            if written < len(line):
                self._take_back(written)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise InputError(f"cannot record in {self._path}: {error.strerror or error}") from error

    def close(self) -> None:
        """Close the file."""
        os.close(self._number)

    def _take_back(self, written: int) -> None:
        """Remove the beginning of a line for which the disk had no room, unless another process wrote behind it."""
        end = os.lseek(self._number, 0, os.SEEK_CUR)
        if os.fstat(self._number).st_size == end:
            os.ftruncate(self._number, end - written)

    def _rotate(self) -> None:
        self._locks.flock(self._number, self._locks.LOCK_EX)
        try:
            if not self._moved():
                self._path.replace(self._older)
            self._begin_anew()  # which closes the former, and so unlocks it
        except BaseException:
            self._locks.flock(self._number, self._locks.LOCK_UN)
            raise

    def _begin_anew(self) -> None:
        """Write to what has the name now; where it cannot be had, the former stays open, so that its number is ours."""
        number, former = self._opened(), self._number
        self._number = number
        os.close(former)

    def _moved(self) -> bool:
        try:
            there = self._path.lstat()
        except FileNotFoundError:
            return True
        here = os.fstat(self._number)
        return (there.st_ino, there.st_dev) != (here.st_ino, here.st_dev)

    def _opened(self) -> int:
        try:
            number = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        except OSError as error:
            raise InputError(f"cannot record in {self._path}: {error.strerror or error}") from error
        if not stat.S_ISREG(os.fstat(number).st_mode):
            os.close(number)
            raise InputError(f"{self._path} is no regular file; choose another file to record in")
        return number


def _locks() -> Any:
    """The module of the locks by which processes share a file."""
    try:
        import fcntl
    except ImportError as error:
        raise InputError(
            "recording shares its file between processes by locks, and this system has none; leave --record out"
        ) from error
    return fcntl
