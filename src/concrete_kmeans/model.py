"""Fitted state: networks, centres and scaling of R restarts, and what is computed from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from concrete_kmeans import functional as F
from concrete_kmeans import processes
from concrete_kmeans.data import Scaling, chunks_of, stream_of
from concrete_kmeans.lloyd import Rows, own_rows
from concrete_kmeans.memory import Parts
from concrete_kmeans.networks import Autoencoder

__all__ = ["Evaluation", "Model"]

T = TypeVar("T")

#: Numbers in the largest activation of a chunk: 16 MiB of float32 on the CPU, where it is to stay
#: in the cache, and 512 MiB on a GPU, where a chunk has to be worth its launches.
MAX_CHUNK, MAX_CHUNK_CUDA = 2**22, 2**27


class Evaluation(NamedTuple):
    """What :meth:`Model.evaluate` finds."""

    labels: Tensor
    """(R, N), int32, nearest centres."""
    inertia: Tensor
    """(R,), sum of squared distances in the code to them."""
    reconstruction: Tensor
    """(R,), mean over rows of Eq. 4."""


@dataclass(frozen=True)
class Model:
    """What a fit leaves; every tensor has the restarts on axis 0.

    Rows handed to its methods are rows as the network sees them: scaled already. Results come in
    chunks, under ``inference_mode``; inside :func:`processes.together` each process computes those
    of its own rows, and all get the whole.
    """

    network: Autoencoder
    centers: Tensor
    """(R, K, d)."""
    scaling: Scaling
    sigma2: Tensor
    """(R,), square of the width of :meth:`probabilities`."""
    gains: list[float]
    """Of each restart: what its pretrained code is worth, by :func:`starts.code_gain`."""
    kernel: Literal["gaussian", "student"] = "gaussian"
    """Eq. 5, or DEC's."""
    low: bool = False
    """Whether rows are encoded in bfloat16; what is computed from codes is float32 all the same."""

    def select(self, restart: int) -> Model:
        """The model of one restart."""
        one = slice(restart, restart + 1)
        return replace(
            self,
            network=self.network.select([restart]),
            centers=self.centers[one].clone(),
            sigma2=self.sigma2[one].clone(),
            gains=self.gains[one],
        )

    def chunk_rows(self, *, streamed: bool = False) -> int:
        """Rows computed at a time."""
        network = self.network
        on_cuda = self.centers.device.type == "cuda"
        # of a stream, pieces of 6 MiB on the CPU: larger ones leave the heap in pieces; on CUDA as
        # many rows of a stream as of those that a fit holds, so that both have the same labels
        features = network.n_features
        features = 2 * features if on_cuda else features * 5 // 2 if streamed else features
        widths = [max(p.shape[1:]) for p in network.parameters() if p.ndim > 1]
        # a convolution's output is wider than its weights: 32 channels of half the height and width
        pixels = 8 * network.n_features if len(network.feature_shape) > 1 else 0
        widest: int = max(pixels, features, *self.centers.shape[1:], *widths)
        most = MAX_CHUNK_CUDA if on_cuda else MAX_CHUNK
        return max(1, most // (network.n_restarts * widest))

    def map(self, rows: Rows, function: Callable[[Tensor], Tensor]) -> Iterator[Tensor]:
        """``function`` of the codes (R, B, d), chunk by chunk."""
        return self._each(rows, lambda _, codes: function(codes))

    @torch.inference_mode()
    def _each(self, rows: Rows, function: Callable[[Tensor, Tensor], T]) -> Iterator[T]:
        """``function`` of rows (B, D) and their codes (R, B, d), chunk by chunk."""
        self.network.eval()
        parts, streamed = Parts(), stream_of(rows) is not None
        for _, _, piece in chunks_of(rows, self.chunk_rows(streamed=streamed)):

            def compute(start: int, stop: int, piece: Tensor = piece) -> T:
                own = piece[start:stop]
                with torch.autocast(own.device.type, torch.bfloat16, enabled=self.low):
                    codes = self.network.encode(own)
                (codes,) = F.at_least_float32(codes)
                return function(own, codes)

            yield from parts(len(piece), compute)
            del piece, compute  # before the next is read

    def codes(self, rows: Rows) -> Tensor:
        """(R, N, d), as they are compared with centres."""
        return self._gather(rows, self.network.points)

    def assign(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Nearest centre of each row, int32, and its squared distance, each (R, N)."""
        n = int(rows.shape[0])
        rows = own_rows(rows)
        shape = self.network.n_restarts, int(rows.shape[0])
        labels = torch.empty(shape, dtype=torch.int32, device=self.centers.device)
        nearest = torch.empty(shape, dtype=self.centers.dtype, device=self.centers.device)
        start = 0
        for distances in self.map(rows, self._distances):
            part = slice(start, start + distances.shape[1])
            nearest[:, part], labels[:, part] = distances.min(-1)
            start = part.stop
        return processes.gather(labels, n, dim=1), processes.gather(nearest, n, dim=1)

    def evaluate(self, rows: Rows, *, decode: bool = True) -> Evaluation:
        """Clusters, inertia and error of all rows in one pass, and nothing else a row held."""
        n = int(rows.shape[0])
        rows = own_rows(rows)
        R = self.network.n_restarts
        labels = torch.empty(R, int(rows.shape[0]), dtype=torch.int32, device=self.centers.device)
        inertia = torch.zeros(R, dtype=torch.float64, device=self.centers.device)
        error = torch.zeros_like(inertia)

        def look(piece: Tensor, codes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            nearest, label = self._distances(codes).min(-1)
            lost = _error(self.network.decode(codes), piece) if decode else torch.zeros_like(error)
            return label, nearest.double().sum(-1), lost

        start = 0
        for label, nearest, lost in self._each(rows, look):
            labels[:, start : start + label.shape[1]] = label
            inertia = inertia + nearest
            error = error + lost
            start += label.shape[1]
        sums = processes.sum_all(torch.stack([inertia, error]))
        labels = processes.gather(labels, n, dim=1)
        return Evaluation(labels, sums[0], (sums[1] / n).to(self.centers.dtype))

    def mean_lengths(self, rows: Rows) -> Tensor:
        """Mean length of a code before it is scaled, (R,)."""
        return self._gather(rows, lambda codes: codes.norm(dim=-1)).mean(-1)

    def probabilities(self, rows: Rows) -> Tensor:
        """Of each cluster for each row, (R, N, K)."""
        return self._gather(rows, self._probabilities)

    def reconstructions(self, rows: Rows) -> Tensor:
        """(R, N, D)."""
        return self._gather(rows, self.network.decode)

    @torch.inference_mode()
    def decoded_centers(self) -> Tensor:
        """(R, K, D)."""
        return self.network.eval().decode_points(self.centers)

    def reconstruction_error(self, rows: Rows) -> Tensor:
        """Mean over rows of Eq. 4, (R,)."""
        n = int(rows.shape[0])
        rows = own_rows(rows)
        total = torch.zeros((), dtype=torch.float64, device=self.centers.device)
        for lost in self._each(rows, lambda own, codes: _error(self.network.decode(codes), own)):
            total = total + lost
        return processes.sum_all(total).to(self.centers.dtype) / n

    def _distances(self, codes: Tensor) -> Tensor:
        return F.squared_distances(self.network.points(codes), self.centers)

    def _probabilities(self, codes: Tensor) -> Tensor:
        distances = self._distances(codes)
        if self.kernel == "student":
            kernel = 1.0 / (1.0 + distances)
            return kernel / kernel.sum(-1, keepdim=True)
        return F.log_probs_from_distances(distances, self.sigma2.sqrt()).exp()  # Eq. 5

    def _gather(self, rows: Rows, function: Callable[[Tensor], Tensor]) -> Tensor:
        """All chunks in one tensor (R, N, ...), written where they belong."""
        n = int(rows.shape[0])
        rows = own_rows(rows)
        out, start = torch.empty(0), 0
        for part in self.map(rows, function):
            if start == 0:
                shape = (part.shape[0], int(rows.shape[0]), *part.shape[2:])
                out = torch.empty(shape, dtype=part.dtype, device=part.device)
            out[:, start : start + part.shape[1]] = part
            start += part.shape[1]
        return processes.gather(out, n, dim=1)


def _error(output: Tensor, rows: Tensor) -> Tensor:
    """Sum over rows of Eq. 4, (R,), of reconstructions (R, B, D)."""
    error = output - rows
    return (error * error).sum((-2, -1)).double()
