"""What ``hydrant inspect`` prints of the facts that it gathered: one screen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..bundle.store import TOKENIZER_GRAPH
from ..errors import short
from .calibrate import distance_text, inspected_calibration
from .fusion_text import adapters_text
from .terminal import size, table


def inspect_text(facts: Mapping[str, Any]) -> str:
    """What is in a bundle, in one screen; ``facts`` as the command line gathers them."""
    lines = [
        f"bundle        {facts['path']}",
        *_shape_text(facts),
        f"weights       {_or(facts['parameters'], 'uncounted', ',')} parameters; "
        f"separate parts: {', '.join(map(str, facts['separate'])) or 'none'}",
        *adapters_text(facts["adapters"], facts["adapted"]),
        *_traced_text(facts["traced"]),
        *_factors_text(facts["batch_ensemble"], facts["adapted"]),
        _task_text(facts),
        *([] if facts["prompts"] is None else [f"prompts       {short(facts['prompts'], 90)}"]),
        *_tuned_text(facts["tuned"], [name for name in ("adapters", "prompts") if facts[name]]),
        *inspected_calibration(facts["calibration"], facts["task"] == "score"),
        *distance_text(facts["distance"]),
        f"processor     {facts['processor'] or 'none: takes tensors only'}",
        *([] if facts["cost"] is None else [f"cost          {_cost(facts['cost'], facts['layers'])}"]),
    ]
    lines += [f"graph         {name}: {graph}" for name, graph in facts["graphs"].items()] or [
        "graph         none; make one with `hydrant export`"
    ]
    lines += (
        [] if facts["tokenizer_graph"] is None else [f"tokenizer     {TOKENIZER_GRAPH}: {facts['tokenizer_graph']}"]
    )
    lines += [f"engine        {name}: {engine}" for name, engine in facts["engines"].items()]
    lines.append(f"verified      {facts['verified']}")
    lines += [] if facts["signature"] is None else [f"signature     {facts['signature']}"]
    lines += [f"PROBLEM       {problem}" for problem in facts["problems"]]
    rows = [
        [name, size(entry["bytes"]), entry["sha256"][:12], entry["state"]] for name, entry in facts["files"].items()
    ]
    return "\n".join(lines) + "\n\n" + table(["file", "size", "sha-256", "state"], rows)


def _shape_text(facts: Mapping[str, Any]) -> list[str]:
    """Family and members, as far as config.json and plan.json can be read."""
    shape = f": {facts['layers']} layers of {facts['heads']} heads, width {facts['width']}" if facts["layers"] else ""
    members = f"members       {facts['members']}"
    if facts["method"] is not None:
        heads = ", ".join(f"{low}" if low == high else f"{low}–{high}" for low, high in facts["heads_kept"])
        members += f" ({facts['method']}), heads kept per layer {heads}"
    if facts["overlap"] is not None:
        members += f", overlap {facts['overlap']:.2f}"
    return [f"family        {facts['family']}{shape}", members]


def _task_text(facts: Mapping[str, Any]) -> str:
    """What the model answers: its classes, of whole inputs or of tokens, its labels, or one score."""
    labels = short(", ".join(facts["labels"]), 90)
    if facts["task"] == "score":
        return f"score         {labels}; the model's activation is {facts['score_activation']}"
    kind = {"tokens": " of tokens", "multi_label": ", of which any may apply"}.get(facts["task"], "")
    return f"labels        {len(facts['labels'])}{kind}: {labels}"


def _factors_text(facts: Any, forms: Mapping[str, Any]) -> list[str]:
    """Where the members of a BatchEnsemble have weights of their own; no line for others."""
    if not isinstance(facts, Mapping):
        return []
    first = short(str(facts.get("fork_from")), 12)
    return [f"BatchEnsemble factors from layer {first} on, multiplied into {len(forms)} weights of each member's own"]


def _traced_text(facts: Mapping[str, Any] | None) -> list[str]:
    """How a traced bundle came about, and what it does without; no line for others."""
    if facts is None:
        return []
    lines = [
        f"traced        traced, {facts['form']}: members of {facts['class']}, whose attention was found by running it"
    ]
    match facts["checked"]:
        case {"difference": int() | float() as difference, "effect": int() | float() as effect}:
            lines.append(
                f"checked       logits within {difference:.1e} of the original with the same heads silenced, which "
                f"moves them by {effect:.1e}"
            )
    return [*lines, f"lacks         {facts['lacks']}"]


def _tuned_text(facts: Any, origins: Sequence[str]) -> list[str]:
    """How the members were tuned, and what of the above tells only where that began; no line if they were not."""
    if not isinstance(facts, Mapping):
        return []
    how = "each member alone" if facts.get("per_member") else "all members jointly"
    line = f"tuned         {how}, on {short(str(facts.get('examples')), 12)} examples of "
    line += short(str(facts.get("data")), 60)
    match facts.get("nll"):
        case [int() | float() as before, int() | float() as after]:
            line += f": validation NLL {before:.4f} → {after:.4f}"
    return [f"{line}; {' and '.join(origins)} tell where that began" if origins else line]


def _cost(cost: Mapping[str, Any], layers: int) -> str:
    """Operations and parameters beside the single model's and the Deep Ensemble's."""
    fused, single, deep = cost["fused"], cost["single"], cost["deep_ensemble"]
    flops, parameters = fused["flops"] / single["flops"], fused["parameters"] / single["parameters"]
    return (
        f"{fused['flops'] / 1e9:.2f} GFLOPs for one input of {cost['sequence']} tokens: {flops:.2f}× the single model "
        f"(Deep Ensemble {deep['flops'] / single['flops']:.2f}×); {parameters:.2f}× its parameters; "
        f"members {'differ from layer ' + str(cost['fork']) + ' on' if cost['fork'] < layers else 'are equal'}"
    )


def _or(value: float | None, otherwise: str, form: str) -> str:
    return otherwise if value is None else format(value, form)
