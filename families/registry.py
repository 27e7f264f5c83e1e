"""The supported model families, and how to read a model of one of them, as transformers 5 defines them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ..bundle.architecture import Architecture
from ..errors import InputError, UnsupportedModelError
from .bert import BERT, CAMEMBERT, ELECTRA, ROBERTA, XLM_ROBERTA
from .clip import CLIP, CLIP_CLASSIFIER
from .dinov2 import DINOV2, DINOV2_WITH_REGISTERS, OLDER
from .distilbert import DISTILBERT
from .layout import Layout
from .modernbert import MODERNBERT
from .siglip import SIGLIP
from .tasks import task_of
from .tokens import TOKEN_LAYOUTS
from .unsupported import WRAPPERS, nearest, why
from .vit import DEIT, VIT

LAYOUTS: tuple[Layout, ...] = (
    BERT, ROBERTA, XLM_ROBERTA, CAMEMBERT, DISTILBERT, ELECTRA, MODERNBERT, VIT, DEIT, DINOV2, DINOV2_WITH_REGISTERS,
    CLIP, CLIP_CLASSIFIER, SIGLIP, *TOKEN_LAYOUTS,
)  # fmt: skip


def layout_of(model: Any) -> Layout:
    """The layout of a transformers model.

    Raises:
        UnsupportedModelError: the model's class is not one of the supported ones; they are listed.
        InputError: a ``CLIPModel``, which has no classes yet.
    """
    name = type(model).__name__
    for layout in LAYOUTS:
        if name == (layout.wrapper or layout.model_class):
            older = OLDER.get(name)
            return older if older is not None and _has(model, older.output_projection(0)) else layout
    if name == CLIP.model_class:
        raise without_classes("the model")
    raise unsupported(name)


def _has(model: Any, module: str) -> bool:
    """Whether a model has a module of this name."""
    return any(name == module for name, _ in model.named_modules())


def unsupported(name: str) -> UnsupportedModelError:
    """The error for a class that has no layout here: why, what is nearest, and all that there is."""
    classes = [layout.model_class for layout in LAYOUTS]
    found, near = why(name, classes), nearest(name, classes)
    reason = f": {found}" if found else ""
    remedy = f"; nearest: {near}" if near else ""
    if name not in WRAPPERS and name.endswith(
        ("ForSequenceClassification", "ForTokenClassification", "ForImageClassification", "ForAudioClassification")
    ):
        remedy += "; as it is, it may do traced: `hydrant fuse --traced` (traced=True)"
    return UnsupportedModelError(
        f"architecture {name} is not supported{reason}{remedy}; supported: {', '.join(classes)}"
    )


def without_classes(name: str) -> InputError:
    """The error for a CLIP model that was given no classes."""
    return InputError(
        f"{name} is a {CLIP.model_class}, which has no classes of its own; name them with --classes "
        "(in Python: hydrant.load_zero_shot)"
    )


def prompts_of(models: Iterable[Any]) -> dict[str, Any]:
    """What to record of zero-shot classifiers: ``{"zero_shot": their prompts}``, a list where they differ; or nothing.

    ``families.prompts.read_prompts`` reads an entry again.
    """
    found = [model.prompts.to_json() for model in models if type(model).__name__ == CLIP.wrapper]
    if not found:
        return {}
    return {"zero_shot": found[0] if all(other == found[0] for other in found) else found}


def architecture_of(model: Any) -> Architecture:
    """Shapes and settings of a transformers model.

    Raises:
        UnsupportedModelError: unsupported class, or an unsupported setting in its configuration.
        InputError: a model without weights.
    """
    check_weights(model)
    found = layout_of(model).architecture(model.config)
    return found if found.every_token else replace(found, **task_of(model.config))


def check_weights(model: Any) -> None:
    """Refuse a model whose weights were never loaded.

    Raises:
        InputError: a weight lies on the device ``meta``, which holds none.
    """
    name = next((name for name, weight in model.named_parameters() if weight.is_meta), None)
    if name is not None:
        raise InputError(
            f"weight {name} lies on the device meta, which holds no numbers; expected a model with its weights: load "
            "it with from_pretrained, outside torch.device('meta') and init_empty_weights"
        )


def read_weights(model: Any) -> dict[str, Any]:
    """The model's tensors under canonical names, float32 on the CPU, detached.

    Returns:
        ``layers.{l}.attention.query.weight`` [H·d_h, d], … as torch tensors; linear weights are
        [out, in] as in torch, times the scale behind them where there is one (``Layout.scales``).

    Raises:
        UnsupportedModelError: unsupported class or setting, or a tensor is missing.
        InputError: a tensor holds NaN or infinity; it is named.
    """
    import torch

    layout = layout_of(model)
    state = model.state_dict()
    weights = {}
    for canonical, source in layout.names(layout.architecture(model.config)).items():
        scale = layout.scale_of(canonical)
        for name in (source, scale):
            if name is not None and name not in state:
                raise UnsupportedModelError(
                    f"{layout.model_class} has no weight {name}; hydrant reads the layout of transformers 5.12 and "
                    "newer"
                )
        tensor = state[source].detach().to(device="cpu", dtype=torch.float32)
        if scale is not None:  # of every output channel: exact, but for one rounding
            factor = state[scale].detach().cpu().double()
            tensor = (tensor.double() * (factor[:, None] if tensor.ndim == 2 else factor)).float()
        if not bool(torch.isfinite(tensor).all()):
            bad = int((~torch.isfinite(tensor)).sum())
            raise InputError(f"weight {source} holds {bad} non-finite values (NaN or infinity); repair the checkpoint")
        weights[canonical] = layout.rows_of(canonical, tensor)
    return weights
