"""What scikit-learn asks of an estimator."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from concrete_kmeans import (
    DCN,
    DEC,
    DKM,
    IDEC,
    AutoencoderKMeans,
    ConcreteKMeans,
    DeepConcreteKMeans,
)

# two of the checks fit 8 clusters to 4 distinct rows, and KMeans warns there as well
few_distinct_rows = pytest.mark.filterwarnings(
    "ignore:Number of distinct clusters:sklearn.exceptions.ConvergenceWarning"
)
QUICK = {"encoder": (8, 2), "pretrain_epochs": 2, "epochs": 2, "device": "cpu", "random_state": 0}
#: Both ask every estimator that takes sparse rows and has ``predict_proba`` for the tags of a
#: classifier, which a clusterer does not have; test_deep_contract.py holds sparse against dense.
NOT_FOR_CLUSTERERS = dict.fromkeys(
    ("check_estimator_sparse_array", "check_estimator_sparse_matrix"),
    "looks up classifier_tags.multi_class because there is a predict_proba",
)


@few_distinct_rows
@parametrize_with_checks([ConcreteKMeans(), ConcreteKMeans(algorithm="lloyd", n_init=2)])
def test_scikit_learn_compatible(estimator, check):
    check(estimator)


@few_distinct_rows
@pytest.mark.usefixtures("short_warm_up")
@parametrize_with_checks(
    [
        DeepConcreteKMeans(3, **QUICK),
        AutoencoderKMeans(3, **QUICK),
        DEC(3, **QUICK),
        IDEC(3, **QUICK),
        DCN(3, **QUICK),
        DKM(3, n_init=2, **QUICK),
    ],
    expected_failed_checks=lambda _: NOT_FOR_CLUSTERERS,
)
def test_deep_estimators_are_scikit_learn_compatible(estimator, check):
    check(estimator)
