"""Shared by all tests."""

import io
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import concrete_kmeans

REPOSITORY = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def data_folder(monkeypatch):
    """A relative CKM_DATA_HOME holds for tests that change the working directory, too."""
    if home := os.environ.get("CKM_DATA_HOME"):
        monkeypatch.setenv("CKM_DATA_HOME", str(Path(home).resolve()))


@pytest.fixture
def load_or_skip():
    """``datasets.load`` from CKM_DATA_HOME only; a data set that is not there skips the test."""

    def load(name):
        home = os.environ.get("CKM_DATA_HOME")
        if not home or not any(Path(home).glob(f"{name}.csv.gz")):
            pytest.skip(f"{name} is not in CKM_DATA_HOME")
        return concrete_kmeans.datasets.load(name, home)

    return load


@pytest.fixture
def short_warm_up(monkeypatch):
    """For quick tests: the one phase of a deep fit whose length is no parameter."""
    from concrete_kmeans.estimators import deep, methods

    monkeypatch.setattr(deep, "LEAST_TRAINING_STEPS", 10)
    monkeypatch.setattr(methods, "WARM_UP_EPOCHS", 4)
    monkeypatch.setattr(methods, "LEARNED", 2.0)  # it does not end early


@pytest.fixture
def untouched_random_state():
    """The test must neither read nor write the global random states."""
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()  # noqa: NPY002
    yield
    assert torch.equal(torch.get_rng_state(), torch_state)
    after = np.random.get_state()  # noqa: NPY002
    assert all(np.array_equal(a, b) for a, b in zip(after, numpy_state, strict=True))


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    """Make standard error a terminal, which keeps what is written to it.

    Within the test: between its parts pytest puts a file of its own there.
    """

    def opened():
        monkeypatch.setattr(sys, "stderr", Terminal())
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", "120")
        return sys.stderr

    return opened


@pytest.fixture
def draw():
    """Normal numbers of a shape, the same ones every time, on a GPU if there is one."""
    generator = torch.Generator().manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return lambda *shape: torch.randn(*shape, generator=generator).to(device)
