"""What all deep methods promise: one suite, seven methods."""

import inspect
import itertools
import pickle
import random
import subprocess
import sys
import textwrap
import warnings

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import make_blobs
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import concrete_kmeans
from concrete_kmeans import (
    DCN,
    DEC,
    DKM,
    IDEC,
    AutoencoderKMeans,
    ClusterCollapseWarning,
    ConcreteKMeans,
    DeepConcreteKMeans,
    training,
)
from concrete_kmeans.estimators import deep, methods
from concrete_kmeans.estimators.deep import choose_restart
from concrete_kmeans.metrics import ari
from concrete_kmeans.objectives.concrete import Concrete
from concrete_kmeans.objectives.dcn import AlternatingClustering
from concrete_kmeans.objectives.dec import EmbeddedClustering
from concrete_kmeans.objectives.deep import Reconstruction
from concrete_kmeans.objectives.dkm import SoftClustering

pytestmark = pytest.mark.usefixtures("untouched_random_state", "short_warm_up")

METHODS = {
    # its consensus takes most of a fit's time: the tests of seeds and of starts ask for it
    "scaled": (DeepConcreteKMeans, {"init": "mixture"}),
    "paper": (DeepConcreteKMeans, {"objective": "paper"}),
    "AE+KM": (AutoencoderKMeans, {}),
    "DEC": (DEC, {}),
    "IDEC": (IDEC, {}),
    "DCN": (DCN, {}),
    "DKM": (DKM, {}),
}
#: What each minimises in its joint phase; AE+KM has none.
JOINT = {
    "scaled": Concrete,
    "paper": Concrete,
    "DEC": EmbeddedClustering,
    "IDEC": EmbeddedClustering,
    "DCN": AlternatingClustering,
    "DKM": SoftClustering,
}
every_method = pytest.mark.parametrize("method", METHODS)
every_joint_method = pytest.mark.parametrize("method", JOINT)

# halves: float32 and float64 hold the same numbers
X, Y = make_blobs(160, 6, centers=3, cluster_std=1.0, random_state=2)
X = np.round(2 * X) / 2
NEW = np.round(2 * make_blobs(23, 6, centers=3, cluster_std=1.0, random_state=2)[0]) / 2
PIXELS = np.random.default_rng(0).integers(0, 256, size=(40, 64), dtype=np.uint8)
#: Steps of an epoch with ``quick``.
PER_EPOCH = 5


def quick(method, n_clusters=3, **parameters):
    cls, own = METHODS[method]
    small = {"encoder": (16, 3), "pretrain_epochs": 4, "epochs": 4, "batch_size": 32}
    return cls(n_clusters, **(small | {"random_state": 0, "device": "cpu"} | own | parameters))


@pytest.fixture(scope="module")
def fitted():
    """One fit on X a method, shared by the tests that only look at it."""
    fits = {}

    def get(method):
        if method not in fits:
            fits[method] = quick(method).fit(X)
        return fits[method]

    return get


def assert_same(a, b, rows=NEW, other_rows=None):
    """Both fits are the same to the last bit."""
    np.testing.assert_array_equal(np.asarray(a.labels_), np.asarray(b.labels_))
    np.testing.assert_array_equal(np.asarray(a.cluster_centers_), np.asarray(b.cluster_centers_))
    other_rows = rows if other_rows is None else other_rows
    np.testing.assert_array_equal(
        np.asarray(a.transform(rows)), np.asarray(b.transform(other_rows))
    )


def assert_usable(fit, rows=X):
    np.testing.assert_array_equal(fit.labels_, fit.predict(rows))
    assert np.isfinite(fit.transform(rows)).all()
    assert np.isfinite(fit.cluster_centers_).all()
    assert np.isfinite(fit.predict_proba(rows)).all()
    assert np.isfinite(fit.reconstruct(rows)).all()
    assert np.isfinite(fit.decode_centers()).all()
    assert np.isfinite(fit.inertia_)


def phases(fit):
    return [phase for phase, _ in itertools.groupby(event.phase for event in fit.history_)]


def expected_phases(method):
    if method == "scaled":
        return ["pretrain", "warm-up", "joint"]
    return ["pretrain", "joint"] if method in JOINT else ["pretrain"]


# ------------------------------------------------------------------------------- seeds and restarts


@every_method
def test_stack_equals_single_runs(method):
    # clipping and noise could couple restarts, too
    options = {"precision": "float64", "clip_norm": 0.5, "augment": "noise", "init": "auto"}
    stack = quick(method, n_init=3, random_state=5, **options).fit(X)
    assert [restart.seed for restart in stack.restarts_] == [5, 6, 7]
    for r, restart in enumerate(stack.restarts_):
        single = quick(method, random_state=restart.seed, **options).fit(X)
        np.testing.assert_array_equal(restart.labels, single.labels_)
        np.testing.assert_allclose(restart.cluster_centers, single.cluster_centers_, atol=1e-8)
        assert restart.inertia == pytest.approx(single.inertia_, rel=1e-8)
        assert restart.reconstruction == pytest.approx(single.restarts_[0].reconstruction, rel=1e-8)
        assert restart.n_iter == single.n_iter_
        if r == stack.best_restart_:
            np.testing.assert_allclose(stack.transform(NEW), single.transform(NEW), atol=1e-8)
            np.testing.assert_allclose(
                stack.predict_proba(NEW), single.predict_proba(NEW), atol=1e-7
            )


def test_a_restart_does_not_wait_for_the_others(monkeypatch):
    """Each ends its warm-up when it has learned, and draws on as it would alone."""
    monkeypatch.setattr(methods, "LEARNED", 0.9)
    monkeypatch.setattr(methods, "WARM_UP_EPOCHS", 60)
    monkeypatch.setattr(deep, "LEAST_STEPS", 1)
    labels = Y.copy()
    labels[::12] = (labels[::12] + 1) % 3  # not learned at once
    options = {"precision": "float64", "init": labels}
    stack = quick("scaled", n_init=3, random_state=0, **options).fit(X)
    assert len({restart.n_iter for restart in stack.restarts_}) > 1
    for restart in stack.restarts_:
        single = quick("scaled", random_state=restart.seed, **options).fit(X)
        assert restart.n_iter == single.n_iter_
        np.testing.assert_allclose(restart.cluster_centers, single.cluster_centers_, atol=1e-8)


def test_a_tenth_of_the_rows_is_kept_out_of_pretraining(monkeypatch):
    seen = []
    loss = Reconstruction.loss

    def look(self, batch, *arguments):
        seen.append(batch.rows.detach().clone())
        return loss(self, batch, *arguments)

    monkeypatch.setattr(Reconstruction, "loss", look)
    fit = quick("AE+KM", scale="none", precision="float64").fit(X)
    trained_on = {tuple(row) for row in torch.cat(seen, 1)[0].tolist()}
    held = [i for i, row in enumerate(X.astype(float).tolist()) if tuple(row) not in trained_on]
    assert len(held) >= len(X) // 10
    again = quick("DEC", pretrained=fit).fit(X)
    assert again.model_.gains == fit.model_.gains


