from __future__ import annotations

import contextlib
import dataclasses
import gzip
import hashlib
import io
import os
import struct
import tarfile
import threading
import warnings
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from concrete_kmeans import datasets
from concrete_kmeans.datasets import _fetch, _formats
from concrete_kmeans.datasets._sources import FILES, LAYOUTS, TABLES, RawTable, RemoteFile, Table

REAL_DATA = os.environ.get("CKM_DATA_HOME")
MNIST_FILES = LAYOUTS["mnist"][0]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give each test an empty cache of its own, and no way to the internet."""
    monkeypatch.delenv("CKM_DATA_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NO_PROXY", "*")
    real_download = _fetch.download

    def local_download(url: str) -> bytes:
        assert url.startswith("http://127.0.0.1:"), f"a test asked for {url}"
        return real_download(url)

    monkeypatch.setattr(_fetch, "download", local_download)
    return tmp_path / "cache" / "concrete-kmeans"


def write_gz(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content))
    return path


def idx(array: np.ndarray, magic: int | None = None) -> bytes:
    magic = 0x0800 + array.ndim if magic is None else magic
    return struct.pack(f">{1 + array.ndim}I", magic, *array.shape) + array.tobytes()


def files_under(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


class TestDataset:
    def test_digits_are_embedded(self, tmp_path):
        digits = datasets.load("digits")
        X, y = digits
        assert X.shape == (1797, 64)
        assert (X.dtype, y.dtype) == (np.float64, np.int64)
        assert digits.data is X
        assert digits.target is y
        assert (digits.n_classes, digits.image_shape, digits.n_train) == (10, (8, 8), None)
        assert files_under(tmp_path) == []

    def test_is_frozen_and_prints_short(self):
        digits = datasets.load("digits")
        with pytest.raises(dataclasses.FrozenInstanceError):
            digits.name = "other"
        assert len(repr(digits)) < 300

    def test_names(self):
        assert set(datasets.names()) == {
            "digits", "mnist", "usps", "20newsgroups", "pendigits", "dig44", "vehicle",
            "letter", "segment", "waveform", "vowel", "spambase", "twonorm", "satimage",
        }  # fmt: skip

    def test_unknown_name_lists_the_known(self):
        with pytest.raises(ValueError, match=r"'minst'.*digits, mnist, usps"):
            datasets.load("minst")

    def test_unknown_option(self):
        with pytest.raises(TypeError, match=r"'digits' include recipe; allowed: none"):
            datasets.load("digits", recipe="raw")
        with pytest.raises(TypeError, match=r"include size; allowed: recipe"):
            datasets.load("20newsgroups", size="2")
        with pytest.raises(ValueError, match=r"recipe is 'x'.*raw, plain, sublinear"):
            datasets.load("20newsgroups", recipe="x")

    def test_every_table_has_a_digest_or_no_source(self):
        for table in TABLES.values():
            assert (table.raw is None) == (table.digest is None)
        for known in FILES.values():
            assert known.url is None or known.url.startswith("https://")


class TestIdx:
    @pytest.mark.parametrize("shape", [(5,), (3, 4, 2), (0,)])
    def test_round_trip(self, tmp_path, shape):
        array = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
        path = write_gz(tmp_path / "a.gz", idx(array))
        np.testing.assert_array_equal(_formats.read_idx(path, len(shape)), array)

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (idx(np.zeros((2, 3, 3), np.uint8))[:-1], r"2 x 3 x 3 = 18 values and has 17"),
            (idx(np.zeros((2, 3, 3), np.uint8)) + b"x", r"= 18 values and has 19"),
            (idx(np.zeros((2, 3, 3), np.uint8), magic=0x0D03), "0x00000d03.*0x00000803"),
            (idx(np.zeros(4, np.uint8)) * 4, "0x00000801"),
            (struct.pack(">4I", 0x0803, 2**32 - 1, 2**32 - 1, 2**32 - 1), "and has 0"),
            (b"\0\0\x08\x03", "truncated: 4 bytes"),
        ],
    )
    def test_malformed(self, tmp_path, content, message):
        path = write_gz(tmp_path / "images.gz", content)
        with pytest.raises(ValueError, match=message) as error:
            _formats.read_idx(path, 3)
        assert "images.gz" in str(error.value)

    @pytest.mark.parametrize("damage", [lambda b: b[:-9], lambda b: b"no gzip", lambda b: b[:12]])
    def test_broken_gzip(self, tmp_path, damage):
        path = tmp_path / "images.gz"
        path.write_bytes(damage(gzip.compress(idx(np.arange(99, dtype=np.uint8)))))
        with pytest.raises(ValueError, match=r"images\.gz is not a whole gzip"):
            _formats.read_idx(path, 1)

    def test_unpacking_is_bounded(self, tmp_path):
        path = write_gz(tmp_path / "a.gz", bytes(1000))
        assert len(_formats.read_unpacked(path, 1000)) == 1000
        with pytest.raises(ValueError, match="more than the allowed 999 bytes"):
            _formats.read_unpacked(path, 999)


class TestMnist:
    def write(self, folder: Path) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(0)
        images = rng.integers(0, 256, (5, 28, 28)).astype(np.uint8)
        labels = np.array([3, 1, 4, 1, 5], np.uint8)
        for filename, part in zip(
            MNIST_FILES, (images[:3], labels[:3], images[3:], labels[3:]), strict=True
        ):
            write_gz(folder / filename, idx(part))
        return images, labels

    def test_train_then_test_scaled(self, tmp_path):
        images, labels = self.write(tmp_path)
        with pytest.warns(datasets.DataWarning) as caught:
            mnist = datasets.load("mnist", tmp_path)
        assert "expected 440fcabf" in str(caught[0].message)
        assert mnist.data.dtype == np.float32
        np.testing.assert_allclose(mnist.data, images.reshape(5, -1) / 255, rtol=1e-6)
        np.testing.assert_array_equal(mnist.target, labels)
        assert (mnist.n_train, mnist.image_shape, mnist.n_classes) == (3, (28, 28), 10)
        assert str(tmp_path) in mnist.source

    def test_warning_points_at_the_caller(self, tmp_path):
        self.write(tmp_path)
        with pytest.warns(datasets.DataWarning) as caught:
            datasets.load("mnist", tmp_path)
        assert {Path(w.filename).name for w in caught} == {"test_datasets.py"}

    @pytest.mark.filterwarnings("ignore::concrete_kmeans.datasets.DataWarning")
    def test_images_and_labels_must_agree(self, tmp_path):
        self.write(tmp_path)
        write_gz(tmp_path / MNIST_FILES[1], idx(np.zeros(4, np.uint8)))
        with pytest.raises(ValueError, match=r"3 images, its labels are 4"):
            datasets.load("mnist", tmp_path)
        write_gz(tmp_path / MNIST_FILES[1], idx(np.array([1, 2, 11], np.uint8)))
        with pytest.raises(ValueError, match=r"reach 11; they must be 0"):
            datasets.load("mnist", tmp_path)
        write_gz(tmp_path / MNIST_FILES[1], idx(np.zeros(3, np.uint8)))
        write_gz(tmp_path / MNIST_FILES[0], idx(np.zeros((3, 9, 9), np.uint8)))
        with pytest.raises(ValueError, match=r"\(9, 9\).*\(28, 28\)"):
            datasets.load("mnist", tmp_path)


@pytest.mark.filterwarnings("ignore::concrete_kmeans.datasets.DataWarning")
class TestUsps:
    rows = np.round(np.random.default_rng(0).uniform(-1, 1, (5, 256)), 3)
    digits = np.array([6, 5, 0, 9, 3])

    def text(self, part: slice) -> bytes:
        lines = (
            " ".join([f"{d:.4f}", *(f"{v:.4f}" for v in row)]) + " \n"
            for d, row in zip(self.digits[part], self.rows[part], strict=True)
        )
        return "".join(lines).encode()

    def write_text(self, folder: Path) -> None:
        write_gz(folder / "zip.train.gz", self.text(slice(3)))
        write_gz(folder / "zip.test.gz", self.text(slice(3, 5)))

    def write_h5(self, folder: Path) -> None:
        h5py = pytest.importorskip("h5py")
        with h5py.File(folder / "usps.h5", "w") as file:
            for name, part in (("train", slice(3)), ("test", slice(3, 5))):
                file[f"{name}/data"] = ((self.rows[part] + 1) / 2).astype(np.float32)
                file[f"{name}/target"] = self.digits[part]

    @pytest.mark.parametrize("layout", ["text", "h5"])
    def test_both_layouts(self, tmp_path, layout):
        getattr(self, f"write_{layout}")(tmp_path)
        usps = datasets.load("usps", tmp_path)
        assert usps.data.dtype == np.float32
        np.testing.assert_allclose(usps.data, (self.rows + 1) / 2, atol=1e-6)
        np.testing.assert_array_equal(usps.target, self.digits)
        assert (usps.n_train, usps.image_shape) == (3, (16, 16))

    def test_text_is_preferred(self, tmp_path):
        self.write_text(tmp_path)
        self.write_h5(tmp_path)
        assert "zip.train.gz" in datasets.load("usps", tmp_path).source

    def test_h5_is_passed_over_without_h5py(self, tmp_path, monkeypatch):
        (tmp_path / "usps.h5").write_bytes(b"")
        monkeypatch.setattr(datasets.importlib.util, "find_spec", lambda name: None)
        monkeypatch.setattr(_fetch, "fetch_file", lambda filename, known: pytest.fail(filename))
        with pytest.raises(pytest.fail.Exception, match=r"zip\.train\.gz"):
            datasets.load("usps", tmp_path)

    def test_not_hdf5(self, tmp_path):
        pytest.importorskip("h5py")
        (tmp_path / "usps.h5").write_bytes(b"nothing")
        with pytest.raises(ValueError, match=r"usps\.h5 is not an HDF5 file"):
            datasets.load("usps", tmp_path)

    @pytest.mark.parametrize(
        ("damage", "message"),
        [
            (lambda t: t[: len(t) // 2], r"zip\.train\.gz, line 2: \d+ numbers.*257"),
            (lambda t: t.replace(b"5.0000 ", b"5.5000 ", 1), "not digits"),
            (lambda t: t.replace(b"5.0000 ", b"12.000 ", 1), "not digits"),
            (lambda t: t.replace(b"5.0000 ", b"five ", 1), r"line 2, column 1: 'five'"),
            (lambda t: t.replace(b" 0.", b" 7.", 1), "outside the range"),
            (lambda t: b"", "0 numbers|not a table"),
        ],
    )
    def test_malformed(self, tmp_path, damage, message):
        self.write_text(tmp_path)
        write_gz(tmp_path / "zip.train.gz", damage(self.text(slice(3))))
        with pytest.raises(ValueError, match=message):
            datasets.load("usps", tmp_path)


class TestCsv:
    def test_values_and_labels(self):
        data, labels = _formats.parse_csv(b"a,b,label\r\n1,-2.5,cat\r\n3e2,0,dog\r\n\r\n", "f")
        np.testing.assert_array_equal(data, [[1, -2.5], [300, 0]])
        assert labels == ["cat", "dog"]

    @given(
        st.lists(
            st.tuples(st.floats(allow_nan=False, allow_infinity=False), st.integers(-5, 5)),
            min_size=1,
        )
    )
    def test_round_trip(self, rows):
        text = "x,y,label\n" + "".join(f"{v!r},{i},{i}\n" for v, i in rows)
        data, labels = _formats.parse_csv(text.encode(), "f")
        np.testing.assert_array_equal(data, np.array(rows, dtype=float))
        assert labels == [str(i) for _, i in rows]

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"a,b,label\n1,2,x\n1,x\n", "f.csv, line 3: 1 numbers, and there must be 2"),
            (b"a,b,label\n1,2,3,x\n1,2,3,x\n", "f.csv, line 2: 3 numbers"),
            (b"a,b,label\n1,2,x\n1,two,x\n", "f.csv, line 3, column 2: 'two'"),
            (b"a,b,label\n1,2,x\n1,nan,x\n", "line 3, column 2: 'nan' is not a finite"),
            (b"a,b,label\n1,2,x\n1,,x\n", "line 3, column 2: ''"),
            (b"a,b,label\n1,2,x\n\n1,2,x\n", "line 3: 1 numbers"),
            (b"a,label\n1,x\n\n1,x\n", "line 3, column 1: ''"),
            (b"a,b,label\n1,2,x\n1,2,\n", "line 3: the label is empty"),
            (b"a,b,label\n", "a header and no rows"),
            (b"1,2,3\n1,2,3\n", "line 1: the header"),
            (b"", "line 1: the header"),
            (b"a,label\n\xff,x\n", "not a text file in UTF-8"),
        ],
    )
    def test_malformed(self, content, message):
        with pytest.raises(ValueError, match=message):
            _formats.parse_csv(content, "f.csv")

    def test_labels_that_are_integers_are_ordered_by_value(self):
        codes, names = _formats.encode_labels(["10", "9", "-1", "10"])
        assert names == ("-1", "9", "10")
        np.testing.assert_array_equal(codes, [2, 1, 0, 2])

    def test_other_labels_are_ordered_as_text(self):
        codes, names = _formats.encode_labels(["van", "10", "9"])
        assert names == ("10", "9", "van")
        np.testing.assert_array_equal(codes, [2, 0, 1])
        assert codes.dtype == np.int64


class TestContentDigest:
    data = np.array([[1.0, 0.277778], [-0.0, 5.0], [3.0, 4.0]])
    labels = ("a", "b", "a")
    digest = _formats.content_digest(data, labels)

    def test_from_its_definition(self):
        rows = [b"1,0.277778,a", b"0,5,b", b"3,4,a"]
        sums = sorted(hashlib.sha256(row).digest() for row in rows)
        assert self.digest == hashlib.sha256(b"".join(sums)).hexdigest()

    def test_order_of_rows_and_digits_past_the_sixth_do_not_matter(self):
        finer = self.data + np.array([[0, -2.4e-7], [0, 0], [0, 0]])
        assert _formats.content_digest(finer[::-1], self.labels[::-1]) == self.digest

    @pytest.mark.parametrize("change", [(0, 1, 0.277779), (2, 0, 3.0001)])
    def test_values_matter(self, change):
        row, column, value = change
        other = self.data.copy()
        other[row, column] = value
        assert _formats.content_digest(other, self.labels) != self.digest

    def test_labels_and_counts_matter(self):
        assert _formats.content_digest(self.data, ("a", "a", "b")) != self.digest
        twice = np.vstack([self.data, self.data[:1]])
        assert _formats.content_digest(twice, (*self.labels, "a")) != self.digest


def pack_lzw(content: bytes, widest: int = 16, clear_every: int = 0) -> bytes:
    """Encode as the Unix program compress does; a clear code after so many codes."""
    groups: list[tuple[int, list[int]]] = []
    table = {bytes([i]): i for i in range(256)}
    width, free, word, codes = 9, 257, b"", []
    for byte in [bytes([b]) for b in content] + [None]:
        if byte is not None and word + byte in table:
            word += byte
            continue
        if word:
            codes.append(table[word])
        if free == 1 << width and width < widest:
            groups.append((width, codes))
            codes, width = [], width + 1
        if byte is None:
            break
        if free < 1 << widest:
            table[word + byte] = free
            free += 1
        word = byte
        if clear_every and len(codes) >= clear_every:
            groups.append((width, [*codes, 256]))
            table = {bytes([i]): i for i in range(256)}
            codes, width, free = [], 9, 257
    groups.append((width, codes))
    packed = bytes([0x1F, 0x9D, 0x80 | widest])
    for i, (width, codes) in enumerate(groups):
        bits = sum(code << width * k for k, code in enumerate(codes))
        n_bits = width * len(codes)
        if i < len(groups) - 1:
            n_bits = -(-n_bits // (8 * width)) * 8 * width
        packed += bits.to_bytes(-(-n_bits // 8), "little")
    return packed


class TestLzw:
    text = "".join(f"{v:.2f}," for v in np.random.default_rng(0).normal(size=6000)).encode()

    @pytest.mark.parametrize("clear_every", [0, 100, 257])
    @pytest.mark.parametrize("widest", [10, 12, 16])
    def test_round_trip(self, widest, clear_every):
        packed = pack_lzw(self.text, widest, clear_every)
        assert len(packed) < len(self.text)
        assert _formats.unpack_lzw(packed) == self.text

    def test_by_hand(self):
        # "aaa": the code of "a", then 257, which is the word "aa" not yet in the table.
        packed = bytes.fromhex("1f9d90") + (97 | 257 << 9).to_bytes(3, "little")
        assert _formats.unpack_lzw(packed) == b"aaa"

    @given(st.binary(max_size=300))
    def test_any_bytes_come_back(self, content):
        assert _formats.unpack_lzw(pack_lzw(content)) == content

    @given(st.binary(max_size=100))
    def test_garbage_never_does_worse_than_a_value_error(self, content):
        with contextlib.suppress(ValueError):
            _formats.unpack_lzw(bytes.fromhex("1f9d90") + content)

    def test_malformed(self):
        with pytest.raises(ValueError, match=r"not a \.Z file"):
            _formats.unpack_lzw(b"\x1f\x8b\x10")
        with pytest.raises(ValueError, match="more than the allowed 9 bytes"):
            _formats.unpack_lzw(pack_lzw(b"0123456789"), max_bytes=9)


class TestRawTables:
    def test_white_space_skipped_columns_and_new_labels(self):
        raw = RawTable(("u",), separator=None, skip=1, rename={"0": "no", "1": "yes"})
        content = _formats.csv_from_raw(
            [("u", b" 7  1.5 2 0 \n\n8 3 4 1\n"), ("v", b"9 5 6 2")], raw
        )
        assert content == b"x1,x2,label\n1.5,2,no\n3,4,yes\n5,6,2\n"

    def test_label_first(self):
        content = _formats.csv_from_raw([("u", b"T,2, 8\nI, 5,12\n")], RawTable(("u",), label=0))
        assert content == b"x1,x2,label\n2,8,T\n5,12,I\n"

    def test_zip_with_header(self):
        packed = self.zip({"t.dat": b"@relation t\n@data\n1.0, 2.0, 0\n", "readme.txt": b"x"})
        content = _formats.csv_from_raw([("http://h/t.zip", packed)], RawTable(("u",)))
        assert content == b"x1,x2,label\n1.0,2.0,0\n"

    def test_compressed(self):
        content = _formats.csv_from_raw([("u.Z", pack_lzw(b"1,2,0\n"))], RawTable(("u.Z",)))
        assert content == b"x1,x2,label\n1,2,0\n"

    @pytest.mark.parametrize(
        ("url", "content", "message"),
        [
            ("u.zip", b"no zip", "not a zip archive"),
            ("u", b"<html>gone</html>", "not a row of the table"),
            ("u", b"", "holds no rows"),
            ("u.Z", b"no", r"not a \.Z file"),
        ],
    )
    def test_malformed(self, url, content, message):
        with pytest.raises(ValueError, match=message):
            _formats.csv_from_raw([(url, content)], RawTable((url,)))

    def test_zip_is_bounded_and_has_one_table(self):
        with pytest.raises(ValueError, match="holds 2 files"):
            _formats._only_table_of_zip(self.zip({"a.dat": b"", "b.dat": b""}), "u.zip")
        with pytest.raises(ValueError, match="more than the allowed 99 bytes"):
            _formats._only_table_of_zip(self.zip({"a.dat": bytes(100)}), "u.zip", max_bytes=99)

    def zip(self, members: dict[str, bytes]) -> bytes:
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w") as archive:
            for name, content in members.items():
                archive.writestr(name, content)
        return stream.getvalue()


@pytest.mark.filterwarnings("ignore::concrete_kmeans.datasets.DataWarning")
class TestNewsgroups:
    posts: ClassVar = {
        "20news-bydate-test/alt.atheism/53068": "gamma delta words",
        "20news-bydate-train/sci.space/60": "alpha beta words",
        "20news-bydate-train/sci.space/7": "alpha gamma words",
        "20news-bydate-train/alt.atheism/51": "beta caf\xe9 words",
    }
    expected: ClassVar = [
        "beta caf\xe9 words",
        "alpha beta words",
        "alpha gamma words",
        "gamma delta words",
    ]

    def write(self, path: Path, extra: tuple[tarfile.TarInfo, ...] = ()) -> None:
        mode = "w:xz" if path.suffix == ".xz" else "w:gz"
        with tarfile.open(path, mode) as archive:
            folder = tarfile.TarInfo("20news-bydate-train/sci.space")
            folder.type = tarfile.DIRTYPE
            archive.addfile(folder)
            for name, text in self.posts.items():
                member = tarfile.TarInfo(name)
                content = text.encode("latin-1")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
            for member in extra:
                archive.addfile(member, io.BytesIO(bytes(member.size)))

    @pytest.mark.parametrize("suffix", ["xz", "gz"])
    def test_order_and_text(self, tmp_path, suffix):
        self.write(tmp_path / f"20news-bydate.tar.{suffix}")
        news = datasets.load("20newsgroups", tmp_path, recipe="raw")
        assert news.data == self.expected
        assert news.target_names == ("alt.atheism", "sci.space")
        np.testing.assert_array_equal(news.target, [0, 1, 1, 0])
        assert (news.n_train, news.image_shape) == (3, None)

    @pytest.mark.parametrize(("recipe", "sublinear"), [("plain", False), ("sublinear", True)])
    def test_recipes(self, tmp_path, recipe, sublinear):
        from sklearn.feature_extraction.text import TfidfVectorizer

        self.write(tmp_path / "20news-bydate.tar.gz")
        X, _ = datasets.load("20newsgroups", tmp_path, recipe=recipe)
        expected = TfidfVectorizer(max_features=2000, sublinear_tf=sublinear)
        np.testing.assert_allclose(
            X.toarray(), expected.fit_transform(self.expected).toarray(), rtol=1e-6
        )
        assert scipy.sparse.issparse(X)
        assert (X.format, X.dtype) == ("csr", np.float32)

    def test_hostile_members_are_passed_over(self, tmp_path):
        members = []
        for name, kind, target in [
            ("20news-bydate-train/sci.space/1", tarfile.SYMTYPE, "/etc/passwd"),
            ("20news-bydate-train/sci.space/2", tarfile.LNKTYPE, "20news-bydate-train/sci.space/7"),
            ("20news-bydate-train/sci.space/3", tarfile.FIFOTYPE, ""),
            ("../20news-bydate-train/sci.space/4", tarfile.REGTYPE, ""),
            ("/20news-bydate-train/sci.space/5", tarfile.REGTYPE, ""),
            ("20news-bydate-train/../6", tarfile.REGTYPE, ""),
            ("20news-bydate-train/sci.space/8.exe", tarfile.REGTYPE, ""),
        ]:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, target
            members.append(member)
        self.write(tmp_path / "20news-bydate.tar.gz", tuple(members))
        before = files_under(tmp_path)
        assert datasets.load("20newsgroups", tmp_path, recipe="raw").data == self.expected
        assert files_under(tmp_path) == before

    def test_a_post_that_declares_too_much(self, tmp_path):
        huge = tarfile.TarInfo("20news-bydate-train/sci.space/9")
        huge.size = 2**40
        path = tmp_path / "20news-bydate.tar.gz"
        path.write_bytes(gzip.compress(huge.tobuf() + bytes(1024)))
        with pytest.raises(ValueError, match=r"declares 1099511627776 bytes"):
            datasets.load("20newsgroups", tmp_path)

    @pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"no archive"])
    @pytest.mark.parametrize("suffix", ["xz", "gz"])
    def test_truncated(self, tmp_path, suffix, damage):
        path = tmp_path / f"20news-bydate.tar.{suffix}"
        self.write(path)
        path.write_bytes(damage(path.read_bytes()))
        with pytest.raises(ValueError, match="not a whole tar archive"):
            datasets.load("20newsgroups", tmp_path)

    def test_no_posts(self, tmp_path):
        with tarfile.open(tmp_path / "20news-bydate.tar.gz", "w:gz"):
            pass
        with pytest.raises(ValueError, match="has no posts"):
            datasets.load("20newsgroups", tmp_path)


class TestLookup:
    @pytest.fixture
    def places(self, tmp_path, cache, monkeypatch) -> dict[str, Path]:
        places = {"home": tmp_path / "given", "environment": tmp_path / "env", "cache": cache}
        for place in places.values():
            place.mkdir(parents=True)
        monkeypatch.setenv("CKM_DATA_HOME", str(places["environment"]))
        return places

    def write(self, folder: Path, label: str, filename: str = "dig44.csv.gz") -> None:
        content = f"x1,x2,label\n1,2,{label}\n".encode()
        path = folder / filename
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)

    def test_order(self, places):
        for place in ("cache", "environment", "home"):  # each goes before the ones written so far
            self.write(places[place], place)
            assert datasets.load("dig44", places["home"]).target_names == (place,)
        assert datasets.load("dig44").target_names == ("environment",)

    def test_plain_csv(self, places):
        self.write(places["cache"], "plain", "dig44.csv")
        dig44 = datasets.load("dig44")
        assert dig44.target_names == ("plain",)
        assert dig44.image_shape is None
        assert "dig44.csv" in dig44.source

    def test_dig44_with_its_sixteen_columns_is_images(self, tmp_path):
        header = ",".join(f"x{i}" for i in range(16)) + ",label\n"
        (tmp_path / "dig44.csv").write_text(header + "1," * 16 + "7\n", encoding="utf-8")
        assert datasets.load("dig44", tmp_path).image_shape == (4, 4)

    def test_dig44_says_where_to_put_it(self, places):
        with pytest.raises(datasets.DataNotFoundError, match="not publicly distributed") as error:
            datasets.load("dig44", places["home"])
        assert isinstance(error.value, FileNotFoundError)
        for place in places.values():
            assert str(place) in str(error.value)

    @pytest.mark.parametrize("name", ["dig44", "digits"])
    def test_data_home_must_exist(self, tmp_path, name):
        with pytest.raises(NotADirectoryError, match=r"data_home is '.*nowhere'"):
            datasets.load(name, tmp_path / "nowhere")
        file = tmp_path / "file"
        file.touch()
        with pytest.raises(NotADirectoryError, match="must be an existing folder"):
            datasets.load(name, str(file))

    def test_environment_may_name_a_folder_that_is_not_there(self, tmp_path, monkeypatch):
        monkeypatch.setenv("CKM_DATA_HOME", str(tmp_path / "nowhere"))
        with pytest.raises(datasets.DataNotFoundError):
            datasets.load("dig44")

    def test_cache_without_xdg(self, tmp_path, monkeypatch):
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setattr(Path, "home", lambda: tmp_path)
        monkeypatch.delenv("LOCALAPPDATA", raising=False)
        assert _fetch.cache_folder() == tmp_path / ".cache" / "concrete-kmeans"

    def test_other_content_is_read_with_a_warning(self, places):
        self.write(places["home"], "van", "vehicle.csv.gz")
        with pytest.warns(datasets.DataWarning, match=r"vehicle\.csv\.gz differs") as caught:
            vehicle = datasets.load("vehicle", places["home"])
        assert Path(caught[0].filename).name == "test_datasets.py"
        assert vehicle.target_names == ("van",)

    def test_training_part_is_not_claimed_for_other_content(self, places):
        self.write(places["home"], "hid", "vowel.csv.gz")
        with pytest.warns(datasets.DataWarning):
            assert datasets.load("vowel", places["home"]).n_train is None


class Server:
    """Serves ``content[path]`` on the loopback; counts what is asked for."""

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}
        self.declared: dict[str, int] = {}
        self.redirect: dict[str, str] = {}
        self.asked: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                body = outer.content.get(self.path)
                if self.path in outer.redirect:
                    self.send_response(302)
                    self.send_header("Location", outer.redirect[self.path])
                    self.end_headers()
                elif body is None:
                    self.send_error(404)
                else:
                    self.send_response(200)
                    length = outer.declared.get(self.path, len(body))
                    self.send_header("Content-Length", str(length))
                    self.end_headers()
                    self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.http.shutdown()
    thread.join()
    server.http.server_close()


class TestDownload:
    rows = b"1.50,2,0\n3,4.25,1\n"

    @pytest.fixture
    def toy(self, server, monkeypatch) -> Server:
        """``waveform`` becomes a table of two rows in two files on the server."""
        digest = _formats.content_digest(np.array([[3, 4.25], [1.5, 2]]), ["1", "0"])
        raw = RawTable((server.url + "/a.data", server.url + "/b.data"))
        monkeypatch.setitem(TABLES, "waveform", Table(n_rows=2, digest=digest, raw=raw, n_train=1))
        first, second = self.rows.splitlines(keepends=True)
        server.content = {"/a.data": first, "/b.data": second}
        return server

    def test_good_table_is_cached(self, toy, cache):
        for _ in range(2):
            waveform = datasets.load("waveform")
            np.testing.assert_array_equal(waveform.data, [[1.5, 2], [3, 4.25]])
            np.testing.assert_array_equal(waveform.target, [0, 1])
            assert waveform.n_train == 1
        assert toy.asked == ["/a.data", "/b.data"]
        assert files_under(cache) == ["waveform.csv.gz"]
        text = gzip.decompress((cache / "waveform.csv.gz").read_bytes())
        assert text == b"x1,x2,label\n1.50,2,0\n3,4.25,1\n"

    def test_only_the_cache_is_written(self, toy, cache, tmp_path):
        home = tmp_path / "given"
        home.mkdir()
        datasets.load("waveform", home)
        assert files_under(tmp_path) == ["cache/concrete-kmeans/waveform.csv.gz"]

    @pytest.mark.parametrize(
        ("body", "message"),
        [
            (b"3,4.26,1\n", r"b\.data.*expected sha256 [0-9a-f]{64}, found [0-9a-f]{64}"),
            (b"3,4.25,0\n", "expected sha256"),
            (b"", "expected sha256"),
            (b"3,4.25\n", r"line 3: 1 numbers.*sha256 of what came"),
            (b"<html>maintenance</html>", "content digest [0-9a-f]{64}.*not a row"),
        ],
    )
    def test_other_table_is_refused(self, toy, tmp_path, body, message):
        toy.content["/b.data"] = body
        with pytest.raises(datasets.DownloadError, match=message) as error:
            datasets.load("waveform")
        assert toy.url in str(error.value)
        assert files_under(tmp_path) == []

    @pytest.fixture
    def mnist(self, server, monkeypatch) -> Server:
        for i, filename in enumerate(MNIST_FILES):
            part = np.zeros((2, 28, 28) if i % 2 == 0 else 2, np.uint8)
            content = gzip.compress(idx(part), mtime=0)
            server.content["/" + filename] = content
            known = RemoteFile(hashlib.sha256(content).hexdigest(), f"{server.url}/{filename}")
            monkeypatch.setitem(FILES, filename, known)
        return server

    def test_good_files_are_cached(self, mnist, cache):
        for _ in range(2):
            assert datasets.load("mnist").data.shape == (4, 784)
        assert mnist.asked == ["/" + filename for filename in MNIST_FILES]
        assert files_under(cache) == sorted(MNIST_FILES)

    def test_only_missing_files_are_downloaded(self, mnist, tmp_path, cache):
        home = tmp_path / "given"
        home.mkdir()
        for filename in MNIST_FILES[:2]:
            (home / filename).write_bytes(mnist.content["/" + filename])
        assert datasets.load("mnist", home).data.shape == (4, 784)
        assert mnist.asked == ["/" + filename for filename in MNIST_FILES[2:]]
        assert files_under(cache) == sorted(MNIST_FILES[2:])

    def test_corrupted_file(self, mnist, tmp_path):
        good = mnist.content["/" + MNIST_FILES[0]]
        bad = good[:20] + bytes([good[20] ^ 1]) + good[21:]
        mnist.content["/" + MNIST_FILES[0]] = bad
        with pytest.raises(datasets.DownloadError) as error:
            datasets.load("mnist")
        for part in (
            f"{mnist.url}/{MNIST_FILES[0]}",
            *(hashlib.sha256(b).hexdigest() for b in (good, bad)),
        ):
            assert part in str(error.value)
        assert files_under(tmp_path) == []

    def test_truncated_file(self, mnist, tmp_path):
        path = "/" + MNIST_FILES[0]
        mnist.declared[path] = len(mnist.content[path]) + 10
        with pytest.raises(datasets.DownloadError, match=r"broke off|could not download"):
            datasets.load("mnist")
        assert files_under(tmp_path) == []

    def test_not_found(self, mnist, tmp_path):
        del mnist.content["/" + MNIST_FILES[0]]
        with pytest.raises(datasets.DownloadError, match=r"could not download http://127.*404"):
            datasets.load("mnist")
        assert files_under(tmp_path) == []

    def test_nobody_there(self, mnist, tmp_path, monkeypatch):
        known = RemoteFile("0" * 64, "http://127.0.0.1:9/none")
        monkeypatch.setitem(FILES, MNIST_FILES[0], known)
        with pytest.raises(datasets.DownloadError, match="could not download"):
            datasets.load("mnist")

    def test_too_large(self, mnist, tmp_path, monkeypatch):
        monkeypatch.setattr(_fetch, "MAX_DOWNLOAD", 20)
        with pytest.raises(datasets.DownloadError, match="more than the allowed 20 bytes"):
            datasets.load("mnist")
        assert files_under(tmp_path) == []

    def test_too_slow(self, mnist, tmp_path, monkeypatch):
        monkeypatch.setattr(_fetch, "DEADLINE", -1.0)
        with pytest.raises(datasets.DownloadError, match="took longer"):
            datasets.load("mnist")
        assert files_under(tmp_path) == []

    def test_redirects_stay_on_the_web(self, server, tmp_path):
        server.content["/there"] = b"content"
        server.redirect = {
            "/here": "/there",
            "/out": "ftp://127.0.0.1/x",
            "/in": "file:///etc/passwd",
        }
        assert _fetch.download(server.url + "/here") == b"content"
        for path in ("/out", "/in"):
            with pytest.raises(datasets.DownloadError, match="could not download"):
                _fetch.download(server.url + path)

    def test_a_failed_write_leaves_nothing(self, cache, monkeypatch):
        def fail(self: Path, target: Path) -> Path:
            raise OSError("disk full")

        monkeypatch.setattr(Path, "replace", fail)
        with pytest.raises(OSError, match="disk full"):
            _fetch.store(b"content", "file.gz")
        assert files_under(cache) == []

    def test_a_file_that_is_only_read(self):
        with pytest.raises(datasets.DataNotFoundError, match="no public source"):
            _fetch.fetch_file("usps.h5", FILES["usps.h5"])


@pytest.mark.parametrize("url", ["ftp://h/x", "file:///etc/passwd", "x"])
def test_only_web_addresses(url, monkeypatch):
    monkeypatch.undo()  # the guard of the fixture
    with pytest.raises(datasets.DownloadError, match="not an http or https address"):
        _fetch.download(url)


def real(*filenames: str) -> str:
    if not REAL_DATA or not all((Path(REAL_DATA) / f).is_file() for f in filenames):
        pytest.skip(f"CKM_DATA_HOME has no {', '.join(filenames)}")
    return REAL_DATA


USPS_TRAIN = [1194, 1005, 731, 658, 652, 556, 664, 645, 542, 644]
USPS_TEST = [359, 264, 198, 166, 200, 160, 170, 147, 166, 177]


@pytest.mark.data
class TestRealFiles:
    """The known files: a DataWarning would be an error here, so the sums are checked too."""

    def test_mnist(self):
        mnist = datasets.load("mnist", real(*MNIST_FILES))
        assert mnist.data.shape == (70000, 784)
        assert mnist.n_train == 60000
        assert (mnist.data.min(), mnist.data.max()) == (0.0, 1.0)
        counts = np.bincount(mnist.target)
        assert counts.tolist() == [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958]

    @pytest.mark.parametrize("layout", LAYOUTS["usps"])
    def test_usps(self, layout, tmp_path):
        folder = real(*layout)
        if layout == ("usps.h5",):
            pytest.importorskip("h5py")
        for filename in layout:
            (tmp_path / filename).symlink_to(Path(folder).resolve() / filename)
        usps = datasets.load("usps", tmp_path)
        assert usps.data.shape == (9298, 256)
        assert (usps.data.min(), usps.data.max()) == (0.0, 1.0)
        assert usps.n_train == 7291
        assert np.bincount(usps.target[:7291]).tolist() == USPS_TRAIN
        assert np.bincount(usps.target[7291:]).tolist() == USPS_TEST

    def test_usps_layouts_agree(self):
        pytest.importorskip("h5py")
        folder = Path(real("zip.train.gz", "zip.test.gz", "usps.h5"))
        from_h5 = _formats.read_usps_h5(folder / "usps.h5")
        for filename, (pixels, digits) in zip(LAYOUTS["usps"][0], from_h5, strict=True):
            text_pixels, text_digits = _formats.read_usps_text(folder / filename)
            np.testing.assert_array_equal(digits, text_digits)
            np.testing.assert_allclose(pixels, text_pixels, atol=1e-6)

    def test_newsgroups(self):
        filename = "20news-bydate.tar.xz"
        news = datasets.load("20newsgroups", real(filename), recipe="raw")
        assert (len(news.data), news.n_train, news.n_classes) == (18846, 11314, 20)
        assert sum(len(text.encode()) for text in news.data[: news.n_train]) == pytest.approx(
            22.055e6, abs=5e2
        )
        counts = np.bincount(news.target)
        assert (counts.min(), counts.max()) == (628, 999)
        assert news.target_names[0] == "alt.atheism"

    @pytest.mark.parametrize(
        ("name", "shape", "n_classes", "low", "high"),
        [
            ("pendigits", (10992, 16), 10, 0, 100),
            ("vehicle", (846, 18), 4, 0, 1018),
            ("letter", (20000, 16), 26, 0, 15),
            ("segment", (2310, 19), 7, -49.6667, 1386.33),
            ("waveform", (5000, 21), 3, -4.2, 9.06),
            ("vowel", (990, 10), 11, -5.211, 5.074),
            ("spambase", (4601, 57), 2, 0, 15841),
            ("twonorm", (7400, 20), 2, -4.5744, 5.6395),
            ("satimage", (6435, 36), 6, 27, 157),
        ],
    )
    def test_tables(self, name, shape, n_classes, low, high):
        folder = real(f"{name}.csv.gz")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            table = datasets.load(name, folder)
        assert table.data.shape == shape
        assert table.n_classes == n_classes
        assert (table.data.min(), table.data.max()) == (low, high)
        assert set(np.unique(table.target)) == set(range(n_classes))

    def test_training_parts(self):
        for name, n_train in {"pendigits": 7494, "satimage": 4435, "vowel": 528}.items():
            assert datasets.load(name, real(f"{name}.csv.gz")).n_train == n_train
