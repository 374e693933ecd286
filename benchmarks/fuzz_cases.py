"""What ``fuzz.py`` runs: each target makes a case of a generator, and says whom errors name."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import h5py
import numpy as np
import pandas as pd
import torch
from PIL import Image
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes
from scipy import sparse
from sklearn.datasets import make_blobs
from typer.testing import CliRunner

import concrete_kmeans
from concrete_kmeans import data as data_of_users
from concrete_kmeans import estimators, readers, storage
from concrete_kmeans.cli import app
from concrete_kmeans.cli.runs import notes_of, open_model, read_new, rows_of

#: Folder of valid inputs and runs, made once.
Seeds = Path
Rng = np.random.Generator

DEEP = ("DeepConcreteKMeans", "AutoencoderKMeans", "DEC", "IDEC", "DCN", "DKM")
BLOBS, KINDS = make_blobs(60, 4, centers=3, random_state=0)
SMALL = {
    "encoder": (4, 2),
    "pretrain_epochs": 1,
    "epochs": 1,
    "batch_size": 32,
    "device": "cpu",
    "random_state": 0,
}
KM = ("--method", "km", "--device", "cpu")


class FindingError(AssertionError):
    """A promise that is broken, though nothing was raised."""


@dataclass(frozen=True)
class Case:
    """Something to do, and the names of which an error must hold one."""

    what: str
    work: Callable[[], object]
    names: Sequence[str]


# --------------------------------------------------------------------------------------------------
# values


def odd_value(rng: Rng) -> Any:
    """What nobody expects for an argument."""
    values = [
        None, True, False, 0, 1, 2, -1, 3, 300, 2**63, -(2**70), 0.0, 0.5, 1.0, -0.5, 1e-300,
        1e300, float("nan"), float("inf"), -float("inf"), "", "auto", "x", "k-means++", "\x00",
        "é" * 50, "cpu", "cuda:99", "meta", [], (), {}, [1], (1, 2), (0.5, 0.1), (0.1, -1),
        [None], [[1, 2], [3]], (8, 2), (8, 0), ("a",), {"a": 1}, {1, 2}, b"bytes", 1j, object(),
        lambda *_: None, np.float32(0.5), np.int64(2), np.bool_(True), np.array(2),
        np.array([1.0, 2.0]), np.zeros((3, 4)), np.full((3, 4), np.nan), np.array(["a"]),
        np.array([None]), np.ma.masked, torch.tensor(1.0), torch.zeros(3, 4), torch.zeros(0),
        torch.nn.Linear(4, 2), torch.nn.Identity(), torch.float32, torch.device("cpu"),
        np.random.RandomState(0), np.random.default_rng(0), Path("no/such/folder"), pd.NA,
        pd.Series([1, 2]), pd.DataFrame({"a": [1]}), range(3), Ellipsis,
    ]  # fmt: skip
    return values[rng.integers(len(values))]


def odd_json(rng: Rng) -> Any:
    """A JSON value out of place."""
    values = [
        None, True, 0, -1, 1, 3, 10**9, 10**15, 2**64, -(10**30), 0.5, 1e308, "", "x", "nan",
        "auto", "../..", "/dev/zero", "\ud800", [], [0], [-1], [10**12], [[]], {}, {"$":
        "tuple", "items": [1]}, {"$": "float", "value": "x"}, {"$": "tensor", "value": "no"},
        {"$": "device", "value": "moon"}, {"$": "array", "value": ["labels"]}, {"$": []}, {"$":
        "array", "value": "labels"}, [None] * 5, {"a": {"b": {}}}, {"$": "tuple"}, {"$":
        "tuple", "items": 5},
    ]  # fmt: skip
    return values[rng.integers(len(values))]


def mutated_json(value: Any, rng: Rng) -> Any:
    """The same tree with one node replaced, removed, doubled or added."""
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    if not keys:
        return odd_json(rng)
    key = keys[rng.integers(len(keys))]
    child = value[key]
    if isinstance(child, dict | list) and rng.random() < 0.6:
        value[key] = mutated_json(child, rng)
        return value
    how = rng.integers(4)
    if how == 0:
        del value[key]
    elif how == 1 and isinstance(value, dict):
        value["odd"] = odd_json(rng)
    elif how == 2 and isinstance(value, list):
        value.append(child)
    else:
        value[key] = odd_json(rng)
    return value


def mutated_bytes(data: bytes, rng: Rng) -> bytes:
    """A few bytes changed, cut, doubled, inserted; or the lot cut short."""
    out = bytearray(data)
    for _ in range(rng.integers(1, 5)):
        if not out:
            break
        # heads of files are where the meaning is
        end = len(out) if rng.random() < 0.5 else min(len(out), 200)
        place, length = int(rng.integers(end)), int(rng.integers(1, 9))
        how = rng.integers(7)
        if how == 0:
            out[place] ^= 1 << int(rng.integers(8))
        elif how == 1:
            out[place : place + length] = rng.bytes(length)
        elif how == 2:
            del out[place : place + length * int(rng.integers(1, 30))]
        elif how == 3:
            out[place:place] = out[place : place + length * 10]
        elif how == 4:
            del out[place:]
        elif how == 5:
            out[place : place + length] = [b"\xff", b"\x00", b"\x7f"][rng.integers(3)] * length
        else:
            digits = [b"99999999999", b"-1", b"0", b"1e999", b"nan", b'"', b"\n", b","]
            out[place : place + 1] = digits[rng.integers(len(digits))]
    return bytes(out)


def odd_array(rng: Rng) -> Any:
    """An array of any dtype, shape, order and content; mostly one that can be clustered."""
    shape = [
        (60, 4), (30, 2), (5, 3), (3, 1), (1, 4), (0, 4), (4, 0), (40,), (), (6, 2, 2), (8, 1,
        4, 4),
    ]  # fmt: skip
    own = shape[rng.integers(len(shape)) if rng.random() < 0.5 else 0]
    X = np.asarray(rng.normal(size=own)) * 10.0 ** rng.choice([0, 0, 0, 3, -3, 30, -30, 150, 300])
    dtype = rng.choice(
        [
            "f8",
            "f4",
            "f2",
            "i8",
            "i4",
            "i1",
            "u1",
            "u8",
            "?",
            "c16",
            "O",
            "U3",
            "M8[s]",
            ">f8",
            ">i2",
            "g",
        ],
        p=[0.2, 0.2, *[0.6 / 14] * 14],
    )
    with np.errstate(all="ignore"):
        whole = np.asarray(X).astype("i8") if dtype == "M8[s]" else np.asarray(X)
        X = whole.astype(dtype)
    if X.size and X.dtype.kind == "f" and rng.random() < 0.3:
        spoiled = [np.nan, np.inf, -np.inf, np.finfo(X.dtype).max, 0.0, np.finfo(X.dtype).tiny]
        X.flat[rng.integers(X.size, size=3)] = spoiled[rng.integers(len(spoiled))]
    if rng.random() < 0.1 and X.ndim == 2 and len(X):
        X = X[rng.integers(len(X), size=len(X)) * 0]  # one row again and again
    if rng.random() < 0.2 and X.ndim:
        X = [np.asfortranarray(X), X[::-1], X[..., ::2], np.broadcast_to(X[:1], X.shape)][
            rng.integers(4)
        ]
    return _wrapped(X, rng)


def _wrapped(X: Any, rng: Rng) -> Any:
    """As something else that holds numbers."""
    how = rng.integers(12)
    if how == 0:
        return X.tolist()
    if how == 1 and X.ndim == 2:
        return pd.DataFrame(X)
    if how == 2 and X.dtype.kind in "biuf" and X.dtype.isnative and X.dtype.itemsize <= 8:
        return torch.from_numpy(np.array(X))
    if how == 3 and X.dtype.kind in "biuf" and X.dtype.isnative and X.dtype.itemsize <= 8:
        return torch.utils.data.TensorDataset(torch.from_numpy(np.array(np.atleast_1d(X))))
    if how == 4 and X.dtype.kind == "f":
        tensor = torch.from_numpy(np.array(X, dtype=np.float64))
        return [tensor.bfloat16(), tensor.to_sparse(), tensor.half(), tensor.requires_grad_()][
            rng.integers(4)
        ]
    return X


def odd_sparse(rng: Rng) -> Any:
    """A sparse matrix whose parts may not go together."""
    n, d = int(rng.integers(1, 40)), int(rng.integers(1, 12))
    matrix = sparse.random_array((n, d), density=rng.random(), rng=rng).tocsr()
    matrix = matrix.astype(rng.choice(["f8", "f4", "i8", "u1", "?", "c16", "g"]))
    how = rng.integers(12)
    if how < 4:
        kinds = [
            sparse.csc_array,
            sparse.coo_array,
            sparse.csr_matrix,
            sparse.dok_array,
            sparse.lil_array,
        ]
        return kinds[rng.integers(len(kinds))](matrix)
    if matrix.nnz and how < 9:
        place = rng.integers(matrix.nnz)
        if how == 4:
            matrix.indices[place] = rng.choice([-1, d, 2**30, -(2**31)])
        elif how == 5:
            matrix.indptr[rng.integers(n + 1)] = rng.choice([-1, matrix.nnz + 5, 2**30])
        elif how == 6 and matrix.dtype.kind == "f":
            matrix.data[place] = rng.choice([np.nan, np.inf, -np.inf])
        elif how == 7:
            matrix.indices[:] = matrix.indices[0]  # one entry many times
        else:
            matrix.indices = matrix.indices.astype("i8")
    return matrix


# --------------------------------------------------------------------------------------------------
# estimators


def _fit_and_check(estimator: Any, X: Any) -> None:
    """Fit; what comes out keeps what is promised of it."""
    labels = np.asarray(estimator.fit(X).labels_)
    centers = np.asarray(estimator.cluster_centers_)
    K = estimator.n_clusters
    if labels.ndim != 1 or labels.min() < 0 or labels.max() >= K:
        raise FindingError(f"labels_ of shape {labels.shape} up to {labels.max()}")
    if not np.isfinite(centers).all() or not estimator.inertia_ >= 0.0:
        raise FindingError(f"centres {centers.tolist()}, inertia {estimator.inertia_}")
    again = np.asarray(estimator.predict(X))
    if not np.array_equal(labels, again):
        raise FindingError("labels_ is not predict(X)")


def _estimator(name: str, **parameters: Any) -> Any:
    return getattr(estimators, name)(**parameters)


def _quick(name: str, rng: Rng) -> dict[str, Any]:
    if name in DEEP:
        return {k: v for k, v in SMALL.items() if k != "epochs" or name != "AutoencoderKMeans"}
    algorithm = ["concrete", "lloyd"][rng.integers(2)]
    return {"algorithm": algorithm, "max_iter": 10, "device": "cpu", "random_state": 0}


def arrays(rng: Rng, _seeds: Seeds, _place: Path) -> Case:
    """Arrays of every dtype and shape to the shallow estimator, now and then to a deep one."""
    name = "ConcreteKMeans" if rng.random() < 0.85 else DEEP[rng.integers(len(DEEP))]
    X, parameters = odd_array(rng), _quick(name, rng)
    what = f"{name} on {type(X).__name__} {getattr(X, 'dtype', '')}{getattr(X, 'shape', '')}"
    fit = lambda: _fit_and_check(_estimator(name, n_clusters=3, **parameters), X)  # noqa: E731
    return Case(what, fit, ("X", "array", "n_samples", "sample", "feature", "diverged"))


def sparse_rows(rng: Rng, _seeds: Seeds, _place: Path) -> Case:
    """Sparse matrices, also such whose parts do not go together."""
    name = "ConcreteKMeans" if rng.random() < 0.9 else DEEP[rng.integers(len(DEEP))]
    X, parameters = odd_sparse(rng), _quick(name, rng)
    fit = lambda: _fit_and_check(_estimator(name, n_clusters=2, **parameters), X)  # noqa: E731
    return Case(f"{name} on {X!r}", fit, ("X", "n_samples", "sample"))


def arguments(rng: Rng, _seeds: Seeds, place: Path) -> Case:
    """One or two arguments of an estimator that are anything."""
    name = (*DEEP, "ConcreteKMeans")[rng.integers(len(DEEP) + 1)]
    known = list(_estimator(name).get_params(deep=False))
    chosen = [known[i] for i in rng.permutation(len(known))[: rng.integers(1, 3)]]
    odd = {key: odd_value(rng) for key in chosen}
    if isinstance(odd.get("checkpoint"), str | Path):
        odd["checkpoint"] = place / "checkpoints"
    if callable(odd.get("init")) and isinstance(odd["init"], torch.nn.Module):
        odd["init"] = None  # what a function of the user's raises is the user's
    parameters = {"n_clusters": 3, **_quick(name, rng), **odd}
    fit = lambda: _fit_and_check(_estimator(name, **parameters), BLOBS)  # noqa: E731
    return Case(f"{name}({odd})", fit, (*chosen, "n_samples", "diverged", "not finite", "device"))


def functions(rng: Rng, _seeds: Seeds, _place: Path) -> Case:
    """Weights, labels of metrics and the layer, with anything."""
    odd, other = odd_value(rng), odd_value(rng)
    layer = concrete_kmeans.ConcreteKMeansLayer
    work: list[tuple[str, Callable[[], object], tuple[str, ...]]] = [
        (
            "sample_weight",
            lambda: _estimator("ConcreteKMeans", **_quick("", rng)).fit(BLOBS, sample_weight=odd),
            ("sample_weight", "weight"),
        ),
        ("acc", lambda: concrete_kmeans.metrics.clustering_accuracy(odd, other), ("label", "y_")),
        ("nmi", lambda: concrete_kmeans.metrics.nmi(KINDS, odd), ("label", "y_")),
        ("layer", lambda: layer(odd, 4), ("n_clusters",)),
        ("layer sigma", lambda: layer(3, 4, sigma=odd), ("sigma",)),
        ("load", lambda: concrete_kmeans.load(odd), ("path", "exist", "model", "config")),
        ("datasets", lambda: concrete_kmeans.datasets.load(odd), ("name", "data set", "known")),
    ]
    what, call, names = work[rng.integers(len(work))]
    return Case(f"{what}({odd!r}, {other!r})", call, names)


# --------------------------------------------------------------------------------------------------
# files


@cache
def seeds(place: Path) -> Path:
    """A folder of every kind of input, small, and of runs on them."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(BLOBS, columns=list("abcd")).assign(kind=[f"k{y}" for y in KINDS])
    table["n"] = range(len(table))
    table.to_csv(place / "t.csv", index=False)
    table.to_csv(place / "t.csv.gz", index=False)
    table.to_csv(place / "t.tsv", index=False, sep="\t")
    table.to_parquet(place / "t.parquet")
    table.to_parquet(place / "plain.parquet", compression=None, row_group_size=16)
    pd.DataFrame({"v": list(BLOBS)}).to_parquet(place / "v.parquet", compression="gzip")
    np.save(place / "a.npy", BLOBS)
    np.savez(place / "a.npz", rows=BLOBS, y=KINDS)
    np.savez_compressed(place / "c.npz", BLOBS.astype("f4"))
    sparse.save_npz(place / "s.npz", sparse.csr_array(np.maximum(BLOBS, 0)))
    for name, options in (("a.h5", {}), ("c.h5", {"compression": "gzip", "chunks": (16, 2)})):
        with h5py.File(place / name, "w") as file:
            file.create_dataset("rows", data=BLOBS, **options)
    texts = [
        " ".join(rng.choice(["red", "apple", "car", "road", "sea", "ünë"], 5)) for _ in range(60)
    ]
    (place / "t.txt").write_text("\n".join(texts), "utf-8")
    lines = [json.dumps({"text": text, "topic": i % 3}) + "\n" for i, text in enumerate(texts)]
    (place / "t.jsonl").write_text("".join(lines), "utf-8")
    (place / "t.jsonl.gz").write_bytes(gzip.compress("".join(lines).encode()))
    (place / "p").mkdir()
    for i in range(8):
        Image.fromarray(rng.integers(0, 256, (8, 8), np.uint8)).save(place / "p" / f"{i}.png")
    Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)).save(place / "p.png")
    for ending in ("png", "jpg", "bmp", "gif", "tif", "webp", "ppm"):
        with Image.open(place / "p.png") as picture:
            picture.save(place / f"one.{ending}")
    deep = ("--encoder", "4,2", "--pretrain-epochs", "1", "--epochs", "1", "--device", "cpu")
    for run, source, options in (
        ("table", "t.csv", (*KM, "--label-column", "kind")),
        ("deep", "t.csv", (*deep, "--label-column", "kind")),
        ("conv", "p", (*deep[2:], "--encoder", "conv")),
        ("text", "t.txt", KM),
        ("array", "a.npz", (*KM, "--columns", "rows")),
    ):
        code, _, err = _ckm("fit", place / source, "-k", 2, "-o", place / f"run-{run}", *options)
        if code:
            raise RuntimeError(err)
    return place


