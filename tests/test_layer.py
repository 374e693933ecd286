from __future__ import annotations

import copy
import io
import math
import os
import pickle
import subprocess
import sys

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from concrete_kmeans import ConcreteKMeansLayer
from concrete_kmeans import functional as F
from concrete_kmeans.layer import AUTO_SIGMA2, Clustering

FORMS = ["distance", "reconstruction"]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64).to(dtype)


def layer_of(centers, **options):
    with torch.random.fork_rng(devices=[]):  # the centres are drawn, and then replaced
        layer = ConcreteKMeansLayer(*centers.shape, dtype=centers.dtype, **options)
    with torch.no_grad():
        layer.centers.copy_(centers)
    return layer


def loss_by_loops(z, centers, labels):
    z, centers = z.detach(), centers.detach()
    return sum(
        float((row - centers[k]).square().sum()) for row, k in zip(z, labels.tolist(), strict=True)
    )


class TestForward:
    @pytest.mark.parametrize("gradient", FORMS)
    @pytest.mark.parametrize("training", [True, False])
    @pytest.mark.parametrize("reduction", ["sum", "mean"])
    def test_loss_is_that_of_the_labels(self, gradient, training, reduction):
        z, centers = normal(20, 3), normal(4, 3, seed=1)
        layer = layer_of(centers, gradient=gradient, reduction=reduction).train(training)
        loss, assignment, labels, distances = layer(z)
        expected = loss_by_loops(z, centers, labels) / (20 if reduction == "mean" else 1)
        assert loss.shape == ()
        assert loss.item() == pytest.approx(expected, rel=1e-12)
        assert torch.equal(assignment, torch.nn.functional.one_hot(labels, 4).double())
        explicit = (z[:, None] - centers).square().sum(-1)
        torch.testing.assert_close(distances, explicit)

    def test_fields(self):
        result = layer_of(normal(4, 3))(normal(5, 3))
        assert isinstance(result, Clustering)
        assert result._fields == ("loss", "assignment", "labels", "distances")

    def test_eval_takes_the_nearest_and_draws_nothing(self, untouched_random_state):
        z, centers = normal(30, 3), normal(4, 3, seed=1)
        layer = layer_of(centers).eval()
        nearest = (z[:, None] - centers).square().sum(-1).argmin(-1)
        assert torch.equal(layer(z).labels, nearest)
        assert torch.equal(layer(z).loss, layer(z).loss)

    def test_train_samples_from_the_probabilities(self):
        centers = normal(3, 2, seed=1)
        layer = layer_of(centers, sigma=1.5)
        row = torch.tensor([[0.1, -0.2]], dtype=torch.float64)
        n = 50_000
        labels = layer(row.expand(n, 2), generator=generator()).labels
        p = F.assignment_log_probs(row, centers, 1.5).exp().squeeze(0)
        share = labels.bincount(minlength=3) / n
        assert ((share - p).abs() < 5 * (p * (1 - p) / n).sqrt()).all()

    def test_the_generator_decides_and_the_global_state_does_not(self, untouched_random_state):
        layer = layer_of(torch.zeros(4, 3))
        z = normal(50, 3, dtype=torch.float32)
        first = layer(z, generator=generator(1)).labels
        assert torch.equal(first, layer(z, generator=generator(1)).labels)
        assert not torch.equal(first, layer(z, generator=generator(2)).labels)

    @pytest.mark.parametrize("training", [True, False])
    @pytest.mark.parametrize("leading", [(6,), (2, 3), (3, 1, 2)])
    def test_leading_axes_are_rows(self, leading, training):
        z = normal(6, 3)
        layer = layer_of(normal(4, 3, seed=1)).train(training)
        flat = layer(z, generator=generator())
        shaped = layer(z.reshape(*leading, 3), generator=generator())
        assert shaped.assignment.shape == shaped.distances.shape == (*leading, 4)
        assert shaped.labels.shape == leading
        for a, b in zip(flat, shaped, strict=True):
            assert torch.equal(a.flatten(), b.flatten())

    @pytest.mark.parametrize("scale", [1e-3, 1e3])
    def test_auto_sigma_is_free_of_scale(self, scale):
        z, centers = normal(200, 3), normal(5, 3, seed=1)
        labels = [layer_of(s * centers)(s * z, generator=generator(3)).labels for s in (1.0, scale)]
        nearest = layer_of(centers).eval()(z).labels
        assert torch.equal(*labels)
        assert not torch.equal(labels[0], nearest)  # so that the sampling was seen

    def test_auto_sigma_is_a_share_of_the_distance_to_the_nearest_centre(self):
        z, centers = normal(40, 3), normal(5, 3, seed=1)
        within = (z[:, None] - centers).square().sum(-1).amin(-1).mean()
        fixed = layer_of(centers, sigma=math.sqrt(AUTO_SIGMA2 * within))
        auto = layer_of(centers)
        for seed in range(5):
            a, b = (layer(z, generator=generator(seed)) for layer in (auto, fixed))
            assert torch.equal(a.labels, b.labels)
            # a scale, not a variable: no gradient goes through it
            gradients = [
                torch.autograd.grad(result.loss, layer.centers)[0]
                for result, layer in ((a, auto), (b, fixed))
            ]
            torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-9)

    @pytest.mark.parametrize("gradient", FORMS)
    def test_gradients_equal_those_of_the_functions(self, gradient):
        z, centers = normal(15, 3).requires_grad_(), normal(4, 3, seed=1)
        layer = layer_of(centers, sigma=0.8, temperature=0.5, gradient=gradient)
        found = torch.autograd.grad(layer(z, generator=generator()).loss, (z, layer.centers))
        log_probs = F.assignment_log_probs(z, layer.centers, 0.8)
        sample = F.concrete_assignment(log_probs, 0.5, generator=generator())
        loss = F.kmeans_loss(z, layer.centers, sample, gradient=gradient)
        expected = torch.autograd.grad(loss, (z, layer.centers))
        for a, b in zip(found, expected, strict=True):
            assert a.abs().max() > 0.0
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize("gradient", FORMS)
    def test_double_backward(self, gradient):
        layer = layer_of(normal(3, 2, seed=1), gradient=gradient).eval()
        z = normal(4, 2).requires_grad_()
        # The sample's own derivative is the relaxed one, not that of its value: finite differences
        # can check eval, where the assignment does not move.
        assert gradcheck(lambda z: layer(z).loss, (z,))
        assert gradgradcheck(lambda z: layer(z).loss, (z,))
        loss = layer.train()(z, generator=generator()).loss
        (first,) = torch.autograd.grad(loss, z, create_graph=True)
        second = torch.autograd.grad(first.square().sum(), (z, layer.centers))
        assert all(g.isfinite().all() and g.abs().max() > 0.0 for g in second)

    @pytest.mark.parametrize("gradient", FORMS)
    @pytest.mark.parametrize("temperature", [1.0, 1e-3])
    @pytest.mark.parametrize(
        ("z", "centers"),
        [
            (torch.full((7, 3), 2.3), torch.full((4, 3), 2.3)),  # all the same point
            (torch.full((7, 3), 1e4 / 3), torch.full((4, 3), 1e4 / 3)),
            (normal(7, 3, dtype=torch.float32), torch.full((4, 3), 0.1)),  # centres coincide
            (normal(4, 3, dtype=torch.float32), normal(4, 3, dtype=torch.float32)),  # row = centre
            (normal(7, 3, dtype=torch.float32), torch.zeros(1, 3)),  # K = 1
            (torch.ones(1, 3), normal(4, 3, dtype=torch.float32)),  # B = 1
            (torch.ones(1, 3), torch.ones(1, 3)),
            (torch.full((7, 3), 1e-25), torch.zeros(4, 3)),  # squares underflow
            (1e15 * normal(7, 3, dtype=torch.float32), torch.eye(3)),
        ],
    )
    def test_degenerate_input_stays_finite(self, z, centers, temperature, gradient):
        for training in (True, False):
            z = z.detach().clone().requires_grad_()
            layer = layer_of(centers, temperature=temperature, gradient=gradient).train(training)
            result = layer(z, generator=generator())
            result.loss.backward()
            for tensor in (result.loss, result.distances, z.grad, layer.centers.grad):
                assert tensor.isfinite().all()
            assert torch.equal(result.assignment.sum(-1), torch.ones(len(z)))


