"""Expected shapes of a fused model's weights, and the check of stored weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from safetensors import SafetensorError

from ..errors import BundleError, listing
from .architecture import PROJECTIONS, Architecture, part_of
from .head_plan import HeadPlan
from .store import WEIGHTS, Bundle

Shape = tuple[int, ...]
Array = TypeVar("Array")


def stored_weights(bundle: Bundle, load: Callable[[Path], dict[str, Array]]) -> dict[str, Array]:
    """The tensors of a bundle, by the ``load_file`` of safetensors for NumPy or torch."""
    path = bundle.file(WEIGHTS)
    try:
        return load(path)
    except SafetensorError as error:
        raise BundleError(f"{path} is not a safetensors file ({error}); make the bundle again") from error


def fused_shapes(
    architecture: Architecture, plan: HeadPlan, ranks: Mapping[str, int] | None = None
) -> dict[str, Shape]:
    """Shape of every fused tensor without its leading group axis: linear weights are [in, out], vectors [1, d].

    ``ranks`` contains the r of each low-rank update, such as ``layers.0.attention.low_rank.query``.
    """
    arch, d = architecture, architecture.width
    shapes: dict[str, Shape] = _embedding_shapes(arch)
    for layer in range(arch.layers):
        inner = max(len(keep[layer]) for keep in plan.members) * arch.head_width
        name = f"layers.{layer}"
        shapes |= _linear(f"{name}.attention.qkv", d, 3 * inner)
        shapes |= _linear(f"{name}.attention.output", inner, d)
        for projection in PROJECTIONS:
            update = f"{name}.attention.low_rank.{projection}"
            if ranks and update in ranks:
                inputs, outputs = (inner, d) if projection == "output" else (d, inner)
                shapes |= {f"{update}.down": (inputs, ranks[update]), f"{update}.up": (ranks[update], outputs)}
        shapes |= _linear(f"{name}.mlp.up", d, arch.up_width) | _linear(f"{name}.mlp.down", arch.mlp_width, d)
        shapes |= _norm(f"{name}.attention_norm", d) | _norm(f"{name}.mlp_norm", d)
    if arch.ends_with_norm:
        shapes |= _norm("final_norm", d)
    if arch.pooling != "none":
        shapes |= _linear("pooler", d, arch.classifier_width, bias=arch.head_bias)
    shapes |= _norm("pooler_norm", arch.classifier_width) if arch.pooler_norm else {}
    shapes |= _linear("classifier", arch.classifier_width, arch.classes, bias=arch.head_bias)
    return {name: shape for name, shape in shapes.items() if arch.has(name)}


def check_fused(
    shapes: Mapping[str, Sequence[int]], architecture: Architecture, plan: HeadPlan, labels: Sequence[str], members: int
) -> None:
    """Check that weights, architecture, plan, labels and number of members belong together."""
    remedy = "make the bundle again with `hydrant fuse`"
    if len(plan.members) != members or len(labels) != architecture.classes:
        claimed = f"bundle claims {members} members and {len(labels)} labels"
        actual = f"its plan has {len(plan.members)} members and its model {architecture.classes} classes"
        raise BundleError(f"{claimed}, but {actual}; {remedy}")
    if (plan.family, plan.layers, plan.heads) != (architecture.family, architecture.layers, architecture.heads):
        raise BundleError(f"the bundle's plan and config.json describe different models; {remedy}")
    ranks = {name.removesuffix(".down"): shape[-1] for name, shape in shapes.items()
             if name.endswith(".down") and ".low_rank." in name and len(shape)}  # fmt: skip
    expected = fused_shapes(architecture, plan, ranks)
    different = sorted(set(expected) ^ set(shapes))
    if different:
        raise BundleError(f"weights {listing(different, 3)} do not fit the bundle's plan and config.json; {remedy}")
    for name, shape in expected.items():
        groups = _attention_groups(name, plan, shapes) if part_of(name) == "attention" else (1, members)
        if tuple(shapes[name]) not in {(group, *shape) for group in groups}:
            raise BundleError(f"weight {name} has shape {list(shapes[name])}; expected {[groups[0], *shape]}; {remedy}")


def _attention_groups(name: str, plan: HeadPlan, shapes: Mapping[str, Sequence[int]]) -> tuple[int, ...]:
    """Allowed G of an attention tensor: M, and 1 if all members keep the same heads."""
    _, layer, _, linear, *_ = name.split(".")
    members, prefix = len(plan.members), f"layers.{layer}.attention"
    projections = PROJECTIONS[:3] if linear == "qkv" else PROJECTIONS[3:]
    updated = any(f"{prefix}.low_rank.{projection}.down" in shapes for projection in projections)
    if linear == "low_rank" or not plan.same_heads(int(layer)):
        return (members,)
    if updated:
        return (1,)  # the shared weight below the updates
    return (shapes[f"{prefix}.{linear}.weight"][0],) if name.endswith(".bias") else (1, members)


def _embedding_shapes(arch: Architecture) -> dict[str, Shape]:
    d = arch.width
    if arch.modality == "image":
        pixels = arch.channels * arch.patch_height * arch.patch_width
        shapes = _linear("embeddings.patch", pixels, d, bias=arch.patch_bias)
        shapes |= _norm("embeddings.norm", d) if arch.patch_norm else {}
        shapes |= {"embeddings.first_token": (1, d)} if arch.prefix_tokens else {}
        shapes |= {"embeddings.position": (arch.max_sequence - arch.registers, d)}
        shapes |= {"embeddings.registers": (arch.registers, d)} if arch.registers else {}
        return shapes | ({"embeddings.distillation_token": (1, d)} if arch.prefix_tokens - arch.registers == 2 else {})
    tables = {"word": arch.vocabulary, "position": 0 if arch.rotary else arch.positions, "token_type": arch.token_types}
    inner = arch.embedding_width or d
    shapes = {f"embeddings.{name}": (rows, inner) for name, rows in tables.items() if rows}
    shapes |= _norm("embeddings.norm", inner)
    return shapes | (_linear("embeddings.projection", inner, d) if arch.embedding_width else {})


def _linear(name: str, inputs: int, outputs: int, bias: bool = True) -> dict[str, Shape]:
    return {f"{name}.weight": (inputs, outputs), **({f"{name}.bias": (1, outputs)} if bias else {})}


def _norm(name: str, width: int) -> dict[str, Shape]:
    return {f"{name}.weight": (1, width), f"{name}.bias": (1, width)}