def _ckm(*given: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(part) for part in given], prog_name="ckm")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def _check_answer(code: int, err: str) -> None:
    """The contract of the command line: 0, or 1 with one line, or 2."""
    lines = [line for line in err.splitlines() if not line.startswith("ckm: warning: ")]
    if code not in (0, 1, 2):
        raise FindingError(f"exit code {code}: {err!r}")
    # a failure that is not foreseen names its class there
    if code == 1 and (len(lines) != 1 or not lines[0].startswith("ckm: error: ")):
        raise FindingError(f"exit code 1 with {err!r}")
    if code == 0 and lines:
        raise FindingError(f"exit code 0 with {err!r}")
    if code == 2 and not lines[-1].startswith("Error: "):
        raise FindingError(f"exit code 2 with {err!r}")


def _read(path: Path, options: readers.Options | None = None) -> None:
    """Read a file twice: as for a fit, and as what the fit has learned says."""
    data, preparation = readers.read(path, options)
    again = readers.read_again(path, json.loads(json.dumps(preparation.to_json())))
    n = data.rows.shape[0]
    if not n == len(data.ids) == again.rows.shape[0]:
        raise FindingError(f"{n} rows, {len(data.ids)} ids, {again.rows.shape[0]} rows again")


def _file(names: Sequence[str]) -> Callable[[Rng, Seeds, Path], Case]:
    def make(rng: Rng, inputs: Seeds, place: Path) -> Case:
        name = names[rng.integers(len(names))]
        data = (inputs / name).read_bytes()
        if name.endswith(".gz") and rng.random() < 0.7:
            data = gzip.compress(mutated_bytes(gzip.decompress(data), rng))
        else:
            data = mutated_bytes(data, rng)
        path = place / name
        path.write_bytes(data)
        missing = ["error", "mean"][rng.integers(2)]
        digest = hashlib.sha256(data).hexdigest()[:12]
        read = lambda: _read(path, readers.Options(missing=missing))  # noqa: E731
        return Case(f"{name} {len(data)} bytes {digest}", read, (name,))

    return make


