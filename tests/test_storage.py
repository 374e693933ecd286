"""The model folder: round trips to the last bit, damage, places that cannot be written."""

import errno
import hashlib
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from sklearn.datasets import make_blobs
from sklearn.exceptions import NotFittedError
from torch import nn

import concrete_kmeans
from concrete_kmeans import (
    DCN,
    DEC,
    DKM,
    IDEC,
    AutoencoderKMeans,
    ConcreteKMeans,
    DeepConcreteKMeans,
    files,
    load,
    storage,
)
from concrete_kmeans.estimators import methods
from concrete_kmeans.estimators.saving import save

pytestmark = pytest.mark.usefixtures("untouched_random_state", "short_warm_up")

X = make_blobs(90, 6, centers=3, random_state=2)[0]
NEW = make_blobs(17, 6, centers=3, random_state=3)[0]
IMAGES = np.random.default_rng(0).integers(0, 256, size=(40, 8, 8), dtype=np.uint8)
DEEP = (DeepConcreteKMeans, AutoencoderKMeans, DEC, IDEC, DCN, DKM)
FILES = {"model.safetensors", "config.json", "history.json", "labels.csv"}


def deep(cls=AutoencoderKMeans, rows=X, **parameters):
    small = {"encoder": (8, 2), "pretrain_epochs": 1, "epochs": 1, "batch_size": 32}
    own = {"init": "k-means++", "random_state": 0, "device": "cpu"}
    return cls(3, **(small | own | parameters)).fit(rows)


@pytest.fixture(scope="module")
def fitted():
    return deep(n_init=2)


@pytest.fixture
def folder(fitted, tmp_path):
    fitted.save(tmp_path / "model")
    return tmp_path / "model"


class Net(nn.Module):
    """A user's encoder: with a buffer, dropout and weights tied to one another."""

    def __init__(self, width=8):
        super().__init__()
        self.first, self.norm = nn.Linear(6, width), nn.BatchNorm1d(width)
        self.drop, self.last = nn.Dropout(0.2), nn.Linear(width, 2)

    def forward(self, rows):
        return self.last(self.drop(self.norm(self.first(rows))))


def same(a, b):
    """Equal to the last bit, of one type."""
    assert type(a) is type(b)
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
    elif isinstance(a, np.ndarray):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for one, other in zip(a, b, strict=True):
            same(one, other)
    elif isinstance(a, float):
        np.testing.assert_equal(a, b)  # NaN is NaN
    else:
        assert a == b


def assert_same_estimator(a, b, rows):
    assert type(a) is type(b)
    assert set(vars(a)) == set(vars(b))  # a new fitted attribute has to be saved, too
    for name in (n for n in vars(a) if n.endswith("_") and n != "model_"):
        same(getattr(a, name), getattr(b, name))
    for method in ("predict", "transform", "score"):
        same(getattr(a, method)(rows), getattr(b, method)(rows))
    if hasattr(a, "model_"):
        same(a.predict_proba(rows), b.predict_proba(rows))
        same(a.reconstruct(rows), b.reconstruct(rows))
        same(a.decode_centers(), b.decode_centers())
        same(a.get_feature_names_out(), b.get_feature_names_out())


