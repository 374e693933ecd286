"""The data of the benchmarks, kept as files while one runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

CASES: dict[str, dict[str, Any]] = {
    "mnist": {"title": "MNIST pixels, 70,000 x 784, k = 10", "n": 70_000, "d": 784, "k": 10},
    "million": {"title": "1,000,000 x 32, k = 100", "n": 1_000_000, "d": 32, "k": 100},
    "wide": {"title": "200,000 x 128, k = 1,000", "n": 200_000, "d": 128, "k": 1000},
}
#: In place of MNIST where it cannot be loaded.
STAND_IN = "digits of scikit-learn, enlarged, in place of MNIST"


def mnist(n: int = 70_000) -> tuple[np.ndarray, dict[str, str]]:
    """The first float32 rows of MNIST, and for a result what they are where they are others.

    Where MNIST cannot be loaded, speed is measured on the digits that scikit-learn brings along.
    """
    from concrete_kmeans import datasets

    try:
        found = datasets.load("mnist").data
    except OSError as error:  # not in a folder, and no network
        print(f"  {STAND_IN}: {error}; or set CKM_DATA_HOME", file=sys.stderr, flush=True)
        return enlarged_digits(n), {"stand_in": STAND_IN}
    return np.ascontiguousarray(found[:n], dtype=np.float32), {}


def enlarged_digits(n: int) -> np.ndarray:
    """Rows (n, 784) like MNIST's: 24 x 24 pixels of a digit, moved and as bright as chance has it.

    >>> X = enlarged_digits(100)
    >>> X.shape, X.dtype.name, float(X.min()), float(X.max()) <= 1.0
    ((100, 784), 'float32', 0.0, True)
    """
    from scipy.ndimage import zoom

    from concrete_kmeans import datasets

    digits = datasets.load("digits").data.reshape(-1, 8, 8)
    large = zoom(digits / digits.max(), (1, 3, 3), order=1).astype(np.float32)
    rng = np.random.default_rng(0)
    which, (down, right) = rng.integers(len(large), size=n), rng.integers(5, size=(2, n))
    brightness = rng.uniform(0.7, 1.0, size=(n, 1, 1)).astype(np.float32)
    images = np.zeros((n, 28, 28), dtype=np.float32)
    for y, x in np.ndindex(5, 5):
        here = (down == y) & (right == x)
        images[here, y : y + 24, x : x + 24] = large[which[here]] * brightness[here]
    return images.reshape(n, 784)


def stand_ins(result: dict[str, Any]) -> set[str]:
    """What the rows of a part's results are where they are not those that its titles name."""
    cases = result.get("cases", {})
    each = cases.values() if isinstance(cases, dict) else cases
    return {about["stand_in"] for about in (result, *each) if "stand_in" in about}


def rows(name: str) -> tuple[np.ndarray, dict[str, str]]:
    """Float32 rows of MNIST as :func:`mnist`, or of a mixture of k overlapping normal clouds."""
    case = CASES[name]
    if name == "mnist":
        return mnist()
    rng = np.random.default_rng(0)
    means = rng.normal(size=(case["k"], case["d"])).astype(np.float32)
    noise = rng.normal(size=(case["n"], case["d"])).astype(np.float32)
    return noise + means[rng.integers(case["k"], size=case["n"])], {}


def store(name: str, folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Write rows and first centres (random rows) to files.

    Returns the arguments of a contender, and what :func:`mnist` says of the rows.
    """
    X, about = rows(name)
    k = CASES[name]["k"]
    centers = X[np.random.default_rng(1).choice(len(X), k, replace=False)]
    np.save(folder / "rows.npy", X)
    np.save(folder / "centers.npy", centers)
    paths = {"rows": str(folder / "rows.npy"), "centers": str(folder / "centers.npy")}
    return paths | {"k": k}, about
