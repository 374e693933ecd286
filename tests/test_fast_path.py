"""The loop as it is shipped against the same training written plainly: the same weights."""

import itertools

import pytest
import torch
from torch import nn

from concrete_kmeans import training
from concrete_kmeans.data import Batches
from concrete_kmeans.networks import StackedLinear, build_autoencoder
from concrete_kmeans.objectives.concrete import Concrete, Scales

SEEDS, WIDTHS, D, K, N, BATCH, STEPS = (3, 4), (13, 9, 4), 11, 5, 400, 64, 20
RATE, SIGMA2, WEIGHT, BALANCE = 1e-3, 4.0, 2.0, 0.7


@pytest.fixture(scope="module")
def rows():
    return torch.randn(N, D, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def generators(seeds=SEEDS):
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def stacked():
    return build_autoencoder(WIDTHS, "auto", (D,), seeds=SEEDS, dtype=torch.float64)


def first_centers():
    drawn = torch.randn(len(SEEDS), K, WIDTHS[-1], generator=torch.Generator().manual_seed(1))
    return 0.3 * drawn.double()  # among the codes: no cluster is dead


def shipped(rows):
    """All restarts by :func:`training.train`."""
    network, one = stacked(), torch.ones(len(SEEDS), dtype=torch.float64)
    scales = Scales(one * 1.5, one * 3.0, one * 2.0, torch.full((len(SEEDS), K), 1 / K).double())
    objective = Concrete(
        network,
        first_centers(),
        scales,
        form="scaled",
        sigma2=one * SIGMA2,
        weight=WEIGHT,
        balance=BALANCE,
    )
    drawn = generators()
    settings = training.Settings(
        n_steps=STEPS,
        learning_rate=lambda _: RATE,
        temperature=lambda step: 1.0 / (1 + step),
        precision="float64",
        check_every=7,
    )
    training.train(objective, Batches(rows, None, BATCH, drawn), settings, drawn)
    return objective


def plain_network(network, restart, ends):
    """torch's own modules with the weights of one restart, without the units that were added."""
    layers = [m for m in network if isinstance(m, StackedLinear)]
    modules = []
    for layer, (n_in, n_out) in zip(layers, itertools.pairwise(ends), strict=True):
        linear = nn.Linear(n_in, n_out, dtype=torch.float64)
        linear.weight.data = layer.weight[restart, :n_in, :n_out].detach().T.clone()
        linear.bias.data = layer.bias[restart, 0, :n_out].detach().clone()
        modules += [linear, nn.ReLU()]
    return nn.Sequential(*modules[:-1])


def plain(rows, restart):
    """One restart as one would write it: Eq. 4 to 8, torch's layers and its Adam."""
    network = stacked()
    encoder = plain_network(network.encoder, restart, (D, *WIDTHS))
    decoder = plain_network(network.decoder, restart, (*WIDTHS[::-1], D))
    centers = nn.Parameter(first_centers()[restart].clone())
    parameters = [*encoder.parameters(), *decoder.parameters(), centers]
    optimizer = torch.optim.Adam(parameters, lr=RATE, foreach=False, fused=False)
    (generator,) = generators(SEEDS[restart : restart + 1])
    order, place = torch.empty(0), 0
    weight = WEIGHT * 2.0 / 1.5  # reconstruction over within
    for step in range(STEPS):
        if place + BATCH > len(order):
            order, place = torch.randperm(N, generator=generator), 0
        x = rows[order[place : place + BATCH]]
        place += BATCH
        z = encoder(x)
        spread = ((z - z.mean(0)) ** 2).sum(1).mean()
        distances = ((z[:, None] - centers[None]) ** 2).sum(-1) * 3.0 / spread
        log_p = torch.log_softmax(-distances / SIGMA2, -1)
        noise = torch.empty(BATCH, K, dtype=torch.float64).exponential_(generator=generator)
        soft = torch.softmax((log_p - noise.log()) * (1 + step), -1)
        hard = nn.functional.one_hot(soft.argmax(-1), K) - soft.detach() + soft
        share = log_p.exp().mean(0)
        loss = ((decoder(z) - x) ** 2).sum(1).mean() + weight * (hard * distances).sum(1).mean()
        loss = loss + weight * BALANCE * 1.5 * (share * (share * K).log()).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return encoder, decoder, centers


def test_twenty_steps_give_the_same_weights(rows):
    objective, network = shipped(rows), stacked()
    for restart in range(len(SEEDS)):
        encoder, decoder, centers = plain(rows, restart)
        torch.testing.assert_close(
            objective.centers[restart].detach(), centers.detach(), rtol=0, atol=1e-10
        )
        for ours, theirs, ends in (
            (objective.network.encoder, encoder, (D, *WIDTHS)),
            (objective.network.decoder, decoder, (*WIDTHS[::-1], D)),
        ):
            trained = plain_network(ours, restart, ends)
            for own, other in zip(trained.parameters(), theirs.parameters(), strict=True):
                torch.testing.assert_close(own, other, rtol=0, atol=1e-10)
    before, after = network.encoder[0].weight, objective.network.encoder[0].weight
    assert (before - after).abs().max() > 10 * RATE  # they did move
