"""A model that no family declares: its attention was found by running it (``tracing.blocks``).

The bundle of such a model holds, beside plan, calibration and processor, the *whole* original: its weights
(``fused.safetensors``, under the names of transformers), its configuration (``checkpoint.json``), and in
``config.json`` what this file describes. Members are made of these when the bundle is loaded; nothing of it is code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from ..data.spec import Modality
from ..errors import BundleError, cut, is_whole, literal
from .architecture import Architecture
from .schema import is_read, remedy
from .tasks import TASKS, ScoreActivation, Task

SCHEMA = 1

CHECKPOINT = "checkpoint.json"
"""The configuration of the original, as transformers writes it."""

MemberForm = Literal["sliced", "masked"]
"""How members leave heads out: their weights are cut away, or what they give is multiplied by 0."""

LACKS = "tuning, adapters, circuits, budgets, FP16, BF16 and INT8 graphs, engines, and an estimate of its cost"
"""What a traced bundle does without, in words."""


@dataclass(frozen=True)
class Block:
    """One attention block, as it was found.

    Attributes:
        output: name of the module that is its output projection; what that reads is the heads' outputs, side by side.
        owner: name of the module around the projections.
        heads: H of this block.
        groups: heads of keys and values: H, or fewer where several heads share them (grouped queries).
        head_width: of each head's output.
        inputs: names of the linear maps to queries, keys and values.
        stacked: whether these are one linear map.
    """

    output: str
    owner: str
    heads: int
    groups: int
    head_width: int
    inputs: tuple[str, ...]
    stacked: bool


@dataclass(frozen=True)
class Traced:
    """What a traced model is, and reads.

    Attributes:
        family: the ``model_type`` of its configuration.
        model_class: name of its class in transformers.
        form: of its members.
        modality: what it reads.
        classes: C.
        width: d of the vector that the classifier reads; 0 where that was not found, and there is no distance then.
        classifier: name of the module that is the classifier; empty where it was not found.
        inputs: names of its tensors.
        blocks: its attention blocks, in the order in which they run; a "layer" of its plan is one of these.
        vocabulary, positions, token_types, padding_token: of texts; ``positions`` is the longest text, tokens.
        channels, image_height, image_width: of images, pixels.
        shortest: of sounds, fewest samples.
        spectrogram: of sounds that are read as spectrograms, the shape of each; empty for waveforms and all else.
        task: what it answers.
        score_activation: of a model of one output.
        hidden_states: of a model that tags tokens, whether transformers hands out the vector of each token behind every
            block, as wide as the one that the classifier reads.
    """

    family: str
    model_class: str
    form: MemberForm
    modality: Modality
    classes: int
    width: int
    classifier: str
    inputs: tuple[str, ...]
    blocks: tuple[Block, ...]
    vocabulary: int = 0
    positions: int = 0
    token_types: int = 0
    padding_token: int = 0
    channels: int = 0
    image_height: int = 0
    image_width: int = 0
    task: Task = "classification"
    score_activation: ScoreActivation = "identity"
    shortest: int = 0
    spectrogram: tuple[int, ...] = ()
    hidden_states: bool = False

    @property
    def layers(self) -> int:
        """Number of attention blocks L."""
        return len(self.blocks)

    @property
    def heads(self) -> int:
        """Heads of the block that has most."""
        return max(block.heads for block in self.blocks)

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the model's inputs, in order."""
        return self.inputs

    @property
    def max_sequence(self) -> int:
        """Longest text, tokens; 0 for images and sounds, whose tokens nobody counted."""
        return self.positions

    @property
    def every_token(self) -> bool:
        """Whether it answers for each token."""
        return self.task == "tokens"

    @property
    def tapped_layers(self) -> range:
        """Layers whose tokens' vectors a distance may read: all but the last, behind which the members' last are."""
        return range(self.layers - 1 if self.hidden_states else 0)

    def to_json(self) -> dict[str, Any]:
        """The fields as a JSON object."""
        blocks = [{**asdict(block), "inputs": list(block.inputs)} for block in self.blocks]
        lists = {"inputs": list(self.inputs), "spectrogram": list(self.spectrogram), "blocks": blocks}
        return {"traced": SCHEMA, **asdict(self), **lists}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Traced:
        """Rebuild from :meth:`to_json`."""
        if not is_read(data.get("traced"), SCHEMA):
            raise BundleError(
                f"the bundle's config.json has traced = {cut(data.get('traced'))}; this hydrant reads {SCHEMA}; "
                f"{remedy(data.get('traced'), SCHEMA)}"
            )
        try:
            given = {name: value for name, value in data.items() if name != "traced"}
            blocks = tuple(_block(block) for block in given["blocks"])
            shape = tuple(given.get("spectrogram", ()))
            found = cls(**{**given, "inputs": tuple(given["inputs"]), "spectrogram": shape, "blocks": blocks})
            _check(found)
        except (TypeError, ValueError, KeyError) as error:
            raise BundleError(
                f"the bundle's config.json does not describe a traced model ({cut(error)}); make the bundle again with "
                "`hydrant fuse --traced`"
            ) from error
        return found


