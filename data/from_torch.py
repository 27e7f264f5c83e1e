"""Tensors of torch as arrays, recognised without importing torch."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import InputError


def is_tensor(value: Any) -> bool:
    """Whether a value is a tensor of torch."""
    return any(
        kind.__module__.partition(".")[0] == "torch" and kind.__name__ == "Tensor" for kind in type(value).__mro__
    )


def as_array(value: Any) -> np.ndarray:
    """A value as an array: a tensor from any device, without its gradient, bfloat16 as float32."""
    if not is_tensor(value):
        try:
            return np.asarray(value)
        except ValueError as error:
            raise InputError(
                "tensors are given as lists that are not equally long; expected arrays: pad the inputs to one length "
                "(padding=True of a tokenizer), or give the texts"
            ) from error
    plain = value.detach().cpu()
    return np.asarray((plain.float() if str(plain.dtype) == "torch.bfloat16" else plain).numpy())


def image_array(value: Any) -> np.ndarray:
    """Images of a tensor, [C, H, W] or [N, C, H, W] uint8 as torch has them, with their channels last.

    Grey ones lose their one channel, and whatever is shaped otherwise stays as it is.
    """
    array = as_array(value)
    if array.dtype != np.uint8 or array.ndim not in (3, 4) or array.shape[-3] not in (1, 3):
        return array
    if array.shape[-3] == 1:
        return np.squeeze(array, axis=-3)  # [H, W] or [N, H, W]
    return np.moveaxis(array, -3, -1)  # [H, W, 3] or [N, H, W, 3]