class TestRoundTrip:
    @pytest.mark.parametrize("cls", DEEP)
    def test_every_deep_estimator(self, cls, tmp_path):
        fit = deep(cls, n_init=2)
        fit.save(tmp_path / "m")
        again = load(tmp_path / "m")
        assert_same_estimator(fit, again, NEW)
        assert again.get_params() == fit.get_params()
        assert {path.name for path in (tmp_path / "m").iterdir()} == FILES
        other = DKM(3, epochs=1, batch_size=32, n_init=2, random_state=1, device="cpu")
        on, back = (other.set_params(pretrained=e).fit(X).transform(NEW) for e in (fit, again))
        same(on, back)

    @pytest.mark.parametrize(
        ("parameters", "rows"),
        [
            ({"encoder": "residual"}, X),
            ({"encoder": "mlp", "decoder": (7,)}, X),
            ({"encoder": "conv", "stacking": "loop"}, IMAGES),
            ({"precision": "float64", "scale": "standard"}, X),
            ({"scale": "none", "init": np.arange(90) % 3}, X / 10),
            ({"init": torch.arange(90) % 3}, X),
            ({"normalize": True}, X),
            ({"temperature": (1.0, 0.5), "cls": DeepConcreteKMeans}, X),
        ],
    )
    def test_networks_and_parameters(self, parameters, rows, tmp_path):
        fit = deep(**{"rows": rows, "n_init": 2} | parameters)
        fit.save(tmp_path / "m")
        again = load(tmp_path / "m")
        assert_same_estimator(fit, again, rows)
        for name, value in fit.get_params(deep=False).items():
            same(value, getattr(again, name))

    def test_tensors_and_names(self, tmp_path):
        fit = deep(rows=torch.from_numpy(X))
        fit.save(tmp_path / "torch")
        assert_same_estimator(fit, load(tmp_path / "torch"), torch.from_numpy(NEW))
        frame = pd.DataFrame(X, columns=[*"abcde", "ü <"])
        for fit in (deep(rows=frame), ConcreteKMeans(3, random_state=0).fit(frame)):
            fit.save(tmp_path / "named", overwrite=True)
            again = load(tmp_path / "named")
            assert_same_estimator(fit, again, frame)
            with pytest.raises(ValueError, match="feature names"):
                again.predict(frame.rename(columns={"a": "z"}))

    @pytest.mark.parametrize("rows", [X, X.astype(np.float32), torch.from_numpy(X)])
    def test_shallow(self, rows, tmp_path):
        fit = ConcreteKMeans(3, n_init=3, max_iter=50, random_state=0).fit(rows)
        fit.save(tmp_path / "m")
        assert_same_estimator(fit, load(tmp_path / "m"), rows)

    def test_shallow_learns_on_where_it_stopped(self, tmp_path):
        fit = ConcreteKMeans(3, batch_size=16, random_state=0).partial_fit(X[:40])
        fit.save(tmp_path / "m")
        again = load(tmp_path / "m")
        assert not hasattr(again, "restarts_")
        same(fit.partial_fit(X[40:]).cluster_centers_, again.partial_fit(X[40:]).cluster_centers_)

    def test_the_loaded_one_saves_the_same_files(self, folder, tmp_path):
        load(folder).save(tmp_path / "again")
        for name in FILES:
            assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()

    def test_figures_that_are_not_finite(self, folder, tmp_path):
        fit = deep()  # one restart: its agreement is NaN
        fit.history_[0].losses["loss"][0] = float("inf")
        fit.save(tmp_path / "m")
        again = load(tmp_path / "m")
        assert np.isnan(again.restarts_[0].agreement)
        assert again.history_[0].losses["loss"] == [float("inf")]

    def test_labels_for_people(self, fitted, folder, tmp_path):
        table = pd.read_csv(folder / "labels.csv")
        assert list(table) == ["row", "cluster"]
        np.testing.assert_array_equal(table["cluster"], fitted.labels_)
        names = [f'photo, "{i}"\n.png' for i in range(90)]
        save(fitted, tmp_path / "n", ids=names, notes={"preparation": {"kind": "image"}})
        table = pd.read_csv(tmp_path / "n" / "labels.csv")
        assert list(table["id"]) == names
        assert storage.read(tmp_path / "n").config["preparation"] == {"kind": "image"}
        assert_same_estimator(fitted, load(tmp_path / "n"), NEW)


class TestUserModules:
    @pytest.fixture(autouse=True)
    def _modules_draw(self, untouched_random_state):
        """A module made by a test draws its weights from the global generator."""
        with torch.random.fork_rng():
            yield

    def test_the_module_is_needed_again(self, tmp_path):
        fit = deep(encoder=Net, decoder=lambda: nn.Linear(2, 6), stacking="loop", n_init=2)
        fit.save(tmp_path / "m")
        with pytest.raises(ValueError, match=r"config.json: fitted with your encoder Net: load\("):
            load(tmp_path / "m")
        with pytest.raises(ValueError, match="fitted with your decoder Linear"):
            load(tmp_path / "m", encoder=Net())
        net = Net()
        again = load(tmp_path / "m", encoder=net, decoder=nn.Linear(2, 6))
        assert again.encoder is net
        assert_same_estimator(fit, again, NEW)

    def test_another_module(self, tmp_path, folder):
        deep(encoder=Net(), stacking="loop").save(tmp_path / "m")
        with pytest.raises(ValueError, match=r"model.safetensors: tensor encoder.stack.first/bias"):
            load(tmp_path / "m", encoder=Net(width=9))
        with pytest.raises(ValueError, match=r"must take rows of shape \(B, 6\)"):
            load(tmp_path / "m", encoder=nn.Linear(5, 2))
        with pytest.raises(ValueError, match="encoder must be None: fitted with"):
            load(folder, encoder=Net())
        with pytest.raises(TypeError, match=r"encoder must be an nn\.Module"):
            load(folder, encoder="conv")

    def test_what_is_not_saved_is_named(self, fitted, tmp_path, caplog):
        fit = deep(
            encoder="auto",
            pretrained=fitted,
            callbacks=[lambda event: None],
            random_state=np.random.RandomState(0),
        )
        fit.save(tmp_path / "m")
        again = load(tmp_path / "m")
        assert (again.pretrained, again.callbacks, again.random_state) == (None, None, None)
        for name in ("pretrained", "callbacks", "random_state"):
            assert f"{name} was not saved" in caplog.text
        assert_same_estimator(fit, again, NEW)

    def test_only_fitted_estimators_of_the_package(self, fitted, tmp_path):
        class Mine(ConcreteKMeans):
            pass

        with pytest.raises(TypeError, match="estimators of concrete_kmeans can be saved, got Mine"):
            Mine(2).fit(X).save(tmp_path / "m")
        with pytest.raises(NotFittedError):
            DEC(2).save(tmp_path / "m")
        assert list(tmp_path.iterdir()) == []