class TestPrecision:
    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
    def test_to_another_dtype(self, dtype):
        z = normal(20, 3, dtype=torch.float32)
        layer = layer_of(normal(4, 3, seed=1, dtype=torch.float32)).to(dtype)
        rows = z.to(dtype).requires_grad_()
        result = layer(rows, generator=generator())
        assert result.loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        result.loss.backward()
        assert layer.centers.grad.dtype == rows.grad.dtype == dtype
        assert layer.centers.grad.isfinite().all()
        expected = loss_by_loops(rows.detach().double(), layer.centers.double(), result.labels)
        assert result.loss.item() == pytest.approx(expected, rel=1e-4)

    def test_autocast(self):
        encoder = torch.nn.Linear(5, 3)
        layer = ConcreteKMeansLayer(4, 3)
        with torch.autocast("cpu", torch.bfloat16):
            z = encoder(normal(20, 5, dtype=torch.float32))
            result = layer(z)
        assert z.dtype == torch.bfloat16
        assert result.loss.dtype == result.distances.dtype == torch.float32
        result.loss.backward()
        for parameter in (*encoder.parameters(), *layer.parameters()):
            assert parameter.grad.isfinite().all()
            assert parameter.grad.abs().max() > 0.0

    @pytest.mark.gpu
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
    @pytest.mark.parametrize("gradient", FORMS)
    def test_cuda_agrees_with_the_cpu(self, gradient):
        z, centers = normal(200, 8, dtype=torch.float32), normal(5, 8, seed=1, dtype=torch.float32)
        results = []
        for device in ("cpu", "cuda"):
            layer = layer_of(centers, gradient=gradient).eval().to(device)
            rows = z.detach().to(device).requires_grad_()
            result = layer(rows)
            result.loss.backward()
            results.append(
                [t.cpu() for t in (result.loss, result.labels, rows.grad, layer.centers.grad)]
            )
        for cpu, cuda in zip(*results, strict=True):
            torch.testing.assert_close(cuda, cpu, rtol=1e-4, atol=1e-4)


