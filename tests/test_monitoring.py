"""Monitoring of a service: counts, metrics, drift, spans and the record of abstained inputs."""

import base64
import errno
import json
import logging
import multiprocessing
import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
from hydrant import HydrantError, Predictor, drift, load
from hydrant.monitoring.drift_monitor import Watch
from hydrant.runtime.prediction import Prediction
from hydrant.serving import worker_stats
from hydrant.serving.metrics import LABELS, OTHERS, Metrics
from hydrant.serving.observers import RareWarnings, Spans, tracer
from hydrant.serving.record import WAITING, Recorder, Recording
from hydrant.serving.stats import NOTHING, Stats, Watching
from hydrant.serving.worker_stats import Reporter, WorkerStats
from prometheus_client.parser import text_string_to_metric_families
from serve_support import command, running
from test_drift import bundle, texts  # noqa: F401 (a fixture)

Traffic = tuple[list[str], Prediction]


@dataclass(eq=False)
class Model:
    """A served model, with the attributes that observers read."""

    predictor: Any
    name: str = "intent"
    version: str = "1"
    ready: bool = True


@pytest.fixture(scope="module")
def predictor(bundle: Path) -> Iterator[Predictor]:  # noqa: F811
    with load(bundle, "onnxruntime") as predictor:
        yield predictor


@pytest.fixture(scope="module")
def traffic(predictor: Predictor, tmp_path_factory: pytest.TempPathFactory) -> Traffic:
    inputs = texts(400, 21, tmp_path_factory.mktemp("traffic"))
    return inputs, predictor.predict(inputs)


@pytest.fixture(scope="module")
def strange(traffic: Traffic) -> list[str]:
    """The abstained inputs."""
    inputs, prediction = traffic
    return [inputs[place] for place in np.flatnonzero(np.asarray(prediction.abstain))]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def families(stats: Stats) -> dict[str, Any]:
    body, content_type = Metrics(stats).answer("/metrics", "", None)
    assert content_type.startswith("text/plain")
    return {family.name: family for family in text_string_to_metric_families(body.decode())}


def values(family: Any, **labels: str) -> list[float]:
    return [each.value for each in family.samples if labels.items() <= each.labels.items()]


def feed(stats: Stats, model: Model, inputs: list[str], prediction: Prediction, size: int) -> None:
    for start in range(0, len(inputs), size):
        part = slice(start, start + size)
        stats.batch(model, size, 0.004)
        stats.predicted(model, inputs[part], prediction[part])
        stats.request(model, "rest", 0.005, 200)


