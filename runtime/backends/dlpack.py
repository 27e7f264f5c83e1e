"""Exchange of GPU tensors with other libraries through DLPack (0.8), without copies."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ...errors import InputError, cut

CUDA = 2  # DLPack's number for memory of an NVIDIA GPU
_KINDS = "iuf"  # NumPy's kinds at DLPack's codes
_NAME = b"dltensor"


class _Tensor(ctypes.Structure):
    _fields_: ClassVar = [
        ("data", ctypes.c_void_p), *((name, ctypes.c_int32) for name in ("device_type", "device_id", "ndim")),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        *((name, ctypes.POINTER(ctypes.c_int64)) for name in ("shape", "strides")), ("offset", ctypes.c_uint64),
    ]  # fmt: skip


class _Managed(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter)]
_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype, _get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, _Destructor]

# a destructor's object is no longer referenced, so these take its bare address
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)

_exported: dict[int, tuple[Any, ...]] = {}
"""Objects that live until their consumer is done: address → managed tensor, its shape, its array."""


@dataclass(frozen=True)
class Borrowed:
    """A tensor of another library, readable while this object lives; ``capsule`` owns its memory."""

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    capsule: object


def borrow(name: str, tensor: Any, stream: int, device: int = CUDA) -> Borrowed:
    """Read a tensor through DLPack, without a copy."""
    if not hasattr(tensor, "__dlpack__") or not hasattr(tensor, "__dlpack_device__"):
        raise InputError(f"{name} is a {type(tensor).__name__}; expected a tensor on the GPU that exports DLPack")
    place = tuple(int(number) for number in tensor.__dlpack_device__())
    if place != (device, 0):
        raise InputError(f"{name} is on DLPack device {place}; expected {(device, 0)}, the first GPU")
    try:
        capsule = tensor.__dlpack__(stream=stream) if device == CUDA else tensor.__dlpack__()
        view = ctypes.cast(_get_pointer(capsule, _NAME), ctypes.POINTER(_Managed)).contents.tensor
    except Exception as error:  # whatever the other library raises
        raise InputError(f"{name} cannot be read through DLPack: {cut(error, 200)}; detach it, or copy it") from error
    shape = tuple(view.shape[axis] for axis in range(view.ndim))
    if view.code >= len(_KINDS) or view.lanes != 1 or view.bits % 8:
        raise InputError(f"{name} has DLPack type {(view.code, view.bits, view.lanes)}; expected int64 or float32")
    if view.strides and not _contiguous(shape, [view.strides[axis] for axis in range(view.ndim)]):
        raise InputError(f"{name} is not contiguous; expected row-major order: copy it first")
    return Borrowed((view.data or 0) + view.offset, shape, np.dtype(f"{_KINDS[view.code]}{view.bits // 8}"), capsule)


def check_borrowed(tensors: Mapping[str, Borrowed], dtypes: Mapping[str, np.dtype[Any]]) -> None:
    """Reject tensors of wrong names, types or shapes."""
    shown = {name: f"{each.dtype} {list(each.shape)}" for name, each in tensors.items()}
    if {name: each.dtype for name, each in tensors.items()} != dtypes:
        raise InputError(f"the inputs are {shown}; expected { ({name: str(kind) for name, kind in dtypes.items()}) }")
    leading = {each.shape[: 2 if len(each.shape) == 2 else 1] for each in tensors.values()}
    if len(leading) != 1 or 0 in leading.pop():
        raise InputError(f"the inputs are {shown}; expected the same batch and sequence length (at least 1) in all")


class DeviceArray:
    """A float32 array on a device, for DLPack and ``__cuda_array_interface__``; its last reader releases it."""

    dtype = np.dtype(np.float32)

    def __init__(self, address: int, shape: tuple[int, ...], release: Callable[[], object], device: int = CUDA) -> None:
        self.shape = shape
        self.address, self._release, self._device = address, release, device

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": self.shape, "typestr": self.dtype.str, "data": (self.address, False), "version": 3}

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device, 0

    def __dlpack__(self, *, stream: int | None = None, **_: Any) -> object:
        """A DLPack capsule; the array is complete, so no stream has to wait."""
        shape = (ctypes.c_int64 * len(self.shape))(*self.shape)
        managed = _Managed()
        managed.tensor = _Tensor(
            self.address, self._device, 0, len(self.shape), _KINDS.index("f"), 32, 1,
            ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64)), None, 0,
        )  # fmt: skip
        managed.deleter = _delete
        address = ctypes.addressof(managed)
        _exported[address] = (managed, shape, self)
        return _new_capsule(address, _NAME, _destroy)

    def __del__(self) -> None:
        self._release()


def _contiguous(shape: tuple[int, ...], strides: list[int]) -> bool:
    expected = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    return 0 in shape or all(size == 1 or a == b for size, a, b in zip(shape, strides, expected, strict=True))


def _forget_unread(capsule: int) -> None:
    if _is_valid(capsule, _NAME):  # no consumer took the tensor
        _exported.pop(_pointer_of(capsule, _NAME), None)


_delete = _Deleter(lambda managed: _exported.pop(ctypes.addressof(managed.contents), None))
_destroy = _Destructor(_forget_unread)
