"""More rows than memory: streams give the rows, batches and fits that memory would."""

import base64
import itertools
import os
import subprocess
import sys
import textwrap
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset

from concrete_kmeans import (
    DCN,
    DEC,
    ConcreteKMeans,
    DeepConcreteKMeans,
    DeviceMemoryWarning,
    Parquet,
    data,
    functional,
    metrics,
)
from concrete_kmeans.checkpoints import Checkpoints
from concrete_kmeans.data import (
    Batches,
    DrawnWindows,
    Scaled,
    Stream,
    Windows,
    Without,
    even_blocks,
    fit_scaling,
    open_rows,
    pieces,
    stream_of,
)
from concrete_kmeans.lloyd import _Chunks, kmeans_plusplus, lloyd
from concrete_kmeans.networks import Autoencoder
from concrete_kmeans.objectives.deep import Reconstruction
from concrete_kmeans.reading import read_ahead

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

CPU = torch.device("cpu")
N, D, K = 6000, 5, 6
rng = np.random.default_rng(0)
#: Sorted by cluster: the worst order for who reads a part.
TRUTH = np.repeat(np.arange(K), N // K)
X = (rng.normal(size=(K, D), scale=6.0)[TRUTH] + rng.normal(size=(N, D))).astype(np.float32)


def write(path, rows, group=350, **columns):
    own = {f"x{i}": column for i, column in enumerate(rows.T)}
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({**own, **columns}), path, row_group_size=group)
    return path


class Many(Dataset):
    """Items by the list, as a Dataset that is to be quick has."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]

    def __getitems__(self, numbers):
        return self.rows[numbers]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("streams")
    np.save(folder / "rows.npy", X)
    for i, part in enumerate(np.split(X, [2500, 2501, 4000])):
        write(folder / "rows" / f"part-{i}.parquet", part)
    return folder


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Rows of these tests are streamed, in many windows of many blocks."""
    monkeypatch.setattr(data, "STREAM_BYTES", 1000)
    monkeypatch.setattr(data, "WINDOW_BYTES", 700 * D * 4)
    monkeypatch.setattr(data, "BLOCK_BYTES", 20 * D * 4)


