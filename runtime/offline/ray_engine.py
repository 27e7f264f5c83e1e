"""Chunks by Ray Data actors, each with its own predictor. All machines need bundle and data at the same paths."""

from __future__ import annotations

import contextlib
import logging
import platform
import sys
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...bundle.staging import write_atomically
from ...bundle.store import Bundle
from ...errors import BackendError, HydrantError, InputError, cut, require
from ..loading import load
from ..predictor import Predictor
from .chunks import Chunks, lines_of
from .input_stream import Cursor, Sources, Survey
from .offline_run import Engine
from .ray_cluster import Pool, check_room, cluster
from .scoring import Scoring, answers

log = logging.getLogger(__name__)
PURPOSE = "predict on many machines"


@dataclass(frozen=True)
class Actors:
    """The pool of Ray actors.

    Attributes:
        actors: number of Ray actors, or MIN:MAX to autoscale.
        actor_cpus: CPUs and threads of each actor (default: one, or less in a cluster with too few CPUs).
        actor_gpus: GPUs for each actor; may be a fraction.
    """

    actors: str = "1"
    actor_cpus: float | None = None
    actor_gpus: float = 0.0

    def __post_init__(self) -> None:
        self.pool  # noqa: B018 - validates

    @property
    def pool(self) -> Pool:
        """The size of the pool and the resources of each actor."""
        return Pool.parse(self.actors, self.actor_cpus, self.actor_gpus, "actor")


@dataclass(frozen=True)
class Work:
    """The work of every actor, sent to other machines; ``manifest`` comes from ``Bundle.stated``."""

    bundle: str
    manifest: dict[str, Any]
    loading: dict[str, Any]
    sources: Sources
    survey: Survey
    scoring: Scoring


class Scorer:
    """An actor: loads the bundle once, then predicts chunks."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._cursor = Cursor(work.sources, work.survey)
        self._predictor: Predictor | None = None

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, Any]:
        """Rows of one chunk as JSON lines, or the error."""
        (start,), (stop,) = batch["start"].tolist(), batch["stop"].tolist()
        rows, problem = b"", ""
        try:
            rows = lines_of(answers(self._loaded(), self._cursor.rows(range(start, stop)), self._work.scoring, start))
        except HydrantError as error:  # Ray's exceptions are tracebacks of many lines
            problem = str(error)
        return {"chunk": batch["chunk"], "rows": np.array([rows], object), "problem": np.array([problem], object)}

    def _loaded(self) -> Predictor:
        if self._predictor is None:
            bundle = Bundle.open(self._work.bundle)
            if bundle.stated() != self._work.manifest:
                raise InputError(f"bundle {self._work.bundle} differs on {platform.node()}; copy it there")
            self._predictor = load(bundle, **self._work.loading)
        return self._predictor


def ray_engine(
    bundle: str | Path, loading: dict[str, Any], sources: Sources, scoring: Scoring, actors: Actors
) -> Engine:
    """Run chunks with parallel actors, on the cluster at ``RAY_ADDRESS`` or on this machine."""
    require("ray", "ray", PURPOSE)

    def run(chunks: Chunks, missing: list[int], survey: Survey) -> Iterator[int]:
        if not missing:
            return
        manifest = Bundle.open(bundle).stated()
        with contextlib.redirect_stdout(sys.stderr), cluster(PURPOSE) as ray:  # Ray prints the fate of its workers
            share = actors.pool.share(ray.cluster_resources().get("CPU", 1.0))
            check_room(ray.cluster_resources(), actors.pool)
            options = {"threads": max(1, int(share)), **{k: v for k, v in loading.items() if v is not None}}
            work = Work(str(Path(bundle).resolve()), manifest, options, sources, survey, scoring)
            for result in _streamed(ray, chunks, missing, work, actors.pool, share):
                if result["problem"]:
                    raise InputError(str(result["problem"]))
                write_atomically(chunks.file(int(result["chunk"])), bytes(result["rows"]))
                yield int(result["chunk"])

    return run


def _streamed(
    ray: Any, chunks: Chunks, missing: list[int], work: Work, pool: Pool, share: float
) -> Iterable[dict[str, Any]]:
    """The actors' results for chunks, as they arrive."""
    data = require("ray.data", "ray", PURPOSE)
    for handler in logging.getLogger("ray.data").handlers:
        if not isinstance(handler, logging.FileHandler):
            handler.setLevel(logging.INFO if log.isEnabledFor(logging.INFO) else logging.ERROR)
    context = data.DataContext.get_current()
    context.enable_progress_bars = False
    context.wait_for_min_actors_s = 900  # a cluster may have to start machines first
    rows = {number: chunks.rows_of(number) for number in missing}
    items = [{"chunk": number, "start": each.start, "stop": each.stop} for number, each in rows.items()]
    least, most = (min(size, len(missing)) for size in (pool.least, pool.most))
    flight = 2  # per actor, so that none waits for its next chunk
    strategy = data.ActorPoolStrategy(min_size=least, max_size=most, max_tasks_in_flight_per_actor=flight)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray 2.64 renames the options for restarts
        stream = data.from_items(items, override_num_blocks=len(items)).map_batches(
            Scorer, fn_constructor_args=(work,), compute=strategy, batch_size=1, num_cpus=share, num_gpus=pool.gpus,
            max_restarts=-1, max_task_retries=10,  # after that, the chunk itself must be the cause
        )  # fmt: skip
    try:
        yield from stream.iter_rows()
    except ray.exceptions.RayError as error:
        raise BackendError(f"Ray failed: {cut(error, 300)}; run the command again to resume it") from error