tables = _file(["t.csv", "t.csv.gz", "t.tsv"])
parquet = _file(["t.parquet", "plain.parquet", "v.parquet"])
array_files = _file(["a.npy", "a.npz", "c.npz", "s.npz", "a.h5", "c.h5"])
text_files = _file(["t.txt", "t.jsonl", "t.jsonl.gz"])


def streams(rng: Rng, inputs: Seeds, place: Path) -> Case:
    """Damaged files that are read a piece at a time."""
    name, columns = [("plain.parquet", list("abcd")), ("v.parquet", None), ("a.npy", None)][
        rng.integers(3)
    ]
    content = mutated_bytes((inputs / name).read_bytes(), rng)
    path = place / name
    path.write_bytes(content)
    algorithm = ["concrete", "lloyd"][rng.integers(2)]

    def work() -> None:
        few = {"STREAM_BYTES": 0, "WINDOW_BYTES": 2**10, "BLOCK_BYTES": 2**7}
        with mock.patch.multiple(data_of_users, **few):
            X = path if name == "a.npy" else concrete_kmeans.Parquet(path, columns)
            km = concrete_kmeans.ConcreteKMeans(
                *(2,), algorithm=algorithm, batch_size=8, max_iter=5, random_state=0, device="cpu"
            )
            if not np.array_equal(km.fit(X).labels_, km.predict(X)):
                raise FindingError("labels_ are not what predict says")

    digest = hashlib.sha256(content).hexdigest()[:12]
    return Case(
        f"{name} {len(content)} bytes {digest}, {algorithm}",
        work,
        (name, "X ", "of X", "n_samples"),
    )


