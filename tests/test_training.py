"""The loop, on objectives small enough to be followed by hand."""

from __future__ import annotations

import logging
import math

import pytest
import torch

from concrete_kmeans.checkpoints import Checkpoints
from concrete_kmeans.data import Batch, Batches
from concrete_kmeans.objectives.base import Objective, Verdict
from concrete_kmeans.optimizers import DirectAdam, make_optimizer
from concrete_kmeans.training import Annealed, Interrupted, InverseTime, Settings, train

R, N, D = 3, 40, 4


class Rosenbrock(Objective):
    """A loss of weights (R, D, D), shifts (R, 1, D) and scales (R,) that no two restarts share."""

    def __init__(self, restarts=range(R), fail=None):
        drawn = [torch.Generator().manual_seed(r) for r in restarts]
        normal = lambda *shape: torch.stack(  # noqa: E731
            [torch.randn(shape, generator=g, dtype=torch.float64) for g in drawn]
        )
        self.weight, self.shift, self.scale = normal(D, D), normal(1, D), normal()
        for p in self.parameters():
            p.requires_grad_()
        self.seen = torch.zeros(len(drawn), dtype=torch.float64)
        self.fail = fail or {}
        self.step = 0
        self.restarts = list(restarts)

    def parameters(self):
        return [self.weight, self.shift, self.scale]

    def state(self):
        return [*self.parameters(), self.seen]

    def loss(self, batch, temperature, generators):
        out = (batch.rows @ self.weight + self.shift) ** 2
        penalty = self.scale**2 * temperature
        fit = out.sum(-1).mean(-1)
        noise = torch.stack([torch.randn((), generator=g, dtype=torch.float64) for g in generators])
        loss = fit + penalty + noise * self.scale
        for r, (step, value) in self.fail.items():
            if step == self.step and r in self.restarts:
                wrong = torch.zeros_like(loss)
                wrong[self.restarts.index(r)] = value
                loss = loss + wrong * loss
        self.step += 1
        return {"loss": loss, "fit": fit}

    @torch.no_grad()
    def after_step(self, batch):
        self.seen += batch.rows.sum((-2, -1))


def batches(n_steps, restarts=range(R)):
    for step in range(n_steps):
        drawn = [torch.Generator().manual_seed(1000 * r + step) for r in restarts]
        rows = torch.stack([torch.randn(5, D, generator=g, dtype=torch.float64) for g in drawn])
        yield Batch(rows, None, torch.zeros(rows.shape[:2], dtype=torch.int64))


def generators(restarts=range(R)):
    return [torch.Generator().manual_seed(77 + r) for r in restarts]


def run(
    restarts=range(R),
    *,
    n_steps=12,
    fail=None,
    monitor=None,
    callbacks=(),
    trained=None,
    **settings,
):
    settings = {"learning_rate": lambda step: 0.05 / (1 + step), "check_every": 4} | settings
    objective = Rosenbrock(restarts, fail)
    outcome = train(
        objective,
        batches(n_steps, restarts),
        Settings(n_steps, **settings),
        generators(restarts),
        monitor=monitor,
        callbacks=callbacks,
    )
    return objective, outcome


def assert_same_state(stack, r, single):
    for part, alone in zip(stack.state(), single.state(), strict=True):
        torch.testing.assert_close(part[r], alone[0], rtol=1e-12, atol=1e-12)


class TestSchedules:
    def test_annealed_falls_by_the_same_factor_every_step_and_then_stays(self):
        value = Annealed(1.0, 0.1, n_steps=10)
        found = [value(step) for step in range(13)]
        assert found[:11] == pytest.approx([10 ** (-i / 10) for i in range(11)])
        assert found[10:] == pytest.approx([0.1] * 3)

    def test_annealed_of_equal_ends_is_constant(self):
        assert [Annealed(0.3, 0.3, 5)(i) for i in (0, 3, 9)] == pytest.approx([0.3] * 3)

    def test_inverse_time(self):
        value = InverseTime(1.0, 0.05, taken=0)
        assert value(0) == 1.0
        assert value(10) == pytest.approx(0.5)
        assert value(30) == pytest.approx(0.25)
        assert value(10**6) == 0.05

    def test_inverse_time_goes_on_where_a_run_before_it_ended(self):
        whole, later = InverseTime(1.0, 0.01, taken=0), InverseTime(1.0, 0.01, taken=25)
        assert [later(i) for i in range(20)] == [whole(25 + i) for i in range(20)]


