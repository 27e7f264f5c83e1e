"""What an ensemble costs: floating-point operations, parameters and bytes moved, from shapes alone.

The formulas follow the exported graph with every exact rewrite (``export.rewrites``): a shared trunk, distinct
heads once in the fork layer, only the first token in the last layer. Separate parts of several checkpoints are
taken to differ in every layer; the export finds out. Operations are those of matrix
products and convolutions, two for each multiply-add; everything else is linear in the activations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..bundle import ARCHITECTURE, MANIFEST, Bundle
from ..errors import InputError, PlanError, cut
from ..plan import HeadPlan
from .architecture import Architecture


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
        fork: first layer whose heads differ between members; the number of layers when none does, 0 for
            members from several checkpoints.
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
    architecture, plan, checkpoints, separate, tuned = _subject(model, plan)
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
    fused = _figures(_Model(architecture, plan, checkpoints, separate, exact=True, tuned=tuned), batch, tokens, size)
    fork = fork_of(plan) if checkpoints == 1 else 0
    return Cost(plain, single, fused, plain * len(plan.members), batch, tokens, fork)


def fork_of(plan: HeadPlan) -> int:
    """First layer whose heads differ between members; the number of layers when none does."""
    same = [len({keep[layer] for keep in plan.members}) == 1 for layer in range(plan.layers)]
    return same.index(False) if False in same else plan.layers


class _Model:
    """Shapes of a fused model: how many streams run, and how many groups each weight has."""

    def __init__(
        self,
        architecture: Architecture,
        plan: HeadPlan,
        checkpoints: int,
        separate: frozenset[str],
        exact: bool,
        tuned: bool = False,
    ) -> None:
        self.architecture = architecture
        self.plan = plan
        self.exact = exact
        self.members = len(plan.members)
        self.one_checkpoint = checkpoints == 1
        self.one_weight_each = self.one_checkpoint and not tuned
        self._separate = separate

    def groups(self, part: str) -> int:
        """G of a part other than attention."""
        return self.members if part in self._separate else 1

    def shared_heads(self, layer: int) -> bool:
        """Whether all members keep the same heads, with the same weights."""
        same = len({keep[layer] for keep in self.plan.members}) == 1
        return self.members == 1 or (same and self.one_checkpoint)

    def distinct_heads(self, layer: int) -> int:
        """Heads of all members, equal ones once; tuning makes a head of two members two, unless all share the layer."""
        kept = [keep[layer] for keep in self.plan.members]
        return len({head for heads in kept for head in heads}) if self.one_weight_each else sum(map(len, kept))


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
        for inner, columns in ((d, arch.mlp_width), (arch.mlp_width, d)):
            yield from _linear(model.groups("mlp"), streams, batch * queries, inner, columns)
        streams = max(streams, model.groups("mlp"))
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
    if model.shared_heads(layer):
        computed, outputs = [(streams * batch, counts[0])], [(streams * batch * queries, counts[0])]
    elif streams == 1:  # the fork
        computed, outputs = [(batch, model.distinct_heads(layer))], [(batch * queries, count) for count in counts]
    else:
        computed, outputs = [(batch, count) for count in counts], [(batch * queries, count) for count in counts]
    for runs, heads in computed:
        if pooled:
            yield _Product(1, runs, d, heads * width)  # query
            yield _Product(runs * heads, 1, width, d, reuse=runs)  # query through the key weights
            yield _Product(runs, heads, d, tokens)  # scores
            yield _Product(runs, heads, tokens, d)  # mixture of inputs
            yield _Product(runs * heads, 1, d, width, reuse=runs)  # through the value weights
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


def _parameters(model: _Model) -> int:
    """Numbers stored by the graph; the folds of the exact rewrites drop some vectors."""
    arch, d = model.architecture, model.architecture.width
    reader = "classifier" if arch.pooling == "none" else "pooler"
    mlp = (2 * d * arch.mlp_width + arch.mlp_width + d) * model.groups("mlp")
    total = _embedding_parameters(model) + (_norm(model, reader) if arch.pre_norm else 0)
    total += arch.layers * (_norm(model, "attention") + _norm(model, "mlp") + mlp)
    has_biases = arch.qkv_bias or (model.exact and arch.pre_norm)  # a folded LayerNorm brings its own
    for layer in range(arch.layers):
        kept = [len(keep[layer]) for keep in model.plan.members]
        shared = model.shared_heads(layer)
        forked = not shared and model.exact and _streams(model, layer) == 1
        heads = kept[0] if shared else model.distinct_heads(layer) if forked else sum(kept)
        biases = (1 if model.exact else 3) if has_biases else 0
        output_biases = 1 if shared or (model.one_checkpoint and not (model.exact and has_biases)) else model.members
        total += heads * arch.head_width * (3 * d + biases)
        total += (kept[0] if shared else sum(kept)) * arch.head_width * d + output_biases * d
    if arch.pooling != "none":
        total += (d * d + d) * model.groups("pooler")
    return total + (d * arch.classes + arch.classes) * model.groups("classifier")


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
    if layer:
        parts += ["mlp", "norms"]
    return max([*before, *(model.groups(part) for part in parts)])


def _embedding_parameters(model: _Model) -> int:
    arch, d = model.architecture, model.architecture.width
    groups = model.groups("embeddings")
    if arch.modality == "image":
        pixels = arch.channels * arch.patch_height * arch.patch_width
        return groups * (pixels * d + d + arch.max_sequence * d)
    # part_of files the LayerNorm behind the tables under the embeddings
    return groups * ((arch.vocabulary + arch.positions + arch.token_types) * d + 2 * d)


def _subject(model: Any, plan: HeadPlan | None) -> tuple[Architecture, HeadPlan, int, frozenset[str], bool]:
    """Architecture, plan, number of checkpoints, separate parts of what the user named, and whether it was tuned."""
    if isinstance(model, str | Path) and (Path(model) / MANIFEST).is_file():
        model = Bundle.open(model)
    if isinstance(model, Bundle):
        fusion: Mapping[str, Any] = model.manifest.get("fusion", {})
        separate: Sequence[str] = fusion.get("separate", [])
        own = plan or model.plan()
        architecture = Architecture.from_json(model.read_json(ARCHITECTURE))
        return architecture, own, fusion.get("checkpoints", 1), frozenset(separate), "tuned" in fusion
    if plan is None:
        raise InputError("a model has no plan of its own; give one, as made by plan_heads")
    if isinstance(model, Architecture):
        return model, plan, 1, frozenset(), False
    from . import architecture_of
    from .checkpoint import load_model

    loaded = load_model(model) if isinstance(model, str | Path) else model
    return architecture_of(loaded), plan, 1, frozenset(), False
