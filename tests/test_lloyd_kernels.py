"""Triton's kernels of Lloyd's algorithm against torch's operations, and against float64.

Without a CUDA device they run under ``TRITON_INTERPRET=1``, if Triton is installed.
"""

import os

import pytest
import torch

from concrete_kmeans import fused
from concrete_kmeans import lloyd as module
from concrete_kmeans.lloyd import kmeans_plusplus, lloyd

pytest.importorskip("triton")
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not CUDA and os.environ.get("TRITON_INTERPRET") != "1", reason="needs CUDA"),
]


@pytest.fixture
def kernels():
    from concrete_kmeans import lloyd_kernels

    return lloyd_kernels


@pytest.fixture
def by_kernels(kernels, monkeypatch):
    """``lloyd`` by the kernels, in the interpreter as well; the torch path if told so."""

    def fit(*args, torch_path=False, **kwargs):
        with monkeypatch.context() as patch:
            chosen = None if torch_path else kernels
            patch.setattr(fused, "kernels_for_lloyd", lambda *_: chosen)
            return lloyd(*args, **kwargs)

    return fit


def of_restart(X, r):
    return (X[r] if X.ndim == 3 else X).double()


def excess(X, centers, labels):
    """By how much the centres of some labels (R, N) are farther than the nearest, in float64.

    As a part of the largest squared length of all, in which a product in float32 is rounded.
    """
    found = []
    for r, own in enumerate(centers.double()):
        rows = of_restart(X, r)
        distances = own.square().sum(-1) - 2.0 * rows @ own.mT
        chosen = distances.gather(1, labels[r].long().unsqueeze(-1)).squeeze(-1)
        largest = max(rows.square().sum(-1).max(), own.square().sum(-1).max())
        found.append(((chosen - distances.amin(1)) / largest).max())
    return float(torch.stack(found).max())


def sums_of(X, labels, K, weight=None):
    """Sums and weights of the clusters in float64."""
    sums, weights = [], []
    for r, own in enumerate(labels):
        member = torch.nn.functional.one_hot(own.long(), K).double()
        member = member if weight is None else member * weight.double().unsqueeze(-1)
        sums.append(member.mT @ of_restart(X, r))
        weights.append(member.sum(0))
    return torch.stack(sums), torch.stack(weights)


def new_pass(kernels, X, R, K, **kwargs):
    labels = torch.full((R, X.shape[-2]), -1, dtype=torch.int32, device=DEVICE)
    kwargs = {"shift": None, "weight": None} | kwargs
    return kernels.Pass(X, labels=labels, n_clusters=K, **kwargs), torch.arange(R, device=DEVICE)


def run(one, centers, which, whole):
    one.prepare(centers, which)
    one.look(which, whole=whole)
    one.move(which, whole=whole)
    return one.take_changed(which)


def check(one, which, X, centers, weight=None):
    rows = X[which] if X.ndim == 3 else X
    labels, K = one.labels[which], centers.shape[1]
    assert excess(rows, centers[which], labels) < 2e-6
    rtol = 1e-6 if weight is not None else 0.0  # a weighted row is rounded to float32
    for found, wanted in zip(one.floats(which), sums_of(rows, labels, K, weight), strict=True):
        torch.testing.assert_close(found, wanted, rtol=rtol, atol=1e-6)


