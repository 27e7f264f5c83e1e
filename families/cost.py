"""What an ensemble costs: floating-point operations, parameters and bytes moved, from shapes alone.

The formulas follow the exported graph with every exact rewrite (``export.rewrites``): a shared trunk, distinct
heads once in the fork layer, only the first token in the last layer. Separate parts of several checkpoints are
taken to differ in every layer; the export finds out. Operations are those of matrix
products and convolutions, two for each multiply-add; everything else is linear in the activations.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..bundle import ARCHITECTURE, MANIFEST, Bundle
from ..errors import InputError, PlanError, cut
from ..plan import HeadPlan
from .architecture import PROJECTIONS, Architecture, part_of

OPERATIONS_PER_BYTE = 10
"""Operations in the time of moving a byte, about what CPUs and GPUs do in float32: decides the form of updates."""

Forms = Mapping[str, Mapping[str, Any]]
"""Module that adapters change → the ``rank`` of the updates, and whether they stay ``low_rank``."""


@dataclass(frozen=True)
class Figures:
    """Cost of one run.

    Attributes:
        flops: floating-point operations of all products.
        parameters: numbers stored.
        bytes: read and written by the products: both operands and the result, each once.
    """

    flops: int
    parameters: int
    bytes: int

    def __mul__(self, times: int) -> Figures:
        return Figures(self.flops * times, self.parameters * times, self.bytes * times)


@dataclass(frozen=True)
class Cost:
    """Cost of the single model, of the fused ensemble and of a Deep Ensemble, on the same inputs.

    Attributes:
        single: the original model as any exporter writes it.
        single_rewritten: the original model with the exact rewrites that apply to one member.
        fused: the ensemble, with every exact rewrite.
        deep_ensemble: M single models.
        batch, sequence: inputs and tokens per input.
        fork: first layer that differs between members, in its heads or by their adapters; the number of layers when
            none does, 0 for members from several checkpoints.
    """

    single: Figures
    single_rewritten: Figures
    fused: Figures
    deep_ensemble: Figures
    batch: int
    sequence: int
    fork: int

    @property
    def ratio(self) -> float:
        """Operations of the ensemble ÷ those of the single model."""
        return self.fused.flops / self.single.flops

    def to_json(self) -> dict[str, Any]:
        """The fields and the ratio as a JSON object."""
        return {**asdict(self), "ratio": self.ratio}


@dataclass(frozen=True)
class _Product:
    """``batch`` products [rows, inner] × [inner, columns]; ``reuse`` of them share one right operand."""

    batch: int
    rows: int
    inner: int
    columns: int
    reuse: int = 1

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.rows * self.inner * self.columns

    @property
    def numbers(self) -> int:
        """Numbers read and written."""
        activations = self.batch * self.rows * (self.inner + self.columns)
        return activations + self.batch // self.reuse * self.inner * self.columns


def estimate_cost(
    model: Any, plan: HeadPlan | None = None, *, batch: int = 1, sequence: int | None = None, precision: str = "fp32"
) -> Cost:
    """Estimate what fusing a model by a plan costs, without running anything.

    Args:
        model: a transformers classifier, a path or hub name of one, a bundle or its path, or an ``Architecture``.
        plan: the heads of each member; a bundle brings its own.
        batch: inputs per run B.
        sequence: tokens per input T, for text (default 128, or the longest the model reads); images have their own.
        precision: ``"fp32"``, ``"fp16"`` or ``"bf16"``: bytes per number.

    Returns:
        The figures, as counted in the exported graph (unrolled lowering: no padded heads).

    Raises:
        InputError: a batch or sequence that the model does not read, or no plan.
        PlanError: the plan was made for another shape of model.
    """
    if plan is not None and not isinstance(plan, HeadPlan):
        raise PlanError(f"plan is a {type(plan).__name__}; expected a HeadPlan, such as HeadPlan.load reads")
    architecture, plan, checkpoints, separate, forms = _subject(model, plan)
    plan.check_fits(architecture.family, architecture.layers, architecture.heads)
    if not isinstance(batch, int) or batch < 1:
        raise InputError(f"batch is {batch!r}; expected 1 or more")
    longest = architecture.max_sequence
    tokens = longest if architecture.modality == "image" else min(128, longest) if sequence is None else sequence
    if not 1 <= tokens <= longest:
        raise InputError(f"sequence is {sequence}; expected 1 to {longest} tokens")
    size = {"fp32": 4, "fp16": 2, "bf16": 2}.get(precision)
    if size is None:
        raise InputError(f"precision {cut(precision)} is unknown; expected fp32, fp16, bf16")
    whole = HeadPlan.all_heads(plan.family, plan.layers, plan.heads)
    plain = _figures(_Model(architecture, whole, 1, frozenset(), exact=False), batch, tokens, size)
    single = _figures(_Model(architecture, whole, 1, frozenset(), exact=True), batch, tokens, size)
    ensemble = _Model(architecture, plan, checkpoints, separate, exact=True, forms=forms)
    fused = _figures(ensemble, batch, tokens, size)
    return Cost(plain, single, fused, plain * len(plan.members), batch, tokens, ensemble.fork())


def fork_of(plan: HeadPlan) -> int:
    """First layer whose heads differ between members; the number of layers when none does."""
    same = [len({keep[layer] for keep in plan.members}) == 1 for layer in range(plan.layers)]
    return same.index(False) if False in same else plan.layers


def cheaper_forms(architecture: Architecture, plan: HeadPlan, forms: Forms, separate: Collection[str]) -> Forms:
    """Decide where adapters' updates of attention stay low-rank: where that is cheaper.

    In each layer, for query, key and value together and for the output projection, the products of one
    input (128 tokens, or what the model reads) are weighed in both forms: each takes as long as its operations or as
    its bytes in float32, :data:`OPERATIONS_PER_BYTE` for a byte, whichever is more (the roofline model, Williams et al.
    2009). So updates are kept in the fork layer, where one product of the shared input serves all members, and
    merged behind it, unless texts are so short that reading M weights takes longer than computing.

    Args:
        architecture: of the base model.
        plan: M members.
        forms: module → ``{"rank": r, "low_rank": …}``.
        separate: parts other than attention that members do not share.
    """
    chosen = dict(forms)
    tokens = architecture.max_sequence if architecture.modality == "image" else min(128, architecture.max_sequence)
    for layer in range(plan.layers):
        if len({keep[layer] for keep in plan.members}) > 1:
            continue  # no weight is shared that could be kept
        for projections in (PROJECTIONS[:3], PROJECTIONS[3:]):
            names = [f"layers.{layer}.attention.{projection}" for projection in projections]
            options = [
                {**chosen, **{name: {**chosen[name], "low_rank": kept} for name in names if name in chosen}}
                for kept in (False, True)
            ]
            merged, kept = (_time(architecture, plan, frozenset(separate), option, layer, tokens) for option in options)
            chosen = options[kept < merged]
    return chosen


def _time(
    architecture: Architecture, plan: HeadPlan, separate: frozenset[str], forms: Forms, layer: int, tokens: int
) -> float:
    """Time of one layer's attention of all tokens, in operations."""
    model = _Model(architecture, plan, 1, separate, exact=True, forms=forms)
    products = _attention(model, layer, _streams(model, layer), 1, tokens, pooled=False)
    return sum(max(product.flops, OPERATIONS_PER_BYTE * 4 * product.numbers) for product in products)


