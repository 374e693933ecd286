"""Input that fuzzing found wrong answers to, crashes of the process among them."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse

import concrete_kmeans
from concrete_kmeans import DEC, IDEC, AutoencoderKMeans, ConcreteKMeans, DeepConcreteKMeans

X = np.random.default_rng(0).normal(size=(40, 4))
SMALL = {"encoder": (4, 2), "pretrain_epochs": 1, "device": "cpu", "random_state": 0}
ESTIMATORS = [
    ConcreteKMeans(2, max_iter=10, random_state=0),
    AutoencoderKMeans(2, **SMALL),
]


def broken(form):
    matrix = sparse.random_array((20, 6), density=0.5, rng=0).tocsr()
    if form == "lil":
        matrix = matrix.tolil()
        matrix.rows[3] = [2**30] * len(matrix.rows[3])
        return matrix
    matrix = matrix.asformat(form)
    (matrix.coords[1] if form == "coo" else matrix.indices)[5] = 2**30
    return matrix


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("form", ["csr", "csc", "coo", "lil"])
def test_sparse_parts_that_point_outside_do_not_crash(estimator, form):
    with pytest.raises(ValueError, match="X must be a whole sparse matrix"):
        estimator.fit(broken(form))
    estimator.fit(sparse.csr_array(X))
    new = sparse.random_array((20, 4), density=0.5, rng=0).tocsr()
    new.indices[0] = 9
    with pytest.raises(ValueError, match="X must be a whole sparse matrix"):
        estimator.predict(new)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda each: type(each).__name__)
def test_infinity_of_both_signs_is_an_error_without_a_warning(estimator):
    spoiled = X.copy()
    spoiled[0, 0], spoiled[1, 0] = np.inf, -np.inf
    with pytest.raises(ValueError, match="Input X contains infinity"):
        estimator.fit(spoiled)


@pytest.mark.parametrize("dtype", [">f8", ">f4", np.longdouble])
def test_bytes_in_another_order(dtype):
    estimator = ConcreteKMeans(2, max_iter=10, random_state=0)
    labels = estimator.fit(X.astype("f4").astype("f8")).labels_
    other = estimator.fit(pd.DataFrame(X.astype("f4").astype(dtype))).labels_
    assert (labels == other).all()


def test_one_row_backwards():
    estimator = ConcreteKMeans(2, random_state=0).fit(X)
    np.testing.assert_array_equal(estimator.predict(X[:1][::-1]), estimator.labels_[:1])


def test_sparse_of_long_doubles():
    matrix = sparse.csr_array(X)
    labels = IDEC(2, epochs=1, **SMALL).fit(matrix).labels_
    other = IDEC(2, epochs=1, **SMALL).fit(matrix.astype(np.longdouble)).labels_
    np.testing.assert_array_equal(labels, other)


@pytest.mark.parametrize("value", [X, pd.DataFrame(X), pd.NA], ids=["array", "frame", "NA"])
@pytest.mark.parametrize(
    ("cls", "names"),
    [
        (
            DeepConcreteKMeans,
            [
                *("epochs", "pretrain_epochs", "tol", "clustering_weight", "normalize", "device"),
                *("sigma", "balance", "learning_rate", "random_state", "augment", "callbacks"),
            ],
        ),
        (DEC, ["clustering_weight"]),
        (ConcreteKMeans, ["n_init", "init_size", "sigma", "device", "random_state", "tol"]),
    ],
)
def test_arrays_where_a_number_or_auto_stands(cls, names, value):
    for name in names:
        with pytest.raises((ValueError, TypeError), match=name) as caught:
            cls(2, **{name: value}).fit(X)
        assert "\n" not in str(caught.value)


def test_init_that_is_no_array():
    with pytest.raises(
        ValueError, match="init must be 'k-means\\+\\+', 'random', centers of shape"
    ):
        ConcreteKMeans(2, init=object()).fit(X)


@pytest.mark.parametrize("weight", [float("nan"), 1j, float("inf"), -1.0])
def test_one_weight_for_all_rows_is_checked(weight):
    with pytest.raises(ValueError, match="sample_weight must be a positive finite number or one a"):
        ConcreteKMeans(2).fit(X, sample_weight=weight)


def test_training_that_ends_in_infinity_is_no_result():
    """AE+KM has no phase after pretraining that would see what its last step did."""
    estimator = AutoencoderKMeans(2, **{**SMALL, "pretrain_learning_rate": 1e19})
    with pytest.raises(FloatingPointError, match="not finite"):
        estimator.fit(X)


@pytest.mark.parametrize("path", [None, 3, ("a", "b"), b"folder"])
def test_load_takes_a_path(path):
    with pytest.raises(TypeError, match="path must be that of a model folder, got"):
        concrete_kmeans.load(path)


def test_data_sets_have_names():
    with pytest.raises(ValueError, match=r"name is array.*it must be one of digits"):
        concrete_kmeans.datasets.load(np.zeros((3, 4)))


def test_layer():
    with pytest.raises(ValueError, match="sigma must be"):
        concrete_kmeans.ConcreteKMeansLayer(2, 4, sigma=torch.ones(2))
