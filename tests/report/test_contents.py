import numpy as np
import pytest

from concrete_kmeans.report import Images, KCurve, ReportData, Table, Texts


@pytest.mark.parametrize("shape", [(2, 3), (1, 2, 3), (3, 2, 3)])
def test_pictures_of_rows_are_scaled_from_black_to_white(shape):
    rows = np.random.default_rng(0).random((5, int(np.prod(shape)))) * 7 - 2
    low, high = rows.min(), rows.max()
    wanted = np.round((rows - low) / (high - low) * 255).reshape(5, *shape)
    if len(shape) == 3:
        wanted = wanted.transpose(0, 2, 3, 1)
    if shape[0] == 1:
        wanted = wanted[..., 0]
    assert np.abs(Images.from_rows(rows, shape).pixels - wanted).max() <= 1


def test_black_is_zero_if_all_numbers_are_above_it():
    pixels = Images.from_rows(np.array([[4.0, 8.0]]), (1, 2)).pixels
    assert pixels.tolist() == [[[128, 255]]]


def test_bytes_are_shown_as_they_are_and_limits_clip():
    rows = np.array([[3, 200]], np.uint8)
    assert Images.from_rows(rows, (1, 2)).pixels.tolist() == [[[3, 200]]]
    assert Images.from_rows(rows, (1, 2), (0.0, 100.0)).pixels.tolist() == [[[8, 255]]]
    assert Images.from_rows(np.ones((1, 2)), (1, 2), (1.0, 1.0)).pixels.tolist() == [[[0, 0]]]


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: Images(np.zeros((2, 3, 3))), TypeError, "pixels must be uint8, got float64"),
        (lambda: Images(np.zeros((2, 3), np.uint8)), ValueError, r"pixels must have shape \(n, h"),
        (lambda: Images(np.zeros((2, 3, 3, 4), np.uint8)), ValueError, r"got \(2, 3, 3, 4\)"),
        (lambda: Images(np.zeros((2, 0, 3), np.uint8)), ValueError, r"got \(2, 0, 3\)"),
        (lambda: Images.from_rows(np.zeros((2, 8)), (2, 2, 2)), ValueError, r"got \(2, 2, 2\)"),
        (lambda: Texts("abc"), TypeError, "got one str"),
        (lambda: Texts(["a", None]), TypeError, "got NoneType in row 1"),
        (lambda: Table(np.zeros((3, 2)), ["a"]), ValueError, r"\(n, 1\), a column a name"),
        (lambda: Table(np.array([["x"]]), ["a"]), TypeError, "values must be numbers, got <U1"),
        (lambda: Table(np.array([[1.0], [np.inf]]), ["a"]), ValueError, "inf in row 1 of 'a'"),
        (lambda: KCurve([2, 3], {"s": [1.0]}, 2), ValueError, r"scores\['s'\] has 1 values for 2"),
        (lambda: ReportData("t", [], 1), ValueError, "labels must be whole numbers"),
        (lambda: ReportData("t", [0.5], 1), ValueError, "got float64 of shape"),
        (lambda: ReportData("t", [0, 2], 2), ValueError, "got 0 to 2"),
        (lambda: ReportData("t", [0], 70_000), ValueError, "n_clusters must be at most 65,536"),
        (lambda: ReportData("t", [0], 1, ids=["a", "b"]), ValueError, "ids must have 1 rows"),
        (lambda: ReportData("t", [0], 1, map=np.zeros((1, 3))), ValueError, r"map .* \(1, 2\)"),
        (lambda: ReportData("t", [0], 1, doubt=np.array([np.nan])), ValueError, "doubt must be"),
        (
            lambda: ReportData("t", [0], 1, centers=Images(np.zeros((2, 1, 1), np.uint8))),
            ValueError,
            "centers must have 1 pictures, got 2",
        ),
    ],
)
def test_wrong_contents_are_refused_by_name(make, error, words):
    with pytest.raises(error, match=words):
        make()
