import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import make_blobs
from sklearn.neighbors import NearestNeighbors

from concrete_kmeans.report import projection


@pytest.mark.parametrize(("n", "most"), [(0, 5), (3, 5), (10, 5), (70_000, 2000), (7, 1)])
def test_evenly_spread_rows_are_distinct_and_in_order(n, most):
    rows = projection.evenly(n, most)
    assert len(rows) == min(n, most)
    assert (np.diff(rows) >= 1).all()
    if 0 < most < n:
        assert rows[0] == 0
        assert n - rows[-1] <= -(-n // most)


def test_few_features_are_kept_as_they_are():
    rows = np.random.default_rng(0).normal(size=(20, 7)).astype(np.float32)
    assert np.array_equal(projection.reduced(rows), rows)
    assert np.array_equal(projection.reduced(sparse.csr_array(rows)), rows)


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])
def test_many_features_keep_the_distances_of_a_matrix_of_low_rank(kind):
    rng = np.random.default_rng(0)
    rows = (rng.normal(size=(80, 6)) @ rng.normal(size=(6, 300))).astype(np.float32)
    small = projection.reduced(kind(rows))
    assert small.shape == (80, 50)
    far = np.linalg.norm(rows[:1] - rows, axis=1)
    assert np.linalg.norm(small[:1] - small, axis=1) == pytest.approx(far, rel=1e-3)


@pytest.mark.parametrize("n", [1, 2])
def test_few_rows_of_many_features(n):
    rows = np.random.default_rng(0).normal(size=(n, 200)).astype(np.float32)
    assert len(projection.reduced(sparse.csr_array(rows))) == n
    assert np.isfinite(projection.reduced(rows)).all()


@pytest.mark.parametrize(
    "codes",
    [np.zeros((1, 3)), np.ones((3, 1)), np.zeros((50, 4)), np.arange(2.0)[:, None]],
)
def test_rows_that_cannot_be_arranged_are_placed(codes):
    places = projection.project(codes.astype(np.float32))
    assert places.shape == (len(codes), 2)
    assert np.isfinite(places).all()


@pytest.fixture
def small_arrangement(monkeypatch):
    monkeypatch.setattr(projection, "MAX_ARRANGED", 200)
    monkeypatch.setattr(projection, "STEPS", 300)


def test_codes_of_two_numbers_are_the_map():
    codes = np.random.default_rng(0).normal(size=(300, 2)).astype(np.float32)
    assert np.array_equal(projection.project(codes), codes)


def test_codes_of_one_number_are_spread_across():
    codes = np.sort(np.random.default_rng(0).normal(size=(300, 1)), axis=0).astype(np.float32)
    places = projection.project(codes)
    assert np.array_equal(places[:, :1], codes)
    height = 0.15 * np.ptp(codes)
    assert np.ptp(places[:, 1]) == pytest.approx(height, rel=0.02)
    assert np.diff(np.sort(places[:, 1])).max() < height / 100


def test_neighbours_stay_neighbours_with_all_rows_or_some_arranged(small_arrangement):
    codes, group = make_blobs(
        600, 6, centers=4, cluster_std=0.5, center_box=(-60, 60), random_state=2
    )
    codes = codes.astype(np.float32)
    for rows in (codes[:150], codes):
        places = projection.project(rows)
        near = NearestNeighbors(n_neighbors=6).fit(places).kneighbors(return_distance=False)
        same = group[: len(rows)][near] == group[: len(rows), None]
        assert same.mean() > 0.98


def test_the_same_map_every_time_and_no_global_random_state(
    small_arrangement, untouched_random_state
):
    codes = np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)
    assert np.array_equal(projection.project(codes), projection.project(codes))


def test_arranged_rows_keep_their_place_and_others_lie_among_them(small_arrangement):
    codes = np.random.default_rng(0).normal(size=(500, 3)).astype(np.float32)
    places = projection.project(codes)
    chosen = projection.evenly(500, 200)
    alone = projection.project(codes[chosen])
    assert np.array_equal(places[chosen], alone)
    assert (places.min(0) >= alone.min(0) - 1e-3).all()
    assert (places.max(0) <= alone.max(0) + 1e-3).all()
    assert len(np.unique(places.round(4), axis=0)) > 490  # they do not gather on those arranged


def test_caption_says_what_was_arranged():
    assert projection.caption(10, 5, coded=True).startswith("t-SNE of the code.")
    assert projection.caption(10, 2, coded=False).startswith("The data, two numbers a row")
    assert projection.caption(10, 1, coded=True).startswith("The code, one number a row")
    large = projection.caption(70_000, 5, coded=False)
    assert "t-SNE of the data of 2,000 rows" in large
    assert "68,000" in large
