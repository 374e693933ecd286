"""Triton's kernels against torch's operations, and a training on both.

Without a CUDA device they run under ``TRITON_INTERPRET=1``, if Triton is installed.
"""

import os

import pytest
import torch
from torch import nn

from concrete_kmeans import functional as F
from concrete_kmeans import fused, training
from concrete_kmeans.data import Batches
from concrete_kmeans.networks import build_autoencoder
from concrete_kmeans.objectives.concrete import Concrete, Scales
from concrete_kmeans.objectives.deep import Reconstruction
from concrete_kmeans.optimizers import EarlyAdam
from concrete_kmeans.training import Settings, train

pytest.importorskip("triton")
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not CUDA and os.environ.get("TRITON_INTERPRET") != "1", reason="needs CUDA"),
]
cuda_only = pytest.mark.skipif(not CUDA, reason="needs CUDA")


@pytest.fixture
def kernels():
    from concrete_kmeans import kernels

    return kernels


#: Triton's interpreter multiplies the bits of bfloat16 as if they were whole numbers.
DTYPES = [torch.float32, *([torch.bfloat16] if CUDA else [])]


def near(found, expected, dtype):
    """Of all numbers together, as rounding of some is large beside their own size."""
    apart, size = (found.double() - expected).norm(), expected.norm()
    most = 2**-8 if dtype == torch.bfloat16 else (2e-3 if CUDA else 1e-6)  # TF32 on CUDA
    assert apart <= most * size, f"{apart:.2g} apart, of {size:.2g}"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("n_restarts", "n_rows", "n_in", "n_out"),
    [
        *((1, 256, 72, 300), (3, 70, 37, 24), (2, 33, 10, 40), (2, 1, 1, 1), (20, 200, 70, 200)),
        # enough for the largest tiles, and for cuBLAS; the interpreter would take minutes
        *([(50, 256, 1100, 200)] if CUDA else []),
    ],
)
class TestLayers:
    """Against the products in float64."""

    def test_affine(self, kernels, draw, n_restarts, n_rows, n_in, n_out, dtype):
        rows, weight = draw(n_restarts, n_rows, n_in).to(dtype), draw(n_restarts, n_in, n_out)
        bias = draw(n_restarts, 1, n_out)
        for relu in (True, False):
            expected = rows.double() @ weight.to(dtype).double() + bias
            expected = expected.relu() if relu else expected
            near(kernels.affine(rows, weight.to(dtype), bias, relu=relu), expected, dtype)

    def test_rows_of_all_restarts(self, kernels, draw, n_restarts, n_rows, n_in, n_out, dtype):
        rows = draw(n_rows, n_in).to(dtype).expand(n_restarts, -1, -1)
        weight, bias = draw(n_restarts, n_in, n_out).to(dtype), draw(n_restarts, 1, n_out)
        near(
            kernels.affine(rows, weight, bias, relu=False),
            rows.double() @ weight.double() + bias,
            dtype,
        )

    def test_to_rows(self, kernels, draw, n_restarts, n_rows, n_in, n_out, dtype):
        gradient, weight = draw(n_restarts, n_rows, n_out).to(dtype), draw(n_restarts, n_in, n_out)
        after = draw(n_restarts, n_rows, n_in).to(dtype) + 2.0  # some of it, below zero
        expected = gradient.double() @ weight.to(dtype).double().mT
        near(kernels.to_rows(gradient, weight.to(dtype), None), expected, dtype)
        near(kernels.to_rows(gradient, weight.to(dtype), after), expected * (after > 0), dtype)

    def test_to_layer(self, kernels, draw, n_restarts, n_rows, n_in, n_out, dtype):
        rows = draw(n_restarts, n_rows, n_in).to(dtype)
        gradient = draw(n_restarts, n_rows, n_out).to(dtype)
        to_weight, to_bias = kernels.to_layer(rows, gradient)
        assert to_weight.dtype == to_bias.dtype == torch.float32
        near(to_weight, rows.double().mT @ gradient.double(), torch.float32)
        near(to_bias, gradient.double().sum(1, keepdim=True), torch.float32)

    def test_move_layer(self, kernels, draw, n_restarts, n_rows, n_in, n_out, dtype):
        """As far as the gradients that the kernel itself would give, moved one by one."""
        rows = draw(n_restarts, n_rows, n_in).to(dtype)
        gradient = draw(n_restarts, n_rows, n_out).to(dtype)

        def one_by_one(weight, bias, pace):
            slopes = kernels.to_layer(rows, gradient)
            for slope, of in zip(slopes, (weight, bias), strict=True):
                kernels.move(slope, of, pace)

        as_far(
            kernels,
            (n_restarts, n_in, n_out),
            lambda *adam: kernels.move_layer(rows, gradient, *adam),
            one_by_one,
        )


