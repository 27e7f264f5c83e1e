"""``tokenizer.onnx`` and texts in the C++ runner, against Hugging Face's tokenizers and Python's predictions."""

from __future__ import annotations

import json
import re
import shutil
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hydrant
import numpy as np
import onnx
import pytest
import transformers
from conftest import made_once
from cpp import lines, refused, run
from cpp_server import binary_body, raw, serving
from hydrant import Bundle
from hydrant.bundle.graphs import check_graph
from hydrant.bundle.store import TOKENIZER_GRAPH
from hydrant.data.examples import Examples
from hydrant.data.text import TextProcessor
from hydrant.errors import InputError
from hydrant.export import wordpiece
from hydrant.export.tokenizer_onnx import _session, made_tokenizer
from hydrant.export.tokenizer_test_texts import fuzzed_texts
from hydrant.export.wordpiece import _read
from support import WORDS, make_model, make_tokenizer, random_plan, run_cli
from token_support import make_tagger

COUNT = 150
"""Random texts, beside the known ones."""

PAIRS = [("hello world", "transfer money"), ("Wie geht's?", "naïve " * 30), ("money " * 30, "日本 a")]
TEXTS = ["Transfer 100 € to Zoë, please!", "hello, world", "ΣΊΣΥΦΟΣ 안녕 \U0001f600", "x" * 120, "money " * 60]


def letters_tokenizer(folder: Path, lower: bool) -> Any:
    """A WordPiece tokenizer that knows every ASCII character as a piece, at the beginning of words and within."""
    folder.mkdir(parents=True, exist_ok=True)
    marks = [each for each in string.printable if not each.isspace()] + ["é", "日", "σ", "ς", "ᄋ", "ᅡ"]
    words = [*dict.fromkeys([*WORDS, *marks]), *(f"##{each}" for each in marks), "##ing", "##er"]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    return transformers.BertTokenizer(
        vocab=str(folder / "vocab.txt"), model_max_length=40, do_lower_case=lower, strip_accents=None
    )


def bytes_tokenizer() -> Any:
    """A byte-level BPE tokenizer, as RoBERTa's."""
    from tokenizers.pre_tokenizers import ByteLevel

    vocabulary = ["<s>", "<pad>", "</s>", "<unk>", *sorted(ByteLevel.alphabet()), "th", "he", "Ġt", "<mask>"]
    merges = [("t", "h"), ("h", "e"), ("Ġ", "t")]
    ids = {word: index for index, word in enumerate(vocabulary)}
    return transformers.RobertaTokenizer(vocab=ids, merges=merges, model_max_length=36)


def make_bundles(folder: Path) -> None:
    """Bundles of two families in ``uncased`` and ``bytes``, with their tokenizers as graphs."""
    for name, family, tokenizer in (
        ("uncased", "bert", letters_tokenizer(folder / "uncased-source", lower=True)),
        ("bytes", "roberta", bytes_tokenizer()),
    ):
        model = make_model(family, vocab_size=400)
        ensemble = hydrant.fuse(model, random_plan(family, 2))
        bundle = hydrant.save_bundle(ensemble, folder / name, processor=tokenizer)
        hydrant.export_onnx(bundle)
        bundle = Bundle.open(bundle.path)
        content, told = made_tokenizer(bundle, 0, COUNT)
        assert told.texts >= 100
        assert told.bytes == len(content)
        bundle.add({TOKENIZER_GRAPH: content})


KNOWN: dict[tuple[Any, ...], dict[int, str]] = {}
"""Steps of a tokenizer and a range of characters → what becomes of these."""


def read_by_steps(tokenizer: Any, points: range, changes: dict[int, str]) -> None:
    """As ``hydrant.export.wordpiece._read``, which asks the same steps for the same characters once."""
    if len(points) < wordpiece.CHUNK:
        return _read(tokenizer, points, changes)
    steps = (tokenizer.normalizer, tokenizer.pre_tokenizer)
    key = (*(step if step is None else step.__getstate__() for step in steps), points)
    if key not in KNOWN:
        KNOWN[key] = {}
        _read(tokenizer, points, KNOWN[key])
    return changes.update(KNOWN[key])


