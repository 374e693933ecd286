"""Autoencoders for R restarts that train together.

Every parameter and buffer has the restarts on its first axis, ``(R, ...)``: restart ``r`` of a
stack computes what it would compute alone, and one optimiser step moves all of them. Rows are
flat, ``(R, B, D)``, or ``(B, D)`` when all restarts see the same batch.
"""

from __future__ import annotations

import contextlib
import copy
import math
import numbers
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple, TypeAlias, cast, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.func import functional_call
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parameter import is_lazy

from concrete_kmeans import products
from concrete_kmeans.fused import hopper_for, kernels_for_products
from concrete_kmeans.streams import behind, lowered, moved, use
from concrete_kmeans.validation import check_choice, check_positive_int, check_sizes

__all__ = [
    "Autoencoder",
    "Principal",
    "StackedLinear",
    "StackedModule",
    "Stacking",
    "build_autoencoder",
    "default_widths",
    "principal_components",
]

Stacking = Literal["vmap", "loop"]
Network: TypeAlias = str | Sequence[int] | nn.Module | Callable[[], nn.Module]

CODE_SIZE = 10
#: Whether torch gives float32 products of bfloat16 numbers on CUDA: 2.6 does not.
WIDE_RESULTS = hasattr(torch.ops.aten.bmm, "dtype")
#: Rows of all restarts from which on, in bfloat16, a GPU is full with one kernel at a time.
MANY = 2**11
HIDDEN = (500, 500)
# Guo et al. (2017), "Deep clustering with convolutional autoencoders".
CHANNELS = (32, 64, 128)
KERNELS = (5, 5, 3)


class Principal(NamedTuple):
    """What :func:`principal_components` returns."""

    mean: Tensor
    """Mean of the rows (D,)."""
    components: Tensor
    """Orthonormal columns (D, d), those of the largest variance first."""


@torch.no_grad()
def principal_components(chunks: Iterable[Tensor], n_components: int) -> Principal:
    """Principal components of rows that come in chunks, in float64.

    Means and scatters of the chunks are merged by the rule of Chan et al. (1979), so that data far
    from the origin keep their digits. The largest entry of each component is positive.

    Parameters
    ----------
    chunks : iterable of Tensor of shape (B, D)
        Read once; B may differ.
    n_components : int
        At most D.

    Returns
    -------
    Principal
        ``(mean, components)``.

    Examples
    --------
    >>> rows = torch.tensor([[1.0, 5.0], [2.0, 5.0], [6.0, 5.0]])
    >>> mean, components = principal_components([rows[:2], rows[2:]], n_components=1)
    >>> mean.tolist(), components.abs().tolist()
    ([3.0, 5.0], [[1.0], [0.0]])
    """
    n_components = check_positive_int("n_components", n_components)
    n, mean, scatter = 0, torch.empty(0), torch.empty(0)
    for chunk in chunks:
        if chunk.ndim != 2 or (n and chunk.shape[1] != len(mean)):
            width = len(mean) if n else "D"
            raise ValueError(f"chunks must be (B, {width}), got one of {tuple(chunk.shape)}")
        if not len(chunk):
            continue
        rows = chunk.to(torch.float64)
        if not n:
            mean, scatter = rows.new_zeros(rows.shape[1]), rows.new_zeros(2 * rows.shape[1:])
        rows_mean = rows.mean(0)
        rows, step = rows - rows_mean, rows_mean - mean
        weight = len(rows) / (n + len(rows))
        scatter.addmm_(rows.mT, rows).addr_(step, step, alpha=n * weight)
        mean += weight * step
        n += len(rows)
    if not n:
        raise ValueError("chunks must hold at least one row, got none")
    if not scatter.isfinite().all():
        raise ValueError("chunks must be finite; they hold NaN or inf")
    if n_components > len(mean):
        raise ValueError(f"n_components must be at most D = {len(mean)}, got {n_components}")
    components = torch.linalg.eigh(scatter).eigenvectors[:, -n_components:].flip(1)  # (D, d)
    largest = components.gather(0, components.abs().argmax(0, keepdim=True))  # (1, d)
    return Principal(mean, components * largest.sign())


def default_widths(n_features: int, n_rows: int | None = None) -> tuple[int, ...]:
    """Widths of the default encoder: two hidden layers and the code.

    Hidden layers have 500 units, or as many as there are rows when those are fewer (50 at least);
    the code has 10, or as many as there are features.

    Parameters
    ----------
    n_features : int
    n_rows : int, optional

    Returns
    -------
    tuple of int
        The last is the size of the code.

    Examples
    --------
    >>> default_widths(784), default_widths(4, n_rows=150)
    ((500, 500, 10), (150, 150, 4))
    """
    n_features = check_positive_int("n_features", n_features)
    rows = max(HIDDEN) if n_rows is None else check_positive_int("n_rows", n_rows, also="None")
    return (*(min(width, max(rows, 50)) for width in HIDDEN), min(CODE_SIZE, n_features))


