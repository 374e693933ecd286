"""ConcreteKMeans against scikit-learn's KMeans, single runs, and what users may do to it."""

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from sklearn.base import clone
from sklearn.cluster import KMeans, kmeans_plusplus
from sklearn.datasets import load_digits, make_blobs
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from concrete_kmeans import ConcreteKMeans

pytestmark = pytest.mark.usefixtures("untouched_random_state")

X, Y = make_blobs(900, 6, centers=5, cluster_std=2.0, random_state=0)
NEW = make_blobs(70, 6, centers=5, cluster_std=2.0, random_state=0)[0]


def quick(n_clusters=5, **parameters):
    return ConcreteKMeans(n_clusters, **({"max_iter": 300, "random_state": 0} | parameters))


# ------------------------------------------------------------------------------------- clusters


@pytest.mark.parametrize("seed", range(3))
def test_inertia_is_that_of_lloyd_or_lower(seed):
    digits = load_digits().data
    centers, _ = kmeans_plusplus(digits, 10, random_state=seed)
    theirs = KMeans(10, init=centers, n_init=1).fit(digits).inertia_
    ours = ConcreteKMeans(10, init=centers, random_state=seed).fit(digits).inertia_
    assert ours <= 1.001 * theirs


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize("name", ["vowel", "vehicle", "segment", "satimage"])
def test_inertia_is_that_of_lloyd_or_lower_on_real_tables(name, load_or_skip):
    rows, target = load_or_skip(name)
    k = len(np.unique(target))
    for seed in range(2):
        centers, _ = kmeans_plusplus(rows, k, random_state=seed)
        theirs = KMeans(k, init=centers, n_init=1).fit(rows).inertia_
        assert (
            ConcreteKMeans(k, init=centers, random_state=seed).fit(rows).inertia_ <= 1.01 * theirs
        )


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_scale_and_origin_do_not_matter(scale, offset):
    moved = (X + offset) * scale
    base = KMeans(5, n_init=10, random_state=0).fit(X).inertia_
    ours = ConcreteKMeans(5, n_init=4, random_state=0).fit(moved).inertia_ / scale**2
    assert ours == pytest.approx(base, rel=5e-3)


@pytest.mark.parametrize("gradient", ["distance", "reconstruction"])
def test_straight_through_gradients_find_clear_clusters(gradient):
    easy, _ = make_blobs(600, 4, centers=4, cluster_std=0.5, random_state=1)
    fit = ConcreteKMeans(4, gradient=gradient, sigma=1.0, temperature=(1.0, 0.5), random_state=0)
    base = KMeans(4, n_init=10, random_state=0).fit(easy).inertia_
    assert fit.fit(easy).inertia_ == pytest.approx(base, rel=0.05)


def test_lloyd_is_exact():
    centers, _ = kmeans_plusplus(X, 5, random_state=1)
    theirs = KMeans(5, init=centers, n_init=1).fit(X)
    ours = ConcreteKMeans(5, init=centers, algorithm="lloyd").fit(X)
    assert ours.inertia_ == pytest.approx(theirs.inertia_, rel=1e-10)
    np.testing.assert_array_equal(ours.labels_, theirs.labels_)


def test_no_hidden_pass_at_the_end():
    """After one step the centres are one gradient step from where they began, nothing more."""
    centers = X[:5].copy()
    fit = ConcreteKMeans(
        5, init=centers, max_iter=1, learning_rate=0.25, sigma=1e-6, batch_size=900, random_state=0
    ).fit(X)
    nearest = ((X[:, None] - centers) ** 2).sum(-1).argmin(1)
    means = np.stack([X[nearest == j].mean(0) for j in range(5)])
    np.testing.assert_allclose(fit.cluster_centers_, 0.75 * centers + 0.25 * means, rtol=1e-9)


# ------------------------------------------------------------------------------------- restarts


