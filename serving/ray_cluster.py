"""A Ray cluster: the one that RAY_ADDRESS names, or one of this machine alone that ends with the work."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import BackendError, cut, require

log = logging.getLogger(__name__)

OBJECTS = 256 * 2**20
"""Bytes of shared memory of a cluster that is started here: only small messages go through it."""


@contextmanager
def cluster(purpose: str) -> Iterator[Any]:
    """The module ``ray``, connected to a cluster until the block ends.

    A process that is connected already stays so. Ray's report of its usage is switched off where the user has not
    decided on it.

    Args:
        purpose: what Ray is needed for, completing "… is needed to".

    Raises:
        MissingExtraError: Ray is not installed.
        BackendError: no cluster can be reached or started.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if not log.isEnabledFor(logging.INFO):
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # its C++ part warns of what it mends itself
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # actors without GPUs keep the variables they had
    ray = require("ray", "ray", purpose)
    if ray.is_initialized():
        yield ray
        return
    address = os.environ.get("RAY_ADDRESS")
    own = {"include_dashboard": False, "_node_ip_address": "127.0.0.1", "object_store_memory": OBJECTS}
    try:
        ray.init(
            address=address or "local",
            log_to_driver=False,
            logging_level=logging.ERROR,
            **({} if address else own),
        )
    except Exception as error:  # Ray raises many kinds: no such address, no memory, no sockets
        where = f"reach the Ray cluster {address} (RAY_ADDRESS)" if address else "start Ray on this machine"
        raise BackendError(f"cannot {where}: {cut(error, 200)}; `ray status` tells what runs") from error
    try:
        yield ray
    finally:
        ray.shutdown()