class _Model:
    """Shapes of a fused model: how many streams run, and how many groups each weight has."""

    def __init__(
        self,
        architecture: Architecture,
        plan: HeadPlan,
        checkpoints: int,
        separate: frozenset[str],
        exact: bool,
        forms: Forms | None = None,
    ) -> None:
        self.architecture = architecture
        self.plan = plan
        self.exact = exact
        self.members = len(plan.members)
        self.one_checkpoint = checkpoints == 1
        self.forms = forms or {}
        self._separate = separate

    def groups(self, part: str) -> int:
        """G of a part other than attention."""
        return self.members if part in self._separate else 1

    def linear_groups(self, module: str) -> int:
        """G of the weight of a linear map; an adapted MLP differs only where its updates are."""
        part = part_of(module)
        if part == "mlp" and self.forms:
            return self.members if module in self.forms else 1
        return self.groups(part)

    def bias_groups(self, module: str, reads_norm: bool) -> int:
        """G of its bias; updates leave it alone, unless the LayerNorm before it is folded into it."""
        folded = reads_norm and self.exact and self.architecture.pre_norm
        return 1 if module in self.forms and not folded else self.linear_groups(module)

    def same_heads(self, layer: int) -> bool:
        """Whether all members keep the same heads."""
        return len({keep[layer] for keep in self.plan.members}) == 1

    def rank(self, layer: int, projection: str) -> int:
        """Rank of an update of attention that is kept low-rank; 0 for none."""
        form = self.forms.get(f"layers.{layer}.attention.{projection}")
        return int(form["rank"]) if form and form["low_rank"] else 0

    def differs(self, layer: int, *projections: str) -> bool:
        """Whether adapters make one of these projections differ between members."""
        updated = (f"layers.{layer}.attention.{projection}" in self.forms for projection in projections)
        return self.members > 1 and any(updated)

    def apart(self, layer: int, projection: str) -> bool:
        """Whether each member has its own weight, updates merged."""
        return self.differs(layer, projection) and not self.rank(layer, projection)

    def joint(self, layer: int) -> bool:
        """Whether members that differ by adapters share one of the layer's projections."""
        if not self.same_heads(layer):
            return False
        kept = any(self.rank(layer, projection) for projection in PROJECTIONS)
        shared = not all(self.apart(layer, projection) for projection in PROJECTIONS)
        return kept or (self.differs(layer, *PROJECTIONS) and shared)

    def shared_heads(self, layer: int) -> bool:
        """Whether all members keep the same heads, with the same weights."""
        same = self.same_heads(layer) and not self.differs(layer, *PROJECTIONS)
        return self.members == 1 or (same and self.one_checkpoint)

    def distinct_heads(self, layer: int) -> int:
        """Heads of all members, equal ones once."""
        kept = [keep[layer] for keep in self.plan.members]
        alike = self.one_checkpoint and not self.differs(layer, *PROJECTIONS[:3])
        return len({head for heads in kept for head in heads}) if alike else sum(map(len, kept))

    def fork(self) -> int:
        """First layer that differs between members; see :class:`Cost`."""
        if not self.one_checkpoint:
            return 0
        layers = range(self.plan.layers)
        mlps = [
            max(self.linear_groups(f"layers.{layer}.mlp.{linear}") for linear in ("up", "down")) for layer in layers
        ]
        differs = (layer for layer in layers if not self.shared_heads(layer) or mlps[layer] > 1)
        return next(differs, self.plan.layers)


