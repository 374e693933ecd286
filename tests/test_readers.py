"""Files to rows: each format against what it was written from, and everything that is wrong."""

import gzip
import io
import json
import os
import struct
import sys
import types
import zipfile
import zlib
from datetime import date
from decimal import Decimal

import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy import sparse
from sklearn.feature_extraction.text import TfidfVectorizer

from concrete_kmeans import readers
from concrete_kmeans.readers import Options, read, read_again
from concrete_kmeans.readers import images as image_reader

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 5))
PIXELS = RNG.integers(0, 256, size=(6, 8, 9), dtype=np.uint8)


def values(data):
    rows = data.rows.to_numpy() if isinstance(data.rows, pd.DataFrame) else data.rows
    return rows.toarray() if sparse.issparse(rows) else np.asarray(rows)


def again(path, preparation, **options):
    """Through JSON, as ``config.json`` keeps it."""
    return read_again(path, json.loads(json.dumps(preparation.to_json())), **options)


def assert_repeats(path, data, preparation):
    other = again(path, preparation)
    np.testing.assert_array_equal(values(other), values(data))
    assert (other.ids, other.feature_names, other.labels) == (
        data.ids,
        data.feature_names,
        data.labels,
    )
    assert (other.kind, other.items) == (data.kind, data.items)


def write_images(folder, pixels, suffix=".png", names=None):
    folder.mkdir(parents=True, exist_ok=True)
    for i, picture in enumerate(pixels):
        name = names[i] if names else f"{i:02d}"
        Image.fromarray(picture).save(folder / f"{name}{suffix}")
    return folder


class TestArrays:
    @pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int16, np.uint8, bool])
    def test_npy(self, tmp_path, dtype):
        rows = (X * 3).astype(dtype)
        np.save(tmp_path / "x.npy", rows)
        data, preparation = read(tmp_path / "x.npy")
        np.testing.assert_array_equal(data.rows, rows)
        assert data.rows.dtype == dtype
        assert (data.kind, data.ids[:2], data.labels, data.items) == (
            "tabular",
            ["0", "1"],
            None,
            None,
        )
        assert_repeats(tmp_path / "x.npy", data, preparation)

    @pytest.mark.parametrize(
        ("shape", "kind", "rows"),
        [
            ((4, 99), "tabular", (4, 99)),
            ((4, 100), "embeddings", (4, 100)),
            ((4, 8, 9), "image", (4, 8, 9)),
            ((4, 3, 8, 9), "image", (4, 3, 8, 9)),
            ((4, 8, 9, 3), "image", (4, 3, 8, 9)),
            ((4, 8, 9, 1), "image", (4, 1, 8, 9)),
            ((4, 20, 2), "tabular", (4, 20, 2)),
        ],
    )
    def test_kind_by_shape(self, tmp_path, shape, kind, rows):
        array = RNG.normal(size=shape)
        np.save(tmp_path / "x.npy", array)
        data, preparation = read(tmp_path / "x.npy")
        assert (data.kind, data.rows.shape) == (kind, rows)
        if shape != rows:
            np.testing.assert_array_equal(data.rows[2, 0, 1], array[2, 1, :, 0])
        assert_repeats(tmp_path / "x.npy", data, preparation)

    def test_npz_with_labels_and_ids(self, tmp_path):
        names = np.array([f"r{i}" for i in range(12)])
        np.savez(tmp_path / "x.npz", X=X, y=np.arange(12) % 2, names=names)
        data, preparation = read(tmp_path / "x.npz", Options(label_column="y", id_column="names"))
        np.testing.assert_array_equal(data.rows, X)
        assert (data.labels, data.ids) == ([0, 1] * 6, list(names))
        assert_repeats(tmp_path / "x.npz", data, preparation)
        np.savez(tmp_path / "new.npz", other=X[:3])  # no labels, no ids, another name
        assert again(tmp_path / "new.npz", preparation).ids == ["0", "1", "2"]

    def test_several_arrays(self, tmp_path):
        np.savez(tmp_path / "x.npz", a=X, b=X[:, :2])
        with pytest.raises(ValueError, match=r"'a' \(12, 5\), 'b' \(12, 2\): choose one by --col"):
            read(tmp_path / "x.npz")
        data, preparation = read(tmp_path / "x.npz", Options(columns=["b"]))
        np.testing.assert_array_equal(data.rows, X[:, :2])
        assert_repeats(tmp_path / "x.npz", data, preparation)
        with pytest.raises(ValueError, match="array 'aa' is not among 'a', 'b'; did you mean 'a'"):
            read(tmp_path / "x.npz", Options(columns=["aa"]))

    def test_sparse(self, tmp_path):
        matrix = sparse.random_array((9, 30), density=0.2, rng=RNG).tocsr()
        sparse.save_npz(tmp_path / "x.npz", matrix)
        data, preparation = read(tmp_path / "x.npz")
        assert data.kind == "text"
        np.testing.assert_array_equal(data.rows.toarray(), matrix.toarray())
        assert_repeats(tmp_path / "x.npz", data, preparation)

    def test_hdf5(self, tmp_path):
        with h5py.File(tmp_path / "x.h5", "w") as file:
            file["train/data"], file["train/target"] = X, np.arange(12)
            file["train/word"] = [f"w{i}" for i in range(12)]
        options = Options(label_column="train/target", id_column="train/word")
        data, preparation = read(tmp_path / "x.h5", options)
        np.testing.assert_array_equal(data.rows, X)
        assert (data.labels, data.ids[3]) == (list(range(12)), "w3")
        assert_repeats(tmp_path / "x.h5", data, preparation)

    def test_missing_values(self, tmp_path):
        holes = X.copy()
        holes[3, 2] = np.nan
        np.save(tmp_path / "x.npy", holes)
        with pytest.raises(ValueError, match=r"feature 2 holds NaN or infinity.*--missing mean"):
            read(tmp_path / "x.npy")
        data, preparation = read(tmp_path / "x.npy", Options(missing="mean"))
        assert data.rows[3, 2] == pytest.approx(np.nanmean(holes[:, 2]), rel=1e-12)
        assert_repeats(tmp_path / "x.npy", data, preparation)
        holes[:, 2] = np.nan
        np.save(tmp_path / "x.npy", holes)
        with pytest.raises(ValueError, match="feature 2 has no value"):
            read(tmp_path / "x.npy", Options(missing="mean"))
        holes[:, 2] = np.inf
        np.save(tmp_path / "x.npy", holes)
        with pytest.raises(ValueError, match="feature 2 holds infinity"):
            read(tmp_path / "x.npy", Options(missing="mean"))

    def test_never_unpickles(self, tmp_path):
        """A pickle that would write a file when it is read."""
        mark = tmp_path / "executed"

        class Spell:
            def __reduce__(self):
                return (os.mkdir, (str(mark),))

        spell = np.empty((2, 2), object)
        spell[:] = Spell()
        np.save(tmp_path / "x.npy", spell, allow_pickle=True)
        np.savez(tmp_path / "x.npz", spell)
        for name in ("x.npy", "x.npz"):
            with pytest.raises(
                ValueError, match=rf"{name} cannot be .*(Object arrays|Python objects)"
            ):
                read(tmp_path / name)
        assert not mark.exists()

    @pytest.mark.parametrize(
        ("array", "message"),
        [
            (np.zeros(4), r"holds no array of rows with features; it has \(4,\)"),
            (np.zeros((0, 3)), "has no rows"),
            (np.zeros((3, 2), complex), "must hold real numbers, got complex128"),
            (np.array([["a", "b"]]), "must hold real numbers"),
        ],
    )
    def test_refused(self, tmp_path, array, message):
        np.save(tmp_path / "x.npy", array)
        with pytest.raises(ValueError, match=message):
            read(tmp_path / "x.npy", Options(columns=[]))

    def test_options_without_meaning(self, tmp_path):
        np.save(tmp_path / "x.npy", X)
        with pytest.raises(ValueError, match="array 'age' is not among none"):
            read(tmp_path / "x.npy", Options(columns=["age"]))
        with pytest.raises(ValueError, match="--drop has no meaning here"):
            read(tmp_path / "x.npy", Options(drop=["age"]))
        with pytest.raises(ValueError, match="--embed has no meaning here"):
            read(tmp_path / "x.npy", Options(embed="model"))

    def test_new_rows_of_another_shape(self, tmp_path):
        np.save(tmp_path / "x.npy", X)
        _, preparation = read(tmp_path / "x.npy")
        np.save(tmp_path / "new.npy", X[:, :4])
        with pytest.raises(ValueError, match=r"the shape \(5,\) of the fit, got \(4,\)"):
            again(tmp_path / "new.npy", preparation)


