"""What estimators do with what they are given: seeds, and results in the form of the input."""

from __future__ import annotations

import numbers
import secrets
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import sparse
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_array, validate_data
from torch import Tensor

from concrete_kmeans.data import surely_finite
from concrete_kmeans.validation import check_positive, check_sparse, shown

__all__ = [
    "Array",
    "Schedule",
    "check_features",
    "check_seed",
    "like_input",
    "seed_from",
    "start_and_end",
    "validated",
]

Array: TypeAlias = npt.NDArray[Any] | Tensor
Schedule: TypeAlias = float | tuple[float, float]

#: Seeds of all restarts are to be below 2**63.
MAX_SEED = 2**62


def check_features(estimator: Any, X: Any, n_features: int, *, reset: bool) -> None:
    """Note the features of X, or refuse others than those of the fit.

    Of a tensor, a Dataset and Parquet; the rest is scikit-learn's to check.
    """
    names = getattr(X, "feature_names", None)
    if reset:
        estimator.n_features_in_ = n_features
        estimator.__dict__.pop("feature_names_in_", None)  # of an earlier fit
        if names is not None:
            estimator.feature_names_in_ = np.array(names, dtype=object)
        return
    if n_features != estimator.n_features_in_:
        raise ValueError(
            f"X has {n_features} features, but {type(estimator).__name__} is expecting "
            f"{estimator.n_features_in_} features as input"
        )
    known = getattr(estimator, "feature_names_in_", None)
    if names is not None and known is not None and list(known) != list(names):
        wrong = next(i for i, (a, b) in enumerate(zip(known, names, strict=True)) if a != b)
        raise ValueError(
            f"X must have the features of the fit, in their order: feature {wrong} is "
            f"{names[wrong]!r}, was {known[wrong]!r}"
        )


def check_seed(random_state: object) -> None:
    """Refuse what is no seed; nothing is drawn."""
    if random_state is None or random_state is np.random:
        return
    if isinstance(random_state, np.random.RandomState):
        return
    whole = isinstance(random_state, numbers.Integral) and not isinstance(random_state, bool)
    if not whole or not 0 <= int(random_state) < MAX_SEED:  # type: ignore[call-overload]
        raise ValueError(
            "random_state must be a whole number of at least 0, and below 2**62, a RandomState or "
            f"None, got {shown(random_state)}"
        )


def seed_from(random_state: int | np.random.RandomState | None) -> int:
    """The seed of restart 0; a fresh one for None."""
    check_seed(random_state)
    if random_state is None:
        return secrets.randbelow(2**31)
    if isinstance(random_state, numbers.Integral):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))


def like_input(X: Any, *, fresh: bool = False) -> Callable[[Tensor], Array]:
    """Results as tensors for a tensor, else as arrays; what is ``fresh`` need not be copied."""
    if isinstance(X, Tensor):
        return (lambda t: t) if fresh else (lambda t: t.clone())
    return (lambda t: t.cpu().numpy()) if fresh else (lambda t: t.cpu().numpy().copy())


def start_and_end(name: str, value: Any) -> tuple[float, float]:
    """A schedule's two ends from one number or a pair."""
    if isinstance(value, tuple | list) and len(value) == 2:
        return check_positive(f"{name}[0]", value[0]), check_positive(f"{name}[1]", value[1])
    value = check_positive(name, value, also="a (start, end) pair of them")
    return value, value


def validated(estimator: Any, X: Any, *, reset: bool | None, **options: Any) -> Any:
    """An array or CSR matrix by scikit-learn's checks, and those that it leaves out.

    Parameters
    ----------
    estimator, X
    reset : bool or None
        As for ``validate_data``; None for rows of more than one axis, which are only checked.
    **options
        Of ``check_array``.
    """
    if sparse.issparse(X):
        check_sparse("X", X)
    if surely_finite(X):  # scikit-learn would look on one thread
        options["ensure_all_finite"] = False
    # it adds up all numbers to see whether they are finite, which is no news where they are not
    with np.errstate(over="ignore", invalid="ignore"):
        if reset is None:
            return check_array(X, estimator=estimator, input_name="X", **options)
        X = validate_data(estimator, X, reset=reset, accept_sparse="csr", **options)
    if sparse.issparse(X):
        check_sparse("X", X)  # from a form that is not checked above
    return X