class TestInitCenters:
    def test_centres_are_distinct_rows(self):
        z = normal(5, 10, 3, dtype=torch.float32)
        layer = ConcreteKMeansLayer(6, 3)
        assert layer.init_centers(z, generator=generator()) is layer
        equal = (layer.centers[:, None] == z.reshape(-1, 3)).all(-1)
        assert (equal.sum(-1) == 1).all()
        assert len(equal.nonzero()[:, 1].unique()) == 6

    def test_centres_spread_over_far_groups(self):
        groups = 100.0 * torch.eye(8)
        z = groups.repeat_interleave(20, 0) + normal(160, 8, dtype=torch.float32)
        for seed in range(5):
            layer = ConcreteKMeansLayer(8, 8).init_centers(z, generator=generator(seed)).eval()
            assert len(layer(groups).labels.unique()) == 8

    def test_the_generator_decides(self, untouched_random_state):
        z = normal(50, 3, dtype=torch.float32)
        layer = layer_of(torch.zeros(6, 3))
        drawn = [
            layer.init_centers(z, generator=generator(s)).centers.detach().clone()
            for s in (0, 0, 1)
        ]
        assert torch.equal(drawn[0], drawn[1])
        assert not torch.equal(drawn[0], drawn[2])

    def test_half_precision_and_gradient(self):
        layer = ConcreteKMeansLayer(3, 2, dtype=torch.float16)
        z = normal(9, 2, dtype=torch.float16).requires_grad_()
        layer.init_centers(z)
        assert layer.centers.dtype == torch.float16
        assert layer.centers.requires_grad
        assert layer.centers.is_leaf

    @pytest.mark.parametrize(
        ("z", "message"),
        [
            (torch.zeros(2, 3), "n_clusters=4 must be at most the 2 rows"),
            (torch.zeros(9, 2), r"z must be \(\.\.\., 3\), got \(9, 2\)"),
            (torch.full((9, 3), math.nan), "z must be finite"),
        ],
    )
    def test_errors(self, z, message):
        with pytest.raises(ValueError, match=message):
            ConcreteKMeansLayer(4, 3).init_centers(z)


