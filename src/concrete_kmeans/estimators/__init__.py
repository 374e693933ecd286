"""The scikit-learn face."""

from concrete_kmeans.estimators.deep import ClusterCollapseWarning, DeepClusterer, DeepRestart
from concrete_kmeans.estimators.methods import (
    DCN,
    DEC,
    DKM,
    IDEC,
    AutoencoderKMeans,
    DeepConcreteKMeans,
)
from concrete_kmeans.estimators.saving import load
from concrete_kmeans.estimators.shallow import ConcreteKMeans, Restart

__all__ = [
    "DCN",
    "DEC",
    "DKM",
    "IDEC",
    "AutoencoderKMeans",
    "ClusterCollapseWarning",
    "ConcreteKMeans",
    "DeepClusterer",
    "DeepConcreteKMeans",
    "DeepRestart",
    "Restart",
    "load",
]