SHAPES = [  # R, N, K, D
    (1, 300, 5, 10),
    (2, 129, 1, 1),
    (3, 70, 17, 33),
    (1, 200, 10, 784),
    (1, 100, 70, 65),
    (2, 257, 130, 4),
    *([(2, 20_001, 100, 32), (1, 5_000, 1000, 128), (1, 70_000, 10, 784)] if CUDA else []),
]


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
class TestPass:
    """Both ways to move rows, one after the other and from the start."""

    def drawn(self, draw, shape, own):
        R, N, K, D = shape
        X = draw(R, N, D) if own else draw(N, D)
        return X, draw(R, K, D), draw(R, K, D)

    def test_labels_sums_and_weights(self, kernels, draw, shape, own):
        X, first, second = self.drawn(draw, shape, own)
        R, N, K, _ = shape
        both = []
        for order in ((True, False), (False, True)):
            one, which = new_pass(kernels, X, R, K)
            assert run(one, first, which, order[0]) == [N] * R
            check(one, which, X, first)
            before = one.labels.clone()
            changed = run(one, second, which, order[1])
            assert changed == (one.labels != before).sum(1).tolist()
            check(one, which, X, second)
            both.append(one)
        assert torch.equal(both[0].sums, both[1].sums), "whole numbers: whichever way"
        assert torch.equal(both[0].weights, both[1].weights)

    def test_weights_and_shift(self, kernels, draw, shape, own):
        X, first, second = self.drawn(draw, shape, own)
        R, _, K, D = shape
        weight, shift = draw(X.shape[-2]).abs() + 0.1, draw(*((R, 1, D) if own else (1, D)))
        weight[::7] = 0.0
        one, which = new_pass(kernels, X, R, K, weight=weight, shift=shift)
        for centers, whole in ((first, True), (second, True), (first, False)):
            run(one, centers, which, whole)
            check(one, which, X - shift, centers, weight)


def test_no_drift(kernels, draw):
    """After many passes the sums are those of a new start, to the last bit."""
    X, which = draw(150, 7), torch.arange(2, device=DEVICE)
    one, _ = new_pass(kernels, X, 2, 9)
    for i in range(8):
        centers = draw(2, 9, 7)
        run(one, centers, which, i % 3 == 0)
    new, _ = new_pass(kernels, X, 2, 9)
    run(new, centers, which, True)
    assert torch.equal(one.sums, new.sums)
    assert torch.equal(one.weights, new.weights)


def test_some_restarts(kernels, draw):
    X, centers = draw(3, 90, 5), draw(3, 6, 5)
    one, which = new_pass(kernels, X, 3, 6)
    run(one, centers, which, True)
    kept = one.sums[1].clone(), one.labels[1].clone()
    for whole in (True, False):
        centers = draw(3, 6, 5)
        some = torch.tensor([0, 2], device=DEVICE)
        run(one, centers, some, whole)
        check(one, some, X, centers)
        assert torch.equal(one.sums[1], kept[0])
        assert torch.equal(one.labels[1], kept[1])


