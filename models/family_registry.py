"""The supported model families, and how to read a model of one of them, as transformers 5 defines them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..bundle.architecture import PROJECTIONS, Architecture
from ..bundle.head_plan import HeadPlan
from ..bundle.traced import AnyArchitecture, Block
from ..bundle.weights import Shape, fused_shapes
from ..errors import InputError, UnsupportedModelError, cut
from .bert import BERT, CAMEMBERT, DISTILBERT, ELECTRA, ROBERTA, XLM_ROBERTA
from .layout import Layout, linear, refuse, task_of
from .modernbert import MODERNBERT
from .refusals import rewritten, unsupported
from .vit import CLIP, CLIP_CLASSIFIER, DEIT, DINOV2, DINOV2_WITH_REGISTERS, OLDER, SIGLIP, VIT

if TYPE_CHECKING:
    from torch import Tensor


def _tokens(layout: Layout, dropout: Callable[[Any], float] | None = None, pooler: bool = False) -> Layout:
    """The layout of a family's token classifier: a linear map on every token, after a pooler in ModernBERT."""

    def architecture(config: Any) -> Architecture:
        if config.num_labels < 2:
            raise refuse(config, "num_labels", config.num_labels, "2 or more (classes of a token)")
        arch = replace(layout.architecture(config), task="tokens", token_pooling="first")
        arch = arch if pooler else replace(arch, pooling="none")
        return arch if dropout is None else replace(arch, classifier_dropout=dropout(config))

    kept = {key: name for key, name in layout.other_names.items() if pooler or not key.startswith("pooler.")}
    names, encoder = kept | linear("classifier", "classifier"), layout.model_class.partition("For")[0]
    model_class = f"{encoder}ForTokenClassification"
    return replace(layout, model_class=model_class, other_names=names, architecture=architecture)


TOKEN_LAYOUTS = (
    *map(_tokens, (BERT, ROBERTA, XLM_ROBERTA, CAMEMBERT, ELECTRA)),
    _tokens(DISTILBERT, dropout=lambda config: float(config.dropout)),
    _tokens(MODERNBERT, pooler=True),
)

LAYOUTS: tuple[Layout, ...] = (
    BERT, ROBERTA, XLM_ROBERTA, CAMEMBERT, DISTILBERT, ELECTRA, MODERNBERT, VIT, DEIT, DINOV2, DINOV2_WITH_REGISTERS,
    CLIP, CLIP_CLASSIFIER, SIGLIP, *TOKEN_LAYOUTS,
)  # fmt: skip

DECLARED = [layout.model_class for layout in LAYOUTS]


def layout_of(model: Any) -> Layout:
    """The layout of a transformers model."""
    name = type(model).__name__
    for layout in LAYOUTS:
        if name == (layout.wrapper or layout.model_class):
            older = OLDER.get(name)
            return older if older and older.output_projection(0) in dict(model.named_modules()) else layout
    if name == CLIP.model_class:
        raise without_classes("the model")
    bases = (each.__name__ for each in type(model).__mro__)
    raise unsupported(name, DECLARED, next((each for each in bases if each in DECLARED), ""))


def without_classes(name: str) -> InputError:
    """The error for a CLIP model without classes."""
    wrong = f"{name} is a {CLIP.model_class}, without classes of its own"
    return InputError(f"{wrong}; name them with --classes (hydrant.load_zero_shot)")


def prompts_of(models: Iterable[Any]) -> dict[str, Any]:
    """Manifest entry of zero-shot classifiers: ``{"zero_shot": prompts}``, a list if they differ."""
    prompts = [model.prompts.to_json() for model in models if type(model).__name__ == CLIP.wrapper]
    return {"zero_shot": prompts[0] if all(other == prompts[0] for other in prompts) else prompts} if prompts else {}


def architecture_of(model: Any) -> Architecture:
    """Shapes and settings of a transformers model."""
    check_weights(model)
    arch = layout_of(model).architecture(model.config)
    return arch if arch.every_token else replace(arch, **task_of(model.config))


def blocks_of(model: Any, architecture: AnyArchitecture) -> tuple[Block, ...]:
    """The attention blocks of a model: declared by its layout, or discovered by running it."""
    if not architecture.is_declared:
        return architecture.blocks
    heads, layout = architecture.heads, layout_of(model)
    names = map(layout.output_projection, range(architecture.layers))
    return tuple(Block(name, "", heads, heads, architecture.head_width, (), False) for name in names)