@pytest.fixture
def hopper(draw):
    """The kernel for Hopper's GPUs, whatever the size."""
    if not CUDA or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a GPU of Hopper's")
    found = fused._hopper(draw(1).device)
    assert found is not None, "it does not run, or did not compile: the log says why"
    return found


class TestHopper:
    """Against the kernel for any GPU, which the tests above hold to float64."""

    @pytest.mark.parametrize(
        ("n_restarts", "n_rows", "n_in", "n_out"),
        [
            (1, 64, 8, 8),
            (3, 128, 72, 200),
            (2, 256, 64, 64),
            (15, 256, 504, 784),
            (4, 256, 1000, 8),
        ],
    )
    def test_moves_as_far(self, kernels, hopper, draw, n_restarts, n_rows, n_in, n_out):
        rows = draw(n_restarts, n_rows, n_in).bfloat16()
        gradient = draw(n_restarts, n_rows, n_out).bfloat16()
        assert hopper.can_move(rows, gradient)
        as_far(
            kernels,
            (n_restarts, n_in, n_out),
            lambda weight, bias, pace: hopper.move_layer(rows, gradient, weight, bias[:3], *pace),
            lambda *adam: kernels.move_layer(rows, gradient, *adam),
        )

    def test_restarts_stay_apart(self, kernels, hopper, draw):
        """One that has failed leaves the others alone, though tiles reach beyond its weights."""
        rows, gradient = draw(3, 64, 72).bfloat16(), draw(3, 64, 40).bfloat16()
        results = []
        for broken in (False, True):
            weight, bias = adam_of(kernels, 3, 72, 40)
            inputs = [rows.clone(), gradient.clone()]
            if broken:
                for part in (*inputs, *weight, *bias[:3]):
                    part[1] = float("nan")
            pace = pace_of(kernels)
            kernels.count(torch.zeros(2, device=DEVICE), torch.tensor(0.1, device=DEVICE), pace)
            hopper.move_layer(*inputs, weight, bias[:3], *pace)
            results.append([part[[0, 2]] for part in (*weight, *bias[:3])])
        for clean, beside in zip(*results, strict=True):
            assert torch.equal(clean, beside)

    def test_what_it_does_not_take(self, hopper, draw):
        rows, gradient = draw(2, 64, 16).bfloat16(), draw(2, 64, 8).bfloat16()
        assert hopper.can_move(rows, gradient)
        assert not hopper.can_move(rows[:, :33].contiguous(), gradient[:, :33].contiguous())
        assert not hopper.can_move(rows[..., :10].contiguous(), gradient)
        assert not hopper.can_move(rows, draw(2, 64, 12).bfloat16())
        assert not hopper.can_move(rows[:1].expand(2, -1, -1), gradient)
        assert not hopper.can_move(rows.float(), gradient.float())
        assert fused.hopper_for(rows, gradient) is None  # too small to be worth it

    @pytest.mark.parametrize("record", [True, False])
    def test_training_is_the_same(self, hopper, draw, record, monkeypatch):
        """Thirty steps with it and without, of layers that are large enough."""
        monkeypatch.setattr(fused, "MANY_WEIGHTS", 1)
        used = []
        moved = hopper.move_layer
        monkeypatch.setattr(hopper, "move_layer", lambda *args: used.append(args) or moved(*args))
        given = {"plain": False, "precision": "bfloat16", "joint": True, "record": record}
        given |= {"monkeypatch": monkeypatch, "batch_size": 64}
        rows = draw(320, 16)
        first, fast, _ = trained(rows, **given)
        assert used
        monkeypatch.setattr(fused, "_hopper", lambda device: None)
        _, plain, _ = trained(rows, **given)
        for start, mine, theirs in zip(first, fast, plain, strict=True):
            assert (mine - theirs).norm() <= 0.05 * (theirs - start).norm()


def as_far(kernels, shape, *ways):
    """Three steps of Adam lead to the same place, one way and the other."""
    ends = []
    for move in ways:
        weight, bias = adam_of(kernels, *shape)
        pace, steps = pace_of(kernels), torch.zeros(2, device=DEVICE)
        for _ in range(3):
            kernels.count(steps, torch.tensor(1e-2, device=DEVICE), pace)
            move(weight, bias, pace)
        ends.append([*weight, *bias[:3]])
    for mine, theirs in zip(*ends, strict=True):
        near = 2**-7 if mine.dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(mine, theirs, rtol=near, atol=1e-6)


def pace_of(kernels):
    return kernels.Pace(torch.zeros(2, device=DEVICE), (0.9, 0.999), 1e-8)


