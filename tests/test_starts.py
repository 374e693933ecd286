from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits, make_blobs, make_moons
from sklearn.decomposition import PCA
from sklearn.metrics import adjusted_rand_score

from concrete_kmeans import starts
from concrete_kmeans.metrics import nmi
from concrete_kmeans.progress import progress_bar
from concrete_kmeans.starts import STARTS, find_start, from_centers, from_labels, kmeans_start
from concrete_kmeans.training import Event

KINDS = list(STARTS)


def generators(*seeds):
    return [torch.Generator().manual_seed(s) for s in seeds]


def blobs(n=240, centers=4, d=5, std=1.0, seed=0):
    X, y = make_blobs(n, n_features=d, centers=centers, cluster_std=std, random_state=seed)
    return torch.from_numpy(X).float(), y


def views(rows, seeds):
    """Codes (R, N, D): the rows, turned and stretched a little, for each restart otherwise."""
    d = rows.shape[1]
    turns = [torch.linalg.qr(torch.randn(d, d, generator=g))[0] for g in generators(*seeds)]
    return torch.stack([rows @ turn * torch.linspace(1.0, 1.5, d) for turn in turns])


class TestKmeansStart:
    @pytest.mark.parametrize("seed", range(3))
    def test_as_good_as_sklearn(self, seed):
        rows, _ = blobs(centers=8, std=4.0, seed=seed)
        found = kmeans_start(rows.unsqueeze(0), 8, generators(seed))
        inertia = ((rows - found.centers[0][found.labels[0]]) ** 2).sum()
        judge = KMeans(8, n_init=10, random_state=seed).fit(rows.numpy())
        assert inertia <= 1.01 * judge.inertia_

    def test_more_draws_are_never_worse(self):
        rows, _ = blobs(centers=12, std=3.0)
        inertia = []
        for n in (1, 3, 10):
            found = kmeans_start(rows.unsqueeze(0), 12, generators(0), n_starts=n)
            inertia.append(float(((rows - found.centers[0][found.labels[0]]) ** 2).sum()))
        assert inertia == sorted(inertia, reverse=True)

    def test_every_centre_is_the_mean_and_the_nearest(self):
        rows, _ = blobs()
        found = kmeans_start(rows.unsqueeze(0), 4, generators(0))
        assert found.nearest == (True,)
        again = from_labels(rows.unsqueeze(0), found.labels, 4)
        torch.testing.assert_close(again.centers, found.centers, rtol=1e-4, atol=1e-4)
        nearest = from_centers(rows.unsqueeze(0), found.centers)
        assert torch.equal(nearest.labels, found.labels)


class TestGiven:
    @pytest.mark.parametrize("chunk", [7, 2**16])
    def test_means_of_labels_and_an_empty_cluster(self, chunk, monkeypatch):
        monkeypatch.setattr(starts, "CHUNK", chunk)
        codes = torch.randn(2, 30, 3, generator=generators(0)[0], dtype=torch.float64)
        labels = torch.randint(3, (2, 30), generator=generators(1)[0])
        labels[labels == 1] = 3
        found = from_labels(codes, labels, 4)
        assert found.nearest == (False, False)
        for r in range(2):
            for j in (0, 2, 3):
                rows = [codes[r, i] for i in range(30) if labels[r, i] == j]
                torch.testing.assert_close(found.centers[r, j], sum(rows) / len(rows))
            torch.testing.assert_close(found.centers[r, 1], codes[r].mean(0))

    def test_nearest_of_centres(self, monkeypatch):
        monkeypatch.setattr(starts, "CHUNK", 7)
        codes = torch.randn(2, 30, 3, generator=generators(0)[0])
        centers = torch.randn(2, 4, 3, generator=generators(1)[0])
        found = from_centers(codes, centers)
        assert found.nearest == (True, True)
        assert torch.equal(found.labels, torch.cdist(codes, centers).argmin(-1))
        assert torch.equal(found.centers, centers)


class TestWhitening:
    def test_pooled_within_covariance_is_the_identity(self):
        rows, y = blobs(600, centers=3, d=4)
        turn = torch.linalg.qr(torch.randn(4, 4, generator=generators(2)[0]))[0]
        rows = rows * torch.tensor([1.0, 1.5, 2.0, 2.5]) @ turn
        sample = starts.Sample(rows, 3)
        white = sample.whitened(rows, generators(0)[0]).double()
        labels = sample.kmeans(rows, generators(0)[0])
        means = torch.stack([white[labels == j].mean(0) for j in range(3)])
        error = white - means[labels]
        within = error.T @ error / len(white)
        # but for the ridge, a thousandth of the mean variance, which is 4 times the least here
        torch.testing.assert_close(within, torch.eye(4, dtype=torch.float64), rtol=0, atol=5e-3)
        assert white.mean(0).abs().max() < 1e-4
        assert adjusted_rand_score(y, labels) == 1.0

    def test_code_that_does_not_vary(self):
        rows = torch.ones(40, 3)
        assert starts.Sample(rows, 2).whitened(rows, generators(0)[0]).isfinite().all()

    def test_a_direction_that_does_not_vary(self):
        rows, _ = blobs(100)
        rows[:, 2] = 7.0
        white = starts.Sample(rows, 4).whitened(rows, generators(0)[0])
        assert white.isfinite().all()
        assert (white[:, 2] - white[0, 2]).abs().max() < 5.0