KINDS = {
    "memmap": lambda folder: np.load(folder / "rows.npy", mmap_mode="r"),
    "part of a memmap": lambda folder: np.asarray(np.load(folder / "rows.npy", mmap_mode="r")),
    "Parquet": lambda folder: Parquet(folder / "rows"),
    "Dataset": lambda _: Many(X),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def streamed(kind, folder, dtype=torch.float32):
    source = open_rows(KINDS[kind](folder), device=CPU, dtype=dtype)
    assert source.where == "streamed"
    return source.rows


# ------------------------------------------------------------------------------------ reading ahead


@pytest.fixture
def three_threads():
    """torch with three threads; what looks whether it has them still, here and in new threads."""

    def look():
        assert torch.get_num_threads() == 3
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(torch.get_num_threads).result() == 3

    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield look
    torch.set_num_threads(before)


class TestReadAhead:
    def test_on_another_thread_and_two_at_a_time(self):
        made, used, threads = [], [], set()

        def source():
            for i in range(20):
                threads.add(threading.get_ident())
                made.append(i)
                assert len(made) - len(used) <= 2
                yield i

        for item in read_ahead(source()):
            used += [item]
        assert used == list(range(20))
        assert len(threads) == 1
        assert threading.get_ident() not in threads

    def test_the_next_is_read_while_one_is_used(self):
        second = threading.Event()

        def source():
            yield 1
            second.set()
            yield 2

        for item in read_ahead(source()):
            assert item == 2 or second.wait(10.0)

    @pytest.mark.parametrize("worth", [0.0, 1e9])
    def test_an_error_comes_in_its_place(self, worth):
        def source():
            yield from range(5)
            raise ValueError("row 7")

        found = read_ahead(source(), worth=worth)
        assert [next(found) for _ in range(5)] == list(range(5))
        with pytest.raises(ValueError, match="row 7"):
            next(found)

    def test_it_reads_on_one_thread_and_others_keep_theirs(self, three_threads):
        def source():
            yield torch.get_num_threads()
            yield torch.get_num_threads()

        assert list(read_ahead(source())) == [1, 1]
        three_threads()

    def test_others_keep_their_threads_when_nothing_can_be_read(self, three_threads):
        def source():
            raise ValueError("row 0")
            yield

        with pytest.raises(ValueError, match="row 0"):
            next(read_ahead(source()))
        three_threads()

    @pytest.mark.parametrize("busy", [False, True])
    def test_what_takes_little_is_read_when_it_is_asked_for(self, busy, monkeypatch):
        """And on the thread while it takes long; by a clock for each of the two.

        Where all cores are busy, what counts is what is waited for.
        """
        me, clocks, worked = threading.get_ident(), Counter(), Counter()
        monkeypatch.setattr("time.perf_counter", lambda: clocks[threading.get_ident()])
        monkeypatch.setattr("time.thread_time", lambda: worked[threading.get_ident()])
        waits, works, readers = [1] * 5 + [9] * 3 + [1] * 8, [0] * 12 + [9] * 2 + [0] * 2, []

        def source():
            for i, (waiting, working) in enumerate(zip(waits, works, strict=True)):
                thread = threading.get_ident()
                readers.append(thread)
                clocks[thread] += waiting + working
                worked[thread] += working
                yield i

        found = []
        for i in read_ahead(source(), worth=0.5, busy=busy):
            found.append(i)
            clocks[me] += 10
        assert found == list(range(16))
        here = "".join("h" if reader == me else "." for reader in readers)
        # each change is noticed when it has come
        assert here == ("hhhhhh...hhhhhhh" if busy else "hhhhhh...hhhh..h")
        assert len({*readers} - {me}) == 1

    def test_who_leaves_ends_the_thread(self):
        before = threading.active_count()
        found = read_ahead(itertools.count())
        assert [next(found), next(found)] == [0, 1]
        assert threading.active_count() == before + 1
        found.close()
        assert threading.active_count() == before


# ------------------------------------------------------------------------------------------ Parquet


class TestParquet:
    def test_files_in_the_order_of_their_names(self, folder):
        rows = Parquet(folder / "rows")
        assert (rows.shape, rows.dtype, rows.nbytes) == ((N, D), np.float32, X.nbytes)
        assert rows.feature_names == [f"x{i}" for i in range(D)]
        np.testing.assert_array_equal(rows.read(0, N), X)
        assert rows.bounds[-1] == N
        assert 2500 in rows.bounds  # a file ends: a row group does

    def test_reads_from_anywhere_in_any_order(self, folder):
        rows = Parquet(folder / "rows")

        @settings(max_examples=30, deadline=None)
        @given(st.lists(st.tuples(st.integers(0, N), st.integers(0, N)), max_size=6))
        def check(reads):
            for a, b in reads:
                np.testing.assert_array_equal(
                    rows.read(min(a, b), max(a, b)), X[min(a, b) : max(a, b)]
                )

        check()

    def test_places_in_turn_read_no_row_twice(self, folder, monkeypatch):
        rows = Parquet(folder / "rows")
        decoded = []
        own = rows._converted
        monkeypatch.setattr(rows, "_converted", lambda b, at: decoded.append(len(b)) or own(b, at))
        starts = rows.bounds[[0, 3, 6]].tolist()
        for step in range(0, 300, 50):
            for start in starts:
                at = start + step
                np.testing.assert_array_equal(rows.read(at, at + 50), X[at : at + 50])
        assert sum(decoded) <= 3 * 350

    @settings(max_examples=20, deadline=None)
    @given(st.lists(st.integers(0, N - 1), max_size=50))
    def test_rows_by_number(self, folder, numbers):
        found = Parquet(folder / "rows").pick(np.array(numbers, dtype=np.int64))
        np.testing.assert_array_equal(found, X[numbers])

    def test_kinds_of_columns(self, tmp_path):
        lists = [[1, 2, 3], [4, 5, 6]]
        columns = {
            "b": [True, False],
            "i": pa.array([1, 2], pa.int8()),
            "d": [Decimal("1.5"), Decimal("2.5")],
            "v": pa.array(lists, pa.list_(pa.float32())),
            "f": pa.array(lists, pa.list_(pa.float64(), 3)),
            "none": [None, 4.0],
        }
        pq.write_table(pa.table(columns), tmp_path / "a.parquet")
        rows = Parquet(tmp_path / "a.parquet")
        expected = [[1, 1, 1.5, 1, 2, 3, 1, 2, 3, np.nan], [0, 2, 2.5, 4, 5, 6, 4, 5, 6, 4]]
        np.testing.assert_array_equal(rows.read(0, 2), expected)
        assert rows.dtype == np.float64
        assert rows.feature_names[3:6] == ["v.0", "v.1", "v.2"]
        some = Parquet(tmp_path / "a.parquet", ["v", "i"])
        np.testing.assert_array_equal(some.read(1, 2), [[4, 5, 6, 2]])

    def test_folders_in_folders_and_hidden_ones(self, tmp_path):
        for name, value in {"b/1.pq": 1.0, "a/2.parquet": 0.0, ".c/3.parquet": 9.0}.items():
            write(tmp_path / name, np.full((2, 1), value))
        (tmp_path / "_SUCCESS").write_text("")
        np.testing.assert_array_equal(Parquet(tmp_path).read(0, 4)[:, 0], [0, 0, 1, 1])

    def test_a_large_row_group_is_not_held(self, tmp_path):
        lists = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(2**24, np.float32)), 256)
        table = pa.table({"v": lists})
        pq.write_table(table, tmp_path / "a.parquet", use_dictionary=False, compression="none")
        del table, lists
        rows = Parquet(tmp_path / "a.parquet")
        assert len(rows.bounds) == 2
        before, most = pa.total_allocated_bytes(), 0
        for start in range(0, len(rows), 1000):
            rows.read(start, min(start + 1000, len(rows)))
            most = max(most, pa.total_allocated_bytes() - before)
        assert most < 24 * 2**20  # of 64 MiB

    @pytest.mark.parametrize(
        ("make", "columns", "error", "match"),
        [
            (lambda p: p / "none", None, FileNotFoundError, "none does not exist"),
            (lambda p: p, None, ValueError, "no file that ends in .parquet"),
            (lambda p: write(p / "a.pq", X), "x0", TypeError, "columns must be a sequence"),
            (lambda p: write(p / "a.pq", X), [], ValueError, "columns must name one or more"),
            (lambda p: write(p / "a.pq", X), ["x0", "x0"], ValueError, "each once"),
            (lambda p: write(p / "a.pq", X), ["x9"], ValueError, "'x9'"),
            (lambda p: write(p / "a.pq", X[:0]), None, ValueError, "a.pq has no rows"),
            (
                lambda p: write(p / "a.pq", X, text=["a"] * N),
                None,
                ValueError,
                "column 'text' must hold numbers or lists of numbers, it is of type string",
            ),
        ],
    )
    def test_errors(self, tmp_path, make, columns, error, match):
        with pytest.raises(error, match=match):
            Parquet(make(tmp_path), columns)

    def test_no_parquet_at_all(self, tmp_path):
        (tmp_path / "a.parquet").write_text("no")
        with pytest.raises(ValueError, match=r"a\.parquet cannot be read as Parquet"):
            Parquet(tmp_path)

    def test_files_that_differ(self, tmp_path):
        write(tmp_path / "a.parquet", X[:3])
        write(tmp_path / "b.parquet", X[:3, :2])
        with pytest.raises(ValueError, match=r"b.parquet has no column 'x2', as .*a.parquet has"):
            Parquet(tmp_path)
        write(tmp_path / "b.parquet", X[:3].astype(np.float64))
        with pytest.raises(ValueError, match=r"'x0' is of type double, in .* of float"):
            Parquet(tmp_path)

    @pytest.mark.parametrize("bad", [[1.0], None])
    def test_lists_of_other_lengths_name_their_row(self, tmp_path, bad):
        pq.write_table(pa.table({"v": [[1.0, 2.0]] * 70 + [bad]}), tmp_path / "a.parquet")
        with pytest.raises(ValueError, match="'v' must hold 2 numbers a row, row 70 holds"):
            Parquet(tmp_path).read(0, 71)

    @pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.list_(pa.float32(), 2)])
    def test_lists_are_looked_for_beyond_empty_files_and_rows(self, tmp_path, kind):
        rows = [None] * 100 + [[1.0, 2.0]] * 3
        for name, column in {"a": [], "b": rows, "c": []}.items():
            pq.write_table(pa.table({"v": pa.array(column, kind)}), tmp_path / f"{name}.parquet")
        found = Parquet(tmp_path)
        assert found.shape == (103, 2)
        with pytest.raises(ValueError, match="'v' must hold 2 numbers a row, row 0 holds 0"):
            found.read(0, 1)

    def test_lists_without_numbers(self, tmp_path):
        empty = pa.array([[]] * 9, pa.list_(pa.float32()))
        none = pa.array([None] * 9, pa.list_(pa.float32()))
        pq.write_table(pa.table({"empty": empty, "none": none}), tmp_path / "a.parquet")
        for name in ("empty", "none"):
            match = f"column '{name}' must hold lists of one number or more"
            with pytest.raises(ValueError, match=match):
                Parquet(tmp_path, [name])

    def test_lists_that_are_declared_longer_than_the_file(self, tmp_path):
        """Names alone of a billion features would fill the memory."""
        path, kinds = tmp_path / "a.parquet", [pa.list_(pa.float32(), n) for n in (2, 10**9)]
        pq.write_table(pa.table({"v": pa.array([[1.0, 2.0]] * 9, kinds[0])}), path)
        true, false = (
            base64.b64encode(pa.schema([("v", kind)]).serialize().to_pybytes()) for kind in kinds
        )
        path.write_bytes(path.read_bytes().replace(true, false))
        assert pq.read_schema(path).field("v").type == kinds[1]
        with pytest.raises(ValueError, match="'v' must hold lists of one number or more"):
            Parquet(tmp_path)

    def test_few_rows_are_read_once(self, folder, monkeypatch):
        monkeypatch.setattr(data, "STREAM_BYTES", 2**28)
        source = open_rows(Parquet(folder / "rows"), device=CPU, dtype=torch.float64)
        assert source.where == "device"
        torch.testing.assert_close(source.rows, torch.from_numpy(X).double())