def adam_of(kernels, n_restarts, n_in, n_out):
    """A weight with a copy, and a bias, the same each time."""
    found = []
    for shape in ((n_restarts, n_in, n_out), (n_restarts, 1, n_out)):
        fixed = torch.Generator().manual_seed(len(found))
        p = torch.randn(*shape, generator=fixed).to(DEVICE)
        copy = None if found else p.bfloat16()
        moments = torch.zeros_like(p), torch.zeros_like(p)
        found.append(kernels.Adam(p, *moments, copy))
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_squared_error(kernels, draw, dtype):
    decoded, rows = draw(3, 70, 137).to(dtype), draw(3, 70, 137)
    loss, slope = kernels.squared_error(decoded, rows)
    exact = decoded.double().requires_grad_()
    expected = (exact - rows).square().sum(-1).mean(-1)
    (gradient,) = torch.autograd.grad(expected.sum(), exact)
    torch.testing.assert_close(loss, expected.detach().float(), rtol=1e-5, atol=0)
    near = 1e-5 if dtype == torch.float32 else 2**-7
    torch.testing.assert_close(slope.float(), gradient.float(), rtol=near, atol=1e-7)


@pytest.mark.parametrize("n_features", [1, 37, 2500])
def test_take(kernels, draw, n_features):
    rows, index = draw(50, n_features), torch.tensor([3, 49, 3, 0], device=DEVICE)
    high, low, factor = draw(n_features), 1e-3 * draw(n_features), draw(n_features)
    found = kernels.take(rows, index, high, low, factor)
    torch.testing.assert_close(found, (rows[index] - high - low) * factor, rtol=1e-6, atol=1e-6)


