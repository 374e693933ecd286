"""Augmentations: against numpy and scipy, and each restart on its own."""

import functools

import numpy as np
import pytest
import torch
from scipy import ndimage
from sklearn.datasets import load_digits

from concrete_kmeans.augment import (
    FeatureDropout,
    GaussianNoise,
    ImageJitter,
    resolve_augment,
    warp_images,
)

DIGITS = torch.from_numpy(load_digits().data[:64].astype(np.float32))
ROWS = DIGITS.view(4, 16, 64)  # (R, B, D)
ALL = [ImageJitter(), GaussianNoise(0.3), FeatureDropout(0.4), FeatureDropout(0.4, fill=0.0)]


def generators(n, device="cpu"):
    return [torch.Generator(device).manual_seed(seed) for seed in range(n)]


def warped(image, shift=(0.0, 0.0), angle=0.0, zoom=1.0):
    """One (H, W) array."""
    images = torch.from_numpy(image)[None, None]
    one = functools.partial(torch.tensor, dtype=images.dtype)
    return warp_images(images, one([shift]), one([angle]), one([zoom]))[0, 0].numpy()


# --------------------------------------------------------------------------------------------- warp


IMAGE = np.random.default_rng(0).random((9, 12))


def test_nothing_to_do():
    np.testing.assert_allclose(warped(IMAGE), IMAGE, atol=1e-12)


@pytest.mark.parametrize("shift", [(1, 0), (0, 2), (-3, 1), (20, 0), (0.5, -1.25)])
def test_shift_as_scipy(shift):
    right, down = shift
    expected = ndimage.shift(IMAGE, (down, right), order=1, mode="grid-constant")
    np.testing.assert_allclose(warped(IMAGE, shift), expected, atol=1e-12)


@pytest.mark.parametrize("turns", [1, 2, 3, -1])
def test_quarter_turns_are_exact(turns):
    square = IMAGE[:, :9]
    np.testing.assert_allclose(
        warped(square, angle=90.0 * turns), np.rot90(square, turns), atol=1e-12
    )


@pytest.mark.parametrize("angle", [17.0, -40.0, 90.0])
def test_rotation_as_scipy_on_an_oblong_image(angle):
    expected = ndimage.rotate(IMAGE, angle, reshape=False, order=1, mode="grid-constant")
    np.testing.assert_allclose(warped(IMAGE, angle=angle), expected, atol=1e-12)


def test_turn_enlarge_and_move_as_scipy():
    angle, zoom, (right, down) = 25.0, 1.3, (1.5, -2.0)
    t = np.deg2rad(angle)
    # (row, column) of the source of a pixel, from the centre
    inverse = np.array([[np.cos(t), np.sin(t)], [-np.sin(t), np.cos(t)]]) / zoom
    centre = (np.array(IMAGE.shape) - 1) / 2
    offset = centre - inverse @ (centre + np.array([down, right]))
    expected = ndimage.affine_transform(IMAGE, inverse, offset, order=1, mode="grid-constant")
    np.testing.assert_allclose(warped(IMAGE, (right, down), angle, zoom), expected, atol=1e-12)


# -------------------------------------------------------------------------------------------- hooks


@pytest.mark.parametrize("augment", ALL, ids=repr)
def test_a_restart_draws_what_it_draws_alone(augment, untouched_random_state):
    before = ROWS.clone()
    together = augment(ROWS, generators(4))
    assert torch.equal(ROWS, before)
    assert together.shape == ROWS.shape
    assert together.dtype == ROWS.dtype
    assert not torch.allclose(together, ROWS)
    for r, own in enumerate(generators(4)):
        torch.testing.assert_close(augment(ROWS[r : r + 1], [own])[0], together[r])
    again = augment(ROWS, generators(4))
    assert torch.equal(again, together)


@pytest.mark.parametrize("augment", ALL, ids=repr)
def test_rows_of_a_batch_differ_and_float64_stays(augment):
    same = torch.stack([DIGITS[0], DIGITS[1]]).repeat_interleave(4, 0).double().unsqueeze(0)
    result = augment(same, generators(1))
    assert result.dtype == torch.float64
    assert len(result[0, :4].unique(dim=0)) == 4


@pytest.mark.parametrize(
    "augment", [ImageJitter(0, 0, 0), GaussianNoise(0), FeatureDropout(0)], ids=repr
)
def test_nothing_asked_for(augment):
    assert augment(ROWS, generators(4)) is ROWS


@pytest.mark.parametrize("augment", ALL, ids=repr)
def test_one_generator_for_each_restart(augment):
    with pytest.raises(ValueError, match=r"\(4, 16, 64\) and 3 generators"):
        augment(ROWS, generators(3))
    with pytest.raises(ValueError, match=r"\(64, 64\) and 64 generators"):
        augment(DIGITS, generators(64))


