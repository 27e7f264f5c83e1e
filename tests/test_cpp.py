"""The C++ runner, compared with Python and the original models."""

import io
import json
import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import hydrant
import numpy as np
import pytest
from cpp import alike, build, inputs_of, lines, run
from hydrant.runtime.backends.backend_registry import ON_GPU
from PIL import Image
from support import predicted, run_cli

NEWER_HEADERS = {"engines", "plugin-sessions"}
"""Tests whose headers the oldest supported system lacks."""


def skipped(output: str) -> set[str]:
    """Tests that ctest skipped."""
    assert len(re.findall(r"Test +#", output)) > 5
    return set(re.findall(r"Test +#\d+: (\S+) .*Skipped", output))


def test_ctest_passes_on_the_same_fixture(runner: Path, golden: Path) -> None:
    done = run("ctest", "--preset", "release", HYDRANT_GOLDEN=str(golden))
    assert done.returncode == 0, done.stdout
    assert "100% tests passed" in done.stdout
    assert skipped(done.stdout) <= NEWER_HEADERS


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["sanitize", "sanitize-thread"])
def test_eight_threads_under_the_sanitizers(preset: str, runner: Path, golden: Path) -> None:
    build(preset)
    done = run("ctest", "--preset", preset, HYDRANT_GOLDEN=str(golden))
    assert done.returncode == 0, done.stdout
    assert skipped(done.stdout) <= NEWER_HEADERS


@pytest.mark.parametrize("name", ["vit-images", "scores", "scores-sigmoid", "labels", "labels-vit"])
def test_rows_are_those_of_hydrant_predict(name: str, runner: Path, golden: Path) -> None:
    case = golden / name
    words = ["--input", case / "inputs.npz"] if (case / "inputs.npz").is_file() else inputs_of(case)
    theirs = json.loads(run_cli("predict", case / "bundle", *words, "--json", "--probabilities").stdout)
    ours = lines(run(runner, case / "bundle", *words, "--probabilities"))
    assert len(ours) == len(theirs["predictions"]) > 0
    alike(ours, theirs["predictions"])
    (whole,) = lines(run(runner, case / "bundle", *words, "--json"))
    assert (whole["backend"], whole["count"]) == ("onnxruntime", len(ours))
    skipped_here = [each["backend"] for each in whole["fallbacks"] if each["backend"] in ON_GPU]
    assert skipped_here == [each["backend"] for each in theirs["fallbacks"]]


def test_tensors_and_arrays_of_images_from_files(runner: Path, golden: Path, tmp_path: Path) -> None:
    with np.load(golden / "vit/inputs.npz") as arrays, np.load(golden / "vit/expected.npz") as expected:
        np.save(tmp_path / "x.npy", arrays["pixel_values"].astype(np.float64))
        rows = lines(run(runner, golden / "vit/bundle", "--input", tmp_path / "x.npy", "--batch-size", 7))
        np.testing.assert_allclose([row["confidence"] for row in rows], expected["confidence"], atol=1e-6)
        assert [row["abstain"] for row in rows] == expected["abstain"].tolist()
        assert rows[3]["input"] == f"{tmp_path}/x.npy, row 3"
    image = np.asarray(Image.open(golden / "vit-images/images/large.jpg"))
    np.save(tmp_path / "one.npy", image)
    np.save(tmp_path / "stack.npy", np.stack([image, image[::-1]]))
    np.save(tmp_path / "grey.npy", image[:, :, 0].copy())
    np.savez(tmp_path / "labelled.npz", x=np.stack([image, image[::-1]]), y=np.array(["cat", "dog"]))
    files = [*(tmp_path / f"{name}.npy" for name in ("one", "stack", "grey")), tmp_path / "labelled.npz"]
    rows = lines(run(runner, golden / "vit-images/bundle", *files))
    with hydrant.load(golden / "vit-images/bundle", "onnxruntime") as predictor:
        flipped = np.ascontiguousarray(image[::-1])
        wanted = predictor.predict([image, image, flipped, image[:, :, 0].copy(), image, flipped])
    assert [row["index"] for row in rows] == list(range(6))
    np.testing.assert_allclose([row["mutual_information"] for row in rows], wanted.mutual_information, atol=1e-6)


def tiff(kind: int, value: bytes, count: int = 1, magic: bytes = b"II*\0") -> bytes:
    """EXIF with one orientation of a TIFF type."""
    place = value if len(value) <= 4 else struct.pack("<I", 26)
    entry = struct.pack("<HHI4s", 0x0112, kind, count, place)
    return magic + struct.pack("<IH", 8, 1) + entry + bytes(4) + (value if len(value) > 4 else b"")


TYPES = {1: "<B", 2: "<B", 3: "<H", 4: "<I", 6: "<b", 7: "<B", 8: "<h", 9: "<i", 11: "<f", 12: "<d", 13: "<I",
         16: "<Q"}  # fmt: skip
