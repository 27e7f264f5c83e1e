"""What a graph was compiled to: layers, and attention blocks that became one kernel.

TensorRT names a layer after what it computes. Attention that was fused is one layer named ``_gemm_mha_v2…``, or
``_gemv_mha_v1…`` for a single query; attention that was not is a chain of products and a softmax.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable

_LOGGED = re.compile(r"^Name: (.*?), LayerType: \w+, ")
_FUSED = re.compile(r"_(?:gemm|gemv)_mha_v\d+")
_PROFILE = re.compile(r"_myl(\d+)(?:_\d+)?$|\[profile (\d+)\]")


def layers_of_log(lines: Iterable[str]) -> list[str]:
    """Names of the compiled layers, from the builder's verbose log with detailed profiling verbosity."""
    return [found[1] for line in lines for part in line.splitlines() if (found := _LOGGED.match(part))]


def layers_of_inspector(information: str) -> list[str]:
    """Names of the compiled layers, from the JSON of the engine inspector."""
    layers = json.loads(information).get("Layers", [])
    return [layer["Name"] if isinstance(layer, dict) else str(layer) for layer in layers]


def by_profile(names: Iterable[str], profiles: int) -> tuple[tuple[int, int], ...]:
    """(layers, fused attention blocks) of every optimization profile, each of which is compiled anew."""
    layers, fused = Counter[int](), Counter[int]()
    for name in names:
        found = _PROFILE.search(name)
        profile = int(found[1] or found[2]) if found else 0
        profile = profile if profile < profiles else 0
        layers[profile] += 1
        fused[profile] += bool(_FUSED.search(name))
    return tuple((layers[profile], fused[profile]) for profile in range(profiles))