def tables_of_anything(rng: Rng, _seeds: Seeds, place: Path) -> Case:
    """Tables whole as files, but of odd columns."""
    n = int(rng.integers(0, 12))
    frame = pd.DataFrame({_name(rng): _column(rng, n) for _ in range(rng.integers(0, 5))})
    path = place / "odd.parquet"
    if rng.random() < 0.5:
        path = place / "odd.csv"
        frame.to_csv(path, index=bool(rng.integers(2)))
    else:
        frame.to_parquet(path)
    names = [*frame.columns, _name(rng)]
    pick = lambda: [None, names[rng.integers(len(names))]][int(rng.random() < 0.2)]  # noqa: E731
    options = readers.Options(
        columns=[name for name in [pick()] if name],
        drop=[name for name in [pick()] if name],
        label_column=pick(),
        id_column=pick(),
        text_column=pick(),
        missing=["error", "mean"][rng.integers(2)],
    )
    what = f"{path.suffix} of {dict(frame.dtypes)}, {options}"
    return Case(what, lambda: _read(path, options), ("odd.",))


def _name(rng: Rng) -> str:
    names = [
        "a", "b", "", "text", "Unnamed: 0", "0", "a,b", '"', "\n", "日本", "a=b", "x" * 300,
        "\u202e",
    ]  # fmt: skip
    return names[rng.integers(len(names))]


