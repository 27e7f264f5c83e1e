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
from ..errors import InputError, UnsupportedModelError, cut, listing
from ..models.plan_cost import cost_of

TEACHERS, WORD = "teachers", "deep-ensemble"


@dataclass(frozen=True)
class DeepEnsemble:
    """A competitor: checkpoints with the same classes and preprocessing, and one temperature for all of them."""

    sources: tuple[str | Path, ...]
    temperature: float = 1.0
    name: str = "Deep Ensemble"


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

    def __init__(self, sources: Sequence[str | Path], temperature: float = 1.0) -> None:
        from ..models.checkpoint import model_labels

        self.members, self._temperature, self._orders = len(sources), temperature, []
        self._read = [(source, *_loaded(source)) for source in sources]
        shapes = [shape for *_, shape in self._read]
        self.reader = max(range(len(shapes)), key=lambda n: (len(shapes[n].input_names), -shapes[n].max_sequence))
        self.source, self.model, self.architecture = self._read[self.reader]
        for source, model, shape in self._read:
            kind, first = (f"for {each.task} of {each.modality} inputs" for each in (shape, self.architecture))
            if kind != first:
                raise InputError(f"{source} is {kind}, {self.source} {first}; expected models of one kind")
            labels = (model_labels(each.config) for each in (model, self.model))
            self._orders.append(class_order(*labels, source, str(self.source)).tolist())

    @property
    def operations(self) -> int | None:
        """Operations of one input in all checkpoints; ``None`` if one is traced."""
        each = [single_operations(shape) for *_, shape in self._read]
        return None if None in each else sum(filter(None, each))

    def eval(self) -> CheckpointMembers:
        """Return the checkpoints, which were loaded in evaluation mode."""
        return self

    def parameters(self) -> Iterator[Any]:
        """Iterate over all weights."""
        return (weight for _, model, _ in self._read for weight in model.parameters())

    def __call__(self, **inputs: Any) -> Any:
        """Return all checkpoints as members (``fusion.FusedOutput`` or its like), from tensors of a batch [B, …]."""
        import torch

        from ..fusion.output_heads import summarize_task

        logits = [
            model(**{name: inputs[name] for name in shape.input_names if name in inputs}).logits[..., order]
            for (_, model, shape), order in zip(self._read, self._orders, strict=True)
        ]
        return summarize_task(self.architecture, torch.stack(logits), (self._temperature,))


def _loaded(source: str | Path) -> tuple[Any, AnyArchitecture]:
    """Load a classifier of any family, and describe it."""
    from ..models.checkpoint import load_model
    from ..models.family_registry import architecture_of
    from ..models.tracing.traced_model import described, load_traced

    try:
        model = load_model(source)
        return model, architecture_of(model)
    except UnsupportedModelError:
        model = load_traced(source)
        return model, described(model)


def single_operations(architecture: AnyArchitecture) -> int | None:
    """Operations of one input in an unpruned model; ``None`` for a traced one."""
    if not architecture.is_declared:
        return None
    plan = HeadPlan.all_heads(architecture.family, architecture.layers, architecture.heads)
    return cost_of(architecture, plan).single.flops


def class_order(
    own: Sequence[str], wanted: Sequence[str], source: str | Path, other: str = "the evaluated bundle"
) -> np.ndarray:
    """Return the index of each wanted class, those of ``other``, in a model's own classes."""
    if sorted(own) != sorted(wanted):
        names = listing(sorted(set(own) ^ set(wanted)), 5)
        raise InputError(f"{source} and {other} have different classes: {names} are not in both")
    places = {label: index for index, label in enumerate(own)}
    return np.array([places[label] for label in wanted])
