"""Products by oneDNN, against float64 and against torch's own."""

from pathlib import Path

import pytest
import torch

from concrete_kmeans import products
from concrete_kmeans.lloyd import MAX_CHUNK_BYTES, MAX_CHUNK_BYTES_INTEL, lloyd
from concrete_kmeans.networks import build_autoencoder

SHAPES = [(256, 784, 504), (256, 504, 40), (1100, 1100, 1), (1, 1024, 1024), (300, 3, 1300)]
needs_it = pytest.mark.skipif(
    not products._is_there(), reason="this CPU or this torch has no such product"
)


@pytest.fixture(autouse=True)
def another_maker(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a CPU whose width MKL does not use, whatever this one is."""
    monkeypatch.setattr(products, "mkl_is_whole", lambda: False)


def layouts(n: int, m: int) -> list[torch.Tensor]:
    """The same kind of matrix as it may lie in memory."""
    gen = torch.Generator().manual_seed(n + m)
    wide = torch.randn(2 * n, m + 13, generator=gen)
    return [
        wide[:n, :m].contiguous(),
        wide[:n, :m].T.contiguous().T,
        wide[:n, 5 : 5 + m],
        wide[::2, :m],
    ]


@needs_it
@pytest.mark.parametrize(("n", "n_in", "n_out"), SHAPES)
def test_linear_is_the_product_of_any_layout(n: int, n_in: int, n_out: int) -> None:
    bias = torch.linspace(-1, 1, n_out)
    for rows in layouts(n, n_in):
        for weight in layouts(n_out, n_in)[:2]:
            exact = rows.double() @ weight.double().T
            for given, relu in ((None, False), (bias, False), (bias, True)):
                found = products.linear(rows, weight, given, relu=relu)
                assert found is not None
                wanted = exact if given is None else exact + given.double()
                wanted = wanted.relu() if relu else wanted
                size = rows.double().norm(dim=1, keepdim=True) * weight.double().norm(dim=1)
                assert ((found.double() - wanted).abs() <= 1e-6 * (size + 1)).all()


@needs_it
@pytest.mark.parametrize(("n_left", "n_right"), [(504, 2000), (2000, 504), (2000, 10), (10, 2000)])
def test_transposed_is_a_contiguous_product(n_left: int, n_right: int) -> None:
    gen = torch.Generator().manual_seed(0)
    left, right = (torch.randn(256, n, generator=gen) for n in (n_left, n_right))
    found = products.transposed(left, right)
    assert found is not None
    assert found.is_contiguous()
    torch.testing.assert_close(found.double(), left.double().T @ right.double(), rtol=0, atol=2e-4)


@needs_it
def test_bfloat16_rounds_once() -> None:
    gen = torch.Generator().manual_seed(0)
    rows, weight = (torch.randn(1024, 64, generator=gen).bfloat16() for _ in range(2))
    bias = torch.randn(1024, generator=gen).bfloat16()
    found = products.linear(rows, weight, bias, relu=True)
    assert found is not None
    wanted = (rows.double() @ weight.double().T + bias.double()).relu()
    torch.testing.assert_close(found.double(), wanted, rtol=2**-8, atol=1e-5)


def test_what_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.ones(1024, 1024)
    assert products.linear(rows.double(), rows.double()) is None
    assert products.linear(rows, rows.bfloat16()) is None
    assert products.transposed(rows.bfloat16(), rows.bfloat16()) is None
    assert products.linear(rows[:16], rows[:16]) is None
    assert products.linear(rows[:, ::2], rows[:, :512].contiguous()) is None
    assert products.linear(rows[:, :1000], rows[:, :1000]) is None
    with monkeypatch.context() as patch:
        patch.setattr(torch.backends.mkldnn, "enabled", False)
        assert products.linear(rows, rows) is None
    monkeypatch.setattr(products, "_is_there", lambda: False)
    assert products.linear(rows, rows) is None


def test_on_cpus_of_intel_mkl_keeps_what_it_does_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "mkl_is_whole", lambda: True)
    rows = torch.ones(1024, 1024)
    assert products.transposed(rows, rows) is None
    assert products.linear(*2 * [rows[:, : products.DEEP - 1].contiguous()]) is None
    deep = products.linear(*2 * [rows[:, : products.DEEP].contiguous()])
    low = products.linear(*2 * [rows[:, :64].bfloat16().contiguous()])
    assert (deep is not None) == (low is not None) == products._is_there()


def test_whose_cpu_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for maker, is_whole in (("GenuineIntel", True), ("AuthenticAMD", False)):
        about = tmp_path / maker
        about.write_text(f"processor\t: 0\nvendor_id\t: {maker}\ncpu family\t: 6\n")
        assert products.mkl_is_whole(about) is is_whole
    assert isinstance(products.mkl_is_whole(tmp_path / "none"), bool)


def test_larger_blocks_on_cpus_of_intel(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the same clusters."""
    gen = torch.Generator().manual_seed(0)
    rows = torch.randn(3 * MAX_CHUNK_BYTES_INTEL // 4 // 100, 5, generator=gen)
    found = []
    for whole in (False, True):
        monkeypatch.setattr(products, "mkl_is_whole", lambda whole=whole: whole)
        found.append(lloyd(rows, rows[:100], max_iter=3, tol=0.0))
    assert MAX_CHUNK_BYTES < MAX_CHUNK_BYTES_INTEL
    assert (found[0].labels != found[1].labels).float().mean() < 1e-4
    torch.testing.assert_close(found[0].inertia, found[1].inertia, rtol=1e-6, atol=0.0)


def test_a_torch_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    products._is_there.cache_clear()
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    monkeypatch.setattr(torch.ops, "mkldnn", object())
    try:
        assert not products._is_there()
    finally:
        products._is_there.cache_clear()


@needs_it
def test_it_is_found_under_other_defaults() -> None:
    products._is_there.cache_clear()
    with torch.device("meta"):
        assert products._is_there()


@needs_it
@pytest.mark.parametrize("n_restarts", [1, 3])
@pytest.mark.parametrize("rows_of", ["all", "each"])
def test_networks_are_those_of_torch(
    monkeypatch: pytest.MonkeyPatch, n_restarts: int, rows_of: str
) -> None:
    gen = torch.Generator().manual_seed(1)
    shape = (256, 64) if rows_of == "all" else (n_restarts, 256, 64)
    rows = torch.randn(shape, generator=gen)

    def passes() -> list[torch.Tensor]:
        network = build_autoencoder((300, 10), "auto", (64,), seeds=range(n_restarts))
        decoded = network.decode(network.encode(rows))
        (decoded - rows).square().sum().backward()
        with torch.no_grad():
            plain = network.decode(network.encode(rows))
        return [decoded.detach(), plain, *(p.grad for p in network.parameters())]

    fast = passes()
    monkeypatch.setattr(products, "_is_there", lambda: False)
    for found, wanted in zip(fast, passes(), strict=True):
        assert found.shape == wanted.shape
        assert (found - wanted).abs().max() <= 2e-5 * wanted.abs().max().clamp_min(1.0)
