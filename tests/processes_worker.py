"""What each process of ``test_processes.py`` does: started by torchrun, not by pytest."""

import sys
import warnings
from pathlib import Path
from unittest import mock

import numpy as np
from scipy import sparse
from sklearn.datasets import make_blobs
from torch.utils.data import Dataset

from concrete_kmeans import (
    DCN,
    DEC,
    DKM,
    IDEC,
    AutoencoderKMeans,
    ConcreteKMeans,
    DeepConcreteKMeans,
    data,
    processes,
)
from concrete_kmeans.estimators import deep, methods

# a number of rows, and of rows of a batch, that no number of processes divides
X, KNOWN = make_blobs(243, 6, centers=4, cluster_std=3.0, random_state=2)
WEIGHT = np.random.default_rng(0).random(len(X))
SMALL = {
    "encoder": (12, 3),
    "pretrain_epochs": 2,
    "epochs": 10,
    "batch_size": 43,
    "device": "cpu",
    "precision": "float64",
    "tol": 0.0,
    "random_state": 0,
    "init": KNOWN,
}
SHALLOW = {"max_iter": 50, "batch_size": 43, "n_init": 2, "random_state": 0}
#: Every method; each takes 50 steps at least.
METHODS = {
    "CKM": lambda: DeepConcreteKMeans(4, **{**SMALL, "init": "mixture", "n_init": 2}),
    "CKM, consensus": lambda: DeepConcreteKMeans(
        4, choose="consensus", **{**SMALL, "init": "mixture", "n_init": 4, "epochs": 1}
    ),
    "CKM, augmented": lambda: DeepConcreteKMeans(4, augment="noise", clip_norm=0.5, **SMALL),
    "CKM, paper": lambda: DeepConcreteKMeans(4, objective="paper", **SMALL),
    "AE+KM": lambda: AutoencoderKMeans(4, **{**SMALL, "pretrain_epochs": 11, "init": "auto"}),
    "DEC": lambda: DEC(4, **SMALL),
    "IDEC": lambda: IDEC(4, n_init=2, **SMALL),
    "DCN": lambda: DCN(4, **SMALL),
    "DKM": lambda: DKM(4, **SMALL),
    "shallow": lambda: ConcreteKMeans(4, **SHALLOW),
    "shallow, dead clusters": lambda: ConcreteKMeans(
        30, init="random", **{**SHALLOW, "max_iter": 200}
    ),
    "shallow, straight-through": lambda: ConcreteKMeans(4, gradient="distance", **SHALLOW),
    "shallow, one batch": lambda: ConcreteKMeans(4, **{**SHALLOW, "batch_size": 1000}),
    "Lloyd": lambda: ConcreteKMeans(20, algorithm="lloyd", n_init=3, random_state=0),
    "CKM, of CSR": lambda: DeepConcreteKMeans(4, **SMALL),
    "CKM, of a stream": lambda: DeepConcreteKMeans(4, **SMALL),
    "Lloyd, of a stream": lambda: ConcreteKMeans(20, algorithm="lloyd", random_state=0),
}


class Items(Dataset):
    """Rows that are streamed, in windows of 100."""

    def __len__(self):
        return len(X)

    def __getitem__(self, i):
        return X[i]


def given(name):
    """X as a method is given it."""
    if name.endswith("of CSR"):
        return sparse.csr_array(X)
    return Items() if name.endswith("of a stream") else X


def short_phases():
    """As the fixture ``short_warm_up``, which processes of their own do not have."""
    deep.LEAST_TRAINING_STEPS = 10
    methods.WARM_UP_EPOCHS, methods.LEARNED = 4, 2.0


def fit(name):
    """Fit; and what a fit leaves, as arrays by name."""
    estimator = METHODS[name]()
    weighted = {"sample_weight": WEIGHT} if name == "shallow" else {}
    few = mock.patch.multiple(data, STREAM_BYTES=1000, WINDOW_BYTES=100 * 48, BLOCK_BYTES=500)
    with few:
        estimator.fit(given(name), **weighted)
    return {
        "centers": np.stack([restart.cluster_centers for restart in estimator.restarts_]),
        "inertia": np.array([restart.inertia for restart in estimator.restarts_]),
        "steps": np.array([restart.n_iter for restart in estimator.restarts_]),
        "labels": estimator.labels_,
    }


def refused(make):
    """The text of the error of a fit."""
    try:
        make().fit(X)
    except ValueError as error:
        return str(error)
    return ""


def main(out, teams, *names):
    """Fit, and write what this process has got."""
    short_phases()
    warnings.simplefilter("ignore")
    with processes.started("cpu"), processes.teams(int(teams) or None):
        found = {f"{name}/{part}": value for name in names for part, value in fit(name).items()}
        fresh = ConcreteKMeans(4, **{**SHALLOW, "random_state": None})
        found["fresh seed"] = fresh.fit(X).cluster_centers_
        found["parts"] = np.concatenate([fresh.partial_fit(X).cluster_centers_ for _ in range(3)])
        found["draws"] = fresh._online.generator.numpy()
        found["history"] = np.array(DCN(4, n_init=2, **SMALL).fit(X).history_[-1].losses["loss"])
        found["refused"] = np.array(refused(lambda: DCN(4, **{**SMALL, "batch_size": 1})))
        with processes.together():
            np.savez(Path(out) / f"{processes.rank()}.npz", **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