class TestImageJitter:
    def test_limits_hold(self):
        """A dot moves by no more than the shift, and all the way to it."""
        rows = torch.zeros(1, 500, 21, 21)
        rows[..., 10, 10] = 1.0
        moved = ImageJitter(1 / 7, 0, 0)(rows.view(1, 500, 441), generators(1)).view(500, 21, 21)
        place = torch.arange(21.0) - 10.0
        for axis in (1, 2):
            centre = (moved.sum(axis) * place).sum(-1)
            assert centre.abs().max() <= 3.0 + 1e-4
            assert centre.max() > 2.8
            assert centre.min() < -2.8

    def test_turns_either_way_within_the_limit(self):
        rows = torch.zeros(1, 300, 41, 41)
        rows[..., 20, 36] = 1.0  # 16 pixels to the right
        turned = ImageJitter(0, 30.0, 0)(rows.view(1, 300, 1681), generators(1)).view(300, 41, 41)
        place = torch.arange(41.0) - 20.0
        mass = turned.sum((1, 2))
        down, right = ((turned.sum(a) * place).sum(-1) / mass for a in (2, 1))
        angle = torch.rad2deg(torch.atan2(-down, right))
        assert angle.abs().max() < 30.5
        assert angle.max() > 28.0
        assert angle.min() < -28.0

    def test_scale_grows_and_shrinks(self):
        rows = torch.zeros(1, 300, 40, 40)
        rows[..., 10:30, 10:30] = 1.0
        area = ImageJitter(0, 0, 0.2)(rows.view(1, 300, 1600), generators(1)).sum(-1) / 400.0
        assert 0.8**2 - 0.02 < area.min() < 0.7
        assert 1.4 < area.max() < 1.2**2 + 0.02

    @pytest.mark.parametrize("shape", [(8, 8), (1, 8, 8), None])
    def test_shapes_that_mean_the_same(self, shape):
        jitter = ImageJitter(image_shape=shape)
        assert torch.equal(jitter(ROWS, generators(4)), ImageJitter()(ROWS, generators(4)))

    def test_channels_move_together(self):
        both = torch.cat([ROWS, 2.0 * ROWS], -1)
        result = ImageJitter(image_shape=(2, 8, 8))(both, generators(4))
        one = ImageJitter()(ROWS, generators(4))
        torch.testing.assert_close(result, torch.cat([one, 2.0 * one], -1))

    def test_background_is_what_comes_in(self):
        far = ImageJitter(0.0, 0.0, 0.9, background=-5.0)
        result = far(torch.full_like(ROWS, -5.0), generators(4))
        torch.testing.assert_close(result, torch.full_like(ROWS, -5.0))

    def test_jitter_of_centred_rows_is_centred_jitter(self):
        mean, factor = DIGITS.mean(0), 0.25
        jitter = ImageJitter(background=(0.0 - mean.double()) * factor)
        centred = jitter((ROWS - mean) * factor, generators(4))
        expected = (ImageJitter()(ROWS, generators(4)) - mean) * factor
        torch.testing.assert_close(centred, expected, atol=1e-5, rtol=1e-5)

    @pytest.mark.parametrize(
        "bad",
        [
            {"shift": -1.0},
            {"rotate": "much"},
            {"scale": 1.0},
            {"scale": np.nan},
            {"image_shape": (64,)},
            {"image_shape": (0, 8)},
        ],
    )
    def test_limits_out_of_range(self, bad):
        with pytest.raises(ValueError, match=f"{next(iter(bad))} must be"):
            ImageJitter(**bad)

    def test_rows_that_are_not_such_images(self):
        with pytest.raises(ValueError, match=r"square number of features.*63 features"):
            ImageJitter()(ROWS[..., :63], generators(4))
        with pytest.raises(ValueError, match=r"64 values in all, got \(7, 9\)"):
            ImageJitter(image_shape=(7, 9))(ROWS, generators(4))


class TestGaussianNoise:
    def test_relative_to_the_spread_of_each_feature(self):
        rows = torch.randn(1, 20_000, 3, generator=torch.Generator().manual_seed(5))
        rows = rows * torch.tensor([1.0, 100.0, 0.0]) + 0.1
        noise = GaussianNoise(0.2)(rows, generators(1)) - rows
        spread = noise.std(1)[0]
        torch.testing.assert_close(spread, torch.tensor([0.2, 20.0, 0.0]), rtol=0.03, atol=0)

    def test_out_of_range(self):
        with pytest.raises(ValueError, match="std must be"):
            GaussianNoise(-0.1)


