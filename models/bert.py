"""BERT, DistilBERT, RoBERTa, XLM-RoBERTa, CamemBERT, ELECTRA: post-norm; a dense layer reads the first token."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import Any

from ..bundle.architecture import Architecture, Pooling
from .layout import Layout, activation, classes, encoder, encoder_only, linear

LAYER_NAMES = (
    "attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense",
    "attention.output.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm",
)  # fmt: skip


def _layout(family: str, name: str, architecture: Callable[[Any], Architecture], **modules: str) -> Layout:
    """The layout of a class, with its modules outside the layers: canonical name → its own."""
    tables = {f"embeddings.{kind}": f"{family}.embeddings.{kind}_embeddings.weight" for kind in TABLES}
    named = {"embeddings.norm": f"{family}.embeddings.LayerNorm", **modules}
    return Layout(
        family=family, model_class=f"{name}ForSequenceClassification", layer=f"{family}.encoder.layer.{{l}}",
        layer_names=LAYER_NAMES, architecture=architecture,
        other_names=tables | {key: value for each in named.items() for key, value in linear(*each).items()},
    )  # fmt: skip


TABLES = ("word", "position", "token_type")


def _architecture(config: Any, position_padding: int | None = None, pooling: Pooling = "tanh") -> Architecture:
    encoder_only(config)
    own_width = getattr(config, "embedding_size", config.hidden_size)
    classifier_dropout = getattr(config, "classifier_dropout", None)
    return Architecture(
        **encoder(config), modality="text", pre_norm=False, norm_eps=config.layer_norm_eps, qkv_bias=True,
        mlp_width=config.intermediate_size, activation=activation(config, config.hidden_act),
        pooling=pooling, classes=classes(config),
        hidden_dropout=config.hidden_dropout_prob, attention_dropout=config.attention_probs_dropout_prob,
        classifier_dropout=config.hidden_dropout_prob if classifier_dropout is None else classifier_dropout,
        vocabulary=config.vocab_size, positions=config.max_position_embeddings, token_types=config.type_vocab_size,
        position_padding=position_padding, padding_token=config.pad_token_id or 0,
        embedding_width=0 if own_width == config.hidden_size else own_width,
    )  # fmt: skip


HEAD = {"pooler": "classifier.dense", "classifier": "classifier.out_proj"}
PROJECTED = {**HEAD, "embeddings.projection": "electra.embeddings_project"}
BERT = _layout("bert", "Bert", _architecture, pooler="bert.pooler.dense", classifier="classifier")
ROBERTA = _layout("roberta", "Roberta", lambda config: _architecture(config, config.pad_token_id), **HEAD)
XLM_ROBERTA = replace(ROBERTA, family="xlm-roberta", model_class="XLMRobertaForSequenceClassification")
CAMEMBERT = replace(ROBERTA, family="camembert", model_class="CamembertForSequenceClassification")
ELECTRA = _layout("electra", "Electra", lambda config: _architecture(config, pooling="gelu"), **PROJECTED)


def _distilbert(config: Any) -> Architecture:
    own = copy(config)
    own.intermediate_size, own.hidden_act = config.hidden_dim, config.activation
    own.hidden_dropout_prob, own.attention_probs_dropout_prob = config.dropout, config.attention_dropout
    own.classifier_dropout = config.seq_classif_dropout
    own.type_vocab_size, own.layer_norm_eps = 0, 1e-12  # fixed in the transformers class
    return _architecture(own, pooling="relu")


DISTILBERT = Layout(
    family="distilbert", model_class="DistilBertForSequenceClassification", architecture=_distilbert,
    layer="distilbert.transformer.layer.{l}",
    layer_names=(*(f"attention.{name}_lin" for name in ("q", "k", "v", "out")),
                 "sa_layer_norm", "ffn.lin1", "ffn.lin2", "output_layer_norm"),
    other_names={
        "embeddings.word": "distilbert.embeddings.word_embeddings.weight",
        "embeddings.position": "distilbert.embeddings.position_embeddings.weight",
        **linear("embeddings.norm", "distilbert.embeddings.LayerNorm"),
        **linear("pooler", "pre_classifier"), **linear("classifier", "classifier"),
    },
)  # fmt: skip
