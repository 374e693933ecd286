"""A fit that is stopped goes on, and ends with the same bits."""

import itertools
import os
import re
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import make_blobs
from torch import nn

from concrete_kmeans import (
    DCN,
    DEC,
    DKM,
    IDEC,
    AutoencoderKMeans,
    ClusterCollapseWarning,
    DeepConcreteKMeans,
)
from concrete_kmeans.checkpoints import Checkpoints, CheckpointWarning, Signals
from concrete_kmeans.data import Batches
from concrete_kmeans.estimators import deep
from concrete_kmeans.objectives.dcn import AlternatingClustering
from concrete_kmeans.training import Interrupted

pytestmark = pytest.mark.usefixtures("untouched_random_state", "short_warm_up")

X = make_blobs(120, 5, centers=3, random_state=2)[0].astype(np.float32)
#: A checkpoint after every step.
ALWAYS = 1e-9
METHODS = {
    "scaled": (DeepConcreteKMeans, {"init": "mixture"}),
    "paper": (DeepConcreteKMeans, {"objective": "paper"}),
    "AE+KM": (AutoencoderKMeans, {}),
    "DEC": (DEC, {"augment": "noise"}),
    "IDEC": (IDEC, {}),
    "DCN": (DCN, {}),
    "DKM": (DKM, {}),
    "consensus": (DeepConcreteKMeans, {"init": "mixture", "n_init": 3, "choose": "consensus"}),
    "conv": (DeepConcreteKMeans, {"init": "mixture", "encoder": "conv"}),
    "own module": (IDEC, {"stacking": "loop"}),
}
every_method = pytest.mark.parametrize("method", METHODS)


class Killed(BaseException):
    """As sudden as SIGKILL, for a test in one process."""


class Dropout(nn.Sequential):
    """A module of the user's that draws and normalises."""

    def __init__(self):
        super().__init__(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 2))


def quick(method="DCN", **parameters):
    cls, own = METHODS[method]
    if method == "own module":
        own = {**own, "encoder": Dropout, "decoder": (8,)}
    small = {"encoder": (8, 2), "pretrain_epochs": 3, "epochs": 3, "batch_size": 32, "n_init": 2}
    return cls(3, **(small | {"random_state": 0, "device": "cpu"} | own | parameters))


def rows(method):
    return X if method != "conv" else np.tile(X, (1, 13))[:, :64].reshape(-1, 8, 8)


