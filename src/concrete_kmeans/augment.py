"""Random changes to the rows of a batch, on their device, each restart by its own generator."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from concrete_kmeans.validation import check_choice, check_not_negative, shown

__all__ = [
    "BUILT_IN",
    "Augment",
    "FeatureDropout",
    "GaussianNoise",
    "ImageJitter",
    "resolve_augment",
    "warp_images",
]

Augment: TypeAlias = Callable[[Tensor, Sequence[torch.Generator]], Tensor]
"""Rows (R, B, D) and R generators to rows (R, B, D)."""


def warp_images(images: Tensor, shift: Tensor, angle: Tensor, zoom: Tensor) -> Tensor:
    """Turn, enlarge and move images about their centre, bilinear, with zeros from outside.

    Parameters
    ----------
    images : Tensor of shape (N, C, H, W)
    shift : Tensor of shape (N, 2)
        Pixels to the right and downwards.
    angle : Tensor of shape (N,)
        Degrees, against the clock.
    zoom : Tensor of shape (N,)
        Above one enlarges.

    Returns
    -------
    Tensor of shape (N, C, H, W)

    Examples
    --------
    >>> image = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
    >>> warp_images(image, torch.tensor([[1.0, 0.0]]), torch.zeros(1), torch.ones(1))[0, 0]
    tensor([[0., 1.],
            [0., 3.]])
    """
    height, width = images.shape[-2:]
    radians = angle.to(images) * (math.pi / 180.0)
    cos, sin = radians.cos() / zoom, radians.sin() / zoom
    # where a pixel comes from, in pixels from the centre: the inverse of turn, enlarge, move
    inverse = torch.stack([torch.stack([cos, -sin], -1), torch.stack([sin, cos], -1)], -2)
    origin = -(inverse @ shift.to(images).unsqueeze(-1))  # (N, 2, 1)
    # affine_grid counts from -1 to 1 along each axis, whatever its length
    half = torch.stack([images.new_full((), side / 2.0) for side in (width, height)])
    theta = torch.cat([inverse * half, origin], -1) / half.unsqueeze(-1)  # (N, 2, 3)
    grid = functional.affine_grid(theta, list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, padding_mode="zeros", align_corners=False)


@dataclass(frozen=True, eq=False)
class ImageJitter:
    """Each image moved, turned and enlarged or shrunk at random, uniformly within limits.

    Parameters
    ----------
    shift : float, default=0.1
        Part of the height and of the width, at most; below one.
    rotate : float, default=10.0
        Degrees either way, at most.
    scale : float, default=0.1
        Fraction by which an image grows or shrinks, at most; below one.
    image_shape : (C, H, W) or (H, W), optional
        Rows are images of this shape; by default square ones with one channel.
    background : float or Tensor of shape (D,), optional
        What a row holds where there is no image; it fills what comes in from outside. Zero by
        default; for rows that were centred and divided by one number, ``scaling(torch.zeros(D))``.

    Examples
    --------
    >>> rows, generators = torch.rand(2, 8, 784), [torch.Generator(), torch.Generator()]
    >>> ImageJitter(shift=0.05)(rows, generators).shape
    torch.Size([2, 8, 784])
    """

    shift: float = 0.1
    rotate: float = 10.0
    scale: float = 0.1
    _: KW_ONLY
    image_shape: tuple[int, ...] | None = None
    background: float | Tensor | None = None

    def __post_init__(self) -> None:
        check_not_negative("rotate", self.rotate)
        for name in ("shift", "scale"):
            if check_not_negative(name, getattr(self, name)) >= 1.0:
                raise ValueError(f"{name} must be below 1, got {getattr(self, name)!r}")
        shape = self.image_shape
        if shape is not None and (len(shape) not in (2, 3) or min(shape) < 1):
            raise ValueError(f"image_shape must be (C, H, W) or (H, W), got {shape!r}")

    def __call__(self, rows: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """Rows (R, B, D) of jittered images."""
        _check_generators(rows, generators)
        shape = _image_shape(self.image_shape, rows.shape[-1])
        if not (self.shift or self.rotate or self.scale):
            return rows
        draws = _uniform((rows.shape[1], 4), rows, generators) * 2.0 - 1.0
        draws = draws.flatten(0, 1)  # (R * B, 4)
        sides = torch.stack([draws.new_full((), float(side)) for side in (shape[2], shape[1])])
        background = 0.0 if self.background is None else torch.as_tensor(self.background).to(rows)
        warped = warp_images(
            (rows - background).reshape(-1, *shape),
            shift=self.shift * draws[:, :2] * sides,
            angle=self.rotate * draws[:, 2],
            zoom=1.0 + self.scale * draws[:, 3],
        )
        return warped.view(rows.shape) + background


@dataclass(frozen=True)
class GaussianNoise:
    """Gaussian noise, in each feature a fraction of its standard deviation in the batch.

    Parameters
    ----------
    std : float, default=0.1
        The fraction. What does not vary within a batch stays as it is.

    Examples
    --------
    >>> rows = torch.tensor([[[0.0, 5.0], [2.0, 5.0]]])
    >>> (GaussianNoise(0.5)(rows, [torch.Generator()]) == rows).tolist()
    [[[False, True], [False, True]]]
    """

    std: float = 0.1

    def __post_init__(self) -> None:
        check_not_negative("std", self.std)

    def __call__(self, rows: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """Noisy rows (R, B, D)."""
        _check_generators(rows, generators)
        if not self.std:
            return rows
        shape = rows.shape[1:]
        noise = [torch.randn(shape, dtype=rows.dtype, **_on(g)) for g in generators]
        # a variance by deviations from a mean that rounds would not be zero for equal values
        varies = rows.amax(1, keepdim=True) > rows.amin(1, keepdim=True)
        spread = rows.std(1, correction=0, keepdim=True) * varies
        return rows + self.std * spread * torch.stack(noise).to(rows.device)


@dataclass(frozen=True)
class FeatureDropout:
    """Features left out at random, independently in each row.

    Parameters
    ----------
    rate : float, default=0.1
        Part of the features left out; below one.
    fill : float or "mean", default="mean"
        What stands in their place: their mean in the batch, or this number (0.0 for sparse rows).

    Examples
    --------
    >>> rows = torch.ones(1, 100, 10)
    >>> kept = FeatureDropout(0.3, fill=0.0)(rows, [torch.Generator().manual_seed(0)]).mean()
    >>> 0.65 < kept.item() < 0.75
    True
    """

    rate: float = 0.1
    fill: float | Literal["mean"] = "mean"

    def __post_init__(self) -> None:
        if check_not_negative("rate", self.rate) >= 1.0:
            raise ValueError(f"rate must be below 1, got {self.rate!r}")
        is_number = isinstance(self.fill, int | float) and math.isfinite(self.fill)
        if self.fill != "mean" and not is_number:
            raise ValueError(f"fill must be 'mean' or a finite number, got {self.fill!r}")

    def __call__(self, rows: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """Rows (R, B, D) with features left out."""
        _check_generators(rows, generators)
        if not self.rate:
            return rows
        left_out = _uniform(rows.shape[1:], rows, generators) < self.rate
        if isinstance(self.fill, str):
            return rows.mean(1, keepdim=True).where(left_out, rows)
        return rows.masked_fill(left_out, self.fill)


#: What draws and computes on the device alone.
BUILT_IN = (ImageJitter, GaussianNoise, FeatureDropout)


def resolve_augment(
    augment: str | Callable[..., Tensor] | None,
    feature_shape: Sequence[int],
    *,
    background: float | Tensor = 0.0,
) -> Augment | None:
    """The augmentation that an argument of an estimator names.

    Parameters
    ----------
    augment : None, {"image", "noise", "dropout"} or callable
        A callable takes rows (R, B, D), and as a second argument the restarts' generators if it has
        one without a default or named ``generators``. Without them its results are its own to
        reproduce. It returns rows of the same shape.
    feature_shape : tuple of int
        Of one row, as in :class:`concrete_kmeans.data.Source`; images are (H, W) or (C, H, W), or a
        square number of features.
    background : float or Tensor of shape (D,), default=0.0
        For ``"image"`` and an :class:`ImageJitter` that has none.

    Returns
    -------
    Augment or None

    Examples
    --------
    >>> resolve_augment("noise", (10,))
    GaussianNoise(std=0.1)
    >>> flip = resolve_augment(lambda rows: -rows, (10,))
    >>> flip(torch.ones(1, 1, 2), [torch.Generator()])
    tensor([[[-1., -1.]]])
    """
    if augment is None:
        return None
    if isinstance(augment, str):
        check_choice("augment", augment, ("image", "noise", "dropout"))
        if augment == "image":
            return _completed(ImageJitter(), tuple(feature_shape), background)
        return GaussianNoise() if augment == "noise" else FeatureDropout()
    if not callable(augment):
        raise ValueError(  # noqa: TRY004  # a choice like the strings
            "augment must be None, 'image', 'noise', 'dropout' or a callable of rows (R, B, D), "
            f"got {shown(augment)}"
        )
    if isinstance(augment, ImageJitter):
        return _completed(augment, tuple(feature_shape), background)
    if isinstance(augment, GaussianNoise | FeatureDropout):
        return augment
    return _Given(augment, _takes_generators(augment))


def _completed(
    jitter: ImageJitter, feature_shape: tuple[int, ...], background: float | Tensor
) -> ImageJitter:
    """With the image shape and the background of the data, where the user gave none."""
    shape = jitter.image_shape
    if shape is None and len(feature_shape) > 1:
        shape = feature_shape
        if len(shape) == 3 and shape[0] > 4 and shape[2] in (1, 3, 4):
            raise ValueError(
                "augment='image' needs images of shape (C, H, W), and rows of shape "
                f"{shape} look like (H, W, C): move the channels to the front, or give "
                "ImageJitter(image_shape=...)"
            )
    shape = _image_shape(shape, math.prod(feature_shape))
    if jitter.background is not None:
        background = jitter.background
    return replace(jitter, image_shape=shape, background=background)


@dataclass(frozen=True)
class _Given:
    """A user's callable with the arguments it takes, its result checked."""

    function: Callable[..., Any]
    takes_generators: bool

    def __call__(self, rows: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        own = rows.clone()  # it may write to them
        result = self.function(own, generators) if self.takes_generators else self.function(own)
        if not isinstance(result, Tensor) or result.shape != rows.shape:
            what = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
            raise ValueError(f"augment must return rows of shape {tuple(rows.shape)}, got {what}")
        return result.to(rows)


def _takes_generators(augment: Callable[..., Any]) -> bool:
    called = augment.forward if isinstance(augment, torch.nn.Module) else augment
    try:
        parameters = list(inspect.signature(called).parameters.values())
    except (ValueError, TypeError):  # built in: torch.relu, say
        return False
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in positional if p.default is p.empty]
    unnamed = any(p.kind == p.VAR_POSITIONAL for p in parameters)
    needs = any(p.kind == p.KEYWORD_ONLY and p.default is p.empty for p in parameters)
    if len(required) > 2 or needs or not (positional or unnamed):
        raise ValueError(
            "augment must be a callable of (rows,) or (rows, generators), got one of "
            f"{inspect.signature(called)}"
        )
    named = len(positional) > 1 and positional[1].name == "generators"
    return len(required) == 2 or named or (unnamed and len(positional) < 2)


