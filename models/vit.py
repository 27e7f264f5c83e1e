"""Image encoders, all pre-norm: ViT, DeiT, DINOv2, and the image towers of CLIP and SigLIP.

DINOv2's layer scale (Touvron et al. 2021) is multiplied into the linear map before it; its registers (Darcet et al.
2024) are learned tokens without a position.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..bundle.architecture import Architecture
from .layout import Layout, activation, classes, encoder, linear, pair, refuse


def _encoder(config: Any, classifier: Any, **own: Any) -> Architecture:
    """Shapes of an image encoder from its own configuration and its classifier's, with a family's other fields."""
    (height, width), (patch_height, patch_width) = pair(config.image_size), pair(config.patch_size)
    if height < patch_height or width < patch_width:
        raise refuse(config, "patch_size", config.patch_size, f"at most the image size, {height} by {width}")
    return Architecture(
        **{**encoder(config), "family": classifier.model_type}, modality="image", pre_norm=True, pooling="none",
        activation=activation(config, config.hidden_act), norm_eps=config.layer_norm_eps, classes=classes(classifier),
        channels=config.num_channels, image_height=height, image_width=width, patch_height=patch_height,
        patch_width=patch_width, **own,
    )  # fmt: skip


ATTENTION = ("attention.q_proj", "attention.k_proj", "attention.v_proj", "attention.o_proj")


def _vit(config: Any, prefix_tokens: int, mlp_width: int) -> Architecture:
    return _encoder(
        config, config, mlp_width=mlp_width, qkv_bias=config.qkv_bias, prefix_tokens=prefix_tokens,
        hidden_dropout=config.hidden_dropout_prob, attention_dropout=config.attention_probs_dropout_prob,
    )  # fmt: skip


def _names(family: str, *tokens: tuple[str, str]) -> dict[str, str]:
    """Names outside the layers, with prefix tokens: canonical names, and their own."""
    return {
        **linear("embeddings.patch", f"{family}.embeddings.patch_embeddings.projection"),
        "embeddings.first_token": f"{family}.embeddings.cls_token",
        **{f"embeddings.{canonical}": f"{family}.embeddings.{name}" for canonical, name in tokens},
        "embeddings.position": f"{family}.embeddings.position_embeddings",
        **linear("final_norm", f"{family}.layernorm"),
        **linear("classifier", "classifier"),
    }


def _layout(family: str, model_class: str, *tokens: tuple[str, str]) -> Layout:
    return Layout(
        family=family, model_class=model_class, layer=f"{family}.layers.{{l}}", other_names=_names(family, *tokens),
        layer_names=(*ATTENTION, "layernorm_before", "mlp.fc1", "mlp.fc2", "layernorm_after"),
        architecture=lambda config: _vit(config, 1 + len(tokens), config.intermediate_size),
    )  # fmt: skip


VIT = _layout("vit", "ViTForImageClassification")
DEIT = _layout("deit", "DeiTForImageClassification", ("distillation_token", "distillation_token"))


def _dinov2(config: Any) -> Architecture:
    registers = getattr(config, "num_register_tokens", 0)
    if registers < (config.model_type == "dinov2_with_registers"):
        raise refuse(config, "num_register_tokens", registers, "1 or more (Dinov2ForImageClassification has none)")
    height, width = pair(config.image_size)
    if height != width:
        raise refuse(config, "image_size", config.image_size, "a square")
    if config.use_swiglu_ffn:
        raise refuse(config, "use_swiglu_ffn", True, "use_swiglu_ffn = False (an MLP without a gate)")
    if config.hidden_dropout_prob:
        raise refuse(config, "hidden_dropout_prob", config.hidden_dropout_prob, "0.0, as DINOv2 was trained")
    arch = _vit(config, 1 + registers, int(config.hidden_size * config.mlp_ratio))
    return replace(arch, token_pooling="first_and_mean", registers=registers)


def resize(model: Any, side: int) -> None:
    """Resize the table of positions to images of another size once, as the model does for every image."""
    import torch

    config = model.config
    if pair(config.image_size) == (side, side):
        return
    embeddings = getattr(model, config.model_type).embeddings
    patch_height, patch_width = pair(config.patch_size)
    patches = (side // patch_height) * (side // patch_width)
    with torch.no_grad():
        table = embeddings.interpolate_pos_encoding(torch.empty(1, 1 + patches, config.hidden_size), side, side)
    embeddings.position_embeddings = torch.nn.Parameter(table.clone())
    config.image_size = side


def drop_path_of(config: Any) -> dict[str, float]:
    """Stochastic depth of a checkpoint, which members do not support; tuning warns about it."""
    rate = getattr(config, "drop_path_rate", 0.0)
    return {"drop_path_rate": float(rate)} if rate else {}


OLDER_ATTENTION = ("attention.attention.query", "attention.attention.key", "attention.attention.value",
                   "attention.output.dense")  # fmt: skip
"""Names in transformers 5.12."""


def _dinov2_layout(family: str, model_class: str, attention: tuple[str, ...] = ATTENTION) -> Layout:
    return Layout(
        family=family, model_class=model_class, layer=f"{family}.encoder.layer.{{l}}", architecture=_dinov2,
        layer_names=(*attention, "norm1", "mlp.fc1", "mlp.fc2", "norm2"), resize=resize,
        other_names=_names(family, *[("registers", "register_tokens")] * family.endswith("registers")),
        scales={"attention.output": "layer_scale1.lambda1", "mlp.down": "layer_scale2.lambda1"},
    )  # fmt: skip


NAMES = {"dinov2": "Dinov2ForImageClassification", "dinov2_with_registers": "Dinov2WithRegistersForImageClassification"}
DINOV2, DINOV2_WITH_REGISTERS = (_dinov2_layout(family, name) for family, name in NAMES.items())
OLDER = {name: _dinov2_layout(family, name, OLDER_ATTENTION) for family, name in NAMES.items()}
"""Class → names of its weights in older releases of transformers."""


def _tower(config: Any) -> Architecture:
    """The image tower, and a classifier that reads CLIP's first token or the mean of SigLIP's patches."""
    tower, clip = config.vision_config, config.model_type == "clip"
    if len({*pair(tower.image_size)}) > 1 or len({*pair(tower.patch_size)}) > 1:
        raise refuse(tower, "image_size", tower.image_size, "a square of one square patch or more")
    return _encoder(
        tower, config, mlp_width=tower.intermediate_size, qkv_bias=True, attention_dropout=tower.attention_dropout,
        prefix_tokens=1 if clip else 0, patch_bias=not clip, patch_norm=clip,
        token_pooling="first" if clip else "mean",
    )  # fmt: skip


CLIP_EMBEDDINGS = {
    "embeddings.patch.weight": "vision_model.embeddings.patch_embedding.weight",
    "embeddings.first_token": "vision_model.embeddings.class_embedding",
    "embeddings.position": "vision_model.embeddings.position_embedding.weight",
    **linear("embeddings.norm", "vision_model.pre_layrnorm"),
}

CLIP = Layout(
    family="clip", model_class="CLIPModel", wrapper="ZeroShotClassifier", layer="vision_model.encoder.layers.{l}",
    layer_names=(*(f"self_attn.{name}_proj" for name in ("q", "k", "v", "out")),
                 "layer_norm1", "mlp.fc1", "mlp.fc2", "layer_norm2"),
    other_names={
        **CLIP_EMBEDDINGS, **linear("final_norm", "vision_model.post_layernorm"),
        "pooler.weight": "visual_projection.weight", "classifier.weight": "classifier.weight",
    },
    architecture=lambda config: replace(_tower(config), pooling="unit", pooled_width=config.projection_dim),
)  # fmt: skip

CLIP_CLASSIFIER = replace(
    CLIP, model_class="CLIPForImageClassification", wrapper=None,
    other_names={**CLIP_EMBEDDINGS, **linear("classifier", "classifier")},
    architecture=lambda config: replace(_tower(config), token_pooling="mean", final_norm=False),
)  # fmt: skip

SIGLIP = replace(
    CLIP_CLASSIFIER, family="siglip", model_class="SiglipForImageClassification", architecture=_tower,
    other_names={
        **linear("embeddings.patch", "vision_model.embeddings.patch_embedding"),
        "embeddings.position": "vision_model.embeddings.position_embedding.weight",
        **linear("final_norm", "vision_model.post_layernorm"), **linear("classifier", "classifier"),
    },
)  # fmt: skip