# ------------------------------------------------------------------------------------ rows, batches


@every_kind
def test_every_kind_gives_the_same_rows(kind, folder):
    rows = streamed(kind, folder)
    assert (tuple(rows.shape), rows.dtype) == ((N, D), torch.float32)
    dense = torch.from_numpy(X)
    left_out = torch.tensor([0, 1, 17, 2500, N - 1])
    rest = torch.ones(N, dtype=torch.bool)
    rest[left_out] = False
    scaling = fit_scaling(dense, "standard")
    views = [
        (rows, dense),
        (Scaled(rows, scaling), scaling(dense)),
        (Without(rows, left_out), dense[rest]),
        (Without(Scaled(rows, scaling), left_out), scaling(dense)[rest]),
    ]
    ranges = st.builds(slice, st.integers(0, N), st.integers(0, N))
    numbers = st.lists(st.integers(0, N - 6), max_size=9)

    @settings(max_examples=10, deadline=None)
    @given(st.one_of(ranges, numbers.map(lambda i: torch.tensor(i, dtype=torch.int64))))
    def check(read):
        for view, expected in views:
            assert torch.equal(view[read], expected[read])

    check()
    for view, expected in views:
        assert stream_of(view).bounds[-1] == len(expected)
        assert torch.equal(torch.cat([piece for _, _, piece in pieces(view, 4000)]), expected)