class TestDamage:
    """Every message is one line and names the file."""

    @pytest.mark.parametrize("name", ["model.safetensors", "history.json"])
    @pytest.mark.parametrize("how", ["shorter", "empty", "foreign", "one bit"])
    def test_damaged(self, folder, name, how):
        data = bytearray((folder / name).read_bytes())
        changed = {"shorter": data[:-9], "empty": b"", "foreign": b"\x80\x04K\x01."}
        if how == "one bit":
            data[len(data) // 2] ^= 1
        (folder / name).write_bytes(changed.get(how, data))
        with pytest.raises(ValueError, match=rf"{name} is damaged"):
            load(folder)

    def test_tensors_that_are_no_safetensors(self, folder):
        (folder / "model.safetensors").write_bytes(b"\x80\x04K\x01.")
        self.change(folder, sha256=self.sums(folder))
        with pytest.raises(ValueError, match=r"model.safetensors is damaged"):
            load(folder)

    @pytest.mark.parametrize("name", ["model.safetensors", "config.json", "history.json"])
    def test_missing(self, folder, name):
        (folder / name).unlink()
        with pytest.raises(FileNotFoundError, match=rf"{name} is missing"):
            load(folder)

    def test_labels_are_not_needed(self, folder):
        (folder / "labels.csv").unlink()
        load(folder)

    def test_no_folder(self, tmp_path):
        with pytest.raises(FileNotFoundError, match="nowhere does not exist"):
            load(tmp_path / "nowhere")
        (tmp_path / "file").write_text("")
        with pytest.raises(FileNotFoundError, match="file is a file, not a model folder"):
            load(tmp_path / "file")

    @staticmethod
    def change(folder, **values):
        config = json.loads((folder / "config.json").read_text("utf-8"))
        changed = {k: v for k, v in (config | values).items() if v != "gone"}
        (folder / "config.json").write_text(json.dumps(changed), "utf-8")

    @staticmethod
    def sums(folder):
        import hashlib

        names = ("model.safetensors", "history.json")
        return {n: hashlib.sha256((folder / n).read_bytes()).hexdigest() for n in names}

    @pytest.mark.parametrize(
        ("values", "message"),
        [
            ({"format": "something else"}, "is not of a model folder"),
            ({"format_version": 2}, "has format 2, .* reads formats up to 1: install a later one"),
            ({"format_version": "1"}, "format_version is '1'"),
            ({"sha256": "gone"}, "has no checksums"),
            ({"class": "Unheard"}, "unknown class 'Unheard'"),
            ({"class": "gone"}, "KeyError: 'class'"),
            ({"parameters": {"colour": 1}}, "AutoencoderKMeans has no parameter 'colour'"),
            ({"best_restart": 7}, "best_restart and gains must be those of 2 restarts"),
            ({"n_features": 7}, "n_features=7, but the network takes 6"),
            ({"feature_shape": "gone"}, "KeyError: 'feature_shape'"),
            ({"network": {"encoder": [8, 2]}}, "KeyError"),
            ({"restarts": []}, "centers must have the shape"),
            ({"gains": None}, "is damaged"),
            ({"parameters": 3}, "is damaged"),
            ({"inertia": [1]}, "inertia must be a number, got"),
            ({"n_iter": "5"}, "n_iter must be a number, got '5'"),
            ({"feature_names": ["a"]}, "feature_names must be 6 texts"),
            ({"restarts": [{"seed": "x"}] * 2}, "TypeError: seed must be int, got 'x'"),
        ],
    )
    def test_config(self, folder, values, message):
        self.change(folder, **values)
        with pytest.raises(ValueError, match=message) as caught:
            load(folder)
        assert str(folder) in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_config_that_is_not_json(self, folder):
        text = (folder / "config.json").read_text("utf-8")
        (folder / "config.json").write_text(text[: len(text) // 2], "utf-8")
        with pytest.raises(ValueError, match=r"config.json is damaged: not JSON"):
            load(folder)
        (folder / "config.json").write_bytes(b"\xff\xfe\x00")
        with pytest.raises(ValueError, match=r"config.json is damaged: not JSON"):
            load(folder)

    @pytest.mark.parametrize("key", ["encoder", "feature_shape", "code_size"])
    def test_a_network_that_asks_for_all_memory_is_not_built(self, folder, key):
        network = json.loads((folder / "config.json").read_text("utf-8"))["network"]
        huge = 10**9 if key == "code_size" else [10**9, 2][: len(network[key])]
        self.change(folder, network={**network, key: huge})
        with pytest.raises(ValueError, match=r"a network of .* units is not that of model.safet"):
            load(folder)

    @pytest.mark.parametrize(
        ("name", "change", "message"),
        [
            ("labels", lambda t: t - 1, "labels must be a row of whole numbers from 0 to"),
            ("labels", lambda t: t.float(), "labels must be a row of whole numbers from 0 to"),
            ("labels", lambda t: t + 100, "labels must be a row of whole numbers from 0 to"),
            ("centers", lambda t: t * float("nan"), "centers hold NaN or infinity"),
            ("scaling.shift", lambda t: t * float("inf"), "scaling holds NaN or infinity"),
            ("network.decoder.0.bias", lambda t: t * float("nan"), "decoder.0.bias holds NaN"),
        ],
    )
    def test_tensors_that_are_no_result(self, folder, name, change, message):
        path = folder / "model.safetensors"
        tensors = load_file(path)
        save_file({**tensors, name: change(tensors[name] + 0)}, path)
        self.change(folder, sha256=self.sums(folder))
        with pytest.raises(ValueError, match=message) as caught:
            load(folder)
        assert str(path) in str(caught.value)

    @pytest.mark.parametrize(
        ("history", "message"),
        [
            ("{}", "history.json is damaged: it is no list"),
            ("[" * 10**5 + "]" * 10**5, "history.json is damaged: not JSON: maximum recursion"),
            ('[{"phase": 1}]', "phase must be str, got 1"),
            ('[{"losses": {"a": 1}}]', r"losses must be dict\[str, list\[float\]\], got"),
        ],
    )
    def test_history_that_is_something_else(self, folder, history, message):
        (folder / "history.json").write_text(history)
        self.change(folder, sha256=self.sums(folder))
        with pytest.raises(ValueError, match=message):
            load(folder)

    def test_tensors_of_another_model(self, folder, tmp_path):
        deep(encoder=(9, 2), n_init=2).save(tmp_path / "other")
        shutil.copy(tmp_path / "other" / "model.safetensors", folder)
        self.change(folder, sha256=self.sums(folder))
        with pytest.raises(ValueError, match=r"tensor decoder.0.bias is float32\[2, 1, 16\], but"):
            load(folder)

    def test_weights_from_before_hidden_layers_were_multiples_of_8_units(self, tmp_path):
        saved = deep(encoder=(5, 2))
        saved.save(tmp_path / "m")
        path = tmp_path / "m" / "model.safetensors"
        tensors = load_file(path)
        for name, tensor in tensors.items():
            cut = [slice(5) if n == 8 else slice(None) for n in tensor.shape]
            tensors[name] = tensor[tuple(cut)].contiguous()
        assert tensors["network.encoder.0.weight"].shape == (1, 6, 5)
        save_file(tensors, path)
        self.change(tmp_path / "m", sha256=self.sums(tmp_path / "m"))
        np.testing.assert_array_equal(load(tmp_path / "m").transform(X), saved.transform(X))

    def test_shallow_with_other_centers(self, tmp_path):
        ConcreteKMeans(3).fit(X).save(tmp_path / "m")
        ConcreteKMeans(2).fit(X).save(tmp_path / "other")
        shutil.copy(tmp_path / "other" / "model.safetensors", tmp_path / "m")
        self.change(tmp_path / "m", sha256=self.sums(tmp_path / "m"))
        with pytest.raises(ValueError, match=r"centers must have the shape \(3, 6\)"):
            load(tmp_path / "m")

    def test_an_earlier_version_had_fewer_parameters(self, folder):
        config = storage.read_config(folder)
        self.change(folder, parameters={"n_clusters": config["parameters"]["n_clusters"]})
        assert load(folder).batch_size == 256

    @settings(max_examples=60, deadline=None)
    @given(place=st.integers(0, 10**9), byte=st.integers(0, 255))
    def test_any_byte_changed_in_the_tensors(self, place, byte, tmp_path_factory):
        """Damage never loads as something else."""
        folder = _shared_folder(tmp_path_factory)
        data = bytearray((folder / "model.safetensors").read_bytes())
        place %= len(data)
        if data[place] == byte:
            return
        data[place] = byte
        other = tmp_path_factory.mktemp("damaged") / "m"
        shutil.copytree(folder, other)
        (other / "model.safetensors").write_bytes(data)
        with pytest.raises(ValueError, match=r"model\.safetensors is damaged"):
            storage.read(other)


_FOLDERS = {}


def _shared_folder(factory):
    if "one" not in _FOLDERS:
        _FOLDERS["one"] = factory.mktemp("whole") / "m"
        ConcreteKMeans(2, max_iter=5, random_state=0).fit(X).save(_FOLDERS["one"])
    return _FOLDERS["one"]


class TestPlace:
    def test_folders_above_are_made(self, fitted, tmp_path):
        fitted.save(str(tmp_path / "a" / "b" / "m"))
        load(str(tmp_path / "a" / "b" / "m"))

    def test_replaced_only_when_asked(self, folder, tmp_path):
        other = ConcreteKMeans(2, random_state=0).fit(X)
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        with pytest.raises(FileExistsError, match="holds a model already"):
            other.save(folder)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
        (folder / "report.html").write_text("old")
        other.save(folder, overwrite=True)
        assert_same_estimator(other, load(folder), NEW)
        assert {path.name for path in folder.iterdir()} == FILES
        assert list(tmp_path.iterdir()) == [folder]

    @pytest.mark.parametrize("overwrite", [False, True])
    def test_never_replaces_anything_else(self, fitted, folder, tmp_path, overwrite):
        (tmp_path / "thesis").mkdir()
        (tmp_path / "thesis" / "config.json").write_text("{}")
        (tmp_path / "file").write_text("mine")
        with pytest.raises(FileExistsError, match="thesis is not a model folder and is not empty"):
            fitted.save(tmp_path / "thesis", overwrite=overwrite)
        with pytest.raises(FileExistsError, match="file is a file, not a folder"):
            fitted.save(tmp_path / "file", overwrite=overwrite)
        with pytest.raises(NotADirectoryError, match="file is not a folder"):
            fitted.save(tmp_path / "file" / "m", overwrite=overwrite)
        (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
        with pytest.raises(FileExistsError, match="a link that leads nowhere"):
            fitted.save(tmp_path / "nowhere", overwrite=overwrite)
        (folder / "notes.txt").write_text("mine")
        match = "holds 'notes.txt', which is no part" if overwrite else "holds a model already"
        with pytest.raises(FileExistsError, match=match):
            fitted.save(folder, overwrite=overwrite)
        assert (folder / "notes.txt").read_text() == "mine"

    def test_an_empty_folder_is_a_place(self, fitted, tmp_path):
        (tmp_path / "m").mkdir()
        fitted.save(tmp_path / "m")
        load(tmp_path / "m")
        assert [path.name for path in tmp_path.iterdir()] == ["m"]

    def test_a_link_to_a_folder_stays_a_link(self, fitted, folder, tmp_path):
        (tmp_path / "link").symlink_to(folder)
        fitted.save(tmp_path / "link", overwrite=True)
        assert (tmp_path / "link").is_symlink()
        load(folder)

    @pytest.mark.parametrize("file", ["model.safetensors", "labels.csv", "config.json"])
    @pytest.mark.parametrize("there", [False, True])
    def test_full_disk(self, fitted, tmp_path, monkeypatch, file, there):
        target = tmp_path / "m"
        if there:
            ConcreteKMeans(2, random_state=0).fit(X).save(target)
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        written, sync = [], os.fsync

        def full(handle):
            written.append(str(Path(f"/proc/self/fd/{handle}").readlink()))
            if written[-1].endswith(file):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            sync(handle)

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match=r"No space left on device: '.*/m'"):
            fitted.save(target, overwrite=True)
        assert written  # it had begun
        after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        assert after == before
        assert list(tmp_path.iterdir()) == [target] * there

    @pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.EIO, "broken")])
    def test_the_old_folder_comes_back(self, fitted, folder, tmp_path, monkeypatch, error):
        rename = Path.rename

        def failing(self, target):
            if self.name.endswith(".tmp"):
                raise error
            return rename(self, target)

        monkeypatch.setattr(Path, "rename", failing)
        with pytest.raises(type(error)):
            fitted.save(folder, overwrite=True)
        load(folder)
        assert list(tmp_path.iterdir()) == [folder]

    @pytest.mark.skipif(os.name == "nt", reason="permissions")
    def test_read_only_folder(self, fitted, tmp_path, monkeypatch):
        closed = tmp_path / "closed"
        closed.mkdir()
        closed.chmod(0o555)
        if os.access(closed, os.W_OK):  # root may write everywhere
            may = os.access
            monkeypatch.setattr(os, "access", lambda p, m: may(p, m) and Path(p) != closed)
        for target in (closed / "m", closed / "a" / "m"):
            with pytest.raises(PermissionError, match="closed is read-only"):
                fitted.save(target)
        closed.chmod(0o755)
        assert list(closed.iterdir()) == []

    def test_others_may_read_it(self, folder):
        if os.name != "nt":
            assert folder.stat().st_mode & 0o777 == 0o777 & ~_umask()
            assert (folder / "config.json").stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


