"""A Ray cluster: the one at RAY_ADDRESS, or a temporary one on this machine."""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ...errors import LARGEST, BackendError, InputError, cut, require

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Pool:
    """An autoscaled pool of Ray processes, and the resources of each."""

    least: int
    most: int
    cpus: float | None  # None: see share
    gpus: float
    called: str  # singular name in the options

    @classmethod
    def parse(cls, words: str, cpus: float | None, gpus: float, called: str) -> Pool:
        """Parse an option: ``4``, or a range ``1:8``."""
        numbers = re.fullmatch(r"([0-9]{1,6})(?::([0-9]{1,6}))?", str(words))
        least, most = (int(numbers[1]), int(numbers[2] or numbers[1])) if numbers else (0, 0)
        if not 1 <= least <= most:
            raise InputError(f"{called}s is {cut(words)}; expected a number of 1 or more, or a range such as 1:8")
        for name, value, smallest in (("cpus", cpus, 0.01), ("gpus", gpus, 0.0)):
            if value is not None and not (isinstance(value, int | float) and smallest <= value <= LARGEST):
                raise InputError(f"{called}_{name} is {cut(value)}; expected a number of {smallest:g} or more")
        return cls(least, most, cpus, gpus, called)

    def share(self, cpus: float) -> float:
        """CPUs of each process in a cluster with ``cpus``: one, or less to leave half a CPU free.

        >>> [Pool.parse("2", None, 0.0, "actor").share(cpus) for cpus in (2, 3, 64)]
        [0.75, 1.0, 1.0]
        """
        if self.cpus is not None:
            return self.cpus
        return 1.0 if self.least < cpus else max(0.01, math.floor(100 * (cpus - 0.5) / self.least) / 100)


def check_room(resources: Mapping[str, float], pool: Pool) -> None:
    """Reject a pool too large for this machine, for which Ray would wait forever."""
    if "RAY_ADDRESS" in os.environ:
        return  # a cluster may grow
    for name, each in (("CPU", pool.share(resources.get("CPU", 1.0))), ("GPU", pool.gpus)):
        available, wanted = resources.get(name, 0.0), each * pool.least
        if wanted > available:
            wrong = f"{pool.least} {pool.called}(s) need {wanted:g} {name}s, but this machine has {available:g}"
            fix = f"use fewer, or a smaller --{pool.called}-{name.lower()}s, or set RAY_ADDRESS to a cluster"
            raise InputError(f"{wrong}; {fix}")


@contextmanager
def cluster(purpose: str) -> Iterator[Any]:
    """The module ``ray``, connected to a cluster during the block; an existing connection is reused."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # unless the user has set it
    if not log.isEnabledFor(logging.INFO):
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # its C++ part warns of problems that it fixes itself
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # actors without GPUs keep their variables
    ray = require("ray", "ray", purpose)
    if ray.is_initialized():
        yield ray
        return
    address = os.environ.get("RAY_ADDRESS") or "local"
    own = {"include_dashboard": False, "_node_ip_address": "127.0.0.1", "object_store_memory": 2**28}
    try:
        ray.init(address, **own if address == "local" else {}, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # Ray raises many kinds: no such address, no memory, no sockets
        where = "start Ray on this machine" if address == "local" else f"reach Ray at {address} (RAY_ADDRESS)"
        raise BackendError(f"cannot {where}: {cut(error, 200)}; see `ray status`") from error
    try:
        yield ray
    finally:
        ray.shutdown()
