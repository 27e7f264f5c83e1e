"""CLIP's image tower: pre-norm, LayerNorm behind the embeddings; zero-shot, or with a classifier that was trained.

Zero-shot, a projection to unit length reads the first token behind the final LayerNorm, and the classifier is made of
the text tower's embeddings of class prompts (``zero_shot``); state-dict names are those of ``ZeroShotClassifier``. A
trained classifier (``CLIPForImageClassification``) reads the mean of all patches as the last layer leaves them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..bundle.architecture import Architecture
from .config import activation, classes, head_width, refuse
from .layout import Layout, linear


def _tower(config: Any) -> Architecture:
    """The image tower, and a classifier that reads its first token as it is."""
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
        pooling="none",
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
    )


LAYER = "vision_model.encoder.layers.{l}"


LAYER_NAMES = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.out_proj",
    "layer_norm1",
    "mlp.fc1",
    "mlp.fc2",
    "layer_norm2",
)


EMBEDDINGS = {
    "embeddings.patch.weight": "vision_model.embeddings.patch_embedding.weight",
    "embeddings.first_token": "vision_model.embeddings.class_embedding",
    "embeddings.position": "vision_model.embeddings.position_embedding.weight",
    **linear("embeddings.norm", "vision_model.pre_layrnorm"),
}


CLIP = Layout(
    family="clip",
    model_class="CLIPModel",
    layer=LAYER,
    layer_names=LAYER_NAMES,
    other_names={
        **EMBEDDINGS,
        **linear("final_norm", "vision_model.post_layernorm"),
        "pooler.weight": "visual_projection.weight",
        "classifier.weight": "classifier.weight",
    },
    architecture=lambda config: replace(_tower(config), pooling="unit", pooled_width=config.projection_dim),
    wrapper="ZeroShotClassifier",
)


CLIP_CLASSIFIER = Layout(
    family="clip",
    model_class="CLIPForImageClassification",
    layer=LAYER,
    layer_names=LAYER_NAMES,
    other_names={**EMBEDDINGS, **linear("classifier", "classifier")},
    architecture=lambda config: replace(_tower(config), token_pooling="mean", final_norm=False),
)
