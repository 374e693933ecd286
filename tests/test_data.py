"""Every kind of input gives the same rows; scaling against scikit-learn; batches."""

import itertools
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, StandardScaler
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from concrete_kmeans import data
from concrete_kmeans.data import (
    ArrayRows,
    Batches,
    Scaled,
    Scaling,
    SparseRows,
    TensorRows,
    feature_moments,
    fit_scaling,
    open_rows,
    pieces,
)
from concrete_kmeans.lloyd import lloyd

CPU = torch.device("cpu")
N, SHAPE = 23, (2, 3, 4)
IMAGES = np.random.default_rng(0).integers(0, 100, (N, *SHAPE)).astype(np.uint8)
IMAGES[IMAGES < 40] = 0
FLAT = IMAGES.reshape(N, -1)
DENSE = torch.from_numpy(FLAT.astype(np.float64))


class Items(Dataset):
    """A Dataset around an array, its items as ``form`` makes them."""

    def __init__(self, X, form=np.asarray):
        self.X, self.form, self.calls = X, form, 0

    def __len__(self):
        return len(self.X)

    def __getitem__(self, i):
        self.calls += 1
        return self.form(self.X[i])


class ManyItems(Items):
    def __getitems__(self, numbers):
        self.calls += 1
        return [self.form(self.X[i]) for i in numbers]

    def __getitem__(self, i):
        assert i == 0, "only for the shape"
        return self.form(self.X[i])


def memmap(folder, X):
    path = folder / f"{X.dtype.name}.npy"
    np.save(path, X)
    return np.load(path, mmap_mode="r")


def strided(X):
    """The same values with axes in another order in memory, which cannot be flattened."""
    return np.ascontiguousarray(X.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)


KINDS = {
    "float32": lambda _: FLAT.astype(np.float32),
    "float64": lambda _: FLAT.astype(np.float64),
    "float16": lambda _: FLAT.astype(np.float16),
    "longdouble": lambda _: FLAT.astype(np.longdouble),
    "uint8": lambda _: FLAT,
    "uint16": lambda _: FLAT.astype(np.uint16),
    "int64": lambda _: FLAT.astype(np.int64),
    "big endian": lambda _: FLAT.astype(">f4"),
    "read-only": lambda _: np.broadcast_to(FLAT.astype(np.float32), FLAT.shape),
    "Fortran order": lambda _: np.asfortranarray(FLAT.astype(np.float32)),
    "backwards": lambda _: FLAT.astype(np.float32)[::-1][::1][:, ::-1].copy()[::-1, ::-1],
    "images": lambda _: IMAGES,
    "float images": lambda _: IMAGES.astype(np.float32),
    "strided images": lambda _: strided(IMAGES.astype(np.float32)),
    "memmap float32": lambda folder: memmap(folder, FLAT.astype(np.float32)),
    "memmap uint8": lambda folder: memmap(folder, FLAT),
    "memmap images": lambda folder: memmap(folder, IMAGES.astype(np.int32)),
    "CSR array": lambda _: sparse.csr_array(FLAT.astype(np.float32)),
    "CSR matrix": lambda _: sparse.csr_matrix(FLAT.astype(np.float64)),
    "CSR integers": lambda _: sparse.csr_array(FLAT.astype(np.int32)),
    "tensor": lambda _: torch.from_numpy(FLAT.astype(np.float32)),
    "tensor bfloat16": lambda _: torch.from_numpy(FLAT).bfloat16(),
    "tensor uint8": lambda _: torch.from_numpy(IMAGES),
    "tensor with gradient": lambda _: torch.from_numpy(FLAT).float().requires_grad_(),
    "strided tensor": lambda _: torch.from_numpy(strided(IMAGES.astype(np.float32))),
    "dataset of arrays": lambda _: Items(FLAT),
    "dataset of read-only": lambda folder: Items(memmap(folder, FLAT.astype(np.float32))),
    "dataset of images": lambda _: Items(IMAGES, lambda x: (torch.from_numpy(x).bfloat16(), 1)),
    "dataset with __getitems__": lambda _: ManyItems(IMAGES, lambda x: (x, "label")),
    "TensorDataset": lambda _: TensorDataset(DENSE, torch.zeros(N)),
    "Subset": lambda _: Subset(TensorDataset(DENSE), range(N)),
}
READS = st.one_of(
    st.builds(slice, st.integers(0, N), st.integers(0, N)),
    st.lists(st.integers(0, N - 1), max_size=9).map(lambda i: torch.tensor(i, dtype=torch.int64)),
)


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("rows")


