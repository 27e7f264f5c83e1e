"""The command line in a subprocess: the whole path, its outputs, and one line for every mistake."""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import command
import numpy as np
import pytest
from hydrant import Bundle
from hydrant.cli.main import as_typed, parse
from hydrant.cli.terminal import CONTROLS, logged
from PIL import Image
from support import run_cli, save_checkpoint, stdout_of


@pytest.fixture(scope="module")
def folder(bert_checkpoint: Path, text_csv: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with plan.json and bundle out/, created by the command line."""
    folder = tmp_path_factory.mktemp("cli")
    plan = stdout_of("plan", bert_checkpoint, "--data", text_csv, "--keep", "3", "-o", folder / "plan.json")
    assert "3 members keep 75% of 3 × 4 heads" in plan
    fuse = stdout_of("fuse", bert_checkpoint, "--plan", folder / "plan.json", "-o", folder / "out")
    assert "3 members of bert" in fuse
    export = stdout_of("export", folder / "out")
    assert "model.fp32.onnx" in export
    return folder


def error_line(done: subprocess.CompletedProcess[str]) -> str:
    """Return the one line of an error."""
    assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("hydrant: error: ")
    assert done.stdout == ""
    return lines[0]


def test_verify_and_inspect(folder: Path) -> None:
    verify = stdout_of("verify", folder / "out", "--read", "examples=20")
    assert "verified: every gate holds" in verify
    assert "max |Δ mutual information|" in verify
    inspect = stdout_of("inspect", folder / "out")
    for words in ("3 layers of 4 heads", "opset 20, IR 10", "passed: onnxruntime fp32", "fused.safetensors"):
        assert words in inspect
    facts = json.loads(run_cli("inspect", folder / "out", "--json").stdout)
    assert facts["members"] == 3
    assert facts["labels"] == list("abcde")
    assert {entry["state"] for entry in facts["files"].values()} == {"ok"}


def test_predict_table_json_and_file(folder: Path, text_csv: Path, tmp_path: Path) -> None:
    table = run_cli("predict", folder / "out", "hello world", "transfer money")
    assert (table.returncode, table.stderr) == (0, "")
    header, _, first, second = table.stdout.splitlines()
    assert header.split()[:3] == ["input", "label", "confidence"]
    assert [first[:11], second[:14]] == ["hello world", "transfer money"]
    output = json.loads(stdout_of("predict", folder / "out", "hello world", "--json"))
    assert output["backend"] == "onnxruntime"
    row = output["predictions"][0]
    assert row["label"] in list("abcde")
    assert 0 <= row["mutual_information"] <= row["predictive_entropy"] <= np.log(5) + 1e-5
    lines = run_cli("predict", folder / "out", "--input", text_csv)
    rows = [json.loads(line) for line in lines.stdout.splitlines()]
    assert [row["index"] for row in rows] == list(range(24))
    assert rows[0]["confidence"] == pytest.approx(row["confidence"], abs=1e-6)
    stdout_of("predict", folder / "out", "--input", text_csv, "--output", tmp_path / "out.jsonl")
    assert (tmp_path / "out.jsonl").read_text() == lines.stdout


def test_three_checkpoints_report_their_drift(tmp_path: Path, bert_checkpoint: Path, text_csv: Path) -> None:
    sources = [bert_checkpoint, *(save_checkpoint(tmp_path / f"m{seed}", seed) for seed in (7, 8))]
    refused = run_cli("fuse", *sources, "-o", tmp_path / "merged", "--data", text_csv)  # they have nothing in common
    assert refused.returncode == 2
    assert "--keep-separate " in refused.stderr
    assert not (tmp_path / "merged").exists()
    named = refused.stderr.partition("--keep-separate ")[2].partition(":")[0]
    stdout_of("fuse", *sources, "-o", tmp_path / "kept", "--data", text_csv, "--keep-separate", named, "--json")
    done = stdout_of("fuse", *sources, "-o", tmp_path / "merged", "--data", text_csv, "--force")
    assert "merge error of the shared parts, on 24 inputs of train.csv: max |Δ logit|" in done
    assert Bundle.open(tmp_path / "merged").manifest["fusion"]["drift"]["examples"] == 24
    done = run_cli("fuse", *sources, "-o", tmp_path / "synthetic", "--keep-separate", "mlp,classifier", "--json",
                   "--force")  # fmt: skip
    assert json.loads(done.stdout)["drift"]["inputs"] == "64 synthetic inputs"


def test_mistakes_in_usage(folder: Path, bert_checkpoint: Path, text_csv: Path, tmp_path: Path) -> None:
    out, plan = folder / "out", tmp_path / "p.json"
    absent, new = tmp_path / "absent.csv", tmp_path / "x"
    cases = [
        (("mkae", "x"), "make"),
        (("predict", "x", "--data=a.csv"), "--input"),
        (("plan", "--output", "x"), "MODEL"),
        (("plan", bert_checkpoint, "--keep", "3", "-o", plan), "--data"),
        (("plan", bert_checkpoint, "--data", text_csv, "--members", "0", "-o", plan), "'0'"),
        (("plan", bert_checkpoint, "--data", text_csv, "-o", tmp_path / "no" / "p.json"), "no"),
        (("plan", tmp_path, "--data", text_csv, "-o", plan), "config.json"),
        (("plan", bert_checkpoint, "--method", "random", "--data", absent, "-o", plan), "absent.csv"),
        (("fuse", bert_checkpoint, "--data", text_csv, "-o", new), "--data"),
        (("fuse", bert_checkpoint, "--traced", "--template", "a {}", "-o", new), "--template"),
        (("export", tmp_path), "hydrant.json"),
        (("predict", out, "hello", "--batch-size", "9" * 21), "999"),
        (("predict", out), "--input"),
        (("predict", out, "hello", ""), "input 1"),
        (("evaluate", out, "--read", "colour=red"), "colour"),
    ]
    for arguments, message in cases:
        assert message in error_line(run_cli(*arguments)), arguments
    assert list(tmp_path.iterdir()) == []


def test_invalid_rows_are_skipped_on_request(folder: Path, tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    texts = ["hello", "", None, "money"] + ["hello"] * 600 + [" "]
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    refused = run_cli("predict", folder / "out", "--input", data)
    assert "data.jsonl, row 3" in error_line(refused)
    strict = tmp_path / "strict.jsonl"
    strict.write_text("".join(json.dumps({"text": text}) + "\n" for text in [*texts[3:], ""]))
    line = error_line(run_cli("predict", folder / "out", "--input", strict))  # nothing of the first 512 rows either
    assert "strict.jsonl, row 602: input 601 is an empty text; expected" in line
    assert "--skip-invalid" in line
    done = run_cli("predict", folder / "out", "--input", data, "--skip-invalid")
    words = "WARNING: 3 of 605 inputs could not be used; their rows say why"
    assert (done.returncode, done.stderr) == (0, f"hydrant: {words}\n")
    rows = [json.loads(row) for row in done.stdout.splitlines()]
    assert [row["index"] for row in rows] == list(range(605))
    assert [row["index"] for row in rows if row.get("error", "").startswith("input ")] == [1, 2, 604]
    assert rows[2]["input"] == f"{data}, row 3"
    assert rows[0]["label"] == rows[4]["label"]
    data.write_text('{"text": ""}\n')
    assert run_cli("predict", folder / "out", "--input", data, "--skip-invalid").returncode == 2
    (tmp_path / "cat.png").touch()
    for arguments in (["--input", tmp_path / "cat.png", "--skip-invalid"], [tmp_path / "cat.png"]):
        assert "the model reads texts" in error_line(run_cli("predict", folder / "out", *arguments))


@pytest.mark.skipif(not Path("/dev/stdout").exists(), reason="no /dev/stdout")
def test_standard_output_as_a_file_holds_rows_alone(folder: Path, tmp_path: Path) -> None:
    data = tmp_path / "data.csv"
    data.write_text("text,label\n" + "hello,0\n" * 600)
    done = run_cli("predict", folder / "out", "--input", data, "--output", "/dev/stdout")
    assert [json.loads(line)["index"] for line in done.stdout.splitlines()] == list(range(600))
    assert done.stderr == "wrote 600 prediction(s) to /dev/stdout\n"
    data.write_text(data.read_text() + '" ",0\n')
    assert "row 601" in error_line(run_cli("predict", folder / "out", "--input", data, "--output", "/dev/stdout"))


def test_standard_input_and_files_given_as_texts(folder: Path, tmp_path: Path) -> None:
    out, texts = folder / "out", ["hello", "what is the weather", "money"]
    expected = run_cli("predict", out, *texts)
    assert run_cli("predict", out, "-", given="\n".join(texts) + "\n").stdout == expected.stdout
    assert run_cli("predict", out, texts[0], "-", given="\r\n".join(texts[1:])).stdout == expected.stdout
    lines = run_cli("predict", out, "--input", "-", given="\n".join(texts))
    assert [json.loads(row)["input"] for row in lines.stdout.splitlines()] == texts
    assert "line 2 of standard input: input 1 is an empty text" in error_line(
        run_cli("predict", out, "--input", "-", given="hello\n\nmoney\n")
    )
    (tmp_path / "a b.csv").write_text("text\nhello\n")
    line = error_line(run_cli("predict", out, "a b.csv", cwd=tmp_path))
    assert "'a b.csv' is a file; did you mean --input 'a b.csv'?" in line
    absent = stdout_of("predict", out, "b.csv", "x" * 5000, "a/b", cwd=tmp_path)  # texts that look like paths
    assert absent.splitlines()[2].startswith("b.csv")


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_interrupting_leaves_no_half_written_bundle(
    sent: signal.Signals, bert_checkpoint: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The signal arrives while the bundle's temporary folder exists."""
    code = (
        "import sys, time\n"
        "from hydrant.cli import main as cli\n"
        "from hydrant.fusion import storage\n"
        "def slow(*_):\n"
        "    print('writing', flush=True)\n"
        "    time.sleep(60)\n"
        "storage.save_file = slow\n"
        f"sys.exit(cli.main(['fuse', {str(bert_checkpoint)!r}, '-o', {str(tmp_path / 'out')!r}]))\n"
    )
    folder = tmp_path_factory.mktemp("streams")
    stdin, out, err = streams = [folder / name for name in ("in", "out", "err")]
    stdin.touch()
    process = command.start([], os.environ, "/", streams, code)
    until = time.monotonic() + 60
    while not (out.exists() and out.read_text()):
        assert time.monotonic() < until
        time.sleep(0.02)
    assert len(list(tmp_path.iterdir())) == 1, "the temporary folder"
    assert process.pid is not None
    os.kill(process.pid, sent)
    process.join(60)
    assert process.exitcode == 130
    assert err.read_text().splitlines()[-1] == "hydrant: interrupted; nothing was left half-written"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("form", ["", "--json"])
def test_a_reader_that_leaves_does_not_hide_the_status(form: str, folder: Path, tmp_path: Path) -> None:
    bundle = shutil.copytree(folder / "out", tmp_path / "out")
    inspect = f"'{sys.executable}' -m hydrant inspect '{bundle}' {form}"
    statuses = []
    for change in ("true", f"echo >> '{bundle}/plan.json'"):
        script = f"{change}; {{ sleep 0.1; {inspect}; echo $? >&2; }} | true"
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, cwd="/")
        statuses.append(done.stderr)
    assert statuses == ["0\n", "1\n"]


