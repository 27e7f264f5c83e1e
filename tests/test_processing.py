import json
import struct
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hydrant.bundle.architecture import Architecture
from hydrant.data.images import KINDS, ImageProcessor
from hydrant.data.processor import from_transformers
from hydrant.data.text import TextProcessor, WordProcessor
from hydrant.errors import InputError
from hydrant.models.family_registry import architecture_of
from PIL import Image
from support import WORDS, make_model, make_tokenizer, many_scans
from transformers import AutoTokenizer, CLIPImageProcessorPil, DeiTImageProcessorPil, ViTImageProcessorPil


def png_of(size: int, *, edge: int = 8, depth: int = 8, kind: int = 2, interlaced: bool = False) -> bytes:
    """A black PNG image, whose compressed data unpack to so many bytes: a row of 8 pixels has 25."""
    header = struct.pack(">IIBBBBB", edge, edge, depth, kind, 0, 0, interlaced)
    png = b"\x89PNG\r\n\x1a\n"
    for name, content in ((b"IHDR", header), (b"IDAT", zlib.compress(bytes(size))), (b"IEND", b"")):
        png += struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
    return png


SIZES = [(12, 12), (13, 17), (31, 14), (7, 5), (40, 40), (1, 1), (3, 50)]  # width, height
SIDE = 12

TEXTS = [
    "hello world", "What is the WEATHER today?", "money", "unknown words everywhere", "  héllo,\tworld!\n",
    "transfer " * 60, "[SEP] hello [MASK]", "世界 hello",
]  # fmt: skip


@cache
def text_architecture(family: str = "bert", **settings: Any) -> Architecture:
    return architecture_of(make_model(family, **settings))


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    make_tokenizer(folder / "source").save_pretrained(folder)
    return folder


def copied(source: Path, target: Path, **config: Any) -> Path:
    """A tokenizer's files in a new folder, with changes to ``tokenizer_config.json``."""
    target.mkdir()
    (target / "tokenizer.json").write_bytes((source / "tokenizer.json").read_bytes())
    settings = json.loads((source / "tokenizer_config.json").read_bytes())
    (target / "tokenizer_config.json").write_text(json.dumps({**settings, **config}))
    return target


def test_text_tensors_equal_the_tokenizers(tokenizer_folder: Path) -> None:
    processor = TextProcessor(tokenizer_folder, text_architecture())
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    expected = tokenizer(TEXTS, padding=True, truncation=True, return_tensors="np")
    tensors = processor.collate(processor.encode(TEXTS))
    assert set(tensors) == set(expected)
    for name, array in tensors.items():
        assert array.dtype == np.int64
        np.testing.assert_array_equal(array, expected[name], err_msg=name)
    assert tensors["input_ids"].shape == (len(TEXTS), 40)


@pytest.mark.parametrize(("read", "place", "value", "told"), [
    (TextProcessor, ("post_processor", "single", 0, "SpecialToken", "id"), "[NONE]", "input 4, 'unheard'"),  # panic
    (TextProcessor, ("post_processor", "special_tokens", "[CLS]", "ids"), [10**6], "input 4 the token id 1000000"),
    (WordProcessor, ("post_processor", "single", 0, "SpecialToken", "type_id"), 2, "input 4 the token type 2"),
])  # fmt: skip
def test_a_tokenizer_that_fails_on_a_text_is_refused(
    read: type[TextProcessor], place: tuple[Any, ...], value: Any, told: str, tokenizer_folder: Path, tmp_path: Path
) -> None:
    """Where not even the library that reads its file, nor every backend that reads its ids, would tell."""
    folder = copied(tokenizer_folder, tmp_path / "damaged")
    tokenizer = json.loads((folder / "tokenizer.json").read_bytes())
    part = tokenizer
    for step in place[:-1]:
        part = part[step]
    part[place[-1]] = value
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(InputError, match=told):
        read(folder, text_architecture()).encode(["unheard", "hello"], first=4)


@pytest.mark.parametrize(("family", "settings", "configured", "expected"), [
    ("bert", {}, 16, 16),
    ("bert", {}, int(1e30), 40),
    ("bert", {"max_position_embeddings": 20}, 40, 20),
    ("roberta", {}, 512, 38),  # positions are counted from the padding id + 1
])  # fmt: skip
def test_longest_text(
    family: str, settings: dict[str, Any], configured: int, expected: int, tokenizer_folder: Path, tmp_path: Path
) -> None:
    folder = copied(tokenizer_folder, tmp_path / "copy", model_max_length=configured)
    processor = TextProcessor(folder, text_architecture(family, **settings))
    assert processor.max_tokens == expected
    assert processor.encode(["money " * 100])[0].tokens == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (" \t\n", "empty text"), (("hello", " "), "second text is empty"), (("hello", "\x00"), "no token"),
        ("\x00\x01", "no token"), ("\ud800", "surrogate"), ("x" * (2**24 + 1), "16777217"),
    ],
    ids=range(6),
)  # fmt: skip
def test_unusable_text_is_named(text: Any, message: str, tokenizer_folder: Path) -> None:
    processor = TextProcessor(tokenizer_folder, text_architecture())
    with pytest.raises(InputError, match=f"input 8.*{message}"):
        processor.encode(["hello", text], first=7)


