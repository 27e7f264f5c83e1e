"""Data, model and teachers of ``make``: reading, checks before any long work, and digests of every input."""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..bundle.architecture import Architecture
from ..calib.heads.methods import PSEUDO, Circuit, is_pseudo
from ..data.data_options import DataOptions
from ..data.examples import Examples, check_folder, read_examples
from ..data.fingerprints import hashes_of
from ..tasks import TaskName
from .data_splits import Parts, check_enough, check_unseen, parted
from .recipe import Recipe

log = logging.getLogger(__name__)

UNKNOWN = "unknown"
"""Prefix of the digest of data that cannot be compared with another call's."""

OPTIONS = {"abstain": "--coverage", "flags": "--false-alarm"}

CHECKPOINT_FILES = (
    "*config.json", "*.safetensors", "*.safetensors.index.json", "tokenizer*.json", "special_tokens_map.json",
    "added_tokens.json", "vocab*", "merges.txt", "*.model",
)  # fmt: skip


@dataclass(frozen=True)
class MakeInputs:
    """Model, teachers and options of one call."""

    model: str | Path
    recipe: Recipe
    teachers: Sequence[str | Path]
    reading: DataOptions
    seed: int
    architecture: Architecture = field(init=False)
    labels: Sequence[str] = field(init=False)

    def __post_init__(self) -> None:
        from ..models.checkpoint import load_model, model_labels
        from ..models.family_registry import architecture_of

        loaded = load_model(self.model)
        object.__setattr__(self, "architecture", architecture_of(loaded))
        object.__setattr__(self, "labels", model_labels(loaded.config))

    @property
    def task(self) -> TaskName:
        """The model's task."""
        return self.architecture.task

    def read(self, data: Any, validation: Any, ood: Any, test: Any, test_ood: Any, more: Any) -> Parts:
        """Read and split all data."""
        how: dict[str, Any] = {"columns": self.reading, "seed": self.seed}
        labelled: Any = partial(read_examples, labels=self.labels, task=self.task, **how)
        unlabelled: Any = partial(read_examples, labels=None, **how)
        id_data = {"training": data, "validation": validation, "test": test}  # all rows, even if fewer are drawn
        ood_data = {"unlabelled": more, "ood": ood, "test_ood": test_ood}
        for source in (*id_data.values(), *ood_data.values()):
            check_folder(source, self.architecture.modality)
        examples: dict[str, Examples] = {}
        for read, sources in ((labelled, id_data), (unlabelled, ood_data)):
            sets = {role: read(source, role=role) for role, source in sources.items() if source is not None}
            check_unseen(sets, self.architecture.modality)
            examples |= sets
        if (limit := self.reading.limit()) is not None:
            examples["training"] = labelled(examples["training"], limit=limit)
        if "unlabelled" in examples:
            compared = [role for role in ("unlabelled", "validation", "test") if role in examples]
            check_unseen({role: examples[role] for role in compared}, self.architecture.modality)
        further = {role: examples.get(role) for role in ("test", "ood", "test_ood")}
        parts = parted(examples["training"], examples["validation"], **further, seed=self.seed, task=self.task)
        parts = replace(parts, unlabelled=examples.get("unlabelled"))
        if self.teachers:
            self._check_teachers(parts.training)
        if self.task != "tokens":  # thresholds are for spans, whose number is unknown
            check_enough(parts.fitting, self.recipe.abstain, self.recipe.flags)
        return parts

    def _check_teachers(self, training: Examples) -> None:
        """Reject unsuitable teachers before any long work; the report runs them from raw inputs, too."""
        from ..calib.heads.planning import resolve_processor
        from ..evaluation.deep_ensemble import CheckpointMembers
        from ..tuning.teachers import Student, checked_teachers

        processor = None if training.ready else resolve_processor(None, self.model, self.architecture)
        student = Student(self.labels, self.architecture, processor)
        checked_teachers(self.teachers, self.recipe.members or 1, student, training.inputs)
        if not training.ready:
            CheckpointMembers(self.teachers).processor()

    def digests(self, parts: Parts) -> dict[str, str]:
        """Return the SHA-256 of every input of the result; a call resumes only with the same."""
        data: dict[str, Any] = {}
        for name, examples in vars(parts).items():
            labels = None if examples is None or examples.labels is None else np.asarray(examples.labels).tobytes()
            data[name] = [self._inputs(examples), None if labels is None else hashlib.sha256(labels).hexdigest()]
        recipe, method = self.recipe, self.recipe.method
        if isinstance(method, Circuit) and method.ood is not None and not is_pseudo(method.ood):
            data["method"] = self._inputs(read_examples(method.ood, None, columns=self.reading))
            recipe = replace(recipe, method=replace(method, ood=PSEUDO))
        facts = {
            "model": _identity(self.model), "data": data, "teachers": [_identity(each) for each in self.teachers],
            **{OPTIONS.get(name, name): repr(value) for name, value in vars(recipe).items()},
            "seed": self.seed,
        }  # fmt: skip
        digests = {name: hashlib.sha256(json.dumps(each).encode()).hexdigest() for name, each in facts.items()}
        if any(UNKNOWN in each for each in data.values()):
            log.warning(
                "the data have inputs other than texts, files, images and tensors of numbers; this call cannot be "
                "resumed if it is interrupted"
            )
            digests["data"] = UNKNOWN + secrets.token_hex()
        return digests

    def _inputs(self, examples: Examples | None) -> str | None:
        """Return the SHA-256 of inputs in their order; :data:`UNKNOWN` if they have no hash."""
        if examples is None:
            return None
        hashes = hashes_of(examples.inputs, self.architecture.modality)
        return UNKNOWN if hashes is None else hashlib.sha256(json.dumps(hashes).encode()).hexdigest()


def _identity(model: str | Path) -> list[Any]:
    """Return what identifies a checkpoint: its folder and files, or name and commit on the Hub."""
    from ..models.checkpoint import revision_of

    folder = Path(model)
    return [str(folder.resolve()), _files(folder)] if folder.is_dir() else [str(model), revision_of(model)]


def _files(folder: Path) -> list[tuple[str, int, int]]:
    """Return name, size and time of a checkpoint's files; other files in its folder are ignored."""
    files = {file for pattern in CHECKPOINT_FILES for file in folder.glob(pattern) if file.is_file()}
    return sorted((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files)
