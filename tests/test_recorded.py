"""The loop as it goes on CUDA, on the CPU: streams and graphs are stand-ins, kernels are torch's.

What runs on a GPU alone is in test_kernels.py. Here it is what the host does: which steps wait for
which, what is written to fixed places before a launch, and who moves which weight.
"""

import contextlib
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from concrete_kmeans import networks, optimizers, streams, training
from concrete_kmeans.checkpoints import Checkpoints
from concrete_kmeans.data import Batches
from concrete_kmeans.networks import build_autoencoder
from concrete_kmeans.objectives.base import Verdict
from concrete_kmeans.objectives.concrete import Concrete, Scales
from concrete_kmeans.objectives.deep import Reconstruction
from concrete_kmeans.training import Interrupted, Settings, train

R, N, D, BATCH, STEPS, EVERY = 2, 320, 12, 32, 30, 7


class Stream:
    def __init__(self, *_, **__):
        pass

    def wait_stream(self, other):
        pass


class Adam(NamedTuple):
    parameter: Tensor
    first: Tensor
    second: Tensor
    copy: Tensor | None


class Pace(NamedTuple):
    scales: Tensor
    betas: tuple[float, float]
    eps: float


def count(steps, rate, pace):
    """As the kernel's."""
    steps += 1
    seen = [1.0 - beta ** float(steps.max()) for beta in pace.betas]
    pace.scales.copy_(torch.stack([rate / seen[0], torch.tensor(seen[1]).sqrt()]))


@torch.no_grad()
def move(gradient, adam, pace):
    """Adam's step (Kingma, Ba 2015)."""
    adam.first.lerp_(gradient, 1.0 - pace.betas[0])
    adam.second.mul_(pace.betas[1]).addcmul_(gradient, gradient, value=1.0 - pace.betas[1])
    step = adam.first / (adam.second.sqrt() / pace.scales[1] + pace.eps) * pace.scales[0]
    adam.parameter.detach().sub_(step)
    if adam.copy is not None:
        adam.copy.copy_(adam.parameter)


def to_layer(rows, gradient):
    """Gradients of weight and bias."""
    return (rows.mT @ gradient).float(), gradient.float().sum(1, keepdim=True)


def affine(rows, weight, bias, *, relu):
    """A layer."""
    out = (rows @ weight + bias).to(rows.dtype)
    return out.relu_() if relu else out


def to_rows(gradient, weight, after):
    """Gradient of the rows of a layer, through the ReLU that gave them."""
    out = gradient @ weight.mT
    return out if after is None else out * (after > 0)


@pytest.fixture
def on_cuda(monkeypatch):
    """Let the loop believe so; says what was launched."""
    seen = SimpleNamespace(launched=[], moved=0, optimizers=[])

    def recorded(self, n):
        """A graph that is launched by taking its steps again, from the same places."""
        parts = torch.zeros(n, len(self.step.names), len(self.step.ones))

        def replay():
            seen.launched.append(n)
            parts.copy_(torch.cat([self._take(place) for place in range(n)]))

        graph = SimpleNamespace(replay=replay)
        return self.graphs.setdefault(n, training._Graph(graph, parts, self.step.objective.batch))

    def init(self, device, ones, mover=None, *, plain=streams.Side.__init__):
        plain(self, device, ones, mover)
        self._streams = {"loss": Stream(), "weights": Stream()}

    def move_layer(self, *layer, plain=optimizers.EarlyAdam.move_layer):
        known = plain(self, *layer)
        seen.moved += known
        return known

    def make(*args, plain=optimizers.make_optimizer, **named):
        seen.optimizers.append(plain(*args, **named))
        return seen.optimizers[-1]

    kernels = SimpleNamespace(
        Adam=Adam, Pace=Pace, count=count, move=move, affine=affine, to_rows=to_rows,
        to_layer=to_layer,
        move_layer=lambda rows, gradient, *both: [
            move(slope, adam, both[2])
            for slope, adam in zip(to_layer(rows, gradient), both[:2], strict=True)
        ],
    )  # fmt: skip
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _=None: Stream())
    monkeypatch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(Tensor, "record_stream", lambda *_: None)
    monkeypatch.setattr(Batches, "on_cuda", True)
    monkeypatch.setattr(streams.Side, "__init__", init)
    monkeypatch.setattr(training._Recorded, "_graph", recorded)
    monkeypatch.setattr(training, "make_optimizer", make)
    monkeypatch.setattr(optimizers, "kernels_for", lambda *_: kernels)
    monkeypatch.setattr(optimizers.EarlyAdam, "move_layer", move_layer)
    monkeypatch.setattr(networks, "kernels_for_products", lambda *_: kernels)
    return seen


