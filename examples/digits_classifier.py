"""A classifier with few labels whose hidden layer is clustered while it learns, in one loop.

Of the digits for training only 100 have a label. The task loss sees those; the clustering loss sees
all rows and pulls each hidden code towards the centre it is assigned to, with a gradient for the
network and the centres alike. The same network without that gradient (the centres follow the code,
the network does not hear of them) is the comparison.
Weight and number of clusters were chosen on seeds 0 to 2; the seeds below are others.

    python examples/digits_classifier.py
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from concrete_kmeans import ConcreteKMeansLayer, metrics

Data = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]  # rows and classes twice, labelled indices


def split(seed: int, n_labelled: int) -> Data:
    images, digits = load_digits(return_X_y=True)
    X = torch.tensor(images / 16.0, dtype=torch.float32)
    y = torch.tensor(digits)
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.3, random_state=seed, stratify=y)
    labelled, _ = train_test_split(
        np.arange(len(X)), train_size=n_labelled, random_state=seed, stratify=y
    )
    return X, y, X_test, y_test, torch.tensor(labelled)


def train_and_score(data: Data, weight: float, seed: int, n_clusters: int, epochs: int) -> Tensor:
    """Train once; accuracy, cluster purity and NMI on the test rows."""
    X, y, X_test, y_test, labelled = data
    torch.manual_seed(seed)
    # The normalisation keeps the clustering loss from shrinking the code instead of clustering it.
    encoder = nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 16), nn.BatchNorm1d(16, affine=False)
    )
    head = nn.Linear(16, 10)
    clusters = ConcreteKMeansLayer(n_clusters, 16, reduction="mean")
    network = nn.ModuleList([encoder, head, clusters])
    optimizer = torch.optim.Adam(network.parameters(), lr=2e-3)
    warm_up = epochs // 3  # the task alone, so that the code means something before it is clustered
    for epoch in range(epochs):
        if epoch == warm_up:
            clusters.init_centers(encoder(X))
        clusters.temperature = 0.1 ** (max(epoch - warm_up, 0) / (epochs - warm_up))  # 1 to 0.1
        for batch in torch.randperm(len(X)).split(64):
            known = labelled[torch.randint(len(labelled), (64,))]
            loss = cross_entropy(head(encoder(X[known])), y[known])
            code = encoder(X[batch])
            if epoch >= warm_up and weight > 0.0:
                loss = loss + weight * clusters(code).loss
            elif epoch >= warm_up:
                loss = loss + clusters(code.detach()).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    network.eval()
    with torch.no_grad():
        code = encoder(X_test)
        accuracy = (head(code).argmax(-1) == y_test).double().mean()
        labels = clusters(code).labels
    return torch.tensor([accuracy, metrics.purity(y_test, labels), metrics.nmi(y_test, labels)])


def main(
    seeds: Sequence[int] = range(10, 15),
    n_labelled: int = 100,
    n_clusters: int = 20,
    weight: float = 0.1,
    epochs: int = 30,
) -> dict[str, dict[str, float]]:
    results = {}
    print(
        f"{n_labelled} labels, {n_clusters} clusters, {len(seeds)} seeds; mean ± std on test rows"
    )
    for name, value in (("without", 0.0), ("with", weight)):
        scores = torch.stack(
            [train_and_score(split(s, n_labelled), value, s, n_clusters, epochs) for s in seeds]
        )
        mean, std = scores.mean(0).tolist(), scores.std(0, correction=0).tolist()
        results[name] = dict(zip(("accuracy", "purity", "nmi"), mean, strict=True))
        shown = zip(results[name], mean, std, strict=True)
        text = ", ".join(f"{key} {100 * m:.1f} ± {100 * s:.1f}" for key, m, s in shown)
        print(f"{name:>8} clustering loss: {text}")
    return results


if __name__ == "__main__":
    main()
