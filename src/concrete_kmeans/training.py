"""The only training loop."""

from __future__ import annotations

import contextlib
import logging
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, cast

import torch
from torch import Tensor

from concrete_kmeans import functional as F
from concrete_kmeans import processes
from concrete_kmeans.checkpoints import Checkpoints, Signals, Stopped
from concrete_kmeans.data import Batch, Batches, Place
from concrete_kmeans.objectives.base import Objective, Verdict
from concrete_kmeans.optimizers import EarlyAdam, Optimizer, TorchOptimizer, make_optimizer
from concrete_kmeans.streams import Side, join

__all__ = [
    "Annealed",
    "Callback",
    "Event",
    "Interrupted",
    "InverseTime",
    "Monitor",
    "Outcome",
    "Precision",
    "Settings",
    "train",
]

logger = logging.getLogger(__name__)

Precision: TypeAlias = Literal["float32", "float64", "tf32", "bfloat16"]


@dataclass(frozen=True)
class Annealed:
    """A value that falls exponentially from ``start`` to ``end`` in ``n_steps``, then stays."""

    start: float
    end: float
    n_steps: float

    def __call__(self, step: int) -> float:
        """Value at a step."""
        return float(self.start * (self.end / self.start) ** min(step / self.n_steps, 1.0))


@dataclass(frozen=True)
class InverseTime:
    """A value that falls from ``start`` as one over the steps until it is ``end``."""

    start: float
    end: float
    taken: int
    """Steps before this run."""
    slow: float = 10.0
    """Steps until the value has halved."""

    def __call__(self, step: int) -> float:
        """Value at a step of this run."""
        return max(self.end, self.start / (1.0 + (self.taken + step) / self.slow))


class Monitor(Protocol):
    """Looks at the restarts between steps, without labels."""

    def check(self, step: int, running: Tensor) -> Verdict:
        """Called every ``check_every`` steps; may repair the state."""


@dataclass(frozen=True)
class Event:
    """What a callback is told at every check."""

    phase: str
    step: int
    n_steps: int
    losses: dict[str, list[float]]
    """Mean of each part of the loss since the last check, one value a restart."""
    running: list[bool]
    """Restarts that are still trained."""


Callback: TypeAlias = Callable[[Event], object]


@dataclass(frozen=True)
class Settings:
    """Of one call of :func:`train`."""

    n_steps: int
    learning_rate: Callable[[int], float]
    temperature: Callable[[int], float] = field(default=lambda _: 1.0)
    optimizer: Literal["adam", "sgd"] | Callable[[Any], Optimizer] = "adam"
    phase: str = "train"
    check_every: int = 100
    """Steps between checks: the only waits for the device."""
    clip: float | None = None
    """Largest norm of a restart's gradient."""
    precision: Precision = "float32"
    record: bool = True
    """On CUDA, record a step once and replay it, where the objective and the rows allow it."""


