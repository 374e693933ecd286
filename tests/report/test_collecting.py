"""What a report shows is what the estimator found."""

import re

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from scipy.spatial.distance import cdist
from sklearn.datasets import load_digits, make_blobs
from sklearn.exceptions import NotFittedError
from sklearn.metrics import adjusted_rand_score, silhouette_score

from concrete_kmeans import AutoencoderKMeans, ConcreteKMeans, report
from concrete_kmeans.report import projection


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    """A map that is made in no time; its quality is tested elsewhere."""
    monkeypatch.setattr(projection, "STEPS", 260)
    monkeypatch.setattr(projection, "MAX_ARRANGED", 100)


@pytest.fixture(scope="module")
def blobs():
    X, y = make_blobs(200, 4, centers=6, cluster_std=3.0, random_state=0)
    return X, y, ConcreteKMeans(5, algorithm="lloyd", n_init=3, random_state=0).fit(X)


@pytest.fixture(scope="module")
def deep():
    X = load_digits().data[:150].reshape(-1, 8, 8).astype(np.float32)
    quick = {"encoder": (16, 4), "pretrain_epochs": 2, "n_init": 2, "batch_size": 50}
    return X, AutoencoderKMeans(4, random_state=0, device="cpu", **quick).fit(X)


def test_distances_and_doubt_by_hand(blobs):
    X, _, km = blobs
    data = report.collect(km, X)
    far = np.sort(cdist(X, km.cluster_centers_), axis=1)
    assert data.distance == pytest.approx(far[:, 0], rel=1e-4)
    assert data.doubt == pytest.approx(far[:, 0] / far[:, 1], rel=1e-4)
    assert np.array_equal(data.labels, km.labels_)


def test_figures_by_scikit_learn_and_by_hand(blobs):
    X, _, km = blobs
    figures = report.collect(km, X).figures
    assert figures["Silhouette"] == pytest.approx(silhouette_score(X, km.labels_), rel=1e-4)
    assert figures["Inertia"] == km.inertia_
    share = np.bincount(km.labels_) / len(X)
    assert figures["Effective clusters"] == pytest.approx(np.exp(-(share * np.log(share)).sum()))


def test_agreement_of_restarts_and_scores_of_each(blobs):
    X, y, km = blobs
    for rows in (X, sparse.csr_array(X), torch.from_numpy(X)):
        data = report.collect(km, rows, classes=y)
        labelings = [cdist(X, r.cluster_centers).argmin(1) for r in km.restarts_]
        wanted = [[adjusted_rand_score(a, b) for b in labelings] for a in labelings]
        assert data.agreement == pytest.approx(np.array(wanted), abs=1e-6)
        assert [r["ari"] for r in data.restarts] == pytest.approx(
            [adjusted_rand_score(y, labels) for labels in labelings]
        )
        assert data.best_restart == np.argmin([r.inertia for r in km.restarts_])


def test_other_rows_than_those_of_the_fit(blobs):
    X, y, km = blobs
    data = report.collect(km, X[:40], classes=y[:40])
    assert np.array_equal(data.labels, km.predict(X[:40]))
    assert data.figures["Inertia"] == pytest.approx(-km.score(X[:40]), rel=1e-4)
    assert all("ari" not in restart for restart in data.restarts)


def test_without_rows_there_is_no_map(blobs):
    _, y, km = blobs
    data = report.collect(km, classes=y)
    assert data.map is data.distance is data.doubt is data.items is None
    assert data.figures["Inertia"] == km.inertia_


def test_columns_of_a_frame_keep_their_names():
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(30, 2)), columns=["tall", "wide"])
    km = ConcreteKMeans(2, algorithm="lloyd", random_state=0).fit(frame)
    data = report.collect(km, frame)
    assert data.items.names == ["tall", "wide"]
    assert np.array_equal(data.items.values, frame.to_numpy())
    assert np.array_equal(data.map, frame.to_numpy(np.float32))  # two numbers are a map


def test_one_cluster_has_no_doubt_and_one_row_is_enough(blobs):
    X = blobs[0]
    one = ConcreteKMeans(1, algorithm="lloyd", random_state=0).fit(X)
    data = report.collect(one, X)
    assert data.doubt is None
    assert data.title == "200 rows in 1 cluster"
    assert "Silhouette" not in data.figures
    assert report.collect(one, X[:1]).title == "1 row in 1 cluster"
    report.render(report.collect(one, X[:1]))


def test_text_stands_for_sparse_rows(blobs):
    X = sparse.random_array((60, 300), density=0.05, rng=0, format="csr")
    km = ConcreteKMeans(3, algorithm="lloyd", random_state=0).fit(X)
    texts = [f"text {i}" for i in range(60)]
    data = report.collect(km, X, items=texts)
    assert data.items == report.Texts(texts)
    assert data.map.shape == (60, 2)
    assert report.collect(km, X).items is None


