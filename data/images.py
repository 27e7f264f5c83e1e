"""Image → pixel tensor, in the order and arithmetic of transformers' PIL image processors, without torch."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from ..errors import InputError, cut, listing
from .raw_inputs import Unusable
from .specs import InputSpec, processor_settings
from .tensors import EncodedTensors, stacked

MOST_SCANS = 1000  # per JPEG, each over all pixels; programs write a dozen
STEPS = ("do_center_crop", "do_convert_rgb", "do_normalize", "do_rescale", "do_resize")
OTHERS = ("crop_pct", "rescale_offset", "include_top")  # further keys that enable a step, like ``do_…``

# Image processors of transformers that their configuration describes completely.
KINDS = (
    "ViT", "DeiT", "Beit", "CLIP", "ChineseCLIP", "Siglip", "Blip", "Bit", "Pvt", "Segformer", "MobileNetV1",
    "MobileNetV2", "OwlViT",
)  # fmt: skip

KIND = re.compile(r"(\w+?)(ImageProcessor|FeatureExtractor)(Fast|Pil)?")  # older names included
DEEP = re.compile(r";16[BLN]|SGI16")  # PIL's names for 16 bits per channel, of which it would drop 8
Edge = Annotated[int, msgspec.Meta(ge=1, le=2**15)]
Size = Edge | dict[str, Edge | None] | None
Mean = Annotated[float, msgspec.Meta(ge=-1e6, le=1e6)]
Std = Annotated[float, msgspec.Meta(ge=1e-6, le=1e6)]


class ImageSettings(msgspec.Struct, frozen=True):
    """Supported settings of ``preprocessor_config.json``."""

    do_resize: bool | None = True
    do_center_crop: bool | None = False
    do_rescale: bool | None = True
    do_normalize: bool | None = True
    size: Size = None
    crop_size: Size = None
    resample: Annotated[int, msgspec.Meta(ge=0, le=5)] = 2
    rescale_factor: Mean = 1 / 255
    image_mean: Mean | list[Mean] | None = None
    image_std: Std | list[Std] | None = None


class ImageProcessor:
    """Prepares images for one model. Safe to use from many threads."""

    def __init__(self, folder: Path, spec: InputSpec) -> None:
        self._channels = spec.channels
        self._expected = (spec.channels, spec.image_height, spec.image_width)
        file = folder / "preprocessor_config.json"
        _check_steps(processor_settings(folder, dict[str, Any]), file)
        settings = processor_settings(folder, ImageSettings)
        self._size = _size(settings.size, file) if settings.do_resize else None
        self._crop = _size(settings.crop_size, file, edges=False) if settings.do_center_crop else None
        self._resample, self._scale = settings.resample, settings.rescale_factor if settings.do_rescale else None
        self._mean = self._per_channel(settings.image_mean, file) if settings.do_normalize else None
        self._std = self._per_channel(settings.image_std, file) if settings.do_normalize else None
        fixed, read = self._crop or self._size, self._expected[1:]
        if fixed is not None and tuple(fixed.values()) != ((min(read),) if "shortest_edge" in fixed else read):
            size = f"the model reads {read[0]} by {read[1]} pixels; use its own image processor"
            raise InputError(f"{file} makes images of {fixed}, but {size}")

    def encode(self, images: Sequence[Any], first: int = 0) -> list[EncodedTensors]:
        """Preprocess images: paths, bytes of image files, PIL images, or uint8 arrays [H, W] or [H, W, 3]."""
        return [EncodedTensors({"pixel_values": self._pixels(*each)}) for each in enumerate(images, start=first)]

    def collate(self, items: Sequence[EncodedTensors]) -> dict[str, np.ndarray]:
        """``pixel_values`` [B, channels, height, width] float32."""
        return stacked(items)

    def describe(self) -> dict[str, Any]:
        """Preprocessing settings, for other runtimes that prepare the same tensors."""
        sizes = {"resize": self._size, "resample": self._resample, "center_crop": self._crop, "scale": self._scale}
        mean, std = (None if each is None else each.tolist() for each in (self._mean, self._std))
        return {"modality": "image", "channels": self._channels, **sizes, "mean": mean, "std": std}

    def _per_channel(self, value: Any, file: Path) -> np.ndarray:
        values = np.asarray([value] * self._channels if isinstance(value, float) else value, np.float32)
        if values.shape != (self._channels,):
            raise InputError(f"{file} has image_mean or image_std {value}; expected {self._channels} numbers")
        return values

    def _pixels(self, index: int, image: Any) -> np.ndarray:
        from PIL import Image

        picture = self._open(image, index)
        if self._size is not None:
            width, height = _target(self._size, picture.size)
            if width * height > 2**28:  # a long and narrow image would fill the memory
                raise InputError(f"input {index} would be resized to [{height}, {width}] pixels; crop it first")
            picture = picture.resize((width, height), resample=Image.Resampling(self._resample))
        pixels = np.asarray(picture)
        pixels = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)  # [channels, height, width]
        if self._crop is not None:
            pixels = _center_crop(pixels, self._crop["height"], self._crop["width"])
        if pixels.shape != self._expected:
            size = f"input {index} becomes {pixels.shape[1]} by {pixels.shape[2]} pixels"
            raise InputError(f"{size}; the model reads {self._expected[1]} by {self._expected[2]}")
        values = pixels.astype(np.float32)
        if self._scale is not None:
            values = (pixels.astype(np.float64) * self._scale).astype(np.float32)
        if self._mean is not None and self._std is not None:
            values = (values - self._mean[:, None, None]) / self._std[:, None, None]
        return np.ascontiguousarray(values)

    def _open(self, image: Any, index: int) -> Any:
        from PIL import Image

        if isinstance(image, Unusable):
            raise InputError(f"input {index} {image.reason}")
        if isinstance(image, str | Path | bytes | bytearray | Image.Image):
            picture = upright(image, index)
        elif isinstance(image, np.ndarray):
            picture = _from_array(image, index)
        else:
            wanted = "a path, a PIL image, the bytes of a file or an array"
            raise InputError(f"input {index} is a {type(image).__name__}; expected {wanted}")
        if picture.mode in ("F", "I") or picture.mode.startswith("I;"):
            raise _too_deep(f"input {index} is an image of mode {picture.mode}")
        picture = picture.convert("LA") if picture.mode == "La" else picture
        return picture.convert("L" if self._channels == 1 else "RGB")


def _check_steps(config: dict[str, Any], file: Path) -> None:
    """Reject processors that perform, or may perform, unsupported steps."""
    for name in (config.get("image_processor_type"), config.get("feature_extractor_type")):
        kind = KIND.fullmatch(str(name))
        if name is not None and (kind is None or kind[1] not in KINDS):
            wrong = f"{file} has a {cut(name)}, which hydrant does not support"
            raise InputError(f"{wrong}; give ready tensors, or a processor of {listing(KINDS, len(KINDS))}")
    steps = sorted(key for key in config if config[key] and (key.startswith("do_") or key in OTHERS))
    if unknown := [key for key in steps if key not in STEPS]:
        raise InputError(f"{file} asks for {listing(unknown)}; hydrant supports only {listing(STEPS)}")


def upright(image: Any, index: int) -> Any:
    """Open a file, its bytes, or a PIL image, and rotate it as its EXIF data say."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    is_open = isinstance(image, Image.Image)
    file = io.BytesIO(image) if isinstance(image, bytes | bytearray) else image
    try:
        if image == "":  # Pillow before 11.3 raises another error
            raise ValueError("its path is empty")
        with contextlib.nullcontext(image) if is_open else Image.open(file) as opened:
            if not is_open and opened.format in ("EPS", "WMF"):  # PIL would run Ghostscript, or call Windows
                raise ValueError(f"it is {opened.format}, which another program would have to draw")
            if not is_open and opened.format in ("JPEG", "MPO"):
                _check_scans(opened.fp)
            if _is_deep(opened):
                raise _too_deep(f"input {index} is an image of 16 bits per channel")
            picture = ImageOps.exif_transpose(opened)
            picture.load()
            if not is_open and opened.format == "PNG":
                _check_complete(opened, file)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        name = f"image {image}" if isinstance(image, str | Path) and image != "" else f"input {index}"
        unknown = file is not image and isinstance(error, UnidentifiedImageError)
        reason = "bytes of no known kind" if unknown else getattr(error, "strerror", None) or cut(error, 100)
        if isinstance(image, str) and "://" in image:
            reason = "it is a URL; download the file first"
        raise InputError(f"cannot read {name}: {reason}; expected a complete file, bytes or PIL image") from error
    return picture