def objective_and_batches(*, joint):
    drawn = [torch.Generator().manual_seed(seed) for seed in range(R)]
    rows = torch.randn(N, D, generator=torch.Generator().manual_seed(9))
    network = build_autoencoder((30, 20, 4), "auto", (D,), seeds=list(range(R)), device="cpu")
    objective = Reconstruction(network)
    if joint:
        one = torch.ones(R)
        scales = Scales(one, one, one, torch.full((R, 5), 0.2))
        objective = Concrete(
            network,
            network.encode(rows[:5]).detach(),
            scales,
            form="scaled",
            sigma2=one,
            weight=0.5,
            balance=0.3,
        )
    return objective, Batches(rows, None, BATCH, drawn), drawn


def trained(*, joint=True, n_steps=STEPS, record=True, **how):
    settings = {
        "learning_rate": lambda step: 1e-3 / (1 + step / 30),
        "temperature": lambda step: 1.0 / (1 + step),
        "check_every": EVERY,
    }
    for name in ("precision", "optimizer"):
        if name in how:
            settings[name] = how.pop(name)
    objective, batches, drawn = objective_and_batches(joint=joint)
    settings = Settings(n_steps, record=record, **settings)
    return objective, train(objective, batches, settings, drawn, **how)


def states(objective):
    return [part.detach().clone() for part in objective.state()]


def same(objective, other):
    return all(map(torch.equal, states(objective), states(other)))


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
class TestRecorded:
    def test_steps_are_those_that_are_not_recorded(self, on_cuda, joint, precision):
        """Bit for bit, though they wait for one another; all are taken when somebody looks."""
        objective, outcome = trained(joint=joint, precision=precision)
        assert on_cuda.launched == [4, 7, 7, 7, 2]  # after three that are taken one by one
        plain, expected = trained(joint=joint, precision=precision, record=False)
        assert same(objective, plain)
        assert outcome.history == expected.history
        assert [event.step for event in outcome.history] == [7, 14, 21, 28, 30]

    def test_no_more_steps_wait_than_there_is_memory_for(
        self, on_cuda, joint, precision, monkeypatch
    ):
        monkeypatch.setattr(training._Recorded, "most_rows", 3 * R * BATCH)
        objective, _ = trained(joint=joint, precision=precision)
        assert on_cuda.launched == [3, 1, 3, 3, 1, 3, 3, 1, 3, 3, 1, 2]
        assert same(objective, trained(joint=joint, precision=precision, record=False)[0])

    def test_ctrl_c_keeps_the_steps_that_waited(self, on_cuda, joint, precision):
        def press(_):
            raise KeyboardInterrupt

        with pytest.raises(Interrupted) as caught:
            trained(joint=joint, precision=precision, callbacks=[press])
        assert caught.value.outcome.n_steps.tolist() == [EVERY] * R

    def test_a_monitor_that_repairs_weights_is_heard(self, on_cuda, joint, precision):
        """Also by the copies that the next products read."""

        class Repair:
            def __init__(self):
                self.repaired = []

            def check(self, step, running):
                optimizer = on_cuda.optimizers[-1]
                with torch.no_grad():
                    for parameter in optimizer.at.values():
                        parameter.mul_(0.5)
                self.repaired.append(step)
                return Verdict(torch.zeros_like(running), torch.zeros_like(running))

        how = {"joint": joint, "precision": precision, "n_steps": 2 * EVERY}
        objective, _ = trained(**how, monitor=Repair())
        for address, copy in on_cuda.optimizers[-1].copies.items():
            weight = on_cuda.optimizers[-1].at[address]
            assert torch.equal(copy, weight.detach().bfloat16())
        assert len(on_cuda.optimizers[-1].copies) == (
            len(objective.parameters()) if precision == "bfloat16" else 0
        )
        assert same(objective, trained(**how, monitor=Repair(), record=False)[0])
        assert not same(objective, trained(**how)[0])


