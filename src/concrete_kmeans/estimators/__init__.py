"""The scikit-learn face."""

from concrete_kmeans.estimators.shallow import ConcreteKMeans, Restart

__all__ = ["ConcreteKMeans", "Restart"]
