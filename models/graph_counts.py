"""The matrix products of a fused model's graph, as the unrolled lowering writes them, and the numbers it stores."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..bundle.architecture import PROJECTIONS, Architecture
from .weight_sharing import Sharing


@dataclass(frozen=True)
class Product:
    """``batch`` products [rows, inner] × [inner, columns]; ``reuse`` of them share one right operand."""

    batch: int
    rows: int
    inner: int
    columns: int
    reuse: int = 1

    @property
    def flops(self) -> int:
        """Floating-point operations."""
        return 2 * self.batch * self.rows * self.inner * self.columns

    @property
    def numbers(self) -> int:
        """Numbers read and written."""
        activations = self.batch * self.rows * (self.inner + self.columns)
        return activations + self.batch // self.reuse * self.inner * self.columns


def products(model: Sharing, batch: int, tokens: int) -> Iterable[Product]:
    """Every product of the graph, in order."""
    arch, d = model.architecture, model.architecture.width
    streams = model.groups("embeddings")
    if arch.modality == "image":
        patches = arch.max_sequence - arch.prefix_tokens
        yield Product(1, batch * patches, arch.channels * arch.patch_height * arch.patch_width, streams * d)
    else:
        if arch.embedding_width:
            yield from _linear(streams, streams, batch * tokens, arch.embedding_width, d)
        streams = max(streams, model.groups("norms") if arch.first_norm else 1)
    for layer in range(arch.layers):
        pooled = model.pooled(layer)
        normed = arch.pre_norm and (layer > 0 or arch.first_norm)
        entering = max(streams, model.groups("norms")) if normed else streams
        yield from attention(model, layer, entering, batch, tokens, pooled)
        streams = max(entering, 1 if model.shared_heads(layer) else model.members, model.groups("norms"))
        queries = 1 if pooled else tokens
        for linear, inner, columns in (("up", d, arch.up_width), ("down", arch.mlp_width, d)):
            groups = model.linear_groups(f"layers.{layer}.mlp.{linear}")
            yield from _linear(groups, streams, batch * queries, inner, columns)
            streams = max(streams, groups)
    rows = batch * tokens if arch.every_token else batch
    if arch.pooling != "none":
        yield from _linear(model.groups("pooler"), streams, rows, d, arch.classifier_width)
        streams = max(streams, model.groups("pooler"))
    yield from _linear(model.groups("classifier"), streams, rows, arch.classifier_width, arch.classes)


def _linear(groups: int, streams: int, rows: int, inner: int, columns: int) -> Iterable[Product]:
    """A linear map of S streams: one product, or one for each group."""
    return [Product(1, rows if groups > 1 else streams * rows, inner, columns)] * groups


def attention(model: Sharing, layer: int, streams: int, batch: int, tokens: int, pooled: bool) -> Iterable[Product]:
    """Query, key, value, scores, mixture and output projection of one layer."""
    d, width = model.architecture.width, model.architecture.head_width
    counts = [len(keep[layer]) for keep in model.plan.members]
    queries, absorbed = 1 if pooled else tokens, pooled and model.architecture.absorbs_keys
    joint = model.joint(layer)
    if joint and not (absorbed and model.absorbed_apart(layer)):
        yield from _joint_attention(model, layer, streams, batch, tokens, pooled)
        return
    if model.shared_heads(layer) and not joint:
        computed, outputs = [(streams * batch, counts[0])], [(streams * batch * queries, counts[0])]
    elif streams == 1 and not joint:  # the fork
        computed, outputs = [(batch, model.distinct_heads(layer))], [(batch * queries, count) for count in counts]
    else:
        computed, outputs = [(batch, count) for count in counts], [(batch * queries, count) for count in counts]
    for runs, heads in computed:
        if absorbed:
            yield from _absorbed(model, runs, heads, tokens)
        elif len(computed) == 1 and not pooled:  # stacked
            yield Product(1, runs * tokens, d, 3 * heads * width)
        else:  # query, key and value one by one
            yield from (Product(1, runs * rows, d, heads * width) for rows in (queries, tokens, tokens))
    if not absorbed:
        together = sum(runs * heads for runs, heads in computed)
        yield Product(together, queries, width, tokens)
        yield Product(together, queries, tokens, width)
    for rows, heads in outputs:
        yield Product(1, rows, heads * width, d)


def _absorbed(model: Sharing, runs: int, heads: int, tokens: int) -> Iterable[Product]:
    """The first token's attention without keys and values of all tokens."""
    d, width = model.architecture.width, model.architecture.head_width
    yield Product(1, runs, d, heads * width)  # query
    yield Product(runs * heads, 1, width, d, reuse=runs)  # query through the key weights
    yield Product(runs, heads, d, tokens)  # scores
    yield Product(runs, heads, tokens, d)  # mixture of inputs
    yield Product(runs * heads, 1, d, width, reuse=runs)  # through the value weights