@pytest.mark.parametrize("kind", KINDS)
class TestFindStart:
    def test_finds_blobs(self, kind):
        rows, y = blobs()
        found = find_start(kind, rows, views(rows, [0, 1]), 4, generators(0, 1))
        assert found.labels.shape == (2, 240)
        assert found.labels.dtype == torch.int64
        assert found.centers.shape == (2, 4, 5)
        assert all(adjusted_rand_score(y, own) > 0.9 for own in found.labels.numpy())

    def test_restart_r_of_a_stack_is_what_it_is_alone(self, kind):
        rows, _ = blobs(std=3.0)
        codes = views(rows, [0, 1, 2])
        stack = find_start(kind, rows, codes, 4, generators(5, 6, 7))
        for r in range(3):
            alone = find_start(kind, rows, codes[r : r + 1], 4, generators(5 + r))
            assert torch.equal(stack.labels[r], alone.labels[0])
            torch.testing.assert_close(stack.centers[r], alone.centers[0])

    def test_global_random_state(self, kind, untouched_random_state):
        rows, _ = blobs(100)
        find_start(kind, rows, views(rows, [0]), 4, generators(0))

    def test_a_sample_gives_nearly_the_labels_of_all_rows(self, kind, monkeypatch):
        rows, _ = blobs(900)
        codes = views(rows, [0])
        whole = find_start(kind, rows, codes, 4, generators(0))
        monkeypatch.setattr(starts, "MAX_ROWS", 200)
        part = find_start(kind, rows, codes, 4, generators(0))
        assert part.labels.shape == (1, 900)
        assert adjusted_rand_score(whole.labels[0], part.labels[0]) > 0.95

    def test_codes_far_from_the_origin(self, kind):
        rows, y = blobs()
        found = find_start(kind, rows + 1e4, views(rows, [0]) + 1e4, 4, generators(0))
        assert adjusted_rand_score(y, found.labels[0]) > 0.9

    @pytest.mark.parametrize("n", [4, 5, 11, 12, 13])
    def test_few_rows(self, kind, n):
        rows, _ = blobs(n)
        found = find_start(kind, rows, views(rows, [0]), 4, generators(0))
        assert found.labels.shape == (1, n)
        assert found.centers.isfinite().all()

    def test_rows_that_are_equal(self, kind):
        rows = torch.cat([torch.zeros(30, 5), torch.ones(30, 5)])
        found = find_start(kind, rows, rows.unsqueeze(0), 2, generators(0))
        assert found.centers.isfinite().all()
        assert adjusted_rand_score([0] * 30 + [1] * 30, found.labels[0]) == 1.0

    def test_one_cluster(self, kind):
        rows, _ = blobs(50)
        found = find_start(kind, rows, views(rows, [0]), 1, generators(0))
        assert (found.labels == 0).all()


