"""Profiling: times and their statistics, baselines, and reports."""

import json
import math
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hydrant import Bundle, HydrantError, Timing, estimate_cost, profile
from hydrant.data.check_inputs import full_batch
from hydrant.evaluation.peak_memory import measure_memory, peak_bytes
from hydrant.evaluation.profile_targets import Subject, baseline_subjects
from hydrant.evaluation.profiler import parts_of
from hydrant.metrics.timing import Latency, Ratio, Rules, interleave
from hydrant.runtime.backends.protocol import Backend
from support import CLASSES, run_cli

QUICK: dict[str, Any] = {"seconds": 0, "iterations": 4}


def quick(bundle: Path, backend: Any = "auto", *, memory: bool = False, plot: bool = False, **options: Any) -> Any:
    """Profile with few runs and without a plot; options of ``Timing`` may be among the others."""
    shape = {name: options.pop(name) for name in ("batch", "sequence", "threads", *QUICK) if name in options}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hydrant.evaluation.profile_report.Rules", partial(Rules, warm_up=0.0))
        if not plot:
            patch.setattr("hydrant.evaluation.profiler.draw_latency", lambda *_: b"")
        return profile(bundle, backend, timing=Timing(**{**QUICK, **shape}), memory=memory, **options)


FAST = ("--seconds", "0")
MODELS = ["fused", "single", "single, rewritten", "deep-ensemble"]


def test_every_round_runs_every_case_once_and_starts_with_the_next() -> None:
    ran: list[int] = []
    durations = [1.0, 2.0, 4.0]  # seconds of a simulated clock
    runs = [partial(ran.append, index) for index in range(3)]
    rules = Rules(seconds=0, iterations=4, warm_up=0)
    seconds = interleave(runs, rules, clock=lambda: sum(durations[index] for index in ran))
    assert ran[:3] == [0, 1, 2], "one run of each to warm up"
    assert ran[3:] == [0, 1, 2, 1, 2, 0, 2, 0, 1, 0, 1, 2]
    np.testing.assert_allclose(seconds, [[1, 2, 4]] * 4)


def test_percentiles_and_variation() -> None:
    seconds = np.random.default_rng(0).gamma(4.0, 0.01, 501)
    latency = Latency.of(seconds)
    for name, level in (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99)):
        assert getattr(latency, name) == pytest.approx(np.quantile(seconds, level) * 1e3)
    assert latency.mean == pytest.approx(seconds.mean() * 1e3)
    assert latency.iterations == 501
    by_hand = Latency.of(np.array([0.001, 0.003, 0.002, 0.002, 0.003]))
    assert by_hand.variation == pytest.approx(math.sqrt((1.44 + 0.64 * 2 + 0.04 * 2) / 5) / 2.2)
    assert by_hand.drift == pytest.approx(0)  # medians of (1, 3) and (2, 2, 3)
    assert Latency.of(np.array([0.002, 0.002, 0.003, 0.003])).drift == pytest.approx(0.5)


def test_a_ratio_has_the_median_and_the_spread_of_the_rounds() -> None:
    baseline = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    ratio = Ratio.of(baseline * [2.0, 3.0, 2.0, 1.0, 2.0], baseline)
    assert ratio.median == pytest.approx(8 / 4)  # medians of (2, 6, 8, 8, 32) and of the baseline
    assert ratio.p5 == pytest.approx(1.2)  # a fifth of the way from 1 to 2
    assert ratio.p95 == pytest.approx(2.8)


def runner(name: str, precision: str = "fp32") -> Any:
    class Runner(Backend):
        ran, closed = 0, False

        def chunk(self, inputs: Any) -> int:
            return 3

        def _run(self, inputs: Any) -> dict[str, np.ndarray]:
            self.ran += 1
            return {"self": np.array(id(self))}

        def _release(self) -> None:
            self.closed = True

    return Runner(name, precision, ["self"])


def products(graph: Path) -> int:
    return sum(node.op_type in ("MatMul", "Gemm") for node in onnx.load(graph).graph.node)


