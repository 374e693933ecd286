"""Input that fuzzing found wrong answers to, crashes of the process among them."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from torch import nn

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


def test_layer_takes_tensors_and_a_scalar_temperature():
    layer = concrete_kmeans.ConcreteKMeansLayer(2, 4)
    for call in (layer, layer.init_centers):
        with pytest.raises(TypeError, match="z must be a tensor, got ndarray"):
            call(X)
    with pytest.raises(TypeError, match="centers must be a tensor, got ndarray"):
        concrete_kmeans.functional.squared_distances(torch.zeros(1, 4), X)
    for value in (torch.ones(1), None, "cold"):
        with pytest.raises(ValueError, match="temperature must be a positive finite number or a"):
            layer.temperature = value


def test_layer_made_without_memory_gets_all_its_values():
    layer = concrete_kmeans.ConcreteKMeansLayer(2, 4, temperature=0.5, device="meta")
    layer.to_empty(device="cpu")
    layer.temperature.fill_(0.0)
    layer.reset_parameters()
    assert layer.temperature == 0.5
    assert layer(torch.ones(3, 4)).loss.isfinite()


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda each: type(each).__name__)
def test_meta_has_no_values(estimator):
    with pytest.raises(ValueError, match="X must hold numbers, got a tensor on the meta device"):
        type(estimator)(2).fit(torch.empty(20, 4, device="meta"))
    with pytest.raises(ValueError, match="device must be 'auto' or a device torch can use here"):
        type(estimator)(2, device="meta").fit(X)


def test_bytes_are_no_widths():
    for name in ("encoder", "decoder"):
        with pytest.raises(TypeError, match=f"{name} must be a sequence of whole numbers"):
            AutoencoderKMeans(2, **{**SMALL, name: b"ab"}).fit(X)


@pytest.mark.parametrize(("name", "value"), [("verbose", "yes"), ("verbose", -1), ("copy_x", 1)])
def test_what_has_no_part_is_checked_as_well(name, value):
    with pytest.raises((ValueError, TypeError), match=f"{name} must be"):
        ConcreteKMeans(2, **{name: value}).fit(X)


def test_values_whose_squares_overflow_are_named():
    with pytest.raises(FloatingPointError, match="are too large for float32: scale X"):
        ConcreteKMeans(2, algorithm="lloyd", random_state=0).fit(X.astype("f4") * 1e30)


def test_modules_that_write_to_their_input_are_refused():
    """They would change the user's rows, or what is to be reconstructed."""
    writes = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 2))
    with pytest.raises(ValueError, match="encoder must not write to its input, but Sequential"):
        AutoencoderKMeans(2, **{**SMALL, "encoder": writes}).fit(X)


def test_networks_without_parameters_are_refused():
    identity = {"encoder": nn.Identity(), "decoder": nn.Identity()}
    with pytest.raises(ValueError, match="encoder and decoder have no parameters"):
        AutoencoderKMeans(2, **{**SMALL, **identity}).fit(X)


def test_an_augmentation_may_write_to_its_rows():
    rows = X.astype(np.float32)
    options = {**SMALL, "scale": "none", "pretrain_epochs": 3}
    found = [
        AutoencoderKMeans(2, **options, augment=augment).fit(rows)
        for augment in (lambda rows: rows.mul_(0.5), lambda rows: rows * 0.5)
    ]
    np.testing.assert_array_equal(rows, X.astype(np.float32))
    np.testing.assert_array_equal(found[0].transform(rows), found[1].transform(rows))


def test_a_pretrained_network_of_features_in_another_order():
    frame = pd.DataFrame(X, columns=list("abcd"))
    pretrained = AutoencoderKMeans(2, **SMALL).fit(frame)
    with pytest.raises(ValueError, match="pretrained must have been fitted on the features of X"):
        DEC(2, epochs=1, **{**SMALL, "pretrained": pretrained}).fit(frame[list("dcba")])


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda each: type(each).__name__)
def test_a_fit_is_saved_as_it_is_whatever_was_set_since(estimator, tmp_path):
    labels = estimator.fit(X).labels_
    try:
        estimator.set_params(n_clusters=5).save(tmp_path / "model")
    finally:
        estimator.set_params(n_clusters=2)
    loaded = concrete_kmeans.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(X), labels)
    assert loaded.n_clusters == 5


def test_small_integers_of_numpy():
    small = {"batch_size": np.int8(16), "pretrain_epochs": np.int8(1)}
    rows = np.random.default_rng(0).normal(size=(300, 4))
    found = DeepConcreteKMeans(2, **{**SMALL, **small, "epochs": np.int8(1)}).fit(rows)
    plain = {"batch_size": 16, "pretrain_epochs": 1, "epochs": 1}
    expected = DeepConcreteKMeans(2, **{**SMALL, **plain}).fit(rows)
    np.testing.assert_array_equal(found.cluster_centers_, expected.cluster_centers_)
