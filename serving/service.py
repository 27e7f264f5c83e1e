"""Bundles as a service, for every front (REST, gRPC, Ray).

Each model has one current version, unless others are kept loaded. A new version is opened and warmed up first; then it
gets the new requests. The old version finishes its own requests and is closed, so no request is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ..bundle.hub_download import bundle_name
from ..bundle.manifest import MANIFEST
from ..bundle.staging import telling
from ..data.tensors import checked_tensors
from ..errors import HydrantError, InputError, cut, listing
from ..runtime.backends.backend_registry import ON_GPU
from ..runtime.loading import load
from ..runtime.prediction import Prediction
from ..runtime.predictor import Predictor
from .batcher import RUN, RUN_ON_GPU, Batcher, Inputs
from .http_refusals import ServeError
from .middleware import MAX_BODIES, Admission
from .observers import ALWAYS, Observer, Observers, Served, changes
from .serve_settings import ServeSettings

log = logging.getLogger(__name__)

Versions = Mapping[str, Path]
"""Version → folder of its bundle, the oldest first."""

ONLY = "1"  # the version of a bundle without versions
STOPPING = "the service is stopping; retry later, or use another instance"


@dataclass
class _Model:
    """The loaded versions of a name, and the current one, which answers requests without a version."""

    loaded: dict[str, Served] = field(default_factory=dict)
    current: str | None = None
    states: dict[str, tuple[str, str]] = field(default_factory=dict)  # version → state, reason
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)


class Service:
    """Every model of a folder, in one event loop; while ``leaving``, it answers requests in progress."""

    def __init__(self, folder: str | Path, settings: ServeSettings = ServeSettings(),
                 observers: Sequence[Observer] = (),
                 opens: Callable[[Path], Predictor] | None = None) -> None:  # fmt: skip
        self.settings, self.observer = settings, Observers(*observers)
        self.admission = Admission(settings.requests, MAX_BODIES * settings.max_bytes)
        self._folder = Path(folder)
        self._models = {name: _Model() for name in list_bundles(folder)}
        run = {"threads": settings.threads, "precision": settings.precision, "trust": settings.trust}
        self._opens = opens or (lambda path: load(path, settings.backend, **run))  # type: ignore[arg-type]
        self.leaving = self._started = self._draining = False

    @property
    def ready(self) -> bool:
        """True once every model is warm, until the service stops."""
        return self._started and not self.leaving and not self._draining

    @property
    def answering(self) -> dict[str, str]:
        """Loaded models, with their current versions."""
        models = sorted(self._models.items())
        return {name: model.current for name, model in models if model.current is not None}

    def versions(self, name: str) -> list[str]:
        """Loaded versions of a model, the oldest first."""
        return sorted(self._models[name].loaded, key=version_order) if name in self._models else []

    async def start(self) -> None:
        """Load the newest version of every model; the service is then ready."""
        for name in sorted(self._models):
            _log_current(log, await self._load(name))
        self._started = True

    def served(self, name: str | None = None, version: str | None = None) -> Served:
        """The version that answers a request; without a name, the only model."""
        if self._draining:
            raise ServeError(503, STOPPING, retry_after=1)
        if name is None:
            names = (list(self.answering) if self._started else []) or sorted(self._models)
            if len(names) > 1:
                raise ServeError(400, f"the request names no model; expected one of {listing(names)}")
            name = names[0]
        model = self._model(name)
        wanted = model.current if version is None else version
        served = None if wanted is None else model.loaded.get(wanted)
        if served is not None:
            return served
        if not self._started or "LOADING" in {state for state, _ in model.states.values()}:
            raise ServeError(503, f"model {cut(name)} is being loaded; retry", retry_after=1)
        if version is None:
            raise ServeError(404, f"model {cut(name)} is not loaded; POST /v2/repository/models/{name}/load loads it")
        loaded = listing(model.loaded)
        raise ServeError(404, f"model {cut(name)} has no loaded version {cut(version)}; expected one of: {loaded}")

    async def predict(
        self, served: Served, inputs: Inputs, timeout: float | None = None, on_error: str = "raise"
    ) -> Prediction:
        """Predict the inputs of one request, in order; paths are never read; if cancelled, inputs leave the queue."""
        if isinstance(inputs, Mapping):  # before batching, so that errors name rows of this request
            inputs = checked_tensors(inputs, served.predictor.spec)
        limit = self.settings.timeout
        prediction = await served.batcher.submit(inputs, limit if timeout is None else min(timeout, limit), on_error)
        each: Sequence[Any] = inputs  # type: ignore[assignment]
        if isinstance(inputs, Mapping):
            each = [{name: array[row] for name, array in inputs.items()} for row in range(len(prediction))]
        self.observer.predicted(served, each, prediction)
        return prediction

    def index(self) -> list[dict[str, Any]]:
        """Every version of every model, as in the repository extension: name, version, state and reason."""
        bundles = self._folder_models()
        rows = []
        for name, model in sorted(self._models.items()):
            for version in sorted({*bundles.get(name, {}), *model.states}, key=version_order):
                state, reason = model.states.get(version, ("UNAVAILABLE", "not loaded"))
                rows.append({"name": name, "version": version, "state": state, "reason": reason})
        return rows

    async def load(self, name: str, version: str | None = None, *, keep: bool = False) -> Served:
        """Load a version of a model, by default the newest, and make it current; ``keep`` keeps the others loaded."""
        with self._changing("a load"):
            served = await self._load(name, version, keep=keep)
        _log_current(changes, served)
        return served

    async def unload(self, name: str, version: str | None = None) -> None:
        """Close a model after its requests in progress; successes and refusals are logged."""
        with self._changing("an unload"):
            model = self._model(name)
            async with model.changing:
                if version is not None and version not in model.loaded:
                    raise ServeError(404, f"model {cut(name)} has no loaded version {cut(version)}")
                old = [each for each in model.loaded.values() if version in (None, each.version)]
                model.loaded = {each.version: each for each in model.loaded.values() if each not in old}
                if model.current not in model.loaded:
                    model.current = max(model.loaded, key=version_order, default=None)
                for each in old:
                    await self._close(model, each)
        if old:
            gone = listing(each.version for each in old)
            changes.info("model %s: unloaded %s; still loaded: %s", name, gone, listing(self.versions(name)))

    @contextlib.contextmanager
    def _changing(self, what: str) -> Iterator[None]:
        """Refuse changes with several workers, where only one would change, and log refusals."""
        try:
            if self.settings.workers > 1:
                shared = f"{self.settings.workers} workers share this port"
                raise ServeError(409, f"{shared}, and only one would change; restart the service, or run one worker")
            yield
        except ServeError as error:
            extra = ALWAYS if error.status == 409 else None  # clients can cause any number of the others
            log.warning("%s was refused (%d): %s", what, error.status, error.message, extra=extra)
            raise

    async def _load(self, name: str, version: str | None = None, *, keep: bool = False) -> Served:
        versions = self._folder_models().get(name)
        if versions is None:
            raise self._unknown(name)
        wanted = list(versions)[-1] if version is None else version
        if wanted not in versions:
            raise ServeError(404, f"model {cut(name)} has no version {cut(wanted)}; expected: {listing(versions)}")
        model = self._models.setdefault(name, _Model())
        async with model.changing:
            if self._draining:
                raise ServeError(503, STOPPING, retry_after=1)
            if wanted not in model.loaded:
                model.states[wanted] = ("LOADING", "")
            try:
                served = await self._warmed(name, wanted, versions[wanted])
            except BaseException as error:
                if wanted not in model.loaded:
                    model.states[wanted] = ("UNAVAILABLE", str(error) or repr(error))
                raise
            old = [each for each in model.loaded.values() if each.version == wanted or not keep]
            model.loaded = {**({} if not keep else model.loaded), wanted: served}
            model.current = wanted
            model.states[wanted] = ("READY", "")
            for each in old:
                each.ready = False
            self.observer.queue(served, 0)  # starts its counts and drift watch
            for each in old:
                await self._close(model, each)
        return served

    async def drain(self) -> None:
        """Refuse new requests, answer those in progress, and close every model."""
        self._draining = True
        for model in list(self._models.values()):  # a load in progress may add a name
            async with model.changing:
                old, model.loaded, model.current = list(model.loaded.values()), {}, None
                for each in old:
                    await self._close(model, each)

    async def _warmed(self, name: str, version: str, path: Path) -> Served:
        """An open and warmed-up version; raises ``ServeError`` 409 if it cannot be opened."""
        try:
            predictor = await asyncio.to_thread(self._opened, path)
        except HydrantError as error:
            raise ServeError(409, f"model {cut(name)}, version {cut(version)}: {error}") from error
        served = Served(name, version, predictor, True, None)  # type: ignore[arg-type]
        served.batcher = Batcher(
            predictor,
            batch_size=self.settings.batch_size,
            queue=self.settings.queue,
            run=RUN_ON_GPU if predictor.backend in ON_GPU else RUN,
            ran=partial(self.observer.batch, served),
            waits=partial(self.observer.queue, served),
        )
        return served

    def _opened(self, path: Path) -> Predictor:
        predictor = self._opens(path)
        try:
            for size in {1, self.settings.batch_size}:
                predictor.warm_up(size)
        except BaseException:
            predictor.close()
            raise
        return predictor

    async def _close(self, model: _Model, served: Served) -> None:
        served.ready = False
        replaced = served.version in model.loaded
        if not replaced:
            model.states[served.version] = ("UNLOADING", "")
        await served.batcher.close()
        del served.batcher  # breaks a cycle, which the frozen collector would never free
        await asyncio.to_thread(served.predictor.close)
        if not replaced:
            model.states[served.version] = ("UNAVAILABLE", "unloaded")
            if not self._draining:  # counts are reported until the service ends
                self.observer.gone(served)

    def _model(self, name: str) -> _Model:
        if name not in self._models:
            raise self._unknown(name)
        return self._models[name]

    def _folder_models(self) -> Mapping[str, Versions]:
        with contextlib.suppress(InputError):  # the folder was moved; loaded models stay
            return list_bundles(self._folder)
        return {}

    def _unknown(self, name: str) -> ServeError:
        return ServeError(404, f"no model is called {cut(name)}; expected one of: {listing(sorted(self._models))}")


def _log_current(to: logging.Logger, served: Served) -> None:
    to.info("model %s answers with version %s (%s)", served.name, served.version, served.predictor.backend)


def list_bundles(folder: str | Path) -> dict[str, Versions]:
    """Models of a folder by name, with versions; names in requests are looked up here, and never become paths."""
    root = Path(folder)
    if not root.is_dir():
        problem = "is not a folder" if root.exists() else "does not exist"
        raise InputError(f"{root} {problem}; expected a bundle, or a folder of bundles as NAME/VERSION/")
    if (root / MANIFEST).is_file():
        return {bundle_name(root) or "model": {ONLY: root}}
    models: dict[str, Versions] = {}
    for each in _folders(root):
        if (each / MANIFEST).is_file():
            models[each.name] = {ONLY: each}
        elif versions := {inner.name: inner for inner in _folders(each) if (inner / MANIFEST).is_file()}:
            models[each.name] = {name: versions[name] for name in sorted(versions, key=version_order)}
    if not models:
        names = listing([each.name for each in _folders(root)])
        raise InputError(f"{root} holds no bundle; expected one, or bundles in NAME/ or NAME/VERSION/; found {names}")
    return models


def version_order(version: str) -> tuple[int, int, str]:
    """Sort key of versions, the oldest first: numbers by value, after all other names."""
    number = version.isascii() and version.isdigit()
    return (int(number), int(version) if number else 0, version)


def _folders(root: Path) -> list[Path]:
    with telling(f"cannot read folder {cut(root)}"):
        return sorted(each for each in root.iterdir() if each.is_dir() and not each.name.startswith("."))
