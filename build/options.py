"""What each library can be asked for when it builds an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from ..errors import BackendError, InputError, check_plain, cut, is_whole

Hardware = Literal["none", "ampere+", "same"]

LEVELS = range(6)

LARGEST_WORKSPACE = 2**20
"""MiB: a tebibyte."""


@dataclass(frozen=True, kw_only=True)
class Builder:
    """What both libraries can do.

    Attributes:
        strip_weights: leave the weights out; they are read from the graph when the engine is loaded.
        refit: make the weights replaceable.
        optimization_level: how long to search for fast kernels, from 0 (fast build) to 5 (fast engine).
        workspace: scratch memory that kernels may use, in MiB.
    """

    strip_weights: bool = False
    refit: bool = False
    optimization_level: int | None = None
    workspace: int | None = None

    def __post_init__(self) -> None:
        check_plain(self)
        if self.optimization_level is not None and not is_whole(self.optimization_level, most=LEVELS[-1]):
            raise InputError(f"optimization level is {cut(self.optimization_level)}; expected 0 to {LEVELS[-1]}")
        if self.workspace is not None and not is_whole(self.workspace, 1, LARGEST_WORKSPACE):
            raise InputError(f"workspace is {self.workspace!r:.60} MiB; expected 1 to {LARGEST_WORKSPACE}")


@dataclass(frozen=True, kw_only=True)
class TensorRT(Builder):
    """TensorRT, which compiles for the GPU of this machine.

    Attributes:
        hardware_compatibility: other GPUs that may run the engine: none, any from Ampere on (ampere+), or any of the
            same compute capability (same).
        version_compatible: make an engine for the lean runtime of the building version, which runs beside later
            versions. It is ``tensorrt-lean``; hydrant's own backend runs the engine with the same version only.
        timing_cache: file of kernel timings, read if it exists, and written.
    """

    hardware_compatibility: Hardware = "none"
    version_compatible: bool = False
    timing_cache: str | Path | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hardware_compatibility not in get_args(Hardware):
            known = ", ".join(get_args(Hardware))
            raise InputError(f"hardware compatibility is {cut(self.hardware_compatibility)}; expected {known}")


@dataclass(frozen=True, kw_only=True)
class TensorRTForRTX(Builder):
    """TensorRT for RTX, which compiles ahead of time, without a GPU, and finishes on the one it runs on.

    Attributes:
        compute_capability: GPU to compile for, by its compute capability, such as 8.9; default 8.0, 8.6, 8.9 and 12.0
            (Ampere to Blackwell).
    """

    compute_capability: Sequence[str] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        asked = self.compute_capability
        if not isinstance(asked, str | list | tuple) or not all(isinstance(each, str) for each in asked):
            raise InputError(f"compute capability is {cut(asked)}; expected a list of texts, such as ['8.9']")


LIBRARY_OPTIONS: dict[str, type[TensorRT | TensorRTForRTX]] = {"tensorrt": TensorRT, "tensorrt-rtx": TensorRTForRTX}
"""By the names that stand for a library with its defaults."""


def library_of(asked: str | TensorRT | TensorRTForRTX) -> tuple[str, TensorRT | TensorRTForRTX]:
    """A library's name and options."""
    if isinstance(asked, TensorRT | TensorRTForRTX):
        return next(name for name, kind in LIBRARY_OPTIONS.items() if isinstance(asked, kind)), asked
    if asked not in LIBRARY_OPTIONS:
        raise BackendError(f"backend {cut(asked)} builds no engines; expected {' or '.join(LIBRARY_OPTIONS)}")
    return asked, LIBRARY_OPTIONS[asked]()
