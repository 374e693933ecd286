"""What moves parameters along their gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol, cast

import torch
from torch import Tensor

from concrete_kmeans import processes
from concrete_kmeans.fused import kernels_for
from concrete_kmeans.objectives.base import Objective
from concrete_kmeans.streams import Side, behind

__all__ = ["EarlyAdam", "Optimizer", "TorchOptimizer", "make_optimizer"]


class Optimizer(Protocol):
    """Moves an objective's parameters along their gradients."""

    def zero_grad(self) -> None:
        """Forget the gradients."""

    def step(self, rate: float | Tensor) -> None:
        """Move the parameters."""


class TorchOptimizer:
    """One of torch's optimisers; all of them work entry by entry, so restarts stay apart."""

    def __init__(self, kind: Literal["adam", "sgd"], objective: Objective) -> None:
        # torch.optim takes a second to import: only who trains a network waits for it
        parameters: Any = objective.parameters()
        if kind == "adam":
            capturable = parameters[0].device.type == "cuda"
            self.inner: torch.optim.Optimizer = torch.optim.Adam(
                parameters, fused=True, capturable=capturable
            )
        else:
            self.inner = torch.optim.SGD(parameters, lr=1.0, momentum=0.9, fused=True)

    def zero_grad(self) -> None:
        """Forget the gradients."""
        self.inner.zero_grad()

    def step(self, rate: float | Tensor) -> None:
        """Move the parameters."""
        self.inner.param_groups[0]["lr"] = rate
        self.inner.step()

    def state(self) -> dict[str, dict[str, Tensor]]:
        """What it remembers, by number of the parameter and name."""
        return {str(i): held for i, held in self.inner.state_dict()["state"].items()}

    def restore(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Take over what :meth:`state` of another gave."""
        remembered = {int(i): dict(held) for i, held in state.items()}
        groups = self.inner.state_dict()["param_groups"]
        self.inner.load_state_dict({"state": remembered, "param_groups": groups})


class EarlyAdam(TorchOptimizer):
    """Adam on CUDA that moves a large parameter as soon as its gradient is there.

    torch's own moves the rest after the backward pass; the state is that of torch's. Its kernel
    gives a block 65,536 numbers: too few blocks to fill the device with one restart's weights.
    """

    #: Numbers of a large parameter, at least.
    large = 2**16

    def __init__(self, objective: Objective, kernels: Any) -> None:
        super().__init__("adam", objective)
        self.kernels, self.rate = kernels, torch.empty(0)
        parameters: list[Any] = [p for p in objective.parameters() if p.numel() >= self.large]
        self.parameters = parameters
        self.hooks = [p.register_post_accumulate_grad_hook(self._move) for p in parameters]

    def begin(self, rate: float | Tensor) -> None:
        """Before the backward pass: count the step, at this rate."""
        if not self.parameters:
            return
        state = self.inner.state
        for p in self.parameters:
            if not state[p]:
                state[p]["step"] = torch.zeros((), device=p.device)
                state[p] |= {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
        torch._foreach_add_([state[p]["step"] for p in self.parameters], 1.0)
        self.rate = torch.as_tensor(rate, dtype=torch.float32, device=self.parameters[0].device)

    def close(self) -> None:
        """Move nothing any more."""
        for hook in self.hooks:
            hook.remove()

    @torch.no_grad()
    def _move(self, parameter: Tensor) -> None:
        gradient, state = cast("Tensor", parameter.grad), self.inner.state[parameter]
        group = self.inner.param_groups[0]
        copies = {} if Side.of_step is None else Side.of_step.copies
        with behind(None, gradient):
            self.kernels.move(
                parameter,
                gradient.contiguous(),
                state["exp_avg"],
                state["exp_avg_sq"],
                rate=self.rate,
                step=state["step"],
                copy=copies.get(parameter.data_ptr(), (None, None))[1],
                betas=group["betas"],
                eps=group["eps"],
            )
        parameter.grad = None  # nothing is left to do for torch's


def make_optimizer(
    kind: Literal["adam", "sgd"], objective: Objective, *, whole: bool = False
) -> TorchOptimizer:
    """The fastest there is; ``whole`` if it must have all gradients before it moves anything."""
    if kind == "adam" and not whole and not processes.many():
        kernels = kernels_for(*objective.parameters())
        if kernels is not None and all(p.is_contiguous() for p in objective.parameters()):
            return EarlyAdam(objective, kernels)
    return TorchOptimizer(kind, objective)
