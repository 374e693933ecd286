"""Plots for notebooks, by matplotlib; each draws on given axes or new ones, and returns them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted

from concrete_kmeans.report import Images, projection
from concrete_kmeans.report.collecting import embed
from concrete_kmeans.report.describing import curves, matched, named_classes
from concrete_kmeans.report.palette import SHAPES, color

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_centers", "plot_confusion", "plot_history", "plot_map"]

#: Matplotlib's names of the marks.
MARKERS = dict(zip(SHAPES, ("o", "s", "D"), strict=True))
#: Names in a legend, at most.
MAX_LEGEND = 30


def plot_map(
    estimator: Any,
    X: Any,
    *,
    classes: Any = None,
    size: float | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Map of the rows, coloured by cluster or by class.

    It is that of :meth:`DeepConcreteKMeans.report`: t-SNE of the code of 2,000 rows, the others
    placed between them.

    Parameters
    ----------
    estimator : fitted estimator of this package
    X : as in its ``fit``
    classes : sequence, optional
        Colour by these instead of by cluster.
    size : float, optional
        Area of a point; by default smaller the more there are.
    ax : Axes, optional

    Returns
    -------
    Axes
        With a collection of points for each cluster or class.
    """
    check_is_fitted(estimator)
    codes, distances = embed(estimator, X)
    names = [str(k) for k in range(distances.shape[1])]
    groups = distances.argmin(1)
    if classes is not None:
        if len(classes) != len(codes):
            raise ValueError(f"classes must have {len(codes)} rows, as X has, got {len(classes)}")
        names, groups, _ = named_classes(classes)
    places = projection.project(codes)
    ax = ax or _new_axes()
    size = size or float(np.clip(30_000 / len(codes), 1.0, 18.0))
    for group, name in enumerate(names):
        x, y = places[groups == group].T
        label = _plain(name)
        marker = MARKERS[SHAPES[group // 10 % len(SHAPES)]]
        ax.scatter(
            x, y, s=size, c=color(group), marker=marker, linewidths=0, alpha=0.8, label=label
        )
    if len(names) <= MAX_LEGEND:
        title = "cluster" if classes is None else "class"
        columns = math.ceil(len(names) / 15)
        ax.legend(title=title, loc="center left", bbox_to_anchor=(1, 0.5), ncols=columns)
    ax.set(xticks=[], yticks=[], aspect="equal")
    return ax


def plot_history(estimator: Any, *, part: str = "loss", ax: Axes | None = None) -> Axes:
    """A part of the loss over the steps of all phases, a line a restart.

    Parameters
    ----------
    estimator : fitted deep estimator of this package
    part : str, default="loss"
        Which part: ``"loss"`` is all of it, ``"reconstruction"`` and others are those of a method.
    ax : Axes, optional

    Returns
    -------
    Axes
        With a line for each restart, the one that was kept drawn last and thickest, and a dashed
        line at the start of each phase but the first.
    """
    check_is_fitted(estimator)
    events = [dataclasses.asdict(event) for event in getattr(estimator, "history_", [])]
    found = {curve.name: curve for curve in curves(events)}
    if part not in found:
        raise ValueError(f"part must be one of {', '.join(map(repr, found))}, got {part!r}")
    curve, best = found[part], estimator.best_restart_
    values = np.array(curve.values)  # (checks, R)
    ax = ax or _new_axes()
    for r in [*(r for r in range(values.shape[1]) if r != best), best]:
        style = {"linewidth": 2.0, "color": color(0)} if r == best else {"color": "0.6"}
        seed = estimator.restarts_[r].seed
        ax.plot(curve.steps, values[:, r], label=f"seed {seed}", **style)
    starts = [i for i in range(1, len(curve.phases)) if curve.phases[i] != curve.phases[i - 1]]
    for i in starts:
        ax.axvline(curve.steps[i - 1], color="0.4", linestyle="--", linewidth=1.0)
    if np.nanmin(values) > 0:
        ax.set_yscale("log")
    ax.set(xlabel="steps", ylabel=part, title=", then ".join(dict.fromkeys(curve.phases)))
    return ax


def plot_centers(
    estimator: Any, *, image_shape: Sequence[int] | None = None, ax: Axes | None = None
) -> Axes:
    """Centres in the units of a row: pictures side by side, or a line of colours for each.

    Parameters
    ----------
    estimator : fitted estimator of this package
        Centres of a deep one are decoded.
    image_shape : (h, w), (1, h, w) or (3, h, w), optional
        Rows are pictures of this shape; by default if those of the fit had two axes or three.
    ax : Axes, optional

    Returns
    -------
    Axes
        With one image.
    """
    check_is_fitted(estimator)
    deep = hasattr(estimator, "decode_centers")
    centers = estimator.decode_centers() if deep else estimator.cluster_centers_
    centers = torch.as_tensor(centers).cpu().numpy()
    shape = tuple(image_shape or centers.shape[1:])
    if math.prod(shape) != math.prod(centers.shape[1:]):
        raise ValueError(
            f"image_shape must have {math.prod(centers.shape[1:])} values in all, got {shape}"
        )
    ax = ax or _new_axes()
    if len(shape) == 1:
        return _center_lines(estimator, centers, ax)
    pictures = Images.from_rows(centers, shape).pixels
    K, h, w = pictures.shape[:3]
    columns = math.ceil(math.sqrt(K))
    rows = math.ceil(K / columns)
    sheet = np.full((rows * (h + 1) - 1, columns * (w + 1) - 1, *pictures.shape[3:]), 255, np.uint8)
    for k, picture in enumerate(pictures):
        top, left = k // columns * (h + 1), k % columns * (w + 1)
        sheet[top : top + h, left : left + w] = picture
        ax.annotate(
            str(k),
            (left, top),
            xytext=(2, -2),
            textcoords="offset points",
            color=color(1),
            va="top",
        )
    ax.imshow(sheet, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    ax.set_axis_off()
    return ax


def plot_confusion(estimator: Any, classes: Any, X: Any = None, *, ax: Axes | None = None) -> Axes:
    """Rows of each class in each cluster, clusters in the order of the classes they are matched to.

    Parameters
    ----------
    estimator : fitted estimator of this package
    classes : sequence
        Known class of each row.
    X : as in its ``fit``, optional
        The rows; by default those of the fit.
    ax : Axes, optional

    Returns
    -------
    Axes
        With one image, of the part of each class that is in each cluster, and the counts as texts.
    """
    check_is_fitted(estimator)
    labels = estimator.labels_ if X is None else estimator.predict(X)
    labels = torch.as_tensor(labels).cpu().numpy()
    if len(classes) != len(labels):
        raise ValueError(f"classes must have {len(labels)} rows, got {len(classes)}")
    known = named_classes(classes)
    counts, _, order = matched(known, labels, len(estimator.cluster_centers_))
    counts = counts[:, order]
    parts = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    ax = ax or _new_axes()
    ax.imshow(parts, cmap="Blues", vmin=0.0, vmax=1.0)
    for (c, k), count in np.ndenumerate(counts):
        if count:
            ink = "white" if parts[c, k] > 0.5 else "black"
            ax.text(k, c, str(count), ha="center", va="center", color=ink, fontsize="small")
    ax.set_xticks(range(len(order)), [str(k) for k in order])
    ax.set_yticks(range(len(known.names)), [_plain(name) for name in known.names])
    ax.set(xlabel="cluster", ylabel="class")
    return ax


def _center_lines(estimator: Any, centers: Any, ax: Axes) -> Axes:
    """Features across, in standard deviations over the clusters, so that all can be compared."""
    spread = centers.std(0)
    scaled = (centers - centers.mean(0)) / np.where(spread > 0, spread, 1.0)
    most = float(np.abs(scaled).max()) or 1.0
    ax.imshow(scaled, cmap="RdBu_r", vmin=-most, vmax=most, aspect="auto", interpolation="nearest")
    names = getattr(estimator, "feature_names_in_", None)
    if names is not None and len(names) <= MAX_LEGEND:
        ax.set_xticks(range(len(names)), [_plain(name) for name in names], rotation=45, ha="right")
    ax.set_yticks(range(len(centers)))
    ax.set(ylabel="cluster", xlabel="feature")
    return ax


def _plain(name: object) -> str:
    r"""A name that matplotlib neither reads as a formula nor, for its first letter, leaves out.

    >>> print(_plain("$5"), _plain("_id"))
    \$5  _id
    """
    text = str(name).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def _new_axes() -> Axes:
    try:
        from matplotlib import pyplot as plt
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install 'concrete-kmeans[report]'") from error
    return plt.subplots(layout="constrained")[1]