class Outcome(NamedTuple):
    """What training leaves besides the objective's state."""

    n_steps: Tensor
    """(R,), steps taken by each restart."""
    failed_at: Tensor
    """(R,), the step at which the loss was no longer finite, or -1."""
    collapsed: Tensor
    """(R,), whether the monitor discarded the last state."""
    history: list[Event]


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during training, or SIGTERM where checkpoints are written.

    ``outcome`` is the state it was left in, ``signal`` the number of the signal.
    """

    def __init__(self, outcome: Outcome, number: int = signal.SIGINT) -> None:
        super().__init__("training was interrupted; the state of the last step is kept")
        self.outcome, self.signal = outcome, int(number)

    @classmethod
    def elsewhere(cls, n_steps: Tensor, number: int) -> Interrupted:
        """Of restarts (R,) that other processes trained."""
        none = torch.zeros_like(n_steps)
        return cls(Outcome(n_steps, none - 1, none.bool(), []), number)


def train(
    objective: Objective,
    batches: Iterable[Batch],
    settings: Settings,
    generators: Sequence[torch.Generator],
    *,
    monitor: Monitor | None = None,
    callbacks: Sequence[Callback] = (),
    restarts: Sequence[bool] | None = None,
    checkpoints: Checkpoints | None = None,
) -> Outcome:
    """Run the loop; the objective's state is changed in place.

    Restarts that have converged, collapsed or failed keep the state of their last good check while
    the others go on; those that are False in ``restarts``, the state they have. A callback that
    returns True ends the phase.

    With ``checkpoints``, of :class:`Batches` and one of torch's optimisers only, a loop that one
    of them holds goes on, and signals wait for the end of a step.

    Many processes (:func:`processes.together`) each take their part of every batch and end with the
    same state. Callbacks are called in the first of them, and signals wait for all.

    Raises
    ------
    Interrupted
        On Ctrl-C, with the state of the last whole step.
    torch.OutOfMemoryError
        Of the device, with what to change.
    """
    step = _Step(objective, settings, generators)
    run = _Run(step, callbacks, restarts)
    saving = None
    if checkpoints is not None:
        saving = _Saving(checkpoints, run, cast("Batches", batches), monitor)
    signals, waits = Signals(), checkpoints is not None or processes.many()
    take: _Step | _Recorded = step
    drawn: Iterable[Any] = batches
    recorded = settings.record and objective.recordable and not processes.many()
    if recorded and getattr(batches, "on_cuda", False):
        own = cast("Batches", batches)
        take, drawn = _Recorded(step, own), own.indices()
    try:
        with (
            _precise(settings.precision, run.running.device),
            signals.wait() if waits else contextlib.nullcontext(),
        ):
            for t, batch in zip(run.steps_left(), drawn, strict=False):
                if objective.refresh_every and t % objective.refresh_every == 0:
                    run.note(take.flush())
                    objective.refresh()
                run.note(take(batch, settings.temperature(t), settings.learning_rate(t)))
                check = (t + 1) % settings.check_every == 0
                stop, due = signals.asked(t), saving is not None and saving.checkpoints.due
                if check or due or stop is not None:
                    run.note(take.flush())
                if check:
                    run.check(t, monitor)
                    step.renew()
                _pause(stop, saving, due)
                if run.over:
                    break
            run.note(take.flush())
            if run.n_noted:  # of the steps after the last check, callbacks are told as well
                run.check(run.n_steps - 1, None)
                _pause(signals.asked(0), saving, saving is not None and saving.checkpoints.due)
    except KeyboardInterrupt as stop:
        run.note(take.flush())
        raise Interrupted(run.end(), getattr(stop, "signal", signal.SIGINT)) from stop
    except torch.OutOfMemoryError as error:
        raise torch.OutOfMemoryError(_out_of_memory(batches, settings)) from error
    finally:
        step.close()
    return run.end()


def _pause(stop: int | None, saving: _Saving | None, due: bool) -> None:
    """Between two steps: a checkpoint if it is due, or if a signal asks to stop; then stop."""
    if saving is not None and (due or stop is not None):
        saving.write()
    if stop is not None:
        raise Stopped(stop)


def _out_of_memory(batches: Iterable[Batch], settings: Settings) -> str:
    """What to change."""
    shape = getattr(batches, "shape", None)
    steps = "" if shape is None else f" of {shape[0]} restart(s) with {shape[1]} rows each"
    also = " or choose precision='bfloat16'" if settings.precision != "bfloat16" else ""
    return (
        f"the device has no memory for a step{steps} ({settings.phase}): lower batch_size, n_init "
        f"or the widths of the encoder,{also} or train on another device"
    )


class _Step:
    """One step of the optimiser."""

    def __init__(
        self, objective: Objective, settings: Settings, generators: Sequence[torch.Generator]
    ) -> None:
        self.objective, self.settings, self.generators = objective, settings, generators
        kind, low = settings.optimizer, settings.precision == "bfloat16"
        self.optimizer: Optimizer = (
            kind(objective)
            if callable(kind)
            else make_optimizer(kind, objective, whole=settings.clip is not None, low=low)
        )
        self.early = self.optimizer if isinstance(self.optimizer, EarlyAdam) else None
        first = objective.parameters()[0]
        self.device, self.ones = first.device, torch.ones_like(_flat(first)[:, 0])  # (R,)
        self.side = Side(self.device, self.ones, self.early)
        self.names: list[str] = []

    def __call__(self, batch: Batch, temperature: float | Tensor, rate: float | Tensor) -> Tensor:
        """Take it; return the parts of the loss, (1, P, R)."""
        objective, settings = self.objective, self.settings
        objective.batch = batch
        self.optimizer.zero_grad()
        with self.side.open():
            if self.early is not None:
                self.early.begin(rate)
            with _autocast(settings.precision, self.device):
                parts = objective.loss(batch, temperature, self.generators)
            if processes.many():
                parts = {name: value * batch.share for name, value in parts.items()}
            join()
            # restarts share no parameter: the sum keeps them apart
            torch.autograd.backward(parts["loss"], self.ones)
        self.names = list(parts)
        values = [value.detach() for value in parts.values()]
        stacked = torch.stack(values) if len(values) > 1 else values[0].unsqueeze(0)
        if processes.many():
            gradients = [p.grad for p in objective.parameters() if p.grad is not None]
            processes.sum_in_place([*gradients, stacked])
        if settings.clip is not None:
            _clip(objective.parameters(), settings.clip)
        self.optimizer.step(rate)  # after the gradients that were computed behind
        objective.after_step(batch)
        return stacked.unsqueeze(0)

    def flush(self) -> Tensor:
        """No step waits: no losses, (0, 1, 1)."""
        return torch.empty((0, 1, 1))

    def renew(self) -> None:
        """After others than a step have changed the state."""
        if self.early is not None:
            self.early.renew()

    def close(self) -> None:
        """Leave the objective as a step found it."""
        self.objective.noise = None
        if self.early is not None:
            self.early.close()


class _Graph(NamedTuple):
    """Recorded steps, and where they leave what others look at."""

    graph: torch.cuda.CUDAGraph
    parts: Tensor
    """(n, P, R), of their losses."""
    last: Batch


class _Recorded:
    """Steps recorded as a CUDA graph: the same kernels on the same memory, launched as one.

    The reading of the rows is part of it. What changes from step to step is written to fixed places
    before: row numbers, noise, temperature, learning rate. Steps wait until there are a few of
    them: launching one alone may take the host longer than the device takes for it, and between two
    launches the device rests. Noise is drawn outside: a graph that draws from R generators sets
    each of them up, with two kernels, before it runs.
    """

    #: Steps that run before the recording, so that all that is set up once is set up.
    n_before = 3
    #: Steps that are launched together, of at most so many rows of all restarts: what is launched
    #: side by side has its memory to itself until the launch is recorded.
    together, most_rows = 8, 2**14

    def __init__(self, step: _Step, batches: Batches) -> None:
        self.step, self.batches, self.device = step, batches, step.device
        objective, like = step.objective, step.objective.parameters()[0]
        R, B = batches.shape
        # what a step draws itself has its turn among the shuffles
        most = 1 if objective.draws else self.together
        self.size = max(1, min(most, self.most_rows // (R * B)))
        self.index = torch.zeros((self.size, R, B), dtype=torch.int64, device=self.device)
        self.temperature, self.rate = torch.zeros((2, self.size), device=self.device)
        self.written: dict[tuple[str, int], float] = {}
        self.stream = torch.cuda.Stream(self.device, priority=-1)  # type: ignore[no-untyped-call]
        self.drawing = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        shape = objective.noise_shape(B)
        self.noise: Tensor | None = None
        if shape is not None and not objective.draws:
            self.noise, self.drawn = like.new_zeros(2, self.size, *shape)
            self.drawn.record_stream(self.drawing)
        self.drawing.wait_stream(torch.cuda.current_stream(self.device))
        self.graphs: dict[int, _Graph] = {}
        self.waiting: list[Tensor] = []
        self.n_taken = 0

    def __call__(self, index: Tensor, temperature: float, rate: float) -> Tensor:
        """Take the step, or let it wait; return the losses of the steps taken, (n, P, R)."""
        place = len(self.waiting)
        for name, value in (("temperature", temperature), ("rate", rate)):
            if self.written.get((name, place)) != value:
                self.written[name, place] = value
                getattr(self, name)[place].fill_(value)
        if self.noise is not None:  # drawn while the steps before are taken
            with torch.cuda.stream(self.drawing):
                F.draw_exponential_(self.drawn[place], self.step.generators)
        self.waiting.append(index)
        self.n_taken += 1
        if self.n_taken > self.n_before and len(self.waiting) < self.size:
            return self.step.flush()
        return self.flush()

    def flush(self) -> Tensor:
        """Take the steps that wait; return their losses, (n, P, R), until the next ones."""
        n = len(self.waiting)
        if not n:
            return self.step.flush()
        torch.stack(self.waiting, out=self.index[:n])
        self.waiting.clear()
        here = torch.cuda.current_stream(self.device)
        if self.noise is not None:
            here.wait_stream(self.drawing)
            F.gumbel_from_exponential_(self.noise[:n].copy_(self.drawn[:n]))
            self.drawing.wait_stream(here)  # not for the steps, which are launched after this
        if self.n_taken > self.n_before:
            steps = self._graph(n)
            steps.graph.replay()
            self.step.objective.batch = steps.last
            return steps.parts
        self.stream.wait_stream(here)
        with torch.cuda.stream(self.stream):
            parts = self._take(0)
        here.wait_stream(self.stream)
        return parts

    def _graph(self, n: int) -> _Graph:
        """Of n steps."""
        if n not in self.graphs:
            graph = torch.cuda.CUDAGraph()
            if self.step.objective.draws:
                for generator in self.step.generators:
                    graph.register_generator_state(generator)
            with torch.cuda.graph(graph, stream=self.stream):
                taken = [self._take(place) for place in range(n)]
                parts = torch.cat(taken) if n > 1 else taken[0]
            self.graphs[n] = _Graph(graph, parts, self.step.objective.batch)
        return self.graphs[n]

    def _take(self, place: int) -> Tensor:
        if self.noise is not None:
            self.step.objective.noise = self.noise[place]
        batch = self.batches.take(self.index[place])
        return self.step(batch, self.temperature[place], self.rate[place])


class _Run:
    """Losses since the last check, and the states of restarts that need not, or cannot, go on."""

    #: What a checkpoint holds of it as it is.
    held = ("running", "failed_at", "collapsed", "taken", "kept", "drawn", "n_steps", "over")

    def __init__(
        self, step: _Step, callbacks: Sequence[Callback], restarts: Sequence[bool] | None
    ) -> None:
        self.step, self.callbacks, self.settings = step, callbacks, step.settings
        self.objective, self.generators = step.objective, step.generators
        processes.copy_from_first(self.objective.state())
        self.drawn = [generator.get_state() for generator in self.generators]
        R, device = len(step.ones), step.device
        self.running = torch.tensor([True] * R if restarts is None else restarts, device=device)
        self.failed_at = torch.full((R,), -1, dtype=torch.int64, device=device)
        self.collapsed = torch.zeros(R, dtype=torch.bool, device=device)
        self.taken = torch.zeros(R, dtype=torch.int64, device=device)
        self.kept = [part.detach().clone() for part in self.objective.state()]
        self.trace = torch.empty(0)  # (check_every, P, R), losses of a step each
        self.n_noted = 0  # steps of it since the last check
        self.n_steps = 0
        self.over = False
        self.history: list[Event] = []

    def steps_left(self) -> range:
        """Numbers of the steps that are not taken yet."""
        return range(self.n_steps, self.n_steps if self.over else self.settings.n_steps)

    def note(self, parts: Tensor) -> None:
        """Remember the losses of some steps, (n, P, R), on the device.

        In one place: small tensors that are kept, each among what its step has freed, would leave
        the heap in pieces that later steps do not fit in, so that it grows with their number.
        """
        n = len(parts)
        if not n:
            return
        if not len(self.trace):
            most = min(self.settings.check_every, self.settings.n_steps)
            self.trace = parts.new_empty(most, *parts.shape[1:])
        self.trace[self.n_noted : self.n_noted + n] = parts
        self.n_noted += n
        self.n_steps += n

    def check(self, step: int, monitor: Monitor | None) -> None:
        """Look after the restarts, and whether the phase is over."""
        event = self._read_losses()
        told = self.callbacks if processes.first() else ()
        ask_to_stop = [callback(event) is True for callback in told]
        if monitor is not None and bool(self.running.any()):
            with _autocast(self.settings.precision, self.running.device):
                seen = monitor.check(step, self.running)
            verdict = self._agreed(seen)
            discard = verdict.discard & self.running
            self.collapsed |= discard
            self.running &= ~discard
            self._keep(self.running)
            self.running &= ~verdict.stop
        else:
            self._keep(self.running)
        self.over = bool(processes.largest(any(ask_to_stop))) or not bool(self.running.any())

    def _agreed(self, verdict: Verdict) -> Verdict:
        """That of the first process; and its state, where a monitor or a rounding changed it."""
        if not processes.many():
            return verdict
        verdict = Verdict(verdict.stop.clone(), verdict.discard.clone())
        drawn = [generator.get_state() for generator in self.generators]
        processes.copy_from_first([*self.objective.state(), *verdict, *drawn])
        for generator, state in zip(self.generators, drawn, strict=True):
            generator.set_state(state)
        return verdict

    def end(self) -> Outcome:
        """Bring back the kept states of restarts that are not at their last step."""
        if self.n_noted:
            self._read_losses()
        with torch.no_grad():
            for part, kept in zip(self.objective.state(), self.kept, strict=True):
                part.copy_(torch.where(_over(self.running, part), part, kept))
        # what a restart draws next must not depend on how long the others went on
        for generator, state, running in zip(
            self.generators, self.drawn, self.running.tolist(), strict=True
        ):
            if not running:
                generator.set_state(state)
        return Outcome(self.taken, self.failed_at, self.collapsed, self.history)

    def state(self) -> dict[str, Any]:
        """All of it, for a checkpoint."""
        return {name: getattr(self, name) for name in self.held} | {
            "trace": self.trace[: self.n_noted].clone() if self.n_noted else None,
            "names": self.step.names,
            "history": [asdict(event) for event in self.history],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state` of another gave."""
        if state["trace"] is not None:
            self.note(state["trace"])
        for name in self.held:
            setattr(self, name, state[name])
        self.drawn = [drawn.cpu() for drawn in self.drawn]
        self.step.names = state["names"]
        self.history = [Event(**event) for event in state["history"]]

    def _read_losses(self) -> Event:
        trace, self.n_noted = self.trace[: self.n_noted], 0  # (T, P, R)
        first = self.n_steps - len(trace)
        finite = trace.isfinite().all(1)  # (T, R)
        failed = self.running & ~(finite.all(0) & _finite(self.objective.state()))
        at = first + finite.long().argmin(0)  # the first False; the last step if only the state is
        at = torch.where(finite.all(0), self.n_steps - 1, at)
        self.failed_at = torch.where(failed, at, self.failed_at)
        self.taken += self.running * len(trace)
        self.running &= ~failed
        means = trace.double().mean(0).tolist()
        event = Event(
            self.settings.phase,
            self.n_steps,
            self.settings.n_steps,
            dict(zip(self.step.names, means, strict=True)),
            self.running.tolist(),
        )
        self.history.append(event)
        logger.info("%s: step %d of %d: %s", event.phase, event.step, event.n_steps, event.losses)
        return event

    @torch.no_grad()
    def _keep(self, restarts: Tensor) -> None:
        for part, kept in zip(self.objective.state(), self.kept, strict=True):
            kept.copy_(torch.where(_over(restarts, part), part, kept))
        for r, kept_too in enumerate(restarts.tolist()):
            if kept_too:
                self.drawn[r] = self.generators[r].get_state()