AnyArchitecture = Architecture | Traced
"""What a bundle's ``config.json`` describes: a model of a declared family, or a traced one."""


def read_architecture(data: Any) -> AnyArchitecture:
    """What a decoded ``config.json`` describes."""
    return Traced.from_json(data) if isinstance(data, Mapping) and "traced" in data else Architecture.from_json(data)


def _block(data: Mapping[str, Any]) -> Block:
    block = Block(**{**data, "inputs": tuple(data["inputs"])})
    sizes = block.heads, block.groups, block.head_width
    if not all(is_whole(size, 1) for size in sizes) or block.heads % block.groups:
        raise ValueError(f"a block has heads, groups and head_width {literal(sizes)}")
    if type(block.stacked) is not bool or not all(_is_name(name) for name in (block.output, *block.inputs)):
        raise ValueError(f"a block names {literal(block.output)} and {literal(block.inputs)}")
    if block.owner and not _is_name(block.owner):
        raise ValueError(f"a block has owner {literal(block.owner)}")
    return block


def _check(found: Traced) -> None:
    """Raise ValueError for a field of the wrong kind."""
    allowed = {
        "form": get_args(MemberForm),
        "modality": get_args(Modality),
        "task": TASKS if found.modality == "text" else [task for task in TASKS if task != "tokens"],
        "score_activation": get_args(ScoreActivation) if found.task == "score" else ("identity",),
    }
    for name, known in allowed.items():
        if getattr(found, name) not in known:
            raise ValueError(f"{name} is {literal(getattr(found, name))}")
    for name in ("family", "model_class", *(["classifier"] if found.classifier else [])):
        if not _is_name(getattr(found, name)):
            raise ValueError(f"{name} is {literal(getattr(found, name))}")
    least = {"classes": 1 if found.task == "score" else 2, **dict.fromkeys(_SIZES[found.modality], 1)}
    for field in fields(found):
        if str(field.type) == "int" and not is_whole(getattr(found, field.name), least.get(field.name, 0)):
            raise ValueError(f"{field.name} is {literal(getattr(found, field.name))}")
    shape = found.spectrogram
    if shape and not (found.modality == "audio" and len(shape) == 2 and all(is_whole(size, 1) for size in shape)):
        raise ValueError(f"spectrogram is {literal(shape)}")
    _check_hidden_states(found)
    if found.task == "score" and found.classes != 1:
        raise ValueError(f"it gives a score and has {found.classes} classes")
    if not found.blocks or not found.inputs or not all(_is_name(name) for name in found.inputs):
        raise ValueError(f"it has {len(found.blocks)} blocks and inputs {literal(found.inputs)}")


def _check_hidden_states(found: Traced) -> None:
    """Raise ValueError where vectors behind layers are claimed of a model that cannot have them."""
    handed = found.hidden_states
    if type(handed) is not bool or (handed and not (found.every_token and found.width)):
        raise ValueError(f"hidden_states is {literal(handed)}")


_SIZES: dict[str, tuple[str, ...]] = {
    "text": ("vocabulary", "positions"),
    "image": ("channels", "image_height", "image_width"),
    "audio": ("shortest",),
}
"""Sizes of which no model of a modality has 0."""


def _is_name(value: Any) -> bool:
    """Whether a value is a name, perhaps dotted, as of a class or a module."""
    return isinstance(value, str) and re.fullmatch(r"[\w-]+(\.[\w-]+)*", value) is not None
