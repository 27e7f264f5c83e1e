"""What an engine is bound to: the platform it was built on, and the GPU."""

from __future__ import annotations

import ctypes
import platform


def platform_name() -> str:
    """Operating system and processor, such as ``"linux-x86_64"``: an engine runs on no other."""
    return f"{platform.system()}-{platform.machine()}".lower()


def this_gpu() -> str | None:
    """Compute capability of the first NVIDIA GPU, such as ``"8.9"``, from the driver; ``None`` without one."""
    try:
        driver = ctypes.CDLL("nvcuda.dll" if platform.system() == "Windows" else "libcuda.so.1")
    except OSError:
        return None
    device, numbers = ctypes.c_int(0), (ctypes.c_int(0), ctypes.c_int(0))
    failed = driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0)
    for number, attribute in zip(numbers, (75, 76), strict=True):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, MINOR
        failed = failed or driver.cuDeviceGetAttribute(ctypes.byref(number), attribute, device)
    return None if failed else f"{numbers[0].value}.{numbers[1].value}"


NO_GPU = "there is no NVIDIA GPU with its driver on this machine"
