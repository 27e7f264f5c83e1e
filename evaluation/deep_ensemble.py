"""A Deep Ensemble (Lakshminarayanan et al. 2017): several checkpoints, of any sizes and families, as members."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..bundle.head_plan import HeadPlan
from ..bundle.hub_download import unwrapped
from ..bundle.traced import AnyArchitecture
from ..data.processor import Processor, from_transformers
from ..errors import InputError, cut, listing
from ..models.checkpoint import load_processor, model_labels
from ..models.plan_cost import cost_of

TEACHERS, WORD = "teachers", "deep-ensemble"


@dataclass(frozen=True)
class DeepEnsemble:
    """A competitor: checkpoints with the same classes and preprocessing, and one temperature for all, if fitted."""

    sources: tuple[str | Path, ...]
    temperature: float | None = None
    name: str = "Deep Ensemble"

    @property
    def kind(self) -> str:
        """``"teachers"`` if calibrated, so that its gain is comparable; else ``"deep-ensemble"``."""
        return WORD if self.temperature is None else TEACHERS


def competitor(source: str | Path | DeepEnsemble) -> str | Path | DeepEnsemble:
    """Parse ``deep-ensemble:A,B``; for a folder, return the one that holds the model's files."""
    if isinstance(source, DeepEnsemble):
        return source
    word, _, names = str(source).partition(":")
    if word != WORD or Path(source).exists():
        return unwrapped(Path(source)) if Path(source).is_dir() else source
    sources = tuple(names.split(","))
    if len(sources) < 2 or not all(sources):
        raise InputError(f"competitor {cut(source)} names too few checkpoints; expected two or more: {WORD}:A,B")
    return DeepEnsemble(sources)


class CheckpointMembers:
    """Checkpoints in their own classes of transformers, for ``TorchModule`` and ``tuning.loop.measure``.

    ``reader`` is the place of the one with the most input tensors, among these with the shortest inputs. Its
    ``architecture`` describes the inputs of all, and logits have the order of its classes.

    Raises:
        InputError: a checkpoint has another task, other inputs or other classes.
    """

    distance = None
    architecture: Any

    def __init__(self, sources: Sequence[str | Path], temperature: float = 1.0) -> None:
        from ..models.tracing.traced_model import any_architecture_of, load_classifier

        self.members, self._temperature, self._orders, self._sources = len(sources), temperature, [], sources
        self.models = [load_classifier(source) for source in sources]
        self.shapes = shapes = [any_architecture_of(model) for model in self.models]
        self.reader = max(range(len(shapes)), key=lambda n: (len(shapes[n].input_names), -shapes[n].max_sequence))
        first, self.architecture = str(sources[self.reader]), shapes[self.reader]
        labels = [model_labels(model.config) for model in self.models]
        for source, shape, own in zip(sources, shapes, labels, strict=True):
            kind, wanted = (f"for {each.task} of {each.modality} inputs" for each in (shape, self.architecture))
            if kind != wanted:
                raise InputError(f"{source} is {kind}, {first} {wanted}; expected models of one kind")
            order = class_order(own, labels[self.reader], source, first)
            self._orders.append(order.tolist())

    def processor(self) -> Processor:
        """Return the reader's processor; raises if it stores none, or if others differ."""
        from ..fusion.parity import common_processor

        common_processor(self._sources, self.architecture)
        stored = load_processor(self._sources[self.reader], self.architecture.modality)
        return from_transformers(stored, self.architecture)

    def eval(self) -> CheckpointMembers:
        """Return the checkpoints, which were loaded in evaluation mode."""
        return self

    def parameters(self) -> Iterator[Any]:
        """Iterate over all weights."""
        return (weight for model in self.models for weight in model.parameters())

    def __call__(self, **inputs: Any) -> Any:
        """Return all checkpoints as members (``fusion.FusedOutput`` or its like), from tensors of a batch [B, …]."""
        import torch

        from ..fusion.output_heads import summarize_task

        logits = [
            model(**{name: inputs[name] for name in shape.input_names if name in inputs}).logits[..., order]
            for model, shape, order in zip(self.models, self.shapes, self._orders, strict=True)
        ]
        return summarize_task(self.architecture, torch.stack(logits), (self._temperature,))


def operations_of(*models: AnyArchitecture) -> int | None:
    """Operations of one input in unpruned models, summed; ``None`` if one is traced."""
    declared = [each for each in models if each.is_declared]
    plans = [HeadPlan.all_heads(each.family, each.layers, each.heads) for each in declared]
    costs = [cost_of(each, plan).single.flops for each, plan in zip(declared, plans, strict=True)]
    return sum(costs) if len(costs) == len(models) else None


def class_order(
    own: Sequence[str], wanted: Sequence[str], source: str | Path, other: str = "the evaluated bundle"
) -> np.ndarray:
    """Return the index of each wanted class, those of ``other``, in a model's own classes."""
    if sorted(own) != sorted(wanted):
        names = listing(sorted(set(own) ^ set(wanted)), 5)
        raise InputError(f"{source} and {other} have different classes: {names} are not in both")
    places = {label: index for index, label in enumerate(own)}
    return np.array([places[label] for label in wanted])
