"""What moves parameters along their gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from concrete_kmeans import processes
from concrete_kmeans.fused import hopper_for, kernels_for
from concrete_kmeans.objectives.base import Objective
from concrete_kmeans.streams import aside, behind

__all__ = ["DirectAdam", "EarlyAdam", "Optimizer", "TorchOptimizer", "make_optimizer"]


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


class DirectAdam(TorchOptimizer):
    """Torch's Adam, called without what its class does around it: the steps are counted at once."""

    def __init__(self, objective: Objective) -> None:
        super().__init__("adam", objective)
        self.parameters: list[Any] = [p for p in objective.parameters() if p.requires_grad]
        self.steps = self.parameters[0].new_zeros(len(self.parameters), dtype=torch.float32)
        for p, step in zip(self.parameters, self.steps, strict=True):
            moments = {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
            self.inner.state[p] = {"step": step} | moments
        self._hold()

    def _hold(self) -> None:
        names, states = ("exp_avg", "exp_avg_sq", "step"), self.inner.state
        self.held = [[states[p][name] for p in self.parameters] for name in names]

    def restore(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Take over what :meth:`state` of another gave; steps are counted where they lie."""
        super().restore(state)
        for p, step in zip(self.parameters, self.steps, strict=True):
            step.copy_(self.inner.state[p]["step"])
            self.inner.state[p]["step"] = step
        self._hold()

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for p in self.parameters:
            p.grad = None

    @torch.no_grad()
    def step(self, rate: float | Tensor) -> None:
        """Move the parameters."""
        gradients = [p.grad for p in self.parameters]
        if any(gradient is None for gradient in gradients):
            super().step(rate)  # it knows whose turn it is not
            return
        self.steps += 1.0
        (first, second, steps), group = self.held, self.inner.param_groups[0]
        beta1, beta2 = group["betas"]
        move: Any = torch._fused_adam_
        move(
            self.parameters, gradients, first, second, [], steps,
            lr=rate, beta1=beta1, beta2=beta2, eps=group["eps"],
            weight_decay=0.0, amsgrad=False, maximize=False,
        )  # fmt: skip


class EarlyAdam(DirectAdam):
    """Adam on CUDA that moves a parameter as soon as its gradient is there.

    A layer's weight and bias are moved by the kernel that computes their gradient, if it can;
    others, when autograd has it. The state is that of torch's. ``low`` keeps copies in bfloat16.
    """

    def __init__(self, objective: Objective, kernels: Any, *, low: bool) -> None:
        super().__init__(objective)
        self.kernels = kernels
        self.at: dict[int, Any] = {p.data_ptr(): p for p in self.parameters}
        """Parameters by address."""
        self.copies: dict[int, Tensor] = {}
        """Of parameters, by address, as the next products read them."""
        if low:
            self.copies = {a: p.detach().bfloat16() for a, p in self.at.items()}
        group = self.inner.param_groups[0]
        self.pace = kernels.Pace(self.steps.new_zeros(2), group["betas"], group["eps"])
        self.hooks = [p.register_post_accumulate_grad_hook(self._move) for p in self.parameters]

    def begin(self, rate: float | Tensor) -> None:
        """Before the backward pass: count the step, at this rate."""
        with aside():
            rate = torch.as_tensor(rate, dtype=torch.float32, device=self.steps.device)
            self.kernels.count(self.steps, rate, self.pace)

    def step(self, rate: float | Tensor) -> None:
        """Nothing is left to move."""

    def move_layer(self, weight: int, bias: int, rows: Tensor, gradient: Tensor) -> bool:
        """Move weight and bias of a layer, by address, along the gradient they have by these.

        If both are its own to move: whether they are.
        """
        known = weight in self.at and bias in self.at
        if known:
            both = [self._adam(self.at[address]) for address in (weight, bias)]
            hopper = None if both[0].copy is None else hopper_for(rows, gradient)
            if hopper is None:
                self.kernels.move_layer(rows, gradient, *both, self.pace)
            else:
                hopper.move_layer(rows, gradient, both[0], both[1][:3], *self.pace)
        return known

    @torch.no_grad()
    def renew(self) -> None:
        """After others have changed the parameters."""
        for address, copy in self.copies.items():
            copy.copy_(self.at[address])

    def close(self) -> None:
        """Move nothing any more."""
        for hook in self.hooks:
            hook.remove()

    @torch.no_grad()
    def _move(self, parameter: Tensor) -> None:
        gradient = parameter.grad
        if gradient is None:  # it has been moved with its layer
            return
        with behind(None, gradient):
            self.kernels.move(gradient.contiguous(), self._adam(parameter), self.pace)
        parameter.grad = None

    def _adam(self, parameter: Tensor) -> Any:
        state, copy = self.inner.state[parameter], self.copies.get(parameter.data_ptr())
        return self.kernels.Adam(parameter, state["exp_avg"], state["exp_avg_sq"], copy)


def make_optimizer(
    kind: Literal["adam", "sgd"], objective: Objective, *, whole: bool = False, low: bool = False
) -> TorchOptimizer:
    """The fastest there is; ``whole`` if it needs all gradients at once, ``low`` for bfloat16."""
    if kind == "adam" and not whole and not processes.many():
        kernels = kernels_for(*objective.parameters())
        if kernels is not None and all(p.is_contiguous() for p in objective.parameters()):
            return EarlyAdam(objective, kernels, low=low)
    on_cpu = all(p.device.type == "cpu" for p in objective.parameters())
    return DirectAdam(objective) if kind == "adam" and on_cpu else TorchOptimizer(kind, objective)