class TestTables:
    @pytest.fixture
    def frame(self):
        return pd.DataFrame(
            {
                "size": [1.5, 2.5, 3.5, 4.0],
                "n": [1, 2, 3, 4],
                "ok": [True, False, True, True],
                "colour": ["red", "blue", "red", 'ü, "x"'],
                "kind": ["a", "b", "a", "b"],
                "name": ["p", "q", "r", "s"],
            }
        )

    @pytest.mark.parametrize(
        "ending", ["csv", "csv.gz", "tsv", "semicolon.csv", "parquet", "jsonl"]
    )
    def test_formats(self, frame, tmp_path, ending):
        path = tmp_path / f"t.{ending}"
        if ending == "parquet":
            frame.to_parquet(path)
        elif ending == "jsonl":
            frame["text"] = "none"
            frame.to_json(path, orient="records", lines=True)
        else:
            separator = {"tsv": "\t", "semicolon.csv": ";"}.get(ending, ",")
            frame.to_csv(path, index=False, sep=separator)
        if ending == "jsonl":  # is read as texts
            assert read(path)[0].items == ["none"] * 4
            return
        data, preparation = read(path, Options(label_column="kind", id_column="name"))
        assert data.feature_names == [
            "size", "n", "ok", "colour=blue", "colour=red", 'colour=ü, "x"',
        ]  # fmt: skip
        np.testing.assert_array_equal(
            values(data),
            [[1.5, 1, 1, 0, 1, 0], [2.5, 2, 0, 1, 0, 0], [3.5, 3, 1, 0, 1, 0], [4, 4, 1, 0, 0, 1]],
        )
        assert (data.labels, data.ids, data.kind) == (
            ["a", "b", "a", "b"],
            ["p", "q", "r", "s"],
            "tabular",
        )
        assert_repeats(path, data, preparation)

    def test_columns_and_their_order(self, frame, tmp_path):
        frame.to_csv(tmp_path / "t.csv", index=False)
        data, preparation = read(tmp_path / "t.csv", Options(columns=["n", "size"]))
        assert data.feature_names == ["n", "size"]
        frame[["name", "size", "kind", "n"]].to_csv(tmp_path / "new.csv", index=False)
        np.testing.assert_array_equal(
            values(again(tmp_path / "new.csv", preparation)), values(data)
        )
        data, _ = read(tmp_path / "t.csv", Options(drop=["colour", "kind", "name", "ok"]))
        assert data.feature_names == ["size", "n"]

    @pytest.mark.parametrize("role", ["columns", "drop", "label_column", "id_column"])
    def test_unknown_columns(self, frame, tmp_path, role):
        frame.to_csv(tmp_path / "t.csv", index=False)
        value = "colr" if role.endswith("column") else ["colr"]
        with pytest.raises(
            ValueError, match=r"t\.csv: column 'colr' is not among 'size'.*'colour'"
        ):
            read(tmp_path / "t.csv", Options(**{role: value}))

    def test_new_data_without_a_column(self, frame, tmp_path):
        frame.to_csv(tmp_path / "t.csv", index=False)
        options = Options(drop=["name"], label_column="kind")
        _, preparation = read(tmp_path / "t.csv", options)
        frame.drop(columns="n").to_csv(tmp_path / "new.csv", index=False)
        with pytest.raises(ValueError, match=r"new\.csv: column 'n' is not among"):
            again(tmp_path / "new.csv", preparation)
        frame.drop(columns="kind").to_csv(tmp_path / "new.csv", index=False)
        assert again(tmp_path / "new.csv", preparation).labels is None

    def test_missing(self, tmp_path):
        path = tmp_path / "t.csv"
        path.write_text("age,colour\n1,red\n,blue\n4,\n4,red\n")
        with pytest.raises(ValueError, match=r"'age': 1 of 4 values is missing; .*--missing mean"):
            read(path)
        data, preparation = read(path, Options(missing="mean"))
        assert data.feature_names == ["age", "colour=blue", "colour=red"]
        expected = [[1, 0, 1], [3, 1, 0], [4, 1 / 3, 2 / 3], [4, 0, 1]]
        np.testing.assert_allclose(values(data), expected, rtol=1e-12)
        assert_repeats(path, data, preparation)
        path.write_text("age,colour\n,green\n")
        new = values(again(path, preparation))
        np.testing.assert_allclose(new, [[3, 1 / 3, 2 / 3]], rtol=1e-12)

    def test_unseen_category(self, tmp_path):
        path = tmp_path / "t.csv"
        path.write_text("c,n\nx,1\ny,2\n")
        _, preparation = read(path)
        path.write_text("c,n\nz,1\n")
        with pytest.raises(ValueError, match=r"column 'c': the fit has not seen 'z', row 0; .*fit"):
            again(path, preparation)
        path.write_text("c,n\nx,1\n,2\n")
        with pytest.raises(ValueError, match=r"column 'c': 1 of 2 values is missing; .* fit with"):
            again(path, preparation)
        path.write_text("c,n\nx,many\n")
        with pytest.raises(ValueError, match="column 'n' must hold numbers, row 0 is 'many'"):
            again(path, preparation)

    @pytest.mark.parametrize(
        ("text", "names", "n"),
        [
            ("5.1,3.5\n4.9,3.0\n", ["0", "1"], 2),  # no header
            ("0,1\n4.9,3.0\n", ["0", "1"], 1),  # as pandas writes an array
            ("a,b\n4.9,3.0\n", ["a", "b"], 1),
            ("\ufeffa;b\n4.9;3.0\n", ["a", "b"], 1),
            ("a\n1\n2\n", ["a"], 2),
            (",a,b\n0,4.9,3.0\n1,2,3\n", ["a", "b"], 2),  # row numbers of pandas
        ],
    )
    def test_first_line(self, tmp_path, text, names, n):
        (tmp_path / "t.csv").write_text(text, "utf-8")
        data, preparation = read(tmp_path / "t.csv")
        assert data.feature_names == names
        assert len(data.rows) == n
        assert bool(data.notes) == text.startswith(",")
        assert_repeats(tmp_path / "t.csv", data, preparation)

    @pytest.mark.parametrize("separator", [";", "\t", "|"])
    def test_other_separators_and_decimal_commas(self, tmp_path, separator):
        lines = ["a|b|c|d", "1,5|2|x|1,5", "-0,25|3|y|", '"1e3"|4|1,5|7']
        path = tmp_path / "t.csv"
        path.write_text("\n".join(line.replace("|", separator) for line in lines))
        data, preparation = read(path, Options(drop=["d"]))
        assert data.feature_names == ["a", "b", "c=1,5", "c=x", "c=y"]
        np.testing.assert_array_equal(values(data)[:, :2], [[1.5, 2], [-0.25, 3], [1000, 4]])
        assert_repeats(path, data, preparation)
        data, _ = read(path, Options(columns=["d"], missing="mean"))
        np.testing.assert_array_equal(values(data), [[1.5], [4.25], [7.0]])

    @pytest.mark.parametrize(
        ("cells", "message"),
        [
            (["2024-01-31", "2024-02-01 12:30"], "column 'x' holds dates: --drop it"),
            (["31.1.24", "1.12.2024"], "column 'x' holds dates"),
            (["1/31/2024", ""], "column 'x' holds dates"),
            ([*range(40), "?"], r"'x' holds numbers, but row 40 is '\?': leave it empty"),
            ([f"p{i}" for i in range(11)], "11 different texts in 11 rows, names rather than cat"),
        ],
    )
    def test_texts_that_are_no_categories(self, tmp_path, cells, message):
        path = tmp_path / "t.csv"
        path.write_text("x,y\n" + "".join(f"{cell},{i}\n" for i, cell in enumerate(cells)))
        with pytest.raises(ValueError, match=message):
            read(path)
        read(path, Options(id_column="x"))

    @pytest.mark.parametrize(
        "cells",
        [[f"p{i}" for i in range(10)], [*range(20), "?"] * 9, ["1-2-3", "1/2"], ["1.2", "v"]],
    )
    def test_texts_that_are(self, tmp_path, cells):
        path = tmp_path / "t.csv"
        path.write_text("x\n" + "".join(f"{cell}\n" for cell in cells))
        assert read(path)[0].rows.shape == (len(cells), len({*map(str, cells)}))

    def test_labels_that_miss_some_stay_whole_numbers(self, tmp_path):
        (tmp_path / "t.csv").write_text("x,y\n1,0\n2,\n3,12\n")
        labels = read(tmp_path / "t.csv", Options(label_column="y"))[0].labels
        assert list(map(str, labels)) == ["0", "None", "12"]

    def test_decimals_in_parquet(self, tmp_path):
        frame = pd.DataFrame({"x": [Decimal("1.25"), None, Decimal("2.75")]})
        frame.to_parquet(tmp_path / "t.parquet")
        data, _ = read(tmp_path / "t.parquet", Options(missing="mean"))
        np.testing.assert_array_equal(values(data), [[1.25], [2.0], [2.75]])

    def test_two_columns_of_one_name_in_parquet(self, tmp_path):
        table = pa.Table.from_arrays([pa.array([1, 2])] * 2, names=["a", "a"])
        pq.write_table(table, tmp_path / "t.parquet")
        with pytest.raises(ValueError, match=r"t\.parquet has two columns named 'a'"):
            read(tmp_path / "t.parquet")

    def test_embeddings_in_parquet(self, tmp_path):
        frame = pd.DataFrame({"id": [f"d{i}" for i in range(12)], "vector": list(X)})
        frame.to_parquet(tmp_path / "e.parquet")
        data, preparation = read(tmp_path / "e.parquet", Options(id_column="id"))
        assert data.kind == "embeddings"
        np.testing.assert_array_equal(values(data), X)
        assert data.feature_names[:2] == ["vector.0", "vector.1"]
        assert_repeats(tmp_path / "e.parquet", data, preparation)
        frame["vector"] = [*X[:11], X[11, :3]]
        frame.to_parquet(tmp_path / "bad.parquet")
        with pytest.raises(ValueError, match="'vector' must hold 5 numbers a row, row 11"):
            read(tmp_path / "bad.parquet", Options(id_column="id"))

    @pytest.mark.parametrize("ending", ["parquet", "pq"])
    def test_folder_of_parquet(self, frame, tmp_path, ending):
        folder = tmp_path / "parts"
        folder.mkdir()
        for i in (0, 1):
            frame[["size", "n"]].iloc[2 * i : 2 * i + 2].to_parquet(folder / f"part-{i}.{ending}")
        data, preparation = read(folder)
        np.testing.assert_array_equal(values(data), frame[["size", "n"]])
        assert_repeats(folder, data, preparation)

    @pytest.mark.parametrize(
        ("frame", "message"),
        [
            ({"day": pd.to_datetime(["2020-01-01", "2020-01-02"])}, "'day' holds dates"),
            ({"day": [date(2020, 1, 1), None]}, "'day' holds dates"),
            ({"x": [1.0, np.inf]}, "'x' holds infinity"),
            ({"x": [None, None]}, "'x' is empty"),
            ({"x": [{"a": 1}, {"a": 2}]}, "'x' holds neither numbers nor texts"),
            ({"x": pd.to_timedelta([1, 2])}, "'x' holds neither numbers nor texts"),
        ],
    )
    def test_refused(self, tmp_path, frame, message):
        pd.DataFrame(frame).to_parquet(tmp_path / "t.parquet")
        with pytest.raises(ValueError, match=message):
            read(tmp_path / "t.parquet")

    def test_columns_without_numbers(self, tmp_path):
        pd.DataFrame({"v": [[], []], "a": [1, 2]}).to_parquet(tmp_path / "t.parquet")
        with pytest.raises(ValueError, match="column 'v' holds empty lists"):
            read(tmp_path / "t.parquet")
        pd.DataFrame({"v": [[None, 1.0], [None, 2.0]]}).to_parquet(tmp_path / "t.parquet")
        for missing in ("error", "mean"):
            with pytest.raises(ValueError, match="column 'v' has a feature without values"):
                read(tmp_path / "t.parquet", Options(missing=missing))
        pd.DataFrame({"Unnamed: 0": [[1.0], [2.0]]}).to_parquet(tmp_path / "t.parquet")
        assert read(tmp_path / "t.parquet")[0].feature_names == ["Unnamed: 0.0"]

    @pytest.mark.parametrize("ids", [["r1", "r2", "r3"], [30, 10, 20]])
    def test_a_column_called_id_names_the_rows(self, ids, tmp_path):
        table = pd.DataFrame({"x": [1.0, 2.0, 4.0], "ID": ids})
        table.to_csv(tmp_path / "t.csv", index=False)
        data, preparation = read(tmp_path / "t.csv")
        assert (data.feature_names, data.ids) == (["x"], [str(i) for i in ids])
        assert "'ID' differs in every row: taken for their ids" in data.notes[0]
        table.drop(columns="ID").to_csv(tmp_path / "new.csv", index=False)
        assert again(tmp_path / "new.csv", preparation).ids == ["0", "1", "2"]

    def test_a_column_called_id_that_names_no_row(self, tmp_path):
        pd.DataFrame({"x": [1.0, 2.0, 4.0], "id": [7, 7, 8]}).to_csv(
            tmp_path / "t.csv", index=False
        )
        assert read(tmp_path / "t.csv")[0].feature_names == ["x", "id"]
        pd.DataFrame({"x": [1.0, 2.0], "id": [7, 8]}).to_csv(tmp_path / "u.csv", index=False)
        asked = read(tmp_path / "u.csv", Options(columns=["x", "id"]))[0]
        assert asked.feature_names == ["x", "id"]

    def test_too_many_categories(self, tmp_path):
        pd.DataFrame({"name": [f"n{i}" for i in range(101)]}).to_csv(tmp_path / "t.csv")
        with pytest.raises(ValueError, match=r"'name' holds 101 different texts.*--text-column"):
            read(tmp_path / "t.csv")

    def test_nothing_left(self, tmp_path):
        (tmp_path / "t.csv").write_text("a,b\n1,2\n")
        with pytest.raises(ValueError, match="no column is left"):
            read(tmp_path / "t.csv", Options(drop=["a"], label_column="b"))

    @settings(max_examples=40, deadline=None)
    @given(
        numbers=st.lists(
            st.floats(allow_nan=False, allow_infinity=False, width=64), min_size=2, max_size=8
        ),
        words=st.lists(
            st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1),
            min_size=1,
            max_size=4,
            unique=True,
        ),
    )
    def test_one_hot_is_the_identity_of_categories(self, numbers, words, tmp_path_factory):
        column = [words[i % len(words)] for i in range(len(numbers))]
        path = tmp_path_factory.mktemp("t") / "t.parquet"
        pd.DataFrame({"x": numbers, "c": column}).to_parquet(path)
        data, preparation = read(path)
        np.testing.assert_array_equal(values(data)[:, 0], numbers)
        assert data.feature_names[1:] == [f"c={word}" for word in sorted({*column})]
        back = [sorted({*column})[i] for i in values(data)[:, 1:].argmax(1)]
        assert back == column
        assert (values(data)[:, 1:].sum(1) == 1).all()
        assert_repeats(path, data, preparation)


