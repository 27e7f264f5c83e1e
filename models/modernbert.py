"""ModernBERT: a pre-norm text encoder with rotary positions, windows in most layers, and a gate in the MLP."""

from __future__ import annotations

from typing import Any

from ..bundle.architecture import BIASES, Architecture, Pooling, TokenPooling
from .layout import Layout, activation, classes, encoder, linear, refuse

POOLINGS: tuple[Pooling, ...] = ("gelu", "tanh", "relu")
TOKENS: dict[str, TokenPooling] = {"cls": "first", "mean": "mean"}
FULL, SLIDING = "full_attention", "sliding_attention"


def _architecture(config: Any) -> Architecture:
    for name in ("embedding_dropout", "attention_dropout", "mlp_dropout"):
        if getattr(config, name):
            raise refuse(config, name, getattr(config, name), "0.0, as ModernBERT was trained: set it in config.json")
    if config.classifier_activation not in POOLINGS:
        raise refuse(config, "classifier_activation", config.classifier_activation, ", ".join(POOLINGS))
    if config.classifier_pooling not in TOKENS:
        raise refuse(config, "classifier_pooling", config.classifier_pooling, ", ".join(TOKENS))
    if encoder(config)["head_width"] % 2:
        raise refuse(config, "num_attention_heads", config.num_attention_heads, "heads of an even width (rotary)")
    biases = config.norm_bias, config.attention_bias, config.mlp_bias, config.classifier_bias
    kinds, reach = _kinds(config), config.local_attention // 2
    return Architecture(
        **encoder(config), modality="text", pre_norm=True, norm_eps=config.norm_eps, qkv_bias=config.attention_bias,
        mlp_width=config.intermediate_size, activation=activation(config, config.hidden_activation),
        pooling=config.classifier_activation, token_pooling=TOKENS[config.classifier_pooling],
        classes=classes(config), classifier_dropout=config.classifier_dropout,
        vocabulary=config.vocab_size, positions=config.max_position_embeddings, padding_token=config.pad_token_id or 0,
        rotary=tuple(float(config.rope_parameters[kind]["rope_theta"]) for kind in kinds),
        windows=tuple(reach if kind == SLIDING else 0 for kind in kinds),
        bias_free=tuple(name for name, there in zip(BIASES, biases, strict=True) if not there),
        gated_mlp=True, first_norm=False, pooler_norm=True,
    )  # fmt: skip


def _kinds(config: Any) -> list[str]:
    """Each layer's attention: to all tokens, or to those in a window."""
    kinds = list(config.layer_types)
    if len(kinds) != config.num_hidden_layers or not set(kinds) <= {FULL, SLIDING}:
        raise refuse(config, "layer_types", kinds, f"{FULL} or {SLIDING} for each layer")
    if SLIDING in kinds and config.local_attention < 2:
        raise refuse(config, "local_attention", config.local_attention, "2 tokens or more")
    for kind in set(kinds):
        if (scaling := config.rope_parameters[kind].get("rope_type", "default")) != "default":
            raise refuse(config, f"rope_parameters.{kind}.rope_type", scaling, "'default' (no scaling)")
    return kinds


MODERNBERT = Layout(
    family="modernbert", model_class="ModernBertForSequenceClassification", layer="model.layers.{l}", stacked=True,
    layer_names=("attn.Wqkv", "attn.Wqkv", "attn.Wqkv", "attn.Wo", "attn_norm", "mlp.Wi", "mlp.Wo", "mlp_norm"),
    other_names={
        "embeddings.word": "model.embeddings.tok_embeddings.weight",
        **linear("embeddings.norm", "model.embeddings.norm"),
        **linear("final_norm", "model.final_norm"), **linear("pooler", "head.dense"),
        **linear("pooler_norm", "head.norm"), **linear("classifier", "classifier"),
    },
    architecture=_architecture,
)  # fmt: skip
