"""ViT and DeiT: pre-norm image encoders; the classifier reads the first token after a final LayerNorm."""

from __future__ import annotations

from typing import Any

from ..bundle.architecture import Architecture
from .layout import Layout, activation, classes, head_width, linear, pair, refuse


def _architecture(config: Any, prefix_tokens: int) -> Architecture:
    height, width = pair(config.image_size)
    patch_height, patch_width = pair(config.patch_size)
    if height < patch_height or width < patch_width:
        raise refuse(config, "patch_size", config.patch_size, f"at most the image size, {height} by {width}")
    heads = config.num_attention_heads
    own_width = getattr(config, "head_dim", None)
    return Architecture(
        family=config.model_type,
        modality="image",
        layers=config.num_hidden_layers,
        heads=heads,
        head_width=own_width or head_width(config, config.hidden_size, heads),
        width=config.hidden_size,
        mlp_width=config.intermediate_size,
        activation=activation(config, config.hidden_act),
        pre_norm=True,
        norm_eps=config.layer_norm_eps,
        qkv_bias=config.qkv_bias,
        pooling="none",
        classes=classes(config),
        hidden_dropout=config.hidden_dropout_prob,
        attention_dropout=config.attention_probs_dropout_prob,
        image_height=height,
        image_width=width,
        channels=config.num_channels,
        patch_height=patch_height,
        patch_width=patch_width,
        prefix_tokens=prefix_tokens,
    )


def _layout(family: str, model_class: str, prefix_tokens: int) -> Layout:
    prefix = {"embeddings.first_token": f"{family}.embeddings.cls_token"}
    if prefix_tokens == 2:
        prefix["embeddings.distillation_token"] = f"{family}.embeddings.distillation_token"
    return Layout(
        family=family,
        model_class=model_class,
        layer=f"{family}.layers.{{l}}",
        layer_names=(
            "attention.q_proj",
            "attention.k_proj",
            "attention.v_proj",
            "attention.o_proj",
            "layernorm_before",
            "mlp.fc1",
            "mlp.fc2",
            "layernorm_after",
        ),
        other_names={
            **linear("embeddings.patch", f"{family}.embeddings.patch_embeddings.projection"),
            **prefix,
            "embeddings.position": f"{family}.embeddings.position_embeddings",
            **linear("final_norm", f"{family}.layernorm"),
            **linear("classifier", "classifier"),
        },
        architecture=lambda config: _architecture(config, prefix_tokens),
    )


VIT = _layout("vit", "ViTForImageClassification", prefix_tokens=1)

DEIT = _layout("deit", "DeiTForImageClassification", prefix_tokens=2)