@pytest.mark.parametrize("K", [2, 40, 200])
def test_the_first_of_equal_centres(kernels, draw, K):
    # of whole numbers, so that the interpreter's product gives equal distances for them, too
    X, centers = draw(80, 3).mul_(8.0).round_(), draw(1, K, 3).mul_(8.0).round_()
    centers[0, K // 2 :] = centers[0, : K - K // 2]
    one, which = new_pass(kernels, X, 1, K)
    run(one, centers, which, True)
    distances = (X.unsqueeze(1) - centers[0]).square().sum(-1)
    first = (distances == distances.amin(1, keepdim=True)).int().argmax(1)
    assert torch.equal(one.labels[0], first.int())
    assert int(first.max()) < max(1, K // 2)


def test_features_of_any_scale(kernels, draw):
    """Each has a unit of its own; the smallest and the largest numbers of float32 are far away."""
    scale = torch.tensor([1e-12, 1.0, 1e6], device=DEVICE)
    X = draw(500, 3) * scale
    one, which = new_pass(kernels, X, 1, 4)
    run(one, X[None, :4].contiguous(), which, True)
    sums, _ = one.floats(which)
    expected, _ = sums_of(X, one.labels, 4)
    torch.testing.assert_close(sums / scale, expected / scale, rtol=0, atol=1e-8)


def test_views(kernels, draw):
    """Rows that do not lie one after the other."""
    X = draw(100, 12)[::2, 1:9]
    centers = draw(1, 5, 8)
    for rows in (X, X.contiguous().mT.contiguous().mT):
        one, which = new_pass(kernels, rows, 1, 5)
        for whole in (True, False):
            run(one, centers, which, whole)
            check(one, which, X, centers)


def test_means(kernels, draw):
    X, centers = draw(200, 6), draw(2, 5, 6)
    centers[1, 3] = 1e3  # of no row
    one, which = new_pass(kernels, X, 2, 5)
    one.prepare(centers, which)
    one.look(which, whole=True)
    one.move(which, whole=True)
    before = centers.clone()
    told = one.means(centers, which)
    sums, weights = sums_of(X, one.labels, 5)
    means = torch.where(weights.unsqueeze(-1) > 0, sums / weights.unsqueeze(-1), before.double())
    torch.testing.assert_close(centers, means.float())
    assert torch.equal(one.previous, before)
    assert told[:, -1].tolist() == [200.0, 200.0]
    assert (told[:, :-1] < 0).nonzero().tolist() == [[1, 3]]
    moved = (centers - before).double().square().sum(-1).cpu()
    torch.testing.assert_close(told[:, :-1].clamp(min=0.0), moved)
    torch.testing.assert_close(one.norms, centers.square().sum(-1))
    assert one.take_changed(which) == [0, 0]


# -------------------------------------------------------------------------------------- whole fits


def clouds(draw, N, D, K):
    return draw(N, D) + 3.0 * draw(K, D).repeat(N // K + 1, 1)[:N]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("own", [False, True])
def test_a_fit_is_that_of_torch_and_of_the_cpu(by_kernels, draw, own, weighted):
    X = clouds(draw, 400, 6, 5)
    X = torch.stack([X, X.flip(0) + 40.0, 2.0 * X]) if own else X + 40.0  # far from the origin
    seeds = [torch.Generator().manual_seed(s) for s in range(3)]
    centers, _ = kmeans_plusplus(X, 5, generators=seeds)
    weight = draw(400).abs() + 0.1 if weighted else None
    found = by_kernels(X, centers, sample_weight=weight)
    other = by_kernels(X, centers, sample_weight=weight, torch_path=True)
    host = lloyd(X.cpu(), centers.cpu(), sample_weight=None if weight is None else weight.cpu())
    for theirs in (other, host):
        torch.testing.assert_close(found.centers.cpu(), theirs.centers.cpu(), rtol=1e-5, atol=1e-5)
        assert torch.equal(found.labels.cpu(), theirs.labels.cpu())
        torch.testing.assert_close(found.inertia.cpu(), theirs.inertia.cpu(), rtol=1e-6, atol=0)
        assert torch.equal(found.n_iter.cpu(), theirs.n_iter.cpu())
    again = by_kernels(X, centers, sample_weight=weight)
    assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True)), "every bit"


@pytest.mark.parametrize("weighted", [False, True])
def test_empty_clusters_are_refilled(by_kernels, draw, weighted):
    X = clouds(draw, 200, 4, 6)
    centers = torch.stack([X[:6], X[6:12]])
    centers[0, 2:5] = 1e4 + torch.arange(3.0, device=DEVICE).unsqueeze(-1)
    weight = draw(200).abs() + 0.1 if weighted else None
    for steps in (1, 2, 50):
        given = {"sample_weight": weight, "max_iter": steps, "tol": 0.0}
        found, other = (
            by_kernels(X, centers, **given),
            by_kernels(X, centers, torch_path=True, **given),
        )
        torch.testing.assert_close(found.centers, other.centers, rtol=1e-5, atol=1e-5)
        assert torch.equal(found.labels, other.labels)
        assert torch.equal(found.n_iter, other.n_iter)
    assert all(len(own.unique()) == 6 for own in found.labels)


def test_fewer_rows_than_clusters_can_hold(by_kernels):
    """A cluster that finds no row stays where it is."""
    X = torch.tensor([[0.0], [0.0], [1.0], [1.0]], device=DEVICE)
    centers = torch.tensor([[0.0], [1.0], [5.0]], device=DEVICE)
    found, other = by_kernels(X, centers), by_kernels(X, centers, torch_path=True)
    assert torch.equal(found.centers, other.centers)
    assert torch.equal(found.labels, other.labels)


def test_sums_after_a_refill_are_those_of_the_labels(kernels, draw):
    X = clouds(draw, 120, 3, 4)
    chunks = module._Chunks(X, None, 4, None)
    with module._Threads(X.device) as threads:
        state = module._FusedPartition(kernels, chunks, 1, 4, threads, 1)
        centers, which = X[None, :4].clone(), torch.arange(1, device=DEVICE)
        centers[0, 1] = 1e4
        threshold = torch.zeros(1, dtype=torch.float64, device=DEVICE)
        for _ in range(3):
            state.iterate(centers, which, threshold)
        sums, weights = state.fixed.floats(which)
        expected, counts = sums_of(X if chunks.shift is None else X - chunks.shift, state.labels, 4)
        torch.testing.assert_close(sums, expected, rtol=0, atol=1e-7)
        assert torch.equal(weights, counts)
        assert counts.min() > 0


def test_uneven_weights_and_float64_take_the_torch_path(kernels, draw, monkeypatch):
    X, centers = clouds(draw, 60, 3, 4), draw(4, 3)
    weight = torch.ones(60, device=DEVICE)
    weight[0] = 1e-9
    monkeypatch.setattr(fused, "kernels_for_lloyd", lambda *_: kernels)
    monkeypatch.setattr(kernels, "Pass", None)
    lloyd(X, centers, sample_weight=weight)
    monkeypatch.undo()
    assert fused.kernels_for_lloyd(X.double(), fused.LARGE) is None


@pytest.mark.skipif(not CUDA, reason="needs CUDA")
def test_a_large_problem_runs_them_and_a_small_one_does_not(kernels, monkeypatch):
    """Whatever the number of restarts: in a stack and alone a restart takes the same way."""
    shapes = []
    original = kernels.Pass.__init__

    def noted(self, rows, *args, **kwargs):
        shapes.append(tuple(rows.shape))
        original(self, rows, *args, **kwargs)

    monkeypatch.setattr(kernels.Pass, "__init__", noted)
    X = torch.randn(fused.LARGE // (32 * 16), 32, device="cuda")
    assert fused.kernels_for_lloyd(X, 16) is kernels  # tried out with two rows
    shapes.clear()
    for R in (1, 3):
        centers = X[: 16 * R].view(R, 16, 32)
        lloyd(X, centers, max_iter=2)
        lloyd(X[1:], centers, max_iter=2)
    assert shapes == [X.shape] * 2


@pytest.mark.skipif(not CUDA, reason="needs CUDA")
def test_what_is_tried_out_is_what_runs(kernels, draw):
    """No kernel is compiled for a fit that was not for its trial, nor for other numbers of rows."""
    kinds = [kernels._nearest, kernels._move_all, kernels._move_listed, kernels._means]

    def compiled():
        return [len(kind.device_caches[torch.cuda.current_device()][0]) for kind in kinds]

    K, D = 37, 44  # tiles of no other test; other sizes may have compiled what does not need them
    before = compiled()
    kernels.try_out(K, D, torch.device("cuda"))
    tried = compiled()
    more = [now - then for now, then in zip(tried, before, strict=True)]
    assert more[0] == 1
    assert max(more) == 1
    for R, N in ((1, 4096), (16, 4097), (3, 160)):
        X = draw(N, D)
        one, which = new_pass(kernels, X, R, K)
        centers = draw(R, K, D)
        for whole in (True, False):
            run(one, centers, which, whole)
            one.means(centers, which)
    assert compiled() == tried


@pytest.mark.skipif(not CUDA, reason="needs CUDA")
def test_a_device_without_them_says_so(monkeypatch, caplog):
    def broken(name):
        raise RuntimeError("no compiler")

    fused._lloyd_kernels.cache_clear()
    monkeypatch.setattr(fused.importlib, "import_module", broken)
    monkeypatch.setattr(fused, "LARGE", 0)
    X = torch.randn(50, 2, device="cuda")
    lloyd(X, X[:3])
    assert "Triton's do not run here (RuntimeError: no compiler)" in caplog.text
    assert "3 clusters of 2 features on cuda:0" in caplog.text
    fused._lloyd_kernels.cache_clear()
