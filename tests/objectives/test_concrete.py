"""Deep concrete k-means: Eq. 5 to 8 as printed, and the form that knows no scale."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from concrete_kmeans import functional as F
from concrete_kmeans.data import Batch
from concrete_kmeans.objectives.concrete import Concrete, Scales, assign

TEMPERATURE = 0.7
SCALES = Scales(
    within=torch.tensor([0.8, 1.7], dtype=torch.float64),
    spread=torch.tensor([2.5, 4.0], dtype=torch.float64),
    reconstruction=torch.tensor([3.0, 5.0], dtype=torch.float64),
    sizes=torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.4, 0.4, 0.1, 0.1]], dtype=torch.float64),
)
SIGMA2 = torch.tensor([0.9, 1.4], dtype=torch.float64)


def concrete(problem, *, form="scaled", weight=1.3, balance=0.0, held=None, augment=None):
    return Concrete(
        problem.network,
        problem.centers,
        SCALES,
        form=form,
        sigma2=SIGMA2,
        weight=weight,
        balance=balance,
        held=held,
        augment=augment,
    )


def mean(values):
    return sum(values) / len(values)


def softmax(scores):
    top = max(s.item() for s in scores)
    weights = [(s - top).exp() for s in scores]
    return [w / sum(weights) for w in weights]


def probabilities(distances, sigma2):
    """Eq. 5."""
    return softmax([-d / sigma2 for d in distances])


def relaxed(p, noise, temperature):
    """Eq. 6."""
    return softmax([(q.log() + g) / temperature for q, g in zip(p, noise, strict=True)])


def spread_of(codes):
    """Total variance: mean squared distance from the mean."""
    middle = mean(codes)
    return mean([((z - middle) ** 2).sum() for z in codes])


def scaled_distances(plain, codes, r):
    """D_ij V0 / V, V with its gradient."""
    factor = SCALES.spread[r] / spread_of(codes)
    return [[d * factor for d in plain.distances(z)] for z in codes]


def straight_through(h, cost):
    """Value at the rounded sample; gradient by the relaxed one: dL/dh at the rounded, times dh."""
    j = max(range(len(h)), key=lambda j: h[j].item())
    return j, sum(c.detach() * own for c, own in zip(cost, h, strict=True))


def balance_of(probs, sizes):
    """KL divergence of the mean assignment from the sizes."""
    total = 0.0
    for j, size in enumerate(sizes):
        share = mean([p[j] for p in probs])
        total = total + share * (share / size).log()
    return total


def test_printed_form_equals_a_rewrite_of_the_equations(problem):
    objective = concrete(problem, form="paper")
    noise = problem.noise()

    def expected(plain, r):
        rows, terms, surrogates = problem.batch.rows[r], [], []
        for x, gumbel in zip(rows, noise[r], strict=True):
            z = plain.encode(x)
            h = relaxed(probabilities(plain.distances(z), SIGMA2[r]), gumbel, TEMPERATURE)
            j = max(range(len(h)), key=lambda j: h[j].item())
            error = z - plain.centers[j]  # z - h~ M
            term = (error**2).sum()  # Eq. 7
            # d|z - h M|^2 / dh_j = -2 (z - h M) . mu_j
            through = sum(
                (-2.0 * (error * mu).sum()).detach() * own
                for mu, own in zip(plain.centers, h, strict=True)
            )
            terms.append(term)
            surrogates.append(term + through)
        reconstruction = plain.reconstruction(rows)
        return (
            reconstruction + 1.3 * mean(terms),  # Eq. 8
            reconstruction + 1.3 * mean(surrogates),
        )

    problem.check(objective, expected, temperature=TEMPERATURE)


@pytest.mark.parametrize("balance", [0.0, 2.0])
def test_scaled_form_equals_a_rewrite(problem, balance):
    objective = concrete(problem, balance=balance)
    noise = problem.noise()

    def expected(plain, r):
        rows = problem.batch.rows[r]
        codes = [plain.encode(x) for x in rows]
        distances = scaled_distances(plain, codes, r)
        probs = [probabilities(d, SIGMA2[r]) for d in distances]
        terms, surrogates = [], []
        for d, p, gumbel in zip(distances, probs, noise[r], strict=True):
            j, through = straight_through(relaxed(p, gumbel, TEMPERATURE), d)
            terms.append(d[j])
            surrogates.append(d[j] + through)
        weight = 1.3 * SCALES.reconstruction[r] / SCALES.within[r]
        reconstruction = plain.reconstruction(rows)
        rest = reconstruction
        if balance:
            pull = balance * SCALES.within[r] * balance_of(probs, SCALES.sizes[r])
            rest = rest + weight * pull
        return rest + weight * mean(terms), rest + weight * mean(surrogates)

    problem.check(objective, expected, temperature=TEMPERATURE)


@pytest.mark.parametrize("form", ["paper", "scaled"])
def test_warm_up_equals_a_rewrite(problem, form):
    labels = torch.randint(4, (2, 11), generator=torch.Generator().manual_seed(1))
    objective = concrete(problem, form=form, held=labels)

    def expected(plain, r):
        rows = problem.batch.rows[r]
        codes = [plain.encode(x) for x in rows]
        distances = [plain.distances(z) for z in codes]
        if form == "scaled":
            distances = scaled_distances(plain, codes, r)
        terms = []
        for d, row in zip(distances, problem.batch.index[r].tolist(), strict=True):
            j = int(labels[r, row])
            surprise = -probabilities(d, SIGMA2[r])[j].log()
            terms.append(d[j] + 20.0 * SCALES.within[r] * surprise)
        weight = 1.3 * (SCALES.reconstruction[r] / SCALES.within[r] if form == "scaled" else 1.0)
        value = plain.reconstruction(rows) + weight * mean(terms)
        return value, value

    problem.check(objective, expected)


def test_an_augmented_row_is_assigned_where_the_row_itself_belongs(problem):
    def shifted(rows, generators):
        return rows + 1.5

    objective = concrete(problem, balance=0.5, augment=shifted)
    noise = problem.noise()

    def expected(plain, r):
        rows = problem.batch.rows[r]
        clean = scaled_distances(plain, [plain.encode(x) for x in rows], r)
        seen = scaled_distances(plain, [plain.encode(x + 1.5) for x in rows], r)
        probs = [probabilities(d, SIGMA2[r]) for d in clean]
        terms, surrogates = [], []
        for d, p, gumbel in zip(seen, probs, noise[r], strict=True):
            j, through = straight_through(relaxed(p, gumbel, TEMPERATURE), d)
            terms.append(d[j])
            surrogates.append(d[j] + through)
        weight = 1.3 * SCALES.reconstruction[r] / SCALES.within[r]
        pull = 0.5 * SCALES.within[r] * balance_of(probs, SCALES.sizes[r])
        rest = plain.reconstruction(rows + 1.5) + weight * pull
        return rest + weight * mean(terms), rest + weight * mean(surrogates)

    problem.check(objective, expected, temperature=TEMPERATURE)


@settings(deadline=None, max_examples=40)
@given(scale=st.floats(1e-4, 1e4), seed=st.integers(0, 10**6))
def test_the_scaled_form_does_not_see_the_scale_of_the_code(scale, seed):
    drawn = torch.Generator().manual_seed(seed)
    codes = torch.randn(2, 30, 3, generator=drawn, dtype=torch.float64)
    centers = torch.randn(2, 4, 3, generator=drawn, dtype=torch.float64)

    class Identity(torch.nn.Module):
        def encode(self, rows):
            return rows

        def decode(self, codes):
            return torch.zeros_like(codes)

        def points(self, codes):
            return codes

    def clustering(factor):
        objective = Concrete(
            Identity(),
            factor * centers,
            SCALES,
            form="scaled",
            sigma2=SIGMA2,
            weight=1.0,
            balance=1.0,
        )
        index = torch.arange(30).expand(2, -1)
        generators = [torch.Generator().manual_seed(r) for r in range(2)]
        found = objective.loss(Batch(factor * codes, None, index), 0.5, generators)
        return torch.stack([found["clustering"], found["balance"]])

    torch.testing.assert_close(clustering(scale), clustering(1.0), rtol=1e-9, atol=1e-12)


def test_a_smaller_code_lowers_the_printed_loss_and_not_the_scaled_one(problem):
    """The failure that the scaled form is for: the gradient along the scale of the code."""
    slopes = {}
    for form in ("paper", "scaled"):
        problem.network.encoder[-1].weight.grad = None
        objective = concrete(problem, form=form)
        parts = objective.loss(problem.batch, 1.0, problem.generators())
        (parts["loss"] - parts["reconstruction"]).sum().backward()
        last = problem.network.encoder[-1]
        moved = [(last.weight, last.weight.grad), (last.bias, last.bias.grad)]
        moved += [(objective.centers, objective.centers.grad)]
        slopes[form] = sum((p * g).sum().item() for p, g in moved)
        last.bias.grad = None
    assert slopes["paper"] > 0.1
    assert abs(slopes["scaled"]) < 1e-12


def test_a_cluster_without_rows_at_the_start_keeps_the_balance_finite(problem):
    objective = concrete(problem, balance=1.0)
    objective.scales = SCALES._replace(sizes=torch.eye(4, dtype=torch.float64)[:2])
    parts = objective.loss(problem.batch, 1.0, problem.generators())
    parts["loss"].sum().backward()
    assert parts["balance"].isfinite().all()
    assert (parts["balance"] > 0).all()
    assert all(p.grad.isfinite().all() for p in objective.parameters())


def test_codes_that_are_all_equal_give_finite_gradients(problem):
    problem.batch = problem.batch._replace(rows=torch.zeros_like(problem.batch.rows))
    objective = concrete(problem)
    objective.loss(problem.batch, 1.0, problem.generators())["loss"].sum().backward()
    assert all(p.grad.isfinite().all() for p in objective.parameters())


CUDA = pytest.param(
    "cuda",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
    ],
)


@pytest.mark.parametrize("device", ["cpu", CUDA])  # clusters lie elsewhere
@pytest.mark.parametrize("far", [0.0, 1e3])
@pytest.mark.parametrize("balanced", [True, False])
@pytest.mark.parametrize("shape", [(2, 33, 5, 3), (3, 256, 10, 10), (1, 7, 1, 2)])
def test_the_gradient_by_hand_is_that_of_autograd(shape, balanced, far, device):
    """Value and gradient of the clustering part, for the same noise."""
    (R, B, K, d), gen = shape, torch.Generator().manual_seed(0)

    def draw(*size):
        return torch.randn(*size, dtype=torch.float64, generator=gen)

    z, mu = (draw(R, n, d).add_(far).requires_grad_() for n in (B, K))
    noise = F.gumbel_noise(draw(R, B, K), gen)
    sigma, spread, weight, other = (draw(R).abs() + 0.5 for _ in range(4))
    sizes = draw(R, K).softmax(-1)
    given = {"sigma": sigma, "spread": spread, "weight": weight, "sizes": sizes}
    given["balance_weight"] = other if balanced else None
    there = {name: value if value is None else value.to(device) for name, value in given.items()}
    tensors = (tensor.detach().to(device) for tensor in (z, mu, noise))
    found = assign(*tensors, TEMPERATURE, **there)

    distances = F.squared_distances(z, mu)
    distances = distances * (spread / z.var(-2, correction=0).sum(-1)).view(-1, 1, 1)
    log_probs = F.log_probs_from_distances(distances, sigma)
    assignment = F.concrete_assignment(log_probs, TEMPERATURE, noise=noise)
    clustering = F.loss_from_distances(distances, assignment, "mean")
    share = log_probs.exp().mean(-2)
    balance = (share * (share.log() - sizes.log())).sum(-1) * balanced
    loss = weight * clustering + other * balance
    expected = loss, clustering, balance, *torch.autograd.grad(loss.sum(), (z, mu))
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine.cpu(), theirs.detach(), rtol=0, atol=1e-10)
