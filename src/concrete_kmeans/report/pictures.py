"""Many small pictures as one, for a page without further files."""

from __future__ import annotations

import base64
import io
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Atlas", "make_atlas", "n_cells", "resized"]

#: Pixels of an atlas, which a phone can still draw.
MAX_PIXELS = 2**23
#: Longest side of a picture in it.
MAX_SIDE = 64
#: Bytes above which a lossless atlas is not worth it.
MAX_LOSSLESS = 1_500_000
JPEG_QUALITY = 85


class Atlas(NamedTuple):
    """Pictures in rows of equal cells, left to right."""

    url: str
    """A data URL."""
    width: int
    """Of a picture; its cell may be wider."""
    height: int
    cell_width: int
    cell_height: int
    columns: int
    n_pictures: int
    smooth: bool
    """Whether enlarging should blur: not for pictures of a few pixels."""


def n_cells(height: int, width: int) -> int:
    """Pictures of that size that an atlas can hold."""
    h, w = _shrunk(height, width)
    return MAX_PIXELS // (_padded(h) * _padded(w))


def make_atlas(pixels: npt.NDArray[np.uint8]) -> Atlas:
    """Atlas of pictures (m, h, w) or (m, h, w, 3), larger ones made smaller."""
    Image = _pillow()
    h, w = _shrunk(*pixels.shape[1:3])
    pixels = resized(pixels, h, w)
    # a JPEG works in blocks of 8: pictures that share none do not bleed into each other
    cell_h, cell_w = _padded(h), _padded(w)
    columns = max(1, round((len(pixels) * cell_h / cell_w) ** 0.5))
    rows = -(-len(pixels) // columns)
    sheet = np.zeros((rows * cell_h, columns * cell_w, *pixels.shape[3:]), np.uint8)
    for i, picture in enumerate(pixels):
        top, left = i // columns * cell_h, i % columns * cell_w
        sheet[top : top + h, left : left + w] = picture
    image = Image.fromarray(sheet)
    data, kind = _saved(image, "PNG", optimize=True), "png"
    if len(data) > MAX_LOSSLESS:
        data, kind = _saved(image, "JPEG", quality=JPEG_QUALITY), "jpeg"
    url = f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
    return Atlas(url, w, h, cell_w, cell_h, columns, len(pixels), smooth=max(h, w) > 32)


def resized(pixels: npt.NDArray[np.uint8], height: int, width: int) -> npt.NDArray[np.uint8]:
    """Pictures of that size, of pictures (m, h, w) or (m, h, w, 3)."""
    if pixels.shape[1:3] == (height, width):
        return pixels
    Image = _pillow()
    out = np.empty((len(pixels), height, width, *pixels.shape[3:]), np.uint8)
    for i, picture in enumerate(pixels):
        out[i] = Image.fromarray(picture).resize((width, height), Image.Resampling.LANCZOS)
    return out


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(
            "pictures in a report need pillow: pip install 'concrete-kmeans[report]'"
        ) from error
    return Image


def _saved(image: Any, kind: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def _shrunk(height: int, width: int) -> tuple[int, int]:
    scale = min(1.0, MAX_SIDE / max(height, width))
    return max(1, round(height * scale)), max(1, round(width * scale))


def _padded(size: int) -> int:
    return -(-size // 8) * 8