def _column(rng: Rng, n: int) -> list[Any]:
    odd: list[list[Any]] = [
        [1.0, 2.5], [1, 2], [True, False], ["x", "y"], ["1", "2"], ["1", "x"], [None, 1.0],
        [None, "x"], [None, None], [float("inf"), 1.0], [1e308, -1e308], [[1.0, 2.0], [3.0,
        4.0]], [[1.0], [3.0, 4.0]], [[], [1.0]], [[None], [1.0]], [b"x", b"y"],
        [pd.Timestamp(0), pd.Timestamp(1)], [pd.Timedelta(1), None], [{"a": 1}, {"a": 2}],
        [[[1.0]], [[2.0]]], [2**62, -(2**62)], ["", " "], [["x"], ["y"]], ["NaN", "nan"], [True,
        None],
    ]  # fmt: skip
    pair = odd[rng.integers(len(odd))]
    return [pair[i % 2] for i in range(n)]


def records(rng: Rng, _seeds: Seeds, place: Path) -> Case:
    """Lines of JSON that are anything."""
    lines = []
    for _ in range(rng.integers(1, 8)):
        how = rng.integers(8)
        if how == 0:
            lines.append(json.dumps(odd_json(rng)))
        elif how == 1:
            lines.append('{"text": ' + "[" * 10**5 + "]" * 10**5 + "}")
        elif how == 2:
            lines.append('{"text": ' + "9" * 5000 + "}")
        else:
            text = "some words here" if how < 6 else odd_json(rng)
            lines.append(json.dumps({"text": text, "topic": odd_json(rng)}))
    path = place / "odd.jsonl"
    path.write_bytes("\n".join(lines).encode("utf-8", "surrogatepass"))
    label = "topic" if rng.random() < 0.5 else None
    options = readers.Options(label_column=label)
    return Case(f"jsonl {str(lines)[:200]}", lambda: _read(path, options), ("odd.jsonl",))


