"""First partitions: what the joint phase begins from, found without labels.

The start decides the result and the joint phase confirms it, so the shipped one is a consensus of
partitions that fail on different data (docs/deep.md has the study). All but ``k-means++`` look at a
sample of the rows: their cost does not grow with the data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from scipy.sparse import csr_array
from torch import Tensor

from concrete_kmeans import functional as F
from concrete_kmeans import processes
from concrete_kmeans.graph import kept, nearest_neighbours, neighbour_graph, spectral_vectors, vote
from concrete_kmeans.lloyd import LloydResult, Rows, kmeans_plusplus, lloyd
from concrete_kmeans.metrics import ari
from concrete_kmeans.mixture import children, mixture_start
from concrete_kmeans.networks import principal_components

__all__ = [
    "STARTS",
    "Partition",
    "Sample",
    "Spectrum",
    "Start",
    "best_of_draws",
    "code_gain",
    "consensus",
    "find_start",
    "from_centers",
    "from_labels",
    "kmeans_start",
]

#: Rows that graphs, mixtures and their consensus look at.
MAX_ROWS = 10_000
#: k-means++ draws of which the one of lowest inertia is kept.
N_STARTS = 10
#: Inertias closer than this part are those of one partition.
TIE = 1e-6
#: Principal components of the rows that a mixture is fitted to.
N_COMPONENTS = 10
#: Features up to which a covariance is formed.
MAX_COVARIANCE = 1024
#: Neighbours that vote on a row outside the sample.
N_VOTERS = 5
#: A connected part of a neighbour graph is joined to the others if it is smaller than this part of
#: an average cluster. On letter 11 of 16 parts are, and cost 6 points of NMI if left alone.
LEAST_PART = 0.1
#: Rows of a chunk in which labels become one-hot.
CHUNK = 2**16
#: Spectral vectors of a graph, in numbers of clusters. With as many vectors as clusters, a part
#: that the graph sets apart inside a cluster takes the vector that would tell two others apart: on
#: the code of MNIST 4 and 9 share a cluster then, with more vectors they do not (docs/deep.md).
VECTORS = (1.25, 1.5, 1.75, 2.0)
#: A graph whose first cut keeps less than this part of the edges inside its clusters has none:
#: draws of k-means are asked then. The code of 20 Newsgroups keeps 0.87; of digits, USPS, MNIST,
#: pendigits, satimage, segment 0.95 and more, of vowel 0.91.
LEAST_KEPT = 0.89
#: Part of the rows that must be distinct for a graph to be asked at all: equal rows are neighbours
#: of one another and of nobody else. Of 500 rows of seven binary features (led7digit) 85 are
#: distinct, and cuts lose 8 points of NMI against k-means. Of segment, the least here, 0.90 are.
LEAST_DISTINCT = 0.5
#: Draws of k-means in their consensus. On 20 Newsgroups 15 restarts agree with one another to an
#: ARI of 0.475 with 30 of them, and 0.493 with 100.
N_DRAWS = 100
#: Numbers in the covariances of a mixture of spectral vectors, at most; of more, k-means only.
MAX_MIXTURE = 2**17
#: Weight of k-means on the rows in the consensus, beside one for each of the others. More of it
#: costs NMI where clusters are not round, less where they are.
KMEANS_WEIGHT = 1.0 / 3.0
#: Adjusted Rand index of the consensus and k-means on the rows from which clusters are taken for
#: round, and k-means is right about their borders. It was set with scores in view: 0.97 to 1.00 for
#: blobs, 0.96 for iris, where k-means is 5 points of NMI behind; 0.5 for vowel and segment.
ROUND = 0.98


class Start(NamedTuple):
    """Where the joint phase begins, of each restart."""

    labels: Tensor
    """(R, N)."""
    centers: Tensor
    """(R, K, d), means of the codes."""
    nearest: tuple[bool, ...]
    """Whether every row's centre is the nearest: if not, a warm-up has to make it so."""