DEEP = {
    "png": png_of(26, edge=2, depth=16),
    "grey png with alpha": png_of(18, edge=2, depth=16, kind=4),
    "ppm": b"P6 2 2 65535\n" + bytes(24),
}
"""Files of 2 by 2 pixels with 16 bits per channel, of which Pillow would keep the upper 8."""


@pytest.mark.parametrize("kind", DEEP)
def test_files_of_more_than_8_bits_are_refused(kind: str, tmp_path: Path) -> None:
    """In colour, too, where Pillow drops the lower 8."""
    (tmp_path / "deep").write_bytes(DEEP[kind])
    with Image.open(tmp_path / "deep") as opened:
        assert opened.mode in ("RGB", "RGBA", "LA")
        opened.load()
    processor = from_transformers(CONFIGURATIONS["vit"](), image_architecture())
    for image in (tmp_path / "deep", DEEP[kind]):
        with pytest.raises(InputError, match=r"input 3 .*16 bits per channel"):
            processor.encode([image], first=3)


def test_missing_and_malformed_files_of_a_tokenizer_are_refused(tokenizer_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"tokenizer\.json"):
        TextProcessor(tmp_path, text_architecture())
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match=r"cannot read .*tokenizer\.json"):
        TextProcessor(tmp_path, text_architecture())
    folder = copied(tokenizer_folder, tmp_path / "copy")
    with pytest.raises(InputError, match=f"token ids up to {len(WORDS) - 1}"):
        TextProcessor(folder, text_architecture(vocab_size=len(WORDS) - 1))
    (folder / "tokenizer_config.json").write_text("[1]")
    with pytest.raises(InputError, match=r"tokenizer_config\.json"):
        TextProcessor(folder, text_architecture())


CONFIGURATIONS: dict[str, Callable[[], Any]] = {
    "vit": lambda: ViTImageProcessorPil(size={"height": SIDE, "width": SIDE}),
    "vit nearest": lambda: ViTImageProcessorPil(size={"height": SIDE, "width": SIDE}, resample=0),
    "vit bare": lambda: ViTImageProcessorPil(
        size={"height": SIDE, "width": SIDE}, do_normalize=False, do_rescale=False
    ),
    "deit": lambda: DeiTImageProcessorPil(
        size={"height": SIDE + 3, "width": SIDE + 2}, crop_size={"height": SIDE, "width": SIDE}
    ),
    "deit crop larger": lambda: DeiTImageProcessorPil(
        size={"height": SIDE - 5, "width": SIDE + 5}, crop_size={"height": SIDE, "width": SIDE}
    ),
    "crop alone": lambda: DeiTImageProcessorPil(do_resize=False, crop_size={"height": SIDE, "width": SIDE}),
    "clip": lambda: CLIPImageProcessorPil(size={"shortest_edge": SIDE + 1}, crop_size={"height": SIDE, "width": SIDE}),
    "clip crop larger": lambda: CLIPImageProcessorPil(size={"shortest_edge": SIDE - 3}, crop_size=SIDE),
}


@cache
def image_architecture(**settings: Any) -> Architecture:
    return architecture_of(make_model("vit", **settings))


def picture(width: int, height: int, mode: str = "RGB", seed: int = 0) -> Image.Image:
    channels = {"RGB": 3, "RGBA": 4, "L": 1, "LA": 2}[mode]
    pixels = np.random.default_rng([seed, width, height]).integers(0, 256, (height, width, channels), np.uint8)
    return Image.fromarray(pixels[:, :, 0] if channels == 1 else pixels)


def pixels_of(processor: Any, images: list[Any]) -> np.ndarray:
    pixels = processor.collate(processor.encode(images))["pixel_values"]
    assert pixels.dtype == np.float32
    return pixels


def agree(found: np.ndarray, reference: Any, scale: float = 1.0, of: str = "") -> None:
    expected = np.asarray(reference["pixel_values"], np.float64)
    assert found.shape == expected.shape, of
    assert np.abs(found - expected).max() <= 1e-6 * max(scale, np.abs(expected).max()), of


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_pixels_equal_the_image_processors(name: str) -> None:
    reference = CONFIGURATIONS[name]()
    processor = from_transformers(reference, image_architecture())
    for size in SIZES:
        image = picture(*size)
        agree(pixels_of(processor, [image]), reference([image], return_tensors="np"), of=f"{size[0]} by {size[1]}")