@pytest.mark.parametrize("algorithm", ["concrete", "lloyd"])
@pytest.mark.parametrize("init", ["k-means++", "random"])
@pytest.mark.parametrize("batch_size", [64, 1000])
def test_stack_equals_single_runs(algorithm, init, batch_size):
    options = {"algorithm": algorithm, "init": init, "batch_size": batch_size}
    stacked = quick(n_init=4, random_state=7, **options).fit(X)
    assert len(stacked.restarts_) == 4
    for restart in stacked.restarts_:
        single = quick(n_init=1, random_state=restart.seed, **options).fit(X)
        np.testing.assert_allclose(
            restart.cluster_centers, single.cluster_centers_, atol=1e-10, rtol=1e-10
        )
        assert restart.inertia == pytest.approx(single.inertia_, rel=1e-12)
        assert restart.n_iter == single.n_iter_
    best = min(stacked.restarts_, key=lambda restart: restart.inertia)
    assert stacked.inertia_ == best.inertia
    np.testing.assert_array_equal(stacked.cluster_centers_, best.cluster_centers)


def test_same_seed_same_result_and_none_varies():
    a, b = quick().fit(X), quick().fit(X)
    np.testing.assert_array_equal(a.cluster_centers_, b.cluster_centers_)
    seeds = {quick(random_state=None, max_iter=1).fit(X).restarts_[0].seed for _ in range(3)}
    assert len(seeds) == 3
    state = np.random.RandomState(3)
    first, second = (quick(random_state=state, max_iter=1).fit(X) for _ in range(2))
    assert first.restarts_[0].seed != second.restarts_[0].seed


# ---------------------------------------------------------------------------------- input kinds


def test_labels_are_predict_and_transform_is_distances():
    fit = quick().fit(X)
    np.testing.assert_array_equal(fit.labels_, fit.predict(X))
    np.testing.assert_array_equal(fit.labels_, quick().fit_predict(X))
    distances = np.linalg.norm(X[:, None] - fit.cluster_centers_, axis=-1)
    np.testing.assert_allclose(fit.transform(X), distances, atol=1e-9)
    np.testing.assert_allclose(quick().fit_transform(X), distances, atol=1e-9)
    assert fit.inertia_ == pytest.approx((distances.min(1) ** 2).sum())
    assert fit.score(X) == pytest.approx(-fit.inertia_)
    assert fit.score(NEW, sample_weight=np.full(70, 2.0)) == pytest.approx(2 * fit.score(NEW))


def as_csr(rows):
    return sparse.csr_array(np.maximum(rows, 0))


@pytest.mark.parametrize(
    "convert",
    [
        pd.DataFrame,
        np.asfortranarray,
        lambda rows: rows.tolist(),
        lambda rows: torch.from_numpy(rows),
        lambda rows: np.repeat(rows, 2, axis=0)[::2],
    ],
    ids=["frame", "fortran", "list", "tensor", "strided"],
)
def test_every_dense_kind_gives_the_same_clusters(convert):
    array = quick().fit(X)
    other = quick().fit(convert(X))
    np.testing.assert_allclose(np.asarray(other.cluster_centers_), array.cluster_centers_)
    np.testing.assert_array_equal(np.asarray(other.predict(convert(NEW))), array.predict(NEW))


@pytest.mark.parametrize("format_", ["csr", "csc", "coo"])
def test_sparse_equals_dense(format_):
    rows = np.maximum(X, 0)
    dense, csr = quick().fit(rows), quick().fit(sparse.csr_array(rows).asformat(format_))
    np.testing.assert_allclose(csr.cluster_centers_, dense.cluster_centers_, atol=1e-10)
    np.testing.assert_array_equal(csr.labels_, dense.labels_)
    np.testing.assert_allclose(csr.transform(as_csr(NEW)), dense.transform(np.maximum(NEW, 0)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64])
