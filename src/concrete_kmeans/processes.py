"""Many processes, by torch.distributed: who has which rows, and what all of them know.

Every process runs the same program on the same input and holds the same state. Inside
:func:`together`, work on rows is split: each process does its own part of them (:func:`own`), and
what is global is exchanged by the functions here. Elsewhere, and in one process, these functions
exchange nothing and give back what they were given. Restarts of a fit can be shared out among teams
of processes first (:func:`split`).
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from concrete_kmeans.validation import check_positive_int

__all__ = [
    "alone",
    "bytes_by_first",
    "copy_from_first",
    "exchange",
    "first",
    "from_first",
    "gather",
    "largest",
    "many",
    "n_teams",
    "number_from_first",
    "own",
    "rank",
    "restarted",
    "several",
    "share",
    "size",
    "split",
    "started",
    "sum_all",
    "sum_in_place",
    "sum_with_gradient",
    "teams",
    "together",
]


class _Team(NamedTuple):
    """The processes that share the rows of a fit."""

    rank: int
    size: int
    group: Any = None
    """Of torch.distributed; None is all processes."""
    n_teams: int = 1
    """That share out the restarts of a fit."""


_ALONE = _Team(0, 1)
#: None outside :func:`together` and :func:`alone`.
_team: ContextVar[_Team | None] = ContextVar("team", default=None)
#: Asked for by :func:`teams`; None leaves it to :func:`split`.
_n_teams: ContextVar[int | None] = ContextVar("n_teams", default=None)


# --------------------------------------------------------------------------------------------------
# who works with whom


@contextlib.contextmanager
def started(device: str = "auto") -> Iterator[None]:
    """Under torchrun, the process group while it lasts; elsewhere nothing.

    Parameters
    ----------
    device : str, default="auto"
        Where the work is to be. Unless it is the CPU, and if there is CUDA, each process takes the
        GPU of its number on this machine, and nccl carries what is there; gloo carries the rest.
    """
    if not dist.is_available() or not dist.is_torchelastic_launched() or dist.is_initialized():
        yield
        return
    # Its functions keep the group that is there when they are first imported, as torch.optim does:
    # a group whose threads outlive destroy_process_group ends now and then in an abort at exit.
    import torch.distributed.nn
    from torch.distributed.rendezvous import rendezvous  # where there is torch.distributed

    backend = "gloo"
    if device != "cpu" and torch.cuda.is_available():
        gpu, there = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
        if gpu >= there:
            raise ValueError(
                f"--nproc-per-node of torchrun must be at most {there}, the GPUs of this machine, "
                f"got {os.environ['LOCAL_WORLD_SIZE']}; or compute on the CPU"
            )
        torch.cuda.set_device(gpu)
        backend = "cpu:gloo,cuda:nccl"
    store, number, count = next(rendezvous("env://"))
    if os.environ["GROUP_WORLD_SIZE"] == "1":
        # processes that were started again would find the addresses of those before them (PyTorch
        # issue 135712); machines count their restarts apart, so that of several it is no help
        attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
        store = dist.PrefixStore(attempt, store)  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=store, rank=number, world_size=count)
    try:
        yield
    finally:
        dist.destroy_process_group()


def restarted() -> bool:
    """Whether torchrun has started this process again, after one of them was lost."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Share the work on rows with all processes of the group, if there is one, while it lasts.

    All of them have to do the same meanwhile. Inside :func:`alone` it changes nothing.

    Examples
    --------
    >>> with together():
    ...     rank(), size(), own(10)
    (0, 1, slice(0, 10, None))
    """
    if _team.get() is not None or not _initialised():
        yield
        return
    with _set(_Team(dist.get_rank(), dist.get_world_size())):
        yield


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Work on all rows in this process, whatever the others do, while it lasts."""
    with _set(_ALONE):
        yield