def assert_same(fit, other, tmp_path):
    """Every tensor and every loss is the same, to the last bit."""
    for name, one in (("a", fit), ("b", other)):
        one.set_params(checkpoint=None).save(tmp_path / name, overwrite=True)
    for file in ("model.safetensors", "history.json", "labels.csv"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    assert [r[:6] for r in fit.restarts_] == [r[:6] for r in other.restarts_]
    assert fit.best_restart_ == other.best_restart_
    assert fit.model_.gains == other.model_.gains


@pytest.fixture
def deadly(monkeypatch):
    """Kills a fit when it has written so many checkpoints, 0 for never; says at which steps."""
    write = Checkpoints.write

    def set_kills(every):
        written, kills = itertools.count(1), []

        def write_and_die(self, loop):
            write(self, loop)
            if every and next(written) % every == 0:
                kills.append(None if loop is None else loop["run"]["n_steps"])
                raise Killed

        monkeypatch.setattr(Checkpoints, "write", write_and_die)
        return kills

    return set_kills


def fit_through(make, data, folder):
    """Fit again after every kill, until it ends."""
    while True:
        fit = make(checkpoint=folder, checkpoint_every=ALWAYS)
        try:
            return fit.fit(data)
        except Killed:
            continue


@pytest.fixture
def half(tmp_path, deadly):
    """The folder of a fit that was killed on the way; fits after it live."""
    deadly(14)
    with pytest.raises(Killed):
        quick(checkpoint=tmp_path / "half", checkpoint_every=ALWAYS).fit(X)
    deadly(0)
    return tmp_path / "half"


def there(folder):
    return sorted(path.name for path in folder.iterdir())


class TestSameBits:
    @every_method
    def test_whenever_it_is_killed(self, method, tmp_path, deadly):
        folder = tmp_path / "checkpoints"
        # every step; or, where there are many, now and then
        kills = deadly(1 if method in ("DEC", "DCN") else 4)
        fit = fit_through(lambda **own: quick(method, **own), rows(method), folder)
        assert len(kills) > 2
        assert not folder.exists()
        assert_same(fit, quick(method).fit(rows(method)), tmp_path)

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
    @every_method
    def test_on_cuda_where_steps_are_recorded(self, method, tmp_path, deadly):
        deadly(9)  # more than the steps before a recording
        data = torch.from_numpy(rows(method)).cuda()
        make = {"device": "cuda", "pretrain_epochs": 8, "epochs": 8}
        fit = fit_through(lambda **own: quick(method, **make, **own), data, tmp_path / "c")
        assert_same(fit, quick(method, **make).fit(data), tmp_path)

    def test_between_parts_too(self, tmp_path, deadly):
        kills = deadly(1)
        fit = fit_through(lambda **own: quick("consensus", epochs=1, **own), X, tmp_path / "c")
        assert kills.count(None) == 5  # pretrain, start, warm-up, joint, choice
        assert_same(fit, quick("consensus", epochs=1).fit(X), tmp_path)

    def test_restarts_that_failed_or_stopped_stay_so(self, tmp_path, deadly, monkeypatch):
        own = AlternatingClustering.loss

        def loss(self, *given):
            parts = own(self, *given)
            if self.counts[1].sum() > 2000:  # of the state: a resumed fit has no other memory
                parts["loss"] = parts["loss"] + torch.tensor([0, torch.inf, 0, 0])
            return parts

        monkeypatch.setattr(AlternatingClustering, "loss", loss)
        make = {"epochs": 40, "n_init": 4, "tol": 0.01}
        with pytest.warns(ClusterCollapseWarning, match="1 .* failed in joint at step"):
            straight = quick(**make).fit(X)
        assert len({restart.n_iter for restart in straight.restarts_}) > 2
        deadly(13)
        with pytest.warns(ClusterCollapseWarning, match="1 .* failed in joint at step"):
            fit = fit_through(lambda **more: quick(**make, **more), X, tmp_path / "c")
        assert_same(fit, straight, tmp_path)

    def test_checkpoints_alone_change_nothing(self, tmp_path):
        seen, again = [], []
        fit = quick(checkpoint=tmp_path / "c", checkpoint_every=ALWAYS, callbacks=[seen.append])
        straight = quick(callbacks=[again.append]).fit(X)
        assert_same(fit.fit(X), straight, tmp_path)
        assert seen == again
        assert not (tmp_path / "c").exists()

    def test_no_checkpoint_before_it_is_time(self, tmp_path, monkeypatch):
        monkeypatch.setattr(Checkpoints, "write", None)
        quick(checkpoint=tmp_path / "c").fit(X)

    def test_a_fresh_seed_is_drawn_once(self, tmp_path, deadly):
        deadly(7)
        fit = fit_through(lambda **own: quick(random_state=None, **own), X, tmp_path / "c")
        assert_same(fit, quick(random_state=fit.restarts_[0].seed).fit(X), tmp_path)

    def test_pretrained_networks(self, tmp_path, deadly):
        given = quick("AE+KM").fit(X)
        deadly(5)
        fit = fit_through(lambda **own: quick("DKM", pretrained=given, **own), X, tmp_path / "c")
        assert_same(
            fit.set_params(pretrained=None),
            quick("DKM", pretrained=given).fit(X).set_params(pretrained=None),
            tmp_path,
        )

    def test_sigkill(self):
        """Real processes, killed at random moments; the script says what must be the same."""
        script = Path(__file__).parents[1] / "benchmarks" / "kills.py"
        command = [sys.executable, script, "--kills", "5", "--seed", "1"]
        answer = subprocess.run(
            command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
        )
        assert answer.returncode == 0, answer
        assert len(re.findall("^kill ", answer.stdout, re.MULTILINE)) == 5
        assert answer.stdout.endswith("ended after 5 kills: every byte the same\n")


class TestSignals:
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    @pytest.mark.parametrize("at", range(4), ids=["pretrain", "warm-up", "joint", "consensus"])
    def test_a_checkpoint_and_a_usable_estimator(self, number, at, tmp_path):
        phases = []

        def press(event):
            if not phases or phases[-1] != event.phase:
                phases.append(event.phase)
                if len(phases) == at + 1:
                    signal.raise_signal(number)

        before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
        stopped = quick("consensus", checkpoint=tmp_path / "c", callbacks=[press])
        with pytest.raises(Interrupted) as caught:
            stopped.fit(X)
        assert caught.value.signal == number
        assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before
        assert phases[-1] == ["pretrain", "warm-up", "joint", "warm-up"][at]
        np.testing.assert_array_equal(stopped.predict(X), stopped.labels_)
        assert len(there(tmp_path / "c")) == 1
        fit = quick("consensus", checkpoint=tmp_path / "c").fit(X)
        assert_same(fit, quick("consensus").fit(X), tmp_path)

    @pytest.mark.parametrize("at", ["last", "rest"])
    def test_when_a_phase_ends(self, at, tmp_path):
        """At its last check, and where a check ends it early."""

        def press(event):
            if event.phase == "joint" and (at == "rest" or event.step == event.n_steps):
                signal.raise_signal(signal.SIGINT)
            return event.phase == "joint" and at == "rest"

        make = {"callbacks": [lambda event: event.phase == "joint" and at == "rest"]}
        with pytest.raises(Interrupted):
            quick(checkpoint=tmp_path / "c", callbacks=[press]).fit(X)
        fit = quick(checkpoint=tmp_path / "c", **make).fit(X)
        assert_same(
            fit.set_params(callbacks=None),
            quick(**make).fit(X).set_params(callbacks=None),
            tmp_path,
        )

    def test_after_the_loop_nothing_is_gone_back_to(self, tmp_path, monkeypatch):
        """The loop's checkpoint is newer than what was finished before it."""
        folder = tmp_path / "c"
        with monkeypatch.context() as while_it_lasts:
            stop = lambda *_: signal.raise_signal(signal.SIGINT)  # noqa: E731
            while_it_lasts.setattr(deep, "code_gain", stop)
            with pytest.raises(KeyboardInterrupt):
                quick(checkpoint=folder, checkpoint_every=ALWAYS).fit(X)
        seen = []
        fit = quick(checkpoint=folder, callbacks=[seen.append]).fit(X)
        assert {event.phase for event in seen} == {"joint"}
        assert_same(fit.set_params(callbacks=None), quick().fit(X), tmp_path)

    def test_the_second_does_not_wait(self):
        signals = Signals()
        with signals.wait():
            signal.raise_signal(signal.SIGINT)
            assert signals.asked(step=3) == signal.SIGINT
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            signals.noted = None

    def test_one_that_comes_too_late_is_not_lost(self):
        signals = Signals()
        with pytest.raises(KeyboardInterrupt), signals.wait():
            signal.raise_signal(signal.SIGINT)
        assert signals.noted is None

    def test_in_another_thread(self, tmp_path, deadly):
        deadly(9)
        fits = []
        work = threading.Thread(target=lambda: fits.append(fit_through(quick, X, tmp_path / "c")))
        work.start()
        work.join()
        assert_same(fits[0], quick().fit(X), tmp_path)


class TestFiles:
    def test_the_last_two_are_kept(self, half):
        assert [name[:17] for name in there(half)] == ["checkpoint-000013", "checkpoint-000014"]

    @pytest.mark.parametrize("damage", ["cut", "changed", "empty", "renamed"])
    def test_a_damaged_one_falls_back_on_the_one_before(self, half, damage, tmp_path):
        _, newest = sorted(half.iterdir())
        data = newest.read_bytes()
        middle = len(data) // 2
        flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        if damage == "renamed":
            newest.rename(half / "checkpoint-000014-0123456789abcdef.safetensors")
        else:
            newest.write_bytes({"cut": data[:-9], "changed": flipped, "empty": b""}[damage])
        with pytest.warns(CheckpointWarning, match=r"checkpoint-000014-.* \(its checksum"):
            fit = quick(checkpoint=half).fit(X)
        assert_same(fit, quick().fit(X), tmp_path)

    def test_none_is_whole(self, half):
        for path in half.iterdir():
            path.write_bytes(b"?")
        with (
            pytest.warns(CheckpointWarning, match="checksum"),
            pytest.raises(ValueError, match=r"none of the 2 .* can be used; remove them"),
        ):
            quick(checkpoint=half).fit(X)
        assert len(there(half)) == 2

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"epochs": 4}, "epochs was 3, is 4"),
            ({"random_state": 1}, "random_state was 0, is 1"),
            ({"init": np.zeros((3, 2))}, "init was"),
            ({"precision": "float64"}, "precision was"),
            ({"encoder": (8, 3)}, "encoder was"),
        ],
    )
    def test_of_other_parameters(self, half, change, message):
        before = there(half)
        with pytest.raises(ValueError, match=rf"is of another fit: {message}.*; give another"):
            quick(checkpoint=half, **change).fit(X)
        assert there(half) == before

    def test_of_other_rows_or_another_method(self, half):
        with pytest.raises(ValueError, match="is of another fit: X was"):
            quick(checkpoint=half).fit(X + np.eye(*X.shape, dtype=np.float32))
        with pytest.raises(ValueError, match="is of another fit: method was DCN, is DKM"):
            quick("DKM", checkpoint=half).fit(X)

    def test_of_another_module_of_that_name(self, tmp_path, deadly):
        def other():
            return nn.Linear(5, 2)

        other.__qualname__ = "Dropout"
        deadly(2)
        make = {"checkpoint": tmp_path, "checkpoint_every": ALWAYS}
        with pytest.raises(Killed):
            quick("own module", **make).fit(X)
        with pytest.raises(ValueError, match="another fit: the networks have other shapes"):
            quick("own module", **make, encoder=other).fit(X)

    def test_what_has_no_part_may_change(self, half, tmp_path):
        fit = quick(checkpoint=half, callbacks=[print], checkpoint_every=3, verbose=1).fit(X)
        fit.set_params(callbacks=None, checkpoint_every=5.0, verbose=0)
        assert_same(fit, quick().fit(X), tmp_path)

    def test_a_full_disk(self, half, tmp_path):
        """The checkpoint before stays as it was; the fit goes on, with a warning."""
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        before = {path: path.read_bytes() for path in half.iterdir()}
        resource.setrlimit(resource.RLIMIT_FSIZE, (4000, hard))
        try:
            with (
                pytest.warns(CheckpointWarning, match="not written, .*File too large"),
                pytest.raises(Killed),
            ):
                quick(checkpoint=half, checkpoint_every=ALWAYS, callbacks=[self.die]).fit(X)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert {path: path.read_bytes() for path in half.iterdir()} == before
        assert_same(quick(checkpoint=half).fit(X), quick().fit(X), tmp_path)

    def die(self, event):
        if event.phase == "joint":
            raise Killed

    def test_half_written_ones_are_removed(self, half):
        (half / ".checkpoint-000015-0.safetensors.x.tmp").write_bytes(b"half")
        quick(checkpoint=half).fit(X)
        assert not half.exists()

    def test_other_files_stay(self, tmp_path):
        (tmp_path / "mine.txt").write_text("mine")
        quick(checkpoint=tmp_path, checkpoint_every=ALWAYS).fit(X)
        assert there(tmp_path) == ["mine.txt"]

    def test_places_that_cannot_be_written(self, tmp_path, monkeypatch):
        monkeypatch.setattr(DCN, "_open", None)  # nothing is read before
        (tmp_path / "file").write_text("mine")
        with pytest.raises(NotADirectoryError, match=r"checkpoint must be a folder, .* is a file"):
            quick(checkpoint=tmp_path / "file").fit(X)
        with pytest.raises(NotADirectoryError, match="file is not a folder"):
            quick(checkpoint=str(tmp_path / "file" / "c")).fit(X)

    def test_a_failed_fit_has_ended(self, tmp_path):
        fit = quick(checkpoint=tmp_path / "c", checkpoint_every=ALWAYS, learning_rate=1e30)
        with pytest.raises(FloatingPointError, match="not finite"):
            fit.fit(X)
        assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("size", [7, 50, 20], ids=["passes", "all rows", "with replacement"])
@pytest.mark.parametrize("taken", [0, 3, 7, 9])
def test_batches_go_on_from_their_place(size, taken, monkeypatch):
    """Generators are drawn from between batches, too, as a loss does."""
    if size == 20:
        monkeypatch.setattr(Batches, "max_shuffled", 30)

    def take(batches, generator, n):
        return [
            (batch.index.tolist(), torch.rand(2, generator=generator).tolist())
            for batch, _ in zip(batches, range(n), strict=False)
        ]

    data, first = torch.arange(50.0).view(50, 1), torch.Generator().manual_seed(3)
    batches = Batches(data, None, size, [first])
    stream = iter(batches)
    take(itertools.islice(stream, taken), first, taken)
    other = torch.Generator()
    other.set_state(first.get_state())
    again = Batches(data, None, size, [other])
    again.place = batches.place
    assert take(iter(again), other, 12) == take(stream, first, 12)