def opened(X, dtype=torch.float32, **options):
    return open_rows(X, device=CPU, dtype=dtype, **options)


# ---------------------------------------------------------------------------------------- open_rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_kind_gives_the_same_rows(kind, dtype, folder):
    X = KINDS[kind](folder)
    rows, feature_shape, where = opened(X, dtype)
    assert tuple(rows.shape) == (N, 24)
    assert (rows.dtype, rows.device) == (dtype, CPU)
    assert feature_shape == (SHAPE if "images" in kind or kind in SHAPED else (24,))
    assert where == ("streamed" if isinstance(X, Dataset) else "device")

    @settings(max_examples=12, deadline=None)
    @given(READS)
    def check(read):
        piece = rows[read]
        assert (piece.dtype, piece.device, piece.requires_grad) == (dtype, CPU, False)
        torch.testing.assert_close(piece, DENSE[read].to(dtype), rtol=0, atol=0)

    check()


SHAPED = ("tensor uint8", "strided tensor", "dataset with __getitems__")


@pytest.mark.parametrize(
    "name", ["float32", "read-only", "Fortran order", "float images", "memmap float32"]
)
def test_an_array_of_the_dtype_is_shared(name, folder):
    X = KINDS[name](folder)
    rows = opened(X).rows
    assert isinstance(rows, torch.Tensor)
    assert rows.data_ptr() == X.ctypes.data


@pytest.mark.parametrize("name", ["tensor", "tensor with gradient"])
def test_a_tensor_of_the_dtype_is_shared(name, folder):
    X = KINDS[name](folder)
    assert opened(X).rows.data_ptr() == X.data_ptr()
    assert opened(X.view(N, *SHAPE)).rows.data_ptr() == X.data_ptr()


@pytest.mark.parametrize("name", ["tensor uint8", "tensor bfloat16", "strided tensor"])
def test_any_other_tensor_is_converted_in_pieces(name, folder):
    X = KINDS[name](folder)
    rows = opened(X).rows
    assert isinstance(rows, TensorRows)
    assert rows.X.data_ptr() == X.data_ptr()


def test_picked_rows_are_fresh_memory(kind, folder):
    rows = opened(KINDS[kind](folder)).rows
    rows[torch.tensor([3])].fill_(-1.0)
    torch.testing.assert_close(rows[torch.tensor([3])], DENSE[[3]].float())


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
def test_a_memmap_is_never_read_as_a_whole(tmp_path, dtype, monkeypatch):
    sizes, deliver = [0], data._deliver

    def counted(piece, *rest):
        sizes.append(piece.numel() * 4)
        return deliver(piece, *rest)

    monkeypatch.setattr(data, "_deliver", counted)
    n, d = 40_000, 500
    path = tmp_path / "large"
    X = np.memmap(path, dtype, "w+", shape=(n, d))  # a file with holes takes no room
    X[-1] = 7
    X = np.memmap(path, dtype, "r", shape=(n, d))
    tracemalloc.start()  # sees what numpy allocates; torch allocates the pieces counted above
    rows = opened(X).rows
    scaling = fit_scaling(rows, "global")
    batches = Batches(Scaled(rows, scaling), None, 64, [torch.Generator()])
    for _ in itertools.islice(batches, 3):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * 2**20
    assert max(sizes) <= data.MAX_PIECE_BYTES
    assert rows[torch.tensor([n - 1])].unique().tolist() == [7.0]
    assert scaling.shift[0].item() == pytest.approx(7 / n)


@pytest.mark.parametrize("byteorder", ["=", "S"])  # read by torch, and by numpy
def test_reads_of_an_array_are_no_larger_than_the_piece(byteorder):
    sizes = []

    class Array(np.ndarray):
        def __getitem__(self, index):
            piece = super().__getitem__(index)
            sizes.append(len(piece))
            return piece

    class Tensor(torch.Tensor):
        def __getitem__(self, index):
            piece = super().__getitem__(index)
            sizes.append(len(piece))
            return piece

    rows = ArrayRows(FLAT.astype(np.dtype(np.int16).newbyteorder(byteorder)), CPU, torch.float32)
    if byteorder == "S":
        rows.X = rows.X.view(Array)
    else:
        rows._tensor = rows._tensor.as_subclass(Tensor)
    for start, stop, piece in pieces(rows, max_bytes=5 * 24 * 4):
        torch.testing.assert_close(torch.as_tensor(piece), DENSE[start:stop].float())
    rows[torch.tensor([1, 1, 2])]
    assert max(sizes) == 5