def _figures(model: _Model, batch: int, tokens: int, size: int) -> Figures:
    products = list(_products(model, batch, tokens))
    flops, numbers = sum(p.flops for p in products), sum(p.numbers for p in products)
    return Figures(flops, _parameters(model), numbers * size)


def _products(model: _Model, batch: int, tokens: int) -> Iterable[_Product]:
    """Every product of the graph, in order."""
    arch, d = model.architecture, model.architecture.width
    streams = model.groups("embeddings")
    if arch.modality == "image":
        patches = arch.max_sequence - arch.prefix_tokens
        pixels = arch.channels * arch.patch_height * arch.patch_width
        yield _Product(1, batch * patches, pixels, streams * d)
    else:
        streams = max(streams, model.groups("norms"))
    for layer in range(arch.layers):
        pooled = model.exact and layer == arch.layers - 1
        entering = max(streams, model.groups("norms")) if arch.pre_norm else streams
        yield from _attention(model, layer, entering, batch, tokens, pooled)
        streams = max(entering, 1 if model.shared_heads(layer) else model.members, model.groups("norms"))
        queries = 1 if pooled else tokens
        for linear, inner, columns in (("up", d, arch.mlp_width), ("down", arch.mlp_width, d)):
            groups = model.linear_groups(f"layers.{layer}.mlp.{linear}")
            yield from _linear(groups, streams, batch * queries, inner, columns)
            streams = max(streams, groups)
    if arch.pooling != "none":
        yield from _linear(model.groups("pooler"), streams, batch, d, d)
        streams = max(streams, model.groups("pooler"))
    yield from _linear(model.groups("classifier"), streams, batch, d, arch.classes)


def _linear(groups: int, streams: int, rows: int, inner: int, columns: int) -> Iterable[_Product]:
    """A linear map of S streams: one product, or one for each group."""
    if groups == 1:
        yield _Product(1, streams * rows, inner, columns)
    else:
        for _ in range(groups):
            yield _Product(1, rows, inner, columns)