class TestTemperature:
    @pytest.mark.parametrize("value", [0.5, 2, 1e-3])
    def test_set_like_a_number(self, value):
        layer = ConcreteKMeansLayer(4, 3)
        buffer = layer.temperature
        layer.temperature = value
        assert layer.temperature is buffer  # what compiled and captured graphs hold
        assert float(layer.temperature) == pytest.approx(value)
        layer.temperature.fill_(0.25)
        assert float(layer.temperature) == 0.25

    def test_it_shapes_the_gradient(self):
        gradients = []
        for temperature in (0.5, 2.0):
            layer = layer_of(normal(4, 3, seed=1), sigma=1.0)
            layer.temperature = temperature
            layer(normal(20, 3), generator=generator()).loss.backward()
            gradients.append(layer.centers.grad)
        assert not torch.allclose(*gradients)

    @pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, True])
    def test_invalid_values(self, value):
        layer = ConcreteKMeansLayer(4, 3)
        with pytest.raises(ValueError, match=f"temperature must be .* got {value!r}"):
            layer.temperature = value
        with pytest.raises(ValueError, match=f"temperature must be .* got {value!r}"):
            ConcreteKMeansLayer(4, 3, temperature=value)
        assert float(layer.temperature) == 1.0


class TestState:
    def test_state_dict_round_trip(self):
        layer = ConcreteKMeansLayer(4, 3, temperature=0.3)
        assert set(layer.state_dict()) == {"centers", "temperature"}
        file = io.BytesIO()
        torch.save(layer.state_dict(), file)
        file.seek(0)
        other = ConcreteKMeansLayer(4, 3)
        other.load_state_dict(torch.load(file, weights_only=True))
        assert torch.equal(other.centers, layer.centers)
        assert torch.equal(other.temperature, layer.temperature)

    @pytest.mark.parametrize("clone", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
    def test_copies_agree_and_are_independent(self, clone):
        layer = ConcreteKMeansLayer(4, 3, sigma=0.7, temperature=0.3, gradient="reconstruction")
        other = clone(layer)
        z = normal(9, 3, dtype=torch.float32)
        assert torch.equal(
            layer(z, generator=generator()).loss, other(z, generator=generator()).loss
        )
        assert repr(other) == repr(layer)
        other.temperature = 0.9
        assert float(layer.temperature) == pytest.approx(0.3)

    def test_repr_shows_the_options(self):
        shown = repr(ConcreteKMeansLayer(4, 3, sigma=0.7))
        assert "n_clusters=4, n_features=3, sigma=0.7, gradient='distance'" in shown

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"n_clusters": 0}, "n_clusters must be a whole number .* got 0"),
            ({"n_clusters": 2.0}, "n_clusters must be .* got 2.0"),
            ({"n_features": -1}, "n_features must be .* got -1"),
            ({"sigma": 0.0}, "sigma must be a positive finite number or 'auto', got 0.0"),
            ({"sigma": "big"}, "sigma must be .* got 'big'"),
            ({"gradient": "soft"}, "gradient must be one of 'distance', .* got 'soft'"),
            ({"reduction": "none"}, "reduction must be one of 'sum', 'mean', got 'none'"),
        ],
    )
    def test_bad_arguments_are_named(self, options, message):
        with pytest.raises(ValueError, match=message):
            ConcreteKMeansLayer(**{"n_clusters": 4, "n_features": 3, **options})

    @pytest.mark.parametrize("shape", [(3,), (5, 2), ()])
    def test_input_of_another_shape(self, shape):
        with pytest.raises(ValueError, match=r"z must be \(\.\.\., 3\), got \("):
            ConcreteKMeansLayer(4, 3)(torch.zeros(shape))

    def test_input_of_whole_numbers(self):
        with pytest.raises(TypeError, match=r"z must be floating point, got torch\.int64"):
            ConcreteKMeansLayer(4, 3)(torch.zeros(5, 3, dtype=torch.int64))