XMP = b'<x:xmpmeta><rdf:Description tiff:Orientation="8"/></x:xmpmeta>'
RAW = "Raw profile type exif"


def raw_profile(exif: bytes) -> str:
    return f"\nexif\n{len(exif):8}\n{exif[:9].hex()}\n{exif[9:].hex().upper()}\n"


def metadata_of_pictures() -> Iterator[tuple[str, list[bytes]]]:
    """Orientations in image files: the kind of file, and its segments or chunks."""
    head, six = b"Exif\0\0", tiff(3, b"\6\0")
    blocks = [tiff(kind, struct.pack(form, 6)) for kind, form in TYPES.items()]
    blocks += [tiff(5, struct.pack("<II", *pair)) for pair in ((12, 2), (6, 4), (6, 0))]
    blocks += [tiff(3, b"\6\0", magic=b"II\0*"), tiff(3, b"\6\0")[:21], tiff(4, b"\6\0\0\0", 9), tiff(3, b"\x09\0")]
    for block in blocks:
        yield "jpeg", [head + block, b"http://ns.adobe.com/xap/1.0/\0" + XMP]
        yield "png", [b"eXIf" + block]
    yield "jpeg", [head + six[:15], head + six[15:]]
    yield "png", [b"eXIf" + head + six]
    yield "png", [b"eXIf" + six, b"eXIf" + tiff(3, b"\3\0")]
    yield "png", [b"tEXt" + f"{RAW}\0{raw_profile(head + six)}".encode()]
    yield "png", [b"zTXt" + RAW.encode() + b"\0\0" + zlib.compress(raw_profile(six).encode())]
    yield "png", [b"iTXt" + f"{RAW}\0\0\0\0\0{raw_profile(head + six)}".encode(), b"eXIf" + tiff(3, b"\5\0")]
    for name in (b"tEXtXML:com.adobe.xmp\0", b"iTXtXML:com.adobe.xmp\0\0\0\0\0"):
        yield "png", [name + XMP]
    yield "png", [b"zTXtXML:com.adobe.xmp\0\0" + zlib.compress(XMP)]
    yield "png", [b"tEXta\0b"] * 1001 + [b"tEXtXML:com.adobe.xmp\0" + XMP]  # more than libpng stores


def picture_with(kind: str, parts: list[bytes], picture: Image.Image) -> bytes:
    """A file with these segments or chunks after its head."""
    file = io.BytesIO()
    picture.save(file, kind)
    content = file.getvalue()
    if kind == "jpeg":
        segments = (b"\xff\xe1" + struct.pack(">H", len(each) + 2) + each for each in parts)
        return content[:2] + b"".join(segments) + content[2:]
    chunks = (struct.pack(">I", len(each) - 4) + each + struct.pack(">I", zlib.crc32(each)) for each in parts)
    return content[:33] + b"".join(chunks) + content[33:]


@pytest.mark.filterwarnings("ignore:Metadata Warning", "ignore:Tag data", "ignore:Possibly corrupt", "ignore:Corrupt")
def test_pictures_are_turned_as_by_pillow(runner: Path, golden: Path, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (9, 14, 3), dtype=np.uint8)
    files = []
    for number, (kind, parts) in enumerate(metadata_of_pictures()):
        files.append(tmp_path / f"{number:03}.{kind}")
        files[-1].write_bytes(picture_with(kind, parts, Image.fromarray(pixels)))
    bundle = golden / "vit-images/bundle"
    wanted = predicted(bundle, files, "onnxruntime").predictive_entropy
    entropies = [row["predictive_entropy"] for row in lines(run(runner, bundle, *files))]
    np.testing.assert_allclose(entropies, wanted, atol=1e-6)
    assert len(set(np.round(wanted, 5))) >= 6, "some JPEG and PNG files are rotated"


def test_profile_has_the_keys_of_hydrant_profile(runner: Path, golden: Path) -> None:
    options = ("--batch", "1,8", "--seconds", "0", "--iterations", "12", "--threads", "1")
    (report,) = lines(run(runner, golden / "bert/bundle", "--profile", "--json", "--sequence", "9", *options))
    words = ("--json", "--sequence", 9, "--batch", "1,8", "--seconds", 0)
    theirs = json.loads(run_cli("profile", golden / "bert/bundle", *words).stdout)
    (other, _) = theirs["cases"]
    for case, batch in zip(report["cases"], (1, 8), strict=True):
        assert set(case) <= set(other)
        assert set(case["latency_ms"]) == set(other["latency_ms"])
        assert (case["batch"], case["sequence"], case["chunk"]) == (batch, 9, batch)
        times = case["latency_ms"]
        assert 0 < times["p50"] <= times["p90"] <= times["p95"] <= times["p99"]
        assert case["throughput"] == pytest.approx(batch / times["mean"] * 1e3)
    assert set(report) <= set(theirs)