class TestTrust:
    """Cuts of a graph that has clusters; draws of k-means where it has none."""

    def test_cuts_and_draws(self, monkeypatch):
        rows, _ = blobs(std=3.0)
        wide = torch.nn.functional.pad(rows, (0, 1))
        codes = views(rows, [0, 1])
        monkeypatch.setattr(starts, "LEAST_KEPT", 0.0)
        found = find_start("consensus", wide, codes, 4, generators(0, 1), [0.5, 0.5])
        assert found.nearest == (False, False)
        monkeypatch.setattr(starts, "LEAST_KEPT", 1.1)
        found = find_start("consensus", wide, codes, 4, generators(0, 1), [0.5, 0.5])
        assert found.nearest == (True, True)
        assert torch.equal(found.labels, from_centers(codes, found.centers).labels)
        judge = [KMeans(4, n_init=10, random_state=0).fit(own.numpy()).labels_ for own in codes]
        pairs = zip(judge, found.labels, strict=True)
        assert all(adjusted_rand_score(a, b) > 0.7 for a, b in pairs)
        both = find_start("consensus", wide, codes, 4, generators(0, 1), [0.5, 1.5])
        assert both.nearest == (True, False)  # the rows were asked, too
        assert torch.equal(both.labels[0], found.labels[0])

    def test_rows_without_clusters_keep_few_edges(self):
        drawn = torch.Generator().manual_seed(0)
        noise = torch.randn(2000, 30, generator=drawn)
        clusters, _ = blobs(2000, centers=8, d=30)
        shares = []
        for rows in (noise, clusters):
            sample = starts.Sample(rows, 8)
            labels = next(sample.cuts(sample.spectrum, generators(0)[0]))
            shares.append(starts.kept(sample.spectrum.graph, labels.numpy()))
        assert shares[0] < starts.LEAST_KEPT < 0.99 < shares[1]

    def test_k_means_in_place_of_large_mixtures(self, monkeypatch):
        rows, y = blobs()
        sample = starts.Sample(rows, 4)
        assert len([*sample.cuts(sample.spectrum, generators(0)[0])]) == 4
        monkeypatch.setattr(starts, "MAX_MIXTURE", 0)
        monkeypatch.setattr(sample, "mixture", None)
        cuts = [*sample.cuts(sample.spectrum, generators(0)[0])]
        assert len(cuts) == 4
        found = starts.consensus(torch.stack(cuts), 4, generators(0)[0])
        assert adjusted_rand_score(y, found) > 0.9

    def test_digits(self):
        """Cuts by more vectors than clusters, against k-means on as many vectors (0.88)."""
        rows, y = load_digits(return_X_y=True)
        sample = starts.Sample(torch.from_numpy(rows / 16.0).float(), 10)
        as_many = torch.nn.functional.normalize(sample.spectrum.vectors[:, :10], dim=1)
        few, more = [], []
        for own in generators(0, 1, 2):
            few.append(nmi(y, sample.kmeans(as_many, own).numpy()))
            cuts = torch.stack([*sample.cuts(sample.spectrum, own)])
            more.append(nmi(y, starts.consensus(cuts, 10, own).numpy()))
        assert np.mean(more) > np.mean(few)


@pytest.mark.parametrize("weights", [None, [1.0, 2.0, 0.5, 1.0, 1.0]])
def test_consensus_of_noisy_votes(weights):
    drawn = torch.Generator().manual_seed(0)
    truth = torch.randint(4, (400,), generator=drawn)
    names = [torch.randperm(4, generator=drawn) for _ in range(5)]
    votes = torch.stack([own[truth] for own in names])
    wrong = torch.rand(votes.shape, generator=drawn) < 0.2
    votes[wrong] = torch.randint(4, (int(wrong.sum()),), generator=drawn)
    found = starts.consensus(votes, 4, drawn, weights)
    alone = [adjusted_rand_score(truth, own) for own in votes]
    assert adjusted_rand_score(truth, found) > max(alone) + 0.1


@pytest.mark.parametrize("data", ["moons", "blobs", "both"])
def test_consensus_is_no_worse_than_the_worst_of_its_members(data):
    moons, y = make_moons(300, noise=0.06, random_state=0)
    if data == "blobs":
        rows, y = blobs(300, std=2.5)
        rows = rows.numpy()
    elif data == "both":
        far, z = make_blobs(200, centers=[[6, 0], [6, 4]], cluster_std=0.7, random_state=0)
        rows, y = np.concatenate([moons, far]), np.concatenate([y, 2 + z])
    else:
        rows = moons
    rows = torch.from_numpy(np.asarray(rows)).float()
    K = len(set(y.tolist()))
    score = lambda labels: adjusted_rand_score(y, labels)  # noqa: E731
    for seed in range(2):
        wide = torch.nn.functional.pad(rows, (0, 1))  # a code is smaller than a row
        sample, (own,) = starts.Sample(wide, K), generators(seed)
        members = [  # in the order in which the consensus draws
            *sample.cuts(sample.spectrum_of(sample.whitened(rows, own)), own),
            *sample.cuts(sample.spectrum, own),
            sample.mixture(sample.principal, own),
            sample.kmeans(wide, own),
        ]
        found = find_start("consensus", wide, rows.unsqueeze(0), K, generators(seed)).labels[0]
        assert score(found) >= min(score(member) for member in members)


class TestProgress:
    def event(self, step):
        return Event("joint", step, 10, {"loss": [1.0, 3.0]}, [True, True])

    def test_nothing_where_nobody_looks(self, monkeypatch):
        monkeypatch.setattr(sys.stderr, "isatty", lambda: False, raising=False)
        with progress_bar(1, "joint", 10) as callbacks:
            assert callbacks == []

    def test_nothing_if_not_wanted(self, monkeypatch):
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
        with progress_bar(0, "joint", 10) as callbacks:
            assert callbacks == []

    def test_a_bar_on_a_terminal(self, terminal):
        written_to = terminal()
        with progress_bar(1, "joint", 10) as callbacks:
            (draw,) = callbacks
            assert draw(self.event(5)) is not True  # that would end the phase
            draw(self.event(10))
        written = written_to.getvalue()
        assert "joint" in written
        assert "10/10 steps" in written
        assert "loss 2" in written