class TestTraining:
    @pytest.mark.parametrize("gradient", FORMS)
    def test_descent_finds_far_groups(self, gradient):
        groups = torch.tensor([[0.0, 0.0], [6.0, 0.0], [0.0, 6.0]])
        z = groups.repeat(60, 1) + 0.3 * normal(180, 2, dtype=torch.float32)
        layer = ConcreteKMeansLayer(3, 2, gradient=gradient, reduction="mean")
        layer.init_centers(z, generator=generator())
        optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
        noise = generator(1)
        for step in range(150):
            layer.temperature = 0.1 ** (step / 150)
            optimizer.zero_grad()
            layer(z, generator=noise).loss.backward()
            optimizer.step()
        result = layer.eval()(z)
        assert result.loss < 1.2 * 2 * 0.3**2
        assert (result.labels.view(60, 3) == result.labels[:3]).all()

    @pytest.mark.parametrize("training", [True, False])
    def test_compiles_to_one_graph(self, training):
        torch.compiler.reset()
        layer = ConcreteKMeansLayer(4, 3).train(training)
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        for temperature, B in ((1.0, 9), (0.5, 9), (0.2, 12)):
            layer.temperature = temperature
            z = normal(B, 3, dtype=torch.float32).requires_grad_()
            result = compiled(z)
            result.loss.backward()
            expected = loss_by_loops(z.detach(), layer.centers.detach(), result.labels)
            assert result.loss.item() == pytest.approx(expected, rel=1e-5)
            assert z.grad.isfinite().all()
        torch.compiler.reset()


TWO_RANKS = """
import copy, sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from concrete_kmeans import ConcreteKMeansLayer

class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.Linear(5, 3)
        self.clusters = ConcreteKMeansLayer(4, 3, reduction="mean")

    def forward(self, x, noise):
        return self.clusters(self.encoder(x), generator=noise)

folder, rank = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
torch.manual_seed(rank)  # ranks start apart; DistributedDataParallel copies rank 0
network = DistributedDataParallel(Network())
single = copy.deepcopy(network.module)
x = torch.randn(16, 5)
noise = torch.Generator().manual_seed(rank)
network(x, noise).loss.backward()
single(x, torch.Generator().manual_seed(rank)).loss.backward()
gradients = [[p.grad.clone() for p in m.parameters()] for m in (network, single)]
optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
for step in range(3):
    network.module.clusters.temperature = 0.5 ** step
    optimizer.zero_grad()
    network(x, noise).loss.backward()
    optimizer.step()
result = {"together": gradients[0], "alone": gradients[1], "state": network.module.state_dict()}
torch.save(result, f"{folder}/{rank}.pt")
dist.barrier()  # gloo may abort a rank that still works when the other one ends: 3 times in 20
dist.destroy_process_group()
"""


@pytest.mark.distributed
@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed")
def test_two_ranks_average_their_gradients_and_keep_their_centres_equal(tmp_path):
    script = tmp_path / "two_ranks.py"
    script.write_text(TWO_RANKS)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), str(tmp_path), str(rank)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for process in processes:
            _, errors = process.communicate(timeout=120)
            assert process.returncode == 0, errors
    finally:
        for process in processes:
            process.kill()
            process.wait()
    first, second = (torch.load(tmp_path / f"{r}.pt", weights_only=True) for r in range(2))
    rows = zip(first["together"], second["together"], first["alone"], second["alone"], strict=True)
    for a, b, own_a, own_b in rows:
        assert torch.equal(a, b)
        assert not torch.allclose(own_a, own_b)
        torch.testing.assert_close(a, (own_a + own_b) / 2)
    for name, value in first["state"].items():
        assert torch.equal(value, second["state"][name]), name
    assert float(first["state"]["clusters.temperature"]) == 0.25