class _Saving:
    """The loop between two steps, to a checkpoint and back.

    Tensors are brought back to where they lie: a recorded step knows them by address.
    """

    #: Names of the rows that a monitor or an objective looks at: the data has them.
    from_data = ("rows", "sample", "noise", "batch")

    def __init__(
        self, checkpoints: Checkpoints, run: _Run, batches: Batches, monitor: Monitor | None
    ) -> None:
        self.checkpoints, self.run, self.step = checkpoints, run, run.step
        self.batches, self.monitor = batches, monitor
        self.optimizer = cast("TorchOptimizer", self.step.optimizer)
        if (loop := checkpoints.take_loop()) is not None:
            self._restore(loop)

    def write(self) -> None:
        """Write a checkpoint."""
        self.checkpoints.write(self._state())

    def _state(self) -> dict[str, Any]:
        place = self.batches.place
        return {
            "tensors": self._tensors(),
            "run": self.run.state(),
            "optimizer": self.optimizer.state(),
            "generators": [generator.get_state() for generator in self.step.generators],
            "place": None if place is None else list(place),
        }

    @torch.no_grad()
    def _restore(self, loop: Mapping[str, Any]) -> None:
        for name, tensor in self._tensors().items():
            tensor.copy_(loop["tensors"][name])
        self.run.restore(loop["run"])
        self.optimizer.restore(loop["optimizer"])
        for generator, state in zip(self.step.generators, loop["generators"], strict=True):
            generator.set_state(state.cpu())
        if loop["place"] is not None:
            began, taken = loop["place"]
            self.batches.place = Place([state.cpu() for state in began], taken)
        self.step.renew()

    def _tensors(self) -> dict[str, Tensor]:
        """All that the objective and the monitor are made of."""
        objective = self.step.objective
        found = {f"state.{i}": part for i, part in enumerate(objective.state())}
        known = {id(part) for part in found.values()}
        for word, holder in (("objective", objective), ("monitor", self.monitor)):
            for name, held in ({} if holder is None else vars(holder)).items():
                # a watch and an objective keep some of their numbers in named tuples
                parts = held._asdict() if hasattr(held, "_asdict") else {"": held}
                found |= {
                    f"{word}.{name}.{part}": tensor
                    for part, tensor in parts.items()
                    if isinstance(tensor, Tensor)
                    and id(tensor) not in known
                    and name not in self.from_data
                }
        return found