# --------------------------------------------------------------------------- what a code is worth


@pytest.mark.parametrize(
    ("gain", "code_size", "asked"),
    [(0.5, 2, "code"), (1.0, 2, "both"), (3.0, 2, "both"), (0.5, 4, "rows"), (3.0, 4, "rows")],
)
def test_the_consensus_asks_whom_it_trusts(gain, code_size, asked, monkeypatch):
    rows, _ = make_blobs(90, 4, centers=3, random_state=0)
    rows = torch.from_numpy(rows)
    codes = rows[:, :code_size] * 2.0
    seen = []

    def graph(points, *arguments, **options):
        seen.append("rows" if torch.equal(points, rows) else "code")
        return real(points, *arguments, **options)

    real = starts.neighbour_graph
    monkeypatch.setattr(starts, "neighbour_graph", graph)
    find_start("consensus", rows, codes.unsqueeze(0), 3, generators(0), [gain])
    assert set(seen) == ({"code", "rows"} if asked == "both" else {asked})


def test_gain_is_the_error_over_that_of_principal_components():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 6)) @ rng.normal(size=(6, 6)) + 50.0
    held, rest = X[:40], X[40:]
    pca = PCA(2).fit(rest)
    linear = ((held - pca.inverse_transform(pca.transform(held))) ** 2).sum(1).mean()
    errors = torch.tensor([linear, 0.5 * linear, 2.0 * linear])
    gains = starts.code_gain(torch.from_numpy(held), torch.from_numpy(rest), errors, 2)
    torch.testing.assert_close(gains, torch.tensor([1.0, 0.5, 2.0], dtype=torch.float64))
    none_lost = starts.code_gain(torch.from_numpy(held), torch.from_numpy(rest), errors, 6)
    assert bool((none_lost > 1e6).all())


def test_components_of_wide_rows_are_those_of_the_covariance(monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 30)) * np.geomspace(9, 0.1, 30) + 5.0
    monkeypatch.setattr(starts, "MAX_COVARIANCE", 10)
    mean, components = starts.leading_components(torch.from_numpy(X), 4)
    np.testing.assert_allclose(mean, X.mean(0))
    expected = PCA(4).fit(X).components_
    np.testing.assert_allclose(np.abs(expected @ components.numpy()), np.eye(4), atol=1e-3)


def test_k_means_has_the_last_word_where_clusters_are_round():
    rows, _ = blobs(n=900, centers=6, d=16, std=4.0)
    codes = rows[:, :3].unsqueeze(0)  # a poor one
    found = find_start("consensus", rows, codes, 6, generators(0), [1.5]).labels[0]
    judge = KMeans(6, n_init=10, random_state=0).fit(rows.numpy())
    assert adjusted_rand_score(judge.labels_, found.numpy()) == 1.0


def test_and_not_where_they_are_not():
    X, y = make_moons(600, noise=0.04, random_state=0)
    rows = torch.from_numpy(X).float()
    found = find_start("consensus", rows, rows.unsqueeze(0), 2, generators(0)).labels[0]
    judge = KMeans(2, n_init=10, random_state=0).fit(X)
    assert adjusted_rand_score(judge.labels_, found.numpy()) < starts.ROUND
    assert adjusted_rand_score(y, found.numpy()) > adjusted_rand_score(y, judge.labels_) + 0.2


def test_equal_rows_have_no_graph():
    """Ten patterns of seven binary features, some flipped: neighbours are equal rows."""
    draw = torch.Generator().manual_seed(0)
    patterns = torch.randperm(128, generator=draw)[:10].unsqueeze(1) >> torch.arange(7) & 1
    y = torch.arange(600) % 10
    flipped = torch.rand(600, 7, generator=draw) < 0.06
    rows = (patterns[y] ^ flipped.long()).float()
    sample = starts.Sample(rows, 10)
    assert sample.distinct == len(np.unique(rows.numpy(), axis=0)) / 600 < 0.2
    members, are_cuts = sample.members(rows, generators(0)[0])
    assert not are_cuts
    assert len(members) == starts.N_DRAWS
    found = find_start("consensus", rows, rows.unsqueeze(0), 10, generators(0)).labels[0]
    judge = KMeans(10, n_init=10, random_state=0).fit(rows.numpy())
    assert nmi(y, found.numpy()) >= nmi(y, judge.labels_) - 0.02
