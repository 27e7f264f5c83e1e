"""Inputs that a model is warmed up with, and that ``perf_analyzer`` sends."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from typing import Any

from ...bundle.traced import AnyArchitecture
from .config import string_data
from .tensors import TensorSpec

SHORT = "how do i say thank you in another language"

LONG = " ".join([SHORT, "and what is the weather like over there at this time of the year", SHORT])

TOKENS = 16
"""Of ready tensors."""


def image_bytes(architecture: AnyArchitecture) -> bytes:
    """A grey picture as a PNG file, of the size that the model reads."""
    from PIL import Image

    content = io.BytesIO()
    Image.new("RGB", (architecture.image_width, architecture.image_height), (128, 128, 128)).save(content, "PNG")
    return content.getvalue()


def warm_files(architecture: AnyArchitecture) -> dict[str, bytes]:
    """Raw inputs as Triton's warm-up reads them: file → data."""
    if architecture.modality == "image":
        return {"image": string_data(image_bytes(architecture))}
    return {"short": string_data(SHORT.encode()), "long": string_data(LONG.encode())}


def perf_data(inputs: Sequence[TensorSpec], architecture: AnyArchitecture, pairs: bool) -> bytes | None:
    """The file of ``perf_analyzer --input-data``: raw inputs, or ready tensors of :data:`TOKENS` tokens.

    Ready images are ``None``: it sends zeros of their fixed shape by itself.
    """
    names = {spec.name for spec in inputs}
    rows: list[dict[str, Any]]
    if "image" in names:
        rows = [{"image": {"b64": base64.b64encode(image_bytes(architecture)).decode()}}]
    elif "text" in names:
        rows = [{"text": [text], **({"text_pair": [SHORT]} if pairs else {})} for text in (SHORT, LONG)]
    elif architecture.modality == "image":
        return None
    else:
        one = {spec.name: int(spec.name == "attention_mask") for spec in inputs}
        rows = [{name: {"content": [value] * TOKENS, "shape": [TOKENS]} for name, value in one.items()}]
    return (json.dumps({"data": rows}, indent=1) + "\n").encode()
