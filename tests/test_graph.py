from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from scipy.sparse.csgraph import connected_components
from sklearn.cluster import SpectralClustering
from sklearn.datasets import make_blobs, make_circles, make_moons
from sklearn.metrics import adjusted_rand_score
from sklearn.neighbors import NearestNeighbors

from concrete_kmeans import graph as G
from concrete_kmeans.starts import kmeans_start


def generators(n=1):
    return [torch.Generator().manual_seed(r) for r in range(n)]


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


SHAPES = {
    "moons": make_moons(400, noise=0.05, random_state=0),
    "moons that touch": make_moons(400, noise=0.08, random_state=0),
    "circles": make_circles(400, noise=0.04, factor=0.4, random_state=0),
    "blobs": make_blobs(400, n_features=5, centers=4, random_state=0),
    "overlap": make_blobs(400, centers=[[0, 0], [4, 0], [2, 3.5]], random_state=0),
}

#: Where the clusters overlap, against the truth.
LEAST_ARI = {"overlap": 0.75, "moons that touch": 0.7}


def spectral_labels(graph, n_clusters, *, generators):
    """k-means on the vectors, one set of labels a generator, as a start makes it of them."""
    vectors = G.spectral_vectors(graph, n_clusters)
    return kmeans_start(vectors.expand(len(generators), -1, -1), n_clusters, generators).labels


class TestNeighbours:
    @pytest.mark.parametrize("offset", [0.0, 1e3, 1e5])
    @pytest.mark.parametrize("same", [True, False])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_against_sklearn(self, offset, same, dtype):
        others = normal(300, 6, dtype=dtype) + offset
        rows = others if same else normal(70, 6, seed=1, dtype=dtype) + offset
        found = G.nearest_neighbours(rows, others, 7, same=same)
        judge = NearestNeighbors(n_neighbors=7).fit(others.double().numpy())
        if same:
            distances, index = judge.kneighbors()
        else:
            distances, index = judge.kneighbors(rows.double().numpy())
        if dtype == torch.float64:
            assert np.array_equal(np.sort(found.numpy()), np.sort(index))
        # in float32 two others may be equally near: then the distances still agree
        chosen = (rows.unsqueeze(1) - others[found]).double().norm(dim=-1).sort().values
        np.testing.assert_allclose(chosen, distances, rtol=1e-5, atol=1e-5)

    def test_blocks_give_the_same(self, monkeypatch):
        rows = normal(50, 3, dtype=torch.float64)
        whole = G.nearest_neighbours(rows, rows, 4, same=True).sort().values
        monkeypatch.setattr(G, "MAX_BLOCK", 130)
        assert torch.equal(G.nearest_neighbours(rows, rows, 4, same=True).sort().values, whole)

    def test_equal_rows_are_neighbours_but_none_is_its_own(self):
        rows = torch.zeros(8, 2)
        found = G.nearest_neighbours(rows, rows, 7, same=True).sort().values
        for i in range(8):
            assert found[i].tolist() == [j for j in range(8) if j != i]

    @pytest.mark.parametrize(("k", "same"), [(4, True), (5, False), (0, True)])
    def test_errors_name_the_argument(self, k, same):
        rows = normal(4, 2)
        with pytest.raises(ValueError, match=f"n_neighbours must .* got {k}"):
            G.nearest_neighbours(rows, rows, k, same=same)


class TestGraph:
    def test_is_the_mean_of_the_directed_graph_and_its_transpose(self):
        rows = normal(60, 3, dtype=torch.float64)
        directed = NearestNeighbors(n_neighbors=5).fit(rows.numpy()).kneighbors_graph().toarray()
        found = G.neighbour_graph(rows, 5).toarray()
        np.testing.assert_array_equal(found, (directed + directed.T) / 2)

    @pytest.mark.parametrize("n", [2, 3, 8, 11])
    def test_few_rows(self, n):
        found = G.neighbour_graph(normal(n, 2)).toarray()
        assert found.shape == (n, n)
        assert np.array_equal(found, found.T)
        assert (found.diagonal() == 0).all()
        assert (found.sum(1) > 0).all()

    def test_one_row_has_no_graph(self):
        with pytest.raises(ValueError, match="n_neighbours"):
            G.neighbour_graph(normal(1, 2))

    def test_small_parts_are_joined_to_what_is_near(self):
        far, near = normal(100, 2), 100.0 + normal(100, 2, seed=1)
        rows = torch.cat([far, near, torch.full((15, 2), 50.0), torch.full((12, 2), 130.0)])
        count = lambda graph: connected_components(graph)[0]  # noqa: E731
        assert count(G.neighbour_graph(rows)) == 4
        assert count(G.neighbour_graph(rows, least_part=14)) == 3
        joined = G.neighbour_graph(rows, least_part=50)
        assert connected_components(joined)[1].max() <= 1
        labels = spectral_labels(joined, 2, generators=generators())[0]
        assert (labels[:100] == labels[0]).all()
        assert (labels[100:200] == labels[100]).all()
        assert labels[0] != labels[100]
        assert (labels[215:] == labels[100]).all()

    def test_parts_that_are_all_small_are_left(self):
        rows = torch.cat([normal(20, 2), 100.0 + normal(20, 2, seed=1)])
        graph = G.neighbour_graph(rows, least_part=30)
        assert connected_components(graph)[0] == 2


