"""What is drawn equals the data."""

import sys

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.colors import to_hex
from sklearn.datasets import load_digits, make_blobs
from sklearn.exceptions import NotFittedError
from sklearn.metrics import confusion_matrix

from concrete_kmeans import AutoencoderKMeans, ConcreteKMeans, plots
from concrete_kmeans.report.palette import color

mpl.use("Agg")
from matplotlib import pyplot as plt


@pytest.fixture(autouse=True)
def no_figures_left():
    yield
    for number in plt.get_fignums():
        plt.figure(number).canvas.draw()  # what cannot be drawn fails here
    plt.close("all")


@pytest.fixture(scope="module")
def blobs():
    X, y = make_blobs(90, 2, centers=3, random_state=0)
    frame = pd.DataFrame(X, columns=["left", "$right"])
    return frame, y, ConcreteKMeans(4, algorithm="lloyd", random_state=0).fit(frame)


@pytest.fixture(scope="module")
def deep():
    X = load_digits().data[:150].reshape(-1, 8, 8).astype(np.float32)
    quick = {"encoder": (16, 4), "pretrain_epochs": 2, "n_init": 2, "batch_size": 50}
    return X, AutoencoderKMeans(5, random_state=0, device="cpu", **quick).fit(X)


def test_map_has_the_points_of_each_cluster_in_its_colour(blobs):
    X, _, km = blobs
    ax = plots.plot_map(km, X)
    assert len(ax.collections) == 4
    for k, points in enumerate(ax.collections):
        assert np.asarray(points.get_offsets()) == pytest.approx(X[km.labels_ == k].to_numpy())
        assert to_hex(points.get_facecolor()[0]) == color(k)
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["0", "1", "2", "3"]


def test_map_by_class_on_given_axes_with_names_as_they_are(blobs):
    X, y, km = blobs
    names = np.array(["$\\frac", "_hidden", "<b>"])
    _, given = plt.subplots()
    ax = plots.plot_map(km, X, classes=names[y], size=5.0, ax=given)
    assert ax is given
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["\\$\\frac", "<b>", " _hidden"]
    sizes = [len(points.get_offsets()) for points in ax.collections]
    assert sizes == [(y == 0).sum(), (y == 2).sum(), (y == 1).sum()]
    assert {float(points.get_sizes()[0]) for points in ax.collections} == {5.0}


def test_history_has_a_line_a_restart_and_the_best_on_top(deep):
    model = deep[1]
    ax = plots.plot_history(model)
    lines = [line for line in ax.lines if line.get_label().startswith("seed")]
    assert len(lines) == 2
    assert lines[-1].get_label() == f"seed {model.restarts_[model.best_restart_].seed}"
    values = [event.losses["loss"][model.best_restart_] for event in model.history_]
    assert lines[-1].get_ydata() == pytest.approx(values)
    assert len(lines[-1].get_xdata()) == len(model.history_)
    with pytest.raises(ValueError, match=r"part must be one of 'loss'.* got 'speed'"):
        plots.plot_history(model, part="speed")


def test_centres_are_pictures_with_a_line_between(deep):
    _, model = deep
    (picture,) = plots.plot_centers(model).images
    sheet = np.asarray(picture.get_array())
    assert sheet.shape == (2 * 9 - 1, 3 * 9 - 1)
    centers = model.decode_centers().reshape(5, 8, 8)
    low, high = min(centers.min(), 0), centers.max()
    wanted = (centers - low) / (high - low) * 255
    for k in range(5):
        top, left = k // 3 * 9, k % 3 * 9
        assert np.abs(sheet[top : top + 8, left : left + 8] - wanted[k]).max() <= 0.51
    assert (sheet[8] == 255).all()


def test_centres_of_columns_are_in_deviations_over_the_clusters(blobs):
    _, _, km = blobs
    ax = plots.plot_centers(km)
    centers = km.cluster_centers_
    wanted = (centers - centers.mean(0)) / centers.std(0)
    assert np.asarray(ax.images[0].get_array()) == pytest.approx(wanted)
    assert [t.get_text() for t in ax.get_xticklabels()] == ["left", "\\$right"]
    with pytest.raises(ValueError, match=r"image_shape must have 2 values in all, got \(3, 3\)"):
        plots.plot_centers(km, image_shape=(3, 3))


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
def test_confusion_is_that_of_scikit_learn(blobs, kind):
    X, y, _ = blobs
    rows = kind(X.to_numpy().copy())
    km = ConcreteKMeans(4, algorithm="lloyd", random_state=0, device="cpu").fit(rows)
    labels = np.asarray(km.labels_)
    for ax in (plots.plot_confusion(km, y), plots.plot_confusion(km, y, rows)):
        order = [int(t.get_text()) for t in ax.get_xticklabels()]
        counts = confusion_matrix(y, labels, labels=range(4))[:3][:, order]
        parts = np.asarray(ax.images[0].get_array())
        assert parts == pytest.approx(counts / counts.sum(1, keepdims=True))
        texts = {t.get_position(): int(t.get_text()) for t in ax.texts}
        assert texts == {(k, c): n for (c, k), n in np.ndenumerate(counts) if n}
        assert [t.get_text() for t in ax.get_yticklabels()] == ["0", "1", "2"]


def test_what_does_not_fit_is_refused(blobs):
    X, y, km = blobs
    with pytest.raises(ValueError, match="classes must have 90 rows, as X has, got 3"):
        plots.plot_map(km, X, classes=[1, 2, 3])
    with pytest.raises(ValueError, match="classes must have 90 rows, got 5"):
        plots.plot_confusion(km, y[:5])
    with pytest.raises(NotFittedError):
        plots.plot_map(ConcreteKMeans(2), X)


def test_without_matplotlib_the_error_says_what_to_install(blobs, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"concrete-kmeans\[report\]"):
        plots.plot_centers(blobs[2])