def test_adam(kernels, draw):
    """Against torch's."""
    parameter = nn.Parameter(draw(3, 50, 21))
    theirs = torch.optim.Adam([parameter], lr=1e-2)
    own = parameter.detach().clone()
    copy = torch.empty_like(own, dtype=torch.bfloat16)
    adam = kernels.Adam(own, torch.zeros_like(own), torch.zeros_like(own), copy)
    pace, steps = pace_of(kernels), torch.zeros(3, device=DEVICE)
    for _ in range(7):
        parameter.grad = draw(3, 50, 21)
        gradient = parameter.grad.clone()
        theirs.step()
        kernels.count(steps, torch.tensor(1e-2, device=DEVICE), pace)
        kernels.move(gradient, adam, pace)
    assert steps.tolist() == [7.0] * 3
    torch.testing.assert_close(own, parameter.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(copy.float(), own, rtol=2**-7, atol=0)


@pytest.mark.parametrize("balanced", [True, False])
@pytest.mark.parametrize("shape", [(2, 33, 5, 3), (3, 256, 10, 10), (1, 7, 1, 2), (1, 128, 64, 4)])
def test_assign(kernels, draw, shape, balanced):
    """Value and gradient are those of autograd in float64, for the same noise."""
    R, B, K, d = shape
    codes, centers = draw(R, B, d), draw(R, K, d)
    noise = F.gumbel_noise(draw(R, B, K).cpu(), torch.Generator().manual_seed(1)).to(DEVICE)
    sigma, spread, weight, other = (draw(R).abs() + 0.5 for _ in range(4))
    sizes = draw(R, K).softmax(-1)
    found = kernels.assign(
        codes,
        centers,
        noise,
        torch.tensor(0.7, device=DEVICE),
        sigma=sigma,
        spread=spread,
        weight=weight,
        balance_weight=other if balanced else None,
        sizes=sizes,
    )
    z, mu = codes.double().requires_grad_(), centers.double().requires_grad_()
    distances = F.squared_distances(z, mu)
    distances = distances * (spread / z.var(-2, correction=0).sum(-1)).view(-1, 1, 1)
    log_probs = F.log_probs_from_distances(distances, sigma)
    assignment = F.concrete_assignment(log_probs, 0.7, noise=noise)
    clustering = F.loss_from_distances(distances, assignment, "mean")
    share = log_probs.exp().mean(-2)
    balance = (share * (share.log() - sizes.log())).sum(-1)
    loss = weight * clustering + (other * balance if balanced else 0.0)
    to_codes, to_centers = torch.autograd.grad(loss.sum(), (z, mu))
    close = {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(found.weighted, loss.detach().float(), **close)
    torch.testing.assert_close(found.clustering, clustering.detach().float(), **close)
    if balanced:
        torch.testing.assert_close(found.balance, balance.detach().float(), **close)
    torch.testing.assert_close(found.to_codes, to_codes.float(), **close)
    torch.testing.assert_close(found.to_centers, to_centers.float(), **close)


def trained(rows, *, plain, precision, joint, record, monkeypatch, batch_size=32):
    """State before and after some steps of the same training, and what it said."""
    with monkeypatch.context() as patched:
        if plain:
            patched.setattr("concrete_kmeans.fused._kernels", lambda: None)
        network = build_autoencoder(
            (300, 200, 4), "auto", rows.shape[1:], seeds=[0, 1], device=DEVICE
        )
        generators = [torch.Generator(DEVICE).manual_seed(seed) for seed in (0, 1)]
        objective = Reconstruction(network)
        if joint:
            ones = torch.ones(2, device=DEVICE)
            centers = network.encode(rows[:5]).detach()
            scales = Scales(ones, ones, ones, torch.full((2, 5), 0.2, device=DEVICE))
            objective = Concrete(
                network, centers, scales, form="scaled", sigma2=ones, weight=0.5, balance=0.3
            )
        first = [part.detach().clone() for part in objective.state()]
        settings = Settings(
            30,
            lambda _: 1e-3,
            temperature=lambda _: 0.7,
            precision=precision,
            record=record,
            check_every=7,
        )
        batches = Batches(rows, None, batch_size, generators)
        outcome = train(objective, batches, settings, generators)
        return first, [part.detach().clone() for part in objective.state()], outcome


@cuda_only
@pytest.mark.parametrize("record", [True, False])
@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
def test_training_is_the_same(draw, precision, joint, record, monkeypatch):
    """Thirty steps with these kernels, Adam beside the backward pass, and with torch's own.

    Adam moves a weight as far for a tiny gradient as for a large one, so that rounding shows in
    some, and a unit that rounding cuts at zero moves others: weights that differ by 3e-7 in the
    beginning are 1 % of the way apart in the end. The difference of all is set beside the way that
    all have gone; what is wrong shows as more than a twentieth of it. In lower precision it may
    be twice as far from torch's float32 as torch's own is.
    """
    rows = draw(320, 12)
    given = {"joint": joint, "monkeypatch": monkeypatch}
    first, fast, outcome = trained(rows, plain=False, precision=precision, record=record, **given)
    given |= {"plain": True, "record": False}
    _, plain, expected = trained(rows, precision=precision, **given)
    _, exact, _ = trained(rows, precision="float32", **given)
    for start, mine, theirs, best in zip(first, fast, plain, exact, strict=True):
        way = (best - start).norm()
        near = 0.05 * way + 2.0 * (theirs - best).norm()
        apart = (mine - best).norm()
        assert apart <= near, f"{apart / way:.2g} of the way, not {near / way:.2g}"
    for mine, theirs in zip(outcome.history, expected.history, strict=True):
        assert mine.step == theirs.step
        near = 2e-3 if precision == "float32" else 1e-2
        assert mine.losses["loss"] == pytest.approx(theirs.losses["loss"], rel=near)


@cuda_only
def test_hooks_are_gone_after_training(draw, monkeypatch):
    """A parameter that was trained may be trained by others."""
    given = {"precision": "float32", "joint": False, "record": True}
    trained(draw(320, 12), plain=False, **given, monkeypatch=monkeypatch)
    network = build_autoencoder((300, 300, 4), "auto", (12,), seeds=[0], device=DEVICE)
    objective = Reconstruction(network)
    step = training._Step(objective, Settings(1, lambda _: 1e-3), [])
    assert isinstance(step.optimizer, EarlyAdam)
    step.close()
    network(draw(4, 12)).sum().backward()
    assert all(p.grad is not None for p in network.parameters())


@cuda_only
@pytest.mark.parametrize("kind", ["tf32", "bfloat16"])
def test_rows_may_lie_anyhow(draw, kind):
    """Codes without gradients, of rows with gaps between their numbers."""
    network = build_autoencoder((300, 4), "auto", (12,), seeds=[0, 1], device=DEVICE)
    rows, matmul = draw(40, 24)[:, ::2], torch.backends.cuda.matmul
    before, matmul.allow_tf32 = matmul.allow_tf32, kind == "tf32"
    try:
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16, enabled=kind == "bfloat16"):
            codes, same = network.encode(rows), network.encode(rows.contiguous())
    finally:
        matmul.allow_tf32 = before
    expected = network.double().encode(rows.double())
    assert torch.equal(codes, same)
    assert (codes.double() - expected).norm() <= 2**-6 * expected.norm()


@cuda_only
def test_kernels_are_taken_on_cuda_alone(draw):
    assert fused.kernels_for(draw(3)) is not None
    assert fused.kernels_for(draw(3).double()) is None
    assert fused.kernels_for(draw(3), torch.zeros(3)) is None
