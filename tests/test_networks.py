from __future__ import annotations

import copy
import json
import math
import pickle
import random
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.decomposition import PCA
from torch import nn

from concrete_kmeans.networks import (
    Autoencoder,
    Principal,
    StackedLinear,
    StackedModule,
    _StackedLayers,
    build_autoencoder,
    default_widths,
    principal_components,
)

SEEDS = [3, 11, 7]


def normal(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def principal_of(n_features, size):
    return principal_components([normal(50, n_features, seed=5) + 2.0], size)


def linear_encoder():
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 5), nn.Tanh(), nn.Linear(5, 2))


def conv_encoder():
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 2))


def image_decoder():
    return nn.Sequential(nn.Linear(2, 36), nn.Unflatten(1, (1, 6, 6)))


def norm_encoder():
    return nn.Sequential(
        nn.Flatten(), nn.BatchNorm1d(36), nn.Linear(36, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)
    )


def dropout_encoder():
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(36, 2))


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(36, 2)

    def forward(self, rows):
        out = self.linear(rows.flatten(1))
        return out if out.sum() > 0 else -out


class Counting(nn.Module):
    """Sets its buffer anew instead of updating it in place."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(36, 2)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, rows):
        self.count = self.count + 1.0
        return self.linear(rows.flatten(1))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(36, 36, bias=False)
        self.second = nn.Linear(36, 36, bias=False)
        self.second.weight = self.first.weight
        self.last = nn.Linear(36, 2)

    def forward(self, rows):
        return self.last(self.second(self.first(rows.flatten(1)).tanh()))


class Noisy(nn.Module):
    draws_in_training = True

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(36, 2)

    def forward(self, rows):
        out = self.linear(rows.flatten(1))
        return out + torch.randn_like(out) if self.training else out


KINDS = {
    "widths": ((8, 3), "auto", (36,)),
    "linear": ((3,), (), (36,)),
    "mlp": ("mlp", "auto", (36,)),
    "residual": ("residual", "auto", (36,)),
    "residual, widths": ("residual", (6, 4), (6, 6)),
    "conv": ("conv", "auto", (1, 6, 6)),
    "conv, widths": ("conv", (6,), (6, 6)),
    "factory": (linear_encoder, "auto", (1, 6, 6)),
    "factories": (conv_encoder, image_decoder, (1, 6, 6)),
    "norm": (norm_encoder, (7,), (1, 6, 6)),
    "tied": (Tied, "auto", (36,)),
}


def build(kind, seeds=SEEDS, **options):
    encoder, decoder, shape = KINDS[kind]
    options = {"dtype": torch.float64, "n_rows": 50} | options
    if encoder == "residual":
        options["principal"] = principal_of(36, 4)
    return build_autoencoder(encoder, decoder, shape, seeds=seeds, **options)


def grads(autoencoder, rows):
    for p in autoencoder.parameters():
        p.grad = None
    codes = autoencoder.encode(rows)
    loss = (autoencoder.decode(codes) - rows).square().sum() + codes.square().sum()
    loss.backward()
    return {name: p.grad for name, p in autoencoder.named_parameters()}


@pytest.fixture
def untouched_python_random():
    state = random.getstate()
    yield
    assert random.getstate() == state


class TestStack:
    @pytest.mark.parametrize("stacking", ["vmap", "loop"])
    @pytest.mark.parametrize("kind", KINDS)
    def test_equals_single_runs(self, kind, stacking):
        rows = normal(3, 5, 36)
        stack = build(kind, stacking=stacking)
        own = grads(stack, rows)
        codes = stack.encode(rows)
        out = stack.decode(codes)
        assert codes.shape == (3, 5, stack.code_size)
        assert out.shape == (3, 5, 36)
        for r, seed in enumerate(SEEDS):
            single = build(kind, [seed], stacking=stacking)
            own_single = grads(single, rows[r : r + 1])
            z = single.encode(rows[r])
            torch.testing.assert_close(codes[r], z[0], rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(out[r], single.decode(z)[0], rtol=1e-12, atol=1e-12)
            assert own.keys() == own_single.keys()
            for name, grad in own.items():
                torch.testing.assert_close(grad[r], own_single[name][0], rtol=1e-10, atol=1e-10)

    @pytest.mark.parametrize("stacking", ["vmap", "loop"])
    @pytest.mark.parametrize("kind", KINDS)
    def test_shared_rows_are_rows_for_each(self, kind, stacking):
        rows = normal(5, 36)
        stack = build(kind, stacking=stacking)
        torch.testing.assert_close(
            stack.encode(rows), stack.encode(rows.expand(3, 5, 36)), rtol=1e-12, atol=1e-12
        )
        shared, given_ = grads(stack, rows), grads(stack, rows.expand(3, 5, 36))
        for name in shared:
            torch.testing.assert_close(shared[name], given_[name], rtol=1e-10, atol=1e-10)

    @pytest.mark.parametrize("kind", ["conv", "factory", "factories", "norm", "tied"])
    def test_vmap_equals_loop(self, kind):
        a, b = build(kind, stacking="vmap"), build(kind, stacking="loop")
        rows = normal(3, 5, 36)
        for (name, x), y in zip(grads(a, rows).items(), grads(b, rows).values(), strict=True):
            torch.testing.assert_close(x, y, rtol=1e-10, atol=1e-10, msg=name)
        torch.testing.assert_close(a(rows), b(rows), rtol=1e-12, atol=1e-12)
        for key, value in a.state_dict().items():
            torch.testing.assert_close(value, b.state_dict()[key], rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize("kind", KINDS)
    def test_weights_depend_on_the_seed_alone(self, kind):
        stack = build(kind).state_dict()
        for r, seed in enumerate(SEEDS):
            for key, value in build(kind, [seed]).state_dict().items():
                assert torch.equal(stack[key][r], value[0]), key

    @pytest.mark.parametrize("kind", KINDS)
    def test_every_entry_has_the_restarts_first(self, kind):
        stack = build(kind)
        assert all(len(value) == 3 for value in stack.state_dict().values())
        assert all(p.is_leaf and p.is_contiguous() for p in stack.parameters())

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_step_moves_every_parameter(self, kind):
        stack = build(kind, n_rows=2000, code_size=None)
        moved = {name: g.abs().sum() > 0 for name, g in grads(stack, normal(3, 9, 36)).items()}
        # Behind a last layer of zeros there is no gradient yet.
        behind = "network" if "residual" in kind else "none"
        assert all(m for name, m in moved.items() if behind not in name), moved

    @pytest.mark.parametrize("kind", KINDS)
    def test_the_batch_may_be_empty_in_eval(self, kind):
        assert build(kind).eval()(normal(0, 36)).shape == (3, 0, 36)

    def test_modules_without_parameters(self):
        for stacking in ("vmap", "loop"):
            stack = build_autoencoder(
                nn.Flatten(), nn.Identity(), (2, 3), seeds=[0, 1], stacking=stacking
            )
            rows = normal(4, 6, dtype=torch.float32)
            assert torch.equal(stack(rows), rows.expand(2, 4, 6))
            assert stack.select([1])(rows).shape == (1, 4, 6)


class TestBuiltIn:
    @pytest.mark.parametrize(
        ("shape", "stages"),
        [
            ((1, 28, 28), 3),
            ((3, 9, 13), 2),
            ((2, 4, 30), 1),
            ((7, 5), 1),
            ((8, 8), 2),
            ((64,), 2),
            ((75,), 1),
            ((784,), 3),
            ((3, 31, 32), 3),
        ],
    )
    @pytest.mark.parametrize("stacking", ["vmap", "loop"])
    def test_images_of_any_size(self, shape, stages, stacking):
        stack = build_autoencoder(
            "conv", "auto", shape, seeds=[0, 1], code_size=3, stacking=stacking
        )
        rows = normal(2, math.prod(shape), dtype=torch.float32)
        codes = stack.encode(rows)
        assert codes.shape == (2, 2, 3)
        out = stack.decode(codes)
        assert out.shape == (2, *rows.shape)
        out.sum().backward()
        assert sum(isinstance(m, nn.Conv2d) for m in stack.encoder.template) == stages

    def test_mlp_is_a_plain_network(self):
        stack = build("widths")
        rows = normal(3, 5, 36)
        for r in range(3):
            plain = nn.Sequential(
                *(m for w in [(36, 8), (8, 3)] for m in (nn.Linear(*w), nn.ReLU()))
            )[:-1].double()
            for i in (0, 2):
                plain[i].weight.data = stack.encoder[i // 2].weight[r].T
                plain[i].bias.data = stack.encoder[i // 2].bias[r, 0]
            torch.testing.assert_close(stack.encode(rows)[r], plain(rows[r]))

    @given(
        st.lists(st.integers(1, 40), min_size=1, max_size=4),
        st.integers(1, 30),
        st.integers(0, 2**63 - 1),
    )
    @settings(max_examples=25, deadline=None)
    def test_glorot(self, widths, n_features, seed):
        stack = build_autoencoder(widths, "auto", (n_features,), seeds=[seed, 0])
        layers = [m for m in stack.modules() if isinstance(m, StackedLinear)]
        ends = [n_features, *widths, *widths[-2::-1], n_features]
        for layer, (n_in, n_out) in zip(layers, pairwise(ends), strict=True):
            drawn = layer.weight[:, :n_in, :n_out]
            assert 0 < drawn.abs().max() <= math.sqrt(6 / (n_in + n_out)) * 1.0001
            assert drawn.count_nonzero() == layer.weight.count_nonzero()
            assert not layer.bias.any()

    def test_hidden_layers_are_multiples_of_8_units_and_what_is_added_stays_zero(self):
        stack = build_autoencoder((13, 5, 2), "auto", (6,), seeds=[0, 1])
        shapes = [tuple(m.weight.shape[1:]) for m in (*stack.encoder, *stack.decoder)]
        assert shapes == [(6, 16), (16, 8), (8, 2), (2, 8), (8, 16), (16, 6)]
        rows = torch.randn(2, 30, 6, generator=torch.Generator().manual_seed(0))
        optimizer = torch.optim.Adam(stack.parameters(), lr=0.01)
        for _ in range(20):
            optimizer.zero_grad()
            (stack(rows) - rows).square().mean().backward()
            optimizer.step()
        first, second = stack.encoder[:2]
        assert first.weight[..., :13].all()
        assert not first.weight[..., 13:].any()
        assert not first.bias[..., 13:].any()
        assert not second.weight[:, 13:].any()
        assert not second.weight[..., 5:].any()

    def test_glorot_spreads_over_its_range(self):
        for kind in ("widths", "conv"):
            parameters = build(kind).encoder.named_parameters()
            weight = next(p for name, p in parameters if name.endswith("weight"))  # (R, a, b, ...)
            fans = sum(weight.shape[1:3]) * math.prod(weight.shape[3:])
            assert weight.std().item() == pytest.approx(math.sqrt(2 / fans), rel=0.1)

    def test_weights_do_not_depend_on_the_dtype(self):
        for kind in ("widths", "conv", "residual"):
            single, double = build(kind, dtype=torch.float32), build(kind)
            for a, b in zip(single.parameters(), double.parameters(), strict=True):
                assert a.dtype == torch.float32
                assert torch.equal(a, b.float())

    def test_default_widths(self):
        assert default_widths(784, 70_000) == (500, 500, 10)
        assert default_widths(4) == (500, 500, 4)
        assert default_widths(4, 10) == (50, 50, 4)
        assert build_autoencoder("mlp", "auto", (9,), seeds=[0], code_size=2).code_size == 2

    @pytest.mark.parametrize("encoder", ["mlp", "conv"])
    def test_code_size(self, encoder):
        stack = build_autoencoder(encoder, "auto", (36,), seeds=[0])
        assert stack.code_size == 10
        assert build_autoencoder(encoder, "auto", (36,), seeds=[0], code_size=40).code_size == 40

    def test_global_random_state(self, untouched_random_state, untouched_python_random):
        for kind in KINDS:
            for stacking in ("vmap", "loop"):
                stack = build(kind, stacking=stacking)
                grads(stack, normal(3, 5, 36))
                stack.select([0])
                copy.deepcopy(stack)


class TestPrincipal:
    @pytest.mark.parametrize("offset", [0.0, 1e6])
    @pytest.mark.parametrize("cuts", [[200], [1, 2, 197], [0, 60, 70, 70], [66, 67, 0, 67]])
    def test_equals_sklearn(self, offset, cuts):
        rows = (normal(200, 6) * torch.arange(1.0, 7.0)) @ normal(6, 6, seed=1) + offset
        rows = rows[rows[:, 0].argsort()]  # chunks with means of their own
        mean, components = principal_components(rows.split(cuts), 3)
        pca = PCA(3, svd_solver="full").fit(rows.numpy())
        signs = np.sign((pca.components_ * components.T.numpy()).sum(1, keepdims=True))
        np.testing.assert_allclose(mean, pca.mean_, rtol=1e-14, atol=1e-12)
        np.testing.assert_allclose(components.T.numpy() * signs, pca.components_, atol=1e-8)
        largest = components.abs().argmax(0)
        assert (components[largest, torch.arange(3)] > 0).all()

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
    def test_residual_starts_as_pca(self, dtype):
        rows = normal(80, 36) @ normal(36, 36, seed=1) + 30.0
        pca = PCA(4, svd_solver="full").fit(rows.numpy())
        principal = principal_components(rows.split(33), 4)
        stack = build_autoencoder(
            "residual", "auto", (36,), seeds=SEEDS, principal=principal, dtype=dtype
        )
        signs = np.sign((pca.components_ * principal.components.T.numpy()).sum(1))
        atol = 1e-9 if dtype == torch.float64 else 1e-3
        codes = stack.encode(rows.to(dtype))
        back = stack.decode(codes)
        expected = pca.transform(rows.numpy()) * signs
        for r in range(3):
            np.testing.assert_allclose(codes[r].detach(), expected, atol=atol)
            np.testing.assert_allclose(
                back[r].detach(), pca.inverse_transform(expected * signs), atol=atol
            )

    def test_residual_learns_past_pca(self):
        stack = build("residual")
        rows = normal(3, 40, 36).square()
        before = (stack(rows) - rows).square().mean((1, 2)).detach()
        for _ in range(20):
            (stack(rows) - rows).square().mean().backward()
            with torch.no_grad():
                for p in stack.parameters():
                    p -= 0.1 * p.grad
                    p.grad = None
        assert ((stack(rows) - rows).square().mean((1, 2)) < before).all()
        assert stack.encoder.network[-1].weight.any()

    @pytest.mark.parametrize(
        ("chunks", "n_components", "match"),
        [
            ([], 1, "chunks must hold at least one row"),
            ([torch.zeros(0, 3)], 1, "chunks must hold at least one row"),
            ([torch.zeros(3)], 1, r"chunks must be \(B, D\), got one of \(3,\)"),
            ([torch.zeros(2, 3), torch.zeros(2, 4)], 1, r"chunks must be \(B, 3\)"),
            ([torch.zeros(2, 3)], 4, "n_components must be at most D = 3, got 4"),
            ([torch.zeros(2, 3)], 0, "n_components"),
            ([torch.full((2, 3), torch.nan)], 1, "finite"),
        ],
    )
    def test_errors(self, chunks, n_components, match):
        with pytest.raises(ValueError, match=match):
            principal_components(chunks, n_components)


class TestUserModules:
    @pytest.mark.parametrize("stacking", ["vmap", "loop"])
    def test_batch_norm_trains_as_alone(self, stacking):
        plains = []
        for seed in SEEDS:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                plains.append(norm_encoder().double())
        stack = build_autoencoder(
            norm_encoder, "auto", (36,), seeds=SEEDS, stacking=stacking, dtype=torch.float64
        )
        for step in range(3):
            rows = normal(3, 6, 36, seed=step)
            codes = stack.encode(rows)
            for r, plain in enumerate(plains):
                torch.testing.assert_close(codes[r], plain(rows[r]), rtol=1e-12, atol=1e-12)
        state = stack.encoder.stack.state_dict()
        for r, plain in enumerate(plains):
            for name, value in plain.state_dict().items():
                torch.testing.assert_close(state[name.replace(".", "/")][r], value)
        assert state["1/num_batches_tracked"].tolist() == [3, 3, 3]
        stack.eval()
        before = copy.deepcopy(stack.state_dict())
        rows = normal(5, 36)
        for r, plain in enumerate(plains):
            torch.testing.assert_close(stack.encode(rows)[r], plain.eval()(rows))
        assert all(torch.equal(before[key], value) for key, value in stack.state_dict().items())

    @pytest.mark.parametrize("factory", [dropout_encoder, Noisy])
    def test_dropout_has_seeds_of_its_own(self, factory, untouched_random_state):
        def stack_of(seeds):
            return build_autoencoder(
                factory, "auto", (36,), seeds=seeds, stacking="loop", dtype=torch.float64
            )

        stack, rows = stack_of(SEEDS), normal(5, 36)
        first, second = stack.encode(rows), stack.encode(rows)
        assert not torch.equal(first, second)
        again, alone = stack_of(SEEDS), stack_of(SEEDS[1:2])
        for expected in (first, second):
            assert torch.equal(again.encode(rows), expected)
            torch.testing.assert_close(alone.encode(rows)[0], expected[1], rtol=1e-12, atol=1e-12)
        # A state that was saved draws on where it stopped, and so does a selection.
        resumed = stack_of([0, 0, 0])
        resumed.load_state_dict(again.state_dict())
        third = stack.encode(rows)
        assert torch.equal(resumed.encode(rows), third)
        assert torch.equal(again.select([2]).encode(rows)[0], third[2])
        stack.eval()
        assert torch.equal(stack.encode(rows), stack.encode(rows))
        assert stack.encoder.passes.tolist() == [3, 3, 3]

    def test_encoder_and_decoder_drop_apart(self):
        stack = build_autoencoder(
            nn.Dropout(), nn.Dropout(), (64,), seeds=[0], stacking="loop", dtype=torch.float64
        )
        ones = torch.ones(1, 64, dtype=torch.float64)
        assert not torch.equal(stack.encode(ones), stack.decode(ones[None]))

    @pytest.mark.parametrize("factory", [dropout_encoder, Branching, Counting, Noisy])
    def test_vmap_says_what_it_cannot_run(self, factory):
        stack = build_autoencoder(factory, "auto", (36,), seeds=SEEDS)
        name = type(factory()).__name__
        with pytest.raises(RuntimeError, match=f"cannot run {name}; stacking='loop' runs it"):
            stack.encode(normal(3, 5, 36, dtype=torch.float32))
        loop = build_autoencoder(factory, "auto", (36,), seeds=SEEDS, stacking="loop")
        assert loop.encode(normal(3, 5, 36, dtype=torch.float32)).shape == (3, 5, 2)

    def test_other_errors_stay_as_they_are(self):
        class Failing(nn.Linear):
            def forward(self, rows):
                if len(rows) > 2:
                    raise RuntimeError("a fault of my own")
                return super().forward(rows)

        stack = build_autoencoder(lambda: Failing(3, 2), "auto", (3,), seeds=[0])
        with pytest.raises(RuntimeError, match=r"^a fault of my own$"):
            stack.encode(torch.zeros(3, 3))

    def test_buffers_set_anew_are_kept(self):
        stack = build_autoencoder(Counting, "auto", (36,), seeds=SEEDS, stacking="loop")
        for _ in range(2):
            stack.encode(normal(3, 5, 36, dtype=torch.float32))
        assert stack.encoder.stack.count.tolist() == [2.0, 2.0, 2.0]

    def test_tied_and_frozen_parameters(self):
        module = Tied()
        module.last.bias.requires_grad_(False)
        stack = build_autoencoder(module, "auto", (36,), seeds=SEEDS)
        names = [name for name, _ in stack.encoder.stack.named_parameters()]
        assert names == ["first/weight", "last/weight", "last/bias"]
        assert [p.requires_grad for p in stack.encoder.parameters()] == [True, True, False]
        rows = normal(5, 36, dtype=torch.float32)
        torch.testing.assert_close(stack.encode(rows)[1], module(rows))

    @pytest.mark.parametrize("stacking", ["vmap", "loop"])
    def test_an_instance_is_copied_and_left_alone(self, stacking):
        encoder, decoder = norm_encoder().eval(), image_decoder()
        encoder[1].train()
        modes = [m.training for m in encoder.modules()]
        states = copy.deepcopy([encoder.state_dict(), decoder.state_dict()])
        stack = build_autoencoder(encoder, decoder, (1, 6, 6), seeds=SEEDS, stacking=stacking)
        for key, value in encoder.state_dict().items():
            own = stack.encoder.stack.state_dict()[key.replace(".", "/")]
            assert all(torch.equal(part, value) for part in own)
        grads(stack, normal(3, 5, 36, dtype=torch.float32))
        with torch.no_grad():
            for p in stack.parameters():
                p.add_(1.0)
        stack.train().eval()
        for module, state in zip((encoder, decoder), states, strict=True):
            assert all(torch.equal(state[k], v) for k, v in module.state_dict().items())
            assert all(p.grad is None and p.requires_grad for p in module.parameters())
        assert [m.training for m in encoder.modules()] == modes

    def test_factories_are_seeded_as_by_hand(self, untouched_random_state):
        stack = build("factories", [4, 5, 4])
        codes = stack.encode(normal(2, 36))
        for p in stack.parameters():
            assert torch.equal(p[0], p[2])
            assert not torch.equal(p[0], p[1])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            encoder, decoder = conv_encoder().double(), image_decoder().double()
        z = encoder(normal(2, 36).view(2, 1, 6, 6))
        torch.testing.assert_close(codes[1], z)
        torch.testing.assert_close(stack.decode(codes)[1], decoder(z).flatten(1))

    def test_the_template_is_not_registered(self):
        stack = build("norm")
        assert [name for name, _ in stack.encoder.named_children()] == ["stack"]
        assert all(p.device.type == "meta" for p in stack.encoder.template.parameters())
        assert not any("template" in key for key in stack.state_dict())
        for mode in (False, True):
            stack.train(mode)
            assert all(m.training == mode for m in stack.encoder.template.modules())
        assert "Sequential" in repr(stack.encoder)


class TestState:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize(
        "restarts", [[2, 0], slice(1, None), torch.tensor([True, False, True]), [-1], (1,)]
    )
    def test_select(self, kind, restarts):
        stack = build(kind).eval()
        rows = normal(5, 36)
        index = torch.arange(3)[restarts if not isinstance(restarts, tuple) else list(restarts)]
        chosen = stack.select(restarts)
        assert isinstance(chosen, Autoencoder)
        assert (chosen.n_restarts, chosen.training) == (len(index), False)
        expected = stack(rows)[index].detach()
        torch.testing.assert_close(chosen(rows), expected, rtol=1e-12, atol=1e-12)
        with torch.no_grad():
            for p in stack.parameters():
                p.zero_()
        torch.testing.assert_close(chosen(rows), expected, rtol=1e-12, atol=1e-12)
        assert all(p.requires_grad and p.is_leaf for p in chosen.parameters())

    @pytest.mark.parametrize("restarts", [[], slice(3, None), torch.tensor(1)])
    def test_select_errors(self, restarts):
        with pytest.raises(ValueError, match="restarts must name at least one restart"):
            build("widths").select(restarts)

    def test_select_out_of_range(self):
        with pytest.raises(IndexError):
            build("widths").select([3])

    @pytest.mark.parametrize("stacking", ["vmap", "loop"])
    @pytest.mark.parametrize("kind", KINDS)
    def test_state_dict_round_trip(self, kind, stacking):
        stack, other = build(kind, stacking=stacking), build(kind, [7, 8, 9], stacking="loop")
        rows = normal(5, 36)
        stack(rows)
        other.load_state_dict(stack.state_dict())
        torch.testing.assert_close(stack.eval()(rows), other.eval()(rows), rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize("kind", KINDS)
    def test_copies(self, kind):
        stack, rows = build(kind).eval(), normal(5, 36)
        for other in (copy.deepcopy(stack), pickle.loads(pickle.dumps(stack))):
            assert torch.equal(stack(rows), other(rows))
            assert other.description() == stack.description()
            assert not {p.data_ptr() for p in other.parameters()} & {
                p.data_ptr() for p in stack.parameters()
            }

    @pytest.mark.parametrize("kind", [k for k in KINDS if not callable(KINDS[k][0])])
    def test_description_rebuilds(self, kind):
        stack = build(kind)
        description = json.loads(json.dumps(stack.description()))
        zeros = Principal(torch.zeros(36), torch.zeros(36, 4))
        principal = zeros if description["encoder"] == "residual" else None
        other = build_autoencoder(
            **description, seeds=[0, 1, 2], principal=principal, dtype=torch.float64
        )
        other.load_state_dict(stack.state_dict())
        assert torch.equal(stack(normal(5, 36)), other(normal(5, 36)))
        assert other.description() == stack.description()

    def test_description_names_a_user_module(self):
        assert build("factories").description()["encoder"] == "Sequential"

    def test_moves(self):
        stack = build("norm").to(torch.float32)
        assert stack(normal(5, 36, dtype=torch.float32)).dtype == torch.float32
        assert stack.encoder.stack.get_buffer("1/num_batches_tracked").dtype == torch.int64


def sized(*shape):
    return lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(36, math.prod(shape)), nn.Unflatten(1, shape)
    )


class Two(nn.Module):
    def forward(self, rows):
        return rows, rows


class TestErrors:
    @pytest.mark.parametrize(
        ("encoder", "decoder", "shape", "options", "error", "match"),
        [
            ("vae", "auto", (9,), {}, ValueError, "encoder must be one of 'mlp', .* got 'vae'"),
            (3, "auto", (9,), {}, TypeError, "encoder must be a sequence .* got 3"),
            ((), "auto", (9,), {}, ValueError, "encoder must hold at least 1 number"),
            ((5, 0), "auto", (9,), {}, ValueError, r"encoder\[1\] must be a whole number"),
            ((5, 2), "mlp", (9,), {}, ValueError, "decoder must be one of 'auto', got 'mlp'"),
            ((5, 2), None, (9,), {}, TypeError, "decoder must be a sequence .* got None"),
            ((5, 2), (2.5,), (9,), {}, ValueError, r"decoder\[0\]"),
            ((5, 2), "auto", 9, {}, TypeError, "feature_shape must be a sequence .* got 9"),
            ((5, 2), "auto", (), {}, ValueError, "feature_shape must hold at least 1"),
            ((5, 2), "auto", (9,), {"code_size": 3}, ValueError, "code_size must be None or 2"),
            ("mlp", "auto", (9,), {"code_size": 0}, ValueError, "code_size must be"),
            ("mlp", "auto", (9,), {"n_rows": 0}, ValueError, "n_rows must be"),
            ("mlp", "auto", (9,), {"seeds": []}, ValueError, "seeds must be"),
            ("mlp", "auto", (9,), {"seeds": 3}, TypeError, "seeds must be"),
            ("mlp", "auto", (9,), {"seeds": [-1]}, ValueError, "seeds must be"),
            ("mlp", "auto", (9,), {"seeds": [0.5]}, ValueError, "seeds must be"),
            ("mlp", "auto", (9,), {"seeds": [2**63]}, ValueError, "seeds must be"),
            ("mlp", "auto", (9,), {"stacking": "map"}, ValueError, "stacking must be"),
            ("mlp", "auto", (9,), {"dtype": torch.int64}, ValueError, "dtype must be"),
            ("residual", "auto", (9,), {}, ValueError, "needs principal"),
            (
                "residual",
                "auto",
                (9,),
                {"principal": Principal(torch.zeros(9), torch.zeros(8, 2))},
                ValueError,
                r"principal must be mean \(9,\) and components \(9, d\)",
            ),
            (
                "residual",
                "auto",
                (9,),
                {"principal": Principal(torch.zeros(9), torch.zeros(9, 2)), "code_size": 3},
                ValueError,
                "code_size must be None or 2",
            ),
            ("conv", "auto", (37,), {}, ValueError, r"pass X as \(n, channels, height, width\)"),
            ("conv", "auto", (9,), {}, ValueError, "at least 4 x 4"),
            ("conv", "auto", (1, 3, 9), {}, ValueError, "at least 4 x 4"),
            ("conv", "auto", (1, 2, 9, 9), {}, ValueError, r"got rows of shape \(1, 2, 9, 9\)"),
            (sized(3, 2), "auto", (36,), {}, ValueError, r"to \(B, d\); .* as \(2, 3, 2\)"),
            (nn.Flatten(0), "auto", (36,), {}, ValueError, r"\(2, 36\) came out as \(72,\)"),
            (linear_encoder, "auto", (35,), {}, ValueError, r"encoder must take rows .*\(B, 35\)"),
            (linear_encoder, "auto", (36,), {"code_size": 3}, ValueError, "code_size must be None"),
            (linear_encoder, nn.Linear(2, 35), (36,), {}, ValueError, r"decoder must map \(B, 2\)"),
            (linear_encoder, nn.Linear(3, 36), (36,), {}, ValueError, "decoder must take rows"),
            (lambda: 3, "auto", (36,), {}, TypeError, "encoder must return an nn.Module, got int"),
            (Two(), "auto", (36,), {}, TypeError, "encoder must return a tensor, got tuple"),
            (lambda: nn.LazyLinear(3), "auto", (36,), {}, ValueError, "LazyLinear is lazy"),
        ],
    )
    def test_build(self, encoder, decoder, shape, options, error, match):
        with pytest.raises(error, match=match):
            build_autoencoder(encoder, decoder, shape, **({"seeds": [0, 1]} | options))

    def test_factories_of_different_networks(self):
        sizes = iter([4, 5])

        def factory():
            width = next(sizes)
            return nn.Sequential(nn.Linear(9, width), nn.Linear(width, 2))

        with pytest.raises(ValueError, match="encoder must return the same network at each call"):
            build_autoencoder(factory, "auto", (9,), seeds=[0, 1])

    @pytest.mark.parametrize("shape", [(36,), (3, 5, 35), (2, 5, 36), (5, 35), (1, 3, 5, 36)])
    def test_rows(self, shape):
        with pytest.raises(ValueError, match=r"rows must be \(3, B, 36\) or \(B, 36\), got"):
            build("widths").encode(normal(*shape))

    @pytest.mark.parametrize("shape", [(5, 3), (3, 5, 4), (2, 5, 3)])
    def test_codes(self, shape):
        with pytest.raises(ValueError, match=r"codes must be \(3, B, 3\), got"):
            build("widths").decode(normal(*shape))

    def test_stacked_linear(self):
        with pytest.raises(ValueError, match=r"\(R, in, out\) and \(R, 1, out\)"):
            StackedLinear(torch.zeros(2, 3, 4), torch.zeros(2, 4))


class TestStackedLinear:
    @pytest.mark.parametrize("relu", [False, True])
    @pytest.mark.parametrize("shared", [False, True])
    def test_gradients_are_those_of_autograd(self, relu, shared):
        generator = torch.Generator().manual_seed(0)

        def drawn(*shape):
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        layer = StackedLinear(drawn(3, 5, 4), drawn(3, 1, 4), relu=relu)
        rows = drawn(*(() if shared else (3,)), 7, 5).requires_grad_()
        upstream = drawn(3, 7, 4)
        inputs = [rows, layer.weight, layer.bias]
        got = torch.autograd.grad((layer(rows) * upstream).sum(), inputs)
        plain = rows @ layer.weight + layer.bias
        plain = plain.relu() if relu else plain
        expected = torch.autograd.grad((plain * upstream).sum(), inputs)
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)

    def test_the_forward_pass_is_the_same_without_gradients(self):
        layer = StackedLinear(torch.randn(2, 5, 4), torch.randn(2, 1, 4), relu=True)
        rows = torch.randn(2, 7, 5)
        with torch.no_grad():
            assert torch.equal(layer(rows), layer(rows))
            expected = layer(rows)
        assert torch.equal(layer(rows).detach(), expected)

    def test_bfloat16_products_give_float32_gradients(self):
        generator = torch.Generator().manual_seed(0)
        layer = StackedLinear(
            *(torch.randn(s, generator=generator) for s in ((2, 64, 8), (2, 1, 8)))
        )
        rows = torch.randn(2, 100, 64, generator=generator)
        expected = torch.autograd.grad(layer(rows).square().sum(), list(layer.parameters()))
        with torch.autocast("cpu", torch.bfloat16):
            out = layer(rows)
        assert out.dtype == torch.bfloat16
        got = torch.autograd.grad(out.float().square().sum(), list(layer.parameters()))
        for own, exact in zip(got, expected, strict=True):
            assert own.dtype == torch.float32
            assert (own - exact).norm() < 0.02 * exact.norm()

    @pytest.mark.parametrize("relus", [(True, False), (True, True, False), (False, True)])
    @pytest.mark.parametrize("alone", [True, False])
    def test_layers_in_a_row(self, relus, alone):
        """Gradients of all layers at once, and of the rows if asked for, are those of autograd."""
        generator = torch.Generator().manual_seed(0)

        def drawn(*shape):
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        sizes = (6, 5, 4, 3)
        layers = _StackedLayers(
            *(
                StackedLinear(drawn(3, a, b), drawn(3, 1, b), relu=relu)
                for a, b, relu in zip(sizes, sizes[1:], relus, strict=False)
            )
        )
        rows = drawn(3, 7, 6).requires_grad_(not alone)
        weights = list(layers.parameters())
        asked = weights if alone else [*weights, rows]
        out = layers(rows)
        slope = drawn(*out.shape)
        found = torch.autograd.grad(out, asked, slope)
        expected = rows
        for layer in layers:
            expected = expected @ layer.weight + layer.bias
            expected = expected.relu() if layer.relu else expected
        torch.testing.assert_close(out, expected)
        for mine, theirs in zip(found, torch.autograd.grad(expected, asked, slope), strict=True):
            torch.testing.assert_close(mine, theirs)

    def test_no_second_derivative(self):
        layer = StackedLinear(torch.ones(1, 2, 1), torch.zeros(1, 1, 1))
        rows = torch.ones(1, 3, 2, requires_grad=True)
        (first,) = torch.autograd.grad(layer(rows).square().sum(), rows, create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            first.sum().backward()

    def test_stacked_module(self):
        with pytest.raises(ValueError, match="stacking must be"):
            StackedModule(nn.Identity(), (3,), {}, {}, seeds=[0], stacking="map")


def test_import_stays_light():
    code = "import sys, concrete_kmeans.networks; sys.exit('torch._dynamo' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_restart_alone_on_cuda(dtype):
    """Its products have another kernel than those of a stack."""
    weight, bias = normal(3, 6, 7, dtype=dtype).cuda(), normal(3, 1, 7, seed=1, dtype=dtype).cuda()
    rows = normal(3, 50, 6, seed=2, dtype=dtype).cuda()
    expected = (rows @ weight + bias).relu()
    with torch.inference_mode():
        stack = StackedLinear(weight, bias, relu=True)(rows)
        torch.testing.assert_close(stack, expected)
        for r in range(3):
            alone = StackedLinear(weight[r : r + 1], bias[r : r + 1], relu=True)(rows[r : r + 1])
            torch.testing.assert_close(alone[0], expected[r])
