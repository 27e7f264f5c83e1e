"""The precisions that a bundle's graphs come in."""

from __future__ import annotations

from typing import Literal, get_args

Precision = Literal["fp32", "fp16", "bf16", "int8"]

PRECISIONS: tuple[str, ...] = get_args(Precision)
