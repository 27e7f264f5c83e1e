"""SigLIP's image tower with a classifier that was trained: pre-norm, no learned token, the mean of all patches.

The classifier (``SiglipForImageClassification``) reads the mean behind the final LayerNorm. The attention head that
pools the tower for SigLIP's zero-shot answers stands in the checkpoint, and nothing here reads it.
"""

from __future__ import annotations

from typing import Any

from ..bundle.architecture import Architecture
from .clip import LAYER, LAYER_NAMES
from .config import activation, classes, head_width, pair, refuse
from .layout import Layout, linear


def _architecture(config: Any) -> Architecture:
    tower = config.vision_config
    height, width = pair(tower.image_size)
    patch_height, patch_width = pair(tower.patch_size)
    if height != width or patch_height != patch_width or height < patch_height:
        raise refuse(tower, "image_size", tower.image_size, "a square of one square patch or more")
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
        prefix_tokens=0,
        token_pooling="mean",
    )


SIGLIP = Layout(
    family="siglip",
    model_class="SiglipForImageClassification",
    layer=LAYER,
    layer_names=LAYER_NAMES,
    other_names={
        **linear("embeddings.patch", "vision_model.embeddings.patch_embedding"),
        "embeddings.position": "vision_model.embeddings.position_embedding.weight",
        **linear("final_norm", "vision_model.post_layernorm"),
        **linear("classifier", "classifier"),
    },
    architecture=_architecture,
)