@pytest.mark.parametrize("init", ["k-means++", "mixture", "graph", "consensus"])
def test_stack_equals_single_runs_from_every_start(init):
    easy, _ = make_blobs(160, 6, centers=3, cluster_std=0.5, random_state=2)
    options = {"init": init, "precision": "float64", "epochs": 1}
    for restart in quick("DCN", n_init=4, random_state=20, **options).fit(easy).restarts_:
        single = quick("DCN", random_state=restart.seed, **options).fit(easy)
        np.testing.assert_array_equal(restart.labels, single.labels_)
        np.testing.assert_allclose(restart.cluster_centers, single.cluster_centers_, atol=1e-8)


@every_method
def test_same_seed_same_result_and_another_seed_differs(method, fitted):
    first = fitted(method)
    assert_same(first, clone(first).fit(X))
    assert_same(first, clone(first).fit(X[:50]).fit(X))  # nothing of an earlier fit stays
    other = quick(method, random_state=1).fit(X)
    assert not np.array_equal(first.cluster_centers_, other.cluster_centers_)


def test_none_and_a_random_state_draw_new_seeds():
    seeds = {quick("AE+KM", random_state=None).fit(X).restarts_[0].seed for _ in range(3)}
    assert len(seeds) == 3
    state = np.random.RandomState(3)
    a, b = (quick("AE+KM", random_state=state).fit(X).restarts_[0].seed for _ in range(2))
    assert a != b


@every_method
def test_global_random_states_are_untouched(method):
    """The fixture looks at torch's and numpy's; a module with dropout draws from torch's."""
    before = random.getstate()

    def make():
        return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))

    quick(method, encoder=make, stacking="loop").fit(X).predict(NEW)
    assert random.getstate() == before


def test_the_global_random_state_is_not_read():
    first = quick("scaled", init="auto").fit(X)
    with torch.random.fork_rng():
        torch.manual_seed(1234)
        assert_same(first, quick("scaled", init="auto").fit(X))


@every_method
def test_restarts_are_described(method):
    fit = quick(method, n_init=3).fit(X)
    assert [restart.seed for restart in fit.restarts_] == [0, 1, 2]
    for restart in fit.restarts_:
        assert np.isfinite([restart.inertia, restart.reconstruction, restart.agreement]).all()
        assert restart.labels.shape == (160,)
        assert restart.cluster_centers.shape == (3, 3)
        assert restart.status == "done"
        assert (restart.n_iter > 0) == (method in JOINT)
    best = fit.restarts_[fit.best_restart_]
    assert best.agreement == max(restart.agreement for restart in fit.restarts_)
    np.testing.assert_array_equal(best.labels, fit.labels_)
    np.testing.assert_array_equal(best.cluster_centers, fit.cluster_centers_)
    assert fit.inertia_ == pytest.approx(best.inertia)
    assert fit.n_iter_ == best.n_iter
    mean = [
        np.mean([ari(a.labels, b.labels) for b in fit.restarts_ if b is not a])
        for a in fit.restarts_
    ]
    np.testing.assert_allclose([r.agreement for r in fit.restarts_], mean, rtol=1e-6)
    assert np.isnan(quick(method, pretrain_epochs=1, epochs=1).fit(X).restarts_[0].agreement)


def test_three_restarts_choose_by_agreement_and_two_by_inertia():
    labels, agreement = torch.zeros(3, 4), torch.tensor([0.2, 0.9, 0.8])
    inertia = torch.tensor([1.0, 3.0, 2.0])
    assert choose_restart(labels, agreement, inertia, [False] * 3) == 1
    assert choose_restart(labels, agreement, inertia, [False, True, False]) == 2
    assert choose_restart(labels[:2], agreement[:2], inertia[:2], [False] * 2) == 0
    assert choose_restart(labels[:2], agreement[:2], inertia[:2], [True, False]) == 1


# ---------------------------------------------------------------------------------- using the fit


@every_method
def test_unseen_rows(method, fitted):
    fit = fitted(method)
    labels, proba = fit.predict(NEW), fit.predict_proba(NEW)
    assert labels.shape == (23,)
    assert np.issubdtype(labels.dtype, np.integer)
    assert set(labels) <= {0, 1, 2}
    assert proba.shape == (23, 3)
    np.testing.assert_allclose(proba.sum(1), 1.0, rtol=1e-5)
    np.testing.assert_array_equal(proba.argmax(1), labels)
    codes = fit.transform(NEW)
    assert codes.shape == (23, 3)
    assert fit.reconstruct(NEW).shape == NEW.shape
    assert fit.decode_centers().shape == (3, 6)
    distances = ((codes[:, None] - fit.cluster_centers_) ** 2).sum(-1)
    np.testing.assert_array_equal(distances.argmin(1), labels)
    assert fit.score(NEW) == pytest.approx(-distances.min(1).sum(), rel=1e-4)
    # a row's results do not depend on the rows beside it
    np.testing.assert_allclose(fit.transform(NEW[4:5]), codes[4:5], rtol=1e-5, atol=1e-5)


@every_method
def test_labels_are_predict_of_the_training_rows(method, fitted):
    fit = fitted(method)
    np.testing.assert_array_equal(fit.labels_, fit.predict(X))
    np.testing.assert_array_equal(fit.labels_, quick(method).fit_predict(X))
    np.testing.assert_array_equal(fit.transform(X), quick(method).fit_transform(X))
    assert fit.inertia_ == pytest.approx(-fit.score(X))
    assert fit.n_features_in_ == 6
    assert fit.feature_shape_ == (6,)


@every_method
def test_clear_clusters_are_found(method):
    easy, y = make_blobs(160, 6, centers=3, cluster_std=0.3, random_state=2)
    assert ari(y, quick(method, pretrain_epochs=20).fit(easy).labels_) > 0.99


@every_method
def test_reconstruction_is_in_the_units_of_the_rows(method):
    fit = quick(
        method, pretrain_epochs=80, pretrain_learning_rate=5e-3, epochs=1, scale="standard"
    ).fit(X * 100 + 1e3)
    error = fit.reconstruct(X * 100 + 1e3) - (X * 100 + 1e3)
    assert (error**2).sum() < 0.2 * (((X - X.mean(0)) * 100) ** 2).sum()


@every_method
def test_results_may_be_changed_without_harm(method, fitted):
    fit = quick(method).fit(X)
    fit.labels_[:] = 9
    fit.cluster_centers_[:] = 0.0
    fit.decode_centers()[:] = 0.0
    fit.transform(X)[:] = 0.0
    np.testing.assert_array_equal(fit.predict(NEW), fitted(method).predict(NEW))


@every_method
def test_clone_and_parameters(method):
    estimator = quick(method, clip_norm=1.0)
    fresh = clone(estimator)
    assert fresh.get_params() == estimator.get_params()
    assert fresh.set_params(epochs=7, batch_size=11).get_params()["epochs"] == 7
    assert fresh.batch_size == 11
    assert estimator.epochs == 4
    signature = inspect.signature(type(estimator).__init__).parameters
    assert set(estimator.get_params()) == set(signature) - {"self"}
    with pytest.raises(NotFittedError):
        clone(estimator.fit(X)).predict(X)
    with pytest.raises(ValueError, match="Invalid parameter 'epoch'"):
        fresh.set_params(epoch=1)


@every_method
def test_defaults_are_shared(method):
    """One vocabulary: a parameter means the same, and has the same default, everywhere."""
    own = inspect.signature(METHODS[method][0].__init__).parameters
    for name, parameter in inspect.signature(deep.DeepClusterer.__init__).parameters.items():
        assert own[name].default == parameter.default, name


