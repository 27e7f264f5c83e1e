"""What an engine needs of a GPU: memory, copies, a stream, events and graphs; and a list of what was taken from it.

Addresses and handles are plain integers, so that a stand-in needs no library.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Protocol

import numpy as np

from ....errors import BackendError


class Device(Protocol):
    """The first GPU. Every method raises ``BackendError`` when the driver reports a failure."""

    def compute_capability(self) -> str:
        """Such as ``"8.9"``."""

    def new_stream(self) -> int:
        """A stream that does not wait for the default one."""

    def free_stream(self, stream: int) -> None:
        """Give a stream back."""

    def allocate_host(self, size: int) -> int:
        """Address of ``size`` bytes of page-locked host memory."""

    def free_host(self, address: int) -> None:
        """Give page-locked memory back."""

    def allocate(self, size: int) -> int:
        """Address of ``size`` bytes of the GPU's memory."""

    def free(self, address: int) -> None:
        """Give the GPU's memory back."""

    def upload(self, target: int, source: int, size: int, stream: int) -> None:
        """Start copying bytes from host memory to the GPU."""

    def download(self, target: int, source: int, size: int, stream: int) -> None:
        """Start copying bytes from the GPU to host memory."""

    def synchronize(self, stream: int) -> None:
        """Wait until everything on the stream is done."""

    def new_event(self) -> int:
        """An event that notes its time."""

    def free_event(self, event: int) -> None:
        """Give an event back."""

    def record(self, event: int, stream: int) -> None:
        """Put an event on a stream."""

    def elapsed_ms(self, start: int, end: int) -> float:
        """Milliseconds between two events that have passed."""

    def capture(self, work: Callable[[], None], stream: int) -> int:
        """What ``work`` puts on the stream, as a CUDA graph; nothing is executed.

        The stream is left usable when ``work`` raises.
        """

    def launch(self, graph: int, stream: int) -> None:
        """Start a CUDA graph."""

    def free_graph(self, graph: int) -> None:
        """Give a CUDA graph back."""


class Holdings:
    """What was taken from a device: all of it is given back by ``close`` or when forgotten, the last taken first."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._returns: list[tuple[Callable[[int], None], int]] = []
        weakref.finalize(self, _give_back, self._returns).atexit = False

    def stream(self) -> int:
        """A stream."""
        return self._taken(self._device.new_stream(), self._device.free_stream)

    def event(self) -> int:
        """An event."""
        return self._taken(self._device.new_event(), self._device.free_event)

    def memory(self, size: int) -> int:
        """Address of ``size`` bytes of the GPU's memory."""
        return self._taken(self._device.allocate(size), self._device.free)

    def host(self, size: int) -> np.ndarray:
        """``size`` bytes of page-locked host memory, as an array of uint8 that must not outlive them."""
        address = self._taken(self._device.allocate_host(size), self._device.free_host)
        return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))

    def close(self) -> None:
        """Give everything back; a device that reports an earlier failure again does not keep the rest."""
        _give_back(self._returns)

    def __enter__(self) -> Holdings:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _taken(self, handle: int, give_back: Callable[[int], None]) -> int:
        self._returns.append((give_back, handle))
        return handle


def _give_back(returns: list[tuple[Callable[[int], None], int]]) -> None:
    while returns:
        give_back, handle = returns.pop()
        with suppress(BackendError):
            give_back(handle)
