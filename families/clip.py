"""CLIP's image tower: pre-norm, LayerNorm behind the embeddings, a projection to unit length before the classifier.

The classifier is made of the text tower's embeddings of class prompts (``zero_shot``); state-dict names are those of
``ZeroShotClassifier``.
"""

from __future__ import annotations

from typing import Any

from ..bundle.architecture import Architecture
from .config import activation, classes, head_width, refuse
from .layout import Layout, linear


def _architecture(config: Any) -> Architecture:
    tower = config.vision_config
    if tower.image_size < tower.patch_size:
        raise refuse(tower, "patch_size", tower.patch_size, f"at most the image size, {tower.image_size}")
    return Architecture(
        family=config.model_type,
        modality="image",
        layers=tower.num_hidden_layers,
        heads=tower.num_attention_heads,
        head_width=head_width(tower, tower.hidden_size, tower.num_attention_heads),
        width=tower.hidden_size,
        mlp_width=tower.intermediate_size,
        activation=activation(tower, tower.hidden_act),
        pre_norm=True,
        norm_eps=tower.layer_norm_eps,
        qkv_bias=True,
        pooling="unit",
        classes=classes(config),
        attention_dropout=tower.attention_dropout,
        image_height=tower.image_size,
        image_width=tower.image_size,
        channels=tower.num_channels,
        patch_height=tower.patch_size,
        patch_width=tower.patch_size,
        prefix_tokens=1,
        patch_bias=False,
        patch_norm=True,
        pooled_width=config.projection_dim,
    )


CLIP = Layout(
    family="clip",
    model_class="CLIPModel",
    layer="vision_model.encoder.layers.{l}",
    layer_names=(
        "self_attn.q_proj",
        "self_attn.k_proj",
        "self_attn.v_proj",
        "self_attn.out_proj",
        "layer_norm1",
        "mlp.fc1",
        "mlp.fc2",
        "layer_norm2",
    ),
    other_names={
        "embeddings.patch.weight": "vision_model.embeddings.patch_embedding.weight",
        "embeddings.first_token": "vision_model.embeddings.class_embedding",
        "embeddings.position": "vision_model.embeddings.position_embedding.weight",
        **linear("embeddings.norm", "vision_model.pre_layrnorm"),
        **linear("final_norm", "vision_model.post_layernorm"),
        "pooler.weight": "visual_projection.weight",
        "classifier.weight": "classifier.weight",
    },
    architecture=_architecture,
    wrapper="ZeroShotClassifier",
)