def test_unexpected_errors_are_one_line_and_verbose_shows_the_traceback(folder: Path) -> None:
    code = (
        "import sys\n"
        "from hydrant.cli import inspect as inspection, main as cli\n"
        "def broken(_): raise RuntimeError('two\\nlines')\n"
        "inspection.inspect_bundle = broken\n"
        "sys.exit(cli.main(sys.argv[1:]))\n"
    )
    words = ["inspect", str(folder / "out")]
    quiet = command.run(words, os.environ, "/", "", 60, code)
    assert "unexpected RuntimeError: 'two lines'; run again with -v" in error_line(quiet)
    loud = command.run([*words, "-v"], os.environ, "/", "", 60, code)
    assert loud.returncode == 2
    assert "Traceback" in loud.stderr


def test_inputs_may_follow_options(folder: Path) -> None:
    expected = json.loads(run_cli("predict", folder / "out", "hello", "money", "--json").stdout)["predictions"]
    for arguments in (("--json", "hello", "money"), ("hello", "--threads", "1", "--json", "money")):
        assert json.loads(run_cli("predict", folder / "out", *arguments).stdout)["predictions"] == expected
    assert "unrecognized arguments: --jsn" in error_line(run_cli("predict", folder / "out", "hello", "--jsn"))
    unknown = error_line(run_cli("inspect", folder / "out", "more"))
    assert "unrecognized arguments: more; see `hydrant inspect --help`" in unknown