class _Layers(torch.autograd.Function):
    """Linear layers in a row, some with a ReLU; what autograd would do, in fewer passes.

    In the dtype of autocast, if it is on; the gradients of weights and biases are float32 all the
    same. On CUDA there may be none: the optimiser of a step moves a layer when its turn comes.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, relus: Sequence[bool], *parameters: Tensor) -> Tensor:
        weights, biases = parameters[::2], parameters[1::2]
        ctx.relus, ctx.used = relus, [use(weight) for weight in weights]
        ctx.biases = [bias.data_ptr() for bias in biases]
        dtype = _dtype_of(weights[0])
        lower = [lowered(weight, dtype) for weight in weights]
        values = [_in_line(rows.to(dtype))]
        for weight, bias, relu in zip(lower, biases, relus, strict=True):
            values.append(_affine(values[-1], weight, bias, relu))
        ctx.save_for_backward(*values, *lower)
        return values[-1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        n = len(ctx.relus)
        values, weights = ctx.saved_tensors[: n + 1], ctx.saved_tensors[n + 1 :]
        to_parameters: list[Tensor | None] = []
        if ctx.relus[-1]:
            gradient = torch.ops.aten.threshold_backward(gradient, values[-1], 0)
        for i in reversed(range(n)):
            rows, here, back = values[i], gradient.contiguous(), None
            if i or ctx.needs_input_grad[0]:
                back = _to_rows(here, weights[i], rows if i and ctx.relus[i - 1] else None)
            # after all that reads the weight; the last one, where nothing else is left to do
            beside = back is not None and _leaves_room(rows, here)
            with behind(ctx.used[i], rows, here) if beside else contextlib.nullcontext():
                both = ctx.used[i], ctx.biases[i]
                if kernels_for_products(rows, here) and moved(*both, rows, here):
                    to_parameters[:0] = None, None
                else:
                    to_parameters[:0] = _to_layer(rows, here)
            gradient = cast("Tensor", back)
        return back, None, *to_parameters


def _leaves_room(rows: Tensor, gradient: Tensor) -> bool:
    """Whether a layer's gradients run beside the way back through the layers.

    With 15 restarts in bfloat16 each is in the other's way: 227 ms an epoch one after the other,
    232 side by side; in TF32 it is 306 and 299. The kernel for Hopper's GPUs leaves room.
    """
    few = rows.dtype != torch.bfloat16 or rows.shape[0] * rows.shape[1] < MANY
    return few or hopper_for(rows, gradient) is not None


def _in_line(rows: Tensor) -> Tensor:
    """Rows (R, B, in) as the kernels read them, which on CUDA know the restarts' distance only."""
    if rows.is_cuda and rows.stride()[1:] != (rows.shape[2], 1):
        return rows.contiguous()
    return rows


def _affine(rows: Tensor, weight: Tensor, bias: Tensor, relu: bool) -> Tensor:
    """``rows @ weight + bias``, cut at zero if asked for."""
    if kernels := kernels_for_products(rows, weight):
        return cast("Tensor", kernels.affine(rows, weight, bias, relu=relu))
    bias = bias.to(rows.dtype)
    if (fast := _each(products.linear, rows, weight.mT, bias[:, 0], relu=relu)) is not None:
        return fast
    if rows.is_cuda and len(rows) == 1:  # with the bias in the pass of the product
        out = torch.addmm(bias[0, 0], rows[0], weight[0]).unsqueeze(0)
    else:
        out = torch.baddbmm(bias, rows, weight)
    return out.relu_() if relu else out


def _to_rows(gradient: Tensor, weight: Tensor, after: Tensor | None) -> Tensor:
    """Gradient for the rows of a layer; before the ReLU that gave them, if it is ``after`` one."""
    if kernels := kernels_for_products(gradient, weight):
        return cast("Tensor", kernels.to_rows(gradient, weight, after))
    back = _each(products.linear, gradient, weight)
    back = torch.bmm(gradient, weight.mT) if back is None else back
    if after is None:
        return back
    cut = torch.ops.aten.threshold_backward.grad_input
    return cast("Tensor", cut(back, after, 0, grad_input=back))