def check_weights(model: Any) -> None:
    """Reject a value that is not a model, and a model whose weights were never loaded."""
    if not hasattr(model, "named_parameters"):
        raise InputError(f"model is a {cut(type(model).__name__)}; expected a transformers classifier or its folder")
    for name, weight in model.named_parameters():
        if weight.is_meta:
            wrong = f"weight {name} is on the device meta, without values"
            raise InputError(f"{wrong}; load the model with from_pretrained")


def read_weights(model: Any) -> dict[str, Any]:
    """Tensors under canonical names, float32 on the CPU; linear weights [out, in], times ``Layout.scales``."""
    import torch

    layout = layout_of(model)
    architecture, state = layout.architecture(model.config), model.state_dict()
    _check_layers(layout, architecture, state)
    shapes = _stored_shapes(layout, architecture)
    weights = {}
    for canonical, source in layout.names(architecture).items():
        scale = layout.scale_of(canonical)
        for name in (source, scale):
            if name is not None and name not in state:
                why = rewritten(name.rpartition(".")[0], state) or "expected the layout of transformers 5.12 and newer"
                raise UnsupportedModelError(f"{layout.model_class} has no weight {name}; {why}")
        _check_tensor(source, state[source], shapes[canonical])
        tensor = state[source].detach().to(device="cpu", dtype=torch.float32)
        if scale is not None:  # per output channel: exact up to one rounding
            factor = state[scale].detach().cpu().double()
            tensor = (tensor.double() * (factor[:, None] if tensor.ndim == 2 else factor)).float()
        if not bool(torch.isfinite(tensor).all()):
            bad = int((~torch.isfinite(tensor)).sum())
            raise InputError(f"weight {source} holds {bad} non-finite values (NaN or infinity); repair the checkpoint")
        weights[canonical] = layout.rows_of(canonical, tensor)
    return weights


def _check_layers(layout: Layout, architecture: Architecture, names: Collection[str]) -> None:
    """Reject a model with more or fewer layers than its configuration."""
    count = 0
    while any(name.startswith(f"{layout.layer.format(l=count)}.") for name in names):
        count += 1
    if count not in (0, architecture.layers):  # 0: other names; the missing weight is reported later
        wrong = f"the model has {count} layers, its configuration {architecture.layers}"
        raise InputError(f"{wrong}; set num_hidden_layers to {count}")


def _check_tensor(source: str, tensor: Tensor, expected: Shape) -> None:
    """Reject quantised weights, and a shape unlike the configuration's, except for axes of one."""
    if not tensor.is_floating_point() or tensor.dtype.itemsize < 2:
        wrong = f"weight {source} holds {str(tensor.dtype).removeprefix('torch.')}"
        raise InputError(f"{wrong}; expected float32, float16 or bfloat16: give the model before it was quantised")
    plain = tuple(size for size in tensor.shape if size > 1)
    if plain != expected and (len(plain) < 3 or (plain[0], math.prod(plain[1:])) != expected):  # or it is a kernel
        wrong = f"weight {source} has shape {list(tensor.shape)}, and the configuration asks for {list(expected)}"
        fix = "correct it (num_labels and id2label, vocab_size, image_size), or load the checkpoint again"
        raise InputError(f"{wrong}; {fix}")


def _stored_shapes(layout: Layout, architecture: Architecture) -> dict[str, Shape]:
    """Canonical name → shape in the state dict, without axes of one; a kernel's is [d, numbers of a patch]."""
    plan = HeadPlan.all_heads(architecture.family, architecture.layers, architecture.heads)
    shapes: dict[str, Shape] = {}
    for name, shape in fused_shapes(architecture, plan).items():
        parts = PROJECTIONS[:3] if ".attention.qkv." in name else ("qkv",)
        width = shape[-1] // len(parts)
        for part in parts:
            canonical = name.replace("qkv", part)
            out = 3 * width if layout.is_stacked(canonical) else width
            rows = (out, *shape[:-1]) if name.endswith(".weight") else (*shape[:-1], out)  # a linear map is [out, in]
            shapes[canonical] = tuple(size for size in rows if size > 1)
    return shapes
