"""Discovery of a model's attention by running it: its heads, and the linear maps that belong to them.

The first linear map behind a softmax should be the output projection, and the maps before it, in the same module, those
to queries, keys and values. A check confirms it: with the attention weights of one head set to 0, the input of the
output projection must be 0 in that head's columns and unchanged in all others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ...bundle.traced import Block
from ...errors import UnsupportedModelError

Inputs = Mapping[str, Tensor]
TOLERANCE = 1e-5  # of heads' outputs, relative to the largest


@dataclass(frozen=True)
class Event:
    """A linear map of some name that ran, or attention: its weights' or heads' shape, and the calls before it."""

    name: str
    shape: tuple[int, ...] = ()
    calls: int = 0


def widths(module: nn.Module) -> tuple[int, int]:
    """Inputs and outputs of a linear map."""
    rows, columns = module.get_parameter("weight").shape
    return (columns, rows) if isinstance(module, nn.Linear) else (rows, columns)


def find_blocks(model: nn.Module, inputs: Inputs) -> tuple[Block, ...]:
    """The attention blocks of a model, in the order in which they run; one that runs several times counts once."""
    events: list[Event] = []
    with _linear_maps(model, lambda name, *_: events.append(Event(name))), torch.no_grad(), _Attention(events.append):
        model(**inputs)
    blocks: dict[str, Block] = {}
    since: list[str] = []
    for event, after in zip(events, [*events[1:], Event("")], strict=True):
        if event.name:
            since.append(event.name)
            continue
        if after.name and after.name not in blocks:
            block = _block(model, inputs, event, after.name, since)
            if block is not None:
                blocks[after.name] = block
        since = []
    if not blocks:
        has_attention = any(not event.name for event in events)
        what = "its attention heads were not understood" if has_attention else "it has no attention"
        wrong = f"{type(model).__name__} cannot be traced: {what}"
        raise UnsupportedModelError(f"{wrong}; expected heads that end in an output projection")
    return tuple(blocks.values())


def _block(model: nn.Module, inputs: Inputs, attention: Event, output: str, before: Sequence[str]) -> Block | None:
    """The block of one softmax and the linear map behind it; ``None`` if no axis of the weights counts heads."""
    width = widths(model.get_submodule(output))[0]
    for axis in [-3, -2, *range(-len(attention.shape), -3)] if len(attention.shape) >= 4 else []:
        heads = attention.shape[axis]
        if width % heads == 0 and _is_head_axis(model, inputs, attention.calls, axis, output, heads):
            return _with_inputs(model, output, heads, width // heads, before)
    return None


def _with_inputs(model: nn.Module, output: str, heads: int, head_width: int, before: Sequence[str]) -> Block:
    """A block with the linear maps that look like its queries, keys and values."""
    outputs = {name: widths(model.get_submodule(name))[1] for name in before}
    owner = output.rpartition(".")[0]
    wide = [name for name, size in outputs.items() if size in (heads * head_width, 3 * heads * head_width)]
    if not wide:
        return Block(output, owner, heads, heads, head_width, (), False)
    owner = wide[-1].rpartition(".")[0]
    mine = [name for name in outputs if name.rpartition(".")[0] == owner]
    if len(mine) == 1 and outputs[mine[0]] == 3 * heads * head_width:
        return Block(output, owner, heads, heads, head_width, (mine[0],), True)
    reads = {name: widths(model.get_submodule(name))[0] for name in mine}
    if heads > 1 and reads[wide[-1]] != head_width:
        mine = [name for name in mine if reads[name] != head_width]  # the others read one head, as WavLM's gates do
    mine = [name for name in mine if outputs[name] % head_width == 0 and outputs[name] <= heads * head_width]
    groups = min(outputs[name] for name in mine) // head_width
    return Block(output, owner, heads, groups if heads % groups == 0 else heads, head_width, tuple(mine), False)


def _is_head_axis(model: nn.Module, inputs: Inputs, call: int, axis: int, output: str, heads: int) -> bool:
    """Return True if an axis of attention weights counts heads: without one head, only its columns change."""
    chosen = heads - 1
    whole, without = (_read_by(model, inputs, output, silent) for silent in (None, (call, axis, chosen)))
    if whole is None or without is None or whole.shape != without.shape:
        return False
    whole, without = (states.unflatten(-1, (heads, -1)) for states in (whole, without))
    largest = float(whole.abs().max())
    others = [head for head in range(heads) if head != chosen]
    changed = float((whole[..., others, :] - without[..., others, :]).abs().max()) if others else 0.0
    left = float(without[..., chosen, :].abs().max())
    return left <= TOLERANCE * largest < float(whole[..., chosen, :].abs().max()) and changed <= TOLERANCE * largest


class _Reached(Exception):  # noqa: N818 - not an error: it ends a run early
    """The output projection has read its input."""


def _read_by(model: nn.Module, inputs: Inputs, output: str, silent: tuple[int, int, int] | None) -> Tensor | None:
    """First input of the output projection after an attention call, perhaps with one head's weights at 0."""
    states: list[Tensor] = []
    mode = _Attention(list[Event]().append, silent)
    first = -1 if silent is None else silent[0]

    def read(_: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        if mode.calls > first:
            states.append(arguments[0].clone())
            raise _Reached

    handle = model.get_submodule(output).register_forward_pre_hook(read)
    try:
        with torch.no_grad(), mode:
            model(**inputs)
    except _Reached:
        return states[0]
    finally:
        handle.remove()
    return None


class _Attention(TorchFunctionMode):
    """Records every softmax of more than two axes and every fused attention; may silence one head of one call."""

    def __init__(self, note: Callable[[Event], None], silent: tuple[int, int, int] | None = None) -> None:
        super().__init__()
        self.calls = 0
        self._note, self._silent = note, silent

    def __torch_function__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call and record."""
        out = function(*args, **(kwargs or {}))
        name = getattr(function, "__name__", "")
        if name in ("softmax", "scaled_dot_product_attention") and isinstance(out, Tensor) and out.ndim >= 3:
            self._note(Event("", tuple(out.shape), self.calls))
            if self._silent is not None and self._silent[0] == self.calls:
                out = out.clone()
                out.select(self._silent[1], self._silent[2]).zero_()
            self.calls += 1
        return out


@contextmanager
def _linear_maps(model: nn.Module, note: Callable[[str, Tensor], None]) -> Iterator[None]:
    """Record every linear map that runs within the context, with its output."""
    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D":  # GPT-2's, transposed
                hook = partial(lambda name, _, __, output: note(name, output), name)
                hooks.callback(module.register_forward_hook(hook).remove)
        yield


def find_classifier(model: nn.Module, inputs: Inputs) -> tuple[str, int]:
    """Name and input width of the linear map that returns the logits; ``("", 0)`` without one."""
    last: list[tuple[str, Tensor]] = []
    with _linear_maps(model, lambda name, output: last.append((name, output))), torch.no_grad():
        logits = model(**inputs).logits
    for name, output in reversed(last):
        if output.shape[-1] == logits.shape[-1] and output.ndim in (2, 3) and len(output) == len(logits):
            one = output.ndim > logits.ndim
            rows = output[torch.arange(len(output)), place_of(output, logits)] if one else output
            if torch.equal(rows, logits):
                return name, widths(model.get_submodule(name))[0]
    return "", 0


def place_of(rows: Tensor, logits: Tensor) -> Tensor:
    """The token whose logits are the model's, for a classifier that runs on every token: [B, T, C], [B, C] → [B]."""
    return (rows - logits[:, None]).abs().amax(dim=-1).argmin(dim=1)


HIDDEN_STATES = {"output_hidden_states": True}


def hands_out_layers(model: nn.Module, inputs: Mapping[str, Tensor], blocks: Sequence[Block], width: int) -> bool:
    """Return True if a token classifier's hidden state n + 1 is the output of block n, for each token."""
    real = inputs["attention_mask"].bool()
    for place, block in enumerate(blocks):
        spoil = model.get_submodule(block.output).register_forward_pre_hook(
            lambda _, arguments: (torch.full_like(arguments[0], torch.nan),)
        )
        try:
            with torch.no_grad():
                states = tuple(model(**inputs, **HIDDEN_STATES).hidden_states)
        except Exception:  # any exception of a model without hidden states, or that rejects NaN
            return False
        finally:
            spoil.remove()
        if any(not isinstance(each, Tensor) or each.shape != (*real.shape, width) for each in states):
            return False
        finite = [torch.isfinite(each[real]) for each in states]
        expected = [{layer <= place} for layer in range(len(blocks) + 1)]
        if [{bool(each.all()), bool(each.any())} for each in finite] != expected:
            return False
    return True