def test_baselines_are_the_plain_and_rewritten_single_model_and_a_deep_ensemble(
    text_bundle: Path, tmp_path: Path
) -> None:
    runners = [runner("openvino", "bf16"), runner("torch"), runner("onnxruntime", "int8")]
    subjects = baseline_subjects(Bundle.open(text_bundle), runners, ["single", "deep-ensemble"], tmp_path)
    assert [(subject.model, subject.backend, subject.precision, subject.copies) for subject in subjects] == [
        ("single", "openvino", "bf16", 1), ("single, rewritten", "openvino", "bf16", 1),
        ("deep-ensemble", "openvino", "bf16", 3), ("single", "onnxruntime", "fp32", 1),
        ("single, rewritten", "onnxruntime", "fp32", 1), ("deep-ensemble", "onnxruntime", "fp32", 3),
    ]  # fmt: skip
    plain, rewritten, ensemble = (subject.graph for subject in subjects[:3])
    assert plain == ensemble != rewritten
    # 3 layers of stacked query-key-value, scores, mixture, output, 2 × MLP; pooler and classifier
    assert products(plain) == 3 * 6 + 2
    bundle = Bundle.open(text_bundle)
    batch = full_batch(bundle.any_architecture(), 2, 9, 0)
    outputs = []
    for subject in subjects[3:]:
        opened = subject.open(bundle, 1)
        outputs.append(opened.run(batch)["probabilities"])
        assert opened.chunk(batch) == round(800 / 9), "one stream, whatever the bundle has"
        opened.close()
    assert outputs[0].shape == (2, CLASSES)
    np.testing.assert_allclose(outputs[1], outputs[0], atol=1e-5)  # the rewrites are exact
    np.testing.assert_array_equal(outputs[2], outputs[0])


def test_the_report_of_a_text_bundle(text_bundle: Path) -> None:
    report = quick(
        text_bundle, "onnxruntime", batch=[1, 70, 1], sequence=[9, 23], threads=1, iterations=6,
        baseline=["deep-ensemble", "single"], seed=5,
    )  # fmt: skip
    assert [(case.model, case.batch, case.sequence) for case in report.cases] == [
        (model, batch, sequence) for sequence in (9, 23) for batch in (1, 70) for model in MODELS
    ]
    for case in report.cases:
        assert case.latency_ms.iterations == 6
        assert 0 < case.latency_ms.p50 <= case.latency_ms.p90 <= case.latency_ms.p95 <= case.latency_ms.p99
        assert case.throughput == pytest.approx(case.batch / case.latency_ms.mean * 1e3)
        assert case.parts_ms is None
        assert set(case.ratios) == {"single", "deep-ensemble"}
    for start in range(0, 16, 4):
        fused, single, rewritten, ensemble = report.cases[start : start + 4]
        assert fused.ratios["single"].median == pytest.approx(fused.latency_ms.p50 / single.latency_ms.p50)
        assert fused.ratios["deep-ensemble"].median == pytest.approx(fused.latency_ms.p50 / ensemble.latency_ms.p50)
        assert asdict(single.ratios["single"]) == {"median": 1, "p5": 1, "p95": 1}
        cost = estimate_cost(text_bundle, batch=fused.batch, sequence=fused.sequence)
        assert fused.flops_ratio == pytest.approx(cost.ratio)
        assert rewritten.flops_ratio == pytest.approx(cost.single_rewritten.flops / cost.single.flops)
        assert (single.flops_ratio, ensemble.flops_ratio) == (1, 3)
    # 70 × 23 rows of one stream are cut into 3 parts of at most round(800 / 23) = 35: two of 35
    assert [case.chunk for case in report.cases if case.model == "single"] == [1, 70, 1, 35]
    assert report.settings.baselines == ("single", "deep-ensemble")
    assert report.layers is None
    assert report.memory == []
    assert any("random weights" in note for note in report.notes)


