"""A model without a declared family: its attention was found by running it (``models.tracing.attention_blocks``).

Its bundle holds the whole original: weights (``fused.safetensors``, in transformers' names), ``checkpoint.json``, and
the description below in ``config.json``. Members are built on loading; nothing of it is code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from ..data.specs import Modality, convert
from ..errors import BundleError, cut
from ..tasks import ScoreActivation, TaskName
from .architecture import Architecture
from .strict_json import check_schema

SCHEMA = 1
CHECKPOINT = "checkpoint.json"  # the original's transformers configuration
Name = Annotated[str, Meta(pattern=r"^[\w-]+(\.[\w-]+)*\Z")]  # of a class or module
NameOrNone = Annotated[str, Meta(pattern=r"^([\w-]+(\.[\w-]+)*)?\Z")]
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Some = Annotated[int, Meta(ge=1, le=2**31 - 1)]
MemberForm = Literal["sliced", "masked"]  # heads cut out of the weights, or outputs multiplied by 0
LACKS = "tuning, adapters, circuits, budgets, FP16, BF16 and INT8 graphs, engines, and an estimate of its cost"


@dataclass(frozen=True)
class Block:
    """An attention block: ``groups`` heads of keys and values; ``output`` projects the concatenated heads."""

    output: Name
    owner: NameOrNone
    heads: Some
    groups: Some
    head_width: Some
    inputs: tuple[Name, ...]
    stacked: bool

    def __post_init__(self) -> None:
        if self.heads % self.groups:
            raise ValueError(f"{self.heads} heads in {self.groups} groups")


@dataclass(frozen=True)
class Traced:
    """A traced model and its inputs; docs/reference/bundle.md describes the fields (``config.json``)."""

    family: Name
    model_class: Name
    form: MemberForm
    modality: Modality
    classes: int
    width: Count
    classifier: NameOrNone
    inputs: Annotated[tuple[Name, ...], Meta(min_length=1)]
    blocks: Annotated[tuple[Block, ...], Meta(min_length=1)]
    vocabulary: Count = 0
    positions: Count = 0
    token_types: Count = 0
    padding_token: Count = 0
    channels: Count = 0
    image_height: Count = 0
    image_width: Count = 0
    task: TaskName = "classification"
    score_activation: ScoreActivation = "identity"
    shortest: Count = 0
    spectrogram: tuple[Count, ...] = ()
    hidden_states: bool = False
    is_declared: ClassVar[Literal[False]] = False

    @property
    def layers(self) -> int:
        """Number of attention blocks L."""
        return len(self.blocks)

    @property
    def heads(self) -> int:
        """Heads of the block that has most."""
        return max(self.heads_of_layers)

    @property
    def heads_of_layers(self) -> tuple[int, ...]:
        """Heads of each block, [L]."""
        return tuple(block.heads for block in self.blocks)

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

    @property
    def layer_taps(self) -> tuple[str, ...]:
        """Vectors of a layer that a distance may read."""
        return ("token",) if self.hidden_states else ()

    @property
    def last_taps(self) -> tuple[str, ...]:
        """The end of the name of each member's last vector, if that was found."""
        return ("",) if self.width else ()

    def to_json(self) -> dict[str, Any]:
        """The fields as a JSON object."""
        return json.loads(json.dumps({"traced": SCHEMA, **asdict(self)}))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Traced:
        """Rebuild from :meth:`to_json`."""
        file = "config.json of the traced bundle (make it again with `hydrant fuse --traced`)"
        check_schema({"schema": data.get("traced")}, SCHEMA, file)
        found = convert(data, cls, file)
        known = {"traced", *(field.name for field in fields(cls))}
        if wrong := (set(data) - known) | {name for name, fits in _fits(found).items() if not fits}:
            name = min(wrong)
            raise BundleError(f"{file} has {name} = {cut(data.get(name))}, which no such model has")
        return found


AnyArchitecture = Architecture | Traced


def read_architecture(data: Any) -> AnyArchitecture:
    """The model that a decoded ``config.json`` describes."""
    return Traced.from_json(data) if isinstance(data, Mapping) and "traced" in data else Architecture.from_json(data)


def _fits(found: Traced) -> dict[str, bool]:
    """Whether fields fit each other, by the name of one of them."""
    score, text, tokens = found.task == "score", found.modality == "text", found.task == "tokens"
    spectrogram = found.modality == "audio" and len(found.spectrogram) == 2 and min(found.spectrogram) > 0
    return {
        "task": text or not tokens,
        "score_activation": score or found.score_activation == "identity",
        "classes": (found.classes == 1) if score else found.classes > 1,
        "spectrogram": not found.spectrogram or spectrogram,
        "hidden_states": not found.hidden_states or (tokens and found.width > 0),
        **{name: getattr(found, name) > 0 for name in SIZES[found.modality]},
    }


SIZES: dict[str, tuple[str, ...]] = {
    "text": ("vocabulary", "positions"),
    "image": ("channels", "image_height", "image_width"),
    "audio": ("shortest",),
}
