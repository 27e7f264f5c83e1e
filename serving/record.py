"""Record of abstained and flagged inputs, as JSON lines for review: opt-in, and bounded in size.

A row is that of ``predictor.rows``, with ``time``, ``model``, ``version``, ``why`` and the ``input``. A separate thread
writes. Requests never wait for it or fail because of it; rows that it cannot keep up with are dropped and counted.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import importlib.util
import json
import logging
import os
import queue
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from ..bundle.staging import telling
from ..errors import InputError, check_whole, cut
from ..runtime.prediction import Prediction
from .observers import Observer, Served, flagged

log = logging.getLogger(__name__)

Redact = Callable[[dict[str, Any]], Mapping[str, Any] | None]
"""Takes a row, and returns the row to write, or ``None`` to skip it."""

WAITING, MAX_WAITING_BYTES = 1000, 256 * 2**20
"""Requests whose rows may wait, and the bytes of their inputs."""

MIN_BYTES = 1 << 16


@dataclass(frozen=True)
class Recording:
    """The record of abstained and flagged inputs; raises ``InputError`` for an invalid value.

    Attributes:
        file: record abstained and flagged inputs in this file, as JSON lines. Only its owner may read it.
        rate: share of these inputs to record, drawn at random.
        most_bytes: size limit of the record; older rows move to FILE.1, then are deleted.
        redact: module:function that maps each row to the row to write, or None to skip it. In Python also the function
            itself.
    """

    file: str | Path
    rate: float = 1.0
    most_bytes: int = 100 * 2**20
    redact: str | Redact | None = None

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise InputError(f"rate is {cut(self.rate)}; expected a share above 0 and at most 1")
        check_whole("most_bytes", self.most_bytes, MIN_BYTES, 2**50)


def redaction(named: str | Redact | None) -> Redact | None:
    """Import the function that ``module:function`` names."""
    if not isinstance(named, str):
        return named
    module, _, name = named.partition(":")
    try:
        function: Redact = getattr(importlib.import_module(module), name)
    except Exception as error:  # whatever importing a module raises
        raise InputError(f"redact is {cut(named)}; expected an importable module:function ({error})") from error
    return function


class Recorder(Observer):
    """Records abstained and flagged inputs, and counts written, dropped and failed rows."""

    def __init__(self, recording: Recording, seed: int | None = None) -> None:
        self._redact = redaction(recording.redact)
        self._rate, self._draw = recording.rate, random.Random(seed)  # noqa: S311 (a sample, not a secret)
        self._file = _RotatingFile(Path(recording.file), recording.most_bytes // 2)
        self.written = self.dropped = self.failed = 0
        self._waiting: queue.Queue[tuple[Any, ...] | None] = queue.Queue(WAITING)
        self._came = self._done = 0  # bytes of inputs; each counter belongs to one thread
        self._thread = threading.Thread(target=self._work, name="hydrant-record", daemon=True)
        self._thread.start()

    def predicted(self, served: Served, inputs: Sequence[Any], prediction: Prediction) -> None:
        """Pass abstained and flagged inputs to the writing thread."""
        if not (why := flagged(prediction)):
            return
        places = np.flatnonzero(np.logical_or.reduce(list(why.values())) & ~prediction.failed)
        if self._rate < 1:
            places = places[[self._draw.random() < self._rate for _ in places]]
        if not len(places):
            return
        reasons = [[name for name, values in why.items() if values[place]] for place in places]
        chosen = [inputs[int(place)] for place in places]
        size, waits = sum(map(_size, chosen)), self._came - self._done
        try:
            if waits and waits + size > MAX_WAITING_BYTES:
                raise queue.Full
            self._waiting.put_nowait((size, served, chosen, prediction.take(places), reasons, datetime.now(UTC)))
        except queue.Full:
            self.dropped += len(places)
        else:
            self._came += size

    def close(self, timeout: float = 10.0) -> None:
        """Write the waiting rows, for ``timeout`` seconds at most."""
        with contextlib.suppress(queue.Full):
            self._waiting.put(None, timeout=timeout)
        self._thread.join(timeout)
        if self.dropped or self.failed:
            log.warning("%d inputs to record were dropped, and %d failed", self.dropped, self.failed)

    def _work(self) -> None:
        while (work := self._waiting.get()) is not None:
            size, served, inputs, prediction, reasons, time = work
            wordless = prediction.mask is not None and prediction.words is None  # tokens from ready tensors
            about = {"time": time.isoformat(), "model": served.name, "version": served.version}
            for place, (value, why) in enumerate(zip(inputs, reasons, strict=True)):
                try:
                    row = {} if wordless else served.predictor.rows(prediction[place : place + 1])[0]
                    self._write({**about, "why": why, "input": _plain(value), **row}, why)
                except Exception as error:  # a row, hook or disk may fail in any way; continue with the other rows
                    if not self.failed:
                        message = "inputs could not be recorded: %s; further failures are only counted"
                        log.error(message, error, exc_info=None if isinstance(error, InputError) else error)
                    self.failed += 1
            self._done += size

    def _write(self, row: dict[str, Any], why: Any) -> None:
        row.pop("index", None)
        redacted = row if self._redact is None else self._redact(row)
        if redacted is not None:
            # "why" marks the row: this is not a log of all traffic
            line = json.dumps({**redacted, "why": why}, ensure_ascii=False) + "\n"
            self._file.write(line.encode(errors="backslashreplace"))
            self.written += 1


def _size(value: Any) -> int:
    if isinstance(value, Mapping):
        return sum(np.asarray(each).nbytes for each in value.values())
    return len(value) if isinstance(value, str | bytes) else sum(map(_size, value))


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, Mapping):
        return {name: np.asarray(each).tolist() for name, each in value.items()}
    return value


class _RotatingFile:
    """A file to append lines to, moved to FILE.1 at its size limit; processes may share it."""

    def __init__(self, path: Path, most_bytes: int) -> None:
        self._path, self._most, self._older = path, most_bytes, path.with_name(f"{path.name}.1")
        for each in (path, self._older):
            if each.is_symlink() or (each.exists() and not each.is_file()):
                raise InputError(f"{each} is not a regular file; choose another file to record in")
        if importlib.util.find_spec("fcntl") is None:
            raise InputError("recording needs file locks, which this system lacks; omit --record")
        self.write(b"")

    def write(self, line: bytes) -> None:
        if len(line) > self._most:
            raise InputError(f"a row of {len(line)} bytes is larger than half of the recording limit")
        with telling(f"cannot record in {self._path}"):
            while not self._appended(line):
                pass

    def _appended(self, line: bytes) -> bool:
        """Append a line; return False if the file was rotated and must be opened again."""
        import fcntl

        with open(self._path, "ab", 0, opener=_private) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            stat, current = os.fstat(file.fileno()), False
            with contextlib.suppress(FileNotFoundError):
                current = os.path.samestat(self._path.lstat(), stat)
            if not current:
                return False
            if stat.st_size + len(line) > self._most:
                self._path.replace(self._older)
                return False
            if os.write(file.fileno(), line) < len(line):
                os.ftruncate(file.fileno(), stat.st_size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return True


def _private(path: str, flags: int) -> int:
    """Open a file readable by its owner only; refuse links and do not block on pipes."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