def generators(*seeds):
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def stream_of_array(rows):
    own = data.ArrayRows(rows, CPU, torch.float32)
    return data.Streamed(own, even_blocks(*rows.shape, 4))


class TestBatches:
    @every_kind
    def test_a_pass_has_every_row_once_and_each_in_another_order(self, kind, folder):
        rows = streamed(kind, folder)
        batches = Batches(rows, None, 64, generators(3, 4))
        assert batches.windows.count == 9
        orders = []
        without_end = iter(batches)
        for _ in range(3):
            found = list(itertools.islice(without_end, batches.per_epoch))
            index = torch.cat([batch.index for batch in found], 1)  # (R, N)
            assert torch.equal(
                torch.cat([batch.rows for batch in found], 1), torch.tensor(X)[index]
            )
            assert [len(own.unique()) for own in index] == [len(index[0])] * 2
            orders += [*index]
        assert len({tuple(order.tolist()) for order in orders}) == 6

    def test_weights_follow_their_rows(self):
        weight = torch.arange(1.0, N + 1)
        batches = Batches(stream_of_array(X), weight, 100, generators(0))
        batch = next(iter(batches))
        torch.testing.assert_close(batch.weight, (weight / weight.mean())[batch.index])

    @pytest.mark.parametrize("n_batches", [None, 4])
    def test_a_restart_alone_and_from_any_place(self, folder, n_batches):
        rows = streamed("Parquet", folder)
        make = lambda own: Batches(rows, None, 64, own, n_batches=n_batches)  # noqa: E731
        own = generators(3, 4)
        batches, places, found = make(own), [], []
        for batch in itertools.islice(iter(batches), 200):
            found.append(batch.index)
            places.append((batches.place, [generator.get_state() for generator in own]))
        alone = itertools.islice(iter(make(generators(4))), 200)
        assert all(torch.equal(one.index[0], two[1]) for one, two in zip(alone, found, strict=True))
        for at in (0, 5, 91, 92, 93, 150):  # 93 batches a pass
            other = generators(0, 0)
            resumed = make(other)
            resumed.place = places[at][0]
            for generator, state in zip(other, places[at][1], strict=True):
                generator.set_state(state)
            for batch, expected in zip(iter(resumed), found[at + 1 :], strict=False):
                assert torch.equal(batch.index, expected)

    def test_every_window_has_rows_of_all_parts(self):
        windows = Windows(even_blocks(N, D, 4), 700)
        for number, window in itertools.product(range(2), range(windows.count)):
            _, numbers = windows.read(torch.from_numpy(X), number, window)
            shares = torch.bincount(torch.from_numpy(TRUTH)[numbers]) / len(numbers)
            assert (shares - 1 / K).abs().max() < 0.04

    def test_passes_and_windows_differ(self):
        windows = Windows(even_blocks(N, D, 4), 700)
        read = [tuple(windows.ranges(*at)) for at in itertools.product(range(2), range(9))]
        assert len(set(read)) == 18

    def test_a_small_part_of_parquet_is_drawn_from_all_of_it(self, folder):
        rows = streamed("Parquet", folder)
        assert isinstance(Batches(rows, None, 64, generators(0)).windows, Windows)
        batches = Batches(rows, None, 64, generators(0), n_batches=10)
        assert isinstance(batches.windows, DrawnWindows)
        for batch in itertools.islice(iter(batches), 10):
            shares = torch.bincount(torch.from_numpy(TRUTH)[batch.index[0]], minlength=K) / 64
            assert (shares - 1 / K).abs().max() < 0.2  # the row groups hold a cluster or two

    @pytest.mark.parametrize(("n", "size"), [(1, 5), (7, 7), (10, 3), (100, 9), (101, 100)])
    def test_windows_cover_all_rows(self, n, size):
        rows = torch.arange(float(n)).view(n, 1)
        blocks = np.unique([0, n // 3, n // 2, n])
        for windows in (Windows(Stream(blocks, 2), size), DrawnWindows(Stream(blocks, 1), size)):
            read = [windows.read(rows, 0, w) for w in range(windows.count)]
            found = torch.cat([numbers for _, numbers in read])
            assert torch.equal(found.sort().values, torch.arange(n))
            assert torch.equal(torch.cat([part for part, _ in read])[:, 0], found.float())
            starts = [windows.start(w) for w in range(windows.count + 1)]
            assert starts == [0, *itertools.accumulate(len(part) for part, _ in read)]

    @pytest.mark.parametrize("make", [ConcreteKMeans, DeepConcreteKMeans])
    def test_a_batch_that_does_not_fit(self, make, folder):
        match = "batch_size must be at most 700 for rows of 5 numbers that are streamed, got 701"
        with pytest.raises(ValueError, match=match):
            make(2, batch_size=701).fit(KINDS["memmap"](folder))

    def test_lloyd_has_no_batches(self, folder):
        rows = KINDS["memmap"](folder)
        km = ConcreteKMeans(K, algorithm="lloyd", batch_size=N, random_state=0)
        assert same_clusters(km.fit(rows).labels_)
        with pytest.raises(ValueError, match="batch_size must be at most 700"):
            km.partial_fit(rows)


# --------------------------------------------------------------------------------------------- fits


def same_clusters(labels):
    return metrics.ari(TRUTH, labels) > 0.99


class TestShallow:
    @every_kind
    def test_lloyd_as_in_memory(self, kind, folder):
        given_, weight = X[[3, 1500, 2400, 3600, 4500, 5500]], np.linspace(0.5, 2.0, N)
        make = lambda: ConcreteKMeans(K, algorithm="lloyd", init=given_)  # noqa: E731
        stream = make().fit(KINDS[kind](folder), sample_weight=weight)
        held = make().fit(X, sample_weight=weight)
        np.testing.assert_allclose(stream.cluster_centers_, held.cluster_centers_, rtol=1e-5)
        np.testing.assert_array_equal(stream.labels_, held.labels_)
        assert stream.n_iter_ == held.n_iter_
        assert stream.inertia_ == pytest.approx(held.inertia_, rel=1e-6)

    @pytest.mark.parametrize("algorithm", ["concrete", "lloyd"])
    @every_kind
    def test_fit_and_use(self, kind, algorithm, folder):
        rows = KINDS[kind](folder)
        km = ConcreteKMeans(K, algorithm=algorithm, n_init=2, max_iter=200, random_state=1)
        km.fit(rows)
        assert same_clusters(km.labels_)
        assert km.labels_.dtype == np.int32
        np.testing.assert_array_equal(km.predict(rows), km.labels_)
        np.testing.assert_array_equal(km.transform(rows).argmin(1), km.labels_)
        assert -km.score(rows) == pytest.approx(km.inertia_)
        held = ConcreteKMeans(K, algorithm=algorithm, n_init=2, max_iter=200, random_state=1).fit(X)
        assert km.inertia_ == pytest.approx(held.inertia_, rel=0.01)

    def test_restarts_are_those_of_their_seeds(self, folder):
        rows = KINDS["Parquet"](folder)
        make = lambda **own: ConcreteKMeans(K, max_iter=50, **own).fit(rows)  # noqa: E731
        many = make(n_init=2, random_state=5)
        alone = make(n_init=1, random_state=6)
        expected = many.restarts_[1].cluster_centers
        np.testing.assert_allclose(alone.cluster_centers_, expected, rtol=1e-5)

    @every_kind
    def test_partial_fit(self, kind, folder):
        rows = KINDS[kind](folder)
        km = ConcreteKMeans(K, random_state=0).partial_fit(rows).partial_fit(rows)
        assert same_clusters(km.labels_)
        assert km.n_iter_ == 2 * -(-N // 256)

    def test_init_by_passes_over_all_rows(self, folder):
        """k-means++ on the stream is that in memory: the same draws, the same centres."""
        rows = streamed("Parquet", folder)
        own, held = (
            kmeans_plusplus(given, K, generators=generators(0, 1))[1]
            for given in (rows, torch.from_numpy(X))
        )
        assert torch.equal(own, held)
        km = ConcreteKMeans(K, algorithm="lloyd", init_size=N, max_iter=1, random_state=0)
        centers = km.fit(KINDS["Parquet"](folder)).cluster_centers_
        np.testing.assert_allclose(
            centers, lloyd(rows, torch.tensor(X)[own[:1]], max_iter=1).centers[0], rtol=1e-5
        )

    def test_paths(self, folder, tmp_path):
        expected = ConcreteKMeans(K, max_iter=50, random_state=0).fit(KINDS["memmap"](folder))
        for path in (folder / "rows.npy", str(folder / "rows.npy"), folder / "rows"):
            km = ConcreteKMeans(K, max_iter=50, random_state=0).fit(path)
            assert metrics.ari(expected.labels_, km.labels_) == 1.0
            np.testing.assert_array_equal(km.predict(path), km.labels_)
        assert DeepConcreteKMeans(2, **SMALL).fit(folder / "rows").n_features_in_ == D
        for path, error, match in [
            (tmp_path / "a.npy", FileNotFoundError, r"a\.npy does not exist"),
            (tmp_path, ValueError, r"holds no file that ends in \.parquet"),
            ("a.csv", ValueError, r"path of a \.npy file, a Parquet file .* got 'a\.csv'"),
        ]:
            with pytest.raises(error, match=match):
                km.fit(path)

    def test_types(self, tmp_path):
        for dtype, expected in {"f8": "f8", "f4": "f4", "f2": "f4", "i2": "f8"}.items():
            np.save(tmp_path / "a.npy", X.astype(dtype))
            rows = np.load(tmp_path / "a.npy", mmap_mode="r")
            km = ConcreteKMeans(2, max_iter=3).fit(rows)
            assert km.cluster_centers_.dtype == np.dtype(expected)
            assert km.transform(rows).dtype == np.dtype(expected)

    def test_names_of_features(self, folder):
        km = ConcreteKMeans(2, max_iter=3).fit(Parquet(folder / "rows"))
        assert km.feature_names_in_.tolist() == [f"x{i}" for i in range(D)]
        other = Parquet(folder / "rows", ["x0", "x1", "x3", "x2", "x4"])
        with pytest.raises(ValueError, match="feature 2 is 'x3', was 'x2'"):
            km.predict(other)
        with pytest.raises(ValueError, match="X has 1 features, but ConcreteKMeans is expecting 5"):
            km.predict(Parquet(folder / "rows", ["x0"]))


SMALL = {
    "encoder": (16, 3),
    "pretrain_epochs": 2,
    "epochs": 2,
    "init": "k-means++",
    "random_state": 0,
}


class TestDeep:
    @every_kind
    def test_fit_and_use(self, kind, folder, monkeypatch):
        monkeypatch.setattr("concrete_kmeans.estimators.deep.SAMPLE_ROWS", 800)
        monkeypatch.setattr("concrete_kmeans.estimators.deep.WATCHED_ROWS", 400)
        rows = KINDS[kind](folder)
        fit = DeepConcreteKMeans(K, n_init=2, **SMALL).fit(rows)
        assert metrics.ari(TRUTH, fit.labels_) > 0.9
        np.testing.assert_array_equal(fit.predict(rows), fit.labels_)
        held = fit.transform(np.array(X)) if kind != "Parquet" else fit.transform(rows)
        np.testing.assert_allclose(fit.transform(rows), held, rtol=1e-4, atol=1e-5)
        assert -fit.score(rows) == pytest.approx(fit.inertia_)

    @pytest.mark.parametrize("method", [DCN, DEC])
    def test_methods_that_keep_something_of_every_row(self, method, folder):
        fit = method(K, **SMALL).fit(KINDS["Parquet"](folder))
        np.testing.assert_array_equal(fit.predict(KINDS["Parquet"](folder)), fit.labels_)
        assert len(fit.labels_) == N

    @pytest.mark.parametrize("kind", ["memmap", "Parquet"])
    def test_a_fit_that_was_killed_goes_on_bit_for_bit(self, kind, folder, tmp_path, monkeypatch):
        rows = KINDS[kind](folder)
        short = SMALL | {"pretrain_epochs": 1, "epochs": 2, "batch_size": 512, "init": "mixture"}
        straight = DeepConcreteKMeans(K, n_init=2, **short).fit(rows)
        make = {"checkpoint": tmp_path / "c", "checkpoint_every": 1e-6}
        own, written = Checkpoints.write, []

        def write_and_die(self, loop):
            own(self, loop)
            written.append(loop is not None)
            if len(written) % 9 == 0:
                raise RuntimeError("killed")

        monkeypatch.setattr(Checkpoints, "write", write_and_die)
        fit = DeepConcreteKMeans(K, n_init=2, **short, **make)
        kills = 0
        while not hasattr(fit, "labels_"):
            try:
                fit.fit(rows)
            except RuntimeError:
                kills += 1
        assert kills > 3
        for name, tensor in straight.model_.network.state_dict().items():
            assert torch.equal(tensor, fit.model_.network.state_dict()[name])
        assert torch.equal(straight.model_.centers, fit.model_.centers)


# ------------------------------------------------------------------------------------------- guards


class TestNotFinite:
    @pytest.fixture
    def broken(self, tmp_path):
        rows = X.copy()
        rows[4321, 2], rows[5000, 1] = np.nan, np.inf
        np.save(tmp_path / "a.npy", rows)
        write(tmp_path / "a.parquet", rows)
        return {
            "memmap": np.load(tmp_path / "a.npy", mmap_mode="r"),
            "Parquet": Parquet(tmp_path / "a.parquet"),
            "Dataset": Many(rows),
        }

    @pytest.mark.parametrize("kind", ["memmap", "Parquet", "Dataset"])
    @pytest.mark.parametrize("make", [ConcreteKMeans, DeepConcreteKMeans])
    def test_the_row_and_the_feature_are_named(self, make, kind, broken, folder):
        name = r" \(x2\)" if kind == "Parquet" else ""
        match = f"X must be finite; row 4321, feature 2{name} is NaN"
        estimator = make(2, **({"max_iter": 9} if make is ConcreteKMeans else SMALL))
        with pytest.raises(ValueError, match=match):
            estimator.fit(broken[kind])
        estimator.fit(KINDS[kind](folder))
        with pytest.raises(ValueError, match=match):
            estimator.predict(broken[kind])

    def test_whole_numbers_are_not_looked_at(self, tmp_path, monkeypatch):
        monkeypatch.setattr(data, "_check_finite", lambda *_: 1 / 0)
        np.save(tmp_path / "rows.npy", X.astype(np.int16))
        np.save(tmp_path / "floats.npy", X)
        whole, floats = (
            open_rows(np.load(tmp_path / f"{name}.npy", "r"), device=CPU, dtype=torch.float32).rows
            for name in ("rows", "floats")
        )
        assert torch.equal(whole[5:9], torch.from_numpy(X[5:9].astype(np.int16)).float())
        with pytest.raises(ZeroDivisionError):
            floats[5:9]

    def test_too_large_for_the_type_of_the_rows(self, tmp_path):
        rows = X.astype(np.float64)
        rows[7, 1], rows[8, 0] = -1e300, np.inf
        np.save(tmp_path / "a.npy", rows)
        write(tmp_path / "a.parquet", rows)
        for given_, name in [
            (np.load(tmp_path / "a.npy", mmap_mode="r"), ""),
            (Parquet(tmp_path / "a.parquet"), r" \(x1\)"),
            (Many(rows), ""),
        ]:
            match = rf"^X must be finite as float32; row 7, feature 1{name} is -1e\+300$"
            with pytest.raises(ValueError, match=match):
                DeepConcreteKMeans(2, **SMALL).fit(given_)
            with pytest.raises(ValueError, match=r"^X must be finite; row 8, .* is infinity$"):
                ConcreteKMeans(2).fit(given_)

    def test_a_missing_value(self, tmp_path):
        table = pa.table({"a": [1.0] * 400 + [None] + [2.0] * 200})
        pq.write_table(table, tmp_path / "a.parquet")
        with pytest.raises(ValueError, match=r"X must be finite; row 400, feature 0 \(a\) is NaN"):
            ConcreteKMeans(1).fit(Parquet(tmp_path / "a.parquet"))

    def test_a_loss_that_is_not_keeps_the_last_good_state(self, folder, monkeypatch):
        own, calls = Reconstruction.loss, []

        def loss(self, *given):
            parts = own(self, *given)
            calls.append(1)
            return parts if len(calls) < 40 else {"loss": parts["loss"] * torch.nan}

        monkeypatch.setattr(Reconstruction, "loss", loss)
        fit = DeepConcreteKMeans(K, **SMALL)
        rows = KINDS["Parquet"](folder)
        with pytest.raises(FloatingPointError, match="failed in pretrain at step 39"):
            fit.fit(rows)
        assert np.isfinite(fit.transform(rows)).all()
        np.testing.assert_array_equal(fit.predict(rows), fit.labels_)


class TestDeviceMemory:
    """As no GPU is here, an operation on too many rows says that its memory is out."""

    @staticmethod
    def scarce(monkeypatch, owner, name, place, most):
        own = getattr(owner, name)

        def limited(*given):
            if given[place].shape[-2] > most:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return own(*given)

        monkeypatch.setattr(owner, name, limited)

    def test_inference_goes_on_with_smaller_chunks(self, monkeypatch):
        fit = DeepConcreteKMeans(K, **SMALL).fit(X)
        results = fit.predict, fit.transform, fit.predict_proba, fit.reconstruct
        expected = [result(X) for result in results]
        self.scarce(monkeypatch, Autoencoder, "encode", 1, 1000)
        for result, wanted in zip(results, expected, strict=True):
            with pytest.warns(DeviceMemoryWarning) as told:
                found = result(X)
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
            texts = [str(warning.message) for warning in told]
            assert len(texts) == 3  # 6000, 3000, 1500; and no more: the size is kept
            assert "no memory for 6000 rows at a time: 3000 are tried" in texts[0]

    def test_shallow_inference_too(self, monkeypatch):
        km = ConcreteKMeans(K, max_iter=50, random_state=0).fit(X)
        labels, distances = km.predict(X), km.transform(X)
        self.scarce(monkeypatch, functional, "squared_distances", 0, 1000)
        with pytest.warns(DeviceMemoryWarning):
            np.testing.assert_allclose(km.transform(X), distances, rtol=1e-3)
        self.scarce(monkeypatch, _Chunks, "partial_distances", 1, 1000)
        with pytest.warns(DeviceMemoryWarning):
            np.testing.assert_array_equal(km.predict(X), labels)
        with pytest.warns(DeviceMemoryWarning):
            assert -km.score(X) == pytest.approx(km.inertia_)

    def test_not_even_a_row(self, monkeypatch):
        fit = DeepConcreteKMeans(K, **SMALL).fit(X)
        self.scarce(monkeypatch, Autoencoder, "encode", 1, 0)
        with pytest.warns(DeviceMemoryWarning), pytest.raises(torch.OutOfMemoryError):
            fit.predict(X)

    def test_training_says_what_to_change(self, monkeypatch):
        self.scarce(monkeypatch, Autoencoder, "encode", 1, 100)
        match = (
            r"step of 2 restart\(s\) with 256 rows each \(pretrain\): lower batch_size, n_init or "
            "the widths of the encoder, or choose precision='bfloat16'"
        )
        with pytest.raises(torch.OutOfMemoryError, match=match):
            DeepConcreteKMeans(K, n_init=2, **SMALL).fit(X)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="RLIMIT_DATA is of Linux")
def test_memory_that_may_not_grow(tmp_path):
    """A memmap of 512 MiB, most of it a hole, with 300 MiB above the imports."""
    script = """
    import resource, sys
    import numpy as np
    from pathlib import Path
    from concrete_kmeans import ConcreteKMeans

    def fit(rows, **own):
        return ConcreteKMeans(4, random_state=0, **own).fit(rows)

    fit(np.random.default_rng(0).normal(size=(1000, 64)), max_iter=3)
    rows = np.memmap(sys.argv[1], np.float32, "w+", shape=(2**21, 64))
    rows[::4096] = np.random.default_rng(0).normal(size=(512, 64))
    rows = np.memmap(sys.argv[1], np.float32, "r", shape=(2**21, 64))
    status = Path("/proc/self/status").read_text().splitlines()
    used = 1024 * next(int(line.split()[1]) for line in status if "VmData" in line)
    limit = used + 300 * 2**20
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    km = fit(rows, max_iter=200)
    assert (km.predict(rows[:: 2**12]) == km.labels_[:: 2**12]).all()
    fit(rows, algorithm="lloyd", max_iter=1)
    try:
        np.ones(400 * 2**20, np.uint8)
    except MemoryError:
        print("held")
    """
    answer = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), tmp_path / "rows"],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert answer.stdout == "held\n", answer.stderr


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is of Linux")
def test_the_memory_of_a_deep_fit_does_not_grow_with_the_rows(tmp_path):
    """Eight times the rows and steps, and hardly more than their labels of memory."""
    script = """
    import sys, threading
    import numpy as np
    from pathlib import Path
    from concrete_kmeans import DeepConcreteKMeans, data

    def fit(rows):
        short = {"encoder": (32, 8), "init": "k-means++", "pretrain_epochs": 1, "epochs": 1}
        own = DeepConcreteKMeans(4, batch_size=2048, random_state=0, device="cpu", **short)
        return own.fit(rows)

    def used():  # without the pages of files
        status = Path("/proc/self/status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in status if "RssAnon" in line)

    def watch():
        while not over.wait(0.005):
            found.append(used())

    rows = np.load(sys.argv[1], mmap_mode="r")[: int(sys.argv[2])]
    fit(np.array(rows[:8192]))
    data.STREAM_BYTES, data.WINDOW_BYTES = 0, 8 * 2**20
    found, over = [used()], threading.Event()
    thread = threading.Thread(target=watch)
    thread.start()
    try:
        fit(rows)
    finally:
        over.set()
        thread.join()
    print(max(found) - found[0])
    """
    n, path = 2**20, tmp_path / "rows.npy"
    own = np.random.default_rng(0)
    part = own.normal(size=(4, 64), scale=3.0)[own.integers(4, size=2**15)]
    part += own.normal(size=part.shape)
    rows = np.lib.format.open_memmap(path, "w+", np.float32, (n, 64))
    for start in range(0, n, len(part)):
        rows[start : start + len(part)] = part
    rows.flush()
    peaks = []
    for some in (n // 8, n):
        answer = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script), path, str(some)],
            capture_output=True,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        assert answer.returncode == 0, answer.stderr
        peaks.append(int(answer.stdout))
    assert peaks[0] > 16 * 2**20  # two windows: the peak was seen
    # each step once left a small tensor among what it had freed: 120 MB more of heap in pieces
    assert peaks[1] - peaks[0] < 4 * n + 50 * 2**20, peaks
