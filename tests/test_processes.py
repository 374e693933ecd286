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
from concrete_kmeans.estimators.deep import joined_histories

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed"),
]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]


SEVEN = ("CKM", "AE+KM", "DEC", "IDEC", "DCN", "DKM", "shallow", "Lloyd")


def load_worker():
    spec = importlib.util.spec_from_file_location("processes_worker", WORKER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


WORKER = Path(__file__).with_name("processes_worker.py")
worker = load_worker()
#: Two processes share rows only; four, restarts first where there are any, by default.
NAMES = {2: tuple(worker.METHODS), 4: SEVEN}
TEAMS = {2: 1, 4: 0}


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
    ended(torchrun(count, WORKER, out, TEAMS[count], *NAMES[count]))
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
        unlike = ("AE+KM", "Lloyd", "Lloyd, of a stream", "CKM, consensus")
        assert name in unlike or (alone(name)["steps"] >= 50).all()


@pytest.mark.usefixtures("short_warm_up")
def test_the_history_of_one_process(shared):
    _, found = shared
    history = worker.DCN(4, n_init=2, **worker.SMALL).fit(worker.X).history_
    np.testing.assert_allclose(found[0]["history"], history[-1].losses["loss"], rtol=1e-9)


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


@pytest.mark.parametrize("count", [0, -1, 1.5])
def test_teams_are_counted(count):
    allowed = pytest.raises(ValueError, match=r"teams must be a whole number of at least 1 or None")
    with allowed, processes.teams(count):
        pass


def event(phase, step, losses, *, running=True):
    runs = [running] * len(losses)
    return {"phase": phase, "step": step, "n_steps": 9, "losses": {"loss": losses}, "running": runs}


def test_a_team_that_was_over_before():
    joined = joined_histories(
        [
            [event("pretrain", 5, [1.0, 2.0]), event("joint", 3, [3.0, 4.0])],
            [event("pretrain", 5, [5.0]), event("joint", 3, [6.0]), event("joint", 6, [7.0])],
        ],
        [2, 1],
    )
    assert [(one["phase"], one["step"]) for one in joined] == [
        ("pretrain", 5),
        ("joint", 3),
        ("joint", 6),
    ]
    assert joined[2]["losses"] == {"loss": [3.0, 4.0, 7.0]}
    assert joined[2]["running"] == [False, False, True]


def test_a_team_without_a_phase():
    alone = [event("pretrain", 5, [1.0]), event("warm-up", 2, [9.0]), event("joint", 3, [3.0])]
    joined = joined_histories([alone, [alone[0], alone[2]]], [1, 1])
    assert [one["phase"] for one in joined] == ["pretrain", "warm-up", "joint"]
    assert joined[1]["losses"] == {"loss": [9.0, 0.0]}
    assert joined[1]["running"] == [True, False]


class TestTorchrun:
    """The command, with one of its two processes killed on the way."""

    arguments = (
        *("-k", 4, "--method", "dcn", "--encoder", "12,3", "--pretrain-epochs", 8),
        *("--epochs", 60, "--batch-size", 40, "--precision", "float64", "--device", "cpu"),
        *("--checkpoint-minutes", 0.001, "--quiet"),
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
        self.wait_for(3, tmp_path / ".two.checkpoints" / "fit", process)
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


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_no_thread_outlives_the_group(tmp_path):
    """One that does may be in the middle of something when the interpreter is taken down."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "from pathlib import Path\n"
        "import numpy as np\n"
        "from concrete_kmeans import AutoencoderKMeans, processes\n"
        "\n"
        "def threads():\n"
        "    return [path.read_text() for path in Path('/proc/self/task').glob('*/comm')]\n"
        "\n"
        "X = np.random.default_rng(0).normal(size=(60, 4))\n"
        "with processes.started('cpu'):\n"
        "    AutoencoderKMeans(2, encoder=(8, 2), pretrain_epochs=1, device='cpu').fit(X)\n"
        "    assert any('gloo' in name for name in threads()), threads()\n"
        "sys.exit(str(threads()) if any('gloo' in name for name in threads()) else None)\n"
    )
    ended(torchrun(2, script))