def _joint_attention(
    model: Sharing, layer: int, streams: int, batch: int, tokens: int, pooled: bool
) -> Iterable[Product]:
    """Attention whose projections are shared, merged or updated separately."""
    d, width = model.architecture.width, model.architecture.head_width
    heads, queries = len(model.plan.members[0][layer]), 1 if pooled else tokens
    absorbed = pooled and model.architecture.absorbs_keys
    copies = max(streams, model.members if model.differs(layer, *PROJECTIONS[:3]) else 1)
    if absorbed:
        yield from _absorbed(model, streams * batch, heads, tokens)
    else:
        if not (pooled or model.absorbed_apart(layer)):
            yield Product(1, streams * batch * tokens, d, 3 * heads * width)
        else:
            for projection in PROJECTIONS[:3]:
                rows = batch * (queries if projection == "query" else tokens)
                yield from _projection(model, layer, projection, streams, rows, d, heads * width)
        yield Product(copies * batch * heads, queries, width, tokens)
        yield Product(copies * batch * heads, queries, tokens, width)
    yield from _projection(model, layer, "output", copies, batch * queries, heads * width, d)


def _projection(
    model: Sharing, layer: int, projection: str, streams: int, rows: int, inner: int, columns: int
) -> Iterable[Product]:
    """A linear map of attention, with its low-rank updates."""
    yield from _linear(model.members if model.apart(layer, projection) else 1, streams, rows, inner, columns)
    rank = model.rank(layer, projection)
    for _ in range(model.members if rank else 0):
        yield Product(1, rows, inner, rank)
        yield Product(1, rows, rank, columns)


def parameters(model: Sharing) -> int:
    """Numbers stored by the graph; the exact rewrites drop some vectors."""
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
    """Return True if a LayerNorm's bias folds into the part of a layer that reads it."""
    arch = model.architecture
    there = reader == "mlp" or layer > 0 or arch.first_norm
    folds = reader == "attention" or model.groups("norms") in (1, model.groups(reader))
    return model.exact and arch.pre_norm and there and folds and arch.has("final_norm.bias")


def _has_biases(model: Sharing, layer: int) -> bool:
    """Return True if a layer's query, key and value have biases: their own, or a folded LayerNorm's."""
    return model.architecture.qkv_bias or _shifts(model, "attention", layer)


def _has_output_bias(model: Sharing, layer: int) -> bool:
    """Return True if the output projection has a bias: its own, or the values' folded into it."""
    own = model.architecture.has(f"layers.{layer}.attention.output.bias")
    return own or (model.exact and _has_biases(model, layer))


def _biased(model: Sharing) -> tuple[str, ...]:
    """Projections among query, key and value whose biases the graph keeps."""
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
    """Weights, updates and biases of attention whose projections are shared, merged or updated separately."""
    arch, d = model.architecture, model.architecture.width
    inner = len(model.plan.members[0][layer]) * arch.head_width
    by_norm = {kind: model.members if arch.pre_norm and model.differs(layer, kind) else 1 for kind in PROJECTIONS[:3]}
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
