"""What scikit-learn asks of an estimator, with no expected failure."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from concrete_kmeans import ConcreteKMeans


# two of the checks fit 8 clusters to 4 distinct rows, and KMeans warns there as well
@pytest.mark.filterwarnings(
    "ignore:Number of distinct clusters:sklearn.exceptions.ConvergenceWarning"
)
@parametrize_with_checks([ConcreteKMeans(), ConcreteKMeans(algorithm="lloyd", n_init=2)])
def test_scikit_learn_compatible(estimator, check):
    check(estimator)