@contextlib.contextmanager
def teams(count: int | None) -> Iterator[None]:
    """Let fits share out their restarts among so many teams of processes while it lasts.

    Processes of a team share the rows of its restarts. One team is rows only; None is the default:
    as many as divide both the processes and the restarts. Results are the same to rounding.

    Examples
    --------
    >>> with teams(2), split(4) as own:  # one process is one team
    ...     own
    range(0, 4)
    """
    if count is not None:
        check_positive_int("teams", count, also="None")
    before = _n_teams.set(count)
    try:
        yield
    finally:
        _n_teams.reset(before)


@contextlib.contextmanager
def split(n_restarts: int) -> Iterator[range]:
    """Inside :func:`together`, make teams while it lasts; yields the restarts of this one's."""
    world = _team.get() or _ALONE
    count = _n_teams.get() or math.gcd(world.size, n_restarts)
    if world.size == 1 or count == 1:
        yield range(n_restarts)
        return
    if world.size % count or count > n_restarts:
        raise ValueError(
            f"teams must divide the {world.size} processes, and be at most the {n_restarts} "
            f"restart(s) of n_init, got {count}"
        )
    size = world.size // count
    # every process has to take part in making every group
    groups = [dist.new_group(list(range(i * size, (i + 1) * size))) for i in range(count)]
    number = world.rank // size
    try:
        with _set(_Team(world.rank % size, size, groups[number], count)):
            yield range(n_restarts * number // count, n_restarts * (number + 1) // count)
    finally:
        dist.destroy_process_group(groups[number])


def exchange(data: bytes) -> list[bytes]:
    """Inside :func:`split`, what the first of each team has."""
    team = _team.get() or _ALONE
    if team.n_teams == 1:
        return [data]
    with _set(_Team(dist.get_rank(), dist.get_world_size())):
        return [_send(data, number * team.size) for number in range(team.n_teams)]


@contextlib.contextmanager
def _set(team: _Team) -> Iterator[None]:
    before = _team.set(team)
    try:
        yield
    finally:
        _team.reset(before)


def _initialised() -> bool:
    return dist.is_available() and dist.is_initialized()


def several() -> bool:
    """Whether there are other processes in the group, shared with or not."""
    return _initialised() and dist.get_world_size() > 1


def many() -> bool:
    """Whether rows are shared with other processes here."""
    return size() > 1


def rank() -> int:
    """Number of this process among those that share the rows."""
    return (_team.get() or _ALONE).rank


def size() -> int:
    """How many processes share the rows."""
    return (_team.get() or _ALONE).size


def n_teams() -> int:
    """How many teams share out the restarts."""
    return (_team.get() or _ALONE).n_teams


def first() -> bool:
    """Whether this process writes and shows: the first of all, or one that works alone."""
    return not _initialised() or _team.get() is _ALONE or dist.get_rank() == 0


def own(n: int) -> slice:
    """The part of ``n`` rows that this process works on; parts differ by one row at most."""
    return _part(n, rank())


def share(n: int) -> float:
    """That part over the whole."""
    part = own(n)
    return float((part.stop - part.start) / n)


def _part(n: int, number: int) -> slice:
    if n < size():
        raise ValueError(
            f"{n} row(s) cannot be shared by {size()} processes, which need one each at least: "
            "start fewer processes, or give more rows or a larger batch"
        )
    return slice(n * number // size(), n * (number + 1) // size())


# --------------------------------------------------------------------------------------------------
# what is exchanged


def sum_all(part: Tensor, weight: float | None = None) -> Tensor:
    """Sum over the processes, each times its weight; no gradient flows."""
    if not many():
        return part
    total = part.detach().clone() if weight is None else part.detach() * weight
    sum_in_place([total])
    return total


@torch.no_grad()
def sum_in_place(parts: Sequence[Tensor]) -> None:
    """Add up tensors over the processes, as one message for each type."""
    _as_one(parts, lambda flat: dist.all_reduce(flat, group=_group()))


@torch.no_grad()
def copy_from_first(parts: Sequence[Tensor]) -> None:
    """Overwrite tensors by those of the first process, as one message for each type."""
    _as_one(parts, lambda flat: dist.broadcast(flat, group=_group(), group_src=0))


def sum_with_gradient(part: Tensor, weight: float) -> Tensor:
    """Sum over the processes, each times its weight; what all ask of it flows back to each part.

    That is the gradient of the sum of the losses of all processes.
    """
    if not many():
        return part
    total: Tensor = _SumAll.apply(part * weight)  # type: ignore[no-untyped-call]
    return total


class _SumAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:  # noqa: ARG004
        return sum_all(part)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # noqa: ARG004
        return sum_all(gradient)


def gather(part: Tensor, n: int, dim: int = 0) -> Tensor:
    """All ``n`` rows along an axis, from the part of each process (:func:`own`)."""
    if not many():
        return part
    part = part.detach().movedim(dim, 0)
    longest = -(-n // size())
    padded = part.new_zeros(longest, *part.shape[1:])
    padded[: len(part)] = part
    sent = _carried(padded)
    found = sent.new_empty(size(), *padded.shape)
    dist.all_gather(list(found), sent, group=_group())
    parts = [_part(n, number) for number in range(size())]
    whole = [rows[: own.stop - own.start] for rows, own in zip(found, parts, strict=True)]
    return torch.cat(whole).movedim(0, dim).to(part.device)


def from_first(value: Tensor) -> Tensor:
    """The value of the first process: what a decision rests on must be the same in all."""
    if not many():
        return value
    held = value.detach().clone(memory_format=torch.contiguous_format)
    copy_from_first([held])
    return held


def number_from_first(value: int) -> int:
    """A whole number of the first process."""
    return int(from_first(torch.tensor(value))) if many() else value


def largest(value: int) -> int:
    """The largest of a number of each process."""
    if not many():
        return value
    held = _carried(torch.tensor([value]))
    dist.all_reduce(held, dist.ReduceOp.MAX, group=_group())
    return int(held)


def bytes_by_first(work: Callable[[], bytes]) -> bytes:
    """What ``work`` gives in the first process; if it fails there, all fail."""
    if not many():
        return work()
    data, failure = b"", None
    if rank() == 0:
        try:
            data = work()
        except Exception as error:  # noqa: BLE001  # raised again when the others know
            failure = error
    failed = number_from_first(failure is not None)
    if failure is not None:
        raise failure
    if failed:
        raise RuntimeError("the first process failed; its error says why")
    return _send(data, 0)


def _send(data: bytes, source: int) -> bytes:
    """What one of the processes has."""
    length = torch.tensor([len(data)])
    _as_one([length], lambda flat: dist.broadcast(flat, group=_group(), group_src=source))
    held = torch.zeros(int(length), dtype=torch.uint8)
    if rank() == source and data:
        held = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    _as_one([held], lambda flat: dist.broadcast(flat, group=_group(), group_src=source))
    return held.numpy().tobytes()


def _group() -> Any:
    return (_team.get() or _ALONE).group


def _as_one(parts: Sequence[Tensor], exchange: Callable[[Tensor], object]) -> None:
    """Exchange tensors in place, those of one type as one."""
    if not many():
        return
    for kind in dict.fromkeys((part.dtype, part.device) for part in parts):
        same = [part for part in parts if (part.dtype, part.device) == kind]
        flat = _carried(torch.cat([part.detach().reshape(-1) for part in same]))
        exchange(flat)
        start = 0
        for part in same:
            part.copy_(flat[start : start + part.numel()].view(part.shape))
            start += part.numel()


def _carried(tensor: Tensor) -> Tensor:
    """The tensor where the group can exchange it: nccl knows no other memory than the GPU's."""
    if tensor.device.type == "cpu" and dist.get_backend(_group()) == "nccl":
        return tensor.cuda()
    return tensor