class TestFiles:
    def test_digest_of_a_file_is_its_sha256(self, tmp_path):
        (tmp_path / "a").write_bytes(b"abc")
        assert files.digest(tmp_path / "a") == hashlib.sha256(b"abc").hexdigest()

    def test_digest_of_a_folder_sees_names_and_contents(self, tmp_path):
        def digest(**contents):
            place = tmp_path / str(len(list(tmp_path.iterdir())))
            for name, text in contents.items():
                path = place / name.replace("_", "/")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            return files.digest(place)

        first = digest(a="x", b_c="y")
        assert digest(b_c="y", a="x") == first
        others = [digest(a="x", b_c="z"), digest(a="x", b_d="y"), digest(a="x"), digest(a="y")]
        assert len({first, *others}) == 5

    def test_written_whole_or_not_at_all(self, tmp_path, monkeypatch):
        path = tmp_path / "new" / "a.txt"
        files.write_text(path, "älter\n")
        assert path.read_bytes() == "älter\n".encode()

        def full(_):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match=r"No space left on device: '.*/a\.txt'"):
            files.write_text(path, "new")
        monkeypatch.setattr(os, "fsync", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            files.write_bytes(path, b"new")
        assert path.read_bytes() == "älter\n".encode()
        assert list(path.parent.iterdir()) == [path]


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(width=64) | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text().filter(lambda key: key != "$"), inner)
    ),
    max_leaves=10,
)