def _is_deep(opened: Any) -> bool:
    """Return True if an opened file has 16 bits per channel, of which decoding would lose 8."""
    for codec, _, _, arguments in () if opened.mode.startswith("I") else getattr(opened, "tile", ()):
        words = (codec, *arguments) if isinstance(arguments, tuple) else (codec, arguments)
        largest = words[2] if codec in ("ppm", "ppm_plain") and len(words) > 2 else 255
        if largest > 255 or any(isinstance(word, str) and DEEP.search(word) for word in words):
            return True
    return False


def _too_deep(what: str) -> InputError:
    return InputError(f"{what}; expected 8 bits per channel: convert it first (16 bits divided by 257, say)")


def _check_scans(file: Any) -> None:
    """Reject a JPEG file with so many scans that decoding would take hours."""
    place = file.tell()
    file.seek(0)
    scans = file.read().count(b"\xff\xda")
    file.seek(place)
    if scans > MOST_SCANS:
        raise ValueError(f"it has more than {MOST_SCANS} scans")


def _check_complete(picture: Any, file: Any) -> None:
    """Reject a PNG file whose pixels end early, at the end of a row: Pillow leaves the other rows black."""
    from PIL import Image

    last = picture.crop((0, picture.height - 1, *picture.size))
    if not picture.info.get("interlace") and last.getbbox() is not None:
        return  # nearly always
    with Image.open(file) as again:
        again.im = Image.new(again.mode, again.size, 255).im
        if again.tobytes() != picture.tobytes():
            raise ValueError("its pixels end early")


