from __future__ import annotations

import itertools
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from concrete_kmeans import metrics
from concrete_kmeans.metrics import Summary

MEASURES = [metrics.clustering_accuracy, metrics.purity, metrics.nmi, metrics.ari]

pairs = st.integers(1, 30).flatmap(
    lambda n: st.tuples(
        st.lists(st.integers(0, 3), min_size=n, max_size=n),
        st.lists(st.integers(0, 4), min_size=n, max_size=n),
    )
)


def accuracy_by_brute_force(y_true: list[int], y_pred: list[int]) -> float:
    """Try every way to give the clusters distinct names, some of which are no class."""
    clusters = sorted(set(y_pred))
    names = sorted(set(y_true)) + [-1 - i for i in range(len(clusters))]
    best = 0
    for chosen in itertools.permutations(names, len(clusters)):
        name_of = dict(zip(clusters, chosen, strict=True))
        best = max(best, sum(t == name_of[p] for t, p in zip(y_true, y_pred, strict=True)))
    return best / len(y_true)


class TestAgainstOracles:
    @given(pairs)
    def test_accuracy_is_the_best_of_all_matchings(self, pair):
        assert metrics.clustering_accuracy(*pair) == pytest.approx(accuracy_by_brute_force(*pair))

    @given(pairs)
    def test_purity_counts_the_largest_class_of_each_cluster(self, pair):
        y_true, y_pred = pair
        right = 0
        for cluster in set(y_pred):
            members = [t for t, p in zip(y_true, y_pred, strict=True) if p == cluster]
            right += max(members.count(t) for t in set(members))
        assert metrics.purity(y_true, y_pred) == pytest.approx(right / len(y_true))

    @given(pairs)
    def test_nmi_and_ari_are_those_of_scikit_learn(self, pair):
        assert metrics.nmi(*pair) == pytest.approx(normalized_mutual_info_score(*pair))
        assert metrics.ari(*pair) == pytest.approx(adjusted_rand_score(*pair))

    def test_values_computed_by_hand(self):
        # classes a a a b b c over clusters 0 0 1 1 1 2: counts a=(2,1,0) b=(0,2,0) c=(0,0,1)
        y_true, y_pred = list("aaabbc"), [0, 0, 1, 1, 1, 2]
        h_true = math.log(6) - (3 * math.log(3) + 2 * math.log(2)) / 6
        h_pred = math.log(6) - (2 * math.log(2) + 3 * math.log(3)) / 6
        h_both = math.log(6) - (2 * math.log(2) + 2 * math.log(2)) / 6
        information = h_true + h_pred - h_both
        # pairs: 2 agree in both, 4 in each alone, of 15
        expected_ari = (2 - 4 * 4 / 15) / (4 - 4 * 4 / 15)
        assert metrics.scores(y_true, y_pred) == pytest.approx(
            {
                "nmi": information / ((h_true + h_pred) / 2),
                "ari": expected_ari,
                "acc": 5 / 6,
                "purity": 5 / 6,
            }
        )

    def test_leftover_clusters_and_classes_are_wrong(self):
        assert metrics.clustering_accuracy([0, 0, 0, 0], [0, 1, 2, 3]) == 0.25
        assert metrics.clustering_accuracy([0, 1, 2, 3], [0, 0, 0, 0]) == 0.25
        assert metrics.purity([0, 0, 0, 0], [0, 1, 2, 3]) == 1.0


class TestProperties:
    @given(pairs, st.permutations(range(4)), st.permutations(range(5)))
    def test_relabelling_changes_nothing(self, pair, classes, clusters):
        y_true, y_pred = pair
        renamed = [classes[t] for t in y_true], [f"cluster {clusters[p]}" for p in y_pred]
        assert metrics.scores(*renamed) == pytest.approx(metrics.scores(y_true, y_pred), abs=1e-12)

    @given(pairs)
    def test_accuracy_is_at_most_purity(self, pair):
        assert metrics.clustering_accuracy(*pair) <= metrics.purity(*pair) + 1e-12

    @given(pairs)
    def test_ranges(self, pair):
        for key, value in metrics.scores(*pair).items():
            assert (-0.5 if key == "ari" else 0.0) - 1e-12 <= value <= 1.0 + 1e-12

    @given(st.lists(st.integers(0, 4), min_size=1, max_size=20))
    def test_equal_labels_score_one(self, labels):
        assert metrics.scores(labels, labels) == pytest.approx(
            {"nmi": 1.0, "ari": 1.0, "acc": 1.0, "purity": 1.0}
        )


