"""The verbs that change what is served, as REST and gRPC both have them: who may use them, and their parameters."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from ..errors import cut, listing, literal
from .errors import ServeError
from .settings import ServeSettings

log = logging.getLogger(__name__)

LOAD: Mapping[str, type] = {"version": str, "keep": bool}
UNLOAD: Mapping[str, type] = {"version": str, "unload_dependents": bool}
"""Parameters of each verb. No model depends on another, so that the second of ``unload`` changes nothing."""

INDEX: Mapping[str, type] = {"ready": bool}
PARAMETERS: Mapping[str, type] = {"parameters": object}
"""Fields of the body of a verb over REST; what ``parameters`` holds is looked at by itself."""


def check_alone(settings: ServeSettings) -> None:
    """Refuse a verb that only one of several workers would hear."""
    if settings.workers > 1:
        reason = (
            f"{settings.workers} workers share this port, and only one of them would hear this; run one worker, or "
            "start the service again"
        )
        log.warning("a load or an unload was refused (409): %s", reason)
        raise ServeError(409, reason)


def verb_body(given: Mapping[str, Any], known: Mapping[str, type]) -> dict[str, Any]:
    """The fields of a verb's body, null ones left out.

    One that stands beside ``parameters`` instead of in it would otherwise be passed over, and another version loaded
    than the one that was meant.
    """
    found = {name: value for name, value in given.items() if value is not None}
    for name, value in found.items():
        kind = known.get(name)
        if kind is None or not (kind is object or type(value) is kind):
            words = listing(f"{each} (true or false)" if kind is bool else each for each, kind in known.items())
            raise ServeError(400, f"the body has {cut(name)} = {cut(value)}; expected nothing, or {words}")
    return found


def verb_parameters(given: Any, known: Mapping[str, type]) -> dict[str, Any]:
    """The parameters of a verb that were given; one that is null is as one that was left out."""
    words = listing(f"{name} ({'text' if kind is str else 'true or false'})" for name, kind in known.items())
    if not isinstance(given, Mapping):
        raise ServeError(400, f"parameters is {cut(given)}; expected an object with {words}")
    found = {name: value for name, value in given.items() if value is not None}
    for name, value in found.items():
        if type(value) is not known.get(name):
            raise ServeError(400, f"parameter {cut(name)} is {literal(value)}; expected parameters of {words}")
    return found
