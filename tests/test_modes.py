"""Modes of torch around a call do not change what it gives, and are as before after it."""

import contextlib
import copy

import numpy as np
import pytest
import torch
from sklearn.base import clone

import concrete_kmeans
from concrete_kmeans import (
    DCN,
    DEC,
    DKM,
    IDEC,
    AutoencoderKMeans,
    ConcreteKMeans,
    ConcreteKMeansLayer,
    DeepConcreteKMeans,
)
from concrete_kmeans.choosing import choose_k
from concrete_kmeans.modes import plain

X = np.random.default_rng(0).normal(size=(120, 6)) + 4.0 * np.arange(120)[:, None] // 60
SMALL = {
    "encoder": (16, 4),
    "pretrain_epochs": 2,
    "epochs": 2,
    "batch_size": 32,
    "device": "cpu",
    "random_state": 0,
}
ESTIMATORS = [
    ConcreteKMeans(2, max_iter=20, device="cpu", random_state=0),
    ConcreteKMeans(2, algorithm="lloyd", device="cpu", random_state=0),
    *(cls(2, **SMALL) for cls in (DeepConcreteKMeans, AutoencoderKMeans, DEC, IDEC, DCN, DKM)),
]


@contextlib.contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
        assert torch.get_default_dtype() == dtype
    finally:
        torch.set_default_dtype(before)


MODES = {
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "meta": lambda: torch.device("meta"),
    "float64": lambda: default_dtype(torch.float64),
    "bfloat16": lambda: default_dtype(torch.bfloat16),
}


def results(estimator, rows):
    found = [estimator.labels_, estimator.cluster_centers_, estimator.inertia_]
    found += [estimator.predict(rows), estimator.transform(rows), estimator.score(rows)]
    if hasattr(estimator, "decode_centers"):
        found += [estimator.predict_proba(rows), estimator.reconstruct(rows)]
        found += [estimator.decode_centers(), *estimator.restarts_[0][1:6]]
    return found


@pytest.fixture(scope="module")
def expected():
    found = {id(each): results(clone(each).fit(X), X) for each in ESTIMATORS}
    return lambda each: found[id(each)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "estimator", ESTIMATORS, ids=lambda each: f"{type(each).__name__}-{each.get_params()['tol']}"
)
def test_a_fit_is_the_same(estimator, mode, expected, tmp_path):
    with MODES[mode]():
        fitted = clone(estimator).fit(X)
        found = results(fitted, X)
        fitted.save(tmp_path / "model")
        loaded = results(concrete_kmeans.load(tmp_path / "model"), X)
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")
    for one, other, again in zip(found, expected(estimator), loaded, strict=True):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(again, other)


@pytest.mark.parametrize("batch_size", [32, 1000], ids=["batches", "all"])
@pytest.mark.parametrize("cls", [ConcreteKMeans, DeepConcreteKMeans])
def test_tensors_of_inference_mode(cls, batch_size):
    """Autograd refuses to keep them for the backward pass."""
    options = {**SMALL, "scale": "none"} if cls is DeepConcreteKMeans else {"random_state": 0}
    estimator = cls(2, **{**options, "batch_size": batch_size})
    for dtype in (torch.float32, torch.int64):
        with torch.inference_mode():
            rows = torch.tensor(X, dtype=dtype)
            found = clone(estimator).fit(rows)
        plain_rows = torch.tensor(X, dtype=dtype)
        expected = clone(estimator).fit(plain_rows)
        assert torch.equal(found.cluster_centers_, expected.cluster_centers_)
        assert not found.transform(rows).is_inference()
        found.partial_fit(plain_rows) if cls is ConcreteKMeans else found.fit(rows)


def test_wide_rows_whatever_the_default_type():
    """Their principal components begin with random numbers, other ones in float64."""
    wide = np.random.default_rng(0).normal(size=(60, 1100))
    expected = DeepConcreteKMeans(2, **SMALL).fit(wide)
    with default_dtype(torch.float64):
        found = DeepConcreteKMeans(2, **SMALL).fit(wide)
    np.testing.assert_array_equal(found.cluster_centers_, expected.cluster_centers_)


@pytest.mark.parametrize("mode", ["meta", "inference", "autocast"])
def test_layer_and_choice_of_k(mode):
    z = torch.tensor(X, dtype=torch.float32)
    layer = ConcreteKMeansLayer(2, 6, device="cpu")
    expected = copy.deepcopy(layer).init_centers(z, generator=torch.Generator().manual_seed(0))
    curve = choose_k(X, range(2, 5))
    with MODES[mode]():
        layer.init_centers(z, generator=torch.Generator().manual_seed(0))
        assert choose_k(X, range(2, 5)) == curve
    assert torch.equal(layer.centers, expected.centers)


def seen():
    return torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.empty(0).device.type


def test_modes_are_as_before_also_after_an_error():
    @plain()
    def fails():
        assert seen() == (True, False, "cpu")
        raise ZeroDivisionError

    with torch.no_grad(), torch.device("meta"), torch.autocast("cpu", torch.bfloat16):
        with pytest.raises(ZeroDivisionError):
            fails()
        assert seen() == (False, True, "meta")


@pytest.mark.parametrize("estimator", ESTIMATORS[1:4], ids=lambda each: type(each).__name__)
def test_warnings_point_to_the_caller(estimator):
    with pytest.warns(UserWarning, match="distinct clusters") as caught:
        clone(estimator).fit(np.ones((60, 3)))
    assert caught[0].filename == __file__
