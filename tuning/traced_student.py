"""A traced model that learns: its members are runs of one set of weights, each without its removed heads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from ..bundle.store import Bundle
from ..errors import InputError, UnsupportedModelError, cut
from ..fusion import TracedClassifier
from ..fusion.output_heads import Ensemble, Output
from ..models.tracing.members import agreed, probes, with_defaults
from ..models.tracing.slices import own_copy, silenced
from .settings import BatchEnsemble, Jointly, PerMember

OFF = ("layerdrop", "encoder_layerdrop", "mask_time_prob", "mask_feature_prob")
"""Settings of audio models that leave out layers or moments at random, beside PyTorch's seed."""


class TracedStudent(Ensemble):
    """A copy of the whole model, which runs once for each member; the gradients of all members add up in it.

    While it trains, dropout has the configuration's rates; batch norms keep their statistics.
    """

    def __init__(self, ensemble: TracedClassifier) -> None:
        super().__init__(ensemble.architecture, ensemble.plan, ensemble.labels)
        self.original: Any = own_copy(ensemble.original).requires_grad_(True)
        for each in (self.original.config, *self.original.modules()):
            for name in OFF:
                if getattr(each, name, 0):
                    setattr(each, name, 0.0)
        parameters = list(self.original.parameters())
        try:
            with torch.random.fork_rng(devices=[]):
                logits = self.train()(**probes(self.architecture)[-1]).member_logits
                gradients = torch.autograd.grad(logits.sum(), parameters, allow_unused=True)
        except Exception as error:  # any exception of a class that only runs forward
            what = f"{self.architecture.model_class} cannot be tuned"
            raise UnsupportedModelError(f"{what}: its logits have no gradients ({cut(error, 160)})") from error
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.requires_grad_(gradient is not None)
        self.eval()

    def train(self, mode: bool = True) -> Self:
        """Set the mode of everything but batch norms."""
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                module.eval()
        return self

    def forward(self, **inputs: Tensor) -> Output:
        """Run all members, as :meth:`FusedClassifier.forward` does; in evaluation mode without gradients."""
        logits = []
        with torch.inference_mode(False), torch.set_grad_enabled(self.training):  # transformers caches some tensors
            complete = {name: each.clone() for name, each in with_defaults(self.architecture, inputs).items()}
            for keep in self.plan.members:
                with silenced(self.original, self.architecture.blocks, keep):
                    logits.append(self.original(**complete).logits)
        return self.answer(torch.stack(logits), logits[0].new_zeros(0), inputs)


def check_options(bundle: Bundle, how: Jointly) -> None:
    """Raise for options that need a declared family."""
    if isinstance(how, PerMember | BatchEnsemble) or how.freeze or getattr(how, "fork_from", None) is not None:
        wrong = f"bundle {bundle.path} is traced: its members share all weights, which are tuned as a whole"
        raise InputError(f"{wrong}; omit --per-member, --batch-ensemble, --freeze and --fork-from")


def tuned_classifier(ensemble: TracedClassifier, weights: Mapping[str, Tensor]) -> TracedClassifier:
    """The members of tuned weights, compared with the tuned model under hooks; changes the original in place."""
    original, plan = ensemble.original, ensemble.plan
    original.load_state_dict({name.removeprefix("original."): each for name, each in weights.items()}, strict=False)
    form, checked = agreed(original, ensemble.architecture, plan)
    facts = {key: value for key, value in ensemble.provenance.items() if key != "tuned"} | {"traced": checked}
    architecture = replace(ensemble.architecture, form=form)
    return TracedClassifier(architecture, plan, original, ensemble.labels, provenance=facts)