def test_torch_in_torch_out(dtype):
    rows = torch.from_numpy(X).to(dtype)
    fit = quick().fit(rows.requires_grad_() if dtype.is_floating_point else rows)
    kept = dtype if dtype in (torch.float32, torch.float64) else torch.float32
    assert isinstance(fit.cluster_centers_, torch.Tensor)
    assert fit.cluster_centers_.dtype == kept
    assert not fit.cluster_centers_.requires_grad
    assert fit.labels_.dtype == torch.int32
    assert fit.transform(rows).dtype == kept
    assert torch.equal(fit.predict(rows), fit.labels_)
    assert isinstance(fit.predict(X), np.ndarray), "the kind of the call's own input"


def test_names_of_columns_and_set_output():
    frame = pd.DataFrame(X, columns=list("abcdef"))
    fit = quick().set_output(transform="pandas").fit(frame)
    assert fit.feature_names_in_.tolist() == list("abcdef")
    out = fit.transform(frame)
    assert out.columns.tolist() == [f"concretekmeans{j}" for j in range(5)]
    assert fit.n_features_in_ == 6


def test_pipeline_grid_search_clone_and_pickle():
    pipeline = make_pipeline(StandardScaler(), quick())
    assert pipeline.fit(X).predict(NEW).shape == (70,)
    search = GridSearchCV(quick(max_iter=100), {"n_clusters": [2, 5]}, cv=3).fit(X)
    assert search.best_params_ == {"n_clusters": 5}
    fit = quick(temperature=(1.0, 0.1)).fit(X)
    again = pickle.loads(pickle.dumps(fit))
    np.testing.assert_array_equal(again.predict(NEW), fit.predict(NEW))
    fresh = clone(fit)
    assert fresh.get_params() == fit.get_params()
    with pytest.raises(NotFittedError):
        fresh.predict(X)


def test_weights_pull_the_centers():
    rows = np.array([[0.0], [1.0], [10.0], [11.0]])
    fit = quick(2, max_iter=2000).fit(rows, sample_weight=[3.0, 1.0, 0.0, 5.0])
    np.testing.assert_allclose(np.sort(fit.cluster_centers_.ravel()), [0.25, 11.0], atol=1e-3)
    assert fit.inertia_ == pytest.approx(0.75, rel=1e-3)


def test_weights_in_mini_batches():
    weight = np.where(Y == 0, 50.0, 1.0)
    theirs = KMeans(3, n_init=10, random_state=0).fit(X, sample_weight=weight).inertia_
    fit = quick(3, n_init=3, max_iter=2000, batch_size=128).fit(X, sample_weight=weight)
    assert fit.inertia_ <= 1.01 * theirs


# --------------------------------------------------------------------------------- degenerate data


def test_fewer_distinct_rows_than_clusters_warns():
    for rows in (np.zeros((20, 2)), np.repeat([[0.0, 0.0], [5.0, 5.0]], 400, axis=0)):
        for algorithm in ("concrete", "lloyd"):
            with pytest.warns(
                ConvergenceWarning, match=r"distinct clusters \([12]\) found smaller"
            ):
                fit = quick(3, algorithm=algorithm).fit(rows)
            assert np.isfinite(fit.cluster_centers_).all()
            assert fit.inertia_ == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("algorithm", ["concrete", "lloyd"])
def test_one_row_one_cluster_and_as_many_clusters_as_rows(algorithm):
    one = quick(1, algorithm=algorithm).fit([[2.0, 3.0]])
    np.testing.assert_allclose(one.cluster_centers_, [[2.0, 3.0]])
    mean = quick(1, algorithm=algorithm, max_iter=2000).fit(X)
    assert mean.inertia_ == pytest.approx(((X - X.mean(0)) ** 2).sum(), rel=1e-4)
    every = quick(30, algorithm=algorithm).fit(X[:30])
    assert sorted(every.labels_) == list(range(30))
    assert every.inertia_ == pytest.approx(0.0, abs=1e-6)


def test_empty_clusters_come_back_to_life():
    far = np.vstack([X[:2], np.full((3, 6), 1e3)])  # three centres that no row is near
    fit = ConcreteKMeans(5, init=far, random_state=0, batch_size=128).fit(X)
    assert np.bincount(fit.labels_, minlength=5).min() > 0
    assert np.abs(fit.cluster_centers_).max() < 100


