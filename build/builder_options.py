"""Build options of TensorRT and TensorRT-RTX: flags, GPUs, and ranges of batch size and length."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Literal, get_args

from ..bundle.traced import AnyArchitecture
from ..data.audio import MOST_SECONDS
from ..engines.metadata import MODULES, Library, Profile, Shape
from ..errors import BackendError, InputError, check_choice, check_plain, cut, require

LARGEST = 65536  # largest size of an axis
SAMPLES = MOST_SECONDS * 48_000  # of the longest sound at its highest rate
RTX_TARGETS = ("8.0", "8.6", "8.9", "12.0")  # default GPUs of a TensorRT-RTX engine: Ampere to Blackwell
TURING = "7.5"  # TensorRT-RTX target without float32 products, which every graph has

SOUND = (80_000, 160_000)  # usual and largest number of samples: 5 and 10 seconds at 16 kHz

Hardware = Literal["none", "ampere+", "same"]


@dataclass(frozen=True, kw_only=True)
class Builder:
    """Options of both libraries.

    Attributes:
        strip_weights: omit the weights; they are read from the graph when the engine is loaded.
        refit: make the weights replaceable.
        optimization_level: search effort for fast kernels, from 0 (fast build) to 5 (fast engine).
        workspace: scratch memory that kernels may use, in MiB.
    """

    strip_weights: bool = False
    refit: bool = False
    optimization_level: int | None = None
    workspace: int | None = None

    def __post_init__(self) -> None:
        check_plain(self, optimization_level=(0, 5), workspace=(1, 2**20))


@dataclass(frozen=True, kw_only=True)
class TensorRT(Builder):
    """TensorRT, which compiles for the GPU of this machine.

    Attributes:
        hardware_compatibility: other GPUs that may run the engine: none, ampere+, or same. ``ampere+`` is Ampere and
            later; ``same`` is any GPU of the same compute capability.
        version_compatible: make an engine for the lean runtime of the building version, which runs beside later
            versions. It is ``tensorrt-lean``; hydrant's own backend runs the engine with the same version only.
        timing_cache: file of kernel timings, read if it exists, and written.
    """

    hardware_compatibility: Hardware = "none"
    version_compatible: bool = False
    timing_cache: str | Path | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("hardware_compatibility", self.hardware_compatibility, get_args(Hardware))


@dataclass(frozen=True, kw_only=True)
class TensorRTForRTX(Builder):
    """TensorRT for RTX: compiles ahead of time without a GPU, and finishes on the target GPU.

    Attributes:
        compute_capability: compute capability to compile for, such as 8.9; repeatable (default: Ampere to Blackwell).
            The default is 8.0, 8.6, 8.9 and 12.0.
    """

    compute_capability: Sequence[str] = ()


Options = TensorRT | TensorRTForRTX
LIBRARY_OPTIONS: dict[Library, type[Options]] = {"tensorrt": TensorRT, "tensorrt-rtx": TensorRTForRTX}


def library_of(library: str | Options) -> tuple[Library, Options]:
    """Name and options of a library."""
    for name, kind in LIBRARY_OPTIONS.items():
        if isinstance(library, kind):
            return name, library
        if library == name:
            return name, kind()
    raise BackendError(f"backend {cut(library)} cannot build engines; expected {' or '.join(LIBRARY_OPTIONS)}")


def open_library(name: str) -> ModuleType:
    """Import a library."""
    other = "; --backend tensorrt-rtx builds without a GPU" if name == "tensorrt" else ""
    module = require(MODULES[name], name, f"build engines{other}")
    numbers = tuple(int(part) for part in re.findall(r"\d+", module.__version__)[:2])
    if name == "tensorrt" and numbers < (10, 12):  # earlier versions need builder flags instead of strong types
        remedy = "pip install --upgrade 'hydrant-uq[tensorrt]'"
        raise BackendError(f"TensorRT {module.__version__} is installed; expected 10.12 or newer: {remedy}")
    return module


def compute_capabilities(trt: ModuleType, wanted: Sequence[str]) -> tuple[str, ...]:
    """Target GPUs of TensorRT-RTX: ``wanted``, or :data:`RTX_TARGETS`."""
    wanted = [wanted] if isinstance(wanted, str) else wanted
    supported = {name[2:-1] + "." + name[-1] for name in trt.ComputeCapability.__members__ if name.startswith("SM")}
    targets = ", ".join(sorted(supported - {TURING}, key=float))
    hints = {
        TURING: " (Turing) for hydrant's graphs, which need float32 products: use --backend onnxruntime-cuda",
        "9.0": " (Hopper, a data-centre GPU: use --backend tensorrt)",
    }
    for target in wanted:
        if target not in supported or target == TURING:
            problem = f"compute capability {cut(target)} is not a target of TensorRT-RTX {trt.__version__}"
            raise InputError(f"{problem}{hints.get(target, '')}; expected {targets}")
    return tuple(dict.fromkeys(wanted)) or tuple(target for target in RTX_TARGETS if target in supported)


@dataclass(frozen=True)
class Range:
    """Smallest, optimal and largest size of an axis."""

    least: int
    best: int
    most: int

    @classmethod
    def parse(cls, text: str | int, option: str, largest: int = LARGEST) -> Range:
        """Parse ``"min:opt:max"``, or one size for all three."""
        parts = str(text).split(":")
        sizes = [int(part) for part in parts if part.isascii() and part.isdecimal()]
        if len(sizes) != len(parts) or len(sizes) not in (1, 3):
            raise InputError(f"{option} is {cut(text)}; expected min:opt:max, such as 1:8:32, or one size")
        result = cls(*(sizes * 3 if len(sizes) == 1 else sizes))
        if not 1 <= result.least <= result.best <= result.most <= largest:
            raise InputError(f"{option} is {cut(text)}; expected min:opt:max from 1 to {largest}, increasing")
        return result


def optimization_profiles(
    architecture: AnyArchitecture, batch: Sequence[str | int], sequence: Sequence[str | int]
) -> tuple[Profile, ...]:
    """Optimization profiles of an engine, one for each batch range."""
    batches = [Range.parse(text, "--batch") for text in batch or ["1:8:32"]]
    if fixed := architecture.fixed_shape:
        if sequence:
            raise InputError("--sequence is for text and waveforms; this model's inputs have a fixed size; omit it")
        axes: list[list[Shape]] = [[fixed] * 3] * len(batches)
    else:
        sequences = _sequences(architecture, sequence)
        if len(sequences) not in (1, len(batches)):
            problem = f"{len(sequences)} --sequence ranges for {len(batches)} --batch ranges"
            raise InputError(f"{problem}; expected one, or as many")
        sequences *= 1 if len(sequences) > 1 else len(batches)
        axes = [[(each.least,), (each.best,), (each.most,)] for each in sequences]
    profiles: list[Profile] = []
    for one, own in zip(batches, axes, strict=True):
        least, best, most = ((size, *inner) for size, inner in zip((one.least, one.best, one.most), own, strict=True))
        profiles.append(dict.fromkeys(architecture.input_names, (least, best, most)))
    return tuple(profiles)


def _sequences(architecture: AnyArchitecture, sequence: Sequence[str | int]) -> list[Range]:
    """Ranges of tokens, or of samples: from the shortest sound, since padding would change its result."""
    if architecture.modality == "text":
        longest = architecture.max_sequence
        ranges = [Range.parse(text, "--sequence") for text in sequence]
        for one in ranges:
            if one.most > longest:
                raise InputError(f"--sequence reaches {one.most} tokens; this model reads at most {longest}")
        return ranges or [Range(*(min(size, longest) for size in (8, 64, 128)))]
    shortest = architecture.shortest
    ranges = [Range.parse(text, "--sequence", SAMPLES) for text in sequence]
    for one in ranges:
        if one.least != shortest:
            raise InputError(f"--sequence starts at {one.least} samples; expected the shortest sound, {shortest}")
    return ranges or [Range(shortest, *(max(shortest, size) for size in SOUND))]
