"""Census of tracing: every classifier of texts, tokens, images and audio in transformers, as a tiny random model.

    python benchmarks/census.py            # examine classes missing in docs/reference/census.md, and update its tables

Each class is fused with ``traced=True``, exported in FP32, FP16 and INT8, and run by ONNX Runtime. In every precision
each member is compared with the original model whose output projections are 0 for the pruned heads; ``WRONG`` is an
accepted graph whose outputs differ. TensorRT-RTX compiles the FP16 graph.
"""

from __future__ import annotations

import copy
import json
import logging
import random
import re
import signal
import tempfile
import textwrap
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import hydrant
import numpy as np
import onnxruntime
import torch
import transformers
from census_models import build
from hydrant.data.check_inputs import synthetic_batches
from hydrant.data.images import KIND
from hydrant.data.images import KINDS as IMAGES
from hydrant.errors import HydrantError
from hydrant.export import export
from hydrant.export.graph_form import GraphForm
from hydrant.metrics.gates import TOLERANCES
from hydrant.models.tracing.members import probes, trace
from hydrant.models.tracing.traced_model import prepared, traceable
from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES,
    MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
)
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

PAGE = harness.ROOT / "docs" / "reference" / "census.md"

LARGEST_DIFFERENCE = 1e-4  # of a member's probability in FP32


class Late(Exception):  # noqa: N818 - a timeout
    """Time limit of a class exceeded."""


def half(architecture: Any) -> hydrant.HeadPlan:
    """Plan of two members with all heads in the first half of the blocks, then half of them in whole groups."""
    draw, members = random.Random(0), []
    for _ in range(2):
        keep = []
        for place, block in enumerate(architecture.blocks):
            share = block.heads // block.groups
            count = block.groups if place < len(architecture.blocks) // 2 else max(1, block.groups // 2)
            groups = sorted(draw.sample(range(block.groups), count))
            keep.append(tuple(group * share + head for group in groups for head in range(share)))
        members.append(tuple(keep))
    return hydrant.HeadPlan(architecture.family, architecture.layers, architecture.heads, tuple(members), "random")


def without(model: Any, blocks: Any, keep: Any) -> Any:
    """Copy of the original with output projections 0 for the pruned heads."""
    pruned = copy.deepcopy(model)
    for block, heads in zip(blocks, keep, strict=True):
        linear = pruned.get_submodule(block.output)
        columns = linear.weight.data if isinstance(linear, torch.nn.Linear) else linear.weight.data.T
        for head in set(range(block.heads)) - set(heads):
            columns[:, head * block.head_width : (head + 1) * block.head_width] = 0
    return pruned


def through(model: Any, folder: Path) -> dict[str, Any]:
    """Fuse, export and compare one model; return its form, blocks, heads, and the results of each precision."""
    original, model = model, prepared(copy.deepcopy(model))
    architecture = trace(model)
    plan = half(architecture)
    ensemble = hydrant.fuse(model, plan, traced=True)
    bundle = hydrant.save_bundle(ensemble, folder, None, tensors_only=True)
    originals = [without(original, architecture.blocks, keep) for keep in plan.members]

    def compared(path: Path) -> float:
        """Largest difference of the members' probabilities from the originals'."""
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        worst = 0.0
        for batch in probes(architecture):
            ours = session.run(["member_probabilities"], {name: tensor.numpy() for name, tensor in batch.items()})[0]
            real = batch["attention_mask"].numpy() > 0 if architecture.every_token else slice(None)
            for member, single in enumerate(originals):
                with torch.no_grad():
                    expected = single(**batch).logits.softmax(-1).numpy()
                difference = np.abs(ours[:, member] - expected)[real].max()
                worst = max(worst, float(difference if np.isfinite(difference) else np.inf))
        return worst

    block = architecture.blocks[-1]
    worst = compared(hydrant.export_onnx(bundle, form=GraphForm(member_outputs=True)))
    facts = {"form": ensemble.architecture.form, "blocks": architecture.layers, "heads": block.heads,
             "groups": block.groups, "distance": architecture.width > 0, "difference": worst}  # fmt: skip
    if worst > LARGEST_DIFFERENCE:
        return {**facts, "result": "WRONG"}
    return {**facts, "result": "passes", **lower(bundle, architecture, compared)}


