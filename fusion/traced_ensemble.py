"""A traced ensemble: M members of any classifier, and the head of its task."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..bundle.density_file import TAP
from ..bundle.head_plan import HeadPlan
from ..bundle.original_check import OriginalCheck
from ..bundle.traced import Traced
from ..errors import InputError
from ..models.base_card import base_facts
from ..models.checkpoint import model_labels, own_processor
from ..models.layout import problem_of
from ..models.tracing.export_patches import transformers_code
from ..models.tracing.members import agreed, all_heads, check_plan, members_of, run_member, trace, with_defaults
from ..models.tracing.traced_model import load_traced, modality_of, taken
from .output_heads import Ensemble, Output
from .parity import compare_with_original


class TracedClassifier(Ensemble):
    """M members of a traced model, run one by one under a lock that hooks and transformers' caches need."""

    def __init__(
        self, architecture: Traced, plan: HeadPlan, original: nn.Module, labels: list[str], **fitted: Any
    ) -> None:
        super().__init__(architecture, plan, labels, **fitted)
        self._whole: list[Any] = [original]  # in a list, so not a submodule: members hold its tensors
        self.each = nn.ModuleList(members_of(original, architecture, plan))
        self._turn = threading.Lock()
        self.eval().requires_grad_(False)

    def __getstate__(self) -> dict[str, Any]:
        """The state of a copy: everything but the lock."""
        return {name: value for name, value in self.__dict__.items() if name != "_turn"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a copy, with a lock of its own."""
        self.__dict__.update(state, _turn=threading.Lock())

    @property
    def original(self) -> Any:
        """The whole model, with every head."""
        return self._whole[0]

    @property
    def trunk(self) -> int:
        """Number of blocks, counted from the input, in which all members keep the same heads."""
        return self.plan.fork

    def forward(self, **inputs: Tensor) -> Output:
        """Run all members, as :meth:`FusedClassifier.forward` does."""
        return self.answer(*self.features(self.taps, **inputs), inputs)

    def features(self, taps: Sequence[str], **inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Member logits [M, B, C] and tap vectors (``bundle.density_file``), [K, B, d]; with T after B for tokens."""
        complete = with_defaults(self.architecture, inputs)
        layers = sorted({int(match[1]) for tap in taps if (match := TAP.fullmatch(tap)) and match[1]})
        by_member = [layers, *[()] * (self.members - 1)]  # the first member's vectors serve for the trunk
        with self._turn:
            pairs = zip(self.each, by_member, strict=True)
            runs = [run_member(each, self.architecture, complete, some) for each, some in pairs]
        vectors = {f"last.{number}": last for number, (_, last, _) in enumerate(runs)}
        vectors |= {f"layers.{layer}.token": each for layer, each in zip(layers, runs[0][2], strict=True)}
        logits = torch.stack([each for each, _, _ in runs])
        return logits, torch.stack([vectors[tap] for tap in taps]) if taps else logits.new_zeros(0)

    pooler = None

    def last_vectors(self, **inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Member logits [M, B, C] and inputs of the last linear maps [M, B, d]; with T after B for tokens."""
        return self.features([f"last.{member}" for member in range(self.members)], **inputs)

    def penultimate(self, last: Tensor) -> Tensor:
        """The input of the last linear map: the same vectors."""
        return last

    def last_linear(self) -> tuple[Tensor, Tensor | None]:
        """Weight [d, C] and bias [C] of the last linear map."""
        if not self.architecture.classifier:
            raise InputError(f"{self.architecture.model_class} has no identified last linear map; omit --baselines")
        last = self.original.get_submodule(self.architecture.classifier)
        weight, bias = last.weight.detach(), getattr(last, "bias", None)
        return weight.T if isinstance(last, nn.Linear) else weight, None if bias is None else bias.detach()

    def checked_with(self, processor: Any) -> OriginalCheck | None:
        """Compare the whole model, run like a member, with transformers' own code; ``None`` without its processor."""
        if not callable(processor):
            return None
        read = self.architecture
        [whole] = members_of(self.original, read, all_heads(read, 1))
        with transformers_code(self.original):
            return compare_with_original(
                self.original, processor, read, lambda inputs: run_member(whole, read, with_defaults(read, inputs))[0]
            )

    def stored_weights(self) -> dict[str, Tensor]:
        """The tensors of the whole original under their names in transformers."""
        return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in self.original.state_dict().items()}

    def checkpoint_configuration(self) -> dict[str, Any]:
        """The configuration of the original as a JSON object."""
        left_out = ("_name_or_path", "auto_map")  # a local path; names of code, which hydrant never runs
        return {name: value for name, value in self.original.config.to_dict().items() if name not in left_out}


def fuse_traced(sources: Sequence[Any], plan: HeadPlan | None, members: int | None) -> TracedClassifier:
    """Make members of any classifier, compared with the original under hooks; arguments as in ``fuse``."""
    if len(sources) != 1:
        raise InputError(f"{len(sources)} models were given with traced; expected one, whose prunings are the members")
    source = sources[0]
    model = load_traced(source) if isinstance(source, str | Path) else taken(source)
    for name, weight in model.state_dict().items():
        if weight.is_floating_point() and not bool(torch.isfinite(weight).all()):
            raise InputError(f"weight {name} holds non-finite values (NaN or infinity); repair the checkpoint")
    architecture = trace(model, own_processor(source, modality_of(type(model).__name__)))
    plan = all_heads(architecture, members or 1) if plan is None else plan
    check_plan(plan, architecture)
    form, checked = agreed(model, architecture, plan)
    facts = {"checkpoints": 1, "separate": [], "traced": checked, **problem_of(model.config), **base_facts([model])}
    return TracedClassifier(replace(architecture, form=form), plan, model, model_labels(model.config), provenance=facts)
