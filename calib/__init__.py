"""Everything that looks at data: head importance, head plans and metrics.

``plan_heads`` is imported when first used: metrics and data readers need no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .planning import plan_heads

__all__ = ["plan_heads"]


def __getattr__(name: str) -> Any:
    if name != "plan_heads":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .planning import plan_heads

    return plan_heads