def lower(bundle: hydrant.Bundle, architecture: Any, compared: Callable[[Path], float]) -> dict[str, str]:
    """Cells of FP16, INT8 and TensorRT-RTX."""

    def attempt(step: Callable[[], str]) -> str:
        try:
            return step()
        except Late:
            raise
        except Exception as error:
            fault = "no" if isinstance(error, HydrantError) else f"FAULT: {type(error).__name__}"
            problem = str(error).partition(";")[0].replace(str(bundle.path), "the bundle")
            return _short(f"{fault}: {problem}")

    def exported(precision: str, data: Any = None) -> str:
        report = export(bundle, precision, GraphForm(member_outputs=True), data=data)
        worst = compared(report.path)
        # the mean of two members passed the gate, so one may differ twice as much
        cell = f"{worst:.0e}" if worst <= 2 * TOLERANCES[precision].probability else f"WRONG: {worst:.0e}"
        return f"{cell}, {100 * report.quantised.share:.0f} %" if report.quantised else cell

    def compiled() -> str:
        facts = hydrant.build_engine(bundle, "tensorrt-rtx", "fp16").facts
        fused, blocks = min(facts.fused), facts.attention_blocks
        reasons = "; ".join(facts.unfusable) if fused < blocks else ""
        return _short(f"{fused}/{blocks}{': ' * bool(reasons)}{reasons}")

    fp16 = attempt(lambda: exported("fp16"))
    int8 = attempt(lambda: exported("int8", ready(architecture, bundle.path.parent / "ready.npz")))
    return {"fp16": fp16, "int8": int8, "rtx": attempt(compiled)}


def ready(architecture: Any, path: Path) -> Path:
    """File of 128 synthetic inputs, which calibrate and check INT8."""
    batches = synthetic_batches(architecture, 128, 5)
    longest = np.max([batch[name].shape for batch in batches for name in batch], axis=0)[1:]
    padded = {
        name: [np.pad(row, [(0, most - size) for most, size in zip(longest, row.shape, strict=True)])
               for batch in batches for row in batch[name]]
        for name in batches[0]
    }  # fmt: skip
    arrays = {name: np.stack(rows) for name, rows in padded.items()}
    count = len(arrays[architecture.input_names[0]])
    labels = np.where(arrays["attention_mask"] > 0, 0, -100) if architecture.every_token else np.zeros(count, int)
    np.savez(path, **arrays, y=labels)
    return path


def cpp(kind: str, model_type: str) -> str:
    """What the C++ runner reads for a class of transformers with the processor that transformers names for it."""
    if kind == "audio":
        return "no"
    if kind == "image":
        named = KIND.fullmatch(str((IMAGE_PROCESSOR_MAPPING_NAMES.get(model_type) or {}).get("pil")))
        return "images" if named and named[1] in IMAGES else "pixels"
    try:
        empty = getattr(transformers, TOKENIZER_MAPPING_NAMES[model_type])()  # the steps without a vocabulary
        steps = json.loads(empty.backend_tokenizer.to_str())
    except Exception:  # no class, or one that needs files
        return "ids"
    model, cuts = steps["model"]["type"], json.dumps(steps["pre_tokenizer"])
    texts = model == "Unigram" or (model == "BPE" and "ByteLevel" in cuts)
    return "texts" if model == "WordPiece" or (kind == "text" and texts) else "ids"


def examine(kind: str, model_type: str, class_name: str, limit: int) -> dict[str, Any]:
    row = {"kind": kind, "type": model_type, "class": class_name}
    began = time.monotonic()
    signal.alarm(limit)
    try:
        try:
            model = build(kind, model_type, class_name)
        except Late:
            raise
        except Exception as error:  # configurations raise many types
            return {**row, "result": "not built", "why": _line(error)}
        with tempfile.TemporaryDirectory() as folder:
            result = through(model, Path(folder) / "out")
            return {**row, **result, "cpp": cpp(kind, model_type), "seconds": round(time.monotonic() - began)}
    except Late:
        return {**row, "result": "late", "why": f"not finished after {limit} s"}
    except HydrantError as error:
        return {**row, "result": "refused", "why": _line(error)}
    except Exception as error:  # a fault of hydrant
        return {**row, "result": "FAULT", "why": _line(error)}
    finally:
        signal.alarm(0)


def _line(error: BaseException) -> str:
    return textwrap.shorten(f"{type(error).__name__}: {error}", 300)


KINDS = {
    "text": ("Texts", MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES),
    "tokens": ("Tokens", MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES),
    "image": ("Images", MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES),
    "audio": ("Sounds", MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES),
}
"""Kind → heading in the page, and classes by model type."""

HEADER = ["class", "result", "members", "blocks × heads", "distance", "FP32", "FP16", "INT8", "RTX", "C++"]
FURTHER = ("fp16", "int8", "rtx", "cpp")
NOT_RUN = "not run"

Rows = dict[str, dict[str, list[str]]]  # kind → examined class → cells