@pytest.fixture(scope="module", autouse=True)
def read_once() -> Iterator[None]:
    """All characters of Unicode are shown to each kind of tokenizer once, which takes seconds."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(wordpiece, "_read", read_by_steps)
        yield


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    """Bundles of two families with their tokenizers as graphs."""
    folder = made_once(tmp_path_factory, "tokenizers", make_bundles)
    return {name: Bundle.open(folder / name) for name in ("uncased", "bytes")}


def test_the_graph_is_deterministic_and_says_what_it_was_made_from(
    bundles: dict[str, Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The texts that it is compared on are no part of it."""
    bundle = bundles["bytes"]
    stored = bundle.file(TOKENIZER_GRAPH).read_bytes()
    monkeypatch.setattr("hydrant.export.tokenizer_onnx.fuzzed_texts", lambda *_: TEXTS)
    assert made_tokenizer(bundle, 7, 10)[0] == stored
    model = onnx.load_from_string(stored)
    digest = bundle.manifest["files"]["processor/tokenizer.json"]["sha256"]
    facts = {each.key: each.value for each in model.metadata_props}
    assert facts["hydrant.tokenizer"].split()[0] == digest
    assert facts["hydrant.unread"].split("\n") == ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    assert {each.domain for each in model.opset_import} == {"", "ai.onnx.contrib"}


def test_command_line(bundles: dict[str, Bundle], tmp_path: Path) -> None:
    own = shutil.copytree(bundles["bytes"].path, tmp_path / "bundle")
    done = run_cli("export", own, "--tokenizer")
    assert done.returncode == 0, done.stderr
    assert "tokenizer.onnx" in done.stdout
    assert re.search(r"same ids as the tokenizer on \d{4} texts and \d{3} pairs", done.stdout)
    assert "tokenizer.onnx" in run_cli("inspect", own).stdout


def test_a_tuned_bundle_keeps_it(bundles: dict[str, Bundle], tmp_path: Path) -> None:
    bundle = bundles["bytes"]
    data = Examples(["th he", "he th th", "the", "hh"] * 4, np.array([0, 1, 2, 0] * 4), "made here")
    tuned = tmp_path / "tuned"
    hydrant.tune(bundle.path, data, hydrant.Jointly(epochs=1, learning_rate=1e-2), validation=data, output=tuned)
    made = Bundle.open(tuned)
    assert made.digests()["fused.safetensors"] != bundle.digests()["fused.safetensors"]
    assert made.file(TOKENIZER_GRAPH).read_bytes() == bundle.file(TOKENIZER_GRAPH).read_bytes()
    check_graph(made, TOKENIZER_GRAPH)
    assert run_cli("inspect", tuned).returncode == 0


def test_the_corpus_is_of_its_seed_and_reaches_all_planes() -> None:
    texts = fuzzed_texts(500, 3, ["[SEP]"])
    assert texts == fuzzed_texts(500, 3, ["[SEP]"]) != fuzzed_texts(500, 4, ["[SEP]"])
    points = {ord(each) for text in texts for each in text}
    assert len({point >> 16 for point in points}) == 17
    assert 0 not in points
    assert any("[SEP]" in text for text in texts)


def test_a_tokenizer_that_the_operators_do_otherwise_is_refused(tmp_path: Path) -> None:
    """Its words have no pieces of one letter, so that words are known in part, which the operator does otherwise."""
    model = make_model("bert")
    bundle = hydrant.save_bundle(
        hydrant.fuse(model, random_plan("bert", 2)), tmp_path / "bundle", processor=make_tokenizer(tmp_path / "source")
    )
    before = bundle.digests()
    with pytest.raises(
        InputError, match=r"would give other ids than the tokenizer for .*; nothing is written; give the"
    ):
        hydrant.export_onnx(bundle, tokenizer=True)
    assert Bundle.open(bundle.path).digests() == before


def test_a_tokenizer_on_which_its_library_panics_is_refused(tmp_path: Path) -> None:
    """As of a template that names a special token which is not there."""
    folder = tmp_path / "bundle"
    model = hydrant.fuse(make_model("bert"), random_plan("bert", 2))
    bundle = hydrant.save_bundle(model, folder, processor=make_tokenizer(tmp_path / "source"))
    steps = json.loads((folder / "processor/tokenizer.json").read_bytes())
    steps["post_processor"]["pair"][0]["SpecialToken"]["id"] = "[NONE]"
    bundle.add({"processor/tokenizer.json": json.dumps(steps).encode()})
    done = run_cli("export", folder, "--tokenizer")
    assert done.returncode == 2
    assert (
        "error: the tokenizer fails on the pair of texts 'a' and 'a'; use the tokenizer.json that the model"
        in done.stderr
    )
    assert "Traceback" not in done.stderr