@every_method
@pytest.mark.parametrize("way", ["pickle", "joblib"])
def test_saved_and_loaded(method, way, fitted, tmp_path):
    fit = fitted(method)
    if way == "pickle":
        again = pickle.loads(pickle.dumps(fit))
    else:
        joblib.dump(fit, tmp_path / "model")
        again = joblib.load(tmp_path / "model")
    assert_same(fit, again)
    np.testing.assert_array_equal(fit.predict_proba(NEW), again.predict_proba(NEW))
    assert [e.losses for e in fit.history_] == [e.losses for e in again.history_]
    assert_same(clone(again).fit(X), fit)


@every_method
def test_a_fit_that_fails_is_not_fitted(method):
    estimator = quick(method, init=np.zeros((7, 7)))
    with pytest.raises(ValueError, match="init must be"):
        estimator.fit(X)
    with pytest.raises(NotFittedError):
        estimator.predict(X)


def test_parameters_changed_after_the_fit_do_not_change_it(fitted):
    fit = pickle.loads(pickle.dumps(fitted("DCN")))
    fit.set_params(precision="float64", n_clusters=7, batch_size=1, encoder=(9, 9))
    np.testing.assert_array_equal(fit.transform(NEW), fitted("DCN").transform(NEW))
    assert fit.predict_proba(NEW).shape == (23, 3)


def test_pipeline_and_grid_search():
    pipeline = make_pipeline(StandardScaler(), quick("IDEC"))
    assert pipeline.fit(X).predict(NEW).shape == (23,)
    search = GridSearchCV(quick("AE+KM"), {"n_clusters": [1, 3]}, cv=2).fit(X)
    assert search.best_params_ == {"n_clusters": 3}


# -------------------------------------------------------------------------------- kinds of input


class Pairs(Dataset):
    """(row, target) pairs, as torchvision's data sets give them."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i], 0


KINDS = {
    "float32": lambda rows: rows.astype(np.float32),
    "csr": sparse.csr_array,
    "tensor": torch.from_numpy,
    "Dataset": Pairs,
}
OTHER_KINDS = {
    "list": lambda rows: rows.tolist(),
    "fortran": np.asfortranarray,
    "coo": sparse.coo_matrix,
    "strided tensor": lambda rows: torch.from_numpy(rows.T.copy()).T,
    "TensorDataset": lambda rows: TensorDataset(torch.from_numpy(rows)),
    "frame": lambda rows: pd.DataFrame(rows, columns=list("abcdef")),
}


@pytest.mark.parametrize(
    ("method", "kind"),
    [*itertools.product(METHODS, KINDS), *itertools.product(["DCN"], OTHER_KINDS)],
)
def test_every_kind_of_input_gives_the_same_fit(method, kind, fitted):
    convert = (KINDS | OTHER_KINDS)[kind]
    array = fitted(method)
    other = quick(method).fit(convert(X))
    assert_same(array, other, NEW, convert(NEW))
    for function in ("predict", "predict_proba", "reconstruct"):
        np.testing.assert_array_equal(
            np.asarray(getattr(other, function)(convert(NEW))), getattr(array, function)(NEW)
        )
    assert other.score(convert(NEW)) == array.score(NEW)


@pytest.mark.parametrize("scale", ["auto", "global", "standard", "none"])
def test_csr_equals_dense_however_it_is_scaled(scale):
    rows = np.where(X > 0, X, 0.0)
    dense = quick("DCN", scale=scale).fit(rows)
    csr = quick("DCN", scale=scale).fit(sparse.csr_matrix(rows))
    assert_same(dense, csr, rows, sparse.csr_matrix(rows))
    np.testing.assert_array_equal(csr.predict(rows), csr.labels_)


def test_rows_that_are_read_once_are_never_all_on_the_device(monkeypatch):
    """On a GPU a fit may keep them; what looks at each row once has no use for it."""
    asked = []

    def spy(*args, plain=deep.open_rows, **options):
        asked.append(options["max_resident_bytes"])
        return plain(*args, **options)

    monkeypatch.setattr(deep, "open_rows", spy)
    rows = sparse.csr_array(X)
    model = quick("AE+KM").fit(rows)
    assert asked == [None]
    model.predict(rows)
    model.score(rows)
    model.predict(X)
    assert asked == [None, 0, 0, 0]


@every_method
def test_memmap_equals_array(method, tmp_path, fitted):
    np.save(tmp_path / "floats.npy", X.astype(np.float32))
    np.save(tmp_path / "bytes.npy", PIXELS)
    floats, pixels = (np.load(tmp_path / f"{n}.npy", mmap_mode="r") for n in ("floats", "bytes"))
    assert_same(fitted(method), quick(method).fit(floats), X, floats)
    array = quick(method).fit(PIXELS.astype(np.float32))
    assert_same(array, quick(method).fit(pixels), PIXELS, pixels)


@pytest.mark.parametrize("scale", ["auto", "standard", "none"])
@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int64, np.float16, np.float64])
def test_type_of_the_numbers_does_not_matter(dtype, scale):
    parameters = {"pretrain_learning_rate": 1e-4, "scale": scale}
    floats = quick("AE+KM", **parameters).fit(PIXELS.astype(np.float32))
    assert_same(floats, quick("AE+KM", **parameters).fit(PIXELS.astype(dtype)), PIXELS)
    tensor = torch.from_numpy(PIXELS.astype(dtype))
    assert_same(floats, quick("AE+KM", **parameters).fit(tensor), PIXELS)


@pytest.mark.parametrize(
    ("method", "dtype"),
    [
        *((method, torch.float64) for method in METHODS),
        *(("IDEC", dtype) for dtype in (torch.float32, torch.bfloat16, torch.int64)),
    ],
)
def test_torch_in_torch_out(method, dtype, fitted):
    rows = torch.from_numpy(2 * X).to(dtype)  # whole numbers
    if dtype.is_floating_point:
        rows.requires_grad_()
    fit = quick(method, pretrain_epochs=1, epochs=1).fit(rows)
    results = {
        "labels": fit.labels_,
        "centers": fit.cluster_centers_,
        "decoded": fit.decode_centers(),
        "predict": fit.predict(rows),
        "transform": fit.transform(rows),
        "proba": fit.predict_proba(rows),
        "reconstruct": fit.reconstruct(rows),
        "restart": fit.restarts_[0].cluster_centers,
    }
    for name, value in results.items():
        assert isinstance(value, torch.Tensor), name
        assert value.device == rows.device, name
        assert not value.requires_grad, name
        assert not value.is_inference(), name
    assert torch.equal(results["labels"], results["predict"])
    assert results["transform"].dtype == torch.float32
    assert isinstance(fit.predict(2 * X), np.ndarray), "the kind of the call's own input"
    assert isinstance(fitted(method).predict(rows), torch.Tensor)


def test_tensors_can_be_trained_on():
    """What comes out may go into a graph of the user's."""
    fit = quick("AE+KM", scale="none", pretrain_learning_rate=1e-4).fit(torch.from_numpy(X))
    weight = torch.ones(3, 6, requires_grad=True)
    (fit.decode_centers() * weight).sum().backward()
    assert weight.grad is not None


