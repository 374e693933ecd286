"""Which kernels a step runs, where there are none of Triton's."""

import logging
import types

import pytest
import torch

from concrete_kmeans import fused


def test_tensors_of_the_cpu_have_torchs_own():
    assert fused.kernels_for(torch.zeros(2)) is None
    assert fused.kernels_for(torch.zeros(2), torch.zeros(2, dtype=torch.bfloat16)) is None


@pytest.mark.parametrize(
    "which",
    [
        ("_kernels",),
        ("_lloyd_kernels", 10, 784, torch.device("cuda:0")),
        ("_hopper", torch.device("cuda:0")),
    ],
)
@pytest.mark.parametrize("error", [ImportError("no triton"), RuntimeError("no C compiler")])
def test_kernels_that_do_not_run_are_named_and_left_alone(monkeypatch, caplog, error, which):
    def fail(_name):
        raise error

    name, *given = which
    monkeypatch.setattr(fused.importlib, "import_module", fail)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (9, 0))
    with caplog.at_level(logging.WARNING, logger="concrete_kmeans.fused"):
        assert getattr(fused, name).__wrapped__(*given) is None
    assert f"{type(error).__name__}: {error}" in caplog.text


@pytest.mark.parametrize(
    ("shape", "n_clusters", "runs"),
    [
        ((70_000, 784), 10, True),
        ((15, 70_000, 784), 10, True),
        ((1_797, 64), 10, False),
        ((100, 1_797, 64), 10, False),
        ((2**31, 32), 100, False),
    ],
)
def test_small_problems_of_lloyds_wait_for_no_compiler(monkeypatch, shape, n_clusters, runs):
    rows = torch.empty(shape, device="meta")
    monkeypatch.setattr(type(rows), "is_cuda", True)
    asked = []
    monkeypatch.setattr(fused, "_lloyd_kernels", lambda *given: asked.append(given) or torch)
    found = fused.kernels_for_lloyd(rows, n_clusters)
    assert found is (torch if runs else None)
    assert asked == ([(n_clusters, shape[-1], rows.device)] if runs else [])


@pytest.mark.parametrize("capability", [(8, 0), (10, 0)])
def test_hoppers_kernel_is_for_hoppers_gpus(monkeypatch, caplog, capability):
    """Nothing is missing elsewhere, and nothing is said."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: capability)
    assert fused._hopper.__wrapped__(torch.device("cuda:0")) is None
    assert not caplog.text


@pytest.mark.parametrize(("room", "enough"), [(101_376, False), (166_912, True)])
def test_products_need_room(monkeypatch, caplog, room, enough):
    """Shared memory of an RTX 3090 and of an A100."""
    kernels = types.SimpleNamespace(shared_memory=lambda _device: room)
    monkeypatch.setattr(fused, "_kernels", lambda: kernels)
    with caplog.at_level(logging.WARNING, logger="concrete_kmeans.fused"):
        assert fused._has_room.__wrapped__(torch.device("cuda:0")) is enough
    assert (f"there are {room}" in caplog.text) is not enough
