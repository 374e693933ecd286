"""The number of clusters: silhouettes against scikit-learn's, choices where k is known."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from sklearn.datasets import make_blobs
from sklearn.metrics import adjusted_rand_score, silhouette_samples

from concrete_kmeans import choosing
from concrete_kmeans.choosing import choose_k
from concrete_kmeans.report import KCurve

pytestmark = pytest.mark.usefixtures("untouched_random_state")

BLOBS = make_blobs(240, 4, centers=4, cluster_std=1.0, random_state=1)[0]


class TestSilhouettes:
    def test_equal_scikit_learns(self):
        rng = np.random.default_rng(0)
        rows = rng.normal(size=(60, 3)).astype(np.float32)
        labels = np.stack([rng.integers(0, k, 60) for k in (2, 5, 9)])
        labels[2, 7], labels[2, labels[2] == 8] = 8, 0
        labels[2, 7] = 8  # a cluster of one row
        found = choosing._silhouettes(torch.from_numpy(rows), torch.from_numpy(labels), (2, 5, 9))
        for own, expected in zip(found, labels, strict=True):
            np.testing.assert_allclose(own, silhouette_samples(rows, expected), atol=1e-5)

    def test_empty_clusters_and_equal_rows(self):
        rows = torch.zeros(6, 2)
        labels = torch.tensor([[0, 0, 0, 2, 2, 2]])
        assert choosing._silhouettes(rows, labels, (4,)).tolist() == [[0.0] * 6]
        rows[3:] = 1.0
        assert choosing._silhouettes(rows, labels, (4,)).tolist() == [[1.0] * 6]


class TestStability:
    def test_is_the_mean_over_pairs_of_halves(self, monkeypatch):
        """Against partitions of which all pairs are known."""
        rows, halves = torch.zeros(8, 1), torch.zeros(3, 4, dtype=torch.int64)
        given = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0, 0], [0, 1] * 4])
        monkeypatch.setattr(choosing, "assign", lambda *_: (given, None))
        expected = (1.0 + 2 * adjusted_rand_score(given[0], given[2])) / 3
        assert choosing._stability(rows, 2, halves, 0) == pytest.approx(expected)


class TestChoice:
    @pytest.mark.parametrize(("k", "seed"), [(2, 0), (6, 3)])
    def test_separate_blobs(self, k, seed):
        centers = 10.0 * np.random.default_rng(seed).normal(size=(k, 6))
        X, _ = make_blobs(300, centers=centers, random_state=seed)
        curve = choose_k(X, range(2, 8))
        assert curve.chosen == k
        assert isinstance(curve, KCurve)
        assert curve.k == [*range(2, 8)]
        assert curve.scores["Stability"][k - 2] == pytest.approx(1.0)

    def test_a_finer_partition_that_every_half_repeats(self):
        """Two of three blobs lie close: the silhouette alone would join them."""
        X, _ = make_blobs(90, 5, centers=3, random_state=2)
        curve = choose_k(X, range(2, 5))
        silhouette = curve.scores["Silhouette"]
        assert silhouette[0] > silhouette[1] + 0.05
        assert curve.chosen == 3
        assert "The silhouette is best at 2" in curve.reasons[1]
        assert "come out again" in curve.reasons[1]

    def test_within_one_standard_error_the_more_stable(self, monkeypatch):
        """Both numbers are given, so that the rule is seen alone."""
        values = torch.zeros(4, 100)
        values[:, ::2], values[:, 1::2] = 0.4, 0.6  # standard error 0.01
        values += torch.tensor([[0.0], [0.095], [0.1], [0.08]])
        monkeypatch.setattr(choosing, "_silhouettes", lambda *_: values)
        stability = {2: 0.9, 3: 0.8, 4: 0.7, 5: 0.94}
        monkeypatch.setattr(choosing, "_stability", lambda _rows, k, *_: stability[k])
        curve = choose_k(BLOBS[:100], range(2, 6))
        assert curve.chosen == 3
        assert "k = 3, 4 are within one standard error" in curve.reasons[1]
        assert "agree best on 3 (adjusted Rand index 0.80)" in curve.reasons[1]
        stability[5] = 0.974  # below 1 - 0.125 / 5
        assert choose_k(BLOBS[:100], range(2, 6)).chosen == 3
        stability[5] = 0.976
        curve = choose_k(BLOBS[:100], range(2, 6))
        assert curve.chosen == 5
        assert curve.reasons[-1].startswith("It is the largest that was tried")

    def test_words_for_structure(self):
        noise = np.random.default_rng(0).normal(size=(200, 8))
        assert "little structure" in choose_k(noise, (2, 3)).reasons[0]
        far = np.concatenate([noise[:100], noise[100:] + 50.0])
        assert "a strong structure" in choose_k(far, (2, 3)).reasons[0]


class TestInput:
    def test_forms_of_rows_agree(self):
        curve = choose_k(BLOBS, range(3, 6))
        forms = [
            BLOBS.tolist(),
            torch.from_numpy(BLOBS),
            pd.DataFrame(BLOBS),
            BLOBS.reshape(-1, 2, 2),
            sparse.csr_array(BLOBS),
        ]
        for form in forms:
            other = choose_k(form, range(3, 6))
            assert other.chosen == curve.chosen == 4
            np.testing.assert_allclose(
                other.scores["Silhouette"], curve.scores["Silhouette"], atol=1e-4
            )

    def test_same_seed_same_curve(self):
        assert choose_k(BLOBS, (2, 3)) == choose_k(BLOBS, (2, 3))

    def test_many_rows_and_features(self, monkeypatch):
        monkeypatch.setattr(choosing, "MAX_ROWS", 100)
        wide = np.concatenate([BLOBS, np.zeros((240, 60))], 1)
        curve = choose_k(wide, range(2, 6))
        assert curve.chosen == 4
        assert "of 100 rows" in curve.reasons[0]

    def test_far_from_the_origin(self):
        assert choose_k(BLOBS + 1e6, range(2, 6)).chosen == 4

    @pytest.mark.parametrize(
        ("rows", "k", "match"),
        [
            (BLOBS, [], "k must hold whole numbers that rise"),
            (BLOBS, [3, 3], "k must hold whole numbers that rise"),
            (BLOBS, [1, 2], r"k must be from 2 to n_samples - 1 = 239, got 1 to 2"),
            (BLOBS[:5], [2, 5], r"k must be from 2 to n_samples - 1 = 4, got 2 to 5"),
            (BLOBS, [2.5], "k must be a whole number of at least 1, got 2.5"),
            (BLOBS[:, 0], [2], r"X must have rows with features, got the shape \(240,\)"),
            (np.where(BLOBS > 5, np.nan, BLOBS), [2], "X must be finite"),
        ],
    )
    def test_refused(self, rows, k, match):
        with pytest.raises(ValueError, match=match):
            choose_k(rows, k)

    def test_few_and_equal_rows(self):
        assert choose_k(BLOBS[:4], (2, 3)).chosen in (2, 3)
        assert choose_k(np.ones((30, 2)), (2, 3)).scores["Silhouette"] == [0.0, 0.0]

    @pytest.mark.parametrize("different", [1, 2, 3])
    def test_clusters_that_would_be_empty_are_not_chosen(self, different):
        """Every half repeats them, perfectly."""
        rows = np.repeat(5.0 * np.arange(different)[:, None] ** 2, 20, 0)
        curve = choose_k(rows, range(2, 8))
        assert curve.chosen == max(2, different)
        assert curve.reasons[-1].startswith("Of other numbers some clusters are empty")