@every_method
def test_names_of_columns(method):
    frame = pd.DataFrame(X, columns=list("abcdef"))
    fit = quick(method, pretrain_epochs=1, epochs=1).set_output(transform="pandas").fit(frame)
    assert fit.feature_names_in_.tolist() == list("abcdef")
    with pytest.raises(ValueError, match="feature names should match"):
        fit.predict(frame.rename(columns={"a": "z"}))
    with pytest.raises(ValueError, match="feature names"):
        fit.predict(frame[list("fedcba")])
    out = fit.transform(frame)
    prefix = type(fit).__name__.lower()
    assert out.columns.tolist() == [f"{prefix}{j}" for j in range(3)]
    assert out.columns.tolist() == fit.get_feature_names_out().tolist()
    assert not hasattr(fit.fit(torch.from_numpy(X)), "feature_names_in_")


@every_method
@pytest.mark.parametrize("kind", [np.asarray, torch.tensor, Pairs], ids=["array", "tensor", "set"])
def test_other_number_of_features_is_named(method, kind, fitted):
    with pytest.raises(ValueError, match=r"X has 5 features, but .* is expecting 6 features"):
        fitted(method).predict(kind(NEW[:, :5]))


@pytest.mark.parametrize("kind", [np.array, torch.tensor], ids=["array", "tensor"])
@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[1.0, np.nan]] * 9, "NaN"),
        ([[1.0, np.inf]] * 9, "infinity"),
        ([1.0, 2.0], r"2D|2 axes"),
        (np.empty((0, 3)).tolist(), r"0 (sample|feature)|2D|2 axes"),
    ],
    ids=["nan", "inf", "1d", "empty"],
)
def test_bad_rows_are_named(kind, rows, message, fitted):
    with pytest.raises(ValueError, match=message):
        quick("DCN", 2).fit(kind(rows))
    with pytest.raises(ValueError, match=message):
        fitted("DCN").predict(kind(rows))


def test_other_bad_input_is_named():
    with pytest.raises(ValueError, match="n_samples=2 should be >= n_clusters=3"):
        quick("DCN").fit(X[:2])
    with pytest.raises(ValueError, match="X must be finite as float32, and its squares"):
        quick("DCN").fit(np.where(X > 0, 1e300, 0.0))
    with pytest.raises(ValueError, match="X must be finite; row 3, feature 0 is NaN"):
        quick("DCN").fit(Pairs(np.where(np.arange(160)[:, None] == 3, np.nan, X)))
    with pytest.raises(ValueError, match=r"[Cc]omplex"):
        quick("DCN").fit(torch.from_numpy(X + 1j))
    with pytest.raises(TypeError, match="dense tensor"):
        quick("DCN").fit(torch.from_numpy(X).to_sparse())
    with pytest.raises(ValueError, match="device='cpu' but X is on meta"):
        quick("DCN").fit(torch.empty(10, 2, device="meta"))


# ----------------------------------------------------------------------------------------- images


@every_method
@pytest.mark.parametrize("shape", [(64,), (8, 8), (1, 8, 8)], ids=str)
def test_images(method, shape):
    fit = quick(method, encoder="conv", pretrain_epochs=1, epochs=1)
    images = PIXELS.reshape(-1, *shape)
    fit.fit(images)
    assert fit.n_features_in_ == 64
    assert fit.feature_shape_ == shape
    np.testing.assert_array_equal(fit.predict(images), fit.labels_)
    assert fit.transform(images[:5]).shape == (5, 10)
    assert fit.predict_proba(images[:5]).shape == (5, 3)
    assert fit.reconstruct(images[:5]).shape == (5, *shape)
    assert fit.decode_centers().shape == (3, *shape)
    with pytest.raises(ValueError, match="64 features"):
        fit.predict(images[..., 1:])


def test_images_of_every_kind_are_the_same():
    fits = [
        quick("AE+KM", encoder="conv", pretrain_epochs=1).fit(images)
        for images in (
            PIXELS,
            PIXELS.reshape(-1, 8, 8),
            torch.from_numpy(PIXELS).view(-1, 1, 8, 8),
            torch.from_numpy(PIXELS).view(-1, 8, 8).float(),
            Pairs(PIXELS.reshape(-1, 1, 8, 8)),
        )
    ]
    for other in fits[1:]:
        np.testing.assert_array_equal(np.asarray(other.labels_), fits[0].labels_)
        np.testing.assert_array_equal(np.asarray(other.cluster_centers_), fits[0].cluster_centers_)


def test_stack_of_convolutions_equals_single_runs():
    for stacking in ("vmap", "loop"):
        options = {"encoder": "conv", "precision": "float64", "stacking": stacking}
        stack = quick("DCN", n_init=2, **options).fit(PIXELS)
        for restart in stack.restarts_:
            single = quick("DCN", random_state=restart.seed, **options).fit(PIXELS)
            np.testing.assert_array_equal(restart.labels, single.labels_)
            np.testing.assert_allclose(restart.cluster_centers, single.cluster_centers_, atol=1e-8)


# ----------------------------------------------------------------------------------- own networks


def make_encoder():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))


def make_decoder():
    return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 6))


@every_method
@pytest.mark.parametrize(
    ("given_as", "stacking"),
    [("modules", "vmap"), ("factories", "vmap"), ("factories", "loop"), ("encoder only", "loop")],
)
def test_own_networks(method, stacking, given_as):
    with torch.random.fork_rng():
        encoder, decoder = make_encoder(), make_decoder()
    before = [p.clone() for p in encoder.parameters()]
    parameters = {
        "modules": {"encoder": encoder, "decoder": decoder},
        "factories": {"encoder": make_encoder, "decoder": make_decoder},
        "encoder only": {"encoder": encoder},
    }[given_as]
    options = {"stacking": stacking, "precision": "float64", "pretrain_epochs": 1, "epochs": 1}
    stack = quick(method, n_init=2, **parameters, **options).fit(X)
    assert stack.transform(NEW).shape == (23, 2)
    np.testing.assert_array_equal(stack.predict(X), stack.labels_)
    single = quick(method, random_state=1, **parameters, **options).fit(X)
    np.testing.assert_array_equal(stack.restarts_[1].labels, single.labels_)
    np.testing.assert_allclose(
        stack.restarts_[1].cluster_centers, single.cluster_centers_, atol=1e-8
    )
    assert all(map(torch.equal, before, encoder.parameters())), "the user's module is not trained"


@every_method
def test_batch_norm_and_dropout_run_in_a_loop(method):
    def encoder():
        return nn.Sequential(
            nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 2)
        )

    options = {"encoder": encoder, "stacking": "loop", "precision": "float64"}
    stack = quick(method, n_init=2, **options).fit(X)
    np.testing.assert_array_equal(stack.predict(X), stack.labels_)
    np.testing.assert_allclose(stack.transform(X[:1]), stack.transform(X)[:1], atol=1e-8)
    single = quick(method, random_state=1, **options).fit(X)
    np.testing.assert_allclose(
        stack.restarts_[1].cluster_centers, single.cluster_centers_, atol=1e-8
    )
    with pytest.raises(RuntimeError, match="stacking='loop' runs it"):
        quick(method, encoder=encoder).fit(X)


@every_method
def test_a_network_without_weights_or_with_frozen_ones(method):
    fit = quick(method, encoder=nn.Identity()).fit(X)
    assert fit.transform(NEW).shape == NEW.shape
    with torch.random.fork_rng():
        frozen = make_encoder().requires_grad_(False)
    fit = quick(method, encoder=frozen).fit(X)
    with torch.no_grad():
        scaled = (X - X.mean(0)) / np.sqrt(X.var(0).mean())
        codes = frozen(torch.from_numpy(scaled).float()).numpy()
    np.testing.assert_allclose(fit.transform(X), codes, atol=1e-5)


