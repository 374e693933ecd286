"""Folders of pictures."""

from __future__ import annotations

import logging
import struct
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from concrete_kmeans.limits import max_pixels
from concrete_kmeans.readers.contents import Data, Options, Preparation, need
from concrete_kmeans.readers.files import ImageFiles, Input

__all__ = ["ImagePreparation"]

#: Numbers in a row; more would make a network of a gigabyte.
MAX_FEATURES = 2**16
#: Formats that pillow may try, whatever a file is called.
DECODERS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
#: Turns of a camera, in EXIF, that exchange height and width.
SIDEWAYS, ORIENTATION = (5, 6, 7, 8), 0x0112
#: Modes of pillow without colour.
GREY = ("1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "I;16N")


@dataclass(frozen=True)
class ImagePreparation(Preparation):
    """Pictures of one size, 8 bits a channel.

    Turned as the camera says. Resized, where asked for, by stretching. Of an animation, the first
    picture. Transparent parts become white; 16 bits become 8.
    """

    name: ClassVar[str] = "images"

    size: list[int]
    """Height and width."""
    mode: Literal["grey", "rgb"]
    resize: bool

    @classmethod
    def learn(cls, found: Any, options: Options) -> tuple[Data, ImagePreparation]:
        """Find the size and whether there is colour."""
        given: ImageFiles = found
        for option, value in (
            ("--columns", options.columns),
            ("--drop", options.drop),
            ("--label-column", options.label_column),
            ("--id-column", options.id_column),
        ):
            if value:
                raise ValueError(f"{option} has no meaning here: {given.name} holds pictures")
        sizes, coloured = [], False
        for path in given.paths:
            with _opened(path) as picture:
                sizes.append(_turned_size(picture))
                coloured = coloured or not _is_grey(picture)
        if options.size is None:
            _check_same(given, sizes)
        size = list(options.size or sizes[0])
        mode: Literal["grey", "rgb"] = "rgb" if coloured else "grey"
        if options.mode != "auto":
            mode = options.mode
        features = size[0] * size[1] * (3 if mode == "rgb" else 1)
        if features > MAX_FEATURES:
            raise ValueError(
                f"pictures of {size[0]}x{size[1]} are {features} numbers each, more than "
                f"{MAX_FEATURES}: make them smaller by --size HxW, as --size 64x64"
            )
        preparation = cls(size, mode, options.size is not None)
        return preparation.apply(given), preparation

    def apply(self, found: Input) -> Data:
        """Decode another folder."""
        if not isinstance(found, ImageFiles):
            raise ValueError(f"{found.name} holds no pictures, as the folder of the fit did")  # noqa: TRY004
        height, width = self.size
        shape = (height, width) if self.mode == "grey" else (3, height, width)
        rows = np.empty((len(found.paths), *shape), np.uint8)
        for row, path in zip(rows, found.paths, strict=True):
            row[...] = self._decoded(path)
        notes = []
        if found.skipped:
            files = "1 file" if found.skipped == 1 else f"{found.skipped} files"
            notes.append(f"Passed over, being no pictures: {files} in {found.name}.")
        return Data(
            rows,
            "image",
            [path.relative_to(found.folder).as_posix() for path in found.paths],
            labels=found.classes,
            items=[str(path) for path in found.paths],
            notes=notes,
        )

    def _decoded(self, path: Path) -> npt.NDArray[np.uint8]:
        """(H, W) or (3, H, W)."""
        image, ops = need("PIL.Image", "pictures"), need("PIL.ImageOps", "pictures")
        height, width = self.size
        with _opened(path) as picture:
            upright = ops.exif_transpose(picture)
            if upright.size != (width, height) and not self.resize:
                raise _RefusedError(
                    f"{path} is {upright.height}x{upright.width}, but pictures of the fit were "
                    f"{height}x{width}"
                )
            plain = _plain(upright, self.mode)
            if plain.size != (width, height):
                plain = plain.resize((width, height), image.Resampling.BILINEAR, reducing_gap=2.0)
            pixels = np.asarray(plain, np.uint8)
        return np.moveaxis(pixels, 2, 0) if self.mode == "rgb" else pixels


class _RefusedError(Exception):
    """A picture that is whole, but not one to be read."""


#: What pillow raises for damaged files.
DAMAGE = (
    *(OSError, SyntaxError, EOFError, ValueError, TypeError, KeyError, IndexError, AttributeError),
    *(OverflowError, MemoryError, RuntimeError, ZeroDivisionError, struct.error, zlib.error),
)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A picture, its pixels not decoded yet; whatever is wrong with it names the file."""
    image = need("PIL.Image", "pictures")
    most = max_pixels()
    try:
        with warnings.catch_warnings(), _own_limit(image, most):
            warnings.simplefilter("ignore")  # of metadata that is out of order; of size, see below
            with image.open(path, formats=DECODERS) as picture:
                _check_pixels(path, picture, most)
                yield picture
    except _RefusedError as error:
        raise ValueError(str(error)) from error
    except image.DecompressionBombError as error:
        raise ValueError(_too_many(path, "more pixels", most)) from error
    except image.UnidentifiedImageError as error:
        raise ValueError(f"{path} cannot be read as a picture") from error
    except DAMAGE as error:
        said = " ".join(str(error).split())
        raise ValueError(f"{path} cannot be read as a picture: {said}") from error


@contextmanager
def _own_limit(image: Any, most: int) -> Iterator[None]:
    """Pillow's limit out of the way of ours, which may be larger; what it logs is raised too."""
    before, image.MAX_IMAGE_PIXELS = image.MAX_IMAGE_PIXELS, most
    logger = logging.getLogger("PIL")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        image.MAX_IMAGE_PIXELS = before
        logger.setLevel(level)


def _check_pixels(path: Path, picture: Any, most: int) -> None:
    if picture.width * picture.height > most:
        raise _RefusedError(_too_many(path, f"{picture.height}x{picture.width} pixels, more", most))


def _too_many(path: Path, what: str, most: int) -> str:
    return (
        f"{path} declares {what} than the {most} that are decoded; if you trust it, allow more, "
        "as CKM_MAX_PIXELS=500M in the environment"
    )


def _turned_size(picture: Any) -> tuple[int, int]:
    """Height and width as the camera meant them."""
    height, width = picture.height, picture.width
    turned = picture.getexif().get(ORIENTATION) in SIDEWAYS
    return (width, height) if turned else (height, width)


def _is_grey(picture: Any) -> bool:
    if picture.mode == "P":
        return bool(picture.convert("RGB").convert("L").convert("RGB") == picture.convert("RGB"))
    return picture.mode in GREY


def _plain(picture: Any, mode: str) -> Any:
    """8 bits, grey or RGB, nothing transparent."""
    image = need("PIL.Image", "pictures")
    if picture.mode.startswith("I"):  # 16 bits, though pillow may keep them in 32
        picture = image.fromarray((np.asarray(picture).clip(0, 2**16 - 1) >> 8).astype(np.uint8))
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        white = image.new("RGBA", picture.size, "white")
        picture = image.alpha_composite(white, picture)
    return picture.convert("L" if mode == "grey" else "RGB")


def _check_same(given: ImageFiles, sizes: list[tuple[int, int]]) -> None:
    for path, size in zip(given.paths, sizes, strict=True):
        if size != sizes[0]:
            raise ValueError(
                f"pictures must have one size: {given.paths[0]} is {sizes[0][0]}x{sizes[0][1]}, "
                f"{path} is {size[0]}x{size[1]}; --size HxW resizes them"
            )