def has_image_name(path: str | Path) -> bool:
    """Return True if the name ends like that of an image."""
    from PIL import Image

    Image.init()
    return Path(path).suffix.lower() in Image.EXTENSION


def is_image(path: str | Path) -> bool:
    """Return True if a file is an image by its name or first bytes."""
    from PIL import Image

    if has_image_name(path):
        return True
    try:
        with Image.open(path):
            return True
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return False


def _from_array(image: np.ndarray, index: int) -> Any:
    from PIL import Image

    shaped = image.ndim == 2 or (image.ndim == 3 and image.shape[2] == 3)
    if image.dtype != np.uint8 or not shaped or 0 in image.shape:
        wrong = f"input {index} is an array of {image.dtype} {list(image.shape)}"
        raise InputError(f"{wrong}; expected uint8 [height, width] or [height, width, 3], or a dict of pixel_values")
    return Image.fromarray(image)


def _size(value: Size, file: Path, edges: bool = True) -> dict[str, int]:
    """A size as ``{"height", "width"}`` or, where ``edges`` allows it, ``{"shortest_edge"}``."""
    edges_by_name = {"height": value, "width": value} if isinstance(value, int) else value or {}
    size = {key: edge for key, edge in sorted(edges_by_name.items()) if edge is not None}
    if list(size) != ["height", "width"] and not (edges and list(size) == ["shortest_edge"]):
        raise InputError(f"{file} has a size of {cut(value)}; expected height and width, or shortest_edge to resize")
    return size


def _target(size: dict[str, int], current: tuple[int, int]) -> tuple[int, int]:
    if "shortest_edge" not in size:
        return size["width"], size["height"]
    width, height = current
    short = size["shortest_edge"]
    return (short, int(short * height / width)) if width <= height else (int(short * width / height), short)


def _center_crop(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """The middle of [channels, H, W]; smaller images are padded with zeros."""
    channels, rows, columns = pixels.shape
    grown = np.zeros((channels, max(rows, height), max(columns, width)), pixels.dtype)
    top, left = -(-(grown.shape[1] - rows) // 2), -(-(grown.shape[2] - columns) // 2)
    grown[:, top : top + rows, left : left + columns] = pixels
    top, left = (grown.shape[1] - height) // 2, (grown.shape[2] - width) // 2
    return grown[:, top : top + height, left : left + width]