def test_stops_early_only_when_nothing_moves():
    apart, _ = make_blobs(500, 3, centers=3, cluster_std=1e-3, random_state=0)
    assert quick(3, max_iter=5000, tol=1e-4).fit(apart).n_iter_ < 5000
    assert quick(3, max_iter=300, tol=0).fit(apart).n_iter_ == 300


def test_interrupted_fit_keeps_its_state(monkeypatch):
    from concrete_kmeans.objectives.shallow import ShallowObjective

    loss, calls = ShallowObjective.loss, []

    def interrupt(self, *arguments):
        calls.append(None)
        if len(calls) == 40:
            raise KeyboardInterrupt
        return loss(self, *arguments)

    monkeypatch.setattr(ShallowObjective, "loss", interrupt)
    fit = quick()
    with pytest.raises(KeyboardInterrupt):
        fit.fit(X)
    assert fit.n_iter_ == 39
    np.testing.assert_array_equal(fit.predict(X), fit.labels_)


# ------------------------------------------------------------------------------------ partial_fit


def test_partial_fit_learns_a_stream():
    stream = ConcreteKMeans(5, random_state=0)
    order = np.random.default_rng(0).permutation(len(X))
    for _ in range(10):
        for part in np.array_split(order, 6):
            stream.partial_fit(X[part])
    base = KMeans(5, n_init=10, random_state=0).fit(X).inertia_
    assert -stream.score(X) <= 1.05 * base
    assert stream.n_iter_ == 10 * 6


def test_partial_fit_goes_on_after_fit_pickle_and_kind_of_input():
    fit = quick(max_iter=1000).fit(X)
    before = fit.inertia_
    fit.partial_fit(torch.from_numpy(X))
    assert isinstance(fit.cluster_centers_, torch.Tensor)
    assert -fit.score(X) <= 1.02 * before
    a = ConcreteKMeans(5, random_state=0).partial_fit(X).partial_fit(X)
    b = pickle.loads(pickle.dumps(ConcreteKMeans(5, random_state=0).partial_fit(X))).partial_fit(X)
    np.testing.assert_array_equal(a.cluster_centers_, b.cluster_centers_)
    with pytest.raises(ValueError, match="expecting 6 features"):
        a.partial_fit(X[:, :3])


# ----------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"n_clusters": 0}, "n_clusters must be a whole number of at least 1, got 0"),
        ({"n_clusters": 2.5}, r"n_clusters must be .*, got 2\.5"),
        ({"n_clusters": 901}, "n_samples=900 should be >= n_clusters=901"),
        ({"n_init": 0}, "n_init must be a whole number of at least 1 or 'auto', got 0"),
        ({"max_iter": -1}, "max_iter must be"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"tol": -1e-3}, r"tol must be a finite number of at least 0, got -0\.001"),
        ({"sigma": 0.0}, r"sigma must be a positive finite number or 'auto', got 0\.0"),
        ({"sigma": float("nan")}, "sigma must be a positive finite number or 'auto', got nan"),
        ({"temperature": -1.0}, "temperature must be a positive finite number"),
        ({"temperature": (1.0, 0.0)}, r"temperature\[1\] must be a positive finite number, got 0"),
        ({"temperature": (1.0, 0.5, 0.1)}, "temperature must be"),
        ({"learning_rate": 1.5}, r"learning_rate must be in \(0, 1\], got 1\.5"),
        ({"gradient": "both"}, "gradient must be one of 'detached', 'distance', 'reconstruction'"),
        ({"algorithm": "elkan"}, "algorithm must be one of 'concrete', 'lloyd', got 'elkan'"),
        ({"init": "kmeans"}, r"init must be one of 'k-means\+\+', 'random', got 'kmeans'"),
        ({"init": np.zeros((5, 3))}, r"init must give centers of shape .*\(5, 6\), got \(5, 3\)"),
        ({"init": np.full((5, 6), np.nan)}, "init must give finite centers"),
        ({"init_size": 0}, "init_size must be"),
        ({"device": "nowhere"}, "device must be 'auto' or a device torch can use here, got"),
        ({"device": "meta"}, "device must be 'auto' or a device torch can use here, got 'meta'"),
    ],
)
def test_bad_parameters_are_named(parameters, message):
    with pytest.raises(ValueError, match=message):
        ConcreteKMeans(**({"n_clusters": 5} | parameters)).fit(X)


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without CUDA")
def test_missing_cuda_is_named():
    with pytest.raises(ValueError, match="device must be 'auto' or a device torch can use here"):
        quick(device="cuda").fit(X)