def test_a_folder_of_images_is_no_data_of_a_text_model(folder: Path, tmp_path: Path) -> None:
    """Their file names are not texts either."""
    pictures = tmp_path / "pictures"
    for name in ("a", "b"):
        (pictures / name).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(pictures / name / "hello.png")
    bundle = shutil.copytree(folder / "out", tmp_path / "out")
    fresh = tmp_path / "fresh.csv"  # new texts, which cause no overlap warning
    fresh.write_text("text,label\n" + "".join(f"number {index},{'abcde'[index % 5]}\n" for index in range(25)))
    before = (bundle / "hydrant.json").read_bytes()
    for arguments in (
        ("predict", bundle, "--input", pictures),
        ("evaluate", bundle, "--data", fresh, "--ood", pictures),
        ("calibrate", bundle, "--data", fresh, "--ood", pictures),
        ("tune", bundle, "--data", fresh, "--validation", pictures),
    ):
        assert "model reads text" in error_line(run_cli(*arguments)), arguments
    assert (bundle / "hydrant.json").read_bytes() == before


def test_long_work_prints_its_progress_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    now = iter([0, 10, 70, 70, 100, 131, 131])
    assert list(logged(range(4), 4, "tuning", clock=lambda: next(now))) == [0, 1, 2, 3]
    assert capsys.readouterr().err == "hydrant: tuning: 1 of 4 done\nhydrant: tuning: 3 of 4 done\n"
    assert list(logged(iter("ab"), 0, "reading", every=0)) == ["a", "b"]
    assert "hydrant: reading: 1 done\n" in capsys.readouterr().err