def test_images_have_no_tokenizer(vit_checkpoint: Path, tmp_path: Path) -> None:
    bundle = hydrant.save_bundle(hydrant.fuse(make_model("vit"), random_plan("vit", 2)), tmp_path / "bundle")
    with pytest.raises(InputError, match="has no tokenizer of texts"):
        hydrant.export_onnx(bundle, tokenizer=True)


@pytest.mark.parametrize("name", ["uncased", "bytes"])
def test_texts_in_cpp_are_predicted_as_in_python(
    name: str, runner: Path, bundles: dict[str, Bundle], library: dict[str, str], tmp_path: Path
) -> None:
    bundle = bundles[name]
    (tmp_path / "lines.txt").write_text("\n".join([*TEXTS, "a\r"]) + "\n")
    with hydrant.load(bundle, "onnxruntime") as predictor:
        for words, inputs in (
            (TEXTS, TEXTS),
            (["--input", str(tmp_path / "lines.txt"), "--batch-size", "4"], [*TEXTS, "a"]),
            ([word for pair in PAIRS for word in ("--pair", *pair)], PAIRS),
        ):
            wanted = predictor.rows(predictor.predict(inputs), inputs)
            found = lines(run(runner, bundle.path, *words, **library))
            for mine, theirs in zip(found, wanted, strict=True):
                assert list(mine) == list(theirs)
                assert mine["input"] == (theirs["input"] if isinstance(theirs["input"], str) else list(theirs["input"]))
                for key in ("confidence", "predictive_entropy", "mutual_information"):
                    assert mine[key] == pytest.approx(theirs[key], abs=2e-6), key