def test_tensor_is_never_moved():
    with pytest.raises(ValueError, match="device='cpu' but X is on meta"):
        quick(device="cpu").fit(torch.empty(10, 2, device="meta"))


@pytest.mark.parametrize("kind", [np.array, torch.tensor], ids=["array", "tensor"])
@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[1.0, np.nan]] * 9, "NaN"),
        ([[1.0, np.inf]] * 9, "infinity"),
        ([1.0, 2.0], "2D"),
        (np.empty((0, 3)).tolist(), r"0 (sample|feature)|2D"),
    ],
    ids=["nan", "inf", "1d", "empty"],
)
def test_bad_rows_are_named(kind, rows, message):
    with pytest.raises(ValueError, match=message):
        quick(2).fit(kind(rows))
    with pytest.raises(ValueError, match=message):
        quick(2).fit(X[:, :2]).predict(kind(rows))


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (-np.ones(900), "[Nn]egative"),
        (np.ones(899), "899"),
        (np.zeros(900), "zero"),
        (np.full(900, np.nan), "NaN"),
        (-torch.ones(900), "[Nn]egative"),
    ],
)
@pytest.mark.parametrize("rows", [X, torch.from_numpy(X)], ids=["array", "tensor"])
def test_bad_weights_are_named(weight, message, rows):
    with pytest.raises(ValueError, match=message):
        quick().fit(rows, sample_weight=weight)


def test_callable_init_and_its_seed():
    def first_rows(rows, k, random_state):
        return rows[random_state.choice(len(rows), k, replace=False)]

    fit = quick(init=first_rows, n_init=2).fit(X)
    assert len(fit.restarts_) == 2
    assert len(quick(init=first_rows, max_iter=1).fit(X).restarts_) == 10


def test_large_data_take_a_sample_for_the_start():
    rows = np.random.default_rng(0).normal(size=(40_000, 3)).astype(np.float32)
    fit = quick(4, max_iter=400).fit(rows)
    assert fit.inertia_ <= 1.01 * KMeans(4, n_init=1, random_state=0).fit(rows).inertia_
    small = quick(4, init_size=100, max_iter=400).fit(rows)
    assert small.inertia_ <= 1.02 * fit.inertia_


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("algorithm", ["concrete", "lloyd"])
def test_cuda_tensors_stay_on_cuda(algorithm):
    rows = torch.from_numpy(X).cuda()
    fit = quick(algorithm=algorithm, n_init=3, max_iter=1000).fit(rows)
    for result in (fit.cluster_centers_, fit.labels_, fit.predict(rows), fit.transform(rows)):
        assert result.device == rows.device
    assert torch.equal(fit.predict(rows), fit.labels_)
    base = KMeans(5, n_init=10, random_state=0).fit(X).inertia_
    assert fit.inertia_ <= 1.01 * base
    again = quick(algorithm=algorithm, n_init=3, max_iter=1000).fit(rows)
    assert torch.equal(again.cluster_centers_, fit.cluster_centers_)


@pytest.mark.parametrize("verbose", [0, 1])
def test_verbose_draws_a_bar(terminal, verbose):
    written_to = terminal()
    ConcreteKMeans(3, verbose=verbose, max_iter=300, tol=0.0, random_state=0).fit(np.eye(40))
    assert ("300/300 steps" in written_to.getvalue()) is bool(verbose)
