"""Bombs: files of a few kilobytes that would fill the memory, each of a kind that is read."""

import gzip
import io
import lzma
import tarfile
import tracemalloc
import zipfile

import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
from PIL import Image
from scipy import sparse

from concrete_kmeans.datasets import _formats
from concrete_kmeans.limits import MAX_PIXELS, MAX_UNPACKED, RATIO, bounded, check_size, max_pixels
from concrete_kmeans.readers import Options, read

MIB = 2**20


@pytest.fixture
def small(monkeypatch):
    """As on a machine with little memory."""
    monkeypatch.setenv("CKM_MAX_UNPACKED", "1M")


def gzipped(path, line, times):
    with gzip.open(path, "wb") as stream:
        for _ in range(times):
            stream.write(line * 1000)


def bomb(folder, name):
    """Small on disk, 8 MiB or more unpacked."""
    path = folder / name
    if name.endswith(".gz"):
        line = {"t.csv.gz": b"1,2\n", "t.txt.gz": b"some words\n"}.get(name, b'{"text": "a b"}\n')
        gzipped(path, line, 9 * MIB // (1000 * len(line)))
    elif name == "zeros.npz":
        np.savez_compressed(path, np.zeros((MIB, 1)))
    elif name == "sparse.npz":
        sparse.save_npz(path, sparse.csr_array((2 * MIB, 4)))
    elif name == "unwritten.h5":  # 8 TB that take no place
        with h5py.File(path, "w") as file:
            file.create_dataset("rows", (10**12, 1), chunks=(1000, 1), dtype="f8")
    elif name == "zeros.h5":
        with h5py.File(path, "w") as file:
            file.create_dataset("rows", data=np.zeros((MIB, 1)), compression="gzip")
    else:
        pyarrow.parquet.write_table(pa.table({"a": np.zeros(MIB)}), path)
    assert path.stat().st_size < MIB // RATIO
    return path


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    "name",
    [
        *("t.csv.gz", "t.txt.gz", "t.jsonl.gz", "zeros.npz", "sparse.npz"),
        *("unwritten.h5", "zeros.h5", "runs.parquet"),
    ],
)
def test_bombs_are_not_unpacked(tmp_path, name):
    path = bomb(tmp_path, name)
    tracemalloc.start()
    with pytest.raises(
        ValueError, match=rf"{name} unpacks to more than the allowed 1048576 .*CKM_MAX_UNPACKED=64G"
    ):
        read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    most = 24 if "jsonl" in name else 6  # a record takes many times its bytes
    assert peak < most * MIB, f"{peak / MIB:.1f} MiB were taken before it was refused"


@pytest.mark.parametrize("name", ["t.csv.gz", "zeros.npz", "zeros.h5", "runs.parquet"])
def test_the_user_can_allow_more(tmp_path, monkeypatch, name):
    path = bomb(tmp_path, name)
    monkeypatch.setenv("CKM_MAX_UNPACKED", "16m")
    assert read(path)[0].rows.shape[0] > 10**6 - 1


def test_a_folder_of_parquet_is_bounded_too(tmp_path, small):
    (tmp_path / "parts" / "day=1").mkdir(parents=True)
    pd.DataFrame({"a": np.arange(9.0)}).to_parquet(tmp_path / "parts" / "0.parquet")
    bomb(tmp_path / "parts" / "day=1", "1.parquet")
    with pytest.raises(ValueError, match=r"parts unpacks to more than the allowed"):
        read(tmp_path / "parts")


def test_zip_that_lies_about_its_sizes(tmp_path):
    """The array in it says that it is larger than the memory of any machine."""
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        head, {"descr": "<f8", "fortran_order": False, "shape": (10**15, 4)}
    )
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.npy", head.getvalue() + b"\0" * 64)
    with pytest.raises(ValueError, match=r"x\.npz cannot be read as npz"):
        read(tmp_path / "x.npz")


