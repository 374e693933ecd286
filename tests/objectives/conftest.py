"""Two small autoencoders of float64, and each of them alone as written on paper."""

from __future__ import annotations

import pytest
import torch

from concrete_kmeans.data import Batch
from concrete_kmeans.networks import StackedLinear, build_autoencoder

N, D, CODE, K, R = 11, 6, 3, 4, 2


class Plain:
    """Restart r of a stack: its own leaves, one row at a time."""

    def __init__(self, network, centers, r):
        def layers(stack):
            found = [m for m in stack if isinstance(m, StackedLinear)]
            return [(_leaf(m.weight[r]), _leaf(m.bias[r, 0])) for m in found]

        self.encoder, self.decoder = layers(network.encoder), layers(network.decoder)
        self.centers = _leaf(centers[r])

    @property
    def weights(self):
        """In the order of the network's parameters."""
        return [p for layer in [*self.encoder, *self.decoder] for p in layer]

    def encode(self, row):
        return _through(self.encoder, row)

    def decode(self, code):
        return _through(self.decoder, code)

    def reconstruction(self, rows):
        """Eq. 4 over rows, divided by their number."""
        total = 0.0
        for x in rows:
            for out, value in zip(self.decode(self.encode(x)), x, strict=True):
                total = total + (value - out) ** 2
        return total / len(rows)

    def distances(self, code):
        """To each centre, by differences."""
        return [sum((a - b) ** 2 for a, b in zip(code, mu, strict=True)) for mu in self.centers]


def _leaf(tensor):
    return tensor.detach().clone().requires_grad_()


def _through(layers, row):
    for i, (weight, bias) in enumerate(layers):
        row = (row.unsqueeze(-1) * weight).sum(0) + bias
        if i < len(layers) - 1:
            row = torch.where(row > 0.0, row, 0.0)
    return row


class Problem:
    """Rows, a stack of networks, centres, and a batch of each restart's own."""

    def __init__(self):
        drawn = torch.Generator().manual_seed(0)
        self.network = build_autoencoder((5, CODE), "auto", (D,), seeds=[3, 4], dtype=torch.float64)
        with torch.no_grad():  # zero biases would hide a bias that is not learned
            for p in self.network.parameters():
                p += 0.1 * torch.randn(p.shape, generator=drawn, dtype=p.dtype)
        self.rows = torch.randn(N, D, generator=drawn, dtype=torch.float64)
        self.centers = torch.randn(R, K, CODE, generator=drawn, dtype=torch.float64)
        self.batch = self.batch_of(torch.tensor([[4, 0, 9, 2, 7], [1, 10, 3, 8, 5]]))

    def batch_of(self, index):
        return Batch(self.rows[index], None, index)

    def alone(self, objective):
        return [Plain(self.network, objective.centers, r) for r in range(R)]

    @staticmethod
    def generators(seed=5):
        return [torch.Generator().manual_seed(seed + r) for r in range(R)]

    def noise(self, seed=5):
        """Gumbel noise (B, K) that each restart is about to draw."""
        shape = self.batch.index.shape[1], K
        draws = [
            torch.empty(shape, dtype=torch.float64).exponential_(generator=g)
            for g in self.generators(seed)
        ]
        return [-draw.log() for draw in draws]

    def check(self, objective, expected, *, temperature=1.0, tol=1e-12):
        """Value and gradient of the objective's loss, restart by restart, against rewrites.

        ``expected`` maps a Plain and its number to (value, surrogate): the gradient of the
        surrogate is what the loss's should be.
        """
        for p in objective.parameters():
            p.grad = None
        parts = objective.loss(self.batch, temperature, self.generators())
        parts["loss"].sum().backward()
        with_centers = any(p is objective.centers for p in objective.parameters())
        for r, plain in enumerate(self.alone(objective)):
            value, surrogate = expected(plain, r)
            torch.testing.assert_close(parts["loss"][r], value, rtol=tol, atol=tol)
            surrogate.backward()
            leaves = plain.weights + ([plain.centers] if with_centers else [])
            stacked = [*self.network.parameters(), *([objective.centers] if with_centers else [])]
            for p, leaf in zip(stacked, leaves, strict=True):
                found = torch.zeros_like(leaf) if p.grad is None else p.grad[r].view_as(leaf)
                wanted = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
                torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-11)
        return parts


@pytest.fixture
def problem():
    return Problem()
