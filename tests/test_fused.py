"""Which kernels a step runs, where there are none of Triton's."""

import logging

import pytest
import torch

from concrete_kmeans import fused


def test_tensors_of_the_cpu_have_torchs_own():
    assert fused.kernels_for(torch.zeros(2)) is None
    assert fused.kernels_for(torch.zeros(2), torch.zeros(2, dtype=torch.bfloat16)) is None


@pytest.mark.parametrize("error", [ImportError("no triton"), RuntimeError("no C compiler")])
def test_kernels_that_do_not_run_are_named_and_left_alone(monkeypatch, caplog, error):
    def fail(_name):
        raise error

    monkeypatch.setattr(fused.importlib, "import_module", fail)
    with caplog.at_level(logging.WARNING, logger="concrete_kmeans.fused"):
        assert fused._kernels.__wrapped__() is None
    assert f"{type(error).__name__}: {error}" in caplog.text