def images(rng: Rng, inputs: Seeds, place: Path) -> Case:
    """A picture that is damaged, or of an odd mode, among others."""
    folder = place / "pictures"
    folder.mkdir()
    name = [p.name for p in sorted(inputs.glob("one.*"))][rng.integers(7)]
    path = folder / name
    if rng.random() < 0.75:
        path.write_bytes(mutated_bytes((inputs / name).read_bytes(), rng))
    else:
        modes = (
            "1",
            "L",
            "LA",
            "P",
            "RGB",
            "RGBA",
            "CMYK",
            "I;16",
            "F",
            "YCbCr",
            "I",
            "LAB",
            "HSV",
        )
        odd = modes[rng.integers(len(modes))]
        path = folder / f"m.{['png', 'tif', 'jpg', 'webp', 'bmp', 'gif'][rng.integers(6)]}"
        size = [(8, 8), (1, 1), (9, 8), (1, 300), (4, 4)][rng.integers(5)]
        buffer = io.BytesIO()
        try:
            Image.new(odd, size).save(
                buffer, {".jpg": "jpeg", ".tif": "tiff"}.get(path.suffix, path.suffix[1:])
            )
        except (OSError, KeyError, ValueError):  # there is no such file
            Image.new("L", size).save(buffer, "png")
        path.write_bytes(buffer.getvalue())
    if rng.random() < 0.3:
        shutil.copy(inputs / "one.png", folder / "z.png")
    sizes = [None, None, (8, 8), (1, 1), (300, 2)]
    size = sizes[rng.integers(len(sizes))]
    mode = ["auto", "grey", "rgb"][rng.integers(3)]
    read = lambda: _read(folder, readers.Options(size=size, mode=mode))  # noqa: E731
    return Case(f"{path.name} {size} {mode}", read, (path.name, "pictures"))