class TestValues:
    @given(PLAIN)
    def test_round_trip_through_json(self, value):
        text = json.dumps(storage.encode(value, {}, "x"), allow_nan=False)
        again = storage.decode(json.loads(text), {})
        assert repr(again) == repr(value)  # NaN, -0.0 and tuples as they were

    def test_arrays_and_devices(self):
        value = {"a": np.arange(3), "t": (torch.ones(2), np.float32(0.5)), "d": torch.device("cpu")}
        tensors = {}
        plain = json.loads(json.dumps(storage.encode(value, tensors, "p")))
        assert set(tensors) == {"p.a", "p.t.0"}
        again = storage.decode(plain, tensors)
        same(again["a"], value["a"])
        same(again["t"], (torch.ones(2), 0.5))
        assert again["d"] == torch.device("cpu")

    @pytest.mark.parametrize("value", [len, {1: 2}, nn.Linear(1, 1), {"$": 1}, np.array([{}])])
    def test_anything_else_is_refused(self, value):
        with pytest.raises(TypeError, match="x"):
            storage.encode([value], {}, "x")

    def test_unknown_tag(self):
        with pytest.raises(ValueError, match="unknown kind of value 'spell'"):
            storage.decode({"$": "spell"}, {})


def test_nothing_is_executed(folder):
    """No file is a pickle, and load imports no module by a name from the folder."""
    for name in FILES:
        assert not (folder / name).read_bytes().startswith(b"\x80")
    assert concrete_kmeans.load is load
    assert all(cls.__name__ in methods.__all__ for cls in DEEP)