class TestImages:
    @pytest.mark.parametrize("suffix", [".png", ".bmp", ".tiff", ".webp", ".PNG"])
    def test_one_folder(self, tmp_path, suffix):
        if suffix == ".webp":
            pytest.importorskip("PIL._webp")
        folder = tmp_path / "photos"
        folder.mkdir()
        for i, picture in enumerate(PIXELS):
            own = {"lossless": True} if suffix == ".webp" else {}
            Image.fromarray(picture).save(folder / f"{i}{suffix}", **own)
        data, preparation = read(folder, Options(mode="grey"))
        np.testing.assert_array_equal(data.rows, PIXELS)
        assert (data.kind, data.labels) == ("image", None)
        assert data.ids == [f"{i}{suffix}" for i in range(6)]
        assert data.items == [str(folder / name) for name in data.ids]
        assert_repeats(folder, data, preparation)

    def test_a_folder_a_class(self, tmp_path):
        write_images(tmp_path / "p" / "dogs", PIXELS[3:])
        write_images(tmp_path / "p" / "cats", PIXELS[:3])
        (tmp_path / "p" / "cats" / "notes.txt").write_text("mine")
        (tmp_path / "p" / ".hidden").mkdir()
        data, preparation = read(tmp_path / "p")
        np.testing.assert_array_equal(data.rows, PIXELS)
        assert data.labels == ["cats"] * 3 + ["dogs"] * 3
        assert data.ids[3] == "dogs/00.png"
        assert data.notes[0].startswith("Passed over, being no pictures: 1 file in")
        assert_repeats(tmp_path / "p", data, preparation)

    def test_colour_first_and_mode(self, tmp_path):
        colour = RNG.integers(0, 256, size=(2, 8, 9, 3), dtype=np.uint8)
        write_images(tmp_path / "p", [*colour, PIXELS[0]])
        data, preparation = read(tmp_path / "p")
        assert data.rows.shape == (3, 3, 8, 9)
        np.testing.assert_array_equal(data.rows[:2], np.moveaxis(colour, 3, 1))
        np.testing.assert_array_equal(data.rows[2, 1], PIXELS[0])
        grey, _ = read(tmp_path / "p", Options(mode="grey"))
        np.testing.assert_array_equal(grey.rows[2], PIXELS[0])
        assert_repeats(tmp_path / "p", data, preparation)

    @pytest.mark.parametrize("turn", range(1, 9))
    def test_the_turn_of_the_camera(self, tmp_path, turn):
        """All eight orientations of EXIF, against the definition of each."""
        upright = PIXELS[0]
        undo = {
            1: lambda a: a,
            2: np.fliplr,
            3: lambda a: np.rot90(a, 2),
            4: np.flipud,
            5: np.transpose,
            6: lambda a: np.rot90(a, 1),
            7: lambda a: np.rot90(a, 2).T,
            8: lambda a: np.rot90(a, -1),
        }
        exif = Image.Exif()
        exif[0x0112] = turn
        (tmp_path / "p").mkdir()
        Image.fromarray(np.ascontiguousarray(undo[turn](upright))).save(
            tmp_path / "p" / "a.png", exif=exif
        )
        Image.fromarray(upright).save(tmp_path / "p" / "b.png")
        data, _ = read(tmp_path / "p")
        np.testing.assert_array_equal(data.rows[0], upright)

    def test_transparent_parts_16_bits_and_palettes(self, tmp_path):
        (tmp_path / "p").mkdir()
        clear = np.zeros((8, 9, 4), np.uint8)
        clear[:, :4] = (10, 20, 30, 255)
        Image.fromarray(clear).save(tmp_path / "p" / "a.png")
        Image.fromarray(PIXELS[0].astype(np.uint16) * 257).save(tmp_path / "p" / "b.png")
        Image.fromarray(PIXELS[1]).convert("P").save(tmp_path / "p" / "c.gif")
        data, _ = read(tmp_path / "p")
        assert data.rows[0, :, 0, 0].tolist() == [10, 20, 30]
        assert data.rows[0, :, 0, 8].tolist() == [255, 255, 255]
        np.testing.assert_array_equal(data.rows[1, 0], PIXELS[0])
        np.testing.assert_array_equal(data.rows[2, 2], PIXELS[1])
        (tmp_path / "p" / "a.png").unlink()
        assert read(tmp_path / "p")[0].rows.shape == (2, 8, 9)  # nothing coloured is left

    def test_mixed_sizes(self, tmp_path):
        folder = write_images(tmp_path / "p", [PIXELS[0], PIXELS[1], PIXELS[2][:, :5]])
        with pytest.raises(ValueError, match=r"00\.png is 8x9, .*02\.png is 8x5; --size HxW"):
            read(folder)
        data, preparation = read(folder, Options(size=(4, 6)))
        assert data.rows.shape == (3, 4, 6)
        assert_repeats(folder, data, preparation)
        _, exact = read(write_images(tmp_path / "q", PIXELS))
        with pytest.raises(ValueError, match=r"02\.png is 8x5, but pictures of the fit were 8x9"):
            again(folder, exact)

    def test_resized_keeps_what_is_flat(self, tmp_path):
        folder = write_images(tmp_path / "p", [np.full((40, 30), 77, np.uint8)])
        assert (read(folder, Options(size=(8, 8)))[0].rows == 77).all()

    @pytest.mark.parametrize("how", ["empty", "text", "half", "directory of a tiff"])
    def test_unreadable(self, tmp_path, how):
        folder = write_images(tmp_path / "p", PIXELS)
        whole = (folder / "02.png").read_bytes()
        broken = {"empty": b"", "text": b"hello", "half": whole[: len(whole) // 2]}
        (folder / "02.png").write_bytes(broken.get(how, b"II*\x00\x08\x00\x00\x00\xff\xff"))
        with pytest.raises(ValueError, match=r"02\.png cannot be read as a picture"):
            read(folder)

    def test_pillow_logs_nothing_beside_the_error(self, tmp_path, caplog):
        def tiff(samples):
            """8x9, grey; written out here, since versions of pillow write different tags."""
            short, long = 3, 4
            tags = [(256, long, 9), (257, long, 8), (258, short, 8), (259, short, 1)]
            tags += [(262, short, 1), (273, long, 8 + 2 + 9 * 12 + 4), (277, short, samples)]
            tags += [(278, long, 8), (279, long, 72)]
            entries = b"".join(struct.pack("<HHII", tag, kind, 1, n) for tag, kind, n in tags)
            head = b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries
            return head + bytes(4) + PIXELS[2].tobytes()

        folder = tmp_path / "p"
        folder.mkdir()
        (folder / "02.tif").write_bytes(tiff(samples=1))
        np.testing.assert_array_equal(read(folder)[0].rows, PIXELS[2:3])
        (folder / "02.tif").write_bytes(tiff(samples=45059))
        with pytest.raises(ValueError, match=r"02\.tif cannot be read as a picture"):
            read(folder)
        assert not caplog.records

    def test_bombs_are_not_decoded(self, tmp_path, monkeypatch):
        folder = tmp_path / "p"
        folder.mkdir()

        def png(height, width):
            def chunk(name, data):
                sums = struct.pack(">I", zlib.crc32(name + data))
                return struct.pack(">I", len(data)) + name + data + sums

            head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
            body = chunk(b"IDAT", zlib.compress(b"\0" * 100))
            return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + body + chunk(b"IEND", b"")

        for side in (9000, 12000, 60000):  # under pillow's warning, over it, over its error
            (folder / "bomb.png").write_bytes(png(side, side))
            with pytest.raises(ValueError, match=r"bomb\.png declares .* pixels"):
                read(folder, Options(size=(8, 8)))
        monkeypatch.setattr(image_reader, "MAX_FEATURES", 50)
        (folder / "bomb.png").unlink()
        write_images(folder, PIXELS)
        with pytest.raises(ValueError, match=r"8x9 are 72 numbers each, more than 50.*--size"):
            read(folder)

    def test_folders_without_pictures(self, tmp_path):
        with pytest.raises(ValueError, match="is empty"):
            read(tmp_path)
        (tmp_path / "a.doc").write_text("x")
        with pytest.raises(ValueError, match="holds no picture"):
            read(tmp_path)
        write_images(tmp_path, PIXELS[:1])
        write_images(tmp_path / "sub", PIXELS[:1])
        with pytest.raises(ValueError, match=r"'00\.png', and a folder of pictures, 'sub'"):
            read(tmp_path)
        with pytest.raises(ValueError, match=r"00\.png is one picture; give the folder"):
            read(tmp_path / "00.png")

    def test_labels_by_column_have_no_meaning(self, tmp_path):
        folder = write_images(tmp_path / "p", PIXELS)
        with pytest.raises(ValueError, match="--label-column has no meaning here"):
            read(folder, Options(label_column="y"))


TEXTS = ["The cat sat.", "A cat, a dog!", "Dogs and cats: 42 dogs", "Über <b>cats</b>"]


class TestTexts:
    def test_txt_against_scikit_learn(self, tmp_path):
        path = tmp_path / "t.txt"
        path.write_text("\n".join([*TEXTS[:2], "", *TEXTS[2:]]) + "\n", "utf-8")
        data, preparation = read(path)
        own = TfidfVectorizer(sublinear_tf=True, dtype=np.float32)
        np.testing.assert_array_equal(values(data), own.fit_transform(TEXTS).toarray())
        assert data.feature_names == own.get_feature_names_out().tolist()
        assert (data.kind, data.items, data.ids) == ("text", TEXTS, ["1", "2", "4", "5"])
        assert_repeats(path, data, preparation)
        path.write_text("unheard words\ncat cat dog\n")
        np.testing.assert_array_equal(
            values(again(path, preparation)),
            own.transform(["unheard words", "cat cat dog"]).toarray(),
        )

    def test_recipe_of_many_texts(self, tmp_path):
        """Words of one text only, and of more than half, are out; at most so many are kept."""
        texts = [f"common word{i % 7} word{i % 7} only{i}" for i in range(60)]
        (tmp_path / "t.txt").write_text("\n".join(texts))
        data, _ = read(tmp_path / "t.txt")
        assert data.feature_names == [f"word{i}" for i in range(7)]
        data, _ = read(tmp_path / "t.txt", Options(max_words=3))
        assert len(data.feature_names) == 3
        np.testing.assert_allclose(
            np.linalg.norm(values(data), axis=1).round(6), values(data).any(1)
        )

    @pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
    def test_columns(self, tmp_path, ending):
        frame = pd.DataFrame({"body": TEXTS, "topic": [*"xyxy"], "key": range(4), "n": 1.0})
        path = tmp_path / f"t.{ending}"
        if ending == "jsonl":
            frame.to_json(path, orient="records", lines=True)
        else:
            (frame.to_csv if ending == "csv" else frame.to_parquet)(path, index=False)
        options = Options(text_column="body", label_column="topic", id_column="key")
        data, preparation = read(path, options)
        assert (data.items, data.labels, data.ids) == (TEXTS, [*"xyxy"], [*"0123"])
        assert_repeats(path, data, preparation)
        with pytest.raises(ValueError, match=r"column 'bdy' is not among 'body'.*'body'"):
            read(path, Options(text_column="bdy"))
        with pytest.raises(ValueError, match="column 'n' must hold texts, row 0 is 1"):
            read(path, Options(text_column="n"))
        frame.drop(columns="topic").to_csv(tmp_path / "new.csv", index=False)
        assert again(tmp_path / "new.csv", preparation).labels is None

    def test_jsonl_damage(self, tmp_path):
        path = tmp_path / "t.jsonl"
        path.write_text('{"text": "a b"}\n\n{"text": \n')
        with pytest.raises(ValueError, match=r"t\.jsonl, line 3 is not JSON"):
            read(path)
        path.write_text('{"text": "a b"}\n[1]\n')
        with pytest.raises(ValueError, match="line 2 is not a JSON object"):
            read(path)
        path.write_text('{"txt": "a b"}\n')
        with pytest.raises(ValueError, match="column 'text' is not among 'txt'; did you mean"):
            read(path)
        path.write_text('{"text": null}\n{"text": "good words"}\n')
        assert read(path)[0].items == ["", "good words"]

    def test_half_a_character(self, tmp_path):
        """JSON can hold what is no text; a pair of halves is a whole."""
        lines = [rf'{{"text": "red {i} \ud83d\ude00 \ud800 end"}}' for i in range(3)]
        (tmp_path / "t.jsonl").write_text("\n".join(lines))
        data, preparation = read(tmp_path / "t.jsonl")
        assert data.items[1] == "red 1 \N{GRINNING FACE} \N{REPLACEMENT CHARACTER} end"
        assert_repeats(tmp_path / "t.jsonl", data, preparation)

    def test_a_thousand_brackets(self, tmp_path):
        (tmp_path / "t.jsonl").write_text('{"text": ' + "[" * 10**5 + "]" * 10**5 + "}")
        with pytest.raises(ValueError, match=r"t\.jsonl, line 1 is not JSON: maximum recursion"):
            read(tmp_path / "t.jsonl")

    def test_no_words(self, tmp_path):
        (tmp_path / "t.txt").write_text("! !\n? ?\n")
        with pytest.raises(ValueError, match="hold no words"):
            read(tmp_path / "t.txt")
        (tmp_path / "t.txt").write_text("\n \n")
        with pytest.raises(ValueError, match="has no text"):
            read(tmp_path / "t.txt")

    def test_embed(self, tmp_path, monkeypatch):
        (tmp_path / "t.txt").write_text("\n".join(TEXTS), "utf-8")
        monkeypatch.setitem(sys.modules, "sentence_transformers", None)
        with pytest.raises(ModuleNotFoundError, match="--embed tiny needs sentence_transformers"):
            read(tmp_path / "t.txt", Options(embed="tiny"))

        class Model:
            def __init__(self, name):
                assert name == "tiny"

            def encode(self, texts, show_progress_bar):
                assert not show_progress_bar
                return np.array([[len(text), text.count("c")] for text in texts])

        stand_in = types.SimpleNamespace(SentenceTransformer=Model)
        monkeypatch.setitem(sys.modules, "sentence_transformers", stand_in)
        data, preparation = read(tmp_path / "t.txt", Options(embed="tiny"))
        np.testing.assert_array_equal(data.rows[:, 0], [len(text) for text in TEXTS])
        other = again(tmp_path / "t.txt", preparation, embed="tiny")
        np.testing.assert_array_equal(other.rows, data.rows)
        for unsaid in (None, "other"):  # a model may bring code: the file alone does not choose it
            with pytest.raises(ValueError, match=r"by the model 'tiny'.*--embed if you trust it"):
                again(tmp_path / "t.txt", preparation, embed=unsaid)

    def test_options_without_meaning(self, tmp_path):
        (tmp_path / "t.txt").write_text("\n".join(TEXTS), "utf-8")
        with pytest.raises(ValueError, match="no columns to name"):
            read(tmp_path / "t.txt", Options(label_column="y"))
        with pytest.raises(ValueError, match="--columns has no meaning here"):
            read(tmp_path / "t.txt", Options(columns=["y"]))


class TestInput:
    @pytest.mark.parametrize("name", [f"x.{f}" for f in readers.FORMATS if f != "images"])
    def test_empty_files(self, tmp_path, name):
        (tmp_path / name).write_bytes(b"")
        with pytest.raises(ValueError, match=f"{name} is empty"):
            read(tmp_path / name)

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
    def test_a_pipe_is_not_waited_for(self, tmp_path):
        os.mkfifo(tmp_path / "x.csv")
        with pytest.raises(ValueError, match=r"x\.csv is neither a file nor a folder; a pipe is"):
            read(tmp_path / "x.csv")

    @pytest.mark.parametrize("ending", ["npy", "npz", "parquet", "h5"])
    @pytest.mark.parametrize("how", ["foreign", "half"])
    def test_damaged(self, tmp_path, ending, how):
        path = tmp_path / f"x.{ending}"
        frame = pd.DataFrame(X, columns=[*"abcde"])
        write = {
            "npy": lambda: np.save(path, X),
            "npz": lambda: np.savez(path, X),
            "parquet": lambda: frame.to_parquet(path),
            "h5": lambda: h5py.File(path, "w").create_dataset("x", data=X).file.close(),
        }
        write[ending]()
        data = path.read_bytes()
        path.write_bytes(b"hello hello hello" if how == "foreign" else data[: len(data) // 2])
        with pytest.raises(ValueError, match=rf"x\.{ending} (cannot be read as|is damaged)"):
            read(path)

    def test_names_that_lie(self, tmp_path):
        np.save(tmp_path / "x.npy", X)
        (tmp_path / "x.npy").rename(tmp_path / "x.npz")
        with pytest.raises(ValueError, match=r"x\.npz cannot be read as npz: it holds ndarray"):
            read(tmp_path / "x.npz")
        np.savez(tmp_path / "y.npz", X)
        (tmp_path / "y.npz").rename(tmp_path / "y.npy")
        with pytest.raises(ValueError, match=r"y\.npy cannot be read as npy: it holds NpzFile"):
            read(tmp_path / "y.npy")
        np.savez(tmp_path / "z.npz", X)
        with zipfile.ZipFile(tmp_path / "z.npz", "a") as archive:
            archive.writestr("readme.txt", "no array")
        np.testing.assert_array_equal(read(tmp_path / "z.npz")[0].rows, X)

    def test_sparse_whose_parts_point_outside(self, tmp_path):
        matrix = sparse.random_array((9, 30), density=0.2, rng=RNG).tocsr()
        matrix.indices[3] = 2**30
        np.savez(
            tmp_path / "x.npz",
            data=matrix.data,
            indices=matrix.indices,
            indptr=matrix.indptr,
            shape=matrix.shape,
            format=b"csr",
        )
        with pytest.raises(ValueError, match=r"x\.npz cannot be .* must be a whole sparse matrix"):
            read(tmp_path / "x.npz")

    def test_damaged_values_of_hdf5_are_found_when_read(self, tmp_path):
        with h5py.File(tmp_path / "x.h5", "w") as file:
            packed = file.create_dataset("rows", data=X, compression="gzip", chunks=X.shape)
            place, size = packed.id.get_chunk_info(0).byte_offset, packed.id.get_chunk_info(0).size
        whole = bytearray((tmp_path / "x.h5").read_bytes())
        whole[place : place + size] = b"\xff" * size
        (tmp_path / "x.h5").write_bytes(whole)
        with pytest.raises(ValueError, match=r"x\.h5 cannot be read as h5: .*read"):
            read(tmp_path / "x.h5")

    def test_what_libraries_say_is_one_line(self, tmp_path):
        (tmp_path / "t.csv").write_text("a,b\n1,2\n1,2,3,4\n")
        pd.DataFrame(X).to_parquet(tmp_path / "t.parquet")
        whole = (tmp_path / "t.parquet").read_bytes()
        (tmp_path / "t.parquet").write_bytes(whole[:-200] + b"\xff" * 150 + whole[-50:])
        for name in ("t.csv", "t.parquet"):
            with pytest.raises(ValueError, match="cannot be read as") as caught:
                read(tmp_path / name)
            assert "\n" not in str(caught.value)

    def test_damaged_gzip(self, tmp_path):
        whole = gzip.compress(b"a,b\n" + b"1,2\n" * 1000)
        for data in (whole[:-12], b"hello"):
            (tmp_path / "x.csv.gz").write_bytes(data)
            with pytest.raises(ValueError, match=r"x\.csv\.gz is damaged"):
                read(tmp_path / "x.csv.gz")

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"a,b\n", "has no rows"),
            (b"\n\n", "it is empty"),
            (b"a,b\n1,2\n1,2,3\n", "Expected 2 fields in line 3, saw 3"),
            (b"a,b\n\xff\xfe,2\n", "not text in UTF-8"),
        ],
    )
    def test_bad_csv(self, tmp_path, content, message):
        (tmp_path / "x.csv").write_bytes(content)
        with pytest.raises(ValueError, match=rf"x\.csv.*{message}"):
            read(tmp_path / "x.csv")

    def test_unknown(self, tmp_path):
        with pytest.raises(FileNotFoundError, match="nowhere does not exist"):
            read(tmp_path / "nowhere")
        (tmp_path / "x.xyz").write_text("a,b\n1,2\n")
        with pytest.raises(ValueError, match=r"x\.xyz: its name does not tell what it is"):
            read(tmp_path / "x.xyz")
        assert len(read(tmp_path / "x.xyz", Options(format="csv"))[0].rows) == 1
        with pytest.raises(ValueError, match=r"format must be one of npy, .* got 'xls'"):
            read(tmp_path / "x.xyz", Options(format="xls"))
        with pytest.raises(NotADirectoryError, match="pictures are read from a folder"):
            read(tmp_path / "x.xyz", Options(format="images"))
        with pytest.raises(IsADirectoryError, match="is a folder, which cannot be read as csv"):
            read(tmp_path, Options(format="csv"))

    @pytest.mark.parametrize(
        ("form", "content"),
        [
            ("csv", b"a,b\n1,2\n3,4\n"),
            ("tsv", b"a\tb\n1\t2\n3\t4\n"),
            ("txt", b"good words\nother words\n"),
            ("jsonl", b'{"text": "good words"}\n{"text": "x yz"}\n'),
        ],
    )
    def test_standard_input(self, monkeypatch, form, content):
        def give():
            monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=io.BytesIO(content)))

        give()
        data, preparation = read("-", Options(format=form))
        assert data.rows.shape[0] == 2
        give()
        other = again("-", preparation, form=form)
        np.testing.assert_array_equal(values(other), values(data))

    def test_standard_input_needs_a_format(self):
        for form in (None, "npy"):
            with pytest.raises(ValueError, match="standard input needs a format of csv"):
                read("-", Options(format=form))

    @pytest.mark.parametrize(
        ("form", "content", "message"),
        [
            ("csv", b"", "standard input is empty"),
            ("csv", b"\n\n", "standard input cannot be read as csv: it is empty"),
            ("csv", b"a,b\n1,2\n1,2,3\n", "standard input cannot be read as csv: .*line 3"),
            ("txt", b"\xff", "standard input is not text in UTF-8"),
        ],
    )
    def test_what_is_wrong_with_standard_input(self, monkeypatch, form, content, message):
        monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=io.BytesIO(content)))
        with pytest.raises(ValueError, match=message):
            read("-", Options(format=form))

    def test_endings_in_capitals(self, tmp_path):
        (tmp_path / "T.CSV.GZ").write_bytes(gzip.compress(b"a,b\n1,2\n"))
        assert values(read(tmp_path / "T.CSV.GZ")[0]).tolist() == [[1.0, 2.0]]

    def test_another_kind_than_the_fit(self, tmp_path):
        np.save(tmp_path / "a.npy", X)
        (tmp_path / "t.csv").write_text("a,b\n1,2\n")
        (tmp_path / "t.txt").write_text("good words\n")
        write_images(tmp_path / "p", PIXELS)
        preparations = {name: read(tmp_path / name)[1] for name in ("a.npy", "t.csv", "t.txt", "p")}
        for name, preparation in preparations.items():
            for other in preparations:
                if other != name:
                    with pytest.raises(ValueError, match=r"fit (did|was)|the fit was on"):
                        again(tmp_path / other, preparation)

    def test_unknown_reader(self, tmp_path):
        with pytest.raises(ValueError, match=r"reader must be one of 'table', .* got 'magic'"):
            read_again(tmp_path, {"reader": "magic"})

    def test_what_is_not_installed(self, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "pandas", None)
        (tmp_path / "t.csv").write_text("a,b\n1,2\n")
        with pytest.raises(ModuleNotFoundError, match=r"needs pandas: pip install 'concrete-kme"):
            read(tmp_path / "t.csv")
