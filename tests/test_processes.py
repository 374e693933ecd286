"""Many processes end where one does; started by torchrun, with gloo."""

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from concrete_kmeans import processes
from concrete_kmeans.cli import app

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed"),
]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]


#: What four processes fit; two fit everything.
SEVEN = ("CKM", "AE+KM", "DEC", "IDEC", "DCN", "DKM", "shallow", "Lloyd")


def load_worker():
    spec = importlib.util.spec_from_file_location("processes_worker", WORKER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


WORKER = Path(__file__).with_name("processes_worker.py")
worker = load_worker()
NAMES = {2: tuple(worker.METHODS), 4: SEVEN}


def torchrun(count, *arguments, **options):
    command = [*TORCHRUN, f"--nproc-per-node={count}", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, text=True, stderr=subprocess.PIPE, **options)


def ended(process):
    """Wait; what it wrote to stderr is shown if it failed."""
    try:
        _, errors = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 0, errors


@pytest.fixture(scope="module")
def alone():
    """What one process gives, by method."""
    found = {}

    def get(name):
        if name not in found:
            found[name] = worker.fit(name)
        return found[name]

    return get


@pytest.fixture(scope="module", params=[2, 4])
def shared(request, tmp_path_factory):
    """What each of some processes gives, and how many they are."""
    out, count = tmp_path_factory.mktemp("processes"), request.param
    ended(torchrun(count, WORKER, out, *NAMES[count]))
    return count, [dict(np.load(out / f"{rank}.npz")) for rank in range(count)]


@pytest.mark.usefixtures("short_warm_up")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_result_of_one_process(shared, alone):
    count, found = shared
    for name in NAMES[count]:
        for part, expected in alone(name).items():
            got = found[0][f"{name}/{part}"]
            assert got.shape == expected.shape
            np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-8, err_msg=name)
        assert name in ("AE+KM", "Lloyd") or (alone(name)["steps"] >= 50).all()


def test_all_processes_have_it(shared):
    _, (first, *others) = shared
    for other in others:
        for name, value in first.items():
            assert np.array_equal(other[name], value), name


def test_bad_arguments_fail_alike(shared):
    count, found = shared
    for one in found:
        assert f"1 row(s) cannot be shared by {count} processes" in str(one["refused"])


def test_one_process_needs_no_group():
    with processes.started(), processes.together():
        assert not processes.many()
        assert processes.first()
        assert processes.own(5) == slice(0, 5)
        assert processes.bytes_by_first(lambda: b"as it is") == b"as it is"
        processes.wait()


class TestTorchrun:
    """The command, with one of its two processes killed on the way."""

    arguments = (
        *("-k", 4, "--method", "dcn", "--encoder", "12,3", "--pretrain-epochs", 8),
        *("--epochs", 150, "--batch-size", 40, "--precision", "float64", "--device", "cpu"),
        *("--checkpoint-minutes", 0.0005),
    )

    def wait_for(self, number, folder, process):
        """Until so many checkpoints were written."""
        while process.poll() is None:
            there = [int(path.name.split("-")[1]) for path in folder.glob("checkpoint-*")]
            if there and max(there) >= number:
                return
            time.sleep(0.01)
        pytest.fail(f"it ended before it could be killed: {process.stderr.read()}")

    @pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
    def test_a_killed_worker(self, tmp_path):
        source, one, two = tmp_path / "X.npy", tmp_path / "one", tmp_path / "two"
        np.save(source, worker.X)
        line = ("fit", source, *self.arguments)
        process = torchrun(
            *(2, "--max-restarts=1", "-m", "concrete_kmeans", *line, "-o", two),
            stdout=subprocess.PIPE,
        )
        self.wait_for(5, tmp_path / ".two.checkpoints" / "fit", process)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(children[1]), signal.SIGKILL)
        ended(process)
        assert not (tmp_path / ".two.checkpoints").exists()
        result = CliRunner().invoke(app, [*map(str, line), "-o", str(one)])
        assert result.exit_code == 0, result.stderr
        expected, found = (load_file(run / "model.safetensors") for run in (one, two))
        assert expected.keys() == found.keys()
        for name, tensor in expected.items():
            torch.testing.assert_close(found[name], tensor, rtol=0.0, atol=1e-8)
        assert (two / "labels.csv").read_bytes() == (one / "labels.csv").read_bytes()
