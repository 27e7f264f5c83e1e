"""Teachers of a tuning: checkpoints that agree with the bundle in classes, task and preprocessing."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..bundle.manifest import MANIFEST
from ..bundle.traced import AnyArchitecture
from ..data.processor import Processor, from_transformers
from ..data.raw_inputs import is_pair
from ..errors import InputError, cut, listing
from ..fusion.parity import first_difference
from ..models.checkpoint import find_processor, model_labels
from ..models.tracing.traced_model import any_architecture_of, load_classifier

log = logging.getLogger(__name__)
TYPES = "token_type_ids"


@dataclass(frozen=True)
class Teacher:
    """A checkpoint, the inputs that it reads, and the SHA-256 of its configuration and weights."""

    source: str | Path
    input_names: tuple[str, ...]
    sha256: str

    @property
    def name(self) -> str:
        """Last part of a folder, or the hub name."""
        return Path(self.source).resolve().name if Path(self.source).is_dir() else str(self.source)


@dataclass(frozen=True)
class Student:
    """The model that learns: its classes, inputs, and processor (``None`` for prepared tensors)."""

    labels: Sequence[str]
    architecture: AnyArchitecture
    processor: Processor | None


def checked_teachers(
    sources: Sequence[str | Path], members: int, student: Student, inputs: Sequence[Any]
) -> list[Teacher]:
    """Load each teacher once, and reject one that differs from the student in classes, task or preprocessing."""
    sources = [sources] if isinstance(sources, str | Path) else sources
    if not sources or members not in (1, len(sources)):
        wrong = f"{len(sources)} teachers do not fit {members} members"
        raise InputError(f"{wrong}; expected one for each member, or one member, which learns their mean")
    pairs = any(map(is_pair, inputs))
    return [_checked(source, student, pairs) for source in sources]


def _checked(source: str | Path, student: Student, pairs: bool) -> Teacher:
    if (Path(source) / MANIFEST).is_file():
        raise InputError(f"teacher {source} is a bundle; expected a checkpoint of a classifier")
    model, ours = load_classifier(source), student.architecture
    theirs = any_architecture_of(model)
    if theirs.modality != ours.modality or theirs.task != ours.task:
        what = f"a {theirs.modality} model for {theirs.task}"
        raise InputError(f"teacher {source} is {what}; expected a {ours.modality} model for {ours.task}")
    labels = model_labels(model.config)
    if list(labels) != list(student.labels):
        odd = sorted(set(labels) ^ set(student.labels))
        wrong = f"{listing(odd, 3)} are not in both" if odd else "their order differs"
        raise InputError(f"teacher {source} has other classes than the model that learns: {wrong}; expected the same")
    if pairs and TYPES in theirs.input_names and TYPES not in ours.input_names:
        raise InputError(f"teacher {source} reads {TYPES} of pairs, the model that learns does not; use another")
    if student.processor is not None:
        _check_processor(source, theirs, student.processor, pairs)
    if theirs.task == "score" and theirs.score_activation != ours.score_activation:
        wrong = f"teacher {source} has the activation {theirs.score_activation}"
        raise InputError(f"{wrong}; expected {ours.score_activation}, as in the model that learns")
    digest = hashlib.sha256(model.config.to_json_string().encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode() + tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return Teacher(source, theirs.input_names, digest.hexdigest())


def _check_processor(source: str | Path, theirs: AnyArchitecture, ours: Processor, pairs: bool) -> None:
    """Reject other preprocessing; a teacher may read longer texts."""
    stored = find_processor(source, theirs.modality)
    if stored is None:
        log.warning("teacher %s stores no processor; make sure that its preprocessing is the same", source)
        return
    both: tuple[Any, Any] = ours, from_transformers(stored, theirs)
    one, other = (dict(each.settings() if hasattr(each, "settings") else each.describe()) for each in both)
    if other.get("longest text", 0) > one.get("longest text", 0):
        other["longest text"] = one["longest text"]
    if not (pairs and TYPES in theirs.input_names):  # without a second text, all types are 0
        one["token types"] = other["token types"] = None
    if difference := first_difference(one, other):
        place, mine, its = difference
        values = f"{place} is {cut(its, 60)}, in the model that learns {cut(mine, 60)}"
        raise InputError(f"teacher {source} prepares its inputs differently: {values}; expected the same preprocessing")