def test_the_server_reads_texts(
    runner: Path, bundles: dict[str, Bundle], library: dict[str, str], monkeypatch: Any
) -> None:
    for key, value in library.items():
        monkeypatch.setenv(key, value)
    bundle = bundles["uncased"]
    with hydrant.load(bundle, "onnxruntime") as predictor:
        wanted = predictor.predict(PAIRS)
        rows = predictor.rows(predictor.predict(TEXTS), TEXTS)
    with serving(runner, bundle.path) as server:
        _, told, _ = server.ask("POST", "/predict", {"inputs": [*TEXTS[:1], {"text": TEXTS[1]}, *TEXTS[2:]]})
        np.testing.assert_allclose(
            [row["confidence"] for row in told["predictions"]], [row["confidence"] for row in rows], atol=2e-6
        )
        assert [row["input"] for row in told["predictions"]] == TEXTS
        tensors = [
            {"name": name, "datatype": "BYTES", "shape": [len(PAIRS)], "data": list(texts)}
            for name, texts in zip(("text", "text_pair"), zip(*PAIRS, strict=True), strict=True)
        ]
        status, told, _ = server.ask("POST", f"/v2/models/{bundle.path.name}/infer", {"inputs": tensors})
        assert status == 200
        np.testing.assert_allclose(told["outputs"][0]["data"], wanted.probabilities.ravel(), atol=2e-6)
        binary = {
            each["name"]: ("BYTES", [len(PAIRS), 1], raw("BYTES", [text.encode() for text in each["data"]]))
            for each in tensors
        }
        status, content, _ = server.ask_bytes(f"/v2/models/{bundle.path.name}/infer", *binary_body(binary))
        assert (status, json.loads(content)["outputs"]) == (200, told["outputs"])
        binary["text"] = ("BYTES", [len(PAIRS)], raw("BYTES", [b"a", b"\xff\xfe", b"c"]))
        status, content, _ = server.ask_bytes(f"/v2/models/{bundle.path.name}/infer", *binary_body(binary))
        assert (status, "input 1, '??', is not UTF-8" in content.decode()) == (400, True)
        _, metadata, _ = server.ask("GET", f"/v2/models/{bundle.path.name}")
        assert metadata["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
        refusal = server.refusal(400, "POST", "/predict", {"inputs": ["a"], "aggregation": "mean"})
        assert refusal == "aggregation is for models that tag tokens; this one answers for whole inputs; leave it out"
        assert "is an empty text" in server.refusal(400, "POST", "/predict", {"inputs": ["a", " \u2003"]})
        assert "holds the character NUL" in server.refusal(400, "POST", "/predict", {"inputs": ["a\0b"]})


def test_what_the_runner_refuses(
    runner: Path, bundles: dict[str, Bundle], library: dict[str, str], tmp_path: Path
) -> None:
    path = bundles["bytes"].path
    absent = {**library, "ORTEXTENSIONS_LIBRARY": "/no/library.so"}
    refused(
        run(runner, path, "a text", **absent), "texts need the library of ONNX Runtime's extensions: /no/library.so"
    )
    refused(run(runner, path, "a text", **{**library, "LD_PRELOAD": ""}), "LD_PRELOAD=libpython")
    refused(run(runner, path, "a <s> b", **library), "holds '<s>', a special token, which tokenizer.onnx does not read")
    refused(run(runner, path, "", **library), "input 0 is an empty text; expected at least one word")
    refused(run(runner, path, "--pair", "a", " ", **library), "a pair whose second text is empty")
    refused(run(runner, path, "--pair", "a", **library), "--pair lacks a text")
    refused(run(runner, path, "a", "--aggregation", "max", **library), "aggregation is for models that tag tokens")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9\n")
    refused(run(runner, path, tmp_path / "latin.txt", **library), "is a file; did you mean --input")
    refused(run(runner, path, "--input", tmp_path / "latin.txt", **library), "is not UTF-8")
    (tmp_path / "x.csv").write_text("text\na\n")
    refused(run(runner, path, "--input", tmp_path / "x.csv", **library), "is a table; expected a text on each line")
    refused(run(runner, path, "--input", tmp_path / "absent.txt", **library), "cannot read")


def test_a_graph_of_another_tokenizer_is_refused_and_shown(
    runner: Path, bundles: dict[str, Bundle], library: dict[str, str], tmp_path: Path
) -> None:
    bundle = hydrant.Bundle.open(shutil.copytree(bundles["bytes"].path, tmp_path / "bundle"))
    assert "tokenizer.onnx: texts and pairs of texts" in run_cli("inspect", bundle.path).stdout
    config = json.loads((bundle.path / "processor/tokenizer_config.json").read_text())
    changed = json.dumps({**config, "model_max_length": 20}).encode()
    bundle.add({"processor/tokenizer_config.json": changed})
    refused(run(runner, bundle.path, "a text", **library), "was made from another tokenizer than processor/ holds")
    assert "OUTDATED: the tokenizer has changed since" in run_cli("inspect", bundle.path).stdout


@pytest.mark.parametrize("tags", [False, True])
def test_tokens_that_hold_one_another_are_found_whole_however_many_there_are(
    tags: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The longest first, as the tokenizer does."""
    bundle = with_added_tokens(tmp_path, make_tagger if tags else make_model, ["<e>", "<e>2"])
    monkeypatch.setattr("hydrant.export.tokenizer_onnx.fuzzed_texts", lambda *_: [])  # those of the tokens alone
    content, told = made_tokenizer(bundle, 0)
    assert told.texts == 5  # behind the first sixteen
    run, processor = _session(content), bundle.processor()
    assert isinstance(processor, TextProcessor)
    for text in ("a<e>2b", "<t3><e>2 <e>"):
        assert run([text])["input_ids"][0].tolist() == processor.encode([text])[0].ids, text


def test_a_token_of_two_words_is_none_of_a_list_of_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = with_added_tokens(tmp_path, make_tagger, ["<e f>"])
    monkeypatch.setattr("hydrant.export.tokenizer_onnx.fuzzed_texts", lambda *_: [])
    with pytest.raises(InputError, match=r"would give other ids than the tokenizer for 'a<e f>b <e f>'"):
        made_tokenizer(bundle, 0)


def with_added_tokens(folder: Path, make: Any, tokens: list[str]) -> Bundle:
    """A bundle whose tokenizer has these behind many others."""
    tokenizer = letters_tokenizer(folder / "source", lower=True)
    tokenizer.add_special_tokens({"additional_special_tokens": [*(f"<t{n}>" for n in range(14)), *tokens]})
    ensemble = hydrant.fuse(make("bert", vocab_size=400), random_plan("bert", 2))
    return hydrant.save_bundle(ensemble, folder / "bundle", processor=tokenizer)