class TestKindsOfInput:
    expected = metrics.scores([0, 0, 1, 1, 2], [1, 1, 0, 2, 2])

    @pytest.mark.parametrize(
        "convert",
        [
            tuple,
            np.array,
            torch.tensor,
            lambda x: np.array([f"c{v}" for v in x]),
            lambda x: np.array([None if v < 0 else f"c{v}" for v in x], dtype=object),
            lambda x: np.array([v or "zero" for v in x], dtype=object),
            lambda x: torch.tensor([float(v) for v in x], requires_grad=True),
            lambda x: np.array(x, dtype=np.float32),
        ],
    )
    def test_same_scores_whatever_holds_the_labels(self, convert):
        y_true, y_pred = convert([0, 0, 1, 1, 2]), convert([1, 1, 0, 2, 2])
        assert metrics.scores(y_true, y_pred) == pytest.approx(self.expected)

    def test_pandas(self):
        pd = pytest.importorskip("pandas")
        y_true = pd.Series(list("aabbc"), index=[5, 3, 1, 0, 9], dtype="category")
        y_pred = pd.Series([1, 1, 0, 2, 2], dtype="Int64")
        assert metrics.scores(y_true, y_pred) == pytest.approx(self.expected)
        with pytest.raises(ValueError, match="y_pred"):
            metrics.nmi([0, 1], pd.Series([1, pd.NA], dtype="Int64"))

    @pytest.mark.gpu
    def test_tensor_on_a_gpu(self):
        if not torch.cuda.is_available():
            pytest.skip("no CUDA device")
        y_pred = torch.tensor([1, 1, 0, 2, 2], device="cuda")
        assert metrics.scores([0, 0, 1, 1, 2], y_pred) == pytest.approx(self.expected)

    def test_importing_metrics_does_not_import_torch(self):
        code = "import sys, concrete_kmeans.metrics; sys.exit('torch' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("measure", [*MEASURES, metrics.scores])
class TestBadInput:
    @pytest.mark.parametrize(
        ("y_true", "y_pred", "message"),
        [
            ([0, 1], [0, 1, 1], "y_true has 2 labels and y_pred has 3"),
            ([], [], "y_true is empty"),
            ([0, 1], [], "y_pred is empty"),
            ([[0, 1]], [0, 1], r"y_true has shape \(1, 2\).*1-D"),
            ([0, 1], np.zeros((2, 1)), r"y_pred has shape \(2, 1\)"),
            ([0, 1], 3, r"y_pred has shape \(\)"),
            ([[0], [1, 2]], [0, 1], "y_true is ragged"),
            ([0.0, float("nan")], [0, 1], "y_true contains NaN"),
            ([0, 1], [None, 1], r"y_pred\[0\] is None"),
            ([0, 1], np.array(["a", float("nan")], dtype=object), r"y_pred\[1\] is nan"),
        ],
    )
    def test_says_which_argument_and_why(self, measure, y_true, y_pred, message):
        with pytest.raises(ValueError, match=message):
            measure(y_true, y_pred)


class TestSummaries:
    def test_mean_and_sample_deviation(self):
        runs = [{"acc": v, "nmi": 0.5} for v in (0.2, 0.4, 0.9)]
        summary = metrics.summarize(runs)
        assert list(summary) == ["acc", "nmi"]
        deviation = math.sqrt((0.3**2 + 0.1**2 + 0.4**2) / 2)
        assert summary["acc"] == pytest.approx((0.5, deviation, 3))
        assert summary["nmi"] == Summary(0.5, 0.0, 3)

    def test_one_run_has_no_spread(self):
        assert metrics.summarize([{"acc": 0.7}]) == {"acc": Summary(0.7, 0.0, 1)}

    @pytest.mark.parametrize("container", [list, np.array, torch.tensor, iter])
    def test_over_restarts(self, container):
        y_true = [0, 0, 1, 1]
        labelings = [[0, 0, 1, 1], [0, 1, 0, 1], [0, 0, 0, 1]]
        expected = metrics.summarize([metrics.scores(y_true, labels) for labels in labelings])
        assert metrics.scores_over_restarts(y_true, container(labelings)) == expected

    @pytest.mark.parametrize(
        ("runs", "message"),
        [
            ([], "runs is empty"),
            ([{"acc": 1.0}, {"nmi": 1.0}], r"runs\[1\] has the keys \['nmi'\]"),
            ([{"acc": float("nan")}], r"runs\[0\]\['acc'\] is nan"),
        ],
    )
    def test_bad_runs(self, runs, message):
        with pytest.raises(ValueError, match=message):
            metrics.summarize(runs)

    def test_no_labelings(self):
        with pytest.raises(ValueError, match="labelings is empty"):
            metrics.scores_over_restarts([0, 1], [])


@pytest.mark.parametrize(
    ("R", "n", "K"), [(1, 5, 2), (4, 60, 3), (7, 200, 12), (3, 6, 6), (2, 1, 1)]
)
def test_pairwise_ari_is_that_of_every_two(R, n, K):
    labels = np.random.default_rng(R).integers(K, size=(R, n))
    expected = [[metrics.ari(a, b) for b in labels] for a in labels]
    np.testing.assert_allclose(metrics.pairwise_ari(labels), expected, atol=1e-12)


def test_pairwise_ari_where_there_is_nothing_to_tell_apart():
    one, each = np.zeros(5, int), np.arange(5)
    expected = [[metrics.ari(a, b) for b in (one, each)] for a in (one, each)]
    np.testing.assert_array_equal(metrics.pairwise_ari(np.stack([one, each])), expected)