def test_a_terminal_without_unicode(folder: Path, text_csv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    for arguments in (("inspect", folder / "out"), ("predict", folder / "out", "hello"), ("verify", folder / "out")):
        stdout_of(*arguments)
    (folder / "greek.csv").write_text("text\nhello Ω\n", encoding="utf-8")
    done = run_cli("predict", folder / "out", "--input", folder / "greek.csv")
    assert json.loads(done.stdout)["input"] == "hello Ω"


def test_a_strangers_labels_do_not_steer_the_terminal(folder: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "out"
    shutil.copytree(folder / "out", bundle)
    manifest = json.loads((bundle / "hydrant.json").read_bytes())
    labels = ["\x1b[2Jno\x9b1m\r\u202e", *manifest["labels"][1:]]
    (bundle / "hydrant.json").write_text(json.dumps({**manifest, "labels": labels}))
    shown = run_cli("inspect", bundle)
    assert "?[2Jno?1m ?, " in shown.stdout
    assert json.loads(run_cli("inspect", bundle, "--json").stdout)["labels"] == labels
    twice = [*labels[:1], *labels[:1], *labels[2:]]
    (bundle / "hydrant.json").write_text(json.dumps({**manifest, "labels": twice}))
    refused = run_cli("inspect", bundle)
    assert "has labels ?[2Jno" in refused.stderr
    for text in (shown.stdout, refused.stderr):
        assert not CONTROLS.search(text)


def test_messages_name_options_as_they_are_typed() -> None:
    given = parse(["serve", "out", "--port", "0"])
    for message, expected in (
        ("tls_cert is given without tls_key; give both", "--tls-cert is given without --tls-key; give both"),
        ("the key of 'tls_cert' in my_tls_key is /tls_key.pem", None),
        ("port is '0'; replica_cpus=2, batch_size(s)", None),
        ("learning_rate is 0", None),  # no option of this command
    ):
        assert as_typed(message, given) == (expected or message)
    assert as_typed("tls_cert is given", argparse.Namespace()) == "tls_cert is given"