def test_the_report_in_the_bundle_has_no_absolute_paths(text_bundle: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(text_bundle, tmp_path / "bundle")
    report = quick(folder, batch=[2], sequence=[5], baseline=["single"], layers=True)
    assert (report.layers.batch, report.layers.sequence, len(report.layers.nodes)) == (2, 5, 10)
    assert sum(part.share for part in report.layers.operators) == pytest.approx(1)
    assert sum(part.milliseconds for part in report.layers.operators) == pytest.approx(report.layers.milliseconds)
    bundle = Bundle.open(folder)
    facts = bundle.read_json("reports/profile.json")
    assert facts == json.loads(json.dumps(report.to_json()))
    assert facts["files"] == bundle.digests()
    assert facts["settings"]["rules"] == {"seconds": 0.0, "iterations": 4, "warm_up": 0.0}
    assert facts["machine"]["versions"]["numpy"] == np.__version__
    text = bundle.file("reports/profile.json").read_text()
    assert str(tmp_path) not in text
    assert sys.prefix not in text
    assert not list(folder.glob(".*")), "no temporary files"


def node(name: str, operator: str, start: int, microseconds: int) -> dict[str, Any]:
    return {
        "cat": "Node", "name": f"{name}_kernel_time", "ts": start, "dur": microseconds, "args": {"op_name": operator}
    }  # fmt: skip


def test_a_trace_is_read_without_its_warm_up() -> None:
    events = [{"cat": "Session", "name": "session_initialization", "ts": 0, "dur": 99, "args": {}}]
    for index in range(6):  # each batch is two runs; the first batch warms up
        start, slow = 1000 * (index + 1), 50 if index < 2 else 1
        events.append({"cat": "Session", "name": "model_run", "ts": start, "dur": 900, "args": {}})
        events += [
            node("a", "MatMul", start + 1, 300 * slow),
            node("b", "Add", start + 400, 100 * slow),
            node("c", "MatMul", start + 600, 200 * slow),
        ]
    operators, nodes = parts_of(events, warm_up=2, runs=4, pieces=2)
    assert [(part.name, part.count, part.milliseconds) for part in operators] == [("MatMul", 4, 1.0), ("Add", 2, 0.2)]
    assert [part.share for part in operators] == pytest.approx([5 / 6, 1 / 6])
    assert [(part.name, part.operator, part.count) for part in nodes] == [
        ("a", "MatMul", 2), ("c", "MatMul", 2), ("b", "Add", 2)
    ]  # fmt: skip
    assert [part.milliseconds for part in nodes] == pytest.approx([0.6, 0.4, 0.2])


@pytest.mark.slow
def test_peak_memory_is_that_of_the_model_alone(text_bundle: Path, tmp_path: Path) -> None:
    ballast = np.ones(500_000_000, np.uint8)  # a child's ru_maxrss would start at this process's
    bundle = Bundle.open(text_bundle)
    measure: dict[str, Any] = {"batch": 2, "sequence": 9, "threads": 1, "seed": 0}
    fused = measure_memory(Subject("fused", "onnxruntime", "fp32"), bundle, **measure)
    assert peak_bytes() > ballast.nbytes
    assert 20e6 < fused.imports < fused.peak < 250e6
    (single,) = baseline_subjects(bundle, [runner("onnxruntime")], ["deep-ensemble"], tmp_path)
    many = measure_memory(replace(single, copies=20), bundle, **measure)
    one = measure_memory(replace(single, copies=1), bundle, **measure)
    assert many.peak > one.peak + 2_000_000, "20 sessions hold more than one"


def test_the_memory_process_needs_no_torch(text_bundle: Path) -> None:
    subject = asdict(Subject("fused", "onnxruntime", "fp32"))
    code = (
        "import sys\nfrom hydrant.evaluation.peak_memory import run_batch\n"
        f"assert run_batch({str(text_bundle)!r}, {subject!r}, None, [1, 5, 0]).peak > 0\n"
        "assert not {'torch', 'transformers', 'onnx'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd="/")


@pytest.mark.parametrize(("options", "message"), [
    ({"batch": []}, "batch is '[]'"),
    ({"sequence": [41]}, "sequence is '41'"),
    ({"baseline": ["both"]}, "baseline is 'both'"),
    ({"baseline": "single", "backend": "torch"}, "backend torch cannot run a baseline"),
    ({"layers": True, "backend": "torch"}, "backend torch does not report"),
])  # fmt: skip
def test_invalid_options(options: dict[str, Any], message: str, text_bundle: Path) -> None:
    with pytest.raises(HydrantError) as caught:
        quick(text_bundle, **{"backend": "onnxruntime", **options})
    assert message in str(caught.value)


@pytest.mark.slow
def test_the_command_line_from_end_to_end(text_bundle: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(text_bundle, tmp_path / "bundle", ignore=shutil.ignore_patterns("reports"))
    done = run_cli(
        "profile", folder, *FAST, "--batch", "1,2", "--sequence", "5", "--baseline", "single", "--baseline",
        "deep-ensemble", "--layers", "--threads", "1",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert [line[:17].strip() for line in lines[5:13]] == MODELS * 2
    for words in ("peak memory of a process", "slowest nodes", "random weights", f"wrote {folder}/reports/"):
        assert words in done.stdout
    assert (folder / "reports" / "profile.png").read_bytes().startswith(b"\x89PNG")
    memory = json.loads((folder / "reports" / "profile.json").read_text())["memory"]
    assert [row["model"] for row in memory] == MODELS
    assert all(row["batch"] == 2 and row["imports_bytes"] < row["peak_bytes"] for row in memory)
    assert memory[1]["ratio"] == 1