class TestOptimisers:
    @pytest.mark.parametrize("kind", ["adam", "sgd"])
    @pytest.mark.parametrize("clip", [None, 0.7])
    def test_a_stack_equals_torch_on_each_restart_alone(self, kind, clip):
        """Against torch's own optimiser and clip_grad_norm_, written as anybody would."""
        stack, _ = run(optimizer=kind, clip=clip, temperature=Annealed(1.0, 0.1, 12))
        clipped = []
        for r in range(R):
            single, generator = Rosenbrock([r]), generators([r])
            parameters = single.parameters()
            if kind == "adam":
                optimizer = torch.optim.Adam(parameters, lr=1.0)
            else:
                optimizer = torch.optim.SGD(parameters, lr=1.0, momentum=0.9)
            for step, batch in enumerate(batches(12, [r])):
                optimizer.zero_grad()
                optimizer.param_groups[0]["lr"] = 0.05 / (1 + step)
                single.loss(batch, 10 ** (-step / 12), generator)["loss"].sum().backward()
                if clip is not None:
                    norm = torch.nn.utils.clip_grad_norm_(parameters, clip)
                    clipped.append(bool(norm > clip))
                optimizer.step()
                single.after_step(batch)
            for part, alone in zip(stack.state(), single.state(), strict=True):
                # clip_grad_norm_ divides by the norm + 1e-6
                tol = 1e-12 if clip is None else 1e-6
                torch.testing.assert_close(part[r], alone[0], rtol=tol, atol=tol)
        assert clip is None or any(clipped)

    @pytest.mark.parametrize("clip", [None, 0.7])
    def test_a_stack_equals_the_loop_on_each_restart_alone(self, clip):
        stack, outcome = run(clip=clip)
        for r in range(R):
            single, alone = run([r], clip=clip)
            assert_same_state(stack, r, single)
            for event, own in zip(outcome.history, alone.history, strict=True):
                assert event.losses["loss"][r] == pytest.approx(own.losses["loss"][0], rel=1e-12)

    def test_clipping_leaves_small_gradients_and_scales_large_ones_to_the_norm(self):
        moved = {}
        for clip in (None, 1e9, 1e-3):
            objective = Rosenbrock()
            before = [p.detach().clone() for p in objective.parameters()]
            settings = Settings(1, lambda _: 1.0, optimizer="sgd", clip=clip)
            train(objective, batches(1), settings, generators())
            steps = [
                (p.detach() - b).flatten(1) if p.ndim > 1 else (p.detach() - b)[:, None]
                for p, b in zip(objective.parameters(), before, strict=True)
            ]
            moved[clip] = torch.cat(steps, 1)
        assert torch.equal(moved[None], moved[1e9])
        norms = torch.linalg.vector_norm(moved[1e-3], dim=1)
        torch.testing.assert_close(norms, torch.full_like(norms, 1e-3), rtol=1e-9, atol=0)
        direction = torch.nn.functional.cosine_similarity(moved[None], moved[1e-3])
        torch.testing.assert_close(direction, torch.ones(R, dtype=torch.float64))

    def test_a_zero_gradient_survives_clipping(self):
        class Flat(Rosenbrock):
            def loss(self, batch, temperature, generators):
                return {"loss": 0.0 * super().loss(batch, temperature, generators)["loss"]}

        objective = Flat()
        before = [part.clone() for part in objective.parameters()]
        train(objective, batches(2), Settings(2, lambda _: 0.1, clip=1.0), generators())
        for part, old in zip(objective.parameters(), before, strict=True):
            assert torch.equal(part, old)

    def test_an_optimiser_of_ones_own(self):
        class Backwards:
            def __init__(self, objective):
                self.objective, self.rates = objective, []

            def zero_grad(self):
                for p in self.objective.parameters():
                    p.grad = None

            def step(self, rate):
                self.rates.append(rate)

        made = []

        def make(objective):
            made.append(Backwards(objective))
            return made[0]

        objective, _ = run(optimizer=make, n_steps=3)
        assert made[0].rates == pytest.approx([0.05, 0.025, 0.05 / 3])
        assert torch.equal(objective.weight, Rosenbrock().weight)