class Partition(NamedTuple):
    """Of a sample, by one restart."""

    labels: Tensor
    """(S,)."""
    convex: bool = False
    """Whether it is as k-means makes them, so that nearest centres tell the clusters. A warm-up
    would only teach the network its errors: on 20 Newsgroups the joint phase gains 5 points of NMI
    without it and 1 after it."""


class Spectrum(NamedTuple):
    """A neighbour graph of S points, and its leading spectral vectors."""

    graph: csr_array
    vectors: Tensor
    """(S, twice K)."""


def find_start(
    kind: str,
    rows: Rows,
    codes: Tensor,
    n_clusters: int,
    generators: Sequence[torch.Generator],
    gains: Sequence[float] | None = None,
) -> Start:
    """First partition of R restarts by one of :data:`STARTS`.

    Parameters
    ----------
    kind : str
    rows : Rows of shape (N, D)
        As the network sees them.
    codes : Tensor of shape (R, N, d)
    n_clusters : int
    generators : sequence of R torch.Generator
    gains : sequence of R floats, optional
        What each code is worth, by :func:`code_gain`; 1 if not known.
    """
    n = codes.shape[1]
    # fewer rows than a graph or a covariance can be made of: k-means
    if kind == "k-means++" or n < max(3 * n_clusters, 12):
        return kmeans_start(codes, n_clusters, generators)
    index = torch.arange(n, device=codes.device)
    if n > MAX_ROWS:  # evenly spread, and the same for every seed: restarts share graphs of rows
        index = torch.arange(MAX_ROWS, device=codes.device) * n // MAX_ROWS
    sample = Sample(rows[index], n_clusters)
    gains = gains or [1.0] * len(codes)
    labels = torch.zeros(len(codes), len(index), dtype=torch.int64, device=codes.device)
    told = torch.zeros(len(codes), dtype=torch.int64, device=codes.device)
    for r in range(processes.rank(), len(codes), processes.size()):  # a process has some of them
        with processes.alone():
            part = STARTS[kind](sample, codes[r][index], generators[r], gains[r])
        labels[r], told[r] = part.labels, part.convex
    share_draws(generators)
    processes.sum_in_place([labels, told])  # of the other restarts, zeros
    if n > len(index):
        block = processes.own(n)
        voted = [
            vote(
                part.unsqueeze(0), nearest_neighbours(own[block], own[index], N_VOTERS), n_clusters
            )
            for part, own in zip(labels, codes, strict=True)
        ]
        labels = processes.gather(torch.cat(voted), n, dim=1)
    start = from_labels(codes, labels, n_clusters)
    convex = [bool(one) for one in told]
    if any(convex):
        which = torch.tensor(convex, device=codes.device).unsqueeze(-1)
        labels = torch.where(which, from_centers(codes, start.centers).labels, labels)
    return Start(labels, start.centers, tuple(convex))


def share_draws(generators: Sequence[torch.Generator]) -> None:
    """Bring the generators of all restarts to where the process that used each has left it."""
    if not processes.many():
        return
    states = [
        generator.get_state() * (r % processes.size() == processes.rank())
        for r, generator in enumerate(generators)
    ]
    processes.sum_in_place(states)
    for generator, state in zip(generators, states, strict=True):
        generator.set_state(state)


