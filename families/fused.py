"""The form of a fused model's weights, and whether stored weights have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..errors import BundleError, listing
from ..plan import HeadPlan
from .architecture import Architecture, part_of

Shape = tuple[int, ...]


def fused_shapes(architecture: Architecture, plan: HeadPlan) -> dict[str, Shape]:
    """Shape of every fused tensor without its leading group axis.

    Linear weights are [in, out], vectors [1, d], tables [rows, d]; a layer's attention has as many
    head slots as its fullest member keeps heads.
    """
    arch, d = architecture, architecture.width
    shapes: dict[str, Shape] = _embedding_shapes(arch)
    for layer in range(arch.layers):
        inner = max(len(keep[layer]) for keep in plan.members) * arch.head_width
        name = f"layers.{layer}"
        shapes |= _linear(f"{name}.attention.qkv", d, 3 * inner, bias=arch.qkv_bias)
        shapes |= _linear(f"{name}.attention.output", inner, d)
        shapes |= _linear(f"{name}.mlp.up", d, arch.mlp_width) | _linear(f"{name}.mlp.down", arch.mlp_width, d)
        shapes |= _norm(f"{name}.attention_norm", d) | _norm(f"{name}.mlp_norm", d)
    if arch.pre_norm:
        shapes |= _norm("final_norm", d)
    if arch.pooling != "none":
        shapes |= _linear("pooler", d, arch.classifier_width, bias=arch.head_bias)
    return shapes | _linear("classifier", arch.classifier_width, arch.classes, bias=arch.head_bias)


def check_fused(
    shapes: Mapping[str, Sequence[int]], architecture: Architecture, plan: HeadPlan, labels: Sequence[str], members: int
) -> None:
    """Check that weights, architecture, plan, labels and number of members belong together.

    Args:
        shapes: of the stored tensors, group axis first.

    Raises:
        BundleError: they do not; the first contradiction is named.
    """
    remedy = "make the bundle again with `hydrant fuse`"
    if len(plan.members) != members or len(labels) != architecture.classes:
        raise BundleError(
            f"bundle claims {members} members and {len(labels)} labels, but its plan has {len(plan.members)} members "
            f"and its model {architecture.classes} classes; {remedy}"
        )
    if (plan.family, plan.layers, plan.heads) != (architecture.family, architecture.layers, architecture.heads):
        raise BundleError(f"the bundle's plan and config.json describe different models; {remedy}")
    expected = fused_shapes(architecture, plan)
    different = sorted(set(expected) ^ set(shapes))
    if different:
        raise BundleError(f"the bundle's weights lack or add {listing(different, 3)}; {remedy}")
    for name, shape in expected.items():
        groups = (members,) if part_of(name) == "attention" else (1, members)
        if tuple(shapes[name]) not in {(group, *shape) for group in groups}:
            raise BundleError(f"weight {name} has shape {list(shapes[name])}; expected {[groups[0], *shape]}; {remedy}")


def _embedding_shapes(arch: Architecture) -> dict[str, Shape]:
    d = arch.width
    if arch.modality == "image":
        pixels = arch.channels * arch.patch_height * arch.patch_width
        shapes = _linear("embeddings.patch", pixels, d, bias=arch.patch_bias)
        shapes |= _norm("embeddings.norm", d) if arch.patch_norm else {}
        shapes |= {"embeddings.first_token": (1, d), "embeddings.position": (arch.max_sequence, d)}
        return shapes | ({"embeddings.distillation_token": (1, d)} if arch.prefix_tokens == 2 else {})
    tables = {"word": arch.vocabulary, "position": arch.positions, "token_type": arch.token_types}
    shapes = {f"embeddings.{name}": (rows, d) for name, rows in tables.items() if rows}
    return shapes | _norm("embeddings.norm", d)


def _linear(name: str, inputs: int, outputs: int, bias: bool = True) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {f"{name}.weight": (inputs, outputs)}
    return shapes | ({f"{name}.bias": (1, outputs)} if bias else {})


def _norm(name: str, width: int) -> dict[str, Shape]:
    return {f"{name}.weight": (1, width), f"{name}.bias": (1, width)}
