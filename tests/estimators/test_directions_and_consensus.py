"""Codes compared by direction, and a consensus of restarts."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.cluster import KMeans
from sklearn.datasets import make_blobs
from sklearn.preprocessing import normalize

import concrete_kmeans
from concrete_kmeans import DEC, AutoencoderKMeans, DeepConcreteKMeans
from concrete_kmeans.estimators.deep import have_one_length
from concrete_kmeans.metrics import ari
from concrete_kmeans.networks import build_autoencoder

pytestmark = pytest.mark.usefixtures("untouched_random_state")

X, Y = make_blobs(240, n_features=8, centers=4, cluster_std=2.0, random_state=3)
UNIT = normalize(X)
QUICK = {"encoder": (16, 3), "pretrain_epochs": 6, "epochs": 4, "random_state": 0, "device": "cpu"}


class TestNormalize:
    @given(st.integers(0, 10), st.floats(1e-3, 1e3))
    @settings(max_examples=30, deadline=None)
    def test_rows_of_one_length(self, seed, length):
        rows = torch.randn(50, 4, generator=torch.Generator().manual_seed(seed))
        one = length * torch.nn.functional.normalize(rows, dim=1)
        assert have_one_length(one)
        one[3] = 0.0
        assert have_one_length(one)
        one[4] *= 1.1
        assert not have_one_length(one)

    def test_nothing_to_tell_directions_of(self):
        assert not have_one_length(torch.zeros(5, 3))
        assert not have_one_length(torch.ones(5, 1))

    @pytest.mark.parametrize(
        ("rows", "expected"), [(X, False), (UNIT, True), (sparse.csr_array(UNIT), True)]
    )
    def test_auto(self, rows, expected):
        fitted = DeepConcreteKMeans(4, **QUICK).fit(rows)
        assert fitted.model_.network.unit is expected
        assert fitted.model_.network.description()["unit"] is expected
        lengths = np.linalg.norm(fitted.transform(rows), axis=1)
        assert np.allclose(lengths, 1.0, atol=1e-5) is expected

    @pytest.mark.parametrize("method", [DEC, AutoencoderKMeans])
    def test_others_compare_codes_as_their_papers_do(self, method):
        assert not method(4, **QUICK).fit(UNIT).model_.network.unit

    def test_paper_too(self):
        assert not DeepConcreteKMeans(4, objective="paper", **QUICK).fit(UNIT).model_.network.unit

    def test_k_means_of_directions(self):
        plain = AutoencoderKMeans(4, **QUICK).fit(X)
        found = AutoencoderKMeans(4, normalize=True, **QUICK).fit(X)
        directions = normalize(plain.transform(X))
        np.testing.assert_allclose(found.transform(X), directions, atol=1e-5)
        judge = KMeans(4, n_init=10, random_state=0).fit(directions)
        assert found.inertia_ <= 1.001 * judge.inertia_
        nearest = ((directions[:, None] - found.cluster_centers_) ** 2).sum(-1).argmin(1)
        np.testing.assert_array_equal(found.labels_, nearest)
        np.testing.assert_allclose(found.reconstruct(X), plain.reconstruct(X), atol=1e-4)

    def test_decoded_centres_have_the_length_of_a_code(self):
        found = AutoencoderKMeans(4, normalize=True, **QUICK).fit(X)
        codes = AutoencoderKMeans(4, **QUICK).fit(X).transform(X)
        network = found.model_.network
        length = np.linalg.norm(codes, axis=1).mean()
        assert float(network.lengths[0]) == pytest.approx(length, rel=1e-4)
        centers = torch.from_numpy(found.cluster_centers_ * np.float32(length))
        decoded = network.decode(centers.unsqueeze(0))[0]
        expected = found.model_.scaling.inverse(decoded).detach().numpy()
        np.testing.assert_allclose(found.decode_centers(), expected, rtol=1e-3, atol=1e-3)

    @pytest.mark.parametrize("method", ["DeepConcreteKMeans", "DEC", "IDEC", "DCN", "DKM"])
    def test_every_method_can(self, method, tmp_path):
        fitted = getattr(concrete_kmeans, method)(4, normalize=True, **QUICK).fit(X)
        assert np.linalg.norm(fitted.cluster_centers_, axis=1).max() < 1.5
        fitted.save(tmp_path / "model")
        loaded = concrete_kmeans.load(tmp_path / "model")
        np.testing.assert_array_equal(loaded.predict(X), fitted.labels_)
        np.testing.assert_array_equal(loaded.decode_centers(), fitted.decode_centers())

    def test_a_pretrained_autoencoder_is_compared_as_asked(self):
        ae = AutoencoderKMeans(4, **QUICK).fit(UNIT)
        first = ae.transform(UNIT)
        fitted = DeepConcreteKMeans(4, pretrained=ae, **QUICK).fit(UNIT)
        assert fitted.model_.network.unit
        assert not ae.model_.network.unit  # nothing of it was changed
        np.testing.assert_array_equal(ae.transform(UNIT), first)

    def test_length_of_a_code_does_not_matter(self):
        network = build_autoencoder((8, 3), "auto", (5,), seeds=[0, 1], unit=True)
        codes = torch.randn(2, 20, 3, generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(network.points(7.0 * codes), network.points(codes))
        assert network.points(torch.zeros(2, 1, 3)).isfinite().all()


@pytest.fixture(scope="module")
def fits():
    common = {**QUICK, "n_init": 5}
    return {
        choose: DeepConcreteKMeans(4, choose=choose, **common).fit(X)
        for choose in ("agreement", "consensus")
    }


class TestConsensus:
    def test_it_is_what_most_restarts_say(self, fits):
        kept = fits["consensus"]
        votes = [restart.labels for restart in fits["agreement"].restarts_]
        # an independent consensus: whether two rows are together in most restarts
        together = np.mean([own[:, None] == own for own in votes], axis=0) > 0.5
        found = kept.labels_[:, None] == kept.labels_
        assert (found == together).mean() > 0.95
        np.testing.assert_array_equal(kept.labels_, kept.predict(X))

    def test_the_other_restarts_are_as_ever(self, fits):
        best = fits["consensus"].best_restart_
        pairs = zip(fits["consensus"].restarts_, fits["agreement"].restarts_, strict=True)
        for r, (one, other) in enumerate(pairs):
            assert np.array_equal(one.cluster_centers, other.cluster_centers) == (r != best)
            if r != best:
                np.testing.assert_array_equal(one.labels, other.labels)
        assert fits["consensus"].restarts_[best].n_iter > fits["agreement"].restarts_[best].n_iter

    def test_it_agrees_best_with_all(self, fits):
        votes = [restart.labels for restart in fits["agreement"].restarts_]
        shared = np.mean([ari(fits["consensus"].labels_, own) for own in votes])
        alone = [np.mean([ari(one, own) for own in votes if own is not one]) for one in votes]
        assert shared >= max(alone) - 0.02

    def test_it_is_saved(self, fits, tmp_path):
        fits["consensus"].save(tmp_path / "model")
        loaded = concrete_kmeans.load(tmp_path / "model")
        np.testing.assert_array_equal(loaded.predict(X), fits["consensus"].labels_)

    @pytest.mark.parametrize("n_init", [1, 2])
    def test_too_few_restarts_for_one(self, n_init):
        one = DeepConcreteKMeans(4, choose="consensus", n_init=n_init, **QUICK).fit(X)
        other = DeepConcreteKMeans(4, n_init=n_init, **QUICK).fit(X)
        np.testing.assert_array_equal(one.cluster_centers_, other.cluster_centers_)