class TestFeatureDropout:
    @pytest.mark.parametrize("fill", ["mean", 0.0, -3])
    def test_left_out_or_as_it_was(self, fill):
        rows = torch.randn(2, 500, 40, generator=torch.Generator().manual_seed(5)) + 1.0
        result = FeatureDropout(0.3, fill=fill)(rows, generators(2))
        changed = result != rows
        assert changed.float().mean().item() == pytest.approx(0.3, abs=0.01)
        instead = rows.mean(1, keepdim=True) if fill == "mean" else torch.tensor(float(fill))
        assert torch.equal(result[changed], instead.expand_as(rows)[changed])

    @pytest.mark.parametrize("bad", [{"rate": 1.0}, {"rate": -1}, {"fill": "zero"}, {"fill": None}])
    def test_out_of_range(self, bad):
        with pytest.raises(ValueError, match=f"{next(iter(bad))} must be"):
            FeatureDropout(**bad)


# ------------------------------------------------------------------------------------------ resolve


def test_by_name():
    assert resolve_augment(None, (64,)) is None
    assert resolve_augment("noise", (64,)) == GaussianNoise()
    assert resolve_augment("dropout", (64,)) == FeatureDropout()
    assert resolve_augment("image", (64,)).image_shape == (1, 8, 8)
    assert resolve_augment("image", (4, 16)).image_shape == (1, 4, 16)
    assert resolve_augment("image", (3, 5, 7)).image_shape == (3, 5, 7)
    assert resolve_augment("image", (64,), background=-1.0).background == -1.0


def test_an_image_jitter_is_completed():
    jitter = resolve_augment(ImageJitter(0.2), (3, 5, 7), background=-1.0)
    assert (jitter.shift, jitter.image_shape, jitter.background) == (0.2, (3, 5, 7), -1.0)
    own = ImageJitter(image_shape=(7, 15), background=2.0)
    jitter = resolve_augment(own, (105,), background=-1.0)
    assert (jitter.image_shape, jitter.background) == ((1, 7, 15), 2.0)


class Twice(torch.nn.Module):
    def forward(self, rows):
        return 2.0 * rows


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda rows: 2.0 * rows, 2.0),
        (lambda rows, generators: len(generators) * rows, 4.0),
        (lambda rows, generators=(): len(generators) * rows, 4.0),
        (lambda rows, factor=3.0: factor * rows, 3.0),
        (lambda *arguments: len(arguments) * arguments[0], 2.0),
        (functools.partial(lambda a, rows: a * rows, 5.0), 5.0),
        (Twice(), 2.0),
        (torch.neg, -1.0),
    ],
)
def test_a_users_callable(function, expected):
    augment = resolve_augment(function, (64,))
    assert torch.equal(augment(ROWS, generators(4)), expected * ROWS)


@pytest.mark.parametrize(
    ("augment", "shape", "message"),
    [
        ("flip", (64,), "augment must be one of 'image', 'noise', 'dropout', got 'flip'"),
        (3, (64,), "augment must be None, 'image'.*got 3"),
        (lambda a, b, c: a, (64,), r"\(rows,\) or \(rows, generators\), got one of \(a, b, c\)"),
        (lambda: 1, (64,), r"got one of \(\)"),
        (lambda rows, *, std: rows, (64,), r"got one of \(rows, \*, std\)"),
        ("image", (63,), "square number of features.*63"),
        ("image", (2, 3, 4, 5), r"image_shape must be.*\(2, 3, 4, 5\)"),
        ("image", (32, 32, 3), r"\(32, 32, 3\) look like \(H, W, C\)"),
    ],
)
def test_what_cannot_be_an_augmentation(augment, shape, message):
    with pytest.raises(ValueError, match=message):
        resolve_augment(augment, shape)


@pytest.mark.parametrize("function", [lambda rows: rows[0], lambda rows: None])
def test_a_users_result_is_checked(function):
    with pytest.raises(ValueError, match=r"augment must return rows of shape \(4, 16, 64\), got"):
        resolve_augment(function, (64,))(ROWS, generators(4))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("augment", ALL, ids=repr)
def test_on_cuda(augment):
    rows = ROWS.cuda()
    with_cpu_generators = augment(rows, generators(4))
    assert with_cpu_generators.is_cuda
    torch.testing.assert_close(
        with_cpu_generators.cpu(), augment(ROWS, generators(4)), atol=1e-4, rtol=1e-4
    )
    own = augment(rows, generators(4, "cuda"))
    torch.testing.assert_close(own[2:3], augment(rows[2:3], generators(4, "cuda")[2:3]))
