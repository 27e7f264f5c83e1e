"""Token classifiers: the encoders of ``families.bert`` and ``families.distilbert`` with one linear map on every token.

No pooler stands before it: ``…ForTokenClassification`` reads the last layer as it is.
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

END = "ForTokenClassification"
"""End of the names of these classes of transformers."""


def _tokens(layout: Layout, dropout: Callable[[Any], float] | None = None) -> Layout:
    """The layout of a family's token classifier.

    Args:
        layout: of its classifier of whole texts.
        dropout: rate before the classifier, from a configuration; ``None`` where it is the same.
    """

    def architecture(config: Any) -> Architecture:
        if config.num_labels < 2:
            raise refuse(config, "num_labels", config.num_labels, "2 or more (classes of a token)")
        found = replace(layout.architecture(config), task="tokens", pooling="none")
        return found if dropout is None else replace(found, classifier_dropout=dropout(config))

    names = {key: name for key, name in layout.other_names.items() if key.partition(".")[0] == "embeddings"}
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
)
