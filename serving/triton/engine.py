"""Which engine of a bundle Triton's TensorRT backend can run, and what it asks of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...bundle.store import Bundle
from ...engines.metadata import PRECISIONS, EngineFile, engine_names, engine_path, graph_digest, read_metadata
from ...errors import InputError

LIBRARY = "tensorrt"


@dataclass(frozen=True)
class Engine:
    """An engine that Triton can run.

    Attributes:
        name: in the bundle.
        facts: what its metadata holds.
    """

    name: str
    facts: EngineFile

    @property
    def max_batch(self) -> int:
        """Inputs that fit every profile."""
        return min(_axis(self.facts, 0, 2))

    @property
    def tokens(self) -> tuple[int, int] | None:
        """Tokens of the shortest and the longest text that a profile takes; ``None`` for images."""
        if any(len(shape) != 2 for profile in self.facts.profiles for shapes in profile.values() for shape in shapes):
            return None
        return min(_axis(self.facts, 1, 0)), max(_axis(self.facts, 1, 2))

    def limits(self) -> dict[str, Any]:
        """What a configuration says of the engine, so that engines of several versions of a model must share it."""
        return {"max_batch": self.max_batch, "tokens": self.tokens, "profiles": len(self.facts.profiles)}


def find_engine(bundle: Bundle, precision: str | None) -> tuple[Engine | None, list[str]]:
    """The first engine that Triton can run, in the order of precisions, and why others are none."""
    found = [Engine(name, read_metadata(bundle, name)) for name in engine_names(bundle)]
    reasons, usable = [], []
    for engine in sorted(found, key=lambda each: (_rank(each.facts), each.name)):
        if precision not in (None, engine.facts.precision):
            continue
        if reason := _unusable(bundle, engine.facts):
            reasons.append(f"engine {engine.name} {reason}")
        else:
            usable.append(engine)
    if not usable:
        return None, reasons
    bundle.file(engine_path(usable[0].name))
    return usable[0], reasons


def checked_engine(bundle: Bundle, precision: str | None) -> Engine:
    """As :func:`find_engine`, where there must be one."""
    found, reasons = find_engine(bundle, precision)
    if found is None:
        why = "; ".join(reasons) or f"it has no {LIBRARY} engine{f' in {precision}' if precision else ''}"
        raise InputError(
            f"bundle {bundle.path} has no engine for Triton's TensorRT backend: {why}; build one with `hydrant build "
            f"{bundle.path} --backend {LIBRARY} --precision {precision or PRECISIONS[0]} --batch 1:8:32`, with the "
            "release of TensorRT that Triton has, or use graph_backend onnxruntime"
        )
    return found


def _unusable(bundle: Bundle, facts: EngineFile) -> str | None:
    """Why Triton cannot run an engine."""
    if facts.library != LIBRARY:
        return f"is of {facts.library}, and Triton runs those of {LIBRARY}"
    if facts.stripped:
        return "holds no weights, which Triton does not put in"
    if facts.onnx_sha256 != graph_digest(bundle, facts.onnx):
        return f"was built from another {facts.onnx} than the bundle has now"
    if max(_axis(facts, 0, 0)) > 1:
        return "takes no batch of one"
    if gap := _gap(facts):
        return f"takes texts of {gap[0]} tokens and of {gap[1]}, and none between: build it with profiles that meet"
    return None


def _gap(facts: EngineFile) -> tuple[int, int] | None:
    """Numbers of tokens between which no profile takes any; ``None`` where there are no such, and for images."""
    texts = [shapes for profile in facts.profiles for shapes in profile.values() if len(shapes[0]) == 2]
    ranges = sorted((shapes[0][1], shapes[2][1]) for shapes in texts)
    reach = ranges[0][1] if ranges else 0
    for least, most in ranges:
        if least > reach + 1:
            return reach, least
        reach = max(reach, most)
    return None


def _axis(facts: EngineFile, axis: int, which: int) -> list[int]:
    """An axis of the smallest (0) or largest (2) shapes of every input in every profile."""
    return [shapes[which][axis] for profile in facts.profiles for shapes in profile.values()]


def _rank(facts: EngineFile) -> int:
    order: Sequence[str] = PRECISIONS
    return order.index(facts.precision) if facts.precision in order else len(order)
