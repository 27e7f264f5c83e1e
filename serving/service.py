"""Bundles as a service: what every front (REST, gRPC, Ray) calls.

A name answers with one version at a time, unless more are asked to stay. Loading another one opens and warms it beside
the one that answers; then requests go to the new one, and the old one ends what it has begun and is closed. Nothing is
dropped, and rolling back is loading the older version.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import HydrantError, InputError, cut, listing
from ..runtime.backends.registry import ON_GPU
from ..runtime.loading import load
from ..runtime.prediction import Prediction
from ..runtime.predictor import Predictor
from .batcher import RUN, RUN_ON_GPU, Batcher
from .catalog import Versions, found_bundles, in_order
from .errors import ServeError
from .inputs import Inputs, checked_inputs, each_of
from .log import ALWAYS, changes
from .observe import Observer, Observers
from .room import Room
from .settings import ServeSettings

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Served:
    """One version of a model that is served.

    Attributes:
        name: of the model.
        version: of the model.
        predictor: that answers.
        ready: whether it is warm, and not being put away.
        batcher: that makes batches of its requests.
    """

    name: str
    version: str
    predictor: Predictor
    ready: bool
    batcher: Batcher


@dataclass
class _Model:
    """The versions of a name that are loaded, and the one that answers where none is named."""

    loaded: dict[str, Served] = field(default_factory=dict)
    current: str | None = None
    states: dict[str, tuple[str, str]] = field(default_factory=dict)  # version → state, reason
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)


Opens = Callable[[Path], Predictor]


class Service:
    """Every model of a folder, for as many fronts as there are; made and used within one event loop.

    Attributes:
        settings: the same.
        observer: tells all observers; fronts tell it of their requests.
        room: counts what requests take, over every front.
        leaving: whether the process is to end: what is begun is answered, and nobody should send more.
    """

    def __init__(
        self,
        folder: str | Path,
        settings: ServeSettings = ServeSettings(),
        observers: Sequence[Observer] = (),
        opens: Opens | None = None,
    ) -> None:
        self.settings, self.observer = settings, Observers(*observers)
        self.room = Room.of(settings)
        self._folder = Path(folder)
        self._models = {name: _Model() for name in found_bundles(folder)}
        self._opens = opens or self._open
        self.leaving = self._started = self._draining = False

    @property
    def live(self) -> bool:
        """Whether the process answers at all."""
        return True

    @property
    def ready(self) -> bool:
        """Whether every model that was asked for is warm, and the service is not stopping."""
        return self._started and not self.leaving and not self._draining

    @property
    def names(self) -> list[str]:
        """Names of the models."""
        return sorted(self._models)

    @property
    def answering(self) -> dict[str, str]:
        """Models that are loaded, and the version of each that answers for its name."""
        found = {name: self._models[name].current for name in self.names}
        return {name: version for name, version in found.items() if version is not None}

    def versions(self, name: str) -> list[str]:
        """Versions of a model that are loaded, the oldest first."""
        return sorted(self._models[name].loaded, key=in_order) if name in self._models else []

    async def start(self) -> None:
        """Load the newest version of every model; ready then."""
        for name in self.names:
            _tell(log, await self._load(name))
        self._started = True

    def served(self, name: str | None = None, version: str | None = None) -> Served:
        """The model that a request is meant for."""
        if self._draining:
            raise ServeError(503, "the service is stopping; ask another one, or later", retry_after=1)
        name = self._only() if name is None else name
        model = self._models.get(name)
        if model is None:
            raise ServeError(404, f"no model is called {cut(name)}; there are: {listing(self.names)}")
        wanted = model.current if version is None else version
        found = None if wanted is None else model.loaded.get(wanted)
        if found is not None:
            return found
        called = cut(name)
        if not self._started or "LOADING" in {state for state, _ in model.states.values()}:
            raise ServeError(503, f"model {called} is being loaded; ask again", retry_after=1)
        if version is None:
            verb = f"/v2/repository/models/{name}/load"
            raise ServeError(404, f"model {called} is not loaded; load it with POST {verb}")
        raise ServeError(
            404, f"model {called} has no version {cut(version)} loaded; loaded are: {listing(model.loaded)}"
        )

    async def predict(
        self,
        inputs: Inputs,
        *,
        model: str | None = None,
        version: str | None = None,
        timeout: float | None = None,
        on_error: str = "raise",
    ) -> tuple[Served, Prediction]:
        """Predict the inputs of one request; cancelled, they leave the queue.

        Returns:
            What answered, and its prediction in the order of the inputs.
        """
        most = self.settings.timeout
        served = self.served(model, version)
        inputs = checked_inputs(inputs, served.predictor, self.settings.queue)
        found = await served.batcher.submit(inputs, most if timeout is None else min(timeout, most), on_error)
        self.observer.predicted(served, each_of(inputs), found)
        return served, found

    def index(self) -> list[dict[str, Any]]:
        """Every version of every model: ``{"name", "version", "state", "reason"}``, as of the repository extension.

        States are ``READY``, ``LOADING``, ``UNLOADING`` and ``UNAVAILABLE``.
        """
        found = self._found()
        rows = []
        for name, model in sorted(self._models.items()):
            for version in sorted({*found.get(name, {}), *model.states}, key=in_order):
                state, reason = model.states.get(version, ("UNAVAILABLE", "not loaded"))
                rows.append({"name": name, "version": version, "state": state, "reason": reason})
        return rows

    async def load(self, name: str, version: str | None = None, *, keep: bool = False) -> Served:
        """Load a version of a model, or load it again, and let it answer for the name; logged, and so is a refusal.

        Args:
            name: of the model; a folder that came after the start is found, too.
            version: a folder's name; without it the newest.
            keep: whether the version that answered so far stays loaded, and answers those who name it.

        Raises:
            ServeError: 404 for a name or version that is not there, 409 for a bundle that cannot be opened.
        """
        try:
            served = await self._load(name, version, keep=keep)
        except ServeError as error:
            _tell_refusal("a load", error)
            raise
        _tell(changes, served)
        return served

    async def unload(self, name: str, version: str | None = None) -> None:
        """Put a model away once it has answered what it has begun; logged, and so is a refusal."""
        try:
            old = await self._unload(name, version)
        except ServeError as error:
            _tell_refusal("an unload", error)
            raise
        if old:
            changes.info("model %s: unloaded %s; loaded are: %s", name, listing(old), listing(self.versions(name)))

    async def _load(self, name: str, version: str | None = None, *, keep: bool = False) -> Served:
        """As of :meth:`load`, but not logged."""
        versions = self._versions(name)
        wanted = list(versions)[-1] if version is None else version
        if wanted not in versions:
            raise ServeError(404, f"model {cut(name)} has no version {cut(wanted)}; there are: {listing(versions)}")
        model = self._models.setdefault(name, _Model())
        async with model.changing:
            if self._draining:
                raise ServeError(503, "the service is stopping; ask another one, or later", retry_after=1)
            answered = model.states.get(wanted)
            if wanted not in model.loaded:
                model.states[wanted] = ("LOADING", "")
            try:
                served = await self._warmed(name, wanted, versions[wanted])
            except BaseException as error:
                model.states[wanted] = answered if wanted in model.loaded else ("UNAVAILABLE", _reason(error))  # type: ignore[assignment]
                raise
            old = [each for each in model.loaded.values() if each.version == wanted or not keep]
            model.loaded = {**({} if not keep else model.loaded), wanted: served}
            model.current = wanted
            model.states[wanted] = ("READY", "")
            for each in old:
                each.ready = False
            self.observer.queue(served, 0)  # from now on this one is counted, and watched anew
            for each in old:
                await self._put_away(model, each)
        return served

    async def _unload(self, name: str, version: str | None) -> list[str]:
        """Gives the versions that it put away."""
        model = self._models.get(name)
        if model is None:
            raise ServeError(404, f"no model is called {cut(name)}; there are: {listing(self.names)}")
        async with model.changing:
            if version is not None and version not in model.loaded:
                raise ServeError(404, f"model {cut(name)} has no version {cut(version)} loaded")
            old = [each for each in model.loaded.values() if version in (None, each.version)]
            model.loaded = {each.version: each for each in model.loaded.values() if each not in old}
            if model.current not in model.loaded:
                model.current = max(model.loaded, key=in_order, default=None)
            for each in old:
                await self._put_away(model, each)
        return [each.version for each in old]

    async def drain(self) -> None:
        """Take no more requests, answer those that are here, and close every model."""
        self._draining = True
        for model in list(self._models.values()):  # a version that is being loaded may bring another name
            async with model.changing:
                old, model.loaded, model.current = list(model.loaded.values()), {}, None
                for each in old:
                    await self._put_away(model, each)

    def _open(self, path: Path) -> Predictor:
        settings = self.settings
        run = {"threads": settings.threads, "precision": settings.precision, "trust": settings.trust}
        return load(path, settings.backend, **run)  # type: ignore[arg-type]

    async def _warmed(self, name: str, version: str, path: Path) -> Served:
        """A version that is open and has run once; raises ``ServeError`` 409 where it cannot be opened."""
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

    async def _put_away(self, model: _Model, served: Served) -> None:
        """Answer what it has begun, and close it; requests do not reach it any more."""
        served.ready = False
        replaced = served.version in model.loaded
        if not replaced:
            model.states[served.version] = ("UNLOADING", "")
        await served.batcher.close()
        del served.batcher  # each holds the other, and the collector does not look at what was there from the start
        await asyncio.to_thread(served.predictor.close)
        if not replaced:
            model.states[served.version] = ("UNAVAILABLE", "unloaded")
            if not self._draining:  # until its end a service tells what it counted
                self.observer.gone(served)

    def _only(self) -> str:
        """The model that a request means which names none."""
        names = (list(self.answering) if self._started else []) or self.names
        if len(names) > 1:
            raise ServeError(400, f"several models are served; name one of {listing(names)}")
        return names[0]

    def _found(self) -> Mapping[str, Versions]:
        """What lies in the folder now."""
        try:
            return found_bundles(self._folder)
        except InputError:
            return {}  # it was moved away; what is loaded stays

    def _versions(self, name: str) -> Versions:
        versions = self._found().get(name)
        if versions is None:
            raise ServeError(404, f"no model is called {cut(name)}; there are: {listing(sorted(self._found()))}")
        return versions


def _tell(to: logging.Logger, served: Served) -> None:
    to.info("model %s answers with version %s (%s)", served.name, served.version, served.predictor.backend)


def _tell_refusal(what: str, error: ServeError) -> None:
    """Log a refusal: each of a bundle that cannot be opened, but not each name that a client makes up."""
    extra = ALWAYS if error.status == 409 else None
    log.warning("%s was refused (%d): %s", what, error.status, error.message, extra=extra)


def _reason(error: BaseException) -> str:
    return error.message if isinstance(error, ServeError) else cut(error, 200)