class Sample:
    """Sampled rows (S, D), and what all restarts share of them, computed when first asked for."""

    def __init__(self, rows: Tensor, n_clusters: int) -> None:
        self.rows, self.n_clusters = rows, n_clusters
        self._spectrum: Spectrum | None = None
        self._principal: Tensor | None = None
        self._distinct: float | None = None

    @property
    def distinct(self) -> float:
        """Part of the rows that would be left if of equal ones one were kept."""
        if self._distinct is None:
            self._distinct = len(torch.unique(self.rows, dim=0)) / len(self.rows)
        return self._distinct

    @property
    def spectrum(self) -> Spectrum:
        """Of the rows."""
        if self._spectrum is None:
            self._spectrum = self.spectrum_of(self.rows)
        return self._spectrum

    @property
    def principal(self) -> Tensor:
        """Leading principal components, (S, at most N_COMPONENTS)."""
        if self._principal is None:
            d = min(N_COMPONENTS, *self.rows.shape)
            mean, components = leading_components(self.rows, d)
            self._principal = (self.rows - mean) @ components
        return self._principal

    def spectrum_of(self, points: Tensor) -> Spectrum:
        """Neighbour graph of points (S, d), and its vectors."""
        least = LEAST_PART * len(points) / self.n_clusters
        graph = neighbour_graph(points, least_part=least)
        found = spectral_vectors(graph, int(max(VECTORS) * self.n_clusters), points.device)
        return Spectrum(graph, found.to(points))

    def cuts(self, spectrum: Spectrum, generator: torch.Generator) -> Iterator[Tensor]:
        """Partitions of a graph: mixtures of fewer and of more of its vectors.

        k-means would split what has more vectors of its own: with twice as many vectors as clusters
        it loses 8 points of NMI on satimage, a mixture 4, and four mixtures together 1.
        """
        for number in VECTORS:
            size = int(number * self.n_clusters)
            leading = torch.nn.functional.normalize(spectrum.vectors[:, :size], dim=1)
            large = self.n_clusters * size * size > MAX_MIXTURE
            yield (self.kmeans if large else self.mixture)(leading, generator)

    def draws(self, points: Tensor, generator: torch.Generator) -> list[Tensor]:
        """Partitions by k-means of points (S, d), one a draw of its first centres."""
        own = children(generator, N_DRAWS)
        first, _ = kmeans_plusplus(points, self.n_clusters, generators=own)
        return list(lloyd(points, first).labels.long())

    def members(
        self, points: Tensor, generator: torch.Generator
    ) -> tuple[list[tuple[float, Tensor]], bool]:
        """Partitions of points (S, d), with weights; and whether they are cuts of their graph.

        They are if the graph has clusters, or else draws of k-means.
        """
        found: list[Tensor] = []
        if self.distinct >= LEAST_DISTINCT:
            spectrum = self.spectrum if points is self.rows else self.spectrum_of(points)
            cuts = self.cuts(spectrum, generator)
            first = next(cuts)
            if kept(spectrum.graph, first.cpu().numpy()) >= LEAST_KEPT:
                found = [first, *cuts]
        trusted = bool(found)
        found = found or self.draws(points, generator)
        return [(len(VECTORS) / len(found), labels) for labels in found], trusted

    def kmeans(self, points: Tensor, generator: torch.Generator) -> Tensor:
        """k-means of points (S, d)."""
        return best_of_draws(points, self.n_clusters, generator)

    def mixture(self, points: Tensor, generator: torch.Generator) -> Tensor:
        """A mixture whose covariances are pulled half-way to their mean.

        Full covariances follow noise where rows are few, a common one misses the shapes: on seven
        data sets the middle was better than both (docs/deep.md).
        """
        a_cluster = len(points) / self.n_clusters
        return mixture_start(
            points,
            self.n_clusters,
            generators=[generator],
            n_starts=3,
            prior_rows=a_cluster,
            tol=1e-4,
        ).labels[0]

    def whitened(self, points: Tensor, generator: torch.Generator) -> Tensor:
        """Points in which the clusters of k-means are round on average."""
        labels = self.kmeans(points, generator).unsqueeze(0)
        centers = from_labels(points.unsqueeze(0), labels, self.n_clusters).centers[0]
        error = (points - centers[labels[0]]).double()
        within = error.T @ error / len(points)
        ridge = 1e-3 * within.diagonal().mean() + torch.finfo(torch.float32).tiny
        within.diagonal().add_(ridge)
        factor = torch.linalg.cholesky(within)
        centred = (points - points.mean(0)).double()
        white: Tensor = torch.linalg.solve_triangular(factor, centred.T, upper=False).T
        return white.to(points)


def _kmeans(sample: Sample, codes: Tensor, generator: torch.Generator, _gain: float) -> Partition:
    return Partition(sample.kmeans(codes, generator), convex=True)