@every_method
@pytest.mark.parametrize("encoder", ["residual", "mlp"])
def test_named_encoders(method, encoder):
    fit = quick(method, encoder=encoder, pretrain_epochs=1, epochs=1).fit(X)
    assert fit.transform(NEW).shape == (23, 6)
    np.testing.assert_array_equal(fit.predict(X), fit.labels_)


def test_a_residual_encoder_begins_as_principal_components():
    fit = quick("AE+KM", encoder="residual", pretrain_epochs=0, scale="none").fit(X)
    codes = fit.transform(X)
    np.testing.assert_allclose(np.abs(np.corrcoef(codes.T)), np.eye(6), atol=1e-4)
    np.testing.assert_allclose(fit.reconstruct(X), X, atol=1e-3)


# -------------------------------------------------------------------------------------- precision


@every_method
def test_bfloat16_is_close_to_float32(method):
    easy, _ = make_blobs(160, 6, centers=3, cluster_std=0.3, random_state=2)
    full = quick(method, pretrain_epochs=10).fit(easy)
    half = quick(method, pretrain_epochs=10, precision="bfloat16").fit(easy)
    np.testing.assert_array_equal(half.labels_, full.labels_)
    assert half.transform(easy).dtype == np.float32
    assert not np.array_equal(half.transform(easy), full.transform(easy)), "it was in effect"
    correlation = np.corrcoef(half.transform(easy).ravel(), full.transform(easy).ravel())[0, 1]
    assert correlation > 0.999


@every_method
def test_bfloat16_is_that_of_predict_and_of_a_saved_model(method, tmp_path):
    """Codes of the fitted network, encoded in bfloat16 by hand."""
    half = quick(method, precision="bfloat16").fit(X)
    np.testing.assert_array_equal(half.predict(X), half.labels_)
    codes = half.transform(X)
    model = half._fitted
    rows = model.scaling(torch.tensor(X, dtype=torch.float32))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        expected = model.network.points(model.network.encode(rows).float())[0]
    np.testing.assert_allclose(codes, expected.numpy(), rtol=2**-6, atol=2**-6)
    half.save(tmp_path / "model")
    again = concrete_kmeans.load(tmp_path / "model")
    np.testing.assert_array_equal(again.transform(X), codes)
    np.testing.assert_array_equal(again.predict(X), half.labels_)


@every_method
def test_float64_is_float64(method):
    fit = quick(method, precision="float64").fit(X)
    assert fit.transform(NEW).dtype == np.float64
    assert fit.cluster_centers_.dtype == np.float64
    assert fit.reconstruct(NEW.astype(np.float32)).dtype == np.float64
    assert_same(fit, quick(method, precision="float64").fit(X.astype(np.float32)))


# ------------------------------------------------------------------------------------- pretrained


@every_method
def test_a_pretrained_network_is_used(method, fitted):
    other = fitted("AE+KM" if method != "AE+KM" else "scaled")
    before = other.transform(NEW)
    fit = quick(method, pretrained=other, epochs=0).fit(X)
    np.testing.assert_array_equal(fit.transform(NEW), before)
    np.testing.assert_array_equal(fit.reconstruct(NEW), other.reconstruct(NEW))
    assert fit.history_ == []
    fit = quick(method, pretrained=other).fit(X)
    assert phases(fit) == expected_phases(method)[1:]
    np.testing.assert_array_equal(other.transform(NEW), before)
    assert_same(fit, clone(fit).fit(X))  # a clone keeps the fitted network


@every_method
def test_restart_r_goes_on_from_restart_r(method):
    autoencoders = quick("AE+KM", n_init=3, precision="float64").fit(X)
    fit = quick(method, n_init=2, precision="float64", pretrained=autoencoders).fit(X)
    for restart in fit.restarts_:
        alone = quick("AE+KM", random_state=restart.seed, precision="float64").fit(X)
        single = quick(
            method, random_state=restart.seed, precision="float64", pretrained=alone
        ).fit(X)
        np.testing.assert_array_equal(restart.labels, single.labels_)
        np.testing.assert_allclose(restart.cluster_centers, single.cluster_centers_, atol=1e-8)


@every_method
def test_a_pretrained_network_that_does_not_fit_is_named(method, fitted):
    ae = fitted("AE+KM")
    with pytest.raises(ValueError, match="pretrained was fitted on 6 features but X has 5"):
        quick(method, pretrained=ae).fit(X[:, :5])
    with pytest.raises(ValueError, match=r"pretrained has 1 restart\(s\), fewer than n_init=2"):
        quick(method, pretrained=ae, n_init=2).fit(X)
    with pytest.raises(ValueError, match=r"pretrained must be a fitted .*AutoencoderKMeans"):
        quick(method, pretrained=quick("AE+KM")).fit(X)
    with pytest.raises(TypeError, match=r"pretrained must be a fitted .*, got ConcreteKMeans"):
        quick(method, pretrained=ConcreteKMeans()).fit(X)


@pytest.mark.parametrize(
    ("name", "value"), [("encoder", (9, 2)), ("decoder", (9,)), ("scale", "none")]
)
def test_what_a_pretrained_network_leaves_no_room_for_is_named(name, value, fitted):
    ae = fitted("AE+KM")
    with pytest.raises(ValueError, match=f"{name} must be 'auto' or that of pretrained, "):
        quick("DCN", pretrained=ae, **{name: value}).fit(X)
    same = {"encoder": [*ae.encoder], "decoder": ae.decoder, "scale": ae.scale}
    assert_usable(quick("DCN", pretrained=ae, epochs=0, **{name: same[name]}).fit(X))


def test_other_precision_than_the_pretrained(fitted):
    fit = quick("DCN", pretrained=fitted("AE+KM"), precision="float64", epochs=0).fit(X)
    assert fit.transform(NEW).dtype == np.float64
    np.testing.assert_allclose(fit.transform(NEW), fitted("AE+KM").transform(NEW), atol=1e-4)


# ------------------------------------------------------------------------------------------- init


@pytest.mark.parametrize("method", ["scaled", "paper", "DCN"])
@pytest.mark.parametrize("init", ["k-means++", "mixture", "graph", "consensus"])
def test_named_starts(method, init):
    fit = quick(method, init=init, pretrain_epochs=1, epochs=1).fit(X)
    np.testing.assert_array_equal(fit.predict(X), fit.labels_)


@every_method
def test_start_at_labels(method):
    fit = quick(method, init=Y, epochs=0).fit(X)
    codes = fit.transform(X)
    means = np.stack([codes[np.equal(Y, j)].mean(0) for j in range(3)])
    np.testing.assert_allclose(fit.cluster_centers_, means, atol=1e-5)
    each = np.stack([Y, (Y + 1) % 3])
    both = quick(method, init=each, n_init=2, epochs=0).fit(X)
    np.testing.assert_allclose(both.restarts_[0].cluster_centers, means, atol=1e-5)
    assert ari(quick(method, init=Y, epochs=8).fit(X).labels_, Y) > 0.9


@pytest.mark.parametrize("kind", [torch.as_tensor, lambda y: y.astype(np.uint32), list])
def test_labels_of_every_kind(kind):
    assert_same(quick("DCN", init=Y).fit(X), quick("DCN", init=kind(Y)).fit(X))