# --------------------------------------------------------------------------------------------------
# model folders


def model_folders(rng: Rng, inputs: Seeds, place: Path) -> Case:
    """A model folder with bytes, JSON or tensors changed; checksums made to fit, mostly."""
    names = ["table", "deep", "conv", "text", "array"]
    name = names[rng.integers(len(names))]
    run = place / "run"
    shutil.copytree(inputs / f"run-{name}", run)
    how = rng.integers(4)
    if how == 0:
        file = sorted(run.iterdir())[rng.integers(4)]
        if rng.random() < 0.1:
            file.unlink()
        else:
            file.write_bytes(mutated_bytes(file.read_bytes(), rng))
    else:
        _forge(run, rng, how)
    source = {"conv": "p", "text": "t.txt", "array": "a.npz"}.get(name, "t.csv")
    return Case(f"run-{name} {how}", lambda: _use(run, inputs / source), (str(run),))


def _forge(run: Path, rng: Rng, how: int) -> None:
    """Change a folder in a way that its checksums do not tell."""
    config = json.loads((run / storage.CONFIG).read_text("utf-8"))
    tensors = tensors_from_bytes((run / storage.TENSORS).read_bytes())
    if how == 1:
        config = mutated_json(config, rng)
    elif how == 2:
        key = sorted(tensors)[rng.integers(len(tensors))]
        tensors[key] = _odd_tensor(tensors[key], rng)
        (run / storage.TENSORS).write_bytes(tensors_to_bytes(tensors))
    else:
        history = mutated_json(json.loads((run / storage.HISTORY).read_text("utf-8")), rng)
        (run / storage.HISTORY).write_text(json.dumps(history))
    if isinstance(config, dict) and isinstance(config.get("sha256"), dict) and how != 1:
        for file in (storage.TENSORS, storage.HISTORY):
            config["sha256"][file] = hashlib.sha256((run / file).read_bytes()).hexdigest()
    (run / storage.CONFIG).write_text(json.dumps(config))


def _odd_tensor(tensor: torch.Tensor, rng: Rng) -> torch.Tensor:
    choices = [
        lambda: tensor.reshape(-1)[:0],
        lambda: tensor.reshape(-1)[:1],
        lambda: tensor.unsqueeze(0),
        lambda: tensor.to(torch.float16),
        lambda: tensor.to(torch.int8),
        lambda: tensor.to(torch.float64) * float("nan"),
        lambda: torch.full_like(tensor, -1),
        lambda: torch.full_like(tensor, 100),
        lambda: tensor.bool(),
        lambda: tensor.to(torch.float64),
    ]
    return choices[rng.integers(len(choices))]().contiguous().clone()


def _use(run: Path, source: Path) -> None:
    """All that is done with a folder."""
    estimator = concrete_kmeans.load(run)
    notes = notes_of(run)
    data = read_new(run, notes, str(source), None)
    estimator = open_model(run, "cpu")
    rows = rows_of(estimator, data)
    labels = np.asarray(estimator.predict(rows))
    estimator.transform(rows)
    if hasattr(estimator, "predict_proba"):
        estimator.predict_proba(rows)
    if len(labels) != len(data.ids):
        raise FindingError(f"{len(labels)} labels of {len(data.ids)} rows")


def commands_on_folders(rng: Rng, inputs: Seeds, place: Path) -> Case:
    """The same by the commands: one line, and nothing left behind."""
    made = model_folders(rng, inputs, place)
    run = place / "run"
    source = {"conv": "p", "text": "t.txt", "array": "a.npz"}.get(
        made.what.split()[0].removeprefix("run-"), "t.csv"
    )
    asked = [
        ("info", run),
        ("info", run, "--json"),
        ("predict", run, inputs / source, "-o", place / "labels.csv"),
        ("report", run, "-o", place / "page.html"),
        ("report", run, "--no-input", "-o", place / "page.html"),
    ][rng.integers(5)]
    return Case(f"ckm {asked[0]} {made.what}", lambda: _command(place, asked), ())