class TestFailures:
    @pytest.mark.parametrize("value", [math.nan, math.inf])
    @pytest.mark.parametrize("step", [0, 3, 6, 9, 13])
    def test_a_loss_that_is_not_finite_ends_one_restart_and_no_other(self, value, step):
        stack, outcome = run(n_steps=14, fail={1: (step, value)})
        assert outcome.failed_at.tolist() == [-1, step, -1]
        assert not outcome.collapsed.any()
        for r in (0, 2):
            single, _ = run([r], n_steps=14)
            assert_same_state(stack, r, single)
        # as it was at its last check: those are after 4, 8 and 12 steps
        kept, _ = run([1], n_steps=14, callbacks=[lambda event: event.step == step // 4 * 4])
        if step < 4:
            kept = Rosenbrock([1])
        assert_same_state(stack, 1, kept)
        assert outcome.n_steps[0] == outcome.n_steps[2] == 14

    def test_a_part_of_the_loss_alone_counts_too(self):
        class Part(Rosenbrock):
            def loss(self, batch, temperature, generators):
                parts = super().loss(batch, temperature, generators)
                return parts | {
                    "part": torch.tensor([0.0, 0.0, math.nan if self.step > 2 else 0.0])
                }

        outcome = train(
            Part(), batches(8), Settings(8, lambda _: 0.01, check_every=4), generators()
        )
        assert outcome.failed_at.tolist() == [-1, -1, 2]

    @pytest.mark.parametrize("part", ["weight", "scale"])
    def test_a_state_that_is_not_finite_fails_though_the_loss_is(self, part):
        class Spoiled(Rosenbrock):
            @torch.no_grad()
            def after_step(self, batch):
                super().after_step(batch)
                if self.step == 4:
                    getattr(self, part)[0] = math.nan

        objective = Spoiled()
        settings = Settings(4, lambda _: 0.01, check_every=4)
        outcome = train(objective, batches(4), settings, generators())
        assert outcome.failed_at.tolist() == [3, -1, -1]
        assert all(p.isfinite().all() for p in objective.state())

    def test_all_restarts_failing_ends_the_phase_early(self):
        fail = dict.fromkeys(range(R), (1, math.nan))
        stack, outcome = run(n_steps=100, fail=fail)
        assert outcome.failed_at.tolist() == [1, 1, 1]
        assert len(outcome.history) == 1
        assert outcome.history[0].running == [False] * R
        for part, first in zip(stack.state(), Rosenbrock().state(), strict=True):
            assert torch.equal(part, first)


class Scripted:
    """Says what a dictionary says: restart -> the check at which to do so."""

    def __init__(self, stop=None, discard=None):
        self.stop, self.discard, self.checks = stop or {}, discard or {}, []

    def check(self, step, running):
        self.checks.append((step, running.tolist()))
        now = len(self.checks)
        said = [
            torch.tensor([d.get(r) == now for r in range(R)]) for d in (self.stop, self.discard)
        ]
        return Verdict(*said)


class TestMonitor:
    def test_stop_keeps_the_state_of_this_check_and_discard_of_the_one_before(self):
        monitor = Scripted(stop={0: 2}, discard={2: 3})
        stack, outcome = run(n_steps=20, monitor=monitor)
        assert_same_state(stack, 0, run([0], n_steps=8, learning_rate=lambda s: 0.05 / (1 + s))[0])
        assert_same_state(stack, 1, run([1], n_steps=20)[0])
        assert_same_state(stack, 2, run([2], n_steps=8)[0])
        assert outcome.collapsed.tolist() == [False, False, True]
        assert outcome.n_steps.tolist() == [8, 20, 12]
        assert outcome.failed_at.tolist() == [-1, -1, -1]
        assert [step for step, _ in monitor.checks] == [3, 7, 11, 15, 19]
        assert [running for _, running in monitor.checks][2:4] == [
            [False, True, True],
            [False, True, False],
        ]

    def test_a_collapse_at_the_first_check_goes_back_to_the_start(self):
        stack, outcome = run(monitor=Scripted(discard={1: 1}))
        assert_same_state(stack, 1, Rosenbrock([1]))
        assert outcome.collapsed.tolist() == [False, True, False]

    def test_discard_wins_over_stop(self):
        stack, outcome = run(monitor=Scripted(stop={0: 2}, discard={0: 2}))
        assert_same_state(stack, 0, run([0], n_steps=4)[0])
        assert outcome.collapsed[0]

    def test_the_phase_ends_when_all_have_stopped(self):
        monitor = Scripted(stop={0: 1, 1: 2, 2: 2})
        _, outcome = run(n_steps=100, monitor=monitor)
        assert outcome.n_steps.tolist() == [4, 8, 8]
        assert outcome.history[-1].step == 8

    def test_a_stopped_restart_neither_fails_nor_collapses_later(self):
        monitor = Scripted(stop={1: 1}, discard={1: 2})
        stack, outcome = run(n_steps=12, fail={1: (6, math.nan)}, monitor=monitor)
        assert outcome.failed_at.tolist() == [-1] * R
        assert not outcome.collapsed.any()
        assert_same_state(stack, 1, run([1], n_steps=4)[0])

    def test_a_repair_is_part_of_the_state_that_is_kept(self):
        class Repair:
            def __init__(self):
                self.objective = None

            def check(self, step, running):
                with torch.no_grad():
                    self.objective.scale[1] = 5.0
                return Verdict(torch.tensor([False, True, False]), torch.zeros(R, dtype=torch.bool))

        monitor, objective = Repair(), Rosenbrock()
        monitor.objective = objective
        train(
            objective,
            batches(8),
            Settings(8, lambda _: 0.1, check_every=4),
            generators(),
            monitor=monitor,
        )
        assert objective.scale[1] == 5.0


class TestHistory:
    def test_events_are_means_since_the_check_before(self, caplog):
        class Traced(Rosenbrock):
            trace = ()

            def loss(self, batch, temperature, generators):
                parts = super().loss(batch, temperature, generators)
                self.trace = (*self.trace, {k: v.tolist() for k, v in parts.items()})
                return parts

        objective, heard = Traced(), []
        settings = Settings(10, lambda _: 0.1, phase="joint", check_every=4)
        with caplog.at_level(logging.INFO, logger="concrete_kmeans.training"):
            outcome = train(
                objective, batches(10), settings, generators(), callbacks=[heard.append]
            )
        assert [event.step for event in outcome.history] == [4, 8, 10]  # the remainder is told too
        assert heard == outcome.history
        for event, part in zip(outcome.history, [(0, 4), (4, 8), (8, 10)], strict=True):
            assert (event.phase, event.n_steps, event.running) == ("joint", 10, [True] * R)
            for name in ("loss", "fit"):
                values = torch.tensor([t[name] for t in objective.trace[slice(*part)]])
                assert event.losses[name] == pytest.approx(
                    values.double().mean(0).tolist(), rel=1e-6
                )
        assert "joint: step 4 of 10" in caplog.text

    @pytest.mark.parametrize("n_steps", [1, 3, 4, 5])
    def test_steps_that_checks_do_not_divide(self, n_steps):
        stack, outcome = run(n_steps=n_steps)
        assert outcome.n_steps.tolist() == [n_steps] * R
        assert outcome.history[-1].step == n_steps
        assert len(outcome.history) == -(-n_steps // 4)
        assert stack.step == n_steps

    def test_no_steps(self):
        stack, outcome = run(n_steps=0)
        assert outcome.n_steps.tolist() == [0] * R
        assert outcome.history == []
        assert all(map(torch.equal, stack.state(), Rosenbrock().state()))

    def test_no_batch_is_drawn_that_is_not_used(self):
        drawn = iter(list(batches(12)))
        train(Rosenbrock(), drawn, Settings(5, lambda _: 0.1), generators())
        assert len(list(drawn)) == 7

    def test_a_callback_that_returns_true_ends_the_phase(self):
        told = []
        _, outcome = run(
            n_steps=100, callbacks=[lambda e: e.step >= 8, lambda e: told.append(e.step) or "yes"]
        )
        assert outcome.n_steps.tolist() == [8] * R
        assert told == [4, 8]  # every callback hears every event; only True itself ends it

    def test_refresh_is_called_before_step_0_and_then_every_so_many(self):
        class Refreshed(Rosenbrock):
            refresh_every = 3
            at = ()

            def refresh(self):
                self.at = (*self.at, self.step)

        objective = Refreshed()
        train(objective, batches(8), Settings(8, lambda _: 0.1), generators())
        assert objective.at == (0, 3, 6)

    def test_global_random_state(self, untouched_random_state):
        run()


class TestInterrupt:
    @pytest.mark.parametrize("step", [0, 2, 4, 6])
    def test_ctrl_c_keeps_the_last_whole_step(self, step):
        class Stopped(Rosenbrock):
            def loss(self, batch, temperature, generators):
                if self.step == step:
                    raise KeyboardInterrupt
                return super().loss(batch, temperature, generators)

        objective = Stopped()
        settings = Settings(12, lambda s: 0.05 / (1 + s), check_every=4)
        with pytest.raises(Interrupted, match="interrupted") as caught:
            train(objective, batches(12), settings, generators())
        assert isinstance(caught.value, KeyboardInterrupt)
        outcome = caught.value.outcome
        assert outcome.n_steps.tolist() == [step] * R
        assert outcome.history == [] if step == 0 else outcome.history[-1].step == step
        for r in range(R):
            assert_same_state(objective, r, run([r], n_steps=step)[0])

    def test_in_a_callback(self):
        def press(event):
            raise KeyboardInterrupt

        objective = Rosenbrock()
        settings = Settings(12, lambda s: 0.05 / (1 + s), check_every=4)
        with pytest.raises(Interrupted) as caught:
            train(objective, batches(12), settings, generators(), callbacks=[press])
        assert caught.value.outcome.n_steps.tolist() == [4] * R
        assert_same_state(objective, 0, run([0], n_steps=4)[0])

    def test_restarts_that_had_ended_are_brought_back(self):
        class Stopped(Rosenbrock):
            def loss(self, batch, temperature, generators):
                if self.step == 10:
                    raise KeyboardInterrupt
                return super().loss(batch, temperature, generators)

        objective = Stopped(fail={1: (5, math.nan)})
        settings = Settings(12, lambda s: 0.05 / (1 + s), check_every=4)
        with pytest.raises(Interrupted) as caught:
            train(objective, batches(12), settings, generators(), monitor=Scripted(stop={0: 1}))
        outcome = caught.value.outcome
        assert outcome.failed_at.tolist() == [-1, 5, -1]
        assert outcome.n_steps.tolist() == [4, 8, 10]
        assert_same_state(objective, 0, run([0], n_steps=4)[0])
        assert_same_state(objective, 1, run([1], n_steps=4)[0])
        assert_same_state(objective, 2, run([2], n_steps=10)[0])


class TestPrecision:
    @pytest.mark.parametrize("precision", ["float32", "tf32", "float64", "bfloat16"])
    def test_flags_are_left_as_they_were_and_losses_agree(self, precision):
        flags = lambda: (  # noqa: E731
            torch.is_autocast_enabled("cpu"),
            torch.get_float32_matmul_precision(),
        )
        before = flags()
        _, outcome = run(precision=precision)
        assert flags() == before
        # autocast leaves float64 alone
        assert outcome.history[-1].losses == run()[1].history[-1].losses

    def test_bfloat16_products_under_autocast(self):
        class Typed(Rosenbrock):
            def loss(self, batch, temperature, generators):
                self.dtype = (batch.rows.float() @ self.weight.float()).dtype
                return super().loss(batch, temperature, generators)

        for precision, dtype in [("bfloat16", torch.bfloat16), ("float32", torch.float32)]:
            objective = Typed()
            train(
                objective, batches(1), Settings(1, lambda _: 0.1, precision=precision), generators()
            )
            assert objective.dtype == dtype
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32

    @pytest.mark.gpu
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
    @pytest.mark.parametrize("allowed", [True, False])
    @pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
    def test_tf32_on_cuda_is_what_was_asked_for_and_then_what_it_was(self, precision, allowed):
        matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
        first = matmul.allow_tf32, cudnn.allow_tf32

        class Watched(Rosenbrock):
            def __init__(self):
                super().__init__()
                self.weight, self.shift, self.scale, self.seen = (
                    part.detach().float().cuda().requires_grad_() for part in self.state()
                )
                self.seen = self.seen.detach()

            def loss(self, batch, temperature, generators):
                self.flags = matmul.allow_tf32, cudnn.allow_tf32
                loss = ((batch.rows @ self.weight + self.shift) ** 2).sum((-2, -1)) + self.scale**2
                if self.step == 1:
                    raise KeyboardInterrupt
                self.step += 1
                return {"loss": loss}

        try:
            matmul.allow_tf32 = cudnn.allow_tf32 = allowed
            objective = Watched()
            on_device = [b._replace(rows=b.rows.float().cuda()) for b in batches(2)]
            settings = Settings(2, lambda _: 0.1, precision=precision)
            with pytest.raises(Interrupted):  # an exception must not leave them changed, either
                train(objective, on_device, settings, generators())
            assert objective.flags == (precision == "tf32",) * 2
            assert (matmul.allow_tf32, cudnn.allow_tf32) == (allowed, allowed)
        finally:
            matmul.allow_tf32, cudnn.allow_tf32 = first


def test_some_restarts_only():
    """Those left out stay where they are, generators and all; the others are as ever."""
    whole, _ = run()
    drawn = generators()
    objective = Rosenbrock()
    before = [part.detach().clone() for part in objective.state()]
    outcome = train(
        objective,
        batches(12),
        Settings(12, learning_rate=lambda step: 0.05 / (1 + step), check_every=4),
        drawn,
        restarts=[True, False, True],
    )
    for part, old, all_trained in zip(objective.state(), before, whole.state(), strict=True):
        assert torch.equal(part[1], old[1])
        assert torch.equal(part[::2], all_trained[::2])
    assert outcome.n_steps.tolist() == [12, 0, 12]
    assert torch.equal(drawn[1].get_state(), generators()[1].get_state())


class Killed(BaseException):
    """As sudden as SIGKILL."""


class Dying(Checkpoints):
    """Ends the program, as it were, when it has written so many."""

    def __init__(self, folder, lives):
        super().__init__(folder, 1e-9, dict)
        self.lives = lives

    def write(self, loop):
        super().write(loop)
        self.lives -= 1
        if not self.lives:
            raise Killed


class StepByStep:
    """A monitor that remembers nothing but what it has counted, in a tensor."""

    def __init__(self):
        self.checks = torch.zeros(R)

    def check(self, step, running):
        self.checks += running
        assert step + 1 == 4 * int(self.checks.max())
        return Verdict(
            *(torch.tensor([step == at for at in ats]) for ats in ((7, 0, 0), (0, 0, 11)))
        )


@pytest.mark.parametrize("kind", ["adam", "sgd"])
@pytest.mark.parametrize("at", [1, 3, 4, 8, 9, 12, 14, 18])
def test_a_loop_goes_on_from_any_step(at, kind, tmp_path):
    """One restart stops, one collapses; generators end where they would have, too."""
    rows = torch.randn(N, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def trained(checkpoints):
        drawn, objective = generators(), Rosenbrock()
        outcome = train(
            objective,
            Batches(rows, None, 15, drawn),
            Settings(18, learning_rate=lambda s: 0.05 / (1 + s), optimizer=kind, check_every=4),
            drawn,
            monitor=StepByStep(),
            checkpoints=checkpoints,
        )
        return objective.state(), outcome, [generator.get_state() for generator in drawn]

    with pytest.raises(Killed):
        trained(Dying(tmp_path, at))
    checkpoints = Checkpoints(tmp_path, 1e3, dict)
    assert checkpoints.read(torch.device("cpu"))
    state, outcome, drawn = trained(checkpoints)
    expected, straight, untroubled = trained(None)
    for ours, theirs in zip([*state, *drawn], [*expected, *untroubled], strict=True):
        assert torch.equal(ours, theirs)
    assert outcome.history == straight.history
    assert straight.n_steps.tolist() == [8, 18, 12]
    for ours, theirs in zip(outcome[:3], straight[:3], strict=True):
        assert torch.equal(ours, theirs)


def test_adam_on_the_cpu_is_that_of_torch():
    """Also where a parameter has no gradient for a step, and from the middle on."""

    class Weights(Objective):
        def __init__(self):
            self.own = [torch.ones(1, n, dtype=torch.float64, requires_grad=True) for n in (3, 2)]

        def parameters(self):
            return self.own

        def loss(self, batch, temperature, generators):
            raise AssertionError

    first, second = Weights(), Weights()
    mine, theirs = make_optimizer("adam", first), torch.optim.Adam(second.own, foreach=False)
    assert isinstance(mine, DirectAdam)
    for step in range(9):
        if step == 6:
            other, mine = mine, make_optimizer("adam", first)
            mine.restore(other.state())
        mine.zero_grad()
        theirs.zero_grad()
        for own in (first.own, second.own):
            for p in own[: 1 if step in (0, 4) else 2]:
                p.grad = torch.sin(p.detach() * (step + 1))
        theirs.param_groups[0]["lr"] = 0.1 / (step + 1)
        mine.step(0.1 / (step + 1))
        theirs.step()
        for p, q in zip(first.own, second.own, strict=True):
            torch.testing.assert_close(p, q, rtol=0, atol=1e-12)
    assert [int(held["step"]) for held in mine.state().values()] == [9, 7]