class TestSpectral:
    @pytest.mark.parametrize("name", SHAPES)
    def test_partition_against_the_truth_and_sklearn(self, name):
        X, y = SHAPES[name]
        n_clusters = len(set(y))
        graph = G.neighbour_graph(torch.from_numpy(X))
        found = spectral_labels(graph, n_clusters, generators=generators(2)).numpy()
        with warnings.catch_warnings():  # that moons and circles are not connected
            warnings.simplefilter("ignore")
            judge = SpectralClustering(
                n_clusters, affinity="precomputed", random_state=0, assign_labels="kmeans"
            ).fit_predict(graph.toarray())
        least = LEAST_ARI.get(name, 0.95)
        assert adjusted_rand_score(y, judge) > least
        assert all(adjusted_rand_score(y, own) > least for own in found)
        assert all(adjusted_rand_score(judge, own) > 0.95 for own in found)

    @pytest.mark.parametrize("n", [30, 300])
    @pytest.mark.parametrize("n_vectors", [1, 3, 5])
    def test_vectors_span_the_leading_eigenspace(self, n, n_vectors):
        """Dense for few rows, iterated for many; against numpy's eigh in both cases."""
        graph = G.neighbour_graph(normal(n, 3, dtype=torch.float64))
        root = 1.0 / np.sqrt(graph.toarray().sum(1))
        _, vectors = np.linalg.eigh(root[:, None] * graph.toarray() * root)
        expected = vectors[:, -n_vectors:]
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
        found = G.spectral_vectors(graph, n_vectors).numpy()
        assert found.shape == (n, n_vectors)
        # up to a rotation, which the products of rows do not see
        np.testing.assert_allclose(found @ found.T, expected @ expected.T, atol=1e-3)

    @pytest.mark.parametrize("n_parts", [2, 5, 9])
    def test_every_connected_part_has_its_vector(self, n_parts):
        """An eigenvalue of multiplicity n_parts, which Lanczos from one vector does not see."""
        rows = torch.cat([100.0 * j + normal(80, 3, seed=j) for j in range(n_parts)])
        truth = np.arange(n_parts).repeat(80)
        graph = G.neighbour_graph(rows)
        assert connected_components(graph)[0] == n_parts
        vectors = G.spectral_vectors(graph, n_parts).numpy()
        np.testing.assert_allclose(vectors @ vectors.T, truth[:, None] == truth, atol=1e-9)
        found = spectral_labels(graph, n_parts, generators=generators(3)).numpy()
        assert all(adjusted_rand_score(truth, own) == 1.0 for own in found)

    def test_more_parts_than_clusters_and_fewer(self):
        rows = torch.cat([100.0 * j + normal(60 + j, 3, seed=j) for j in range(4)])
        truth = np.concatenate([np.full(60 + j, j) for j in range(4)])
        graph = G.neighbour_graph(rows)
        two = spectral_labels(graph, 2, generators=generators())[0].numpy()
        assert set(two) == {0, 1}
        six = spectral_labels(graph, 6, generators=generators())[0].numpy()
        assert len(set(six)) == 6
        for own in set(six):  # a part may be cut, but no cluster has rows of two
            assert len(set(truth[six == own])) == 1

    def test_equal_rows(self):
        rows = torch.zeros(200, 3)
        labels = spectral_labels(G.neighbour_graph(rows), 3, generators=generators())
        assert labels.shape == (1, 200)
        mixed = torch.cat([torch.zeros(100, 3), torch.ones(100, 3)])
        found = spectral_labels(G.neighbour_graph(mixed), 2, generators=generators())[0]
        assert adjusted_rand_score([0] * 100 + [1] * 100, found) == 1.0

    def test_as_many_clusters_as_rows(self):
        rows = normal(6, 2)
        graph = G.neighbour_graph(rows, 2)
        assert sorted(spectral_labels(graph, 6, generators=generators())[0].tolist()) == [*range(6)]

    def test_the_same_graph_gives_the_same_vectors(self, untouched_random_state):
        graph = G.neighbour_graph(normal(500, 4))
        assert torch.equal(G.spectral_vectors(graph, 5), G.spectral_vectors(graph, 5))

    def test_an_iteration_that_does_not_end_gives_what_it_found(self, monkeypatch):
        graph = G.neighbour_graph(normal(300, 3))
        expected = G.spectral_vectors(graph, 6)
        monkeypatch.setattr(G, "MAX_ROUNDS", 3)
        monkeypatch.setattr(G, "RESIDUAL", 0.0)
        found = G.spectral_vectors(graph, 6)
        assert found.shape == (300, 6)
        assert (found @ found.T - expected @ expected.T).abs().mean() < 0.1

    def test_restart_r_of_a_stack_is_what_it_is_alone(self):
        graph = G.neighbour_graph(normal(200, 3))
        stack = spectral_labels(graph, 4, generators=generators(3))
        for r in range(3):
            alone = spectral_labels(graph, 4, generators=[generators(3)[r]])
            assert torch.equal(stack[r], alone[0])


class TestVote:
    def test_by_counting(self):
        drawn = torch.Generator().manual_seed(0)
        labels = torch.randint(4, (2, 30), generator=drawn)
        neighbours = torch.randint(30, (50, 5), generator=drawn)
        found = G.vote(labels, neighbours, 4)
        for r in range(2):
            for i in range(50):
                counts = [0] * 4
                for j in neighbours[i].tolist():
                    counts[int(labels[r, j])] += 1
                assert counts[int(found[r, i])] == max(counts)
                assert int(found[r, i]) == counts.index(max(counts))  # of equals, the first