@given(
    st.sampled_from([np.float32, np.float64, ">f4", np.float16, np.int32]),
    st.sampled_from([0.0, np.nan, np.inf, -np.inf, 1e38]),
    st.integers(0, 99),
    st.sampled_from([slice(None), slice(None, None, 2), slice(None, None, -1)]),
)
def test_what_is_surely_finite_is_finite(dtype, value, place, every):
    X = np.ones((20, 5), dtype)
    with np.errstate(all="ignore"):
        X.flat[place] = np.array(value).astype(dtype)
        X.flat[(place + 7) % 100] = X.flat[place]  # two numbers that have a sum which is too large
    X = X[every]
    if data.surely_finite(X):
        assert np.isfinite(X).all()
        assert X.dtype in (np.float32, np.float64)
    elif X.dtype in (np.float32, np.float64) and X.dtype.isnative and X.strides[0] > 0:
        assert not np.isfinite(X.sum(dtype=X.dtype))


def test_sparse_rows_keep_their_dtype_by_default():
    X = sparse.csr_array(FLAT.astype(np.float32))
    assert SparseRows(X, CPU)[0:2].dtype == torch.float32
    assert SparseRows(X, CPU, torch.float64)[0:2].dtype == torch.float64


def test_lloyd_runs_on_every_kind(kind, folder):
    centers = DENSE[:3].clone() + 0.25
    expected = lloyd(DENSE, centers, max_iter=5)
    result = lloyd(opened(KINDS[kind](folder), torch.float64).rows, centers, max_iter=5)
    torch.testing.assert_close(result.centers, expected.centers)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(DENSE)


class NoLength(Dataset):
    def __getitem__(self, i):
        return DENSE[i]


class Scarce(ManyItems):
    def __getitems__(self, numbers):
        return super().__getitems__(numbers)[:-1]


@pytest.mark.parametrize(
    ("X", "error", "message"),
    [
        (Stream(), TypeError, "map-style Dataset.*Stream"),
        (NoLength(), TypeError, "map-style Dataset.*NoLength"),
        ([[1.0]], TypeError, "got list"),
        (sparse.csc_array(FLAT), TypeError, "CSR matrix.*got csc_array"),
        (np.array([["a"]]), TypeError, "real numbers.*<U1"),
        (FLAT.astype(complex), TypeError, "real numbers.*complex128"),
        (DENSE.to(torch.complex64), TypeError, "real numbers.*complex64"),
        (DENSE.to_sparse(), TypeError, "dense tensor.*sparse_coo"),
        (np.ones(3), ValueError, r"at least 2 axes.*\(3,\)"),
        (np.ones((0, 3)), ValueError, r"0 sample.*\(0, 3\)"),
        (torch.ones(3, 0), ValueError, r"0 feature.*\(3, 0\)"),
        (Items(FLAT[:0]), ValueError, "0 sample"),
        (Items(FLAT, lambda x: {"x": x}), TypeError, "row 0 is dict"),
        (Items(FLAT, lambda x: ("a", x)), TypeError, "row 0 is str"),
    ],
)
def test_what_cannot_be_opened(X, error, message):
    with pytest.raises(error, match=message):
        opened(X)


@pytest.mark.parametrize("options", [{"dtype": torch.float16}, {"max_resident_bytes": -1}])
def test_options_out_of_range(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))} must be"):
        opened(FLAT, **options)


@pytest.mark.parametrize(("limit", "where"), [(None, "device"), (4 * N * 24 - 1, "streamed")])
def test_sparse_rows_become_dense_on_another_device_if_they_fit(limit, where):
    """On CUDA, which the tests of a GPU look at; here on the device that holds shapes only."""
    there = torch.device("meta")
    X = sparse.csr_array(FLAT.astype(np.float64))
    source = open_rows(X, device=there, dtype=torch.float32, max_resident_bytes=limit)
    assert source.where == where
    assert isinstance(source.rows, torch.Tensor) == (where == "device")
    assert (tuple(source.rows.shape), source.rows.dtype) == ((N, 24), torch.float32)
    assert source.feature_shape == (24,)
    kept, read = data.as_rows(X, there), data.as_rows(X, there, once=True)
    assert isinstance(kept, torch.Tensor)
    assert kept.dtype == torch.float64  # as it came
    assert isinstance(read, SparseRows)


