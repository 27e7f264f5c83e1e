"""A traced model with some of its heads: cut out of its weights, or silenced; copies share all other parameters."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from ...bundle.head_plan import Keep
from ...bundle.traced import Block
from ...errors import InputError


def sliced(model: nn.Module, blocks: Sequence[Block], keep: Keep) -> nn.Module:
    """A copy whose projections have only the kept heads; ``models.tracing.members.agreed`` checks it."""
    member = shared_copy(model)
    for block, kept in zip(blocks, keep, strict=True):
        if len(kept) < block.heads:
            _slice(member, block, kept)
    return member


def masked(model: nn.Module, blocks: Sequence[Block], keep: Keep) -> nn.Module:
    """A copy whose output projections read 0 from removed heads; saves no time, but always agrees with the original."""
    member = shared_copy(model)
    for block, kept in zip(blocks, keep, strict=True):
        if len(kept) < block.heads:
            columns = _flags(block, kept).repeat_interleave(block.head_width)  # [H·d_h]
            _put(member, block.output, Gated(member.get_submodule(block.output), columns))
    return member


def _flags(block: Block, kept: Sequence[int]) -> Tensor:
    """1 for the kept heads and 0 for the others: [H]."""
    flags = torch.zeros(block.heads)
    flags[list(kept)] = 1
    return flags


def silenced(model: nn.Module, blocks: Sequence[Block], keep: Keep) -> AbstractContextManager[None]:
    """Turn the original into one member within the context: output projections read 0 from removed heads."""
    return gated_heads(model, blocks, [_flags(block, kept)[None] for block, kept in zip(blocks, keep, strict=True)])


@contextmanager
def gated_heads(model: nn.Module, blocks: Sequence[Block], gates: Sequence[Tensor]) -> Iterator[None]:
    """Multiply every head's output, before the output projection, by its gate [B or 1, H]."""
    with ExitStack() as hooks:
        for block, own in zip(blocks, gates, strict=True):
            hook = partial(_gated, block, own)
            hooks.callback(model.get_submodule(block.output).register_forward_pre_hook(hook).remove)
        yield


def _gated(block: Block, own: Tensor, _: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor]:
    states = args[0]
    if states.shape[0] % len(own):
        wrong = f"{block.output} mixes the examples of a batch, so heads cannot be scored"
        raise InputError(f"{wrong}; choose method 'random'")
    by_head = states.reshape(len(own), -1, block.heads, block.head_width)
    return ((by_head * own.to(states)[:, None, :, None]).reshape(states.shape),)


def shared_copy(model: nn.Module) -> nn.Module:
    """A copy of the modules with the very same tensors."""
    return copy.deepcopy(model, {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())})


def own_copy(model: nn.Module) -> nn.Module:
    """A copy in float32 on the CPU, with tensors of its own."""
    return copy.deepcopy(model, {id(tensor): _own(tensor) for tensor in (*model.parameters(), *model.buffers())})


def _own(tensor: Tensor) -> Tensor:
    copied = tensor.detach().to("cpu", torch.float32 if tensor.is_floating_point() else tensor.dtype, copy=True)
    return nn.Parameter(copied, requires_grad=False) if isinstance(tensor, nn.Parameter) else copied


