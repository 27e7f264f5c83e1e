"""DistilBERT: BERT without token types; a dense layer with ReLU reads the first token."""

from __future__ import annotations

from typing import Any

from ..bundle.architecture import Architecture
from .config import activation, classes, encoder_only, head_width
from .layout import Layout, linear


def _architecture(config: Any) -> Architecture:
    encoder_only(config)
    return Architecture(
        family=config.model_type,
        modality="text",
        layers=config.n_layers,
        heads=config.n_heads,
        head_width=head_width(config, config.dim, config.n_heads),
        width=config.dim,
        mlp_width=config.hidden_dim,
        activation=activation(config, config.activation),
        pre_norm=False,
        norm_eps=1e-12,  # fixed in the transformers class
        qkv_bias=True,
        pooling="relu",
        classes=classes(config),
        hidden_dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        classifier_dropout=config.seq_classif_dropout,
        vocabulary=config.vocab_size,
        positions=config.max_position_embeddings,
        padding_token=config.pad_token_id or 0,
    )


DISTILBERT = Layout(
    family="distilbert",
    model_class="DistilBertForSequenceClassification",
    layer="distilbert.transformer.layer.{l}",
    layer_names=(
        "attention.q_lin",
        "attention.k_lin",
        "attention.v_lin",
        "attention.out_lin",
        "sa_layer_norm",
        "ffn.lin1",
        "ffn.lin2",
        "output_layer_norm",
    ),
    other_names={
        "embeddings.word": "distilbert.embeddings.word_embeddings.weight",
        "embeddings.position": "distilbert.embeddings.position_embeddings.weight",
        **linear("embeddings.norm", "distilbert.embeddings.LayerNorm"),
        **linear("pooler", "pre_classifier"),
        **linear("classifier", "classifier"),
    },
    architecture=_architecture,
)