@pytest.mark.parametrize("mode", ["L", "RGBA", "LA"])
def test_other_modes_become_rgb(mode: str) -> None:
    reference = CONFIGURATIONS["vit"]()
    image = picture(19, 14, mode)
    pixels = pixels_of(from_transformers(reference, image_architecture()), [image])
    agree(pixels, reference([image.convert("RGB")], return_tensors="np"))


def test_orientation_of_a_photo_is_honoured(tmp_path: Path) -> None:
    image = picture(19, 14)
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 270 degrees to view
    image.save(tmp_path / "a.png", exif=exif)
    pixels = pixels_of(
        from_transformers(CONFIGURATIONS["vit"](), image_architecture()),
        [
            turned := image.transpose(Image.Transpose.ROTATE_270), np.asarray(turned), tmp_path / "a.png",
            str(tmp_path / "a.png"), Image.open(tmp_path / "a.png"),
        ],
    )  # fmt: skip
    assert all(np.array_equal(pixels[0], other) for other in pixels[1:])


def test_gray_model_reads_one_channel() -> None:
    reference = ViTImageProcessorPil(size={"height": SIDE, "width": SIDE}, image_mean=[0.4], image_std=[0.2])
    gray = picture(19, 14, "L")
    processor = from_transformers(reference, image_architecture(num_channels=1))
    pixels = pixels_of(processor, [gray, gray.convert("RGB")])
    agree(pixels[:1], reference([gray], return_tensors="np"))
    np.testing.assert_array_equal(pixels[0], pixels[1])


@pytest.mark.parametrize(("image", "message"), [
    (np.zeros((4, 4, 3), np.float32), r"input 7 .*float32 \[4, 4, 3\]"),
    (Image.new("I;16", (4, 4)), "input 7 .*I;16"),
    ("https://example.org/cat.png", r"https://.*URL"),
    (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n%%EOF\n", "EPS"),
    (png_of(125), "input 7: .*pixels end early"),
    (png_of(107, interlaced=True), "input 7: .*pixels end early"),
    (many_scans(1000), "input 7: .*1000 scans"),
])  # fmt: skip
def test_unusable_image_is_named(image: Any, message: str) -> None:
    processor = from_transformers(CONFIGURATIONS["vit"](), image_architecture())
    with pytest.raises(InputError, match=message):
        processor.encode([image], first=7)


def test_an_image_that_would_grow_beyond_all_memory_is_refused(tmp_path: Path) -> None:
    crop = {"size": {"shortest_edge": 224}, "do_center_crop": True, "crop_size": {"height": SIDE, "width": SIDE}}
    processor = configured(tmp_path, **crop)
    with pytest.raises(InputError, match=r"input 7 would be resized to \[224, 13440000\]"):
        processor.encode([np.zeros((1, 60_000), np.uint8)], first=7)
    assert processor.encode([np.zeros((1, 200), np.uint8)])[0].arrays["pixel_values"].shape == (3, SIDE, SIDE)


def configured(folder: Path, architecture: Architecture | None = None, **changes: Any) -> ImageProcessor:
    config = {
        "do_resize": True, "size": {"height": SIDE, "width": SIDE}, "resample": 2, "do_rescale": True,
        "rescale_factor": 1 / 255, "do_normalize": True, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
        **changes,
    }  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps({k: v for k, v in config.items() if v != "absent"}))
    return ImageProcessor(folder, architecture or image_architecture())


@pytest.mark.parametrize(("key", "value", "named"), [
    ("do_something_new", True, "do_something_new"),
    ("image_processor_type", "PerceiverImageProcessorFast", "Perceiver"),
])  # fmt: skip
def test_what_asks_for_more_than_is_done_is_refused(key: str, value: Any, named: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=named):
        configured(tmp_path, **{key: value})
    assert configured(tmp_path, do_something_new=False).encode([picture(5, 5)])


@pytest.mark.parametrize("kind", KINDS)
def test_image_processors_that_are_known_do_what_their_keys_say(kind: str) -> None:
    import transformers

    try:
        made: Any = getattr(transformers, f"{kind}ImageProcessorPil")()
    except ImportError as error:  # of Segformer in transformers 5.12
        pytest.skip(f"this version asks for more than PIL: {error}")
    size = made.crop_size if made.do_center_crop else made.size
    spec: Any = SimpleNamespace(modality="image", channels=3, image_height=size["height"], image_width=size["width"])
    images = [picture(90, 60), picture(40, 100)]
    pixels = pixels_of(from_transformers(made, spec), images)
    agree(pixels, made(images, return_tensors="np"))
