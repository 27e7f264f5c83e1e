"""``README.md`` of a Hub repository: the model card of a bundle."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..bundle.store import Bundle
from ..data.data_sources import HUB, hub_name
from ..errors import require
from ..evaluation.metric_names import DETECTION, SCORES
from ..evaluation.report import StoredEvaluation
from ..evaluation.report_tables import MAIN_METRICS
from ..tasks import TASKS
from .card_text import card_text, fusion_of, untitled

TAGS = ["onnx", "transformers.js", "uncertainty", "uncertainty-quantification", "ensemble", "calibration",
        "out-of-distribution-detection"]  # fmt: skip

METRICS = {"span_f1": "f1", "micro_f1": "f1", "correlation": "spearmanr", "mrr": "mrr@10", "ndcg": "ndcg@10"}
"""Our name → the Hub's type of a metric, where they differ."""

FACTS = ("license", "license_name", "license_link")


def model_card(bundle: Bundle, repository: str | None) -> str:
    """The card as Markdown: metadata in YAML, then the text; ``repository`` is ``USER/NAME``, or not known yet."""
    hub = require("huggingface_hub", "hub", "write a model card")
    evaluation = StoredEvaluation.of(bundle)
    tag = pipeline_tag(bundle, evaluation)
    results = [] if evaluation is None else [hub.EvalResult(**each) for each in _results(bundle, evaluation, tag)]
    named = {"model_name": repository or untitled(bundle), "eval_results": results} if results else {}
    data = hub.ModelCardData(library_name="hydrant", pipeline_tag=tag, tags=TAGS, **named, **base_metadata(bundle))
    return f"---\n{data.to_yaml()}\n---\n\n{card_text(bundle, evaluation, tag, repository)}"


def pipeline_tag(bundle: Bundle, evaluation: StoredEvaluation | None) -> str:
    """The Hub's task of a bundle; a reranker is a regression that was evaluated on rankings."""
    arch = bundle.any_architecture()
    if arch.modality != "text":
        return f"{arch.modality}-classification"
    if arch.task == "tokens":
        return "token-classification"
    ranked = evaluation is not None and "ndcg" in evaluation.models[0].figures
    return "text-ranking" if arch.task == "score" and ranked else "text-classification"


def base_metadata(bundle: Bundle) -> dict[str, Any]:
    """Base models, licence, data and languages; ``quantized`` is the Hub's word for conversions without training."""
    fusion, tuned = fusion_of(bundle), bundle.manifest.get("fusion", {}).get("tuned")
    names = _each_once(base.name for base in fusion.base if base.name) or []
    relation = "merge" if len(names) > 1 else "finetune" if tuned or fusion.adapters else "quantized"
    licences = {tuple(getattr(base, name) for name in FACTS) for base in fusion.base}
    data = str(tuned.get("data")) if isinstance(tuned, Mapping) else ""
    own = [hub_name(data)[0]] if data.startswith(HUB) else []
    return {
        "base_model": names[0] if len(names) == 1 else names or None,
        **({"base_model_relation": relation} if names else {}),
        **(dict(zip(FACTS, licences.pop(), strict=True)) if len(licences) == 1 else {}),
        "datasets": _each_once([*(name for base in fusion.base for name in base.datasets), *own]),
        "language": _each_once(name for base in fusion.base for name in base.language),
    }


def _each_once(names: Iterable[str]) -> list[str] | None:
    """The names in order, without repetition; ``None`` for none, which the metadata leave out."""
    return list(dict.fromkeys(names)) or None


def _results(bundle: Bundle, evaluation: StoredEvaluation, tag: str) -> Iterator[dict[str, Any]]:
    """Fields of an ``EvalResult`` for each main metric of the bundle."""
    columns = TASKS[bundle.any_architecture().task].columns
    named = {name: (evaluation.data, METRICS.get(name, name), columns[name].title)
             for name in MAIN_METRICS if name in columns}  # fmt: skip
    if evaluation.ood is not None:
        named |= {
            f"ood.{score}.{name}": (evaluation.ood, name, f"OOD {DETECTION[name].title} by {SCORES[score]}")
            for score in ("predictive_entropy", "score_variance", "distance")
            for name in ("auroc", "fpr95")
        }
    for name, (data, kind, title) in named.items():
        figure = evaluation.models[0].figures.get(name)
        if figure is not None and figure.value is not None:
            yield {"task_type": tag, **_data_set(data), "metric_type": kind, "metric_name": title,
                   "metric_value": round(figure.value, 6)}  # fmt: skip


def _data_set(data: str) -> dict[str, Any]:
    """Data set of a result; files that are not on the Hub have no other identifier than their name."""
    if not data.startswith(HUB):
        return {"dataset_type": data, "dataset_name": data}
    name, config, split = hub_name(data)
    return {"dataset_type": name, "dataset_name": name, "dataset_config": config, "dataset_split": split}