def test_hdf5_does_not_reach_into_other_files(tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(np.arange(20.0).tobytes())
    for name, make in (
        ("external.h5", lambda file: file.create_dataset("x", (10, 2), "f8", external=str(secret))),
        ("virtual.h5", lambda file: file.create_virtual_dataset("x", virtual(tmp_path))),
    ):
        with h5py.File(tmp_path / name, "w") as file:
            make(file)
        with pytest.raises(ValueError, match="the values of 'x' lie in other files, which are not"):
            read(tmp_path / name)
    with h5py.File(tmp_path / "link.h5", "w") as file:
        file["x"] = h5py.ExternalLink("real.h5", "x")
    with pytest.raises(ValueError, match="holds no array of rows"):
        read(tmp_path / "link.h5")


def virtual(folder):
    with h5py.File(folder / "real.h5", "w") as file:
        file["x"] = np.zeros((10, 2))
    layout = h5py.VirtualLayout((10, 2), "f8")
    layout[:] = h5py.VirtualSource(str(folder / "real.h5"), "x", (10, 2))
    return layout


def test_pictures(tmp_path, monkeypatch):
    Image.new("L", (40, 50)).save(tmp_path / "p.png")
    monkeypatch.setenv("CKM_MAX_PIXELS", "1999")
    with pytest.raises(
        ValueError, match=r"p\.png declares 50x40 pixels, more than the 1999 .*CKM_MAX_PIXELS=500M"
    ):
        read(tmp_path, Options(size=(8, 8)))
    monkeypatch.setenv("CKM_MAX_PIXELS", "999")  # pillow refuses what is twice its limit
    with pytest.raises(ValueError, match=r"p\.png declares more pixels than the 999 that are"):
        read(tmp_path, Options(size=(8, 8)))
    before = Image.MAX_IMAGE_PIXELS
    monkeypatch.setenv("CKM_MAX_PIXELS", "2K")
    assert read(tmp_path, Options(size=(8, 8)))[0].rows.shape == (1, 8, 8)
    assert before == Image.MAX_IMAGE_PIXELS


def test_archive_of_posts(tmp_path, monkeypatch):
    """Members that are no posts are passed over, but not for ever."""
    monkeypatch.setattr(_formats, "MAX_UNPACKED", MIB)
    with (
        lzma.open(tmp_path / "x.tar.xz", "wb") as packed,
        tarfile.open(fileobj=packed, mode="w|") as a,
    ):
        for i in range(4):
            member = tarfile.TarInfo(f"../../etc/{i}")
            member.size = MIB
            a.addfile(member, io.BytesIO(b"\0" * MIB))
    with pytest.raises(ValueError, match=r"x\.tar\.xz unpacks to more than the allowed 1048576"):
        _formats.read_newsgroups(tmp_path / "x.tar.xz")


def test_a_large_file_may_become_larger():
    """No limit is in the way of who really has much data."""
    check_size("x", 10**12, RATIO * 10**12)
    with pytest.raises(ValueError, match="x unpacks to more than the allowed"):
        check_size("x", 10**6, MAX_UNPACKED + 1)


@pytest.mark.parametrize(("text", "number"), [("5", 5), ("2k", 2**11), (" 3G ", 3 * 2**30)])
def test_numbers_in_the_environment(monkeypatch, text, number):
    monkeypatch.setenv("CKM_MAX_PIXELS", text)
    assert max_pixels() == number
    monkeypatch.setenv("CKM_MAX_PIXELS", "")
    assert max_pixels() == MAX_PIXELS
    monkeypatch.setenv("CKM_MAX_PIXELS", f"{text}x")
    with pytest.raises(ValueError, match="CKM_MAX_PIXELS must be a whole number, as 500M or 64G"):
        max_pixels()


def test_stream_reads_as_the_one_inside():
    data = bytes(range(256)) * 100
    stream = bounded(io.BytesIO(data), "x", 1, most=len(data))
    assert stream.read(10) == data[:10]
    assert stream.seek(300) == 300
    assert stream.read() == data[300:]
    stream.seek(0)
    assert stream.readline() == data[:11]
    inside = io.BytesIO(b"a")
    bounded(inside, "x", 1).close()
    assert inside.closed