@pytest.mark.parametrize("dataset", [Items, ManyItems])
def test_a_bad_row_of_a_dataset_is_named(dataset):
    X = list(FLAT.astype(np.float64))
    X[5], X[6], X[7], X[8] = X[5][:3], X[6] * np.nan, X[7] + 1e300, X[8].astype(str)
    rows = opened(dataset(X)).rows
    torch.testing.assert_close(rows[0:5], DENSE[0:5].float())
    with pytest.raises(ValueError, match=r"shape \(24,\) of row 0, row 5 has \(3,\)"):
        rows[3:6]
    with pytest.raises(ValueError, match="X must be finite; row 6, feature 0 is NaN"):
        rows[torch.tensor([0, 6])]
    with pytest.raises(ValueError, match=r"finite as float32; row 7, feature 0 is 1e\+300"):
        rows[7:8]
    assert opened(dataset(X), torch.float64).rows[7:8].isfinite().all()
    with pytest.raises(TypeError, match="row 8 is ndarray"):
        rows[8:9]


def test_an_item_that_cannot_be_read_is_named():
    class Broken(Items):
        def __getitem__(self, i):
            if i == 7:
                raise OSError("no such block")
            return [super().__getitem__(i), 1] if i == 8 else super().__getitem__(i)

    rows = opened(Broken(FLAT)).rows
    with pytest.raises(OSError, match="no such block") as told:
        rows[5:9]
    assert told.value.__notes__ == ["row 7 of X, a Broken, could not be read"]
    with pytest.raises(TypeError, match="a tuple that begins with one; row 8 is list"):
        rows[8:9]


def test_getitems_reads_a_piece_at_once_and_must_be_complete():
    many = ManyItems(FLAT)
    rows = opened(many).rows
    rows[torch.arange(10)]
    assert many.calls == 1
    with pytest.raises(ValueError, match="one item for each of 4 row numbers, got 3"):
        opened(Scarce(FLAT)).rows[0:4]


def test_a_dataset_of_numbers_has_one_feature():
    source = opened(Items([3.0, 4.0], float))
    assert source.feature_shape == (1,)
    assert source.rows[0:2].tolist() == [[3.0], [4.0]]


def test_pieces_cover_all_rows_once():
    ends = [(start, stop) for start, stop, _ in pieces(DENSE, max_bytes=5 * 24 * 8 + 1)]
    assert ends == [(0, 5), (5, 10), (10, 15), (15, 20), (20, 23)]
    assert [len(piece) for *_, piece in pieces(DENSE, max_bytes=1)] == [1] * N
    with pytest.raises(ValueError, match="max_bytes must be"):
        next(pieces(DENSE, max_bytes=0))


# ------------------------------------------------------------------------------------------ scaling


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(data.pieces, "__defaults__", (200,))


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("offset", [0.0, 1e4, -1e9])
def test_moments_far_from_the_origin(offset):
    X = np.random.default_rng(0).normal(0, [0.1, 1.0, 5.0], (500, 3))
    X[:250] += 3.0  # sorted: the first piece is not like the rest
    moments = feature_moments(torch.from_numpy(X + offset))
    exact = (X + offset).astype(np.longdouble)
    np.testing.assert_allclose(moments.mean, exact.mean(0).astype(float), rtol=1e-15, atol=1e-15)
    np.testing.assert_allclose(moments.variance, exact.var(0).astype(float), rtol=1e-6)
    np.testing.assert_array_equal(moments.minimum, (X + offset).min(0))
    np.testing.assert_array_equal(moments.maximum, (X + offset).max(0))
    assert {m.dtype for m in moments} == {torch.float64}


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("offset", [0.0, 1e5])
@pytest.mark.parametrize(
    ("kind", "scaler"), [("standard", StandardScaler()), ("minmax", MinMaxScaler())]
)
def test_scaling_as_scikit_learn(kind, scaler, offset, dtype):
    X = torch.from_numpy(np.random.default_rng(0).normal(offset, [0.1, 1, 50], (999, 3))).to(dtype)
    X[:, 1] = offset + 0.1  # constant
    scaling = fit_scaling(X, kind)
    expected = scaler.fit_transform(X.double())
    tolerance = 1e-6 if dtype == torch.float32 else 1e-8
    np.testing.assert_allclose(scaling(X), expected, atol=tolerance, rtol=tolerance)
    assert scaling.kind == kind
    assert scaling(X).dtype == dtype
    assert scaling.factor[1].item() == 1.0
    assert scaling(X)[:, 1].unique().tolist() == [0.0]
    torch.testing.assert_close(scaling.inverse(scaling(X)), X, rtol=1e-6, atol=1e-4)
    torch.testing.assert_close(scaling(X.view(3, 333, 3)).view(999, 3), scaling(X))