@every_method
def test_start_at_centers(method, fitted):
    ae = fitted("AE+KM")
    centers = ae.transform(X[:3])
    for given_as in (centers, torch.from_numpy(centers), centers.tolist()):
        fit = quick(method, pretrained=ae, init=given_as, epochs=0).fit(X)
        np.testing.assert_array_equal(fit.cluster_centers_, centers)
    each = np.stack([centers, centers[::-1]])
    both = quick(method, init=each, n_init=2, epochs=0).fit(X)
    np.testing.assert_array_equal(both.restarts_[1].cluster_centers, centers[::-1])
    assert_usable(quick(method, pretrained=ae, init=centers).fit(X))


@every_method
@pytest.mark.parametrize(
    ("init", "message"),
    [
        (np.zeros((3, 4)), r"init must be labels of shape \(160,\).* got .*float64 of .*\(3, 4\)"),
        (np.zeros(160), r"init must be labels .* got torch.float64 of shape \(160,\)"),
        (np.full((3, 3), np.nan), "init must give finite centers; it holds NaN or infinity"),
        (np.full(160, 3), "init as labels must be whole numbers from 0 to n_clusters - 1 = 2"),
        (np.full(160, -1), "init as labels must be whole .* got -1 to -1"),
        (5, "init must be labels"),
        (np.array(["a"] * 160), "init must be"),
        (len, "init must be"),
        ([[0.0, 1.0], [2.0]], "init must be"),
    ],
    ids=["shape", "floats", "nan", "large", "negative", "scalar", "str", "callable", "ragged"],
)
def test_a_bad_init_is_named_before_training(method, init, message, monkeypatch):
    monkeypatch.setattr(deep, "train", None)
    with pytest.raises((ValueError, TypeError), match=message):
        quick(method, init=init).fit(X)


# --------------------------------------------------------------------- history, callbacks, stopping


@every_method
def test_history_has_the_phases_in_order(method):
    fit = quick(method, n_init=2).fit(X)
    assert phases(fit) == expected_phases(method)
    for phase in expected_phases(method):
        events = [event for event in fit.history_ if event.phase == phase]
        steps = [event.step for event in events]
        assert steps == sorted(set(steps))
        assert steps[-1] == events[0].n_steps
        for event in events:
            assert len(event.running) == 2
            assert all(np.isfinite(values).all() for values in event.losses.values())
            assert {len(values) for values in event.losses.values()} == {2}
    if method in JOINT:
        assert fit.history_[-1].n_steps == 4 * PER_EPOCH
        assert fit.n_iter_ >= 4 * PER_EPOCH


@every_method
def test_callbacks_see_every_event(method):
    seen, again = [], []
    fit = quick(method, callbacks=[seen.append, lambda event: again.append(event.step)]).fit(X)
    assert seen == fit.history_
    assert again == [event.step for event in seen]
    np.testing.assert_array_equal(fit.labels_, quick(method).fit(X).labels_)


@every_method
@pytest.mark.parametrize("phase", ["pretrain", "joint"])
def test_a_callback_that_returns_true_ends_its_phase(method, phase):
    if phase not in expected_phases(method):
        pytest.skip("has no joint phase")
    fit = quick(method, epochs=40, tol=0.0, callbacks=[lambda event: event.phase == phase]).fit(X)
    events = [event for event in fit.history_ if event.phase == phase]
    assert len(events) == 1
    assert events[0].step < events[0].n_steps
    assert phases(fit) == expected_phases(method)
    assert_usable(fit)


@every_method
def test_pretraining_and_epochs_may_be_zero(method):
    fit = quick(method, pretrain_epochs=0, epochs=0).fit(X)
    assert fit.history_ == []
    assert fit.n_iter_ == 0
    assert_usable(fit)


# ------------------------------------------------------------------------------ Ctrl-C and failures


def at_call(number, do):
    """Wrap a loss so that call ``number`` is done by ``do(parts)`` instead."""

    def wrap(loss):
        calls = itertools.count()

        def wrapped(self, *arguments):
            parts = loss(self, *arguments)
            return do(parts) if next(calls) == number else parts

        return wrapped

    return wrap


def interrupt(parts):
    raise KeyboardInterrupt


def fails(*restarts):
    def spoil(parts):
        factor = torch.ones_like(parts["loss"])
        factor[list(restarts)] = torch.nan
        return {**parts, "loss": factor * parts["loss"]}  # the gradient is NaN, too

    return spoil


@every_method
@pytest.mark.parametrize("phase", ["pretrain", "warm-up", "joint"])
def test_ctrl_c_in_a_callback_keeps_a_usable_fit(method, phase, fitted):
    if phase not in expected_phases(method):
        pytest.skip(f"has no phase {phase}")

    def stop(event):
        if event.phase == phase:
            raise KeyboardInterrupt

    fit = quick(method, n_init=2, callbacks=[stop])
    with pytest.raises(KeyboardInterrupt):
        fit.fit(X)
    assert fit.history_[-1].phase == phase
    assert sum(event.phase == phase for event in fit.history_) == 1
    assert_usable(fit)
    assert_same(fitted(method), fit.set_params(callbacks=None, n_init=1).fit(X))


@every_method
def test_ctrl_c_in_pretraining_keeps_the_last_whole_step(method, monkeypatch):
    monkeypatch.setattr(Reconstruction, "loss", at_call(7, interrupt)(Reconstruction.loss))
    fit = quick(method)
    with pytest.raises(KeyboardInterrupt):
        fit.fit(X)
    assert phases(fit) == ["pretrain"]
    assert fit.history_[-1].step == 7
    assert fit.n_iter_ == 0
    assert_usable(fit)


@every_joint_method
def test_ctrl_c_in_the_joint_phase_keeps_the_last_whole_step(method, monkeypatch):
    cls = JOINT[method]
    monkeypatch.setattr(cls, "loss", at_call(7, interrupt)(cls.loss))
    fit = quick(method)
    with pytest.raises(KeyboardInterrupt):
        fit.fit(X)
    assert fit.n_iter_ == 7
    assert_usable(fit)


@every_method
def test_all_restarts_failing_in_pretraining_is_an_error(method, monkeypatch):
    monkeypatch.setattr(Reconstruction, "loss", at_call(3, fails(0, 1))(Reconstruction.loss))
    fit = quick(method, n_init=2, random_state=5)
    with pytest.raises(
        FloatingPointError, match=r"restart 0 \(seed 5\) failed in pretrain at step 3"
    ):
        fit.fit(X)
    assert phases(fit) == ["pretrain"], "nothing is trained on from there"
    assert_usable(fit)


@every_joint_method
def test_a_failing_restart_is_an_error_and_its_last_good_state_is_kept(method, monkeypatch):
    cls = JOINT[method]
    monkeypatch.setattr(cls, "loss", at_call(11, fails(0))(cls.loss))
    fit = quick(method)
    with pytest.raises(
        FloatingPointError, match=r"restart 0 \(seed 0\) failed in (warm-up|joint) at step 11"
    ):
        fit.fit(X)
    assert_usable(fit)
    assert fit.restarts_[0].status.endswith("at step 11")


