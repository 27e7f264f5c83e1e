"""Every matrix product of a fused model's graph, in order, as the unrolled lowering writes them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..bundle.architecture import PROJECTIONS
from .sharing import Sharing


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
        pixels = arch.channels * arch.patch_height * arch.patch_width
        yield Product(1, batch * patches, pixels, streams * d)
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
    if groups == 1:
        yield Product(1, streams * rows, inner, columns)
    else:
        for _ in range(groups):
            yield Product(1, rows, inner, columns)


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
    """Attention whose projections are shared, merged or updated, each for itself."""
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
    """A linear map of attention, with the updates that it keeps."""
    yield from _linear(model.members if model.apart(layer, projection) else 1, streams, rows, inner, columns)
    rank = model.rank(layer, projection)
    for _ in range(model.members if rank else 0):
        yield Product(1, rows, inner, rank)
        yield Product(1, rows, rank, columns)
