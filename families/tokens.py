"""Token classifiers: the encoders of families of texts with one linear map on every token.

No pooler stands before it, ``…ForTokenClassification`` reads the last layer as it is; ModernBERT alone keeps its dense
layer and the LayerNorm behind it, on every token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..bundle.architecture import Architecture
from .bert import BERT, CAMEMBERT, ELECTRA, ROBERTA, XLM_ROBERTA
from .config import refuse
from .distilbert import DISTILBERT
from .layout import Layout, linear
from .modernbert import MODERNBERT

END = "ForTokenClassification"
"""End of the names of these classes of transformers."""


def _tokens(layout: Layout, dropout: Callable[[Any], float] | None = None, pooler: bool = False) -> Layout:
    """The layout of a family's token classifier."""

    def architecture(config: Any) -> Architecture:
        if config.num_labels < 2:
            raise refuse(config, "num_labels", config.num_labels, "2 or more (classes of a token)")
        found = replace(layout.architecture(config), task="tokens", token_pooling="first")
        if not pooler:
            found = replace(found, pooling="none")
        return found if dropout is None else replace(found, classifier_dropout=dropout(config))

    left_out = () if pooler else ("pooler",)
    names = {key: name for key, name in layout.other_names.items() if key.partition(".")[0] not in left_out}
    return replace(
        layout,
        model_class=layout.model_class.removesuffix("ForSequenceClassification") + END,
        other_names={**names, **linear("classifier", "classifier")},
        architecture=architecture,
    )


TOKEN_LAYOUTS = (
    _tokens(BERT),
    _tokens(ROBERTA),
    _tokens(XLM_ROBERTA),
    _tokens(CAMEMBERT),
    _tokens(DISTILBERT, dropout=lambda config: float(config.dropout)),
    _tokens(ELECTRA),
    _tokens(MODERNBERT, pooler=True),
)