def _image_shape(shape: tuple[int, ...] | None, n_features: int) -> tuple[int, int, int]:
    """``(C, H, W)``."""
    if shape is None:
        side = math.isqrt(n_features)
        if side * side != n_features:
            raise ValueError(
                "image_shape=None needs a square number of features (one channel); for "
                f"{n_features} features give (C, H, W) or (H, W)"
            )
        return 1, side, side
    if len(shape) not in (2, 3) or math.prod(shape) != n_features:
        raise ValueError(
            f"image_shape must be (C, H, W) or (H, W) with {n_features} values in all, got {shape}"
        )
    channels = shape[0] if len(shape) == 3 else 1
    return channels, shape[-2], shape[-1]


def _check_generators(rows: Tensor, generators: Sequence[torch.Generator]) -> None:
    if rows.ndim != 3 or len(generators) != len(rows):
        raise ValueError(
            "rows must be (R, B, D) with one generator for each of R restarts, got "
            f"{tuple(rows.shape)} and {len(generators)} generators"
        )


def _uniform(shape: Sequence[int], rows: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
    """Numbers in [0, 1) as (R, *shape); a restart draws what it would draw alone."""
    draws = [torch.rand(tuple(shape), dtype=rows.dtype, **_on(g)) for g in generators]
    return torch.stack(draws).to(rows.device)


def _on(generator: torch.Generator) -> dict[str, Any]:
    return {"generator": generator, "device": generator.device}