def cells(row: dict[str, Any]) -> list[str]:
    """Cells of one class in the page."""
    if row["result"] not in ("passes", "WRONG"):
        return [_short(f"{row['result']}: {row['why']}", 150), *[""] * (len(HEADER) - 2)]
    groups = f" ({row['groups']} groups)" if row["groups"] != row["heads"] else ""
    return [
        row["result"], row["form"], f"{row['blocks']} × {row['heads']}{groups}", "yes" if row["distance"] else "no",
        f"{row['difference']:.0e}", *[row.get(name, NOT_RUN) for name in FURTHER],
    ]  # fmt: skip


def _short(words: str, most: int = 110) -> str:
    """Text of a cell."""
    return textwrap.shorten(re.sub(r"[][|<>`]", " ", words), most, placeholder=" …")


def accepted(row: list[str]) -> list[bool]:
    """Whether FP16 passes its gates, INT8 passes with at least 80 % in INT8, RTX compiles, and C++ reads raw inputs."""
    fp16, int8, rtx, raw = row[-4:]
    share = re.fullmatch(r"\de\S+, (\d+) %", int8)
    passes = share is not None and int(share[1]) >= 80
    return [bool(re.match(r"\de", fp16)), passes, bool(re.match(r"\d+/", rtx)), raw in ("texts", "images")]


def table(rows_of: Rows, classes: dict[str, dict[str, str]]) -> str:
    """Markdown tables of the classes, with counts by result, and the classes not examined yet."""
    lines = []
    for kind, (title, _) in KINDS.items():
        examined = rows_of[kind]
        counts = Counter(row[0].split(":")[0] for row in examined.values())
        forms = Counter(row[1] for row in examined.values() if row[0] == "passes")
        summary = ", ".join(f"{count} {result}" for result, count in counts.most_common()) or "none examined"
        summary += f"; of those that pass {forms['sliced']} are sliced and {forms['masked']} masked"
        passed = [sum(each) for each in zip(*map(accepted, examined.values()), strict=True)] or [0] * len(FURTHER)
        summary += "; FP16 {}, INT8 {}, RTX {}, C++ with raw inputs {}".format(*passed)
        unknown = sum(NOT_RUN in row for row in examined.values())
        summary += f"; {unknown} {NOT_RUN} beyond FP32" if unknown else ""
        lines += [f"## {title}", "", f"{len(examined)} classes: {summary}.", ""]
        lines += [harness.table(HEADER, [[name, *examined[name]] for name in sorted(examined)]), ""]
        missing = [name for name in classes[kind] if name not in examined]
        lines += [f"Not examined yet: {', '.join(missing)}.", ""] if missing else []
    return "\n".join(lines)


def read(page: str, versions: str) -> Rows:
    """Rows of a page by kind; empty if the page is from other versions."""
    rows_of: Rows = {kind: {} for kind in KINDS}
    kinds = {f"## {title}": kind for kind, (title, _) in KINDS.items()}
    mine: dict[str, list[str]] = {}
    for line in page.splitlines() if versions in page else []:
        mine = rows_of[kinds[line]] if line in kinds else mine
        name, *row = [cell.strip() for cell in line.strip("|").split("|")]
        if len(row) == len(HEADER) - 1 and name.isidentifier() and [name, *row] != HEADER:
            mine[name] = row
    return rows_of


def main() -> None:
    """Examine the classes missing in the page, and update it after each."""
    parser = harness.parser(__doc__)
    parser.add_argument("--limit", type=int, default=180, help="seconds for each class")
    parser.add_argument("--kind", nargs="*", choices=KINDS, default=list(KINDS), help="only these kinds")
    parser.add_argument("--only", nargs="*", default=[], help="model types to examine, even if examined before")
    options = parser.parse_args()
    signal.signal(signal.SIGALRM, _late)
    logging.disable(logging.WARNING)
    transformers.logging.set_verbosity_error()
    versions = f"transformers {transformers.__version__}, torch {torch.__version__.split('+')[0]}."
    rows_of, classes = read(PAGE.read_text(), versions), {kind: _named(mapping) for kind, (_, mapping) in KINDS.items()}
    for kind in options.kind:
        for class_name, model_type in classes[kind].items():
            again = model_type in options.only
            known = class_name in rows_of[kind] and NOT_RUN not in rows_of[kind][class_name]
            if (known or options.only) and not again:
                continue
            row = examine(kind, model_type, class_name, options.limit)
            print(kind, class_name, row["result"], row.get("form", row.get("why", "")), flush=True)
            rows_of[kind][class_name] = cells(row)
            harness.put_into(PAGE, f"{versions}\n\n{table(rows_of, classes)}".rstrip(), "census")


def _named(mapping: Any) -> dict[str, str]:
    """Model type of each class that tracing supports."""
    named = {names if isinstance(names, str) else names[0]: kind for kind, names in reversed(mapping.items())}
    supported = traceable()
    return {name: named[name] for name in sorted(named) if name in supported}


def _late(*_: object) -> None:
    raise Late


if __name__ == "__main__":
    main()
