"""Export of traced models ÷ plain `torch.onnx.export(dynamo=True)` of the same members: time and peak memory.

    python benchmarks/traced_export.py --model DeBERTa-base -o benchmarks/results/traced-export-deberta-base-cpu.json

Weights are random; three members keep half of the heads in the last third of the layers. Both exports run in turn, each
in a fresh process: ``hydrant.export_onnx`` of the bundle, and the plain exporter on one member after another, whose
times are added without loading. Time is CPU time, since other programs may run. Memory is the peak above the imports,
÷ the bytes of the bundle's weights, which members share up to the fork.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import harness
import hydrant
import numpy as np
from hydrant.evaluation.peak_memory import peak_bytes

DEBERTA = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
           "vocab_size": 128_100, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 256,
           "norm_rel_ebd": "layer_norm", "share_att_key": True, "max_relative_positions": -1, "type_vocab_size": 0,
           "position_biased_input": False}  # fmt: skip
QWEN3 = {"hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
         "head_dim": 128, "intermediate_size": 3072, "vocab_size": 151_936, "pad_token_id": 0}  # fmt: skip
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {"DeBERTa-base": ("DebertaV2", DEBERTA), "Qwen3-0.6B": ("Qwen3", QWEN3)}


def make(folder: str, name: str, layers: int) -> None:
    """Write a bundle of three random members."""
    import torch
    import transformers
    from hydrant.models.tracing.members import trace

    torch.manual_seed(0)
    stem, settings = SHAPES[name]
    config = getattr(transformers, f"{stem}Config")(**settings | ({"num_hidden_layers": layers} if layers else {}))
    model = getattr(transformers, f"{stem}ForSequenceClassification")(config).eval()
    described, rng, members = trace(model), np.random.default_rng(0), []
    for _ in range(harness.MEMBERS):
        keep = []
        for place, block in enumerate(described.blocks):
            count = block.groups if place < 2 * described.layers // 3 else block.groups // 2
            groups = rng.choice(block.groups, count, replace=False)  # heads that share their keys stay together
            keep.append(tuple(np.flatnonzero(np.isin(np.arange(block.heads) * block.groups // block.heads, groups))))
        members.append(tuple(tuple(map(int, kept)) for kept in keep))
    plan = hydrant.HeadPlan(described.family, described.layers, described.heads, tuple(members), "random")
    hydrant.save_bundle(hydrant.fuse(model, plan, traced=True), folder, tensors_only=True)


def export(folder: str, plain: bool) -> dict[str, float]:
    """CPU seconds of an export, and its peak memory above the imports."""
    import onnxruntime  # noqa: F401
    import onnxscript  # noqa: F401
    import torch
    from hydrant.export.traced_graph import LOGITS  # noqa: F401
    from hydrant.models.tracing.members import load_original, members_of, probes

    bundle = hydrant.Bundle.open(folder)
    traced, imports, seconds = bundle.any_architecture(), peak_bytes(), 0.0
    if not plain:
        began = time.process_time()
        hydrant.export_onnx(bundle)
        return {"seconds": time.process_time() - began, "memory": peak_bytes() - imports}
    inputs = probes(traced)[-1]
    axes = {name: {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC} for name in inputs}
    for member in members_of(load_original(bundle, traced), traced, bundle.plan()):
        target, began = Path(folder, "plain.onnx"), time.process_time()
        torch.onnx.export(member, (), target, kwargs=inputs, dynamic_shapes=axes, dynamo=True, verbose=False)
        seconds += time.process_time() - began
    return {"seconds": seconds, "memory": peak_bytes() - imports}


def child(*words: Any) -> dict[str, float]:
    """A step in a fresh process."""
    done = subprocess.run([sys.executable, __file__, "--step", *map(str, words)], stdout=subprocess.PIPE, check=True)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--model", choices=list(SHAPES), default="DeBERTa-base", help="shape of the model")
    parser.add_argument("--layers", type=int, default=0, help="fewer layers than the model's")
    parser.add_argument("--rounds", type=int, default=3, help="exports of each kind")
    parser.add_argument("--work", type=Path, help="folder of the bundle, to keep it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.work or Path(temporary)) / options.model
        if not folder.is_dir():
            child("make", folder, options.model, options.layers)
        size = (folder / "fused.safetensors").stat().st_size
        rounds = [{kind: child(kind, folder) for kind in ("hydrant", "plain")} for _ in range(options.rounds)]
    middle = {
        kind: {key: statistics.median(one[kind][key] for one in rounds) for key in ("seconds", "memory")}
        for kind in rounds[0]
    }
    facts = {"bytes": size, "time": middle["hydrant"]["seconds"] / middle["plain"]["seconds"]}
    facts |= {f"memory of {kind}": each["memory"] / size for kind, each in middle.items()}
    print(json.dumps(facts, indent=1))
    harness.save(options.output, {**harness.about(), **facts, "rounds": rounds})


if __name__ == "__main__":
    if sys.argv[1:2] == ["--step"]:
        kind, folder, *rest = sys.argv[2:]
        result = make(folder, rest[0], int(rest[1])) if kind == "make" else export(folder, kind == "plain")
        print(json.dumps(result))
    else:
        main()
