"""Numbers stored by a fused model's graph."""

from __future__ import annotations

from ..bundle.architecture import PROJECTIONS, Architecture
from .sharing import Sharing


def parameters(model: Sharing) -> int:
    """Numbers stored by the graph; the folds of the exact rewrites drop some vectors."""
    arch, d = model.architecture, model.architecture.width
    own = _vectors(arch) * model.groups("norms")
    total = _embedding_parameters(model) + (own * d if arch.ends_with_norm else 0)
    total += (arch.layers if arch.first_norm else arch.layers - 1) * _norm(model, "attention")
    total += arch.layers * _norm(model, "mlp")
    for layer in range(arch.layers):
        up, down = f"layers.{layer}.mlp.up", f"layers.{layer}.mlp.down"
        total += _linear_parameters(model, up, d, arch.up_width, True, arch.has(f"{up}.bias") or _shifts(model, "mlp"))
        total += _linear_parameters(model, down, arch.mlp_width, d, has_bias=arch.has(f"{down}.bias"))
        has_biases = _has_biases(model, layer)
        if model.joint(layer):
            total += _joint_parameters(model, layer, has_biases)
            continue
        kept = [len(keep[layer]) for keep in model.plan.members]
        shared = model.shared_heads(layer)
        forked = not shared and model.exact and model.streams(layer) == 1
        heads = kept[0] if shared else model.distinct_heads(layer) if forked else sum(kept)
        biases = len(_biased(model)) if has_biases else 0
        output_biases = 1 if shared or (model.one_checkpoint and not (model.exact and has_biases)) else model.members
        output_biases *= _has_output_bias(model, layer)
        total += heads * arch.head_width * (3 * d + biases)
        total += (kept[0] if shared else sum(kept)) * arch.head_width * d + output_biases * d
    inner = arch.classifier_width
    if arch.pooling != "none":
        total += _linear_parameters(model, "pooler", d, inner, has_bias=arch.head_bias and arch.has("pooler.bias"))
    total += own * inner if arch.pooler_norm else 0
    return total + _linear_parameters(model, "classifier", inner, arch.classes, has_bias=arch.head_bias)


def _vectors(arch: Architecture) -> int:
    """Vectors of a LayerNorm: its weight, and its bias where it has one."""
    return 1 + arch.has("final_norm.bias")


def _shifts(model: Sharing, reader: str, layer: int = 1) -> bool:
    """Whether a LayerNorm with a bias folds into the part of a layer that reads it, and so gives that one."""
    arch = model.architecture
    there = reader == "mlp" or layer > 0 or arch.first_norm
    folds = reader == "attention" or model.groups("norms") in (1, model.groups(reader))
    return model.exact and arch.pre_norm and there and folds and arch.has("final_norm.bias")


def _has_biases(model: Sharing, layer: int) -> bool:
    """Whether query, key and value of a layer have biases: their own, or of the LayerNorm that folds into them."""
    return model.architecture.qkv_bias or _shifts(model, "attention", layer)


def _has_output_bias(model: Sharing, layer: int) -> bool:
    """Whether the output projection has a bias: its own, or what the values' fold into it."""
    own = model.architecture.has(f"layers.{layer}.attention.output.bias")
    return own or (model.exact and _has_biases(model, layer))


def _biased(model: Sharing) -> tuple[str, ...]:
    """Those of query, key and value whose biases the graph keeps, where they have some."""
    if not model.exact:
        return ("query", "key", "value")
    return ("query", "key") if model.architecture.rotary else ("query",)  # the key's is dropped, the value's moves


def _linear_parameters(
    model: Sharing, module: str, inner: int, columns: int, reads_norm: bool = False, has_bias: bool = True
) -> int:
    """Weight and bias of a linear map outside attention."""
    biases = model.bias_groups(module, reads_norm) if has_bias else 0
    return inner * columns * model.linear_groups(module) + columns * biases


def _joint_parameters(model: Sharing, layer: int, has_biases: bool) -> int:
    """Weights, updates and biases of attention whose projections are shared, merged or updated, each for itself."""
    arch, d = model.architecture, model.architecture.width
    inner = len(model.plan.members[0][layer]) * arch.head_width
    by_norm = {
        kind: model.members if arch.pre_norm and model.differs(layer, kind) else 1 for kind in ("query", "key", "value")
    }
    by_value = max(by_norm["value"], model.members if model.differs(layer, "output") else 1)
    output_bias = d * (by_value if has_biases else 1) * _has_output_bias(model, layer)
    if model.absorbed(layer) and model.absorbed_apart(layer):  # merged, a weight for each member
        return output_bias + model.members * (4 * d * inner + (inner if has_biases else 0))
    total = output_bias + (inner * sum(by_norm[kind] for kind in _biased(model)) if has_biases else 0)
    for projection in PROJECTIONS:
        rank = model.rank(layer, projection)
        total += d * inner * (model.members if model.apart(layer, projection) else 1)
        total += model.members * rank * (d + inner)
    return total


def _norm(model: Sharing, reader: str) -> int:
    """Numbers of the affine map of a LayerNorm; none where it folds into the part that reads it."""
    groups = model.groups("norms")
    folds = model.exact and model.architecture.pre_norm
    if folds and (reader == "attention" or groups in (1, model.groups(reader))):
        return 0
    return _vectors(model.architecture) * model.architecture.width * groups


def _embedding_parameters(model: Sharing) -> int:
    arch, d = model.architecture, model.architecture.width
    groups = model.groups("embeddings")
    if arch.modality == "image":
        pixels = arch.channels * arch.patch_height * arch.patch_width
        vectors = (1 if arch.patch_bias else 0) + (_vectors(arch) if arch.patch_norm else 0)
        return groups * (pixels + vectors + arch.max_sequence) * d
    # part_of files the LayerNorm behind the tables under the embeddings
    inner = arch.embedding_width or d
    projection = (inner + 1) * d if arch.embedding_width else 0
    positions = 0 if arch.rotary else arch.positions
    return groups * ((arch.vocabulary + positions + arch.token_types + _vectors(arch)) * inner + projection)