def _command(place: Path, asked: Sequence[object]) -> None:
    before = set(place.rglob("*"))
    code, _, err = _ckm(*asked)
    _check_answer(code, err)
    left = set(place.rglob("*")) - before
    if code and left:
        raise FindingError(f"exit code {code}, and left behind {sorted(left)[:3]}")


# --------------------------------------------------------------------------------------------------
# the command line


def config_files(rng: Rng, inputs: Seeds, place: Path) -> Case:
    """TOML files of options."""
    options = [
        "n-clusters", "method", "seed", "n-init", "columns", "drop", "label-column", "scale",
        "size",
    ]  # fmt: skip
    options += [
        "encoder", "epochs", "precision", "device", "overwrite", "report", "json", "quiet",
        "k-range",
    ]  # fmt: skip
    values = [
        "3", '"3"', "-1", "0", "3.5", "nan", "inf", "true", '"km"', '""', "[]", '["a"]',
        '["a", 1]', "{}", "{a = 1}",
    ]  # fmt: skip
    values += [
        "1979-05-27", '"\\u0000"', "0x10", "99999999999999999999", '"auto"', '"2:3"', '"é"',
        "[[1]]", '"kind"', '"cpu"',
    ]  # fmt: skip
    lines = [
        f"{options[rng.integers(len(options))]} = {values[rng.integers(len(values))]}"
        for _ in range(rng.integers(0, 4))
    ]
    data = "\n".join(
        ['n-clusters = "2"', 'label-column = "kind"', *lines][rng.integers(3) :]
    ).encode()
    if rng.random() < 0.3:
        data = mutated_bytes(data or b"a", rng)
    (place / "c.toml").write_bytes(data)
    # no network is trained: the command line wins
    asked = ("fit", inputs / "t.csv", "-o", place / "run", "--config", place / "c.toml", *KM)
    return Case(f"config {data!r}", lambda: _command(place, asked), ())


def command_lines(rng: Rng, inputs: Seeds, place: Path) -> Case:
    """Options of ``ckm fit``, by their values."""
    names = [
        "-k", "--columns", "--drop", "--label-column", "--id-column", "--text-column",
        "--missing", "--size",
    ]  # fmt: skip
    names += [
        "--mode", "--max-words", "--scale", "--encoder", "--n-init", "--seed", "--format",
        "--preset", "--k-range",
    ]  # fmt: skip
    values = [
        "2", "0", "-1", "auto", "1e9", "99999999999999999999", "a", "a,b", '"a', "kind", "8x8",
        "0x0", "x", "", " ",
    ]  # fmt: skip
    values += [
        "\x00", "é", "csv", "npy", "txt", "tabular", "image", "mean", "2:4", "4:2", "none",
        "8,2", "8,", "\udcff",
    ]  # fmt: skip
    sources = [
        "t.csv", "t.parquet", "a.npy", "a.npz", "s.npz", "a.h5", "p", "t.txt", "t.jsonl",
        "no.csv", "run-table", "p.png",
    ]  # fmt: skip
    given: list[str] = []
    for _ in range(rng.integers(0, 4)):
        given += [names[rng.integers(len(names))], values[rng.integers(len(values))]]
    source = inputs / sources[rng.integers(len(sources))]
    asked = ("fit", source, "-k", "2", "-o", place / "run", *KM, *given)
    return Case(f"ckm fit {source.name} {given}", lambda: _command(place, asked), ())


#: Every target, with its share of the cases.
TARGETS: dict[str, tuple[Callable[[Rng, Path, Path], Case], int]] = {
    "arrays": (arrays, 14),
    "sparse": (sparse_rows, 6),
    "arguments": (arguments, 18),
    "functions": (functions, 4),
    "tables": (tables, 8),
    "tables_of_anything": (tables_of_anything, 7),
    "parquet": (parquet, 7),
    "array_files": (array_files, 8),
    "text_files": (text_files, 3),
    "records": (records, 3),
    "images": (images, 7),
    "model_folders": (model_folders, 8),
    "commands_on_folders": (commands_on_folders, 2),
    "config_files": (config_files, 3),
    "command_lines": (command_lines, 2),
    "streams": (streams, 5),
}
