"""The platform and GPU that an engine is bound to, and the logger of TensorRT's libraries."""

from __future__ import annotations

import ctypes
import platform
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

NO_GPU = "there is no NVIDIA GPU with its driver on this machine"

_PLACE = re.compile(
    r"^\s*\S+\.(?:cpp|h|cu):\d+:\s*"  # file.cpp:12:
    r"|\s*\bIn \w+ at \S+?:\d+"  # In execute at file.cpp:12
    r"|\[?\b\w+\.(?:cpp|h|cu)::\w+::\d+\]\s*"  # [file.cpp::execute::12]
)


def platform_name() -> str:
    """Operating system and processor, such as ``"linux-x86_64"``; engines are bound to it."""
    return f"{platform.system()}-{platform.machine()}".lower()


def this_gpu() -> str | None:
    """Compute capability of the first NVIDIA GPU, such as ``"8.9"``, from the driver; ``None`` without one."""
    try:
        driver = ctypes.CDLL("nvcuda.dll" if platform.system() == "Windows" else "libcuda.so.1")
    except OSError:
        return None
    device, major, minor = ctypes.c_int(0), ctypes.c_int(0), ctypes.c_int(0)
    failed = driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0)
    for number, attribute in ((major, 75), (minor, 76)):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, MINOR
        failed = failed or driver.cuDeviceGetAttribute(ctypes.byref(number), attribute, device)
    return None if failed else f"{major.value}.{minor.value}"


def make_logger(trt: ModuleType, add: Callable[[str, str], None]) -> Any:
    """``ILogger`` of the library; it must outlive its users."""

    class Logger(trt.ILogger):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, text: str) -> None:
            add(severity.name, text)

    return Logger()


def without_place(text: str) -> str:
    """Message without its position in the library's source."""
    return _PLACE.sub("", text).strip()
