"""What the last `hydrant verify` of a bundle found, and whether it speaks of the bundle's files as they are now."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import BundleError, cut, short
from .store import ENGINES, Bundle

REPORT = "reports/verify.json"

REMEDY = "run `hydrant verify` again"

LONGEST = 200
"""Characters that are repeated of what a report says."""

NAMES = re.compile(r"[a-z0-9-]{1,40} [a-z0-9]{1,20}")
"""A backend and its precision; another name could read as several, or as the end of what passed."""


@dataclass(frozen=True)
class Verification:
    """The last verification.

    Attributes:
        passed: backends whose gates all held, each with its precision, as ``"onnxruntime fp32"``.
        failed: the others.
        reference: backend that they were held against.
        inputs: what they were asked, in words.
        current: whether the files of the bundle are those that were verified; engines that came later do not count.
    """

    passed: tuple[str, ...]
    failed: tuple[str, ...]
    reference: str
    inputs: str
    current: bool

    @classmethod
    def of(cls, bundle: Bundle) -> Verification | None:
        """Read it; ``None`` where the bundle has none."""
        if not bundle.has(REPORT):
            return None
        found = bundle.read_json(REPORT)
        try:
            named = [(f"{each['backend']} {each['precision']}", each["passed"]) for each in found["backends"]]
            now, then = bundle.digests(), found["files"]
            known = {name: digest for name, digest in now.items() if name in then or not name.startswith(f"{ENGINES}/")}
            told = _line(found["reference"]), _line(found["inputs"])
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise BundleError(f"malformed ({type(error).__name__}: {cut(error)}); {REMEDY}") from error
        if wrong := next((name for name, _ in named if not NAMES.fullmatch(name)), ""):
            raise BundleError(
                f"malformed ({_line(wrong)!r} is no backend with its precision, as 'onnxruntime fp32' is); {REMEDY}"
            )
        if not all(isinstance(held, bool) for _, held in named):
            raise BundleError(f"malformed (a verdict that is neither true nor false); {REMEDY}")
        passed, failed = (tuple(name for name, held in named if held is verdict) for verdict in (True, False))
        return cls(passed, failed, *told, current=then in (now, known))


def _line(value: object) -> str:
    """What the report of a stranger's bundle says, as it may stand within a line."""
    return "".join(sign if sign.isprintable() else "?" for sign in short(str(value), LONGEST))