def _mixture(sample: Sample, codes: Tensor, generator: torch.Generator, _gain: float) -> Partition:
    """A full-covariance Gaussian mixture of the code."""
    found = mixture_start(codes, sample.n_clusters, generators=[generator], tol=1e-4)
    return Partition(found.labels[0])


def _graph(sample: Sample, codes: Tensor, generator: torch.Generator, _gain: float) -> Partition:
    """Consensus of cuts of the neighbour graph of the whitened code."""
    spectrum = sample.spectrum_of(sample.whitened(codes, generator))
    cuts = torch.stack([*sample.cuts(spectrum, generator)])
    return Partition(consensus(cuts, sample.n_clusters, generator))


def _consensus(sample: Sample, codes: Tensor, generator: torch.Generator, gain: float) -> Partition:
    """Consensus of partitions of the code, of the rows, or of both.

    Where the code tells more of a row than principal components do, it is trusted alone; where it
    is no smaller than the row, the rows are; else both are asked. Where they say what k-means on
    the rows says but for a few rows between clusters, k-means has the last word.
    """
    members: list[tuple[float, Tensor]] = []
    convex, by_kmeans = False, None
    if codes.shape[1] < sample.rows.shape[1]:
        white = sample.whitened(codes, generator)
        members, are_cuts = sample.members(white, generator)
        convex = not are_cuts
    if gain >= 1.0 or not members:
        convex = False
        members += sample.members(sample.rows, generator)[0]
        members += [(1.0, sample.mixture(sample.principal, generator))]
        by_kmeans = sample.kmeans(sample.rows, generator)
        members += [(KMEANS_WEIGHT, by_kmeans)]
    weights, labels = zip(*members, strict=True)
    found = consensus(torch.stack(labels), sample.n_clusters, generator, weights)
    if by_kmeans is not None and ari(found, by_kmeans) >= ROUND:
        found = by_kmeans
    return Partition(found, convex)


#: A partition of a sample and its codes (S, d), by name.
STARTS: dict[str, Callable[[Sample, Tensor, torch.Generator, float], Partition]] = {
    "k-means++": _kmeans,
    "mixture": _mixture,
    "graph": _graph,
    "consensus": _consensus,
}


def consensus(
    labels: Tensor,
    n_clusters: int,
    generator: torch.Generator,
    weights: Sequence[float] | None = None,
) -> Tensor:
    """k-means on the one-hot labels of partitions.

    Parameters
    ----------
    labels : Tensor of shape (M, N)
        Whole numbers below ``n_clusters``.
    n_clusters : int
    generator : torch.Generator
    weights : sequence of M floats, optional
        Of the partitions; 1 each by default.

    Returns
    -------
    Tensor of shape (N,)

    Examples
    --------
    >>> votes = torch.tensor([[0, 0, 1, 1], [1, 1, 0, 0], [0, 1, 1, 1]])
    >>> found = consensus(votes, 2, torch.Generator().manual_seed(0))
    >>> bool(found[0] == found[1] != found[2] == found[3])
    True
    """
    votes = torch.nn.functional.one_hot(labels.long(), n_clusters).float()  # (M, N, K)
    if weights is not None:
        votes *= votes.new_tensor(weights).sqrt().view(-1, 1, 1)
    points = votes.transpose(0, 1).flatten(1)
    return best_of_draws(points, n_clusters, generator)


def best_of_draws(points: Tensor, n_clusters: int, generator: torch.Generator) -> Tensor:
    """Labels (N,) by k-means of points (N, d); its draws share the points and run as one stack."""
    draws = children(generator, N_STARTS)
    first, _ = kmeans_plusplus(points, n_clusters, generators=draws)
    found = lloyd(points, first)
    least = found.inertia.amin()
    best = int((found.inertia <= (1.0 + TIE) * least).long().argmax())  # the first of equals
    return found.labels[best].long()