def _to_layer(rows: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients for weight and bias of a layer, float32 at least."""
    if kernels := kernels_for_products(rows, gradient):
        return cast("tuple[Tensor, Tensor]", kernels.to_layer(rows, gradient))
    if rows.is_cuda and rows.dtype == torch.bfloat16 and WIDE_RESULTS:
        to_weight = torch.bmm(rows.mT, gradient, out_dtype=torch.float32)
    elif (fast := _each(products.transposed, rows, gradient)) is not None:
        to_weight = fast
    else:
        to_weight = torch.bmm(rows.mT, gradient)
        to_weight = to_weight.float() if rows.dtype == torch.bfloat16 else to_weight
    return to_weight, gradient.sum(1, keepdim=True, dtype=to_weight.dtype)


def _each(product: Callable[..., Tensor | None], *factors: Tensor, **given: bool) -> Tensor | None:
    """A product of each restart (R, ...), if it is faster than that of all at once."""
    first = product(*(factor[0] for factor in factors), **given)
    if first is None or len(factors[0]) == 1:
        return None if first is None else first.unsqueeze(0)
    others = [
        product(*(factor[r] for factor in factors), **given) for r in range(1, len(factors[0]))
    ]
    return torch.stack([first, *cast("list[Tensor]", others)])


def _run(layers: Sequence[StackedLinear], rows: Tensor) -> Tensor:
    """Map (R, B, in), or (B, in) shared by all restarts, to (R, B, out), layer after layer."""
    # An expanded batch is not copied: the product runs on it with a stride of zero.
    rows = rows.expand(len(layers[0].weight), -1, -1)
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        parameters = [p for layer in layers for p in (layer.weight, layer.bias)]
        relus = [layer.relu for layer in layers]
        return cast("Tensor", _Layers.apply(rows, relus, *parameters))  # type: ignore[no-untyped-call]
    for layer in layers:
        if torch.compiler.is_compiling():  # into torch's own operations, which others can read
            rows = _add_product(layer.bias, rows, layer.weight)
            rows = rows.relu_() if layer.relu else rows
        else:
            dtype = _dtype_of(layer.weight)
            rows, weight = _in_line(rows.to(dtype)), layer.weight.to(dtype)
            rows = _affine(rows, weight, layer.bias, layer.relu)
    return rows


def _add_product(base: Tensor, rows: Tensor, weight: Tensor) -> Tensor:
    """``base + rows @ weight``, of R restarts each."""
    if torch.compiler.is_compiling():  # torch 2.6 exports no baddbmm of an open number of rows
        return base + rows @ weight
    return torch.baddbmm(base, rows, weight)


def _dtype_of(weight: Tensor) -> torch.dtype:
    """What products with these weights are computed in."""
    kind = weight.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype


class StackedLinear(nn.Module):
    """R linear layers side by side, each with a ReLU behind it if asked for.

    Parameters
    ----------
    weight : Tensor of shape (R, in, out)
    bias : Tensor of shape (R, 1, out)
    relu : bool, default=False

    Examples
    --------
    >>> layer = StackedLinear(torch.ones(2, 3, 1), torch.tensor([[[0.0]], [[5.0]]]))
    >>> layer(torch.ones(4, 3)).shape
    torch.Size([2, 4, 1])
    """

    def __init__(self, weight: Tensor, bias: Tensor, *, relu: bool = False) -> None:
        super().__init__()
        if weight.ndim != 3 or bias.shape != (len(weight), 1, weight.shape[2]):
            raise ValueError(
                f"weight and bias must be (R, in, out) and (R, 1, out), "
                f"got {tuple(weight.shape)} and {tuple(bias.shape)}"
            )
        self.weight, self.bias, self.relu = nn.Parameter(weight), nn.Parameter(bias), relu

    def forward(self, rows: Tensor) -> Tensor:
        """Map (R, B, in), or (B, in) shared by all, to (R, B, out)."""
        return _run([self], rows)

    def extra_repr(self) -> str:
        """One line for ``repr``."""
        shape = "n_restarts={}, in_features={}, out_features={}".format(*self.weight.shape)
        return f"{shape}, relu={self.relu}"


class _StackedLayers(nn.Sequential):
    """:class:`StackedLinear` after another."""

    def forward(self, rows: Tensor) -> Tensor:
        return _run(cast("list[StackedLinear]", list(self)), rows)


class _ResidualEncoder(nn.Module):
    """Principal components plus a network: (x - mean) P + g(x)."""

    def __init__(self, mean: Tensor, components: Tensor, network: nn.Module) -> None:
        super().__init__()
        self.mean, self.components = nn.Parameter(mean), nn.Parameter(components)
        self.network = network

    def forward(self, rows: Tensor) -> Tensor:
        return _add_product(self.network(rows), rows - self.mean, self.components)


class _ResidualDecoder(nn.Module):
    """The way back from principal components plus a network: z P^T + mean + h(z)."""

    def __init__(self, linear: StackedLinear, network: nn.Module) -> None:
        super().__init__()
        self.linear, self.network = linear, network

    def forward(self, codes: Tensor) -> Tensor:
        return cast("Tensor", self.linear(codes) + self.network(codes))


class StackedModule(nn.Module):
    """R copies of any module side by side, each with its own parameters and buffers.

    The template gives the computation; its own weights are dropped. A parameter ``0.weight`` of the
    template is here the stacked parameter ``stack.0/weight``.

    Parameters
    ----------
    template : nn.Module
        Maps (B, *row_shape) to (B, ...). It is copied, not changed.
    row_shape : tuple of int
        Shape of one row as the template takes it.
    parameters, buffers : mapping of str to Tensor
        By the template's names, each of shape (R, ...).
    seeds : sequence of int
        One a restart, for modules that draw random numbers in training.
    stacking : {"vmap", "loop"}, default="vmap"
        ``"vmap"`` runs all copies at once, but not modules that draw random numbers, replace their
        buffers or branch on values. ``"loop"`` runs any module, one copy after the other.
    grouped : bool, default=False
        Instead of ``"vmap"``, run an ``nn.Sequential`` of convolutions, linear layers and ReLU as
        one network with R groups of channels: less copying between layers.

    Notes
    -----
    A module with dropout (or another layer of torch that draws, or one whose attribute
    ``draws_in_training`` is true) runs in training under a generator state of its own: pass ``t``
    of restart ``r`` is seeded by ``(seeds[r], t)``, and the global generators are put back. The
    buffers ``seeds`` and ``passes`` keep the count, so a saved state draws on where it stopped.
    A module that draws and does not say so reads torch's global generator.

    Examples
    --------
    >>> weights = {"weight": torch.ones(2, 1, 3), "bias": torch.tensor([[0.0], [5.0]])}
    >>> stacked = StackedModule(nn.Linear(3, 1), (3,), weights, {}, seeds=[0, 1])
    >>> stacked(torch.ones(4, 3))[:, 0, 0].tolist()
    [3.0, 8.0]
    """

    template: nn.Module
    seeds: Tensor
    passes: Tensor

    def __init__(
        self,
        template: nn.Module,
        row_shape: tuple[int, ...],
        parameters: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
        *,
        seeds: Sequence[int],
        stacking: Stacking = "vmap",
        grouped: bool = False,
    ) -> None:
        super().__init__()
        self.n_restarts, self.grouped = len(seeds), grouped
        self.row_shape = row_shape
        self.stacking = check_choice("stacking", stacking, get_args(Stacking))
        # Set past nn.Module, which would register it: its tensors are shapes without values.
        object.__setattr__(self, "template", _without_values(template).train())
        self.draws = any(map(_draws_in_training, template.modules()))
        self.stack = nn.Module()
        trainable = {name: p.requires_grad for name, p in template.named_parameters()}
        for name, value in parameters.items():
            self.stack.register_parameter(
                name.replace(".", "/"), nn.Parameter(value, requires_grad=trainable[name])
            )
        for name, value in buffers.items():
            self.stack.register_buffer(name.replace(".", "/"), value)
        if self.draws:
            self.register_buffer("seeds", torch.tensor(seeds))
            self.register_buffer("passes", torch.zeros(self.n_restarts, dtype=torch.int64))

    def forward(self, rows: Tensor) -> Tensor:
        """Map (R, B, n), or (B, n) shared by all, to (R, B, m)."""
        rows = rows.reshape(*rows.shape[:-1], *self.row_shape)  # a view of flat rows
        shared = rows.ndim == 1 + len(self.row_shape)
        parameters: dict[str, Tensor] = {
            n.replace("/", "."): p for n, p in self.stack.named_parameters()
        }
        buffers = {n.replace("/", "."): b for n, b in self.stack.named_buffers()}
        if self.stacking == "vmap" and self.grouped:
            return self._groups(parameters, rows, shared=shared)
        if self.stacking == "vmap" and (parameters or buffers):
            return self._vmap(parameters, buffers, rows, None if shared else 0)
        if shared:
            rows = rows.expand(self.n_restarts, *rows.shape)
        return self._loop(parameters, buffers, rows)

    def _groups(self, parameters: dict[str, Tensor], rows: Tensor, *, shared: bool) -> Tensor:
        """All copies as one network: maps are (B, R * C, H, W), vectors (R, B, n)."""
        x, R = rows, self.n_restarts
        if not shared and rows.ndim > 3:
            x = _side_by_side(x)
        elif shared and rows.ndim == 2:
            x = rows.expand(R, -1, -1)
        # On an H200 in bfloat16 a first layer of 32 channels takes a third of the time so; in TF32
        # it takes twice as long.
        fast = x.is_cuda and torch.is_autocast_enabled("cuda")
        layout = torch.channels_last if fast else torch.contiguous_format
        for name, layer in self.template.named_children():
            weight, bias = parameters.get(f"{name}.weight"), parameters.get(f"{name}.bias")
            if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
                of_all = cast("Tensor", weight).flatten(0, 1).contiguous(memory_format=layout)
                groups = R if x.shape[1] == R * layer.in_channels else 1
                given = (x.contiguous(memory_format=layout), of_all, cast("Tensor", bias).flatten())
                if isinstance(layer, nn.Conv2d):
                    x = nn.functional.conv2d(
                        *given, stride=layer.stride, padding=layer.padding, groups=groups
                    )
                else:
                    x = nn.functional.conv_transpose2d(
                        *given,
                        stride=layer.stride,
                        padding=cast("tuple[int, int]", layer.padding),
                        output_padding=cast("tuple[int, int]", layer.output_padding),
                        groups=groups,
                    )
            elif isinstance(layer, nn.Linear):
                x = torch.baddbmm(cast("Tensor", bias).unsqueeze(1), x, cast("Tensor", weight).mT)
            elif isinstance(layer, nn.ReLU):
                x = x.relu()
            elif isinstance(layer, nn.Flatten):
                x = self._apart(x)
            else:
                size = cast("nn.Unflatten", layer).unflattened_size
                x = _side_by_side(x.reshape(*x.shape[:2], *cast("tuple[int, ...]", size)))
        return self._apart(x) if x.ndim == 4 else x

    def _apart(self, maps: Tensor) -> Tensor:
        """Maps (B, R * C, H, W) as rows (R, B, C * H * W)."""
        R, (n_rows, n_maps, *sides) = self.n_restarts, maps.shape
        return maps.view(n_rows, R, n_maps // R, *sides).transpose(0, 1).flatten(2)

    def _vmap(
        self,
        parameters: dict[str, Tensor],
        buffers: dict[str, Tensor],
        rows: Tensor,
        rows_dim: int | None,
    ) -> Tensor:
        over_restarts = torch.vmap(self._one, in_dims=(0, 0, rows_dim), randomness="error")
        try:
            return over_restarts(parameters, buffers, rows)
        except RuntimeError as error:
            # Only what vmap cannot do; any other error is the module's, and "loop" has it as well.
            if not any(w in str(error) for w in ("vmap", "batched tensor", "Batching rule")):
                raise
            raise RuntimeError(
                f"stacking='vmap' cannot run {type(self.template).__name__}; "
                f"stacking='loop' runs it. What vmap met: {error}"
            ) from error

    def _one(
        self, parameters: dict[str, Tensor], buffers: dict[str, Tensor], rows: Tensor
    ) -> Tensor:
        state = parameters | buffers
        out = functional_call(self.template, state, (rows,))
        for name, buffer in buffers.items():
            if state[name] is not buffer:  # functional_call puts what the module set into the dict
                raise RuntimeError(f"vmap would lose the new value of the buffer {name!r}")
        return cast("Tensor", out.flatten(1))

    def _loop(
        self, parameters: dict[str, Tensor], buffers: dict[str, Tensor], rows: Tensor
    ) -> Tensor:
        parts = {name: p.unbind() for name, p in parameters.items()}  # backward stacks them once
        draws = self.training and self.draws
        out = []
        for r in range(self.n_restarts):
            own = {name: b[r] for name, b in buffers.items()}  # views: in-place updates arrive
            state = {name: p[r] for name, p in parts.items()} | own
            if draws:
                seed = _mix(int(self.seeds[r]), int(self.passes[r]))
                with _seeded(seed, rows.device):
                    result = functional_call(self.template, state, (rows[r],))
            else:
                result = functional_call(self.template, state, (rows[r],))
            out.append(result.flatten(1))
            with torch.no_grad():
                for name, buffer in own.items():
                    if state[name] is not buffer:  # the module set it anew
                        buffer.copy_(state[name])
        if draws:
            self.passes += 1
        return torch.stack(out)

    def train(self, mode: bool = True) -> StackedModule:
        """Set the mode of the template, too."""
        self.template.train(mode)
        return super().train(mode)

    def extra_repr(self) -> str:
        """One line for ``repr``."""
        return (
            f"{type(self.template).__name__}, n_restarts={self.n_restarts}, "
            f"stacking={self.stacking!r}"
        )


def _side_by_side(maps: Tensor) -> Tensor:
    """Maps (R, B, C, H, W) as (B, R * C, H, W)."""
    return maps.transpose(0, 1).flatten(1, 2)


class Autoencoder(nn.Module):
    """R encoders and decoders side by side; :func:`build_autoencoder` makes them.

    Parameters
    ----------
    encoder : nn.Module
        Maps (R, B, D), or (B, D) shared by all restarts, to (R, B, d).
    decoder : nn.Module
        Maps (R, B, d) to (R, B, D).
    feature_shape : tuple of int
        Shape of one row; D is its product.
    code_size : int
        d.
    n_restarts : int
        R.
    description : mapping
        What :meth:`description` returns.
    built_in : bool
        No part of it is a user's module.

    Attributes
    ----------
    n_features : int
        D.
    unit : bool
        Whether codes are compared by direction alone; see :meth:`set_unit`.
    lengths : Tensor of shape (R,)
        Where they are, the mean length of a code.

    Examples
    --------
    >>> autoencoder = build_autoencoder((8, 2), "auto", (5,), seeds=[0, 1, 2])
    >>> codes = autoencoder.encode(torch.zeros(4, 5))
    >>> codes.shape, autoencoder.decode(codes).shape
    (torch.Size([3, 4, 2]), torch.Size([3, 4, 5]))
    >>> autoencoder.select([2, 0]).n_restarts
    2
    """

    lengths: Tensor

    def __init__(
        self,
        encoder: nn.Module,
        decoder: nn.Module,
        *,
        feature_shape: tuple[int, ...],
        code_size: int,
        n_restarts: int,
        description: Mapping[str, Any],
        built_in: bool = False,
    ) -> None:
        super().__init__()
        self.built_in = built_in
        self.encoder, self.decoder = encoder, decoder
        self.feature_shape, self.n_features = feature_shape, math.prod(feature_shape)
        self.code_size, self.n_restarts = code_size, n_restarts
        self._description = dict(description)
        self.unit = False

    def set_unit(self, unit: bool) -> Autoencoder:
        """Compare codes by direction alone, or as they are; return the same autoencoder."""
        self.unit = self._description["unit"] = bool(unit)
        lengths = next(self.parameters()).detach().new_ones(self.n_restarts) if unit else None
        self.register_buffer("lengths", lengths)
        return self

    def points(self, codes: Tensor) -> Tensor:
        """Codes as they are compared with centres: scaled to unit length if :attr:`unit`."""
        return nn.functional.normalize(codes, dim=-1) if self.unit else codes

    def decode_points(self, points: Tensor) -> Tensor:
        """Decode (R, B, d) of what :meth:`points` gives, each at the mean length of a code."""
        return self.decode(points * self.lengths.view(-1, 1, 1) if self.unit else points)

    def forward(self, rows: Tensor) -> Tensor:
        """Decode the codes of ``rows``: (R, B, D), or (B, D) shared by all, to (R, B, D)."""
        return self.decode(self.encode(rows))

    def encode(self, rows: Tensor) -> Tensor:
        """Map (R, B, D), or (B, D) shared by all restarts, to (R, B, d)."""
        shape = tuple(rows.shape)
        stacked = rows.ndim == 3 and shape[::2] == (self.n_restarts, self.n_features)
        if not stacked and (rows.ndim != 2 or shape[1] != self.n_features):
            raise ValueError(
                f"rows must be ({self.n_restarts}, B, {self.n_features}) or "
                f"(B, {self.n_features}), got {shape}"
            )
        return cast("Tensor", self.encoder(rows))

    def decode(self, codes: Tensor) -> Tensor:
        """Map (R, B, d) to (R, B, D)."""
        if codes.ndim != 3 or codes.shape[::2] != (self.n_restarts, self.code_size):
            raise ValueError(
                f"codes must be ({self.n_restarts}, B, {self.code_size}), got {tuple(codes.shape)}"
            )
        return cast("Tensor", self.decoder(codes))

    def select(self, restarts: Sequence[int] | slice | Tensor) -> Autoencoder:
        """A new autoencoder with copies of those restarts' state, in that order.

        Parameters
        ----------
        restarts : sequence of int, slice, or Tensor of indices or of bools
        """
        every = list(range(self.n_restarts))
        if isinstance(restarts, slice):
            index = torch.tensor(every[restarts])
        else:
            index = torch.as_tensor(restarts).cpu()
        if index.ndim != 1 or not len(index):
            raise ValueError(f"restarts must name at least one restart, as [0], got {restarts!r}")
        index = torch.tensor(every)[index]
        # deepcopy takes what its memo holds in place of a copy.
        memo: dict[int, Any] = {}
        for p in self.parameters():
            memo[id(p)] = nn.Parameter(p.detach()[index.to(p.device)], p.requires_grad)
        for b in self.buffers():
            memo[id(b)] = b[index.to(b.device)]
        chosen = copy.deepcopy(self, memo)
        for module in chosen.modules():
            if isinstance(module, Autoencoder | StackedModule):
                module.n_restarts = len(index)
        return chosen

    def description(self) -> dict[str, Any]:
        """The arguments of :func:`build_autoencoder` that made this, ready for JSON.

        ``build_autoencoder(**description, seeds=...)`` builds the same again (``"residual"`` needs
        ``principal`` as well). A user's module stands there by the name of its class.
        """
        return copy.deepcopy(self._description)


def build_autoencoder(
    encoder: Network,
    decoder: Network,
    feature_shape: Sequence[int],
    *,
    seeds: Sequence[int],
    code_size: int | None = None,
    n_rows: int | None = None,
    principal: Principal | None = None,
    stacking: Stacking = "vmap",
    unit: bool = False,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Autoencoder:
    """Build an autoencoder for each seed, stacked.

    The built-in kinds start from Glorot uniform weights and zero biases, drawn on the CPU in
    float64 by a generator of each restart's own: a restart's weights depend on its seed alone, not
    on the other restarts, the dtype or the device. Global random states are left as they were.

    Parameters
    ----------
    encoder : sequence of int, str, nn.Module or callable
        - widths, ``(500, 500, 2000, 10)``: an MLP with ReLU between its layers; the last width is
          the code.
        - ``"mlp"``: an MLP with :func:`default_widths`.
        - ``"residual"``: ``(x - mean) P + g(x)``, with the principal components P and an MLP g
          whose last layer starts at zero; all of it is trained.
        - ``"conv"``: up to three convolutions of stride 2, then a linear layer. Flat rows are taken
          for square images of one or three channels.
        - a module that maps (B, *feature_shape) to (B, d): each restart starts from its weights.
        - a function without arguments that returns such a module: called once a restart with
          torch's generators seeded by the restart's seed.
    decoder : "auto", sequence of int, nn.Module or callable
        ``"auto"`` mirrors a built-in encoder, and is an MLP for a user's module. Widths are those
        of the hidden layers, from the code to the output. A module maps (B, d) to
        (B, *feature_shape) or (B, D). A function is called right after the encoder's.
    feature_shape : sequence of int
        Shape of one row, ``(64,)`` or ``(1, 28, 28)``.
    seeds : sequence of int
        One a restart.
    code_size : int, optional
        Size of the code for ``"mlp"``, ``"residual"`` and ``"conv"``; 10 at most by default.
    n_rows : int, optional
        Of the data, for :func:`default_widths`.
    principal : Principal, optional
        For ``"residual"``; see :func:`principal_components`.
    stacking : {"vmap", "loop"}, default="vmap"
        How convolutions and a user's modules run; see :class:`StackedModule`.
    unit : bool, default=False
        For :meth:`Autoencoder.set_unit`.
    dtype, device : optional
        Of the parameters.

    Returns
    -------
    Autoencoder

    Examples
    --------
    >>> autoencoder = build_autoencoder("conv", "auto", (1, 9, 9), seeds=[0, 1], code_size=3)
    >>> autoencoder(torch.zeros(4, 81)).shape
    torch.Size([2, 4, 81])
    >>> autoencoder = build_autoencoder(lambda: nn.Linear(6, 2), (16,), (6,), seeds=[0, 1])
    >>> autoencoder.encode(torch.zeros(4, 6)).shape
    torch.Size([2, 4, 2])
    """
    shape = check_sizes("feature_shape", feature_shape)
    site = _Site(shape, seeds, stacking, dtype, torch.device(device))
    encoders, decoders = site.user_modules(encoder=encoder, decoder=decoder)
    *hidden, size = default_widths(site.n_features, n_rows)
    if encoders:
        kind, size = "module", site.code_size_of(encoders[0])
    elif not isinstance(encoder, str):
        kind, (*hidden, size) = "mlp", check_sizes("encoder", encoder)
    else:
        kind = check_choice("encoder", encoder, ("mlp", "residual", "conv"))
        size = size if code_size is None else check_positive_int("code_size", code_size)
        if kind == "residual":
            principal = _check_principal(principal, site.n_features)
            size = principal.components.shape[1]
    if code_size not in (None, size):
        raise ValueError(f"code_size must be None or {size}, as encoder has it, got {code_size!r}")
    widths = (site.n_features, *hidden, size)
    forth = site.network("encoder", kind, widths, encoders, principal)

    hidden_back = hidden[::-1]
    kind_back = "module" if decoders else "mlp" if kind == "module" else kind
    if decoders:
        site.check_decoder(decoders[0], size)
    elif isinstance(decoder, str):
        check_choice("decoder", decoder, ("auto",))
    else:
        hidden_back = list(check_sizes("decoder", decoder, least=0))
        kind_back = "mlp" if kind == "conv" else kind_back
    widths = (size, *hidden_back, site.n_features)
    back = site.network("decoder", kind_back, widths, decoders, principal)

    said_forth = kind if kind != "mlp" else [*hidden, size]
    said_back = decoder if isinstance(decoder, str) else hidden_back
    description = {
        "encoder": type(encoders[0]).__qualname__ if encoders else said_forth,
        "decoder": type(decoders[0]).__qualname__ if decoders else said_back,
        "feature_shape": list(shape),
        "code_size": size,
        "n_rows": n_rows if n_rows is None else int(n_rows),
        "stacking": stacking,
    }
    return Autoencoder(
        forth,
        back,
        feature_shape=shape,
        code_size=size,
        n_restarts=len(site.seeds),
        description=description,
        built_in=not (encoders or decoders),
    ).set_unit(unit)


class _Site:
    """What the networks of one call have in common: restarts, sizes, and the kind of tensors."""

    def __init__(
        self,
        shape: tuple[int, ...],
        seeds: Sequence[int],
        stacking: Stacking,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.shape, self.n_features = shape, math.prod(shape)
        self.seeds = _check_seeds(seeds)
        self.generators = [torch.Generator().manual_seed(seed) for seed in self.seeds]
        self.stacking: Stacking = check_choice("stacking", stacking, get_args(Stacking))
        if not dtype.is_floating_point:
            raise ValueError(f"dtype must be a floating point type, got {dtype}")
        self.dtype, self.device = dtype, device

    def network(
        self,
        name: str,
        kind: str,
        widths: tuple[int, ...],
        modules: Sequence[nn.Module],
        principal: Principal | None,
    ) -> nn.Module:
        forth = name == "encoder"
        if kind == "module":
            return self.stacked(name, modules, self.shape if forth else widths[:1])
        if kind == "conv":
            image = _image_shape(self.shape)
            if forth:
                return self.drawn(name, _conv_encoder(image, widths[-1]), image)
            return self.drawn(name, _conv_decoder(image, widths[0]), widths[:1])
        network = self.mlp(widths, zero_end=kind == "residual")
        if kind == "mlp" or principal is None:
            return network
        mean, components = self.same(principal.mean[None]), self.same(principal.components)
        if forth:
            return _ResidualEncoder(mean, components, network)
        return _ResidualDecoder(StackedLinear(components.mT.contiguous(), mean), network)

    def mlp(self, widths: Sequence[int], *, zero_end: bool = False) -> nn.Sequential:
        padded = [widths[0], *(_aligned(width) for width in widths[1:-1]), widths[-1]]
        layers: dict[str, nn.Module] = {}
        for i, ((n_in, n_out), shape) in enumerate(
            zip(pairwise(widths), pairwise(padded), strict=True)
        ):
            last = i == len(widths) - 2
            weight = torch.zeros(len(self.seeds), *shape, dtype=self.dtype, device=self.device)
            drawn = self.glorot(
                n_in, n_out
            )  # the last layer's as well: the next draws stay as they are
            if not (last and zero_end):
                weight[:, :n_in, :n_out] = drawn
            bias = self.same(torch.zeros(1, shape[1]))
            layers[str(2 * i)] = StackedLinear(weight, bias, relu=not last)  # ReLUs count as well
        return _StackedLayers(OrderedDict(layers))

    def drawn(self, name: str, template: nn.Module, row_shape: tuple[int, ...]) -> StackedModule:
        """A built-in template with weights of each restart's own."""
        weights = {
            key: self.glorot(*p.shape) if p.ndim > 1 else self.same(torch.zeros(p.shape))
            for key, p in template.named_parameters()
        }
        return self.module(name, template, row_shape, weights, {}, grouped=True)

    def stacked(
        self, name: str, modules: Sequence[nn.Module], row_shape: tuple[int, ...]
    ) -> StackedModule:
        """A user's modules, one a restart."""
        parameters = [dict(module.named_parameters()) for module in modules]
        buffers = [dict(module.named_buffers()) for module in modules]
        shapes = [
            {k: tuple(v.shape) for k, v in (p | b).items()}
            for p, b in zip(parameters, buffers, strict=True)
        ]
        for other in shapes:
            if other != shapes[0]:
                raise ValueError(
                    f"{name} must return the same network at each call, "
                    f"got tensors of {shapes[0]} and {other}"
                )
        return self.module(
            name,
            modules[0],
            row_shape,
            {key: self.stack([p[key] for p in parameters]) for key in parameters[0]},
            {key: self.stack([b[key] for b in buffers]) for key in buffers[0]},
        )

    def module(
        self,
        name: str,
        template: nn.Module,
        row_shape: tuple[int, ...],
        parameters: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
        *,
        grouped: bool = False,
    ) -> StackedModule:
        # The dropout of an encoder and that of its decoder must not draw the same numbers.
        seeds = [_mix(seed, ("encoder", "decoder").index(name)) for seed in self.seeds]
        return StackedModule(
            template,
            row_shape,
            parameters,
            buffers,
            seeds=seeds,
            stacking=self.stacking,
            grouped=grouped,
        )

    def glorot(self, *shape: int) -> Tensor:
        """Uniform weights (R, *shape); the first two sizes are in and out, in either order."""
        bound = math.sqrt(6.0 / (sum(shape[:2]) * math.prod(shape[2:])))
        draws = []
        for generator in self.generators:
            draw = torch.empty(shape, dtype=torch.float64, device="cpu")
            draws.append(draw.uniform_(-bound, bound, generator=generator).to(self.dtype))
        return self.stack(draws)

    def same(self, value: Tensor) -> Tensor:
        """``value`` for each restart, (R, ...)."""
        return self.stack([value] * len(self.seeds))

    def stack(self, values: Sequence[Tensor]) -> Tensor:
        stacked = torch.stack([value.detach() for value in values])
        dtype = self.dtype if stacked.is_floating_point() else stacked.dtype
        return stacked.to(self.device, dtype)

    def user_modules(self, **networks: Network) -> list[list[nn.Module]]:
        """For each network a module a restart; none where the network is a built-in kind."""
        found: list[list[nn.Module]] = [[] for _ in networks]
        for seed in self.seeds:
            with _seeded(seed, self.device):
                for modules, (name, network) in zip(found, networks.items(), strict=True):
                    if callable(network):
                        modules.append(_called(name, network))
        return found

    def code_size_of(self, encoder: nn.Module) -> int:
        out = self.probe("encoder", encoder, self.shape)
        if len(out) != 2 or out[0] != 2 or not out[1]:
            raise ValueError(
                f"encoder must map (B, {_csv(self.shape)}) to (B, d); "
                f"(2, {_csv(self.shape)}) came out as {out}"
            )
        return out[1]

    def check_decoder(self, decoder: nn.Module, size: int) -> None:
        out = self.probe("decoder", decoder, (size,))
        if out not in ((2, *self.shape), (2, self.n_features)):
            raise ValueError(
                f"decoder must map (B, {size}) to (B, {_csv(self.shape)}) or "
                f"(B, {self.n_features}); (2, {size}) came out as {out}"
            )

    def probe(self, name: str, module: nn.Module, row_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of two rows of zeros after a copy of the module, in eval mode."""
        module = copy.deepcopy(module).to(self.device, self.dtype).eval()
        rows = torch.zeros(2, *row_shape, dtype=self.dtype, device=self.device)
        untouched = rows._version  # noqa: SLF001  # torch counts the writes
        try:
            with torch.no_grad(), _seeded(0, self.device):
                out = module(rows)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise ValueError(
                f"{name} must take rows of shape (B, {_csv(row_shape)}); "
                f"{type(module).__name__} failed on (2, {_csv(row_shape)}): {error}"
            ) from error
        if not isinstance(out, Tensor):
            raise TypeError(f"{name} must return a tensor, got {type(out).__name__}")
        if rows._version != untouched:  # noqa: SLF001  # the user's rows, or what is to be decoded
            raise ValueError(
                f"{name} must not write to its input, but {type(module).__name__} does: set "
                "inplace=False in its first layer"
            )
        return tuple(out.shape)


def _conv_encoder(image: tuple[int, int, int], size: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    sides = _sides(image)
    channels = (image[0], *CHANNELS)
    for n_in, n_out, kernel in zip(channels, channels[1:], KERNELS[: len(sides) - 1], strict=False):
        conv = nn.Conv2d(n_in, n_out, kernel, stride=2, padding=kernel // 2, device="meta")
        layers += [conv, nn.ReLU()]
    flat = channels[len(sides) - 1] * math.prod(sides[-1])
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(flat, size, device="meta"))


def _conv_decoder(image: tuple[int, int, int], size: int) -> nn.Sequential:
    sides = _sides(image)
    channels = (image[0], *CHANNELS)
    small = (channels[len(sides) - 1], *sides[-1])
    linear = nn.Linear(size, math.prod(small), device="meta")
    layers: list[nn.Module] = [linear, nn.ReLU(), nn.Unflatten(1, small)]
    for stage in reversed(range(len(sides) - 1)):
        # 2 m - 1 pixels come out of m: an even side lacks one.
        missing = tuple(1 - side % 2 for side in sides[stage])
        kernel = KERNELS[stage]
        layers += [
            nn.ConvTranspose2d(
                channels[stage + 1],
                channels[stage],
                kernel,
                stride=2,
                padding=kernel // 2,
                output_padding=cast("tuple[int, int]", missing),
                device="meta",
            ),
            nn.ReLU(),
        ]
    return nn.Sequential(*layers[:-1])


def _sides(image: tuple[int, int, int]) -> list[tuple[int, int]]:
    """Height and width before the first stage and after each."""
    sides = [image[1:]]
    while min(sides[-1]) >= 4 and len(sides) <= len(CHANNELS):
        height, width = sides[-1]
        sides.append(((height + 1) // 2, (width + 1) // 2))
    return sides


def _image_shape(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """(C, H, W) of one row."""
    if len(shape) == 1:
        for channels in (1, 3):
            side = math.isqrt(shape[0] // channels)
            if channels * side * side == shape[0]:
                shape = (channels, side, side)
                break
    elif len(shape) == 2:
        shape = (1, *shape)
    if len(shape) != 3 or min(shape[1:]) < 4:
        raise ValueError(
            f"encoder='conv' needs images of at least 4 x 4 pixels, got rows of shape {shape}: "
            "pass X as (n, channels, height, width)"
        )
    return shape[0], shape[1], shape[2]


def _aligned(width: int) -> int:
    """Units to compute for a hidden layer, a multiple of 8; those beyond ``width`` are zero.

    On an H200 the products of 500-500-2000-10 in bfloat16 take twice as long as those of 504: rows
    that do not begin at multiples of 16 bytes are read by slower kernels. A unit whose weights are
    all zero gives zero, gets no gradient and stays zero.
    """
    return -(-width // 8) * 8


def _without_values(module: nn.Module) -> nn.Module:
    """A copy whose parameters and buffers are on the meta device; tied ones stay tied."""
    memo: dict[int, Any] = {}  # deepcopy takes what its memo holds in place of a copy
    for p in module.parameters():
        memo[id(p)] = nn.Parameter(p.detach().to("meta"), requires_grad=False)
    for b in module.buffers():
        memo[id(b)] = b.detach().to("meta")
    return copy.deepcopy(module, memo)


def _draws_in_training(module: nn.Module) -> bool:
    if isinstance(module, nn.RNNBase | nn.MultiheadAttention):
        return module.dropout > 0.0
    drawing = isinstance(
        module, _DropoutNd | nn.RReLU | nn.FractionalMaxPool2d | nn.FractionalMaxPool3d
    )
    return drawing or bool(getattr(module, "draws_in_training", False))


@contextlib.contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's generators of the CPU and of ``device``, and put them back at the end."""
    cuda = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=cuda):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed all devices
        for each in cuda:
            with torch.cuda.device(each):
                torch.cuda.manual_seed(seed)
        yield


def _mix(seed: int, number: int) -> int:
    """A seed of 63 bits from two whole numbers."""
    return int(np.random.SeedSequence((seed, number)).generate_state(1, np.uint64)[0]) >> 1


def _called(name: str, network: nn.Module | Callable[[], nn.Module]) -> nn.Module:
    module = network if isinstance(network, nn.Module) else network()
    if not isinstance(module, nn.Module):
        raise TypeError(f"{name} must return an nn.Module, got {type(module).__name__}")
    if any(map(is_lazy, (*module.parameters(), *module.buffers()))):
        raise ValueError(
            f"{name} must have its parameters, but {type(module).__name__} is lazy: "
            "run it on a batch before"
        )
    return module


def _check_principal(principal: Principal | None, n_features: int) -> Principal:
    if principal is None:
        raise ValueError("encoder='residual' needs principal, see principal_components; got None")
    mean, components = principal
    if components.ndim != 2 or (*mean.shape, len(components)) != (n_features, n_features):
        raise ValueError(
            f"principal must be mean ({n_features},) and components ({n_features}, d), "
            f"got {tuple(mean.shape)} and {tuple(components.shape)}"
        )
    return principal


def _check_seeds(seeds: Any) -> tuple[int, ...]:
    allowed = "seeds must be a sequence of whole numbers from 0 to 2**63 - 1, at least one"
    if isinstance(seeds, str) or not isinstance(seeds, Iterable):
        raise TypeError(f"{allowed}, got {seeds!r}")
    whole = [isinstance(s, numbers.Integral) and not isinstance(s, bool) for s in seeds]
    if not whole or not all(whole) or min(seeds) < 0 or max(seeds) >= 2**63:
        raise ValueError(f"{allowed}, got {seeds!r}")
    return tuple(map(int, seeds))


def _csv(shape: tuple[int, ...]) -> str:
    return ", ".join(map(str, shape))
