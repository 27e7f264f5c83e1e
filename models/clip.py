"""The image towers of CLIP and SigLIP: pre-norm; zero-shot, or with a classifier that was trained.

CLIP has a learned token, and a LayerNorm behind the embeddings. Zero-shot, a projection to unit length reads that token
behind the final LayerNorm, and the classifier is made of the text tower's embeddings of class prompts (``zero_shot``);
state-dict names are those of ``ZeroShotClassifier``. A trained classifier (``CLIPForImageClassification``) reads the
mean of all patches as the last layer leaves them; SigLIP's, behind the final LayerNorm. The attention head that pools
SigLIP's tower for zero-shot answers is in the checkpoint, and nothing here reads it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..bundle.architecture import Architecture
from .layout import Layout, activation, classes, head_width, linear, pair, refuse


def _tower(config: Any) -> Architecture:
    """The image tower, and a classifier that reads its first token as it is; of SigLIP without what is CLIP's own."""
    tower = config.vision_config
    height, width = pair(tower.image_size)
    patch_height, patch_width = pair(tower.patch_size)
    if height != width or patch_height != patch_width or height < patch_height:
        raise refuse(tower, "image_size", tower.image_size, "a square of one square patch or more")
    clip = config.model_type == "clip"
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
        image_height=height,
        image_width=width,
        channels=tower.num_channels,
        patch_height=patch_height,
        patch_width=patch_width,
        prefix_tokens=1 if clip else 0,
        patch_bias=not clip,
        patch_norm=clip,
        token_pooling="first" if clip else "mean",
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
        **EMBEDDINGS,
        **linear("final_norm", "vision_model.post_layernorm"),
        "pooler.weight": "visual_projection.weight",
        "classifier.weight": "classifier.weight",
    },
    architecture=lambda config: replace(_tower(config), pooling="unit", pooled_width=config.projection_dim),
    wrapper="ZeroShotClassifier",
)

CLIP_CLASSIFIER = replace(
    CLIP,
    model_class="CLIPForImageClassification",
    other_names={**EMBEDDINGS, **linear("classifier", "classifier")},
    architecture=lambda config: replace(_tower(config), token_pooling="mean", final_norm=False),
    wrapper=None,
)

SIGLIP = replace(
    CLIP_CLASSIFIER,
    family="siglip",
    model_class="SiglipForImageClassification",
    other_names={
        **linear("embeddings.patch", "vision_model.embeddings.patch_embedding"),
        "embeddings.position": "vision_model.embeddings.position_embedding.weight",
        **linear("final_norm", "vision_model.post_layernorm"),
        **linear("classifier", "classifier"),
    },
    architecture=_tower,
)