class Gated(nn.Module):
    """A linear map that reads its input times a gate."""

    def __init__(self, linear: nn.Module, columns: Tensor) -> None:
        super().__init__()
        self.linear = linear
        self.register_buffer("gate", columns, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """[…, inputs] → […, outputs]."""
        return self.linear(x * self.get_buffer("gate"))


def _slice(model: nn.Module, block: Block, kept: Sequence[int]) -> None:
    """Cut one block of a copy, in place."""
    if not block.inputs:
        raise InputError(f"{block.owner} has no linear maps to queries, keys and values that could be cut")
    share = block.heads // block.groups
    groups = sorted({head // share for head in kept})
    if len(groups) * share != len(kept):
        raise InputError(f"heads {list(kept)} of {block.owner} share keys with removed heads; keep groups of {share}")
    columns, total = _columns(kept, block.head_width), block.heads * block.head_width
    _put(model, block.output, _linear(model.get_submodule(block.output), inputs=columns))
    for name in block.inputs:
        linear = model.get_submodule(name)
        size = linear.get_parameter("weight").shape[0 if isinstance(linear, nn.Linear) else 1]
        if block.stacked:
            rows = torch.cat([columns + part * total for part in range(3)])
        else:
            rows = columns if size == total else _columns(groups, block.head_width)
        _put(model, name, _linear(linear, outputs=rows))
    owner = model.get_submodule(block.owner)
    _recount(owner, block, len(kept), len(groups))
    for scope in (owner, model.get_submodule(block.owner.rpartition(".")[0])):
        _cut_tables(scope, block.heads, kept)


def _columns(heads: Sequence[int], width: int) -> Tensor:
    """Indices of some heads' columns."""
    return torch.cat([torch.arange(head * width, (head + 1) * width) for head in heads])


def _linear(linear: nn.Module, outputs: Tensor | None = None, inputs: Tensor | None = None) -> nn.Module:
    """A linear map with some of its outputs or inputs."""
    smaller = copy.copy(linear)
    smaller._parameters = dict(linear._parameters)
    usual = isinstance(linear, nn.Linear)
    weight, bias = linear.get_parameter("weight").data, linear._parameters.get("bias")
    for rows, axis in ((outputs, 1 - usual), (inputs, int(usual))):
        weight = weight if rows is None else weight.index_select(axis, rows)
    if bias is not None and outputs is not None:
        smaller._parameters["bias"] = nn.Parameter(bias.data[outputs].contiguous(), requires_grad=False)
    smaller._parameters["weight"] = nn.Parameter(weight.contiguous(), requires_grad=False)
    sizes = weight.shape if usual else weight.shape[::-1]
    for name, size in zip(("out_features", "in_features") if usual else ("nf", "nx"), sizes, strict=True):
        if hasattr(smaller, name):
            setattr(smaller, name, int(size))
    return smaller


def _recount(owner: nn.Module, block: Block, heads: int, groups: int) -> None:
    """Update a module's own head counts."""
    total = block.heads * block.head_width
    for name, value in list(vars(owner).items()):
        if type(value) is not int:
            continue
        counts = "head" in name and not any(word in name for word in ("size", "dim", "group"))
        if counts and value == block.heads and not ("key_value" in name and block.groups != block.heads):
            setattr(owner, name, heads)
        elif counts and value == block.groups:
            setattr(owner, name, groups)
        elif value == total and ("size" in name or name in ("embed_dim", "inner_dim", "dim", "n_embd")):
            setattr(owner, name, heads * block.head_width)


def _cut_tables(scope: nn.Module, heads: int, kept: Sequence[int]) -> None:
    """Cut tables of relative positions, which have one column for each head."""
    for name, table in list(scope.named_parameters()):
        if table.ndim == 2 and table.shape[1] == heads and "relative" in name and "bias" in name:
            parent, _, leaf = name.rpartition(".")
            module = scope.get_submodule(parent)
            module._parameters[leaf] = nn.Parameter(table.data[:, list(kept)].contiguous(), requires_grad=False)
            if type(getattr(module, "num_attention_heads", None)) is int:
                module.num_attention_heads = len(kept)  # type: ignore[assignment]


def _put(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(parent), leaf, module)


def differing(members: Sequence[Keep]) -> Mapping[tuple[int, ...], list[int]]:
    """Members by their head counts in each block; members of one shape differ only in their weights."""
    by_shape: dict[tuple[int, ...], list[int]] = {}
    for member, keep in enumerate(members):
        by_shape.setdefault(tuple(map(len, keep)), []).append(member)
    return by_shape
