"""Layers of the package: the imports allowed between folders, and the order of the files in each."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import hydrant
import pytest

FLOORS: list[dict[str, str]] = [
    {"": "version errors progress"},
    {
        "data": """
            __init__ data_options raw_inputs specs tensors images audio text processor batching
            label_encoding python_inputs data_files data_sources examples check_inputs corruptions
            fingerprints
        """,
        "metrics": "__init__ bootstrap class_metrics gates uncertainty labels rates scores spans timing",
    },
    {
        "tasks": "task classification multi_label regression token_classification __init__",
    },
    {
        "bundle": """
            __init__ architecture strict_json manifest staging head_plan hub_download traced store
            calibration density_file data_overlap graphs original_check progress_checkpoint reports
            signature weights
        """,
    },
    {
        "engines": "__init__ gpu metadata",
        "models": """
            __init__ base_card layout bert cross_encoder modernbert refusals vit family_registry lora
            checkpoint packed_checkpoint functions weight_sharing graph_counts plan_cost prompts tracing.__init__
            tracing.attention_blocks tracing.export_patches tracing.slices tracing.traced_model
            tracing.members zero_shot
        """,
    },
    {
        "build": "builder_options attention_patterns compiler engine_build __init__",
        "export": """
            graph context fused_blocks layers distance_head onnx_file graph_probes grouped_lowering
            task_heads unrolled_lowering lowering islands float_search quantize rewrites wordpiece
            tokenizer_graph tokenizer_onnx graph_form dead_rows masked_writes traced_graph half_precision
            traced_islands traced_products exporter graph_export __init__ random_model
        """,
        "fusion": "grouped low_rank output_heads parity module traced_ensemble ensemble merge_error storage __init__",
    },
    {
        "runtime": """
            backends.dlpack lifecycle backends.protocol backends.microbatch backends.openvino backends.ort
            backends.backend_registry prediction word_predictions predictor loading pipeline __init__
            backends.__init__ backends.kernel_cache backends.ort_gpu backends.reference
            backends.tensorrt.__init__ backends.tensorrt.profiles backends.tensorrt.choose
            backends.tensorrt.cuda backends.tensorrt.lane backends.tensorrt.engine collect offline.scoring
            offline.chunks offline.row_files offline.shard_parts offline.__init__ offline.input_stream
            offline.offline_run offline.ray_cluster offline.ray_engine prediction_counts
        """,
    },
    {
        "calib": """
            decisions.targets heads.methods __init__ decisions.__init__ decisions.temperature
            decisions.thresholds decisions.fit mahalanobis taps features decisions.calibrate_bundle
            decisions.decision_lines heads.__init__ heads.selection heads.candidates losses
            heads.objectives heads.masking heads.circuits heads.taylor heads.trials heads.choosing
            heads.plan_search heads.planning ood_detectors
        """,
        "monitoring": "__init__ drift_statistics drift_monitor label_sample prediction_log drift_report",
    },
    {
        "evaluation": """
            cost_estimate evaluation_options profile_targets profile_report __init__ deep_ensemble dropout
            fair_rival competitors error_predictor report metric_names observation model_reports baselines
            bisect classes drawing latency plots verdict report_tables evaluator peak_memory polygraphy
            profiler verifier
        """,
        "serving": """
            __init__ http_refusals predict_request batcher connection datatypes observers record stats
            serve_settings middleware oip service predict_routes grpc_front metrics openapi rest page
            worker_stats server ray_serve triton.triton_tensors triton.model_files triton.models
            triton.triton_forms triton.repository triton.__init__ workers
        """,
        "tuning": """
            settings distillation optimizer tuning_data tuning_state loop rank_one teachers views
            taught_source traced_student job tuned_bundle stages __init__
        """,
    },
    {
        "hub": "__init__ card_commands card_examples card_text card repository_files upload",
        "workflow": """
            quality explore data_splits recipe make_inputs stage_summaries time_estimate workspace
            make_stages make_bundle __init__ digits_data digits_demo picture
        """,
    },
    {
        "": "__init__",
        "cli": """
            __init__ terminal command_options shared build calibrate prediction_text demo drift evaluate
            export fuse inspect renamed main make merge plan predict profile push serve sign triton tune
            verify
        """,
    },
    {"": "__main__"},
]
"""Floors from the lowest up: folders, and their files in an order in which none imports a later one."""

ROOT = Path(hydrant.__file__).parent
APART = {"tests", "benchmarks", "docs", "examples"}
"""Folders of the checkout outside the package."""


def name_of(path: Path) -> tuple[str, str]:
    """Folder and file: ``runtime/backends/ort.py`` is ``("runtime", "backends.ort")``."""
    room, _, file = ".".join(path.relative_to(ROOT).with_suffix("").parts).partition(".")
    return (room, file) if file else ("", room)


SOURCES = {
    name_of(path): path
    for path in sorted(ROOT.rglob("*.py"))
    if not any(part in APART or part.startswith(".") for part in path.relative_to(ROOT).parts)
}
PLACES = {
    (room, file): (floor, index)
    for floor, rooms in enumerate(FLOORS)
    for room, files in rooms.items()
    for index, file in enumerate(files.split())
}


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """Syntax nodes of a file."""
    return list(ast.walk(ast.parse(path.read_text())))


@pytest.fixture(scope="module", autouse=True)
def _nodes_are_of_these_tests() -> Iterator[None]:
    yield
    nodes_of.cache_clear()


def imported(path: Path) -> set[tuple[int, tuple[str, str]]]:
    """Line and module of every relative import, including those in functions and for type checkers."""
    parts = path.relative_to(ROOT).parts
    imports = set()
    for node in nodes_of(path):
        if not isinstance(node, ast.ImportFrom) or node.level == 0:
            continue
        folder = ROOT.joinpath(*parts[: len(parts) - node.level], *(node.module or "").split("."))
        for alias in node.names:
            choices = (folder / f"{alias.name}.py", folder / alias.name / "__init__.py", folder.with_suffix(".py"))
            target = next((choice for choice in choices if choice.is_file()), folder / "__init__.py")
            imports.add((node.lineno, name_of(target)))
    return imports


def test_every_module_has_its_floor() -> None:
    assert set(SOURCES) == set(PLACES)


def test_imports_run_downward() -> None:
    wrong = []
    for module, path in SOURCES.items():
        floor, index = PLACES[module]
        for line, target in imported(path):
            below, earlier = PLACES[target]
            same = target[0] == module[0] and floor == below
            if not (below < floor or (same and earlier < index)):
                wrong.append(f"{path}:{line} imports {'.'.join(target)}")
    assert wrong == []


def test_only_the_reference_backend_of_runtime_imports_models() -> None:
    makers = {"build", "calib", "export", "fusion", "models", "tuning"}
    cost = ("models", "plan_cost")  # used to divide batches
    for (room, file), path in SOURCES.items():
        if room == "runtime" and file != "backends.reference":
            names = [name.split(".")[0] for name in absolute(path)]
            assert not {"datasets", "ml_dtypes", "onnx", "torch", "tqdm", "transformers"} & set(names), path
            assert not makers & {target[0] for _, target in imported(path) if target != cost}, path


def absolute(path: Path) -> list[str]:
    """Modules of other packages that a file imports."""
    modules: list[str] = []
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            modules.append(node.module or "")
    return modules


def test_calib_imports_no_onnx_and_only_cli_imports_argparse() -> None:
    for (room, _), path in SOURCES.items():
        names = {name.split(".")[0] for name in absolute(path)}
        assert room != "calib" or not names & {"onnx", "onnxruntime"}, path
        assert room == "cli" or "argparse" not in names, path


def test_asserts_narrow_types_only() -> None:
    """Asserts are removed by `python -O`, so only "is not None" and isinstance are allowed."""
    for path in SOURCES.values():
        for node in nodes_of(path):
            if isinstance(node, ast.Assert):
                code = ast.unparse(node.test)
                assert re.fullmatch(r"[\w.]+ is not None|(not )?isinstance\(.*\)", code), f"{path}:{node.lineno} {code}"


def test_text_is_utf8_and_names_have_slashes_on_every_system() -> None:
    """On Windows the default encoding is a code page and paths contain "\\": set encodings, and use as_posix."""
    for path in SOURCES.values():
        posix = {node.value for node in nodes_of(path) if isinstance(node, ast.Attribute) and node.attr == "as_posix"}
        for node in nodes_of(path):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr in ("read_text", "write_text"):
                assert "encoding" in {word.arg for word in node.keywords}, f"{path}:{node.lineno}"
            assert node.func.attr != "relative_to" or node in posix, f"{path}:{node.lineno} needs as_posix"


def test_contributing_lists_the_same_floors() -> None:
    guide = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()
    drawn = {int(floor): set(re.findall(r"`(\w+)/`", rooms))
             for floor, rooms in re.findall(r"^\| (\d+) \| ([^|]*) \|", guide, flags=re.M)}  # fmt: skip
    assert drawn == {floor: set(rooms) - {""} for floor, rooms in enumerate(FLOORS[:-1])}
