"""Hard k-means trained by gradient descent, alone or inside a neural network.

The public names load on first use, so that ``ckm --help`` need not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from concrete_kmeans import datasets, functional, lloyd, metrics
    from concrete_kmeans.checkpoints import CheckpointWarning
    from concrete_kmeans.estimators import (
        DCN,
        DEC,
        DKM,
        IDEC,
        AutoencoderKMeans,
        ClusterCollapseWarning,
        ConcreteKMeans,
        DeepConcreteKMeans,
        load,
    )
    from concrete_kmeans.layer import ConcreteKMeansLayer
    from concrete_kmeans.memory import DeviceMemoryWarning
    from concrete_kmeans.readers.parquet import Parquet

__version__ = "0.1.0"

__all__ = [
    "ConcreteKMeans",
    "DeepConcreteKMeans",
    "AutoencoderKMeans",
    "DEC",
    "IDEC",
    "DCN",
    "DKM",
    "ClusterCollapseWarning",
    "CheckpointWarning",
    "DeviceMemoryWarning",
    "ConcreteKMeansLayer",
    "Parquet",
    "load",
    "datasets",
    "functional",
    "lloyd",
    "metrics",
]

_ESTIMATORS = (
    "ConcreteKMeans",
    "DeepConcreteKMeans",
    "AutoencoderKMeans",
    "DEC",
    "IDEC",
    "DCN",
    "DKM",
)
_HOME = {
    "ConcreteKMeansLayer": "layer",
    "ClusterCollapseWarning": "estimators",
    "CheckpointWarning": "checkpoints",
    "DeviceMemoryWarning": "memory",
    "Parquet": "readers.parquet",
    "load": "estimators",
    **dict.fromkeys(_ESTIMATORS, "estimators"),
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_HOME.get(name, name)}")
    value = getattr(module, name) if name in _HOME else module
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
