"""Numbers stored by a fused model's graph."""

from __future__ import annotations

from ..bundle.architecture import PROJECTIONS
from .sharing import Sharing


def parameters(model: Sharing) -> int:
    """Numbers stored by the graph; the folds of the exact rewrites drop some vectors."""
    arch, d = model.architecture, model.architecture.width
    total = _embedding_parameters(model) + (2 * d * model.groups("norms") if arch.ends_with_norm else 0)
    total += arch.layers * (_norm(model, "attention") + _norm(model, "mlp"))
    has_biases = arch.qkv_bias or (model.exact and arch.pre_norm)  # a folded LayerNorm brings its own
    for layer in range(arch.layers):
        total += _linear_parameters(model, f"layers.{layer}.mlp.up", d, arch.mlp_width, reads_norm=True)
        total += _linear_parameters(model, f"layers.{layer}.mlp.down", arch.mlp_width, d)
        if model.joint(layer):
            total += _joint_parameters(model, layer, has_biases)
            continue
        kept = [len(keep[layer]) for keep in model.plan.members]
        shared = model.shared_heads(layer)
        forked = not shared and model.exact and model.streams(layer) == 1
        heads = kept[0] if shared else model.distinct_heads(layer) if forked else sum(kept)
        biases = (1 if model.exact else 3) if has_biases else 0
        output_biases = 1 if shared or (model.one_checkpoint and not (model.exact and has_biases)) else model.members
        total += heads * arch.head_width * (3 * d + biases)
        total += (kept[0] if shared else sum(kept)) * arch.head_width * d + output_biases * d
    inner = arch.classifier_width
    if arch.pooling != "none":
        total += _linear_parameters(model, "pooler", d, inner, has_bias=arch.head_bias)
    return total + _linear_parameters(model, "classifier", inner, arch.classes, has_bias=arch.head_bias)


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
        kind: model.members if arch.pre_norm and model.differs(layer, kind) else 1 for kind in ("query", "value")
    }
    by_value = max(by_norm["value"], model.members if model.differs(layer, "output") else 1)
    output_bias = d * (by_value if has_biases else 1)
    absorbed = layer == arch.layers - 1 and arch.first_token_only
    if absorbed and model.absorbed_apart(layer):  # merged, a weight for each member
        return output_bias + model.members * (4 * d * inner + (inner if has_biases else 0))
    total = output_bias + (inner * by_norm["query"] if has_biases else 0)
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
    return 2 * model.architecture.width * groups


def _embedding_parameters(model: Sharing) -> int:
    arch, d = model.architecture, model.architecture.width
    groups = model.groups("embeddings")
    if arch.modality == "image":
        pixels = arch.channels * arch.patch_height * arch.patch_width
        vectors = (1 if arch.patch_bias else 0) + (2 if arch.patch_norm else 0)
        return groups * (pixels + vectors + arch.max_sequence) * d
    # part_of files the LayerNorm behind the tables under the embeddings
    inner = arch.embedding_width or d
    projection = (inner + 1) * d if arch.embedding_width else 0
    return groups * ((arch.vocabulary + arch.positions + arch.token_types + 2) * inner + projection)
