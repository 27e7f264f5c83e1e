"""The original of a traced bundle, made again from data alone: a configuration, weights, and the name of a class."""

from __future__ import annotations

from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from ...bundle.store import WEIGHTS, Bundle
from ...bundle.traced import CHECKPOINT, Traced
from ...errors import BundleError, HydrantError, cut, literal
from .members import check_plan, probes, run
from .traced_model import described, rebuild


def load_original(bundle: Bundle, architecture: Traced) -> Any:
    """The whole model of a traced bundle, in evaluation mode, float32 on the CPU; it has answered one input."""
    remedy = "make the bundle again with `hydrant fuse --traced`, or install the versions that made it"
    plan = bundle.plan()
    if len(plan.members) != bundle.members or len(bundle.labels) != architecture.classes:
        raise BundleError(
            f"bundle claims {bundle.members} members and {len(bundle.labels)} labels, but its plan has "
            f"{len(plan.members)} members and its model {architecture.classes} classes; {remedy}"
        )
    weights, configuration = load_weights(bundle), bundle.read_json(CHECKPOINT)
    try:
        check_plan(plan, architecture)
        model = rebuild(configuration, architecture, {name: tuple(each.shape) for name, each in weights.items()})
        model.load_state_dict(weights, strict=True)
        for block in architecture.blocks:
            model.get_submodule(block.output)
        model = model.to(torch.float32).requires_grad_(False)
        found = described(model)
        for name in SIZES:
            one, other = getattr(architecture, name), getattr(found, name)
            if one != other:  # inputs may be huge
                raise ValueError(f"config.json says that {name} is {literal(one)}; of its model it is {literal(other)}")
        run(model, probes(architecture, 1)[0])  # some names of a configuration are read here alone
        return model
    except (HydrantError, RuntimeError, AttributeError, TypeError, ValueError, LookupError) as error:
        raise BundleError(f"the model of {bundle.path} cannot be made again ({cut(error, 200)}); {remedy}") from error


SIZES = "modality", "channels", "image_height", "image_width", "shortest", "spectrogram"
"""What an input is as large as, texts aside, which are cut."""


def load_weights(bundle: Bundle) -> dict[str, torch.Tensor]:
    """The tensors of a bundle."""
    path = bundle.file(WEIGHTS)
    try:
        found: dict[str, torch.Tensor] = load_file(path)
    except SafetensorError as error:
        raise BundleError(f"{path} is not a safetensors file ({error}); make the bundle again") from error
    return found
