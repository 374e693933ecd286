"""An autoencoder whose code is T indices: the layer as a vector-quantisation bottleneck.

The encoder gives T vectors an image, ``(B, T, D)``; the layer replaces each by one of K centres, so
that an image is stored in T log2(K) bits. Encoder, centres and decoder train in one loop. The
comparisons spend as many bits: k-means on each quadrant's pixels, and the same autoencoder trained
without the bottleneck, its code clustered by k-means afterwards and the decoder fitted again to the
centres. Settings were chosen on seed 0; the seeds below are others.

    python examples/vector_quantisation.py
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neighbors import NearestNeighbors
from torch import Tensor, nn

from concrete_kmeans import ConcreteKMeansLayer


class QuantisedAutoencoder(nn.Module):
    """Encoder, quantiser, decoder."""

    def __init__(self, n_codes: int, n_clusters: int, n_features: int = 8) -> None:
        super().__init__()
        width = n_codes * n_features
        self.encoder = nn.Sequential(
            nn.Linear(64, 256),
            nn.ReLU(),
            nn.Linear(256, width),
            nn.BatchNorm1d(width, affine=False),  # the clustering loss cannot shrink the code
            nn.Unflatten(1, (n_codes, n_features)),
        )
        self.quantiser = ConcreteKMeansLayer(n_clusters, n_features, reduction="mean")
        self.decoder = nn.Sequential(
            nn.Flatten(), nn.Linear(width, 256), nn.ReLU(), nn.Linear(256, 64)
        )

    def forward(self, images: Tensor, quantise: bool = True) -> tuple[Tensor, Tensor, Tensor]:
        """Reconstruction, clustering loss and code indices ``(B, T)``."""
        z = self.encoder(images)
        loss, assignment, labels, _ = self.quantiser(z)
        if not quantise:
            return self.decoder(z), torch.zeros(()), labels
        # The value is the centre. One gradient goes through the assignment, one straight to z.
        z_q = assignment @ self.quantiser.centers + (z - z.detach())
        return self.decoder(z_q), loss, labels


def train(model: QuantisedAutoencoder, X: Tensor, *, joint: bool, epochs: int) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    warm_up = epochs // 6
    for epoch in range(epochs):
        if epoch == warm_up:
            model.quantiser.init_centers(model.encoder(X))
        model.quantiser.temperature = 0.1 ** (max(epoch - warm_up, 0) / (epochs - warm_up))
        for batch in X[torch.randperm(len(X))].split(64):
            output, clustering, _ = model(batch, quantise=joint and epoch >= warm_up)
            loss = (output - batch).square().sum(-1).mean() + 0.3 * clustering
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        decay.step()
    model.eval()


def quantise_afterwards(model: QuantisedAutoencoder, X: Tensor, seed: int, epochs: int) -> None:
    """Cluster the code of a trained autoencoder by k-means; fit the decoder to the centres."""
    centers = model.quantiser.centers
    with torch.no_grad():
        code = model.encoder(X).flatten(0, 1)
        found = KMeans(len(centers), n_init=5, random_state=seed).fit(code.numpy())
        centers.copy_(torch.from_numpy(found.cluster_centers_))
        code = centers[model.quantiser(model.encoder(X)).labels]
    optimizer = torch.optim.Adam(model.decoder.parameters(), lr=5e-3)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in range(epochs):
        for rows in torch.randperm(len(X)).split(64):
            loss = (model.decoder(code[rows]) - X[rows]).square().sum(-1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        decay.step()


def quadrants(images: Tensor) -> Tensor:
    return images.view(-1, 2, 4, 2, 4).permute(1, 3, 0, 2, 4).reshape(4, -1, 16)


def main(
    seeds: Sequence[int] = (10, 11, 12), n_codes: int = 3, n_clusters: int = 16, epochs: int = 30
) -> dict[str, float]:
    bits = n_codes * math.log2(n_clusters)
    X = torch.tensor(load_digits().data / 16.0, dtype=torch.float32)
    errors: dict[str, list[float]] = {}
    usage = torch.zeros(n_clusters)

    def record(name: str, squared_errors: Tensor) -> None:
        errors.setdefault(name, []).append(float(squared_errors.mean()))

    for seed in seeds:
        train_rows, test_rows = train_test_split(X, test_size=0.3, random_state=seed)
        record("mean", (test_rows - train_rows.mean(0)).square().sum(-1))
        squared = torch.zeros(len(test_rows))
        for fit, test in zip(quadrants(train_rows), quadrants(test_rows), strict=True):
            found = KMeans(round(2 ** (bits / 4)), n_init=5, random_state=seed).fit(fit.numpy())
            squared += torch.from_numpy(found.transform(test.numpy())).min(-1).values.square()
        record("quadrants", squared)
        distance, _ = NearestNeighbors(n_neighbors=1).fit(train_rows).kneighbors(test_rows)
        record("nearest", torch.from_numpy(distance).square())
        for name in ("afterwards", "joint"):
            torch.manual_seed(seed)
            model = QuantisedAutoencoder(n_codes, n_clusters)
            train(model, train_rows, joint=name == "joint", epochs=epochs)
            if name == "afterwards":
                quantise_afterwards(model, train_rows, seed, epochs)
            with torch.no_grad():
                output, _, labels = model(test_rows)
            record(name, (output - test_rows).square().sum(-1))
        usage += labels.flatten().bincount(minlength=n_clusters)

    result = {name: sum(values) / len(values) for name, values in errors.items()}
    share = usage / usage.sum()
    result["perplexity"] = float(torch.special.entr(share).sum().exp())
    print(f"squared error of a test image, mean of {len(seeds)} seeds")
    print(f"  {result['mean']:.2f}  the mean image, 0 bits")
    print(f"  {result['quadrants']:.2f}  k-means on the pixels of each quadrant, {bits:g} bits")
    print(f"  {result['afterwards']:.2f}  autoencoder, then k-means on its code, {bits:g} bits")
    print(f"  {result['joint']:.2f}  autoencoder with the layer, end to end, {bits:g} bits")
    print(
        f"For scale: {2**bits:g} whole-image centres need more than the {len(train_rows)} rows for "
        f"training; to store all of those\nand send the nearest takes "
        f"{math.log2(len(train_rows)):.1f} bits and gives {result['nearest']:.2f}."
    )
    print(f"Codes used: {int((usage > 0).sum())} of {n_clusters}, ", end="")
    print(f"perplexity {result['perplexity']:.1f}")
    return result


if __name__ == "__main__":
    main()