def _attention(model: _Model, layer: int, streams: int, batch: int, tokens: int, pooled: bool) -> Iterable[_Product]:
    """Query, key, value, scores, mixture and output projection of one layer."""
    d, width = model.architecture.width, model.architecture.head_width
    counts = [len(keep[layer]) for keep in model.plan.members]
    queries = 1 if pooled else tokens
    joint = model.joint(layer)
    if joint and not (pooled and _absorbed_apart(model, layer)):
        yield from _joint_attention(model, layer, streams, batch, tokens, pooled)
        return
    if model.shared_heads(layer) and not joint:
        computed, outputs = [(streams * batch, counts[0])], [(streams * batch * queries, counts[0])]
    elif streams == 1 and not joint:  # the fork
        computed, outputs = [(batch, model.distinct_heads(layer))], [(batch * queries, count) for count in counts]
    else:
        computed, outputs = [(batch, count) for count in counts], [(batch * queries, count) for count in counts]
    for runs, heads in computed:
        if pooled:
            yield from _absorbed(model, runs, heads, tokens)
        else:
            kinds = 3 if len(computed) == 1 else 1  # stacked on one group, one by one for several
            for _ in range(3 // kinds):
                yield _Product(1, runs * tokens, d, kinds * heads * width)
    if not pooled:
        together = sum(runs * heads for runs, heads in computed)
        yield _Product(together, queries, width, tokens)
        yield _Product(together, queries, tokens, width)
    for rows, heads in outputs:
        yield _Product(1, rows, heads * width, d)


def _absorbed(model: _Model, runs: int, heads: int, tokens: int) -> Iterable[_Product]:
    """The first token's attention without keys and values of all tokens."""
    d, width = model.architecture.width, model.architecture.head_width
    yield _Product(1, runs, d, heads * width)  # query
    yield _Product(runs * heads, 1, width, d, reuse=runs)  # query through the key weights
    yield _Product(runs, heads, d, tokens)  # scores
    yield _Product(runs, heads, tokens, d)  # mixture of inputs
    yield _Product(runs * heads, 1, d, width, reuse=runs)  # through the value weights


def _absorbed_apart(model: _Model, layer: int) -> bool:
    """Whether absorbing a layer's keys takes members apart that differ by adapters."""
    kept = any(model.rank(layer, projection) for projection in PROJECTIONS[:3])
    return kept or model.differs(layer, *PROJECTIONS[:3])


def _joint_attention(
    model: _Model, layer: int, streams: int, batch: int, tokens: int, pooled: bool
) -> Iterable[_Product]:
    """Attention whose projections are shared, merged or updated, each for itself."""
    d, width = model.architecture.width, model.architecture.head_width
    heads, queries = len(model.plan.members[0][layer]), 1 if pooled else tokens
    copies = max(streams, model.members if model.differs(layer, *PROJECTIONS[:3]) else 1)
    if pooled:
        yield from _absorbed(model, streams * batch, heads, tokens)
    else:
        if not _absorbed_apart(model, layer):
            yield _Product(1, streams * batch * tokens, d, 3 * heads * width)
        else:
            for projection in PROJECTIONS[:3]:
                yield from _projection(model, layer, projection, streams, batch * tokens, d, heads * width)
        yield _Product(copies * batch * heads, tokens, width, tokens)
        yield _Product(copies * batch * heads, tokens, tokens, width)
    yield from _projection(model, layer, "output", copies, batch * queries, heads * width, d)


def _projection(
    model: _Model, layer: int, projection: str, streams: int, rows: int, inner: int, columns: int
) -> Iterable[_Product]:
    """A linear map of attention, with the updates that it keeps."""
    yield from _linear(model.members if model.apart(layer, projection) else 1, streams, rows, inner, columns)
    rank = model.rank(layer, projection)
    for _ in range(model.members if rank else 0):
        yield _Product(1, rows, inner, rank)
        yield _Product(1, rows, rank, columns)


def _parameters(model: _Model) -> int:
    """Numbers stored by the graph; the folds of the exact rewrites drop some vectors."""
    arch, d = model.architecture, model.architecture.width
    reader = "classifier" if arch.pooling == "none" else "pooler"
    total = _embedding_parameters(model) + (_norm(model, reader) if arch.pre_norm else 0)
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
        forked = not shared and model.exact and _streams(model, layer) == 1
        heads = kept[0] if shared else model.distinct_heads(layer) if forked else sum(kept)
        biases = (1 if model.exact else 3) if has_biases else 0
        output_biases = 1 if shared or (model.one_checkpoint and not (model.exact and has_biases)) else model.members
        total += heads * arch.head_width * (3 * d + biases)
        total += (kept[0] if shared else sum(kept)) * arch.head_width * d + output_biases * d
    if arch.pooling != "none":
        total += _linear_parameters(model, "pooler", d, d, reads_norm=True)
    return total + _linear_parameters(model, "classifier", d, arch.classes, reads_norm=arch.pooling == "none")


def _linear_parameters(model: _Model, module: str, inner: int, columns: int, reads_norm: bool = False) -> int:
    """Weight and bias of a linear map outside attention."""
    return inner * columns * model.linear_groups(module) + columns * model.bias_groups(module, reads_norm)


def _joint_parameters(model: _Model, layer: int, has_biases: bool) -> int:
    """Weights, updates and biases of attention whose projections are shared, merged or updated, each for itself."""
    arch, d = model.architecture, model.architecture.width
    inner = len(model.plan.members[0][layer]) * arch.head_width
    by_norm = {
        kind: model.members if arch.pre_norm and model.differs(layer, kind) else 1 for kind in ("query", "value")
    }
    by_value = max(by_norm["value"], model.members if model.differs(layer, "output") else 1)
    output_bias = d * (by_value if has_biases else 1)
    if layer == arch.layers - 1 and _absorbed_apart(model, layer):  # merged, a weight for each member
        return output_bias + model.members * (4 * d * inner + (inner if has_biases else 0))
    total = output_bias + (inner * by_norm["query"] if has_biases else 0)
    for projection in PROJECTIONS:
        rank = model.rank(layer, projection)
        total += d * inner * (model.members if model.apart(layer, projection) else 1)
        total += model.members * rank * (d + inner)
    return total


def _norm(model: _Model, reader: str) -> int:
    """Numbers of the affine map of a LayerNorm; none where it folds into the part that reads it."""
    groups = model.groups("norms")
    folds = model.exact and model.architecture.pre_norm
    if folds and (reader == "attention" or groups in (1, model.groups(reader))):
        return 0
    return 2 * model.architecture.width * groups


def _streams(model: _Model, layer: int) -> int:
    """S at the input of a layer's attention."""
    parts = ["embeddings", *(["norms"] if model.architecture.pre_norm or model.architecture.modality == "text" else [])]
    before = [1 if model.shared_heads(index) else model.members for index in range(layer)]
    before += [
        model.linear_groups(f"layers.{index}.mlp.{linear}") for index in range(layer) for linear in ("up", "down")
    ]
    if layer:
        parts += ["norms"]
    return max([*before, *(model.groups(part) for part in parts)])


def _embedding_parameters(model: _Model) -> int:
    arch, d = model.architecture, model.architecture.width
    groups = model.groups("embeddings")
    if arch.modality == "image":
        pixels = arch.channels * arch.patch_height * arch.patch_width
        return groups * (pixels * d + d + arch.max_sequence * d)
    # part_of files the LayerNorm behind the tables under the embeddings
    return groups * ((arch.vocabulary + arch.positions + arch.token_types) * d + 2 * d)


def _subject(model: Any, plan: HeadPlan | None) -> tuple[Architecture, HeadPlan, int, frozenset[str], Forms]:
    """Architecture, plan, number of checkpoints, separate parts and adapted modules of what the user named."""
    if isinstance(model, str | Path) and (Path(model) / MANIFEST).is_file():
        model = Bundle.open(model)
    if isinstance(model, Bundle):
        fusion: Mapping[str, Any] = model.manifest.get("fusion", {})
        separate: Sequence[str] = fusion.get("separate", [])
        own = plan or model.plan()
        architecture = Architecture.from_json(model.read_json(ARCHITECTURE))
        return architecture, own, fusion.get("checkpoints", 1), frozenset(separate), fusion.get("adapted", {})
    if plan is None:
        raise InputError("a model has no plan of its own; give one, as made by plan_heads")
    if isinstance(model, Architecture):
        return model, plan, 1, frozenset(), {}
    from . import architecture_of
    from .checkpoint import load_model

    loaded = load_model(model) if isinstance(model, str | Path) else model
    return architecture_of(loaded), plan, 1, frozenset(), {}
