"""The tuned bundle on disk: new weights, graphs exported from them, and no outdated files."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..bundle.graphs import graph_metadata, graph_tensors
from ..bundle.manifest import MANIFEST
from ..bundle.original_check import ORIGINAL_CHECK
from ..bundle.progress_checkpoint import Checkpoint
from ..bundle.signature import SIGNATURE
from ..bundle.staging import check_replaceable, copy_folder, locked, owned_folder, staged_folder, sweep, telling
from ..bundle.store import TOKENIZER_GRAPH, WEIGHTS, Bundle, new_bundle, onnx_name, resolve
from ..bundle.strict_json import to_json_bytes
from ..engines.metadata import engine_names, engine_path, read_metadata
from ..errors import BundleError, InputError
from ..fusion import FusedClassifier, TracedClassifier, save_bundle
from ..metrics.gates import Precision
from ..tasks import MEMBER_OUTPUTS

if TYPE_CHECKING:
    from ..export.graph_form import GraphForm

EXPORTED_AGAIN: tuple[Precision, ...] = ("fp32", "bf16")  # FP16, INT8 and a traced model's BF16 depend on data

REPORTS = {f"reports/{verb}.json": f"{verb} {{}}" for verb in ("verify", "profile")}
REPORTS["reports/evaluation.json"] = "evaluate {} --data FILE"


class StoredProcessor:
    """The processor of a bundle, to be copied unchanged."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save_pretrained(self, folder: str) -> None:
        """Copy its files."""
        copy_folder(self._folder, Path(folder))


def check_output(bundle: Bundle, output: str | Path | None, force: bool) -> tuple[Path, bool]:
    """Return the output folder, and True if it may replace a bundle."""
    home = bundle.path.resolve()
    target, replace = (home, True) if output is None or Path(output).resolve() == home else (Path(output), force)
    check_replaceable(target, MANIFEST, replace)
    return target, replace


def check_beside(target: Path) -> None:
    """Raise if the parent folder is not writable; call it before long work."""
    with telling(f"cannot write beside {target}", "; choose another output folder"):
        sweep(target.parent, target.name)
        with owned_folder(target.parent, target.name):
            pass


@dataclass(frozen=True)
class Graphs:
    """Graphs to export again in their form, and dropped files → the commands that make them again."""

    again: Mapping[Precision, GraphForm]
    dropped: Mapping[str, str]

    @classmethod
    def of(cls, bundle: Bundle, target: Path) -> Graphs:
        """Return the graphs of a bundle whose successor will be at ``target``; call it before long work."""
        traced = not bundle.any_architecture().is_declared
        files = {name: onnx_name(name) for name in EXPORTED_AGAIN[: 1 if traced else None]}
        again = {name: _form(bundle.file(file), traced) for name, file in files.items() if bundle.has(file)}
        dropped = {}
        for precision, data in (("fp16", " [--data FILE]"), ("bf16", " [--data FILE]"), ("int8", " --data FILE")):
            if precision not in files and bundle.has(onnx_name(precision)):
                dropped[onnx_name(precision)] = f"hydrant export {target} --precision {precision}{data}"
        for name in engine_names(bundle):
            facts = read_metadata(bundle, name)
            build = f"hydrant build {target} --backend {facts.library}"
            dropped[engine_path(name)] = f"{build} --precision {facts.precision}"
        dropped |= {name: f"hydrant {command.format(target)}" for name, command in REPORTS.items() if bundle.has(name)}
        return cls(again, dropped | _unsigned(bundle, target))


def write_tuned(bundle: Bundle, ensemble: FusedClassifier | TracedClassifier, target: Path, force: bool,
                facts: dict[str, Any], checkpoint: Checkpoint) -> Graphs:  # fmt: skip
    """Write the tuned bundle atomically; it may replace the untuned one."""
    from ..export import export

    now = resolve(bundle)
    if now.digests().get(WEIGHTS) != bundle.digests().get(WEIGHTS):
        raise InputError(f"bundle {bundle.path} changed while it was tuned; tune it again")
    graphs = Graphs.of(now, target)
    folder = now.processor_folder()
    processor = None if folder is None else StoredProcessor(folder)
    with contextlib.ExitStack() as ends, staged_folder(target, MANIFEST, force) as stage:
        save_bundle(ensemble, stage, processor, force=True, provenance=facts, tensors_only=folder is None)
        ends.enter_context(locked(stage))  # `save_bundle` has released its lock on this folder
        for precision, form in graphs.again.items():
            export(stage, precision, form)
        same = {name: now.read(name) for name in (TOKENIZER_GRAPH, ORIGINAL_CHECK) if now.has(name)}
        if ORIGINAL_CHECK in same:
            check = now.read_json(ORIGINAL_CHECK)
            rows = [{**row, "probabilities": {}} for row in check["inputs"]]  # they were the untuned model's
            same[ORIGINAL_CHECK] = to_json_bytes({**check, "inputs": rows})
        if same:
            Bundle.open(stage).add(same)
        ends.enter_context(checkpoint.aside())  # until the bundle is in place
    return graphs


def copy_bundle(bundle: Bundle, target: Path, force: bool) -> dict[str, str]:
    """Copy a bundle unchanged; return each file that the copy lacks → the command that makes it."""
    facts = {key: value for key, value in bundle.manifest.items() if key not in ("schema", "files")}
    with telling(f"cannot write {target}"), new_bundle(target, facts, force) as stage:
        for name in bundle.manifest["files"]:
            (stage / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(bundle.file(name), stage / name)
    return _unsigned(bundle, target)


def _unsigned(bundle: Bundle, target: Path) -> dict[str, str]:
    """Return the signature that the successor of a signed bundle lacks, with the command that makes it."""
    return {SIGNATURE: f"hydrant sign {target} --key KEY"} if (bundle.path / SIGNATURE).is_file() else {}


def _form(path: Path, traced: bool) -> GraphForm:
    """Return the form of a graph, without choices that change only rounding; a traced graph has one form."""
    from ..export.graph_form import GraphForm

    try:
        names = () if traced else ("lowering", "attention")
        facts: dict[str, Any] = {name: graph_metadata(path)[f"hydrant.{name}"] for name in names}
        members = any(output.name in MEMBER_OUTPUTS for output in graph_tensors(path)[1])
        return GraphForm(**facts, member_outputs=members)
    except (ValueError, KeyError) as error:
        raise BundleError(f"{path} is not a hydrant graph ({error}); export it again, then tune") from error
