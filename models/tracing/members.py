"""Members of a traced model: building, comparison with the original under hooks, running, reading from a bundle."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from ...bundle.head_plan import HeadPlan, Keep
from ...bundle.store import Bundle
from ...bundle.traced import CHECKPOINT, Block, MemberForm, Traced
from ...bundle.weights import stored_weights
from ...data.check_inputs import synthetic_batches
from ...errors import BundleError, HydrantError, InputError, PlanError, UnsupportedModelError, cut, literal
from .attention_blocks import HIDDEN_STATES, find_blocks, find_classifier, hands_out_layers, place_of
from .export_patches import transformers_code
from .slices import masked, silenced, sliced
from .traced_model import answers, described, rebuild

log = logging.getLogger(__name__)
FORMS: dict[MemberForm, Callable[[nn.Module, Sequence[Block], Keep], nn.Module]] = {"sliced": sliced, "masked": masked}
CHECKED = 12  # synthetic inputs on which members are compared with the original
CLOSE, NEAR, OF_EFFECT = 1e-5, 1e-4, 1e-2
"""Members agree if logits differ by less than ``CLOSE`` of the largest logit (at least 1); or by less than ``NEAR``
of it, and ``OF_EFFECT`` of what leaving the heads out changes."""


def with_defaults(architecture: Traced, inputs: Mapping[str, Tensor | None]) -> dict[str, Tensor]:
    """Inputs of a model, with defaults for a missing mask and missing token types."""
    names = architecture.input_names
    tensors = {name: tensor for name, tensor in inputs.items() if tensor is not None}
    first = tensors.get(names[0])
    if first is None or set(tensors) - {*names, "token_type_ids"}:
        listed = ", ".join(tensors) or "nothing"
        raise InputError(f"a {architecture.family} ensemble reads {', '.join(names)}, not {listed}")
    defaults = {"attention_mask": torch.ones_like, "token_type_ids": torch.zeros_like}
    return {name: tensors[name] if name in tensors else defaults[name](first) for name in names}


def run_member(
    member: nn.Module, architecture: Traced, inputs: Mapping[str, Tensor], layers: Sequence[int] = ()
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Logits [B, C] of one member, its classifier's input [B, d], and outputs of ``layers``; of tokens with T."""
    if not architecture.classifier:
        logits = member(**inputs).logits
        return logits, logits[..., :0], []
    seen: list[tuple[Tensor, Tensor]] = []

    def note(_: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> None:
        seen.append((arguments[0], output))

    with ExitStack() as hooks:
        hooks.callback(member.get_submodule(architecture.classifier).register_forward_hook(note).remove)
        answer = member(**inputs, **(HIDDEN_STATES if layers else {}))
    (read, rows), logits = seen[-1], answer.logits
    if read.ndim > logits.ndim:  # the classifier runs on every token; the model's logits are those of one
        place = place_of(rows, logits)[:, None, None].expand(-1, 1, read.shape[-1])
        read = read.gather(1, place)[:, 0]
    return logits, read, [answer.hidden_states[layer + 1] for layer in layers]


def trace(model: Any, processor: Any = None) -> Traced:
    """Inputs, attention blocks and classifier of a model; the form of its members is not known yet."""
    read = described(model, processor)
    if read.modality == "audio" and "attention_mask" in read.inputs and not _pads(model, read):
        read = replace(read, inputs=("input_values",))
    inputs = probes(read)
    logits = run(model, inputs[-1])
    with transformers_code(model) as another:
        if another and not _equal(run(model, inputs[-1]), logits):
            wrong = f"{type(model).__name__} cannot be traced: hydrant's form of it differs from transformers' own"
            raise UnsupportedModelError(f"{wrong}; install a version that hydrant was tested with")
    with torch.no_grad():
        blocks = find_blocks(model, inputs[-1])
        classifier, width = find_classifier(model, inputs[-1])
    handed = read.every_token and width > 0 and hands_out_layers(model, inputs[-1], blocks, width)
    return replace(read, blocks=blocks, classifier=classifier, width=width, hidden_states=handed)


def _pads(model: Any, read: Traced) -> bool:
    """Return True if padded and masked sounds have the same logits as single ones."""
    batch = probes(read)[-1]
    lengths = map(int, batch["attention_mask"].sum(dim=1))
    rows = ({name: each[row : row + 1, :size] for name, each in batch.items()} for row, size in enumerate(lengths))
    return all(_equal(one, run(model, alone)[0]) for one, alone in zip(run(model, batch), rows, strict=True))


def _equal(one: Tensor, other: Tensor) -> bool:
    """Return True if logits are the same up to rounding."""
    return float((one - other).abs().max()) <= CLOSE * max(1.0, float(other.abs().max()))


def probes(read: Traced, count: int = CHECKED) -> list[dict[str, Tensor]]:
    """Synthetic inputs, short ones: batches of several sizes, texts padded."""
    batches = synthetic_batches(replace(read, positions=min(read.positions, 23)), count, 0)
    batches = [batch for batch in batches if _size(batch) > 1] or batches
    return [{name: torch.from_numpy(array) for name, array in batch.items()} for batch in batches]


def _size(batch: Mapping[str, Any]) -> int:
    return len(next(iter(batch.values())))


def run(model: Any, inputs: Mapping[str, Tensor]) -> Tensor:
    """Logits of a model: [B, C], or of tokens [B, T, C]."""
    try:
        with torch.no_grad():
            logits = model(**inputs).logits
    except Exception as error:  # any exception of a class for unsupported inputs
        why = f"({type(error).__name__}: {cut(error, 120)}){_padding_remedy(model.config) * ('input_ids' in inputs)}"
        wrong = f"{type(model).__name__} cannot be traced: it does not run on {', '.join(inputs)} alone"
        raise UnsupportedModelError(f"{wrong} {why}") from error
    first = next(iter(inputs.values()))
    shape = [len(first), *([first.shape[1]] if answers(model).get("task") == "tokens" else []), model.config.num_labels]
    if not isinstance(logits, Tensor) or list(logits.shape) != shape or not bool(torch.isfinite(logits).all()):
        what = f"{type(model).__name__} cannot be traced: its logits are {list(getattr(logits, 'shape', []))}"
        raise UnsupportedModelError(f"{what}, or not finite; expected {shape}")
    return logits


def _padding_remedy(config: Any) -> str:
    """The fix for a text model without a valid padding token; empty for other models."""
    text = config.get_text_config()
    padding, end = getattr(text, "pad_token_id", None), getattr(text, "eos_token_id", None)
    if padding is not None and 0 <= padding < getattr(text, "vocab_size", 0):
        return ""
    return f"; its pad_token_id is {padding}: set it in config.json to its tokenizer's, or to eos_token_id ({end})"


def check_plan(plan: HeadPlan, architecture: Traced) -> None:
    """Reject a plan for another model."""
    plan.check_fits(architecture.family, architecture.layers, architecture.heads)
    for member, keep in enumerate(plan.members):
        for layer, (kept, block) in enumerate(zip(keep, architecture.blocks, strict=True)):
            if kept[-1] >= block.heads:
                where = f"member {member}, layer {layer} of the plan"
                raise PlanError(f"{where} keeps head {kept[-1]}, but that block has {block.heads} heads; use --traced")


def all_heads(architecture: Traced, members: int) -> HeadPlan:
    """The plan that keeps all heads."""
    keep = tuple(tuple(range(block.heads)) for block in architecture.blocks)
    return HeadPlan(architecture.family, architecture.layers, architecture.heads, (keep,) * members, "all")


def agreed(model: nn.Module, architecture: Traced, plan: HeadPlan) -> tuple[MemberForm, dict[str, Any]]:
    """The first form whose members agree with the original under hooks, with the measured differences."""
    batches = probes(architecture)
    expected, effect, scale = [], 0.0, 1.0
    for keep in plan.members:
        for batch in batches:
            whole = run(model, batch)
            with silenced(model, architecture.blocks, keep):
                expected.append(run(model, batch))
            effect = max(effect, float((expected[-1] - whole).abs().max()))
            scale = max(scale, float(expected[-1].abs().max()))
    reasons: dict[str, str] = {}
    for form, make in FORMS.items():
        try:
            worst = 0.0
            wanted = iter(expected)
            for keep in plan.members:
                member = make(model, architecture.blocks, keep).eval()
                for batch in batches:
                    with torch.no_grad():
                        logits = member(**batch).logits
                    worst = max(worst, float((logits - next(wanted)).abs().max()))
        except Exception as error:  # any exception of a wrongly sliced model
            reasons[form] = f"{type(error).__name__}: {cut(error, 160)}"
            continue
        if worst <= CLOSE * scale or (worst <= NEAR * scale and worst <= OF_EFFECT * effect):
            if reasons:
                log.info("members are %s: %s", form, "; ".join(f"{name}: {why}" for name, why in reasons.items()))
            return form, {"difference": worst, "effect": effect, "inputs": sum(map(_size, batches)), "not": reasons}
        reasons[form] = f"logits differ by {worst:.1e} from the original with these heads silenced"
    problems = "; ".join(f"{form} members do not work ({why})" for form, why in reasons.items())
    raise UnsupportedModelError(f"{architecture.model_class} cannot be traced: {problems}; nothing was written")


def members_of(model: nn.Module, architecture: Traced, plan: HeadPlan) -> list[nn.Module]:
    """The members of a plan, in the selected form; they share every tensor that they can."""
    return [FORMS[architecture.form](model, architecture.blocks, keep).eval() for keep in plan.members]


def load_original(bundle: Bundle, architecture: Traced) -> Any:
    """The whole model of a traced bundle, in evaluation mode, float32 on the CPU, after a run on one input."""
    remedy = "make the bundle again with `hydrant fuse --traced`, or install the versions that made it"
    plan = bundle.plan()
    if len(plan.members) != bundle.members or len(bundle.labels) != architecture.classes:
        what = f"bundle claims {bundle.members} members and {len(bundle.labels)} labels"
        raise BundleError(f"{what}, but has {len(plan.members)} and {architecture.classes}; {remedy}")
    weights, configuration = stored_weights(bundle, load_file), bundle.read_json(CHECKPOINT)
    try:
        check_plan(plan, architecture)
        model = rebuild(configuration, architecture, {name: tuple(each.shape) for name, each in weights.items()})
        model.load_state_dict(weights, strict=True)
        for block in architecture.blocks:
            model.get_submodule(block.output)
        model = model.to(torch.float32).requires_grad_(False)
        rebuilt = described(model)
        for name in ("modality", "channels", "image_height", "image_width", "shortest", "spectrogram"):
            one, other = getattr(architecture, name), getattr(rebuilt, name)
            if one != other:  # inputs may be huge
                raise ValueError(f"config.json says that {name} is {literal(one)}; its model has {literal(other)}")
        run(model, probes(architecture, 1)[0])  # some settings of a configuration are read only here
        return model
    except (HydrantError, RuntimeError, AttributeError, TypeError, ValueError, LookupError) as error:
        raise BundleError(f"the model of {bundle.path} cannot be made again ({cut(error, 200)}); {remedy}") from error