def test_pictures_and_decoded_centres_share_black_and_white(deep):
    X, model = deep
    data = report.collect(model, X)
    assert np.abs(data.items.pixels - X / X.max() * 255).max() <= 0.51
    decoded = model.decode_centers().reshape(4, 8, 8)
    assert data.centers.pixels == pytest.approx(np.clip(decoded / X.max() * 255, 0, 255), abs=0.51)
    assert [event["phase"] for event in data.history]
    assert {"seed", "inertia", "reconstruction", "agreement", "status"} <= set(data.restarts[0])
    assert data.figures["Agreement"] == model.restarts_[model.best_restart_].agreement
    assert data.best_restart == model.best_restart_
    assert data.map_caption.startswith("t-SNE of the code")


def test_flat_rows_are_pictures_if_their_shape_is_given(blobs):
    digits = load_digits().data[:60]
    km = ConcreteKMeans(3, algorithm="lloyd", random_state=0).fit(digits)
    data = report.collect(km, digits, image_shape=(8, 8))
    assert np.abs(data.items.pixels.reshape(60, 64) - digits / 16 * 255).max() <= 0.51
    assert len(data.centers) == 3
    assert len(report.collect(km, image_shape=(8, 8)).centers) == 3
    shown = report.collect(km, digits, items=report.Images.from_rows(digits, (8, 8)))
    assert np.array_equal(shown.centers.pixels, data.centers.pixels)
    assert report.collect(km, items=report.Images(np.zeros((60, 5, 5), np.uint8))).centers is None


def test_centres_of_bytes_are_as_bright_as_these(deep):
    X = (deep[0].reshape(150, 64) * 10).astype(np.uint8)
    km = ConcreteKMeans(3, algorithm="lloyd", random_state=0).fit(X)
    shown = report.collect(km, X, image_shape=(8, 8)).centers.pixels
    assert np.abs(shown.reshape(3, 64) - km.cluster_centers_).max() <= 0.51


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"classes": [1, 2]}, "classes must have 200 rows, as labels has, got 2"),
        ({"ids": ["a"]}, "ids must have 200 rows"),
        ({"items": ["a"]}, "items must have 200 rows"),
        ({"image_shape": (3, 3)}, r"image_shape must be .* with 4 values in all, got \(3, 3\)"),
        ({"image_shape": (2, 1, 2)}, r"got \(2, 1, 2\)"),
    ],
)
def test_what_does_not_fit_is_refused_before_the_map_is_made(blobs, monkeypatch, options, words):
    X, _, km = blobs
    monkeypatch.setattr(projection, "project", lambda _: pytest.fail("work was done"))
    with pytest.raises(ValueError, match=words):
        report.collect(km, X, **options)


def test_only_a_fitted_estimator_has_a_report(tmp_path):
    with pytest.raises(NotFittedError):
        ConcreteKMeans(2).report(tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []


def test_report_of_an_estimator_is_one_file(blobs, tmp_path):
    X, y, km = blobs
    path = km.report(tmp_path / "report.html", X, classes=y, title="Blobs & more")
    assert path == tmp_path / "report.html"
    assert "<title>Blobs &amp; more</title>" in path.read_text(encoding="utf-8")
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_a_folder_is_refused_before_any_work(blobs, tmp_path, monkeypatch):
    X, _, km = blobs
    monkeypatch.setattr(projection, "project", lambda _: pytest.fail("work was done"))
    with pytest.raises(IsADirectoryError, match="is a folder"):
        km.report(tmp_path, X)


def test_notebook_shows_sizes_largest_first(blobs):
    km = blobs[2]
    shown = km._repr_html_()
    rows = re.findall(r"<tr><td[^>]*>(\d+)</td><td[^>]*>([\d,]+)</td>", shown)
    sizes = np.bincount(km.labels_)
    order = np.argsort(-sizes, kind="stable")
    assert rows == [(str(k), f"{sizes[k]:,}") for k in order]
    assert f"200 rows in 5 clusters, inertia {km.inertia_:.6g}" in shown
    assert "3 restarts" in shown
    own = shown[shown.rindex("<details><summary>200 rows") :]
    assert km._repr_mimebundle_()["text/html"].endswith(own)


def test_notebook_shows_agreement_of_a_deep_fit(deep):
    model = deep[1]
    best = model.restarts_[model.best_restart_]
    assert f"agreement {best.agreement:.3f}" in model._repr_html_()


def test_notebook_escapes_parameters_and_is_as_before_without_a_fit():
    odd = ConcreteKMeans(2, init="<script>alert(1)</script>")
    assert "<script>alert(1)" not in odd._repr_html_()
    assert "rows in" not in odd._repr_html_()


def test_notebook_lists_the_largest_of_many():
    X = np.repeat(np.arange(40.0), 3)[:, None]
    km = ConcreteKMeans(40, init=np.arange(40.0)[:, None], algorithm="lloyd").fit(X)
    shown = km._repr_html_()
    assert "120 rows in 40 clusters (the 30 largest)" in shown
    assert shown.count("<tr><td style='text-align:right'>") == 30
