"""The code in two dimensions, so that neighbours stay neighbours."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.decomposition import TruncatedSVD
from sklearn.manifold import TSNE

from concrete_kmeans.graph import nearest_neighbours

__all__ = ["caption", "evenly", "project", "reduced"]

#: Rows that t-SNE arranges, and its steps: about four seconds on one core. The rest are placed
#: among them.
MAX_ARRANGED, STEPS = 2000, 500
#: Arranged neighbours between which any other row is placed.
N_NEIGHBOURS = 10
#: Width, as a part of the map's, within which the places of those neighbours count as one group.
#: Narrower, rows gather at the arranged ones; wider, they fill the gaps between groups.
NEARBY = 0.1
#: Height of a map of rows of one number, as a part of its width; rows follow a sequence that leaves
#: no gaps.
ACROSS, GOLDEN = 0.15, 0.6180339887498949
#: Rows of more numbers are first brought to so many by their largest singular vectors.
MAX_FEATURES = 50


def evenly(n: int, most: int) -> npt.NDArray[np.intp]:
    """Numbers of at most ``most`` of n rows, evenly spread."""
    size = min(n, most)
    return np.arange(size) * n // max(size, 1)


def reduced(rows: Any) -> npt.NDArray[np.float32]:
    """Dense rows of at most :data:`MAX_FEATURES` numbers, from dense or sparse ones."""
    if rows.shape[1] > MAX_FEATURES:
        some = rows[evenly(rows.shape[0], 2 * MAX_ARRANGED)]
        if some.shape[0] < 2:  # nothing differs: any numbers of it will do
            rows = rows[:, :MAX_FEATURES]
        else:
            size = min(MAX_FEATURES, some.shape[0])
            rows = TruncatedSVD(size, random_state=0).fit(some).transform(rows)
    if not isinstance(rows, np.ndarray):
        rows = rows.toarray()
    return np.asarray(rows, dtype=np.float32)


def project(codes: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Place codes (n, d) on a map (n, 2).

    t-SNE (van der Maaten and Hinton 2008) of at most :data:`MAX_ARRANGED` of them; any other is
    placed between the nearest of those, the nearer the closer. Labels have no part in it. Codes of
    two numbers are a map already; of one, they are spread across it.
    """
    n, d = codes.shape
    if n < 4 or d <= 2 or not np.ptp(codes, axis=0).any():
        flat = np.zeros((n, 2), np.float32)
        flat[:, :d] = codes[:, :2]
        if d == 1:
            flat[:, 1] = ACROSS * np.ptp(codes) * (np.arange(n) * GOLDEN % 1.0)
        return flat
    chosen = evenly(n, MAX_ARRANGED)
    some = codes[chosen]
    tsne = TSNE(
        init="pca",
        perplexity=min(30.0, (len(some) - 1) / 3.0),
        max_iter=STEPS,
        random_state=0,
    )
    arranged = tsne.fit_transform(some)
    if len(some) == n:
        return np.asarray(arranged, dtype=np.float32)
    place = _between(torch.from_numpy(codes), torch.from_numpy(some), torch.from_numpy(arranged))
    place[chosen] = torch.from_numpy(arranged)
    return place.numpy()


def caption(n: int, d: int, *, coded: bool) -> str:
    """What the map of n rows of d numbers, or of their code if ``coded``, is, in sentences."""
    what = "the code" if coded else "the data"
    if d == 1:
        return f"{what.capitalize()}, one number a row, from left to right; height means nothing."
    if d == 2:
        return f"{what.capitalize()}, two numbers a row, in the same unit."
    how = f"t-SNE of {what}"
    if n > MAX_ARRANGED:
        how += (
            f" of {MAX_ARRANGED:,} rows, evenly spread; the other {n - MAX_ARRANGED:,} lie between "
            "the nearest of those"
        )
    return (
        f"{how}. Neighbours in {what} are neighbours here; distances between far groups mean "
        "little. Clusters and classes have no part in the arrangement."
    )


def _between(codes: torch.Tensor, some: torch.Tensor, arranged: torch.Tensor) -> torch.Tensor:
    """Weighted means (n, 2) of the places of the nearest arranged rows.

    Where those lie apart on the map their mean would be nowhere: the place is that of most of them.
    """
    near = nearest_neighbours(codes, some, min(N_NEIGHBOURS, len(some)))  # (n, m)
    square = (codes.unsqueeze(1) - some[near]).square().sum(-1)
    width = square.mean(1, keepdim=True).clamp_min(1e-30)
    places = arranged[near]  # (n, m, 2)
    apart = torch.cdist(places, places)  # (n, m, m)
    middle = apart.sum(2).argmin(1)
    from_middle = apart[torch.arange(len(codes)), middle] / (NEARBY * float(arranged.abs().max()))
    weight = (-square / width).exp() / (1.0 + from_middle.square())
    return (weight.unsqueeze(-1) * places).sum(1) / weight.sum(1, keepdim=True)
