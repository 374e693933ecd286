"""Spectral partitions of a neighbour graph: clusters of any shape, as a start for others.

k-means cuts long or curved clusters. A graph that joins each row to its nearest neighbours does
not: its normalised cut (Shi and Malik 2000; Ng, Jordan and Weiss 2001) follows the density.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from concrete_kmeans.validation import check_positive_int

__all__ = ["kept", "nearest_neighbours", "neighbour_graph", "spectral_vectors", "vote"]

#: Neighbours of a row in the graph.
N_NEIGHBOURS = 10
#: Vectors iterated beside those wanted, degree of the polynomial between two orthogonalisations,
#: how often at most, and the largest residual of an eigenvector that is found.
GUARD, DEGREE, MAX_ROUNDS, RESIDUAL = 8, 20, 40, 1e-4
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


def spectral_vectors(
    graph: sparse.csr_array, n_vectors: int, device: torch.device | str = "cpu"
) -> Tensor:
    """Leading eigenvectors of the normalised graph, one row a node, scaled to unit length.

    Parameters
    ----------
    graph : csr_array of shape (N, N)
        Symmetric; every node has an edge.
    n_vectors : int
        At most N.
    device : torch.device or str
        Where they are computed.

    Returns
    -------
    Tensor of shape (N, n_vectors), float64
    """
    n = graph.shape[0]
    degrees = np.asarray(graph.sum(axis=1), dtype=np.float64)
    root = 1.0 / np.sqrt(degrees)
    normal = sparse.csr_array(graph.multiply(root[:, None]).multiply(root[None]))
    if n <= 4 * (n_vectors + GUARD):
        dense = torch.from_numpy(normal.toarray())
        vectors = torch.linalg.eigh(dense).eigenvectors.flip(1)[:, :n_vectors].to(device)
    else:
        vectors = _leading_vectors(normal, degrees, n_vectors, torch.device(device))
    return torch.nn.functional.normalize(vectors, dim=1)


def _leading_vectors(
    normal: sparse.csr_array,
    degrees: npt.NDArray[np.float64],
    n_vectors: int,
    device: torch.device,
) -> Tensor:
    """Eigenvectors of the largest eigenvalues, (N, n_vectors), by filtered subspace iteration.

    A Chebyshev polynomial keeps what lies between -1 and the least eigenvalue of the block small
    and lets what lies above grow (Zhou, Saad, Tiago, Chelikowsky 2006). Products with a block of
    vectors suit a GPU, where Lanczos, one vector after another, would wait for the host.
    """
    # Every connected part has the eigenvalue one, and its vector is known. Of more parts than
    # vectors, the largest count.
    n, part = len(degrees), connected_components(normal, directed=False)[1]
    largest = np.argsort(-np.bincount(part), kind="stable")[:n_vectors]
    inside = np.sqrt(degrees)[:, None] * (part[:, None] == largest)  # (N, parts)
    known = torch.from_numpy(inside / np.linalg.norm(inside, axis=0)).to(device)
    wanted = n_vectors - known.shape[1]
    if not wanted:
        return known
    multiply = _product(normal, device)
    fixed = torch.Generator().manual_seed(0)  # the same graph gives the same vectors
    block = torch.randn(n, wanted + GUARD, generator=fixed, dtype=torch.float64).to(device)
    edge = 0.0
    for rounds in range(MAX_ROUNDS):
        if rounds:
            block = _filtered(multiply, block, edge)
        block = torch.linalg.qr(block - known @ (known.T @ block)).Q
        image = multiply(block)
        values, turn = torch.linalg.eigh(block.T @ image)
        block, image = block @ turn, image @ turn  # the least value first
        if float((image - block * values)[:, GUARD:].norm(dim=0).amax()) < RESIDUAL:
            break
        edge = max(edge, float(values[0]))
    return torch.cat([known, block.flip(1)[:, :wanted]], 1)


def _filtered(multiply: Callable[[Tensor], Tensor], block: Tensor, edge: float) -> Tensor:
    """A Chebyshev polynomial of the graph, small on [-1, edge], times a block (N, p)."""
    half, middle = (edge + 1.0) / 2.0, (edge - 1.0) / 2.0
    before, now = block, (multiply(block) - middle * block) / half
    for _ in range(DEGREE - 1):
        before, now = now, 2.0 / half * (multiply(now) - middle * now) - before
    return now


def _product(matrix: sparse.csr_array, device: torch.device) -> Callable[[Tensor], Tensor]:
    """Multiplies a block (N, p) by a sparse matrix."""
    if device.type == "cpu":
        return lambda block: torch.from_numpy(matrix @ block.numpy())
    entries = matrix.tocoo()
    place = torch.from_numpy(np.stack([entries.row, entries.col]).astype(np.int64))
    values = torch.from_numpy(entries.data)
    there = torch.sparse_coo_tensor(
        place, values, matrix.shape, device=device, check_invariants=False
    ).coalesce()
    return lambda block: torch.sparse.mm(there, block)


def kept(graph: sparse.csr_array, labels: npt.NDArray[np.integer]) -> float:
    """Part of the edges' weight that a partition (N,) leaves inside its clusters.

    >>> ring = sparse.csr_array(np.roll(np.eye(4), 1, axis=0) + np.roll(np.eye(4), -1, axis=0))
    >>> kept(ring, np.array([0, 0, 1, 1]))
    0.5
    """
    edges = graph.tocoo()
    inside = labels[edges.row] == labels[edges.col]
    return float(edges.data[inside].sum() / edges.data.sum())


def vote(labels: Tensor, neighbours: Tensor, n_clusters: int) -> Tensor:
    """Most frequent label (R, N) among neighbours (N, k) of labels (R, M)."""
    return torch.stack(
        [
            torch.nn.functional.one_hot(own[neighbours], n_clusters).sum(-2).argmax(-1)
            for own in labels
        ]
    )
