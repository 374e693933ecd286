import base64
import io
import sys

import numpy as np
import pytest
from PIL import Image

from concrete_kmeans.report import pictures


def opened(atlas):
    kind, _, data = atlas.url.partition(",")
    return kind, np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))


def cell(sheet, atlas, i):
    top = i // atlas.columns * atlas.cell_height
    left = i % atlas.columns * atlas.cell_width
    return sheet[top : top + atlas.height, left : left + atlas.width]


@pytest.mark.parametrize("shape", [(8, 8), (5, 13), (28, 28, 3), (1, 1)])
def test_every_picture_can_be_read_back(shape):
    pixels = np.random.default_rng(0).integers(0, 256, (23, *shape), np.uint8)
    atlas = pictures.make_atlas(pixels)
    kind, sheet = opened(atlas)
    assert kind == "data:image/png;base64"
    assert atlas.n_pictures == 23
    for i, picture in enumerate(pixels):
        assert np.array_equal(cell(sheet, atlas, i), picture)


def test_large_pictures_become_smaller_and_keep_their_shape():
    pixels = np.zeros((3, 200, 100), np.uint8)
    pixels[1] = 200
    atlas = pictures.make_atlas(pixels)
    assert (atlas.height, atlas.width) == (64, 32)
    _, sheet = opened(atlas)
    assert [int(cell(sheet, atlas, i).mean()) for i in range(3)] == [0, 200, 0]


def test_an_atlas_too_large_without_loss_is_a_jpeg_without_bleeding(monkeypatch):
    monkeypatch.setattr(pictures, "MAX_LOSSLESS", 100)
    pixels = np.zeros((40, 28, 28), np.uint8)
    pixels[::2] = 255
    atlas = pictures.make_atlas(pixels)
    kind, sheet = opened(atlas)
    assert kind == "data:image/jpeg;base64"
    for i in range(40):
        inner = cell(sheet, atlas, i)[:24, :24]  # whole blocks of 8
        assert np.abs(inner.astype(int) - (255 if i % 2 == 0 else 0)).max() < 8


@pytest.mark.parametrize("shape", [(28, 28), (64, 64), (500, 20), (1, 1)])
def test_as_many_as_announced_fit(shape):
    n = pictures.n_cells(*shape)
    h, w = (min(side, 64) for side in shape)
    if shape == (500, 20):
        h, w = 64, 3
    padded = (-(-h // 8) * 8) * (-(-w // 8) * 8)
    assert n * padded <= pictures.MAX_PIXELS < (n + 1) * padded


def test_without_pillow_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"concrete-kmeans\[report\]"):
        pictures.make_atlas(np.zeros((1, 2, 2), np.uint8))