def test_one_factor_for_all_features():
    X = torch.tensor([[1.0, 10.0, 5.0], [3.0, 16.0, 5.0]])  # variances 1, 9, 0: mean 10 / 3
    scaling = fit_scaling(X, "global")
    assert scaling.shift.tolist() == [2.0, 13.0, 5.0]
    assert scaling.factor.shape == ()
    assert scaling.factor.item() == pytest.approx((3 / 10) ** 0.5)
    assert scaling(X).var(0, correction=0).mean().item() == pytest.approx(1.0)
    torch.testing.assert_close(scaling.inverse(scaling(X)), X)


@pytest.mark.parametrize("kind", ["global", "standard", "minmax"])
@pytest.mark.parametrize("value", [0.0, 0.1, 1e6, 1e-40])
def test_constant_data_are_centred_only(kind, value):
    X = torch.full((7, 2), value)
    scaling = fit_scaling(X, kind)
    assert scaling.factor.unique().tolist() == [1.0]
    assert not scaling(X).any()


@pytest.mark.parametrize("kind", ["global", "standard", "minmax"])
def test_spread_below_the_smallest_number(kind):
    X = torch.tensor([[0.0], [1e-44]])
    assert fit_scaling(X, kind)(X).isfinite().all()


def test_no_scaling_reads_and_changes_nothing():
    scaling = fit_scaling(DENSE, "none")
    assert scaling(DENSE) is DENSE
    assert scaling.inverse(DENSE) is DENSE
    assert not scaling.shift.any()
    assert scaling.factor.item() == 1.0


@pytest.mark.parametrize(
    ("kind", "scaler"),
    [("standard", StandardScaler(with_mean=False)), ("minmax", MaxAbsScaler())],
)
def test_sparse_rows_are_not_centred(kind, scaler):
    X = sparse.csr_array(FLAT.astype(np.float64) - (FLAT > 80) * 200.0)
    rows = opened(X, torch.float64).rows
    scaled = Scaled(rows, fit_scaling(rows, kind, sparse=True))
    np.testing.assert_allclose(scaled[0:N], scaler.fit_transform(X).toarray(), rtol=1e-12)
    assert torch.equal(scaled[0:N] == 0, rows[0:N] == 0)


def test_sparse_rows_by_one_factor():
    rows = opened(sparse.csr_array(FLAT.astype(np.float32))).rows
    scaling = fit_scaling(rows, "global", sparse=True)
    assert not scaling.shift.any()
    assert scaling.factor.item() == pytest.approx(FLAT.var(0).mean() ** -0.5)


def test_scaled_rows_of_every_kind(kind, folder):
    rows = opened(KINDS[kind](folder), torch.float64).rows
    scaled = Scaled(rows, fit_scaling(rows, "standard"))
    expected = StandardScaler().fit_transform(FLAT.astype(np.float64))
    assert (tuple(scaled.shape), scaled.dtype, scaled.device) == ((N, 24), torch.float64, CPU)
    np.testing.assert_allclose(scaled[0:N], expected, atol=1e-12)
    np.testing.assert_allclose(scaled[torch.tensor([4, 2])], expected[[4, 2]], atol=1e-12)


def test_scaling_errors():
    with pytest.raises(ValueError, match=r"kind must be one of 'none', 'global'.*got 'robust'"):
        fit_scaling(DENSE, "robust")
    with pytest.raises(TypeError, match=r"floating point.*int64"):
        Scaling("global", torch.zeros(1), torch.ones(()))(torch.ones(1, 1, dtype=torch.int64))
    rows = opened(np.array([[1.0, 1e300], [1.0, 0.0]])).rows
    with pytest.raises(ValueError, match=r"finite as float32.*feature 1 is not.*maximum inf"):
        fit_scaling(rows, "global")