def _over(restarts: Tensor, like: Tensor) -> Tensor:
    """A value a restart, (R, 1, ...), to broadcast over ``like``."""
    return restarts.view(-1, *[1] * (like.ndim - 1))


def _finite(state: Sequence[Tensor]) -> Tensor:
    parts = [_flat(part.detach()).isfinite().all(1) for part in state]
    return torch.stack(parts).all(0)


def _flat(part: Tensor) -> Tensor:
    """A row for each restart, (R, ...) to (R, n); of a module's scalar, (R,) to (R, 1)."""
    return part.reshape(len(part), -1)


@torch.no_grad()
def _clip(parameters: Sequence[Tensor], largest: float) -> None:
    """Scale down each restart's gradient on its own: a common norm would couple them."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    parts = [torch.linalg.vector_norm(_flat(g), dim=1) for g in gradients]
    norms = torch.stack(parts).norm(dim=0)  # (R,)
    scale = (largest / norms.clamp_min(torch.finfo(norms.dtype).tiny)).clamp_max(1.0)
    for gradient in gradients:
        gradient *= _over(scale, gradient)


@contextlib.contextmanager
def _precise(precision: Precision, device: torch.device) -> Iterator[None]:
    """TF32 products on CUDA while it lasts, if asked for, and none if not."""
    if device.type != "cuda":
        yield
        return
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def _autocast(precision: Precision, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")