def test_a_step_that_draws_itself_waits_for_none(on_cuda, monkeypatch):
    monkeypatch.setattr(Reconstruction, "draws", True)
    trained(joint=False)
    assert on_cuda.launched == [1] * (STEPS - 3)


def test_a_refresh_sees_the_steps_before_it(on_cuda, monkeypatch):
    seen = []
    monkeypatch.setattr(Reconstruction, "refresh_every", 5)
    monkeypatch.setattr(Reconstruction, "refresh", lambda self: seen.append(states(self)))
    trained(joint=False, n_steps=12)
    for n_steps, found in zip((0, 5, 10), seen, strict=True):
        monkeypatch.setattr(Reconstruction, "refresh_every", 0)
        expected, _ = trained(joint=False, n_steps=n_steps, record=False)
        assert all(map(torch.equal, found, states(expected)))


class TestEarlyAdam:
    @pytest.mark.parametrize("joint", [True, False])
    def test_it_moves_as_torch_does(self, on_cuda, joint, monkeypatch):
        objective, outcome = trained(joint=joint)
        layers = 6
        assert on_cuda.moved == layers * STEPS  # each by the kernel that has its gradient
        monkeypatch.setattr(optimizers, "kernels_for", lambda *_: None)
        monkeypatch.setattr(networks, "kernels_for_products", lambda *_: None)
        first, _, _ = objective_and_batches(joint=joint)
        start = states(first)
        plain, expected = trained(joint=joint)
        assert not isinstance(on_cuda.optimizers[-1], optimizers.EarlyAdam)
        for mine, theirs, before in zip(states(objective), states(plain), start, strict=True):
            assert (mine - theirs).norm() <= 1e-4 * (theirs - before).norm()
        for event, other in zip(outcome.history, expected.history, strict=True):
            assert event.losses["loss"] == pytest.approx(other.losses["loss"], rel=1e-5)

    def test_not_where_all_gradients_are_needed_at_once(self, on_cuda):
        objective, batches, drawn = objective_and_batches(joint=True)
        train(objective, batches, Settings(3, lambda _: 1e-3, clip=1.0), drawn)
        assert not isinstance(on_cuda.optimizers[-1], optimizers.EarlyAdam)

    def test_hooks_are_gone_after_training(self, on_cuda):
        objective, _ = trained(joint=False)
        codes = objective.network.encode(torch.ones(4, D))
        codes.sum().backward()
        assert any(p.grad is not None for p in objective.parameters())

    @pytest.mark.parametrize("precision", ["float32", "bfloat16"])
    def test_its_state_goes_on_where_it_was(self, on_cuda, tmp_path, precision):
        """From a checkpoint, the copies of weights included."""
        whole, _ = trained(precision=precision)
        checkpoints = Checkpoints(tmp_path, 0.0, dict)

        def stop(event):
            if event.step == 2 * EVERY:
                raise KeyboardInterrupt

        with pytest.raises(Interrupted):
            trained(precision=precision, callbacks=[stop], checkpoints=checkpoints)
        again = Checkpoints(tmp_path, 1e9, dict)
        assert again.read(torch.device("cpu"))
        objective, outcome = trained(precision=precision, checkpoints=again)
        assert same(objective, whole)
        assert outcome.history[-1].step == STEPS
