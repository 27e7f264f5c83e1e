"""The logger that TensorRT's libraries are given, and the place in their source that their messages name."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

_PLACE = re.compile(
    r"^\s*\S+\.(?:cpp|h|cu):\d+:\s*"  # file.cpp:12:
    r"|\s*\bIn \w+ at \S+?:\d+"  # In execute at file.cpp:12
    r"|\[?\b\w+\.(?:cpp|h|cu)::\w+::\d+\]\s*"  # [file.cpp::execute::12]
)


def make_logger(trt: ModuleType, add: Callable[[str, str], None]) -> Any:
    """An ``ILogger`` of the library; it must outlive what it is given to."""

    class Logger(trt.ILogger):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, text: str) -> None:
            add(severity.name, text)

    return Logger()


def without_place(text: str) -> str:
    """A message without the place in the library's source."""
    return _PLACE.sub("", text).strip()
