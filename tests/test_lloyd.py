"""Exact k-means against scikit-learn, brute force and itself."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits, make_blobs

from concrete_kmeans import products
from concrete_kmeans.data import SparseRows
from concrete_kmeans.lloyd import (
    _Chunks,
    _fast_distances,
    _Sampler,
    assign,
    first_centers,
    inertia,
    kmeans_plusplus,
    lloyd,
)


def generators(*seeds):
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def blobs(n=600, d=5, k=6, seed=0, dtype=np.float64):
    X, _ = make_blobs(n, d, centers=k, random_state=seed)
    return X.astype(dtype)


def start(X, k, seed=0):
    return X[np.random.default_rng(seed).choice(len(X), k, replace=False)]


# ------------------------------------------------------------------------------------------ lloyd


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("offset", [0.0, 1e3])
@pytest.mark.parametrize("weighted", [False, True])
def test_same_as_scikit_learn(dtype, offset, weighted):
    X = (load_digits().data + offset).astype(dtype)
    weight = np.random.default_rng(0).uniform(0, 3, len(X)).astype(dtype) if weighted else None
    # off the rows: whole numbers tie, and a tie may fall either way
    init = start(X, 10) + np.random.default_rng(1).normal(0, 0.3, (10, 64)).astype(dtype)
    expected = KMeans(10, init=init, n_init=1).fit(X, sample_weight=weight)
    result = lloyd(
        torch.from_numpy(X),
        torch.from_numpy(init),
        sample_weight=None if weight is None else torch.from_numpy(weight),
    )
    assert result.inertia.item() == pytest.approx(expected.inertia_, rel=1e-5)
    np.testing.assert_array_equal(result.labels[0], expected.labels_)
    np.testing.assert_allclose(result.centers[0], expected.cluster_centers_, rtol=1e-4, atol=1e-4)
    assert result.n_iter.item() == expected.n_iter_


def test_one_iteration_is_assignment_then_means():
    X, centers = torch.from_numpy(blobs()), torch.from_numpy(start(blobs(), 6))
    result = lloyd(X, centers, max_iter=1)
    nearest = torch.cdist(X, centers).argmin(1)  # Eq. 2 by another route
    means = torch.stack([X[nearest == j].mean(0) for j in range(6)])  # Eq. 3
    torch.testing.assert_close(result.centers[0], means)
    torch.testing.assert_close(result.labels[0].long(), torch.cdist(X, means).argmin(1))


def test_inertia_matches_explicit_sum():
    X = torch.randn(40, 3, dtype=torch.float64, generator=generators(0)[0])
    centers, labels = X[:4], torch.arange(40) % 4
    weight = torch.arange(40, dtype=torch.float64)
    expected = sum(
        w * (x - centers[j]).pow(2).sum() for x, j, w in zip(X, labels, weight, strict=True)
    )
    assert inertia(X, centers, labels, weight).item() == pytest.approx(expected.item(), rel=1e-12)


@pytest.mark.parametrize("noise", [1e-2, 1.0, 30.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_inertia_of_tight_and_loose_clusters_keeps_its_digits(noise, weighted):
    """Taken from the clusters' sums, or row by row where those would lose digits."""
    rng = np.random.default_rng(0)
    X = torch.from_numpy(30.0 * (np.arange(900) % 3)[:, None] + noise * rng.normal(size=(900, 4)))
    weight = torch.from_numpy(rng.uniform(0, 3, 900)) if weighted else None
    single = None if weight is None else weight.float()
    result = lloyd(X.float(), X[:3].float(), sample_weight=single)
    own = result.centers[0].double()[result.labels[0].long()]
    expected = ((X - own).square().sum(-1) * (1.0 if weight is None else weight)).sum()
    assert result.inertia.item() == pytest.approx(expected.item(), rel=1e-4 if noise < 1 else 2e-6)


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(4, 40),
    d=st.integers(1, 4),
    k=st.integers(1, 4),
    seed=st.integers(0, 99),
    weighted=st.booleans(),
)
def test_ends_in_a_fixed_point_and_never_rises(n, d, k, seed, weighted):
    rng = np.random.default_rng(seed)
    X = torch.from_numpy(rng.integers(-3, 4, (n, d)).astype(float))  # ties and equal rows abound
    weight = torch.from_numpy(rng.uniform(0.1, 2, n)) if weighted else None
    centers = X[torch.from_numpy(rng.choice(n, k, replace=False))]
    previous = math.inf
    for iterations in (1, 2, 5, 100):
        result = lloyd(X, centers, sample_weight=weight, max_iter=iterations, tol=0)
        assert result.inertia.item() <= previous * (1 + 1e-9) + 1e-9
        previous = result.inertia.item()
    # Where a row is as near to another centre, a new call may go on from there: so no more is asked
    # than that no row is nearer to another centre, and that centres with rows are their means.
    distances, labels = torch.cdist(X, result.centers[0]), result.labels[0].long()
    own = distances.gather(1, labels.unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(own, distances.amin(1), atol=1e-6, rtol=0)
    for j in labels.unique():
        held = labels == j
        mean = np.average(X[held], axis=0, weights=None if weight is None else weight[held])
        np.testing.assert_allclose(result.centers[0, j], mean, atol=1e-9)


@pytest.mark.parametrize("k", [12, 53])
def test_threads_and_gaps_change_nothing(k):
    """Many passes in which most rows are spared, against plain passes written out."""
    X = torch.from_numpy(blobs(20_000, 4, 12, seed=5))
    start_centers = X[:k].clone()
    centers = start_centers
    for _ in range(60):
        nearest = torch.cdist(X, centers).argmin(1)
        centers = torch.stack([X[nearest == j].mean(0) for j in range(k)])
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            result = lloyd(X, start_centers, max_iter=60, tol=0, max_chunk_bytes=50_000)
            torch.testing.assert_close(result.centers[0], centers, atol=1e-9, rtol=1e-9)
            assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("k", [1, 2, 10, 32, 33, 36, 41, 130, 1000])
def test_nearest_is_the_arg_min_the_first_of_equals(k, dtype):
    chunks = _Chunks(torch.zeros(7, 2, dtype=dtype), None, 1, None)
    for ties in (2, 5, 10**6):  # few values, many columns with equal ones
        numbers = torch.randint(-ties, ties, (3, k, 211), generator=generators(k)[0]).to(dtype)
        expected = numbers.numpy().argmin(1)  # numpy's is the first
        np.testing.assert_array_equal(chunks.nearest(numbers), expected)
        np.testing.assert_array_equal(chunks.nearest(numbers[1]), expected[1])


# --------------------------------------------------------- the fast product, and torch's own


def clouds(n, d, k, seed=0):
    rng = np.random.default_rng(seed)
    means = 3.0 * rng.normal(size=(k, d))
    X = means[rng.integers(k, size=n)] + rng.normal(size=(n, d))
    return torch.from_numpy(X.astype(np.float32))


def own_products(monkeypatch):
    monkeypatch.setattr(products, "_is_there", lambda: False)


@pytest.mark.parametrize(("d", "k"), [(16, 20), (32, 100), (64, 3), (600, 10), (600, 4), (8, 40)])
def test_fast_distances_are_those_of_float64(d, k):
    X = clouds(8000, d, k)
    centers = X[:k] + 0.1
    norms = centers.square().sum(-1)
    fast = _fast_distances(X, centers, norms)
    if d < 16 or (k <= 4 and d >= 64) or not products._is_there():
        assert fast is None
        return
    expected = norms.double().unsqueeze(-1) - 2.0 * centers.double() @ X.double().mT
    assert fast.is_contiguous()
    own = torch.addmm(norms.unsqueeze(-1), centers, X.mT, alpha=-2.0)
    error, own_error = ((found - expected).abs().max() for found in (fast, own))
    assert error < 4.0 * own_error, "rounded about as torch's own product"


@pytest.mark.parametrize(("d", "k"), [(32, 8), (32, 53), (600, 10)])
@pytest.mark.parametrize("weighted", [False, True])
def test_fast_products_and_torchs_own_end_the_same(monkeypatch, d, k, weighted):
    X = clouds(8000, d, k, seed=d + k)
    start_centers = X[:k] + 0.01
    weight = torch.rand(8000, generator=generators(1)[0]) if weighted else None
    fast = lloyd(X, start_centers, sample_weight=weight, tol=0)
    labels, distances = assign(X, start_centers)
    again = lloyd(X, start_centers, sample_weight=weight, tol=0)
    assert torch.equal(fast.centers, again.centers), "the same result every time"
    _, drawn = kmeans_plusplus(X, k, generators=generators(0), sample_weight=weight)
    own_products(monkeypatch)
    slow = lloyd(X, start_centers, sample_weight=weight, tol=0)
    assert torch.equal(fast.labels, slow.labels)
    assert fast.n_iter == slow.n_iter
    torch.testing.assert_close(fast.centers, slow.centers, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(fast.inertia, slow.inertia, atol=0, rtol=1e-6)
    own_labels, own_distances = assign(X, start_centers)
    assert (own_labels != labels).sum() <= 1  # as near to two, to rounding
    rounding = 2e-5 * float(
        X.square().sum(-1).max()
    )  # of the terms that cancel in a short distance
    torch.testing.assert_close(distances, own_distances, atol=rounding, rtol=1e-4)
    _, drawn_slow = kmeans_plusplus(X, k, generators=generators(0), sample_weight=weight)
    assert torch.equal(drawn, drawn_slow)


def test_stack_equals_single_runs_with_fast_products():
    X = clouds(8000, 32, 20)
    centers = torch.stack([X[20 * r : 20 * r + 20] for r in range(3)])
    stacked = lloyd(X, centers, tol=0)
    for r in range(3):
        single = lloyd(X, centers[r], tol=0)
        assert torch.equal(stacked.labels[r], single.labels[0])
        torch.testing.assert_close(stacked.centers[r], single.centers[0], atol=1e-5, rtol=1e-5)


def test_many_passes_of_rows_in_doubt_end_as_scikit_learns():
    """Rows that overlap: most passes look at some of them only, and few of those change."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20_000, 16)).astype(np.float32)
    init = X[:30] + np.float32(0.01)
    expected = KMeans(30, init=init.astype(float), n_init=1, max_iter=40, tol=0).fit(
        X.astype(np.float64)
    )
    result = lloyd(torch.from_numpy(X), torch.from_numpy(init), max_iter=40, tol=0)
    assert result.inertia.item() == pytest.approx(expected.inertia_, rel=1e-4)
    assert (result.labels[0].numpy() == expected.labels_).mean() > 0.98
    exact = torch.cdist(torch.from_numpy(X).double(), result.centers[0].double())
    own = exact.gather(1, result.labels[0].long().unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(own, exact.amin(1), atol=1e-5, rtol=0)


def test_tiny_problem_reaches_the_global_optimum():
    X = torch.from_numpy(blobs(n=8, d=2, k=2, seed=3))
    best = math.inf
    for labels in itertools.product((0, 1), repeat=7):  # every split of 8 rows in two
        split = torch.tensor((0, *labels), dtype=torch.bool)
        if split.any():
            best = min(
                best,
                sum((X[m] - X[m].mean(0)).pow(2).sum().item() for m in (split, ~split)),
            )
    centers, _ = kmeans_plusplus(X, 2, generators=generators(*range(8)))
    assert lloyd(X, centers).inertia.min().item() == pytest.approx(best)


@pytest.mark.parametrize("own_rows", [False, True])
def test_stack_equals_single_runs(own_rows):
    X = torch.from_numpy(blobs())
    rows = torch.stack([X, X.flip(0) * 2, X + 5]) if own_rows else X
    centers = torch.stack([torch.from_numpy(start(blobs(), 6, seed)) for seed in range(3)])
    stacked = lloyd(rows, centers)
    for r in range(3):
        single = lloyd(rows[r] if own_rows else rows, centers[r])
        torch.testing.assert_close(stacked.centers[r], single.centers[0], atol=1e-10, rtol=1e-10)
        torch.testing.assert_close(stacked.labels[r], single.labels[0])
        assert stacked.n_iter[r] == single.n_iter[0]
    assert len(set(stacked.n_iter.tolist())) > 1, "restarts should stop at different times"


def test_rows_and_weights_are_not_written_to():
    X, weight = torch.from_numpy(blobs()), torch.linspace(0, 2, 600, dtype=torch.float64)
    centers = X[:6].clone()
    copies = [t.clone() for t in (X, weight, centers)]
    kmeans_plusplus(X, 6, generators=generators(0), sample_weight=weight)
    result = lloyd(X, centers, sample_weight=weight)
    inertia(X, result.centers, result.labels, weight)
    for now, before in zip((X, weight, centers), copies, strict=True):
        assert torch.equal(now, before)


def test_chunks_of_any_size_give_the_same_result():
    X = torch.from_numpy(blobs())
    centers = torch.from_numpy(start(blobs(), 6))
    whole = lloyd(X, centers)
    for max_bytes in (8 * 6, 8 * 6 * 7, 8 * 6 * 599):
        part = lloyd(X, centers, max_chunk_bytes=max_bytes)
        torch.testing.assert_close(part.centers, whole.centers, atol=1e-10, rtol=1e-10)
        assert torch.equal(part.labels, whole.labels)


def test_sparse_rows_equal_dense_rows():
    X = np.maximum(blobs(), 0.0)
    rows = SparseRows(sparse.csr_array(X), torch.device("cpu"))
    centers = torch.from_numpy(start(X, 6))
    a, b = lloyd(rows, centers), lloyd(torch.from_numpy(X), centers)
    torch.testing.assert_close(a.centers, b.centers, atol=1e-10, rtol=1e-10)
    ours = kmeans_plusplus(rows, 6, generators=generators(0))[1]
    assert torch.equal(ours, kmeans_plusplus(torch.from_numpy(X), 6, generators=generators(0))[1])


@pytest.mark.parametrize("own_rows", [False, True])
def test_empty_clusters_move_to_the_farthest_rows(own_rows):
    X = np.array([[0.0], [1.0], [2.0], [50.0], [90.0]])
    init = np.array([[1.0], [1e3], [2e3]])  # nothing is nearest to the last two
    expected = KMeans(3, init=init, n_init=1).fit(X)
    rows = torch.from_numpy(X)
    result = lloyd(rows.expand(1, -1, -1) if own_rows else rows, torch.from_numpy(init))
    assert result.inertia.item() == pytest.approx(expected.inertia_) == 2.0
    assert sorted(result.centers.flatten().tolist()) == [1.0, 50.0, 90.0]


def test_fewer_distinct_rows_than_clusters_gives_finite_centers():
    X = torch.tensor([[0.0], [0.0], [1.0], [1.0]], dtype=torch.float64)
    centers, _ = kmeans_plusplus(X, 3, generators=generators(0))
    result = lloyd(X, centers)
    assert result.centers.isfinite().all()
    assert result.inertia.item() == 0.0


def test_far_from_the_origin_in_float32():
    X = blobs(dtype=np.float64) + 3e4
    init = start(X, 6)
    exact = lloyd(torch.from_numpy(X), torch.from_numpy(init))
    single = lloyd(torch.from_numpy(X).float(), torch.from_numpy(init).float())
    assert single.inertia.item() == pytest.approx(exact.inertia.item(), rel=1e-3)
    assert (single.labels == exact.labels).double().mean() > 0.99


@pytest.mark.slow
def test_more_rows_than_multinomial_takes():
    n = 2**24 + 1000
    X = torch.zeros(n, 1)
    X[-500:] = 10.0  # only rows beyond 2**24 differ
    centers, index = kmeans_plusplus(X, 2, generators=generators(0))
    assert sorted(centers.flatten().tolist()) == [0.0, 10.0]
    assert index.max() >= n - 500
    result = lloyd(X, torch.tensor([[1.0], [2.0]]), max_iter=3)
    assert result.inertia.item() == 0.0
    assert torch.bincount(result.labels[0]).tolist() == [n - 500, 500]


# -------------------------------------------------------------------------------------- k-means++


def check_greedy_choice(X, chosen, uniform, weight):
    """The algorithm of Arthur and Vassilvitskii with greedy trials, one row at a time."""

    def draw(mass, u):
        total, target = 0.0, u * mass.sum()
        for i, m in enumerate(mass):
            total += m
            if total > target:
                return i
        return len(mass) - 1

    assert chosen[0] == draw(weight, uniform[0, 0])
    closest = ((X - X[chosen[0]]) ** 2).sum(1)
    for step in range(1, len(chosen)):
        candidates = [draw(closest * weight, u) for u in uniform[step]]
        after = {c: np.minimum(closest, ((X - X[c]) ** 2).sum(1)) for c in candidates}
        best = min((a * weight).sum() for a in after.values())
        closest = after[chosen[step]]  # one of the candidates
        assert (closest * weight).sum() <= best * (1 + 1e-9) + 1e-12  # two may be equally good


@settings(max_examples=25, deadline=None)
@given(n=st.integers(8, 60), k=st.integers(1, 7), seed=st.integers(0, 999), weighted=st.booleans())
def test_kmeans_plusplus_is_the_greedy_algorithm(n, k, seed, weighted):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    weight = rng.uniform(0.0, 2.0, n) if weighted else np.ones(n)
    trials = 2 + int(math.log(k))
    uniform = torch.rand(k, trials, dtype=torch.float64, generator=generators(seed)[0]).numpy()
    centers, index = kmeans_plusplus(
        torch.from_numpy(X),
        k,
        generators=generators(seed),
        sample_weight=torch.from_numpy(weight) if weighted else None,
        max_chunk_bytes=500,
    )
    check_greedy_choice(X, index[0].tolist(), uniform, weight)
    np.testing.assert_array_equal(centers[0], X[index[0].numpy()])


def test_kmeans_plusplus_is_as_good_as_scikit_learns():
    from sklearn.cluster import kmeans_plusplus as reference

    X = load_digits().data
    ours, _ = kmeans_plusplus(torch.from_numpy(X), 10, generators=generators(*range(40)))
    theirs = np.stack([reference(X, 10, random_state=seed)[0] for seed in range(40)])

    def potentials(centers):
        return assign(torch.from_numpy(X), centers)[1].sum(-1).numpy()

    a, b = potentials(ours), potentials(torch.from_numpy(theirs))
    error = math.hypot(a.std(), b.std()) / math.sqrt(40)
    assert abs(a.mean() - b.mean()) < 3 * error


def test_kmeans_plusplus_stack_equals_single_runs():
    X = torch.from_numpy(blobs())
    _, stacked = kmeans_plusplus(X, 6, generators=generators(4, 5, 6))
    for r in range(3):
        assert torch.equal(stacked[r], kmeans_plusplus(X, 6, generators=generators(4 + r))[1][0])
    _, own = kmeans_plusplus(X.expand(3, -1, -1), 6, generators=generators(4, 5, 6))
    assert torch.equal(own, stacked)


@pytest.mark.parametrize("d", [3, 64, 300])
@pytest.mark.parametrize("k", [1, 5, 8, 9])
def test_products_of_few_and_of_many_centers_are_the_same(d, k):
    X = torch.randn(500, d, dtype=torch.float64, generator=generators(d)[0])
    centers = X[: 2 * k].view(2, k, d) + 0.1
    labels, distances = assign(X, centers, max_chunk_bytes=20_000)
    expected = torch.cdist(X.expand(2, -1, -1), centers).square().min(-1)
    assert torch.equal(labels.long(), expected.indices)
    torch.testing.assert_close(distances, expected.values)


def test_kmeans_plusplus_without_memory_for_distances_gives_the_same(monkeypatch):
    X = torch.from_numpy(blobs(3000, seed=4))
    weight = torch.rand(3000, dtype=X.dtype, generator=generators(7)[0])
    _, kept = kmeans_plusplus(X, 9, generators=generators(0, 1), sample_weight=weight)
    monkeypatch.setattr("concrete_kmeans.lloyd.MAX_KEPT_BYTES", 0)
    _, again = kmeans_plusplus(X, 9, generators=generators(0, 1), sample_weight=weight)
    assert torch.equal(kept, again)


def test_first_centers_of_few_or_weighted_rows_are_those_of_kmeans_plusplus():
    X = torch.from_numpy(blobs())
    expected, _ = kmeans_plusplus(X, 6, generators=generators(3, 4))
    assert torch.equal(first_centers(X, 6, generators=generators(3, 4)), expected)
    X = clouds(40_000, 4, 5)
    weight = torch.ones(len(X))
    expected, _ = kmeans_plusplus(X, 5, generators=generators(3), sample_weight=weight)
    found = first_centers(X, 5, generators=generators(3), sample_weight=weight)
    assert torch.equal(found, expected)


def test_first_centers_of_many_rows_lead_lower_than_kmeans_plusplus():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 8))[rng.integers(40, size=40_000)] + 0.5 * rng.normal(size=(40_000, 8))
    X = torch.from_numpy(X)
    seeds = range(6)
    plain, _ = kmeans_plusplus(X, 40, generators=generators(*seeds))
    better = first_centers(X, 40, generators=generators(*seeds))
    assert lloyd(X, better).inertia.mean() < lloyd(X, plain).inertia.mean()
    for r in (0, 5):  # and each is what its seed gives alone
        alone = first_centers(X, 40, generators=generators(r))[0]
        torch.testing.assert_close(better[r], alone)


def test_first_centers_from_the_global_generator():
    torch.manual_seed(0)
    assert first_centers(clouds(33_000, 2, 3), 3, generators=[None]).shape == (1, 3, 2)


def test_zero_weight_is_never_drawn():
    X = torch.arange(100, dtype=torch.float64).unsqueeze(1)
    weight = (torch.arange(100) % 10 == 3).double()
    _, index = kmeans_plusplus(X, 8, generators=generators(*range(20)), sample_weight=weight)
    assert (index % 10 == 3).all()


def test_sampler_draws_in_proportion():
    n = 3 * _Sampler.block + 17
    sampler = _Sampler(1, n, torch.zeros(n, 1))
    mass = torch.zeros(n)
    mass[[5, _Sampler.block - 1, _Sampler.block, n - 1]] = torch.tensor([1.0, 2.0, 3.0, 4.0])
    sampler.mass[0, :n] = mass
    uniform = (torch.arange(1_000, dtype=torch.float64) / 1_000).unsqueeze(0)
    row, total = sampler.draw(uniform)
    counts = torch.bincount(row[0], minlength=n)
    assert total.item() == 10.0
    assert counts[mass > 0].tolist() == [100, 200, 300, 400]
    assert counts.sum() == counts[mass > 0].sum()


# ----------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"X": torch.zeros(5)}, r"X must be \(N, D\) or \(R, N, D\), got \(5,\)"),
        ({"X": torch.zeros(5, 2).long()}, "float32 or float64, got torch.int64"),
        ({"n_clusters": 0}, "n_clusters must be a whole number of at least 1, got 0"),
        ({"n_clusters": 6}, "n_clusters=6 must be at most the 5 rows"),
        ({"sample_weight": torch.ones(4)}, r"sample_weight must be \(5,\)"),
    ],
)
def test_kmeans_plusplus_names_what_is_wrong(arguments, message):
    good = {"X": torch.zeros(5, 2), "n_clusters": 2, "generators": generators(0)}
    with pytest.raises((ValueError, TypeError), match=message):
        kmeans_plusplus(**(good | arguments))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"centers": torch.zeros(2, 3)}, r"centers must be .* with D=2, got \(1, 2, 3\)"),
        ({"centers": torch.zeros(6, 2)}, "n_clusters=6 must be at most the 5 rows"),
        ({"max_iter": 0}, "max_iter must be a whole number of at least 1, got 0"),
        ({"X": torch.zeros(3, 5, 2), "centers": torch.zeros(2, 2, 2)}, "each of the 3 sets"),
    ],
)
def test_lloyd_names_what_is_wrong(arguments, message):
    good = {"X": torch.zeros(5, 2), "centers": torch.zeros(2, 2)}
    with pytest.raises(ValueError, match=message):
        lloyd(**(good | arguments))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_cuda_equals_cpu(dtype):
    X = torch.from_numpy(load_digits().data).to(dtype)
    seeds = [torch.Generator().manual_seed(s) for s in range(3)]
    centers, _ = kmeans_plusplus(X, 10, generators=seeds)
    cpu, cuda = lloyd(X, centers), lloyd(X.cuda(), centers.cuda())
    torch.testing.assert_close(cuda.inertia.cpu(), cpu.inertia, rtol=1e-5, atol=0)
    assert (cuda.labels.cpu() == cpu.labels).double().mean() > 0.999
    again = lloyd(X.cuda(), centers.cuda())
    assert torch.equal(again.centers, cuda.centers), "the same result every time"
