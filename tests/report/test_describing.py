import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from concrete_kmeans import metrics
from concrete_kmeans.report import describing
from concrete_kmeans.report.describing import named_classes


def test_members_are_those_of_smallest_value():
    rng = np.random.default_rng(0)
    values, labels = rng.random(50), rng.integers(4, size=50)
    found = describing.extremes(values, labels, 5, 3)
    for k in range(5):
        rows = [row for row in range(50) if labels[row] == k]
        assert found[k] == sorted(rows, key=lambda row: values[row])[:3]


@pytest.mark.parametrize(
    ("classes", "names", "codes", "n_known"),
    [
        (["b", "a", "b"], ["a", "b"], [1, 0, 1], 2),
        ([10, 9, 10], ["9", "10"], [1, 0, 1], 2),  # numbers in the order of numbers
        (np.array([2.0, np.nan, 1.0]), ["1.0", "2.0", "unknown"], [1, 2, 0], 2),
        (["z", "unknown", None], ["unknown", "z", "unknown"], [1, 0, 2], 2),
        ([1, "a", 1], ["1", "a"], [0, 1, 0], 2),
        ([None, None], ["unknown"], [0, 0], 0),
    ],
)
def test_classes_have_an_order_and_rows_without_one_come_last(classes, names, codes, n_known):
    found = named_classes(classes)
    assert (found.names, found.codes.tolist(), found.n_known) == (names, codes, n_known)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=40),
    st.booleans(),
)
def test_matching_is_that_of_scipy_and_of_the_accuracy(rows, gaps):
    classes = [None if gaps and c == 0 else f"class {c}" for c, _ in rows]
    labels = np.array([k for _, k in rows])
    known = named_classes(classes)
    counts, cluster_of, order = describing.matched(known, labels, 4)
    by_hand = np.array(
        [[sum(known.codes[i] == c and labels[i] == k for i in range(len(rows))) for k in range(4)]
         for c in range(len(known.names))]
    )  # fmt: skip
    assert np.array_equal(counts, by_hand)
    assert sorted(order) == [0, 1, 2, 3]
    best = linear_sum_assignment(by_hand[: known.n_known], maximize=True)
    pairs = [(c, k) for c, k in enumerate(cluster_of) if k is not None]
    assert len(pairs) == len({k for _, k in pairs}) == min(known.n_known, 4)
    assert sum(by_hand[c, k] for c, k in pairs) == by_hand[: known.n_known][best].sum()
    assert list(order[: len(pairs)]) == [k for _, k in pairs]
    rest = counts[:, order[len(pairs) :]].sum(0)
    assert (np.diff(rest) <= 0).all()
    scores = describing.scores_of_known(classes, labels)
    kept = [i for i, c in enumerate(classes) if c is not None]
    if kept:
        wanted = metrics.clustering_accuracy([classes[i] for i in kept], labels[kept])
        assert scores["acc"] == pytest.approx(wanted)
    else:
        assert scores == {}


def test_a_class_that_is_called_unknown_is_a_class():
    classes, labels = ["unknown", "zebra", "zebra", "ape"], np.array([0, 1, 1, 2])
    assert describing.scores_of_known(classes, labels)["acc"] == 1.0
    assert describing.matched(named_classes(classes), labels, 3).cluster_of == [2, 0, 1]


def test_rare_classes_become_one():
    classes = ["a"] * 3 + ["b"] + ["c"] * 2 + ["d"] + [None]
    found = describing.most_frequent(named_classes(classes), 3)
    assert found.names == ["a", "c", "all others"]
    assert found.codes.tolist() == [0, 0, 0, 2, 1, 1, 2, 2]
    assert found.n_known == 2
    assert describing.most_frequent(named_classes(classes), 5).names == [
        "a",
        "b",
        "c",
        "d",
        "unknown",
    ]


