"""Spectral partitions of a neighbour graph: clusters of any shape, as a start for others.

k-means cuts long or curved clusters. A graph that joins each row to its nearest neighbours does
not: its normalised cut (Shi and Malik 2000; Ng, Jordan and Weiss 2001) follows the density.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh
from torch import Tensor

from concrete_kmeans.validation import check_positive_int

__all__ = ["nearest_neighbours", "neighbour_graph", "spectral_vectors", "vote"]

#: Neighbours of a row in the graph.
N_NEIGHBOURS = 10
#: Numbers in a block of distances.
MAX_BLOCK = 2**24


@torch.no_grad()
def nearest_neighbours(
    rows: Tensor, others: Tensor, n_neighbours: int, *, same: bool = False
) -> Tensor:
    """Numbers (N, n_neighbours) of the nearest of ``others`` for each row, by Euclidean distance.

    Parameters
    ----------
    rows : Tensor of shape (N, D)
    others : Tensor of shape (M, D)
    n_neighbours : int
        At most M, or M - 1 if ``same``.
    same : bool
        ``others`` are the rows themselves, and a row is not its own neighbour.

    Examples
    --------
    >>> rows = torch.tensor([[0.0], [1.0], [5.0]])
    >>> nearest_neighbours(rows, rows, 1, same=True).flatten()
    tensor([1, 0, 1])
    """
    most = len(others) - same
    if check_positive_int("n_neighbours", n_neighbours) > most:
        raise ValueError(f"n_neighbours must be at most {most} here, got {n_neighbours}")
    origin = others.mean(0)  # far from it, the expansion below would lose digits
    rows, others = rows - origin, others - origin
    norms = (others * others).sum(-1)
    size = max(1, MAX_BLOCK // len(others))
    found = []
    for start in range(0, len(rows), size):
        piece = rows[start : start + size]
        distances = torch.addmm(norms, piece, others.T, alpha=-2.0)  # less each row's own norm
        if same:
            own = torch.arange(len(piece), device=rows.device)
            distances[own, start + own] = torch.inf
        found.append(distances.topk(n_neighbours, largest=False, sorted=False).indices)
    return torch.cat(found)


def neighbour_graph(
    rows: Tensor, n_neighbours: int = N_NEIGHBOURS, *, least_part: float = 0.0
) -> sparse.csr_array:
    """Symmetric graph of rows (N, D): weight 1 between mutual neighbours, 1/2 where one is.

    Connected parts of fewer rows than ``least_part`` are joined to their neighbours outside: a
    dozen equal rows would otherwise be a perfect cut, and take a cluster each.
    """
    n = len(rows)
    graph = _joined(
        n, np.arange(n), nearest_neighbours(rows, rows, min(n_neighbours, n - 1), same=True)
    )
    part = connected_components(graph, directed=False)[1]
    small = np.bincount(part)[part] < least_part  # (N,)
    if small.any() and not small.all():
        inside = torch.from_numpy(np.flatnonzero(small)).to(rows.device)
        outside = torch.from_numpy(np.flatnonzero(~small)).to(rows.device)
        k = min(n_neighbours, len(outside))
        found = outside[nearest_neighbours(rows[inside], rows[outside], k)]
        graph = graph + _joined(n, inside.cpu().numpy(), found)
    return sparse.csr_array(graph)


def _joined(n: int, nodes: npt.NDArray[np.int64], neighbours: Tensor) -> sparse.csr_array:
    """Graph of n nodes with 1/2, both ways, from each of some nodes to its neighbours (M, k)."""
    k = neighbours.shape[1]
    place = np.repeat(nodes, k), neighbours.cpu().numpy().ravel()
    directed = sparse.coo_array((np.full(len(nodes) * k, 0.5), place), shape=(n, n)).tocsr()
    return sparse.csr_array(directed + directed.T)


def spectral_vectors(graph: sparse.csr_array, n_vectors: int) -> npt.NDArray[np.float64]:
    """Leading eigenvectors of the normalised graph, one row a node, scaled to unit length.

    Parameters
    ----------
    graph : csr_array of shape (N, N)
        Symmetric; every node has an edge.
    n_vectors : int
        At most N.

    Returns
    -------
    array of shape (N, n_vectors)
        Fewer columns if the iteration did not find all.
    """
    n = graph.shape[0]
    degrees = np.asarray(graph.sum(axis=1), dtype=np.float64)
    root = 1.0 / np.sqrt(degrees)
    normal = sparse.csr_array(graph.multiply(root[:, None]).multiply(root[None]))
    if n_vectors >= n - 1 or n <= 4 * n_vectors:
        vectors = np.linalg.eigh(normal.toarray())[1][:, ::-1][:, :n_vectors]
    else:
        vectors = _leading_vectors(normal, degrees, n_vectors)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, 1e-12))


def _leading_vectors(
    normal: sparse.csr_array, degrees: npt.NDArray[np.float64], n_vectors: int
) -> npt.NDArray[np.float64]:
    """Eigenvectors of the largest eigenvalues, (N, n_vectors)."""
    # Every connected part has the eigenvalue one. Its vector is known, and has to be taken out: an
    # iteration from one first vector finds a multiple eigenvalue only as far as rounding helps.
    n, part = len(degrees), connected_components(normal, directed=False)[1]
    largest = np.argsort(-np.bincount(part), kind="stable")[:n_vectors]
    inside = np.sqrt(degrees)[:, None] * (part[:, None] == largest)  # (N, parts)
    known: npt.NDArray[np.float64] = inside / np.linalg.norm(inside, axis=0)
    n_unknown = n_vectors - known.shape[1]
    if not n_unknown:
        return known
    rest = LinearOperator(
        (n, n), matvec=lambda x: normal @ x - known @ (known.T @ x), dtype=np.float64
    )
    # a fixed first vector: the same graph gives the same vectors
    first = np.random.default_rng(0).random(n)
    room = min(n - 1, max(4 * n_vectors, 60))
    try:
        _, found = eigsh(rest, n_unknown, which="LA", ncv=room, tol=1e-4, maxiter=300, v0=first)
    except ArpackNoConvergence as stop:  # those found so far are the leading ones
        found = np.asarray(stop.eigenvectors, dtype=np.float64)
    return np.hstack([known, found[:, ::-1]])


def vote(labels: Tensor, neighbours: Tensor, n_clusters: int) -> Tensor:
    """Most frequent label (R, N) among neighbours (N, k) of labels (R, M)."""
    return torch.stack(
        [
            torch.nn.functional.one_hot(own[neighbours], n_clusters).sum(-2).argmax(-1)
            for own in labels
        ]
    )