@pytest.mark.parametrize("size", [1, 400])
def test_metrics_equal_the_predictions(predictor: Predictor, traffic: Traffic, size: int) -> None:
    inputs, prediction = traffic
    stats, model = Stats(), Model(predictor)
    feed(stats, model, inputs, prediction, size)
    stats.request(model, "grpc", 2.0, 503)
    stats.queue(model, 3)
    for status in (503, 401, 503):
        stats.refuse(status)
    read = families(stats)
    assert values(read["hydrant_refused"], status="503") == [2]
    assert values(read["hydrant_inputs"]) == [400]
    assert values(read["hydrant_requests"], front="rest", status="200") == [-(-400 // size)]
    assert values(read["hydrant_requests"], front="grpc", status="503", model="intent", version="1") == [1]
    assert values(read["hydrant_queue_inputs"]) == [3]
    for name in ("abstain", "out_of_distribution"):
        assert values(read["hydrant_decisions"], decision=name) == [getattr(prediction, name).sum()]
        assert values(read["hydrant_calibrated_rate"], decision=name)[0] == pytest.approx(0.05, abs=0.02)
    for place, name in enumerate(predictor.labels):
        count = int((prediction.label == place).sum())
        assert values(read["hydrant_predictions"], label=name) == ([count] if count else [])
    for name, histogram in predictor.calibration.reference.histograms.items():  # type: ignore[union-attr]
        scores = getattr(prediction, name)
        samples = [each for each in read["hydrant_score"].samples if each.labels["score"] == name]
        sums = [
            each.value for each in samples if each.name.endswith("_sum")
        ]  # Prometheus omits sums of negative values
        assert sums == ([pytest.approx(scores.sum(), rel=1e-4)] if histogram.edges[0] >= 0 else [])
        buckets = {each.labels["le"]: each.value for each in samples if each.name.endswith("_bucket")}
        assert buckets == {
            **{repr(edge): (scores <= np.float32(edge)).sum() for edge in histogram.edges}, "+Inf": len(scores),
        }  # fmt: skip
    seconds = [each.value for each in read["hydrant_request_seconds"].samples if each.labels.get("le") == "2.5"]
    assert sorted(seconds) == [1, -(-400 // size)]


def test_many_labels_share_a_few_series(predictor: Predictor, traffic: Traffic) -> None:
    stats, model = Stats(), Model(predictor)
    stats.predicted(model, *traffic)
    (counted,) = stats.models()
    counted.calibration, counted.watch = type(counted.calibration)(), Watch(NOTHING)
    counted.names = [f"label {place}" for place in range(1000)]
    counted.labels.clear()
    counted.labels.update(dict.fromkeys(counted.names, 2))
    few = values(families(stats)["hydrant_predictions"])
    assert len(few) == LABELS + 1
    assert values(families(stats)["hydrant_predictions"], label=OTHERS) == [2 * 900]
    body, content_type = Metrics(stats).answer("/metrics", "application/openmetrics-text; version=1.0.0", None)
    assert "openmetrics" in content_type
    assert stats.snapshot()["models"][0]["histograms"] is None, "without a reference in the bundle"
    assert body.endswith(b"# EOF\n")


def test_a_snapshot_has_sliding_windows_and_is_json(predictor: Predictor, traffic: Traffic) -> None:
    clock = Clock()
    stats, model = Stats(clock=clock), Model(predictor)
    inputs, prediction = traffic
    feed(stats, model, inputs[:100], prediction[:100], 10)
    clock.now += 300
    feed(stats, model, inputs[100:], prediction[100:], 10)
    stats.request(model, "rest", 0.3, 400)
    (snapshot,) = json.loads(json.dumps(stats.snapshot()))["models"]
    assert snapshot["rates"]["minute"]["inputs"] == 300
    assert snapshot["rates"]["ten_minutes"]["inputs"] == 400
    assert snapshot["rates"]["minute"]["errors"] == 1
    assert snapshot["rates"]["hour"]["abstain"] == pytest.approx(prediction.abstain.mean())  # type: ignore[union-attr]
    assert snapshot["totals"]["inputs"] == 400
    assert [step["inputs"] for step in snapshot["series"]] == [100, 300]
    assert snapshot["latency"]["median"] == 0.005
    for name, histogram in snapshot["histograms"].items():
        assert sum(histogram["recent"]) == 400, name
        assert len(histogram["edges"]) + 1 == len(histogram["calibrated"])
    assert snapshot["drift"]["alarms"] == []
    clock.now += 4000
    (snapshot,) = stats.snapshot()["models"]
    assert snapshot["rates"]["hour"]["inputs"] == 0
    assert snapshot["rates"]["hour"]["abstain"] is None
    assert snapshot["series"] == []


def test_a_drift_is_logged_once(predictor: Predictor, traffic: Traffic, caplog: pytest.LogCaptureFixture) -> None:
    inputs, prediction = traffic
    stats, model = Stats(Watching(alpha=0.001)), Model(predictor)
    feed(stats, model, inputs, prediction, 20)
    assert set(values(families(stats)["hydrant_drift_alarm"])) == {0}
    strange = np.flatnonzero(np.asarray(prediction.abstain))
    for _ in range(10):
        stats.predicted(model, [inputs[place] for place in strange], prediction.take(strange))
    read = families(stats)
    assert values(read["hydrant_drift_alarm"], name="abstain") == [1]
    assert len([record for record in caplog.records if "abstention rate" in record.message]) == 1
    rare, alarms = RareWarnings(), [record for record in caplog.records if "drift of" in record.message]
    assert all(map(rare.filter, 2 * alarms)), "alarms must not be suppressed as repetitions"
    usual = logging.LogRecord("hydrant.data", logging.WARNING, "", 1, "%d were cut", (1,), None)
    assert [rare.filter(usual) for _ in range(2)] == [True, False]
    evidence, limit = (values(read[f"hydrant_drift_{name}"], decision="abstain") for name in ("evidence", "limit"))
    assert evidence >= limit
    (shown,) = stats.snapshot()["models"]
    assert "abstain" in [alarm["name"] for alarm in shown["drift"]["alarms"]]
    again = Model(type("Loaded", (), {**vars(predictor), "calibration": replace(predictor.calibration)})())
    stats.predicted(again, inputs[:1], prediction[:1])
    assert values(families(stats)["hydrant_drift_alarm"], name="abstain") == [0], "a reloaded model starts a new watch"
    model.ready = False  # the old version's last requests count for the new one
    stats.predicted(model, inputs[:1], prediction[:1])
    assert stats.snapshot()["models"][0]["totals"]["inputs"] == 1


def test_worker_counts_are_summed(predictor: Predictor, traffic: Traffic, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two workers that share traffic report the same counts as one worker, from either of them."""
    monkeypatch.setattr(worker_stats, "PERIOD", 60.0)
    inputs, prediction = traffic
    alone, together, pipes = Stats(), WorkerStats(), [multiprocessing.Pipe() for _ in range(3)]
    for ours, _ in pipes:
        together.listen(ours)
    reporters = [
        Reporter(theirs, lambda place=place: {"written": place, "dropped": 1, "failed": 0})  # type: ignore[misc]
        for place, (_, theirs) in enumerate(pipes[:2])
    ]
    feed(alone, Model(predictor), inputs, prediction, 8)
    for start in range(0, 400, 8):
        part = slice(start, start + 8)
        feed(reporters[start % 16 // 8], Model(predictor), inputs[part], prediction[part], 8)  # type: ignore[arg-type]
    for reporter, depth in zip(reporters, (3, 4), strict=True):
        reporter.queue(Model(predictor), depth)
        reporter.refuse(401)
    first = counts_of(reporters[0])["models"][0]
    assert first["totals"]["inputs"] == 200, "the other has not reported yet"
    facts, (model,) = counts_of(reporters[1]), alone.snapshot()["models"]
    (both,) = facts["models"]
    assert {name: both[name] for name in ("totals", "requests", "labels", "batch")} == {
        name: model[name] for name in ("totals", "requests", "labels", "batch")
    }
    assert both["histograms"] == model["histograms"]
    assert both["drift"]["rates"]["abstain"]["n"] == model["drift"]["rates"]["abstain"]["n"] == 400
    assert (both["queue"], facts["recorded"]) == (7, {"written": 1, "dropped": 2, "failed": 0})
    body, _ = reporters[1].answer("/metrics", "", None)
    assert b'hydrant_refused_total{status="401"} 2.0' in body
    reporters[0].close()
    pipes[0][1].close()  # it ended
    while counts_of(reporters[1])["models"][0]["queue"] != 4:
        time.sleep(0.01)
    other = SimpleNamespace(task=predictor.task, labels=predictor.labels, calibration=replace(
        predictor.calibration, temperature=2.0))  # fmt: skip
    third = Reporter(pipes[2][1])  # started after a new calibration
    third.predicted(Model(other), inputs[:8], prediction[:8])
    assert counts_of(third)["models"][0]["totals"]["inputs"] == 8
    feed(reporters[1], Model(predictor), inputs[:8], prediction[:8], 8)  # type: ignore[arg-type]
    assert counts_of(reporters[1])["models"][0]["totals"]["inputs"] == 8, "the older bundle is no longer counted"
    for reporter, (_, theirs) in zip((reporters[1], third), pipes[1:], strict=True):
        reporter.close()
        theirs.close()
    with pytest.raises(OSError, match="closed"):
        third.answer("/stats", "", None)


def counts_of(reporter: Reporter) -> Any:
    return json.loads(reporter.answer("/stats", "", None)[0])


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_abstained_and_flagged_inputs_are_recorded(
    bundle: Path,  # noqa: F811
    predictor: Predictor,
    traffic: Traffic,
    tmp_path: Path,
) -> None:
    inputs, prediction = traffic
    path = tmp_path / "record.jsonl"
    recorder = Recorder(Recording(path))
    recorder.predicted(Model(predictor), [], predictor.predict([]))
    recorder.predicted(Model(predictor), inputs, prediction)
    recorder.close()
    rows = rows_of(path)
    wanted = np.flatnonzero(prediction.abstain | prediction.out_of_distribution)  # type: ignore[operator]
    assert 0 < len(wanted) < 400
    assert [row["input"] for row in rows] == [inputs[place] for place in wanted]
    assert recorder.written == len(wanted)
    expected = predictor.rows(prediction)
    for row, place in zip(rows, wanted, strict=True):
        assert ("abstain" in row["why"]) == row["abstain"] == expected[place]["abstain"]
        assert row["predictive_entropy"] == expected[place]["predictive_entropy"]
        assert (row["model"], row["version"]) == ("intent", "1")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(HydrantError, match=r"record\.jsonl"):
        drift(bundle, path)


def test_a_share_is_recorded_and_redacted(predictor: Predictor, traffic: Traffic, tmp_path: Path) -> None:
    inputs, prediction = traffic
    strange = np.flatnonzero(np.asarray(prediction.abstain))
    many = prediction.take(np.tile(strange, 40))

    def redact(row: dict[str, Any]) -> dict[str, Any] | None:
        return None if row["label"] == "a" else {"input": len(row["input"]), "why": "mine"}

    recorder = Recorder(Recording(tmp_path / "some.jsonl", rate=0.25, redact=redact), seed=0)
    recorder.predicted(Model(predictor), [inputs[place] for place in np.tile(strange, 40)], many)
    recorder.close()
    rows = rows_of(tmp_path / "some.jsonl")
    assert 0 < len(rows) < 0.4 * len(many)
    assert all(set(row) == {"input", "why"} and isinstance(row["why"], list) for row in rows)


def test_record_files_stay_within_their_size_limit(predictor: Predictor, traffic: Traffic, tmp_path: Path) -> None:
    inputs, prediction = traffic
    places = np.tile(np.flatnonzero(np.asarray(prediction.abstain)), 20)
    path, most = tmp_path / "record.jsonl", 1 << 16
    recorders = [Recorder(Recording(path, most_bytes=most)) for _ in range(2)]  # as two workers have them
    for _ in range(4):
        for recorder in recorders:
            recorder.predicted(Model(predictor), [inputs[place] for place in places], prediction.take(places))
    for recorder in recorders:
        recorder.close()
    assert sum(recorder.written for recorder in recorders) == 8 * len(places)
    older = tmp_path / "record.jsonl.1"
    assert {each.name for each in tmp_path.iterdir()} == {path.name, older.name}
    assert path.stat().st_size + older.stat().st_size <= most
    assert rows_of(path)[-1]["model"] == "intent"
    assert rows_of(older)


def test_a_writer_that_hangs_blocks_no_request(predictor: Predictor, traffic: Traffic, tmp_path: Path) -> None:
    inputs, prediction = traffic
    (place, *_) = np.flatnonzero(np.asarray(prediction.abstain))
    one, gate = prediction[place], threading.Event()

    def hang(row: dict[str, Any]) -> dict[str, Any]:
        gate.wait(30)
        return row

    recorder = Recorder(Recording(tmp_path / "hangs.jsonl", redact=hang))
    begun = time.monotonic()
    for _ in range(WAITING + 50):
        recorder.predicted(Model(predictor), [inputs[place]], one)
    assert time.monotonic() - begun < 5
    assert 48 <= recorder.dropped <= 50
    gate.set()
    recorder.close(60)
    assert recorder.written == WAITING + 50 - recorder.dropped


def test_a_failed_row_does_not_affect_others(predictor: Predictor, traffic: Traffic, tmp_path: Path) -> None:
    def fail(row: dict[str, Any]) -> dict[str, Any]:
        assert row["input"] != "b"
        return row

    inputs: list[Any] = [b"\x89PNG", "b", ("half a pair \ud800", "d"), {"input_ids": np.array([1, 2])}]
    prediction = traffic[1].take(np.flatnonzero(np.asarray(traffic[1].abstain))[:4])
    recorder = Recorder(Recording(tmp_path / "rows.jsonl", redact=fail))
    recorder.predicted(Model(predictor), inputs, prediction)
    recorder.close()
    assert (recorder.written, recorder.failed) == (3, 1)
    expected = [{"base64": base64.b64encode(inputs[0]).decode()}, list(inputs[2]), {"input_ids": [1, 2]}]
    assert [row["input"] for row in rows_of(tmp_path / "rows.jsonl")] == expected


def test_a_full_disk_leaves_no_partial_line(
    predictor: Predictor,
    traffic: Traffic,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    one = traffic[1].take(np.flatnonzero(np.asarray(traffic[1].abstain))[:1])
    write, room = os.write, [None, 40, 0, None]

    def written(number: int, line: bytes) -> int:
        some = room.pop(0) if line.startswith(b'{"time') else None
        if some == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(number, line[:some])

    monkeypatch.setattr(os, "write", written)
    path = tmp_path / "log" / "full.jsonl"
    path.parent.mkdir()
    recorder = Recorder(Recording(path))
    for text in "abcd":
        recorder.predicted(Model(predictor), [text], one)
    recorder.close()
    assert [row["input"] for row in rows_of(path)] == ["a", "d"]
    assert (recorder.written, recorder.failed) == (2, 2)
    (record,) = (each for each in caplog.records if each.levelno == logging.ERROR)
    assert record.exc_info is None
    assert f"cannot record in {path}: No space left on device" in record.getMessage()


def test_requests_and_batches_have_spans_with_a_tracer_provider(
    bundle: Path,  # noqa: F811
    strange: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    assert tracer() is None, "no tracer provider yet"
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    parent = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    with running(bundle) as service:
        assert service.client.post("/predict", json={"inputs": strange}, headers=parent).status_code == 200
        for path in ("/v2/health/live", "/metrics", "/nothing"):
            service.client.get(path)
        spans = Spans(trace, None)
        spans.request(Model(None), "grpc", 0.25, 200)
    finished = exporter.get_finished_spans()
    assert sum((each.attributes or {}).get("hydrant.batch_size", 0) for each in finished) == len(strange)  # type: ignore[misc]
    request, missing, grpc = (each for each in finished if each.name != "run a batch")
    assert f"{request.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
    wanted = {"hydrant.model": bundle.name, "hydrant.inputs": len(strange), "hydrant.abstain": len(strange)}
    assert wanted.items() <= request.attributes.items()
    statuses = [(each.attributes or {})["http.response.status_code"] for each in (request, missing)]
    assert (statuses, grpc.name) == ([200, 404], "grpc request")
    assert grpc.end_time - grpc.start_time == 250_000_000  # type: ignore[operator]
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    assert tracer() is None


def test_a_service_watches_its_predictions_and_alarms_once(
    bundle: Path,  # noqa: F811
    traffic: Traffic,
    strange: list[str],
    tmp_path: Path,
) -> None:
    """`hydrant serve` in a separate process: no alarm on usual traffic, one on abstained inputs."""
    inputs, _ = traffic
    record = tmp_path / "record.jsonl"
    (tmp_path / "settings.json").write_text('{"alpha": 0.001}')
    with command(bundle, "--record", record, "--settings", tmp_path / "settings.json") as (process, ready):
        url = f"http://127.0.0.1:{ready['port']}"
        with httpx.Client(base_url=url, timeout=60) as client:
            for start in range(0, 400, 50):
                assert client.post("/predict", json={"inputs": inputs[start : start + 50]}).status_code == 200
            (counts,) = client.get("/stats").json()["models"]
            assert counts["totals"]["inputs"] == 400
            assert counts["totals"]["abstain"] == len(strange)
            assert counts["drift"]["alarms"] == []
            assert counts["requests"] == [{"front": "predict", "status": 200, "count": 8}]
            for _ in range(12):
                client.post("/predict", json={"inputs": strange})
            body = client.get("/metrics").text
            (alarm,) = [line for line in body.splitlines() if 'name="abstain"' in line and "drift_alarm" in line]
            assert alarm.endswith(" 1.0")
            assert client.get("/stats").json()["models"][0]["drift"]["alarms"][0]["name"] == "abstain"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        lines = process.stderr.read().splitlines()
        assert len([line for line in lines if "abstention rate" in line]) == 1, lines
    rows = rows_of(record)
    assert len([row for row in rows if "abstain" in row["why"]]) == 13 * len(strange)
    assert {row["input"] for row in rows} >= set(strange)