@every_method
@pytest.mark.parametrize("phase", ["pretrain", "joint"])
def test_other_restarts_go_on_as_if_alone(method, phase, monkeypatch):
    if phase not in expected_phases(method):
        pytest.skip("has no joint phase")
    singles = [quick(method, random_state=s, precision="float64").fit(X) for s in (5, 7)]
    cls = Reconstruction if phase == "pretrain" else JOINT[method]
    monkeypatch.setattr(cls, "loss", at_call(9, fails(1))(cls.loss))
    fit = quick(method, n_init=3, random_state=5, precision="float64")
    with pytest.warns(
        ClusterCollapseWarning,
        match=r"restart 1 \(seed 6\) failed in (pretrain|warm-up|joint) at step 9; the last good",
    ):
        fit.fit(X)
    assert_usable(fit)
    assert fit.best_restart_ != 1
    assert [restart.status == "done" for restart in fit.restarts_] == [True, False, True]
    assert np.isfinite(fit.restarts_[1].cluster_centers).all()
    for restart, single in zip(fit.restarts_[::2], singles, strict=True):
        np.testing.assert_array_equal(restart.labels, single.labels_)
        np.testing.assert_allclose(restart.cluster_centers, single.cluster_centers_, atol=1e-8)


@every_method
def test_a_learning_rate_that_is_too_large_is_an_error(method):
    fit = quick(method, pretrain_learning_rate=1e30)
    with pytest.raises(FloatingPointError, match="Lower the learning rate"):
        fit.fit(X)
    assert_usable(fit)


def test_an_error_of_a_callback_leaves_nothing_behind():
    def fail(event):
        if event.phase == "joint":
            raise RuntimeError("mine")

    fit = quick("scaled", callbacks=[fail])
    with pytest.raises(RuntimeError, match="mine"):
        fit.fit(X)
    fit.set_params(callbacks=None, epochs=0).fit(X)
    np.testing.assert_array_equal(
        fit.predict_proba(X), quick("scaled", epochs=0).fit(X).predict_proba(X)
    )


# --------------------------------------------------------------------------------- degenerate data


@every_method
@pytest.mark.parametrize(
    ("rows", "k"),
    [(X[:1], 1), (X, 1), (X[:9], 9), (X[:20], 20), (X[:2], 2), (X[:50, :1], 3)],
    ids=["one row", "one cluster", "k = n = 9", "k = n = 20", "k = n = 2", "one feature"],
)
def test_degenerate_shapes(method, rows, k):
    with warnings.catch_warnings():
        # so few steps may leave two rows with one centre, and say so
        warnings.filterwarnings("ignore", "Number of distinct clusters")
        fit = quick(method, k).fit(rows)
    assert_usable(fit, rows)
    assert fit.labels_.shape == (len(rows),)
    assert fit.cluster_centers_.shape == (k, 3)
    assert fit.predict_proba(rows).shape == (len(rows), k)
    np.testing.assert_allclose(fit.predict_proba(rows).sum(1), 1.0, rtol=1e-5)
    assert all(restart.status == "done" for restart in fit.restarts_)


@every_method
def test_as_many_clusters_as_rows_start_with_one_each(method):
    fit = quick(method, 12, pretrain_epochs=0, epochs=0).fit(X[:12])
    assert sorted(fit.labels_) == list(range(12))
    np.testing.assert_array_equal(fit.predict_proba(X[:12]).argmax(1), fit.labels_)


@every_method
def test_equal_rows(method):
    with pytest.warns(match=r"Number of distinct clusters \(1\) found smaller than n_clusters"):
        fit = quick(method).fit(np.ones((40, 6)))
    assert_usable(fit, np.ones((40, 6)))


@settings(max_examples=40, deadline=None)
@given(data=st.data(), method=st.sampled_from([m for m in METHODS if m != "scaled"]))
def test_any_shape_is_fitted(data, method):
    n = data.draw(st.integers(1, 40), "n_samples")
    d = data.draw(st.integers(1, 7), "n_features")
    k = data.draw(st.integers(1, n), "n_clusters")
    batch = data.draw(st.integers(1, 50), "batch_size")
    exponent = data.draw(st.integers(-12, 12), "exponent")
    seed = data.draw(st.integers(0, 2**32), "seed")
    rows = np.random.default_rng(seed).normal(size=(n, d)) * 10.0**exponent
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Number of distinct clusters")
        warnings.simplefilter("ignore", ClusterCollapseWarning)
        fit = quick(
            method, k, batch_size=batch, pretrain_epochs=1, epochs=1, random_state=seed
        ).fit(rows)
    assert_usable(fit, rows)
    assert set(fit.labels_) <= set(range(k))
    proba = fit.predict_proba(rows)
    np.testing.assert_allclose(proba.sum(1), 1.0, rtol=1e-5)
    own = proba[np.arange(n), fit.labels_]
    np.testing.assert_allclose(own, proba.max(1), rtol=1e-5)


# ----------------------------------------------------------------------------------------- errors

BAD = [
    ("n_clusters", 0, "a whole number of at least 1, got 0"),
    ("n_clusters", 2.5, r"a whole number of at least 1, got 2\.5"),
    ("encoder", "resnet", "one of 'auto', 'mlp', 'residual', 'conv', got 'resnet'"),
    ("encoder", (16, 0), "a whole number of at least 1, got 0"),
    ("encoder", (), r"at least 1 number, got \(\)"),
    ("encoder", 16, "a sequence of whole numbers, .*, got 16"),
    ("decoder", "mlp", "one of 'auto', got 'mlp'"),
    ("decoder", (1.5,), r"a whole number of at least 1, got 1\.5"),
    ("decoder", 7, "a sequence of whole numbers, .*, got 7"),
    ("pretrained", "mine", "a fitted deep estimator of this package or None, got str"),
    ("pretrain_epochs", -1, "a whole number of at least 0 or 'auto', got -1"),
    ("pretrain_epochs", "many", "a whole number of at least 0 or 'auto', got 'many'"),
    ("epochs", 1.5, r"a whole number of at least 0 or 'auto', got 1\.5"),
    ("batch_size", 0, "a whole number of at least 1, got 0"),
    ("batch_size", "auto", "a whole number of at least 1, got 'auto'"),
    ("pretrain_learning_rate", 0.0, r"a positive finite number or a .* pair of them, got 0\.0"),
    ("pretrain_learning_rate", (1e-3, -1.0), r"a positive finite number, got -1\.0"),
    ("learning_rate", float("nan"), "a positive finite number or .*, got nan"),
    ("learning_rate", "fast", "a positive finite number or .*, got 'fast'"),
    ("learning_rate", (1.0, 0.1, 0.1), r"a positive finite number or .*, got \(1.0, 0.1, 0.1\)"),
    ("clustering_weight", -1.0, r"a finite number of at least 0 or 'auto', got -1\.0"),
    ("clustering_weight", "heavy", "a finite number of at least 0 or 'auto', got 'heavy'"),
    ("init", "kmeans", r"one of 'auto', 'k-means\+\+', 'mixture', .*, got 'kmeans'"),
    ("n_init", 0, "a whole number of at least 1, got 0"),
    ("n_init", "auto", "a whole number of at least 1, got 'auto'"),
    ("scale", "minmax", "one of 'auto', 'none', 'global', 'standard', got 'minmax'"),
    ("scale", None, "one of 'auto', .*, got None"),
    ("augment", "flip", "one of .*'image', .*, got 'flip'"),
    ("augment", 3, "a callable.*, got 3|.*got 3"),
    ("tol", -1e-3, r"a finite number of at least 0 or 'auto', got -0\.001"),
    ("tol", "tight", "a finite number of at least 0 or 'auto', got 'tight'"),
    ("clip_norm", 0, "a positive finite number or None, got 0"),
    ("stacking", "pile", "one of 'vmap', 'loop', got 'pile'"),
    ("device", "nowhere", "'auto' or a device torch can use here, got 'nowhere'"),
    ("precision", "float16", "one of 'float32', 'float64', 'tf32', 'bfloat16', got 'float16'"),
    ("checkpoint", 3, "the path of a folder or None, got 3"),
    ("checkpoint_every", 0, "a positive finite number, got 0"),
    ("checkpoint_every", "often", "a positive finite number, got 'often'"),
    ("callbacks", 3, "a sequence of callables or None, got 3"),
    ("callbacks", print, "a sequence of callables or None, got <built-in function print>"),
    ("callbacks", [print, 3], "a sequence of callables or None, got .*3"),
    ("normalize", "yes", "True, False or 'auto', got 'yes'"),
    ("normalize", 1, "True, False or 'auto', got 1"),
    ("verbose", "loud", "a whole number of at least 0, got 'loud'"),
    ("verbose", -1, "a whole number of at least 0, got -1"),
    ("random_state", "zero", "a whole number of at least 0, .*, got 'zero'"),
    ("random_state", -1, "a whole number of at least 0, .*, got -1"),
    ("random_state", 1.5, r"a whole number of at least 0, .*, got 1\.5"),
    ("random_state", 2**63, f"a whole number of at least 0, .*, got {2**63}"),
]
BAD_CONCRETE = [
    ("choose", "best", "one of 'agreement', 'consensus', got 'best'"),
    ("objective", "eq8", "one of 'scaled', 'paper', got 'eq8'"),
    ("balance", -1.0, r"a finite number of at least 0 or 'auto', got -1\.0"),
    ("balance", "none", "a finite number of at least 0 or 'auto', got 'none'"),
    ("sigma", 0.0, r"a positive finite number or 'auto', got 0\.0"),
    ("temperature", -1.0, r"a positive finite number or .*, got -1\.0"),
    ("temperature", (1.0, 0.0), r"a positive finite number, got 0\.0"),
    ("temperature", "auto", "a positive finite number or .*, got 'auto'"),
]


