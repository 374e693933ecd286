"""Checks of arguments: what they refuse, and how they say so."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse

from concrete_kmeans.validation import (
    check_choice,
    check_not_negative,
    check_positive,
    check_positive_int,
    check_sizes,
    check_sparse,
    check_whole,
    is_auto,
    shown,
)

LONG = [np.zeros((30, 30)), torch.zeros(3, 4), pd.DataFrame({"a": [1, 2]}), "x" * 1000]


@pytest.mark.parametrize("value", LONG, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize(
    "check",
    [
        lambda value: check_choice("it", value, ("a", "b")),
        lambda value: check_positive("it", value),
        lambda value: check_not_negative("it", value),
        lambda value: check_positive_int("it", value),
        lambda value: check_whole("it", value),
        lambda value: check_sizes("it", value),
    ],
)
def test_one_short_line_names_the_argument(check, value):
    with pytest.raises((ValueError, TypeError), match=r"^it must ") as caught:
        check(value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250


def test_short_values_are_shown_as_they_are():
    assert shown("a  b") == "'a  b'"
    assert shown(np.float64(0.5)) == repr(np.float64(0.5))


@pytest.mark.parametrize("value", [np.array(["auto", "auto"]), pd.NA, None, np.ma.masked, 0])
def test_only_the_text_is_auto(value):
    assert is_auto("auto")
    assert not is_auto(value)


@pytest.mark.parametrize("check", [check_positive_int, check_whole])
def test_numbers_beyond_64_bits(check):
    with pytest.raises(ValueError, match=r"n must be .* and below 2\*\*63, got 92233"):
        check("n", 2**63)
    assert check("n", 2**63 - 1) == 2**63 - 1


@pytest.mark.parametrize("check", [check_positive, check_not_negative])
@pytest.mark.parametrize("value", [10**400, float("nan"), -float("inf"), True, 1j, "1"])
def test_numbers_that_are_no_finite_floats(check, value):
    with pytest.raises(ValueError, match=r"it must be a .*finite number"):
        check("it", value)
    assert check("it", np.float32(0.5)) == 0.5


class TestSparse:
    """Against scipy's own rigorous check, which changes the matrix and lets some of these pass."""

    @pytest.mark.parametrize("form", ["csr", "csc", "bsr", "coo", "lil", "dok", "dia"])
    @pytest.mark.parametrize("shape", [(6, 4), (1, 1), (4, 0), (0, 3)])
    def test_whole(self, form, shape):
        check_sparse("X", sparse.random_array(shape, density=0.5, rng=0).asformat(form))

    @pytest.mark.parametrize("form", ["csr", "csc"])
    @pytest.mark.parametrize(
        ("part", "place", "value"),
        [
            ("indices", 0, -1),
            ("indices", 1, 6),
            ("indices", 2, 2**30),
            ("indptr", 0, 1),
            ("indptr", 1, -1),
            ("indptr", 2, 2**30),
            ("indptr", -1, 2**30),
        ],
    )
    def test_parts_that_point_outside(self, form, part, place, value):
        matrix = sparse.random_array((6, 6), density=0.5, rng=0).asformat(form)
        getattr(matrix, part)[place] = value
        with pytest.raises(ValueError, match=rf"whole sparse matrix: .* {form} of shape"):
            check_sparse("X", matrix)

    def test_pointers_of_an_empty_matrix(self):
        matrix = sparse.csr_array((3, 3))
        matrix.indptr[1] = 5
        matrix.check_format(full_check=True)  # does not see it
        with pytest.raises(ValueError, match="lie outside"):
            check_sparse("X", matrix)

    def test_coordinates(self):
        matrix = sparse.random_array((6, 6), density=0.5, rng=0).tocoo()
        matrix.coords[1][0] = 6
        with pytest.raises(ValueError, match="coo of shape"):
            check_sparse("X", matrix)