def code_gain(rows: Tensor, others: Tensor, errors: Tensor, code_size: int) -> Tensor:
    """What codes lose of rows they were not trained on, over what principal components lose.

    Below 1 the code is worth more than a linear one of its size; a network that has learned its
    training rows by heart is not.

    Parameters
    ----------
    rows : Tensor of shape (M, D)
        Kept out of training.
    others : Tensor of shape (S, D)
        Rows for the principal components.
    errors : Tensor of shape (R,)
        Mean squared error of the networks on ``rows``, summed over features.
    code_size : int

    Returns
    -------
    Tensor of shape (R,)
    """
    mean, components = leading_components(others, min(code_size, *others.shape))
    centred = rows - mean
    lost = centred - centred @ components @ components.T
    linear = (lost * lost).sum(-1).mean().double()
    return errors.double() / linear.clamp_min(torch.finfo(torch.float32).tiny)


def leading_components(rows: Tensor, n_components: int) -> tuple[Tensor, Tensor]:
    """Mean (D,) and leading principal components (D, n_components) of rows (S, D).

    By eigenvectors of the covariance or, where there are more features than it is worth, by a few
    rounds of subspace iteration.
    """
    if rows.shape[1] <= MAX_COVARIANCE:
        mean, components = principal_components([rows], n_components)
        return mean.to(rows), components.to(rows)
    mean = rows.mean(0)
    centred = rows - mean
    fixed = torch.Generator().manual_seed(0)
    width = min(n_components + 10, *rows.shape)
    basis = torch.randn(width, rows.shape[1], generator=fixed, dtype=torch.float32).to(rows).T
    for _ in range(6):
        basis = torch.linalg.qr(centred.T @ (centred @ basis)).Q
    _, _, turned = torch.linalg.svd(centred @ basis, full_matrices=False)
    return mean, (basis @ turned.T)[:, :n_components]


def kmeans_start(
    codes: Tensor, n_clusters: int, generators: Sequence[torch.Generator], n_starts: int = N_STARTS
) -> Start:
    """k-means++ and Lloyd's algorithm, the best of several draws by inertia.

    Parameters
    ----------
    codes : Tensor of shape (R, N, d)
    n_clusters : int
    generators : sequence of R torch.Generator
    n_starts : int
    """

    def draw() -> LloydResult:
        return lloyd(codes, kmeans_plusplus(codes, n_clusters, generators=generators)[0])

    best = draw()
    for _ in range(n_starts - 1):
        other = draw()
        # (R,), by more than rounding, to which it is left which of two equal sums is the lower:
        # a stack would name its clusters otherwise than a single run
        lower = other.inertia < (1.0 - TIE) * best.inertia
        pick = [
            torch.where(lower.view(-1, *[1] * (new.ndim - 1)), new, old)
            for new, old in zip(other, best, strict=True)
        ]
        best = LloydResult(*pick)
    return Start(best.labels.long(), best.centers, (True,) * len(codes))


def from_labels(codes: Tensor, labels: Tensor, n_clusters: int) -> Start:
    """Start at given labels (R, N); a cluster without rows gets a centre at the mean of all."""
    R, n, d = codes.shape
    total = codes.new_zeros(R, n_clusters, d)
    count = codes.new_zeros(R, n_clusters)
    for begin in range(0, n, CHUNK):
        part = slice(begin, begin + CHUNK)
        hard = torch.nn.functional.one_hot(labels[:, part], n_clusters).to(codes.dtype)
        total += hard.mT @ codes[:, part]  # a product: a scatter on CUDA adds in no fixed order
        count += hard.sum(-2)
    means = total / count.clamp_min(1.0).unsqueeze(-1)
    empty = (count == 0).unsqueeze(-1)
    centers = torch.where(empty, codes.mean(1, keepdim=True), means)
    return Start(labels, centers, (False,) * R)


def from_centers(codes: Tensor, centers: Tensor) -> Start:
    """Start at given centres (R, K, d)."""
    parts = [
        F.squared_distances(codes[:, i : i + CHUNK], centers).argmin(-1)
        for i in range(0, codes.shape[1], CHUNK)
    ]
    return Start(torch.cat(parts, 1), centers, (True,) * len(codes))
