"""``config.json`` in the form of transformers, for readers that know nothing of hydrant."""

from __future__ import annotations

from typing import Any

from ..bundle.architecture import Architecture
from ..bundle.store import Bundle
from ..bundle.traced import CHECKPOINT
from ..models.family_registry import LAYOUTS

# Task → ``problem_type`` of transformers; token classification has none.
ONE, SEVERAL = "single_label_classification", "multi_label_classification"
PROBLEMS = {"classification": ONE, "multi_label": SEVERAL, "score": "regression"}

DEFAULT_DTYPES = {"fp32": "fp32", "fp16": "fp16", "int8": "q8"}  # precision of a graph → its name in transformers.js


def plain_config(bundle: Bundle, precision: str, external: list[str]) -> dict[str, Any]:
    """The model's configuration for transformers; transformers.js reads ``precision``, some weights ``external``."""
    architecture = bundle.any_architecture()
    config = _declared(architecture) if architecture.is_declared else dict(bundle.read_json(CHECKPOINT))
    problem = PROBLEMS.get(architecture.task)
    reader: dict[str, Any] = {"dtype": DEFAULT_DTYPES[precision]}
    if external:
        reader["use_external_data_format"] = dict.fromkeys(external, 1)
    return {
        **config,
        "id2label": {str(place): label for place, label in enumerate(bundle.labels)},
        "label2id": {label: place for place, label in enumerate(bundle.labels)},
        **({} if problem is None else {"problem_type": problem}),
        "transformers.js_config": reader,
    }


def _declared(arch: Architecture) -> dict[str, Any]:
    """Class and sizes of a declared family; dropout rates and the like are not needed by readers of graphs."""
    layouts = (each for each in LAYOUTS if each.family == arch.family and each.wrapper is None)
    tokens = "ForTokenClassification"
    kind = next(each.model_class for each in layouts if each.model_class.endswith(tokens) is arch.every_token)
    sizes = {"hidden_size": arch.width, "num_hidden_layers": arch.layers, "num_attention_heads": arch.heads}
    sizes |= {"intermediate_size": arch.mlp_width}
    if arch.modality == "text":
        sizes |= {"vocab_size": arch.vocabulary, "max_position_embeddings": arch.positions}
        sizes |= {"type_vocab_size": arch.token_types, "pad_token_id": arch.padding_token}
    else:
        sizes |= {"image_size": arch.image_height, "patch_size": arch.patch_height, "num_channels": arch.channels}
    nested = arch.family in ("clip", "siglip")
    return {"model_type": arch.family, "architectures": [kind], **({"vision_config": sizes} if nested else sizes)}