# ------------------------------------------------------------------------------------------ batches


def generators(*seeds, device="cpu"):
    return [torch.Generator(device).manual_seed(seed) for seed in seeds]


def first(batches, n):
    return list(itertools.islice(batches, n))


@pytest.mark.parametrize("size", [5, 23, 100])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_batch_knows_its_rows(kind, size, weighted, folder):
    rows = opened(KINDS[kind](folder), torch.float64).rows
    weight = torch.arange(1.0, N + 1, dtype=torch.float64) if weighted else None
    batches = Batches(rows, weight, size, generators(0, 1, 2))
    assert batches.per_epoch == N // min(size, N)
    for batch in first(batches, 2 * batches.per_epoch):
        assert batch.rows.shape == (3, min(size, N), 24)
        assert batch.index.shape == (3, min(size, N))
        torch.testing.assert_close(batch.rows, DENSE[batch.index])
        if weighted:
            torch.testing.assert_close(batch.weight, weight[batch.index] / weight.mean())
        else:
            assert batch.weight is None


def test_all_rows_in_order_if_one_batch_holds_them():
    rows, _, index, _ = first(Batches(DENSE, None, N, generators(0, 1)), 1)[0]
    assert torch.equal(rows, DENSE.expand(2, -1, -1))
    assert torch.equal(index, torch.arange(N).expand(2, -1))
    assert rows.untyped_storage().data_ptr() == DENSE.untyped_storage().data_ptr()


@pytest.mark.parametrize("max_shuffled", [2**24, 10])
def test_a_restart_draws_what_it_draws_alone(max_shuffled, monkeypatch):
    monkeypatch.setattr(Batches, "max_shuffled", max_shuffled)
    together = first(Batches(DENSE, None, 5, generators(3, 4, 5)), 11)
    for r, seed in enumerate((3, 4, 5)):
        alone = first(Batches(DENSE, None, 5, generators(seed)), 11)
        for a, b in zip(together, alone, strict=True):
            assert torch.equal(a.index[r], b.index[0])
            assert torch.equal(a.rows[r], b.rows[0])


def test_the_order_is_that_of_randperm():
    (own,) = generators(7)
    batches = iter(Batches(DENSE, None, 5, generators(7)))
    for _ in range(3):
        order = torch.randperm(N, generator=own)[:20]
        assert torch.equal(torch.cat([b.index[0] for b in first(batches, 4)]), order)