def test_words_apart_by_brute_force():
    texts = [
        "the apple and the pear",
        "apple apple plum",
        "engine brake apple",
        "brake wheel 1999",
        "wheel engine engine",
    ]
    labels = np.array([0, 0, 1, 1, 1])
    words = [[w for w in text.split() if w.isalpha() and w not in ("the", "and")] for text in texts]
    vocabulary = sorted({w for text in words for w in text})
    idf = {
        w: math.log((1 + len(texts)) / (1 + sum(w in text for text in words))) + 1
        for w in vocabulary
    }
    weights = []
    for text in words:
        row = [(1 + math.log(text.count(w))) * idf[w] if w in text else 0.0 for w in vocabulary]
        weights.append(np.array(row) / np.linalg.norm(row))
    weights = np.array(weights)
    found = describing.words_apart(texts, labels, 3, 4)
    for k in (0, 1):
        gain = weights[labels == k].mean(0) - weights[labels != k].mean(0)
        order = sorted(range(len(vocabulary)), key=lambda i: -gain[i])
        assert found[k] == [vocabulary[i] for i in order if gain[i] > 1e-9][:4]
    assert found[2] == []


@pytest.mark.parametrize("texts", [["", "  ", "1 2 3"], ["the", "and", "of"]])
def test_texts_without_words_have_none_apart(texts):
    assert describing.words_apart(texts, np.array([0, 1, 0]), 2, 5) == [[], []]


def test_nothing_sets_a_cluster_of_all_rows_apart():
    labels = np.zeros(4, np.int64)
    assert describing.words_apart(["a cat", "a dog", "one cat", "x"], labels, 1, 5) == [[]]
    values = np.arange(8.0).reshape(4, 2)
    assert describing.features_apart(values, ["a", "b"], labels, 1, 2) == [[]]


def test_features_apart_are_differences_of_means():
    rng = np.random.default_rng(1)
    values, labels = rng.normal(size=(60, 5)) * [1, 10, 100, 1, 0], np.arange(60) % 3
    values[:, 1] += 30 * (labels == 2)
    names = list("abcde")
    found = describing.features_apart(values, names, labels, 4, 3)
    for k in range(3):
        inside, outside = values[labels == k].mean(0), values[labels != k].mean(0)
        with np.errstate(invalid="ignore"):
            difference = np.nan_to_num((inside - outside) / values.std(0))
        order = sorted(range(4), key=lambda f: -abs(difference[f]))[:3]  # e is constant
        assert [feature.name for feature in found[k]] == [names[f] for f in order]
        assert [feature.difference for feature in found[k]] == pytest.approx(difference[order])
        assert [feature.inside for feature in found[k]] == pytest.approx(inside[order])
        assert [feature.outside for feature in found[k]] == pytest.approx(outside[order])
    assert found[2][0].name == "b"
    assert found[3] == []


def test_missing_values_tell_nothing():
    values = np.array([[1.0, np.nan], [1.0, np.nan], [3.0, np.nan], [np.nan, np.nan]])
    labels = np.array([0, 0, 1, 1])
    (first,), (second,) = describing.features_apart(values, ["a", "b"], labels, 2, 2)
    mean = 5 / 3
    assert (first.name, first.inside) == ("a", 1.0)
    assert second.inside == pytest.approx((3 + mean) / 2)


def test_most_telling_features_by_their_variance_between_clusters():
    rng = np.random.default_rng(2)
    labels = np.arange(90) % 3
    values = rng.normal(size=(90, 4)) + labels[:, None] * np.array([0.0, 3.0, 1.0, 0.3])
    parts = []
    for column in values.T:
        within = sum(
            ((column[labels == k] - column[labels == k].mean()) ** 2).sum() for k in range(3)
        )
        parts.append(1 - within / ((column - column.mean()) ** 2).sum())
    assert describing.most_telling(values, labels, 3).tolist() == np.argsort(parts)[::-1].tolist()


def test_curves_count_steps_through_all_phases():
    history = [
        {"phase": "pretrain", "step": 10, "losses": {"loss": [3.0, 4.0]}},
        {"phase": "pretrain", "step": 20, "losses": {"loss": [2.0, 3.0]}},
        {"phase": "joint", "step": 5, "losses": {"loss": [9.0, 9.5], "clustering": [1.0, 2.0]}},
    ]
    loss, clustering = describing.curves(history)
    assert loss.steps == [10, 20, 25]
    assert loss.phases == ["pretrain", "pretrain", "joint"]
    assert loss.values == [[3.0, 4.0], [2.0, 3.0], [9.0, 9.5]]
    assert (clustering.name, clustering.steps, clustering.values) == (
        "clustering",
        [25],
        [[1.0, 2.0]],
    )
    assert describing.curves([]) == []