def assert_refused_before_any_work(method, name, value, message, monkeypatch):
    """An error that names the parameter, what it was and what it may be; no pass over the rows."""
    for work in ("fit_scaling", "feature_moments", "build_autoencoder", "train"):
        monkeypatch.setattr(deep, work, None)
    for rows in (X, torch.from_numpy(X)):
        with pytest.raises(
            (ValueError, TypeError), match=rf"{name}(\[\d\])? must (be|hold) {message}"
        ):
            quick(method, **{name: value}).fit(rows)


@every_method
@pytest.mark.parametrize(
    ("name", "value", "message"), BAD, ids=[f"{name}={value!r}" for name, value, _ in BAD]
)
def test_bad_parameters_are_named(method, name, value, message, monkeypatch):
    assert_refused_before_any_work(method, name, value, message, monkeypatch)


@pytest.mark.parametrize("method", ["scaled", "paper"])
@pytest.mark.parametrize(
    ("name", "value", "message"),
    BAD_CONCRETE,
    ids=[f"{name}={value!r}" for name, value, _ in BAD_CONCRETE],
)
def test_bad_parameters_of_concrete_are_named(method, name, value, message, monkeypatch):
    assert_refused_before_any_work(method, name, value, message, monkeypatch)


def test_every_parameter_has_a_bad_value():
    named = {name for name, _, _ in BAD + BAD_CONCRETE}
    assert named == set(DeepConcreteKMeans().get_params())


def test_dec_has_no_weight_to_set():
    with pytest.raises(ValueError, match=r"clustering_weight must be 'auto': .* IDEC .*, got 0.5"):
        quick("DEC", clustering_weight=0.5).fit(X)


@every_method
def test_good_values_that_are_unusual_are_taken(method):
    fit = quick(
        method,
        n_clusters=np.int64(3),
        epochs=np.int32(1),
        pretrain_epochs=np.int64(1),
        pretrain_learning_rate=[1e-3, 1e-4],
        learning_rate=(1e-3, 1e-4),
        tol=0,
        verbose=True,
        callbacks=(),
        encoder=[8, 2],
        decoder=(),
        device=torch.device("cpu"),
        random_state=np.int64(2**32),
    ).fit(X)
    assert_usable(fit)


# ---------------------------------------------------------------------------------- memory, devices

MEASURE = """
    import resource, sys, warnings
    import numpy as np, torch
    from concrete_kmeans import DEC

    torch.set_num_threads(1)
    small = np.random.default_rng(0).normal(size=(500, 16)).astype(np.float32)
    quick = {"encoder": (16, 3), "pretrain_epochs": 1, "epochs": 1, "device": "cpu"}
    fit = DEC(100, random_state=0, **quick).fit(small)
    fit.predict(small)
    rows = np.load(sys.argv[1], mmap_mode="r")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert len(fit.predict(rows)) == 1_000_000
    extra = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(extra * (1 if sys.platform == "darwin" else 1024))
"""


def test_predict_on_a_million_rows_takes_little_memory(tmp_path):
    pytest.importorskip("resource")
    rows = np.lib.format.open_memmap(
        tmp_path / "rows.npy", mode="w+", dtype=np.float32, shape=(1_000_000, 16)
    )
    rows[:] = np.random.default_rng(0).normal(size=(1000, 16)).repeat(1000, axis=0)
    rows.flush()
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(MEASURE), str(tmp_path / "rows.npy")],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    # the pages of the file that were read count, too: 64 MB
    assert int(run.stdout) < 300e6


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@every_method
def test_cuda_tensors_stay_on_cuda(method):
    rows = torch.from_numpy(X).cuda()
    fit = quick(method, device="auto").fit(rows)
    for result in (fit.labels_, fit.cluster_centers_, fit.transform(rows), fit.decode_centers()):
        assert result.device == rows.device
    assert torch.equal(fit.predict(rows), fit.labels_)
    assert_same(fit.fit(X), quick(method, device="auto").fit(X))
    on_host = fit.set_params(device="cpu").transform(X)
    np.testing.assert_allclose(fit.set_params(device="auto").transform(X), on_host, atol=1e-3)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("variant", [{}, {"augment": "noise"}, {"clip_norm": 0.5}])
@every_method
def test_recorded_steps_give_the_weights_of_plain_ones(method, variant, monkeypatch):
    """A recording replays the kernels of a step: the same weights after some epochs."""
    rows = torch.from_numpy(X).cuda()
    options = {"device": "auto", "precision": "float64", "n_init": 2, **variant}
    replayed = quick(method, **options).fit(rows)
    monkeypatch.setattr(training._Recorded, "n_before", 10**9)
    plain = quick(method, **options).fit(rows)
    ours, theirs = (list(fit.model_.network.parameters()) for fit in (replayed, plain))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
    torch.testing.assert_close(replayed.model_.centers, plain.model_.centers, rtol=0, atol=1e-10)
    assert replayed.n_iter_ == plain.n_iter_
    assert len(replayed.history_) == len(plain.history_)