# --------------------------------------------------------------------------------------------- CUDA


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
class TestCuda:
    device = torch.device("cuda")
    exact = torch.device("cuda", 0)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("limit", [None, 0])
    def test_resident_and_streamed_rows_are_the_same(self, kind, dtype, limit, folder):
        X = KINDS[kind](folder)
        rows, shape, where = open_rows(X, device=self.device, dtype=dtype, max_resident_bytes=limit)
        resident = (isinstance(X, np.ndarray) or sparse.issparse(X)) and limit is None
        assert where == ("device" if resident else "streamed")
        assert Batches(rows, None, 5, generators(1, device="cuda")).on_cuda == resident
        assert shape == opened(X, dtype).feature_shape
        assert (tuple(rows.shape), rows.dtype, rows.device) == ((N, 24), dtype, self.exact)
        for index in (torch.tensor([4, 4, 0]), torch.tensor([22, 3, 1], device=self.device)):
            assert rows[index].device == self.exact
            assert torch.equal(rows[index].cpu(), DENSE[index.cpu()].to(dtype))
        assert torch.equal(rows[3:9].cpu(), DENSE[3:9].to(dtype))

    @pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float64])
    def test_resident_rows_keep_their_dtype(self, dtype):
        X = FLAT.astype(dtype)
        rows = open_rows(X, device=self.device, dtype=torch.float32).rows
        assert isinstance(rows, TensorRows)
        assert rows.X.element_size() == X.itemsize
        assert rows.X.device == self.exact

    def test_a_tensor_on_the_device_stays_there(self):
        X = torch.from_numpy(IMAGES).to(self.device)
        rows, _, where = open_rows(X, device=self.device, dtype=torch.float32)
        assert where == "device"
        assert rows.X.data_ptr() == X.data_ptr()
        X = X.float()
        rows = open_rows(X, device=self.device, dtype=torch.float32).rows
        assert rows.data_ptr() == X.data_ptr()

    def test_staging_memory_is_not_written_too_early(self):
        X = np.random.default_rng(0).integers(0, 255, (4000, 3000)).astype(np.uint8)
        rows = open_rows(X, device=self.device, dtype=torch.float32, max_resident_bytes=1000).rows
        read = []
        for start in range(0, 4000, 40):
            torch.randn(2000, 2000, device=self.device) @ torch.randn(
                2000, 2000, device=self.device
            )
            read.append(rows[torch.arange(start, start + 40)])
        assert torch.equal(torch.cat(read).cpu(), torch.from_numpy(X).float())

    @pytest.mark.parametrize("own", [np.uint8, np.float32, np.float64])
    @pytest.mark.parametrize("pinned", [40, 7 * 24, 2**20])
    def test_a_pass_while_the_device_computes(self, own, pinned, monkeypatch):
        monkeypatch.setattr(data, "PINNED_BYTES", pinned)
        X = np.random.default_rng(0).integers(0, 255, (3001, 240)).astype(own)
        rows = open_rows(X, device=self.device, dtype=torch.float32, max_resident_bytes=0).rows
        busy = torch.randn(1000, 1000, device=self.device)
        read = []
        for start, stop, piece in data.chunks_of(Scaled(rows, fit_scaling(rows, "none")), 100):
            busy = busy @ busy.sign()  # the piece is read by what comes after it
            read.append(piece + 0.0 * busy[0, 0].isnan())
            assert len(piece) == stop - start
            del piece
        assert torch.equal(torch.cat(read).cpu(), torch.from_numpy(X).float())

    @pytest.mark.parametrize("on", ["cpu", "cuda"])
    @pytest.mark.parametrize("limit", [None, 0])
    @pytest.mark.parametrize("size", [5, N])
    def test_batches(self, on, limit, size):
        X = open_rows(FLAT, device=self.device, dtype=torch.float32, max_resident_bytes=limit).rows
        X = Scaled(X, fit_scaling(X, "global"))
        weight = torch.arange(1.0, N + 1, device=self.device)
        own = generators(1, 2, device=on)
        for batch in first(Batches(X, weight, size, own), 9):
            assert {t.device for t in batch if t is not None} == {self.exact}
            assert torch.equal(batch.rows, X[0:N][batch.index])
            assert torch.equal(batch.weight, (weight / weight.mean())[batch.index])
        if on == "cpu" and size == 5:
            other = first(Batches(DENSE, None, size, generators(1, 2)), 9)[-1]
            assert torch.equal(batch.index.cpu(), other.index)

    @pytest.mark.parametrize("kind", ["none", "global", "standard", "minmax"])
    @pytest.mark.parametrize("limit", [None, 0])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_scaled_pieces(self, kind, limit, dtype):
        X = np.random.default_rng(0).normal(1000.0, 1.0, (300, 37))
        rows = open_rows(X, device=self.device, dtype=dtype, max_resident_bytes=limit).rows
        scaled = Scaled(rows, fit_scaling(rows, kind))
        every = scaled.scaling(rows[0:300])
        assert torch.equal(scaled[0:300], every)
        assert torch.equal(scaled[17:230], every[17:230])
        assert torch.equal(torch.cat([piece for *_, piece in data.chunks_of(scaled, 50)]), every)

    def test_moments(self):
        rows = open_rows(FLAT, device=self.device, dtype=torch.float32, max_resident_bytes=0).rows
        for a, b in zip(feature_moments(rows), feature_moments(DENSE), strict=True):
            torch.testing.assert_close(a.cpu(), b)


def test_a_subset_reads_its_rows_of_any_source():
    X = np.arange(40, dtype=np.uint8).reshape(10, 4)
    index = torch.tensor([7, 1, 4])
    for source in (X, sparse.csr_array(X), torch.from_numpy(X)):
        rows = open_rows(source, device=torch.device("cpu"), dtype=torch.float32).rows
        some = data.Subset(rows, index)
        assert tuple(some.shape) == (3, 4)
        np.testing.assert_array_equal(some[0:3], X[index])
        np.testing.assert_array_equal(some[torch.tensor([2, 2])], X[[4, 4]])
