"""Traced models, without a declared family: running them located the attention (``models.tracing.attention_blocks``).

A traced bundle contains the whole original: weights (``fused.safetensors``, in transformers' names),
``checkpoint.json``, and the description below in ``config.json``. Members are built on loading; it contains no code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from ..data.specs import Count, InputSpec, convert
from ..errors import BundleError, cut
from ..tasks import ScoreActivation, TaskName
from .architecture import Architecture
from .strict_json import check_schema

SCHEMA = 1
CHECKPOINT = "checkpoint.json"  # the original's transformers configuration
Name = Annotated[str, Meta(pattern=r"^[\w-]+(\.[\w-]+)*\Z")]  # of a class or module
NameOrNone = Annotated[str, Meta(pattern=r"^([\w-]+(\.[\w-]+)*)?\Z")]
Some = Annotated[int, Meta(ge=1, le=2**31 - 1)]
MemberForm = Literal["sliced", "masked"]  # heads cut out of the weights, or outputs multiplied by 0
LACKS = "adapters, circuits, budgets, and an estimate of its cost"


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


@dataclass(frozen=True, kw_only=True)
class Traced(InputSpec):
    """A traced model and its inputs; docs/reference/bundle.md describes the fields (``config.json``)."""

    family: Name
    model_class: Name
    form: MemberForm
    classes: int
    width: Count
    classifier: NameOrNone
    inputs: Annotated[tuple[Name, ...], Meta(min_length=1)]
    blocks: Annotated[tuple[Block, ...], Meta(min_length=1)]
    positions: Count = 0
    task: TaskName = "classification"
    score_activation: ScoreActivation = "identity"
    hidden_states: bool = False
    is_declared: ClassVar[Literal[False]] = False

    @property
    def layers(self) -> int:
        """Number of attention blocks L."""
        return len(self.blocks)

    @property
    def heads(self) -> int:
        """Largest number of heads in a block."""
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
        """Longest text in tokens; 0 for images and sounds."""
        return self.positions

    @property
    def tapped_layers(self) -> range:
        """Layers whose token vectors a distance may read: all but the last, which ``last_taps`` covers."""
        return range(self.layers - 1 if self.hidden_states else 0)

    @property
    def layer_taps(self) -> tuple[str, ...]:
        """Vectors of a layer that a distance may read."""
        return ("token",) if self.hidden_states else ()

    @property
    def last_taps(self) -> tuple[str, ...]:
        """End of the name of each member's last vector, if tracing located it."""
        return ("",) if self.width else ()

    def to_json(self) -> dict[str, Any]:
        """The fields as a JSON object."""
        return json.loads(json.dumps({"traced": SCHEMA, **asdict(self)}))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Traced:
        """Rebuild from :meth:`to_json`."""
        file = "config.json of the traced bundle (make it again with `hydrant fuse --traced`)"
        check_schema({"schema": data.get("traced")}, SCHEMA, file)
        architecture = convert(data, cls, file)
        names = {"traced", *(field.name for field in fields(cls))}
        if wrong := (set(data) - names) | {name for name, fits in _fits(architecture).items() if not fits}:
            name = min(wrong)
            raise BundleError(f"{file} has {name} = {cut(data.get(name))}, which no traced model has")
        return architecture


AnyArchitecture = Architecture | Traced


def read_architecture(data: Any) -> AnyArchitecture:
    """The model that a decoded ``config.json`` describes."""
    return Traced.from_json(data) if isinstance(data, Mapping) and "traced" in data else Architecture.from_json(data)


def _fits(model: Traced) -> dict[str, bool]:
    """Consistency checks between fields, by the name of one field."""
    score, text, tokens = model.task == "score", model.modality == "text", model.task == "tokens"
    spectrogram = model.modality == "audio" and len(model.spectrogram) == 2 and min(model.spectrogram) > 0
    return {
        "task": text or not tokens,
        "score_activation": score or model.score_activation == "identity",
        "classes": (model.classes == 1) if score else model.classes > 1,
        "spectrogram": not model.spectrogram or spectrogram,
        "hidden_states": not model.hidden_states or (tokens and model.width > 0),
        **{name: getattr(model, name) > 0 for name in SIZES[model.modality]},
    }


TEXT, IMAGE, SOUND = ("vocabulary", "positions"), ("channels", "image_height", "image_width"), ("shortest",)
SIZES: dict[str, tuple[str, ...]] = {"text": TEXT, "image": IMAGE, "audio": SOUND}
