"""``ckm fit`` and what follows it: predict, info, report; one line for whatever is wrong."""

import csv
import gzip
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import get_args

import h5py
import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from sklearn.datasets import make_blobs
from typer.testing import CliRunner

import concrete_kmeans
from concrete_kmeans import DeepConcreteKMeans, data, load, metrics, readers
from concrete_kmeans.choosing import choose_k
from concrete_kmeans.cli import app, common, fit, fitting
from concrete_kmeans.objectives.deep import Reconstruction
from concrete_kmeans.objectives.shallow import ShallowObjective
from concrete_kmeans.training import Event

pytestmark = pytest.mark.usefixtures("short_warm_up")

FILES = {"model.safetensors", "config.json", "history.json", "labels.csv"}
SMALL = ["--encoder", "8,2", "--pretrain-epochs", "2", "--batch-size", "32", "--device", "cpu"]
QUICK = [*SMALL, "--epochs", "2"]
KM = ["--method", "km", "--device", "cpu"]
X, Y = make_blobs(90, 5, centers=3, random_state=2)


def ckm(*arguments, stdin=None):
    given = [str(argument) for argument in arguments]
    result = CliRunner().invoke(app, given, prog_name="ckm", input=stdin)
    return result.exit_code, result.stdout, result.stderr


def ok(*arguments, stdin=None):
    code, out, err = ckm(*arguments, stdin=stdin)
    assert (code, err) == (0, ""), (out, err)
    return out


def fails(*arguments, match, stdin=None):
    """One clear line, and exit code 1."""
    code, out, err = ckm(*arguments, stdin=stdin)
    assert (code, out) == (1, "")
    assert re.fullmatch(rf"ckm: \w+: .*{match}.*\n", err), err


def everything(folder):
    return {str(p.relative_to(folder)): p.is_file() and p.read_bytes() for p in folder.rglob("*")}


def labels_of(run):
    with (run / "labels.csv").open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    return [row["id"] for row in rows], [int(row["cluster"]) for row in rows]


def config_of(run):
    return json.loads((run / "config.json").read_text("utf-8"))


def frame():
    table = pd.DataFrame(X, columns=list("abcde"))
    table["kind"] = [f"class {y}" for y in Y]
    table["name"] = [f"row {i}" for i in range(len(X))]
    return table


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A place with inputs of every kind."""
    place = tmp_path_factory.mktemp("inputs")
    table = frame()
    table.to_csv(place / "t.csv", index=False)
    table.to_csv(place / "t.csv.gz", index=False)
    table.to_csv(place / "t.tsv", index=False, sep="\t")
    vectors = pd.DataFrame({"vector": list(X.astype(np.float32)), "name": table["name"]})
    vectors.to_parquet(place / "v.parquet")
    np.save(place / "a.npy", X)
    np.savez(place / "a.npz", rows=X, y=Y)
    with h5py.File(place / "a.h5", "w") as file:
        file["rows"] = X
    words = np.array([["red", "apple", "pear"], ["fast", "car", "road"], ["blue", "sea", "wave"]])
    draws = np.random.default_rng(0).integers(0, 3, size=(60, 6))
    texts = [" ".join(words[i % 3][draw]) for i, draw in enumerate(draws)]
    (place / "t.txt").write_text("\n".join(texts))
    with gzip.open(place / "t.jsonl.gz", "wt") as stream:
        stream.writelines(
            json.dumps({"text": t, "topic": i % 3}) + "\n" for i, t in enumerate(texts)
        )
    rng = np.random.default_rng(1)
    for kind, level in (("dark", 40), ("light", 200)):
        (place / "pictures" / kind).mkdir(parents=True)
        for i in range(20):
            pixels = rng.integers(level - 30, level + 30, size=(8, 8), dtype=np.uint8)
            Image.fromarray(pixels).save(place / "pictures" / kind / f"{i:02}.png")
    return place


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    """A deep run on the table."""
    place = tmp_path_factory.mktemp("runs") / "run"
    asked = ["--label-column", "kind", "--id-column", "name", *QUICK]
    ok("fit", folder / "t.csv", "-k", 3, "-o", place, *asked)
    return place


@pytest.fixture(scope="module")
def shallow(folder, tmp_path_factory):
    place = tmp_path_factory.mktemp("runs") / "shallow"
    ok("fit", folder / "t.csv", "-k", 3, "-o", place, "--drop", "kind,name", *KM)
    return place


class TestFit:
    def test_table_with_labels(self, folder, tmp_path):
        asked = ["--label-column", "kind", "--id-column", "name", *QUICK]
        out = ok("fit", folder / "t.csv", "-k", 3, "-o", tmp_path / "r", *asked)
        assert {path.name for path in (tmp_path / "r").iterdir()} == FILES
        ids, clusters = labels_of(tmp_path / "r")
        assert ids == [f"row {i}" for i in range(90)]
        python = DeepConcreteKMeans(
            3, encoder=(8, 2), pretrain_epochs=2, epochs=2, batch_size=32, random_state=0
        ).fit(frame()[list("abcde")])
        assert clusters == python.labels_.tolist() == load(tmp_path / "r").labels_.tolist()
        notes = config_of(tmp_path / "r")["run"]
        assert notes["label_scores"] == metrics.scores(Y, clusters)
        assert notes["scores"]["inertia"] == python.inertia_
        assert notes["interrupted"] is False
        sizes = np.bincount(clusters)
        assert out.startswith("90 rows in 3 clusters, by ckm (tabular)\n")
        for k in range(3):
            share = f"{100 * sizes[k] / 90:.1f} %"
            assert re.search(rf"^ +{k} +{sizes[k]} +{share}$", out, re.MULTILINE)
        assert f"NMI {notes['label_scores']['nmi']:.3g}" in out
        assert "Written: " in out

    @pytest.mark.parametrize("method", get_args(fit.MethodName))
    def test_every_method(self, folder, tmp_path, method):
        own = fitting.METHODS[method]
        small = QUICK if "epochs" in own.options else SMALL
        asked = small if own.deep else ["--device", "cpu"]
        ok("fit", folder / "a.npy", "-k", 3, "-o", tmp_path / "r", "--method", method, *asked)
        fitted = load(tmp_path / "r")
        assert type(fitted).__name__ == own.name
        assert fitted.predict(X).tolist() == labels_of(tmp_path / "r")[1]

    @pytest.mark.parametrize(
        ("name", "k", "options", "kind"),
        [
            ("t.csv.gz", 3, ["--columns", "a,b,c"], "tabular"),
            ("t.tsv", 3, ["--drop", "kind", "--drop", "name"], "tabular"),
            ("v.parquet", 3, ["--id-column", "name"], "embeddings"),
            ("a.npz", 3, ["--label-column", "y"], "tabular"),
            ("a.h5", 3, [], "tabular"),
            ("pictures", 2, ["--size", "6x6"], "image"),
            ("pictures", 2, ["--encoder", "conv", "--augment", "image"], "image"),
            ("t.txt", 3, [], "text"),
            ("t.jsonl.gz", 3, ["--label-column", "topic"], "text"),
        ],
    )
    def test_every_input_then_predict_and_report(self, folder, tmp_path, name, k, options, kind):
        place = tmp_path / "r"
        ok("fit", folder / name, "-k", k, "-o", place, *QUICK, *options, "--report", "--quiet")
        assert {path.name for path in place.iterdir()} == FILES | {"report.html"}
        assert config_of(place)["run"]["preset"] == kind
        answer = list(csv.DictReader(io.StringIO(ok("predict", place, folder / name))))
        ids, clusters = labels_of(place)
        assert [row["id"] for row in answer] == ids
        assert [int(row["cluster"]) for row in answer] == clusters

    @pytest.mark.parametrize("method", ["km", "concrete"])
    @pytest.mark.parametrize("name", ["pictures", "t.txt"])
    def test_shallow_on_pictures_and_texts(self, folder, tmp_path, method, name):
        place = tmp_path / "r"
        asked = ["--method", method, "--device", "cpu", "--report", "--quiet"]
        assert ok("fit", folder / name, "-k", 2, "-o", place, *asked) == ""
        answer = ok("predict", place, folder / name).splitlines()
        assert answer[0] == "id,cluster,distance"
        assert [int(line.split(",")[1]) for line in answer[1:]] == labels_of(place)[1]

    def test_standard_input(self, folder, tmp_path):
        table = (folder / "t.csv").read_bytes()
        asked = ["--drop", "kind", "--id-column", "name", "--format", "csv", *KM]
        ok("fit", "-", "-k", 3, "-o", tmp_path / "r", *asked, stdin=table)
        assert config_of(tmp_path / "r")["run"]["input"] is None
        answer = ok("predict", tmp_path / "r", "-", "--format", "csv", stdin=table)
        clusters = [int(line.split(",")[1]) for line in answer.splitlines()[1:]]
        assert clusters == labels_of(tmp_path / "r")[1]
        fails("report", tmp_path / "r", match="came from standard input: give the rows")

    def test_presets_and_scale(self, folder, tmp_path):
        scales = {}
        for preset in get_args(fit.PresetName):
            place = tmp_path / preset
            asked = ["--preset", preset, *SMALL, "--method", "ae+km"]
            ok("fit", folder / "a.npy", "-k", 3, "-o", place, *asked)
            scales[preset] = config_of(place)["parameters"]["scale"]
        assert scales == {name: own["scale"] for name, own in fitting.PRESETS.items()}
        asked = ["--preset", "text", "--scale", "standard", *SMALL, "--method", "ae+km"]
        ok("fit", folder / "a.npy", "-k", 3, "-o", tmp_path / "s", *asked)
        assert load(tmp_path / "s").model_.scaling.kind == "standard"

    def test_names_are_those_of_the_package(self):
        assert set(get_args(fit.MethodName)) == {*fitting.METHODS}
        assert set(get_args(fit.PresetName)) == {*get_args(readers.Kind)} == {*fitting.PRESETS}
        form = get_args(get_args(common.Format)[0])[0]
        assert get_args(form) == readers.FORMATS
        for name, own in fitting.METHODS.items():
            known = getattr(concrete_kmeans, own.name)().get_params()
            assert {*own.options, *own.parameters} <= {*known}, name

    @pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
    def test_missing_labels_are_not_scored(self, tmp_path, name):
        table = pd.DataFrame(X, columns=list("abcde"))
        table["kind"] = pd.array(Y, dtype="Int64")
        table.loc[::2, "kind"] = pd.NA
        if name == "t.csv":
            table.to_csv(tmp_path / name, index=False)
        else:
            table.to_parquet(tmp_path / name)
        asked = ["--label-column", "kind", *KM, "--report"]
        ok("fit", tmp_path / name, "-k", 3, "-o", tmp_path / "r", *asked)
        clusters = np.array(labels_of(tmp_path / "r")[1])
        expected = metrics.scores(Y[1::2], clusters[1::2])
        assert config_of(tmp_path / "r")["run"]["label_scores"] == expected

    def test_json(self, folder, tmp_path):
        asked = ["--label-column", "y", *KM, "--json"]
        record = json.loads(ok("fit", folder / "a.npz", "-k", 3, "-o", tmp_path / "r", *asked))
        assert record["run"] == str(tmp_path / "r")
        assert (record["method"], record["n_rows"], record["n_features"]) == ("km", 90, 5)
        assert record["sizes"] == np.bincount(labels_of(tmp_path / "r")[1]).tolist()
        assert record["label_scores"]["acc"] == 1.0
        assert record["scores"].keys() == {"inertia", "effective_clusters", "silhouette"}
        info = json.loads(ok("info", tmp_path / "r", "--json"))
        for key in ("method", "sizes", "scores", "label_scores", "n_features", "seconds"):
            assert info[key] == record[key]

    def test_quiet(self, folder, tmp_path):
        assert ok("fit", folder / "a.npy", "-k", 3, "-o", tmp_path / "r", *KM, "-q") == ""

    def test_same_seed_same_labels(self, folder, tmp_path):
        for place in ("a", "b"):
            asked = ["--seed", 7, "--n-init", 2, *QUICK]
            ok("fit", folder / "a.npy", "-k", 3, "-o", tmp_path / place, *asked)
        assert labels_of(tmp_path / "a") == labels_of(tmp_path / "b")
        seeds = [restart.seed for restart in load(tmp_path / "a").restarts_]
        assert seeds == [7, 8]

    def test_a_consensus_of_restarts(self, folder, tmp_path):
        asked = ["--n-init", 3, "--choose", "consensus", *QUICK]
        ok("fit", folder / "a.npy", "-k", 3, "-o", tmp_path / "r", *asked)
        assert load(tmp_path / "r").choose == "consensus"

    def test_replaced_only_when_asked(self, folder, tmp_path):
        place = tmp_path / "r"
        ok("fit", folder / "a.npy", "-k", 3, "-o", place, *KM)
        before = everything(place)
        again = ["fit", folder / "a.npy", "-k", 4, "-o", place, *KM]
        fails(*again, match="holds a model already")
        assert everything(place) == before
        ok(*again, "--overwrite")
        assert load(place).n_clusters == 4
        assert list(tmp_path.iterdir()) == [place]

    def test_a_note_where_one_feature_drowns_the_others(self, folder, tmp_path):
        many = np.concatenate([X, X + 1.0, X - 1.0], 1)
        many[:, 0] *= 1000.0
        np.save(tmp_path / "a.npy", many)
        note = "Features differ much in spread, and km takes them as they are"
        assert note in ok("fit", tmp_path / "a.npy", "-k", 3, "-o", tmp_path / "r", *KM)
        assert note not in ok("fit", folder / "a.npy", "-k", 3, "-o", tmp_path / "s", *KM)

    def test_a_npy_file_is_not_held(self, tmp_path, monkeypatch):
        monkeypatch.setattr(data, "STREAM_BYTES", 1000)
        opened, own = [], data.ArrayRows.__getitem__
        monkeypatch.setattr(
            data.ArrayRows, "__getitem__", lambda rows, at: opened.append(at) or own(rows, at)
        )
        monkeypatch.setattr(data, "as_rows", None)  # what takes an array as it is
        np.save(tmp_path / "a.npy", X)
        ok("fit", tmp_path / "a.npy", "-k", 3, "-o", tmp_path / "r", *KM)
        assert opened
        assert metrics.ari(Y, labels_of(tmp_path / "r")[1]) > 0.9

    def test_warnings_are_lines(self, tmp_path):
        np.save(tmp_path / "same.npy", np.ones((20, 3)))
        code, _, err = ckm("fit", tmp_path / "same.npy", "-k", 2, "-o", tmp_path / "r", *KM, "-q")
        assert code == 0
        assert re.fullmatch(r"ckm: warning: Number of distinct clusters \(1\).*\n", err)
        assert config_of(tmp_path / "r")["run"]["warnings"][0].startswith("Number of distinct")


class TestChoice:
    def fit(self, folder, place, *asked):
        return ok("fit", folder / "a.npy", "-k", "auto", "--k-range", "2:6", "-o", place, *asked)

    def test_without_a_network(self, folder, tmp_path):
        out = self.fit(folder, tmp_path / "r", *KM)
        curve = config_of(tmp_path / "r")["run"]["k_curve"]
        assert curve["chosen"] == load(tmp_path / "r").n_clusters == 3
        assert curve["k"] == [2, 3, 4, 5, 6]
        for reason in curve["reasons"]:
            assert reason in out
        ok("report", tmp_path / "r")
        assert curve["reasons"][0] in (tmp_path / "r" / "report.html").read_text("utf-8")

    def test_one_autoencoder_serves_every_k_and_the_fit(self, folder, tmp_path):
        self.fit(folder, tmp_path / "r", *QUICK)
        small = {"encoder": (8, 2), "pretrain_epochs": 2, "batch_size": 32, "random_state": 0}
        autoencoder = DeepConcreteKMeans(2, **small, epochs=0, init="k-means++").fit(X)
        curve = choose_k(autoencoder.transform(X), range(2, 7))
        python = DeepConcreteKMeans(curve.chosen, **small, epochs=2, pretrained=autoencoder)
        assert labels_of(tmp_path / "r")[1] == python.fit(X).labels_.tolist()
        config = config_of(tmp_path / "r")
        assert config["run"]["k_curve"]["chosen"] == curve.chosen
        assert config["parameters_left_out"] == {}

    def test_too_few_rows(self, tmp_path):
        np.save(tmp_path / "a.npy", X[:6])
        start = ["fit", tmp_path / "a.npy", "-k", "auto", "-o", tmp_path / "r", *KM]
        asked = (*start, "--k-range", "2:6")
        fails(*asked, match="6 clusters cannot be tried on 6 rows: --k-range 2:5 at most")
        ok(*start)  # 2:20, as far as there are rows
        assert config_of(tmp_path / "r")["run"]["k_curve"]["k"] == [2, 3, 4, 5]
        np.save(tmp_path / "a.npy", X[:3])
        fails(*start, "--overwrite", match="-k auto needs at least 4 rows to choose by, got 3")


class TestConfig:
    def write(self, tmp_path, text):
        path = tmp_path / "c.toml"
        path.write_text(text)
        return path

    def test_the_command_line_wins(self, folder, tmp_path):
        path = self.write(
            tmp_path,
            'n-clusters = 4\nmethod = "km"\nn-init = 3\nseed = 5\n'
            'columns = ["a", "b"]\nquiet = true',
        )
        place = tmp_path / "r"
        assert ok("fit", folder / "t.csv", "-o", place, "--config", path, "--n-init", 2) == ""
        fitted = load(place)
        assert (fitted.n_clusters, fitted.n_init, fitted.random_state) == (4, 2, 5)
        assert fitted.feature_names_in_.tolist() == ["a", "b"]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("n-clusters = 3\nn_init = 3", "'n_init' is not an option"),
            ("n-clusters = 3\nsource = 3", "'source' is not an option"),
            ('n-clusters = 3\nconfig = "c"', "'config' is not an option"),
            ("n-clusters = [3]", "n-clusters must be one value"),
            ('n-clusters = 3\ncolumns = "a"', "columns must be a list"),
            ("[fit]\nn-clusters = 3", "'fit' is not an option"),
            ("n-clusters = 3\nn-init = 0", "--n-init"),
            ('n-clusters = 3\nmethod = "dbscan"', "--method"),
            ("n-clusters = ", "is not TOML"),
        ],
    )
    def test_wrong_files(self, folder, tmp_path, text, message):
        path = self.write(tmp_path, text)
        code, out, err = ckm("fit", folder / "t.csv", "-o", tmp_path / "r", "--config", path)
        assert (code, out) == (2, "")
        assert message in " ".join(err.split())
        assert not (tmp_path / "r").exists()

    def test_not_utf_8(self, folder, tmp_path):
        (tmp_path / "c.toml").write_bytes(b"\xff")
        config = ["--config", tmp_path / "c.toml"]
        code, _, err = ckm("fit", folder / "t.csv", "-k", 2, "-o", tmp_path / "r", *config)
        assert code == 2
        assert "is not TOML" in " ".join(err.split())


class TestUsage:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["-k", "0"], "at least 1, or auto, got '0'"),
            (["-k", "many"], "or auto, got 'many'"),
            ([], "Missing option"),
            (["-k", "auto", "--k-range", "5:2"], "as 2:20"),
            (["-k", "auto", "--k-range", "1:4"], "the first at least 2, got '1:4'"),
            (["-k", "3", "--k-range", "2:4"], "only -k auto"),
            (["-k", "3", "--encoder", "transformer"], "got 'transformer'"),
            (["-k", "3", "--encoder", "8,0"], "got '8,0'"),
            (["-k", "3", "--size", "64"], "as 64x48, got '64'"),
            (["-k", "3", "--method", "dbscan"], "dbscan"),
            (["-k", "3", "--preset", "audio"], "audio"),
            (["-k", "3", "--device", "abacus"], "abacus"),
            (["-k", "3", "--method", "km", "--epochs", "3"], "--epochs has no meaning for"),
            (["-k", "3", "--method", "km", "--batch-size", "3"], "--batch-size has no meaning"),
            (["-k", "3", "--method", "concrete", "--scale", "none"], "--scale has no meaning"),
            (["-k", "3", "--method", "dec", "--choose", "consensus"], "--choose has no meaning"),
            (["-k", "3", "--method", "ae+km", "--epochs", "3"], "--epochs has no meaning"),
            (["-k", "3", "--n-init", "0"], "--n-init"),
            (["-k", "3", "--method", "km", "--resume"], "--resume has no meaning for"),
            (["-k", "3", "--method", "km", "--checkpoint-minutes", "3"], "-minutes has no meaning"),
            (["-k", "3", "--checkpoint-minutes", "0"], "a positive finite number, got 0"),
            (["-k", "3", "--config", "nowhere.toml"], "nowhere.toml"),
        ],
    )
    def test_wrong_usage_is_2_and_nothing_is_read(self, arguments, message, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        code, out, err = ckm("fit", "no-such-input.csv", "-o", "r", *arguments)
        assert (code, out) == (2, "")
        assert message in " ".join(err.split())
        assert list(tmp_path.iterdir()) == []

    def test_other_commands(self, run, folder, tmp_path):
        for arguments, message in (
            (["predict", run, folder / "t.csv", "-o", tmp_path / "labels.txt"], ".csv or .parquet"),
            (["predict", run, folder / "t.csv", "--device", "abacus"], "abacus"),
            (["report", run, "--input", folder / "t.csv", "--no-input"], "beside --input"),
            (["export", run], "--onnx"),
        ):
            code, out, err = ckm(*arguments)
            assert (code, out) == (2, "")
            assert message in " ".join(err.split())
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("command", ["fit", "predict", "info", "report", "export"])
    def test_help(self, command):
        out = ok(command, "--help")
        assert out.startswith(f"Usage: ckm {command} ")

    def test_completion(self):
        environment = os.environ | {"_CKM_COMPLETE": "complete_bash", "COMP_WORDS": "ckm fit --me"}
        environment["COMP_CWORD"] = "2"
        command = [sys.executable, "-m", "concrete_kmeans"]
        answer = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert answer.stdout.split() == ["--method"]


class TestInterruption:
    def interrupt(self, monkeypatch, phase, keys=lambda: signal.raise_signal(signal.SIGINT)):
        told = fit._losses

        def press(event, room):
            if event.phase == phase:
                keys()
            return told(event, room)

        monkeypatch.setattr(fit, "_losses", press)

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    @pytest.mark.parametrize("phase", ["pretrain", "joint"])
    def test_what_is_trained_is_kept(self, folder, tmp_path, monkeypatch, phase, number):
        place = tmp_path / "r"
        asked = ["fit", folder / "a.npy", "-k", 3, *QUICK, "--report", "-q", "-o"]
        with monkeypatch.context() as while_it_lasts:
            self.interrupt(while_it_lasts, phase, lambda: signal.raise_signal(number))
            code, out, err = ckm(*asked, place)
        assert (code, out) == (128 + number, "")
        assert err == (
            f"ckm: interrupted; {place} holds what was trained so far; "
            "the same command with --resume goes on\n"
        )
        assert {path.name for path in place.iterdir()} == FILES
        assert load(place).predict(X).tolist() == labels_of(place)[1]
        assert "The fit was interrupted." in ok("info", place)
        ok(*asked, place, "--resume")
        ok(*asked, tmp_path / "straight")
        self.assert_same(place, tmp_path / "straight")
        assert {path.name for path in tmp_path.iterdir()} == {"r", "straight"}
        fails(*asked, place, "--resume", match="r is finished: --resume has nothing to go on with")

    def assert_same(self, run, other):
        for name in ("model.safetensors", "history.json", "labels.csv"):
            assert (run / name).read_bytes() == (other / name).read_bytes()

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_before_there_is_anything(self, folder, tmp_path, monkeypatch, number):
        monkeypatch.setattr(readers, "read", lambda *_: signal.raise_signal(number))
        before = signal.getsignal(number)
        answer = ckm("fit", folder / "a.npy", "-k", 3, "-o", tmp_path / "r", *QUICK)
        assert answer == (128 + number, "", "ckm: interrupted\n")
        assert list(tmp_path.iterdir()) == []
        assert signal.getsignal(number) == before

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_between_two_phases(self, folder, tmp_path, monkeypatch, number):
        """What was finished is not done again, but the part under way is."""
        asked = ["fit", folder / "a.npy", "-k", 3, *QUICK, "-q", "-o"]
        with monkeypatch.context() as while_it_lasts:
            stop = lambda *_: signal.raise_signal(number)  # noqa: E731
            while_it_lasts.setattr(DeepConcreteKMeans, "_start", stop)
            answer = ckm(*asked, tmp_path / "r")
        how = "the same command with --resume goes on"
        assert answer == (128 + number, "", f"ckm: interrupted; {how}\n")
        with monkeypatch.context() as while_it_lasts:
            while_it_lasts.setattr(DeepConcreteKMeans, "_pretrain", None)
            ok(*asked, tmp_path / "r", "--resume")
        ok(*asked, tmp_path / "straight")
        self.assert_same(tmp_path / "r", tmp_path / "straight")

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_a_method_without_checkpoints(self, folder, tmp_path, monkeypatch, number):
        monkeypatch.setattr(ShallowObjective, "loss", lambda *_: signal.raise_signal(number))
        place = tmp_path / "r"
        code, out, err = ckm(
            "fit", folder / "a.npy", "-k", 3, "-o", place, "--method", "concrete", "-q"
        )
        assert (code, out) == (128 + number, "")
        assert err == f"ckm: interrupted; {place} holds what was trained so far\n"
        assert load(place).predict(X).tolist() == labels_of(place)[1]

    def test_while_the_autoencoder_of_k_auto_is_trained(self, folder, tmp_path, monkeypatch):
        asked = ["fit", folder / "a.npy", "-k", "auto", "--k-range", "2:5", *QUICK, "-o"]
        with monkeypatch.context() as while_it_lasts:
            self.interrupt(while_it_lasts, "pretrain")
            answer = ckm(*asked, tmp_path / "r")
        how = "the same command with --resume goes on"
        assert answer == (130, "", f"ckm: interrupted; {how}\n")
        assert [path.name for path in tmp_path.iterdir()] == [".r.checkpoints"]
        with monkeypatch.context() as while_it_lasts:
            self.interrupt(while_it_lasts, "joint")
            assert ckm(*asked, tmp_path / "r", "--resume")[0] == 130
        ok(*asked, tmp_path / "r", "--resume")
        ok(*asked, tmp_path / "straight")
        self.assert_same(tmp_path / "r", tmp_path / "straight")
        assert {path.name for path in tmp_path.iterdir()} == {"r", "straight"}

    def test_a_process_that_is_told_to_end(self, folder, tmp_path):
        asked = ["fit", folder / "a.npy", "-k", "3", "-o", tmp_path / "r", "--method", "dcn", "-q"]
        asked += ["--encoder", "8,2", "--pretrain-epochs", "100000", "--checkpoint-minutes", "1e-4"]
        process = subprocess.Popen(
            [sys.executable, "-m", "concrete_kmeans", *map(str, asked), "--device", "cpu"],
            stderr=subprocess.PIPE,
            text=True,
        )
        while not list(tmp_path.glob(".r.checkpoints/fit/*.safetensors")):
            assert process.poll() is None
            time.sleep(0.05)
        process.terminate()
        _, err = process.communicate(timeout=60)
        assert process.returncode == 143
        assert re.fullmatch("ckm: interrupted; .*r holds .*; .* with --resume goes on\n", err)
        assert load(tmp_path / "r").predict(X).tolist() == labels_of(tmp_path / "r")[1]

    def test_resume_needs_a_checkpoint_and_is_never_unasked(self, folder, tmp_path, monkeypatch):
        place = tmp_path / "r"
        asked = ["fit", folder / "a.npy", "-k", 3, "-o", place, "-q"]
        fails(*asked, *QUICK, "--resume", match="no checkpoint to go on with in .*leave out --res")
        assert list(tmp_path.iterdir()) == []
        with monkeypatch.context() as while_it_lasts:
            self.interrupt(while_it_lasts, "joint")
            ckm(*asked, *QUICK)
        shutil.rmtree(place)
        before = everything(tmp_path)
        fails(
            *asked, *QUICK, match="a fit that was stopped has left checkpoints in .*--resume goes"
        )
        other = [*SMALL, "--epochs", 3, "--resume"]
        fails(*asked, *other, match="is of another fit: epochs was 2, is 3; give another")
        assert everything(tmp_path) == before
        ok(*asked, *SMALL, "--epochs", 3, "--overwrite")
        assert {path.name for path in tmp_path.iterdir()} == {"r"}

    def test_a_fit_that_fails_is_not_gone_on_with(self, folder, tmp_path, monkeypatch):
        own = Reconstruction.loss

        def loss(*given):
            return {name: part * torch.nan for name, part in own(*given).items()}

        monkeypatch.setattr(Reconstruction, "loss", loss)
        asked = ["-o", tmp_path / "r", *QUICK, "--checkpoint-minutes", 1e-9]
        fails("fit", folder / "a.npy", "-k", 3, *asked, match="the loss was not finite")
        assert list(tmp_path.iterdir()) == []


class TestProgress:
    def shown(self, monkeypatch, *, terminal, show=True, width=150):
        class Stream(io.StringIO):
            def isatty(self):
                return terminal

        stream = Stream()
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setenv("TERM", "xterm")
        with fit._progress(show=show) as (tell, draw):
            tell("reading")
            for phase in ("pretrain", "joint", "pretrain"):
                for step in (10, 20):
                    parts = {"loss": [1.0, 3.0, np.nan], "clusters": [0.5, 0.5, 0.5]}
                    draw(Event(phase, step, 40, parts, [True, True, False]))
        return stream.getvalue()

    def test_phase_steps_rate_and_losses(self, monkeypatch):
        text = self.shown(monkeypatch, terminal=True)
        assert "reading" in text
        for phase in ("pretrain", "joint"):
            assert re.search(rf"{phase}.*20/40 steps.*loss 2, clusters 0\.5", text)
        text = self.shown(monkeypatch, terminal=True, width=80)
        assert re.search(r"joint.*20/40 steps.*loss 2 *\s", text)
        assert "clusters" not in text

    def test_losses_of_restarts_that_run(self):
        parts = {"loss": [1.0, 3.0, np.nan]}
        assert fit._losses(Event("joint", 1, 2, parts, [True, True, False]), 20) == "loss 2"
        assert fit._losses(Event("joint", 1, 2, parts, [False, False, False]), 20) == ""

    def test_nothing_without_a_terminal_or_when_quiet(self, monkeypatch):
        assert self.shown(monkeypatch, terminal=False) == ""
        assert self.shown(monkeypatch, terminal=True, show=False) == ""


class TestPredict:
    def new(self, tmp_path):
        path = tmp_path / "new.csv"
        frame()[::-1][["name", *"edcba"]].to_csv(path, index=False)  # columns in another order
        return path

    def test_csv_parquet_and_stdout_agree(self, run, tmp_path):
        path = self.new(tmp_path)
        printed = ok("predict", run, path)
        assert ok("predict", run, path, "-o", tmp_path / "o" / "l.csv") == ""
        assert (tmp_path / "o" / "l.csv").read_text("utf-8") == printed
        ok("predict", run, path, "-o", tmp_path / "l.parquet")
        table = pd.read_csv(io.StringIO(printed))
        pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "l.parquet"), table)
        assert list(table) == ["id", "cluster", "probability", "distance"]
        fitted, rows = load(run), frame()[::-1][list("abcde")]
        assert table["id"].tolist() == frame()["name"][::-1].tolist()
        assert table["cluster"].tolist() == fitted.predict(rows).tolist()
        np.testing.assert_allclose(table["probability"], fitted.predict_proba(rows).max(1))
        codes, centers = fitted.transform(rows), fitted.cluster_centers_
        distances = np.linalg.norm(codes[:, None] - centers, axis=2).min(1)
        np.testing.assert_allclose(table["distance"], distances, rtol=1e-3, atol=1e-4)

    def test_shallow(self, shallow, folder):
        table = pd.read_csv(io.StringIO(ok("predict", shallow, folder / "t.csv")))
        centers = load(shallow).cluster_centers_
        distances = np.linalg.norm(X[:, None] - centers, axis=2)
        assert table["cluster"].tolist() == distances.argmin(1).tolist()
        np.testing.assert_allclose(table["distance"], distances.min(1), rtol=1e-5)

    def test_what_does_not_fit(self, run, folder, tmp_path):
        other = tmp_path / "other.csv"
        frame()[["a", "b", "c", "d", "name"]].to_csv(other, index=False)
        out = ["-o", tmp_path / "labels.csv"]
        fails("predict", run, other, *out, match="column 'e' is not among")
        fails("predict", run, folder / "a.npy", *out, match="is no table, as the file of the fit")
        fails("predict", run, tmp_path / "gone.csv", *out, match="gone.csv does not exist")
        assert list(tmp_path.iterdir()) == [other]

    def test_a_model_from_python_says_no_preparation(self, folder, tmp_path):
        load(ok_run(folder, tmp_path)).save(tmp_path / "m")
        for command in (["predict", tmp_path / "m", folder / "a.npy"], ["report", tmp_path / "m"]):
            fails(*command, match="was not written by ckm fit")
        assert "ConcreteKMeans of concrete-kmeans" in ok("info", tmp_path / "m")


def ok_run(folder, tmp_path):
    place = tmp_path / "ok"
    ok("fit", folder / "a.npy", "-k", 3, "-o", place, *KM)
    return place


class TestReport:
    def test_rows_where_they_were(self, folder, tmp_path):
        np.save(tmp_path / "a.npy", X)
        ok("fit", tmp_path / "a.npy", "-k", 3, "-o", tmp_path / "r", *KM)
        assert ok("report", tmp_path / "r") == f"Written: {tmp_path / 'r' / 'report.html'}\n"
        whole = (tmp_path / "r" / "report.html").read_text("utf-8")
        assert "<title>a.npy: 90 rows in 3 clusters</title>" in whole
        ok("report", tmp_path / "r", "-o", tmp_path / "p.html", "--title", "Mine & <yours>")
        assert "<title>Mine &amp; &lt;yours&gt;</title>" in (tmp_path / "p.html").read_text("utf-8")
        np.save(tmp_path / "a.npy", X + 1.0)
        fails("report", tmp_path / "r", match="has changed since: give the rows to show by --input")
        (tmp_path / "a.npy").unlink()
        fails("report", tmp_path / "r", match="is gone: give the rows to show by --input")
        assert (tmp_path / "r" / "report.html").read_text("utf-8") == whole
        ok("report", tmp_path / "r", "--no-input")
        ok("report", tmp_path / "r", "--input", folder / "a.npy")

    def test_what_only_counts_is_not_shown(self, folder, tmp_path):
        """Neither row numbers as names nor the parts of an embedding."""
        rng = np.random.default_rng(0)
        vectors = rng.normal(size=(60, 130))
        pd.DataFrame({"v": list(vectors)}).to_parquet(tmp_path / "v.parquet")
        ok("fit", tmp_path / "v.parquet", "-k", 2, "-o", tmp_path / "r", *KM, "--report")
        page = (tmp_path / "r" / "report.html").read_text("utf-8")
        assert "v.12" not in page
        assert '"ids":null' in page.replace(" ", "")
        ok("report", tmp_path / "r", "--input", tmp_path / "v.parquet", "-o", tmp_path / "p.html")
        assert "<title>v.parquet: 60 rows in 2" in (tmp_path / "p.html").read_text("utf-8")
        ok("fit", folder / "t.csv", "-k", 2, "-o", tmp_path / "named", *KM, "--report",
           "--id-column", "name", "--drop", "kind")  # fmt: skip
        page = (tmp_path / "named" / "report.html").read_text("utf-8")
        assert "row 17" in page

    def test_folder_of_pictures_is_watched_too(self, folder, tmp_path):
        Path(tmp_path / "p").mkdir()
        for i in range(6):
            pixels = np.full((4, 4), 40 * i, np.uint8)
            Image.fromarray(pixels).save(tmp_path / "p" / f"{i}.png")
        ok("fit", tmp_path / "p", "-k", 2, "-o", tmp_path / "r", *KM, "--report")
        (tmp_path / "p" / "0.png").rename(tmp_path / "p" / "9.png")
        fails("report", tmp_path / "r", match="has changed since")


class TestInfo:
    def test_what_it_says(self, run, folder):
        out = ok("info", run)
        assert "90 rows in 3 clusters" in out
        assert f"Fitted on {folder / 't.csv'} in" in out
        assert "Parameters besides the defaults: batch_size=32, " in out
        assert "encoder=(8, 2)" in out
        record = json.loads(ok("info", run, "--json"))
        assert (record["class"], record["reader"], record["n_clusters"]) == (
            "DeepConcreteKMeans",
            "table",
            3,
        )


class TestFaults:
    """One clear line each, and nothing left half written."""

    @pytest.mark.parametrize(
        ("name", "options", "match"),
        [
            ("gone.csv", [], "gone.csv does not exist"),
            ("empty.csv", [], "empty.csv is empty"),
            ("empty", [], "empty is empty"),
            ("t.csv", ["--columns", "a,colour"], "column 'colour' is not among 'a', 'b'"),
            ("t.csv", ["--label-column", "kin"], "did you mean 'kind'"),
            ("t.csv", ["--embed", "m"], "column 'text' is not among"),
            ("t.csv", ["--embed", "m", "--text-column", "name"], "needs sentence_transformers"),
            ("a.npy", ["--embed", "m"], "--embed has no meaning here"),
            ("t.csv", ["-k", "91", "--drop", "name"], "91 clusters cannot be made of 90 rows"),
            ("a.npy", ["--encoder", "conv"], "conv"),
            ("mixed", [], "pictures must have one size: .*0.png is 8x8, .*1.png is 4x8"),
            ("torn", [], "0.png cannot be read as a picture"),
            ("torn.npy", [], "torn.npy cannot be read as npy"),
            ("pickled.npy", [], "pickled.npy cannot be read as npy: .*Python objects"),
            ("nan.npy", [], "feature 1 holds NaN or infinity"),
            ("notes.docx", [], "its name does not tell what it is"),
        ],
    )
    def test_inputs(self, folder, tmp_path, name, options, match):
        place = tmp_path / "in"
        place.mkdir()
        (place / "t.csv").write_bytes((folder / "t.csv").read_bytes())
        (place / "empty.csv").touch()
        (place / "empty").mkdir()
        (place / "notes.docx").write_text("x")
        np.save(place / "a.npy", X)
        (place / "torn.npy").write_bytes((place / "a.npy").read_bytes()[:100])
        np.save(place / "pickled.npy", np.array([[{}]], dtype=object), allow_pickle=True)
        np.save(place / "nan.npy", np.where(np.arange(5) == 1, np.nan, X))
        for kind in ("mixed", "torn"):
            (place / kind).mkdir()
            Image.new("L", (8, 8)).save(place / kind / "0.png")
            Image.new("L", (8, 4)).save(place / kind / "1.png")
        (place / "torn" / "0.png").write_bytes((place / "torn" / "1.png").read_bytes()[:40])
        before = everything(tmp_path)
        asked = options if "-k" in options else ["-k", "3", *options]
        fails("fit", place / name, "-o", tmp_path / "r", *SMALL, *asked, match=match)
        assert everything(tmp_path) == before

    @pytest.mark.parametrize("command", ["predict", "info", "report", "export"])
    @pytest.mark.parametrize(
        ("file", "damage", "match"),
        [
            ("model.safetensors", lambda data: data[:-10], "model.safetensors is damaged"),
            ("history.json", lambda data: data + b" ", "history.json is damaged"),
            ("config.json", lambda data: data[:50], "config.json is damaged: not JSON"),
            ("config.json", lambda _: b"{}", "not of a model folder"),
            (
                "config.json",
                lambda data: data.replace(b'"format_version": 1', b'"format_version": 99'),
                "has format 99",
            ),
        ],
    )
    def test_damaged_folders(self, run, folder, tmp_path, command, file, damage, match):
        place = tmp_path / "r"
        place.mkdir()
        for path in run.iterdir():
            (place / path.name).write_bytes(path.read_bytes())
        (place / file).write_bytes(damage((place / file).read_bytes()))
        before = everything(tmp_path)
        more = {"predict": [folder / "t.csv"], "export": ["--onnx", tmp_path / "m.onnx"]}
        fails(command, place, *more.get(command, []), match=match)
        (place / file).unlink()
        fails(command, place, *more.get(command, []), match=f"{file} is missing")
        assert everything(tmp_path).keys() <= before.keys()

    @pytest.mark.parametrize(
        ("change", "match"),
        [
            (lambda notes: notes.pop("preparation"), "preparation"),
            (lambda notes: notes.update(colour=1), "colour"),
            (lambda notes: notes.update(input={"path": "x"}), "is damaged: run: .*sha256"),
            (lambda notes: notes.update(k_curve=[1]), "is damaged: run"),
            (lambda notes: notes["preparation"].pop("columns"), "not whole"),
            (lambda notes: notes["preparation"].update(reader="oracle"), "reader must be one of"),
            (lambda notes: notes["preparation"].update(label_column=[1]), "label_column must be"),
            (lambda notes: notes["preparation"]["columns"][0].update(means=1), "means must be"),
            (lambda notes: notes.update(scores={"nmi": "x"}), r"scores must be dict\[str, float"),
            (lambda notes: notes.update(warnings="x"), r"warnings must be list\[str\], got 'x'"),
        ],
    )
    def test_damaged_notes(self, run, folder, tmp_path, change, match):
        place = tmp_path / "r"
        place.mkdir()
        for path in run.iterdir():
            (place / path.name).write_bytes(path.read_bytes())
        config = config_of(place)
        change(config["run"])
        (place / "config.json").write_text(json.dumps(config))
        fails("predict", place, folder / "t.csv", match=match)

    @pytest.mark.parametrize(
        "change",
        [
            lambda config: config.pop("class"),
            lambda config: config.pop("package_version"),
            lambda config: config["run"].pop("seconds"),
            lambda config: config["run"].update(warnings=5),
            lambda config: config["run"].update(scores={"nmi": "x"}),
            lambda config: config.update(run=[1]),
        ],
    )
    @pytest.mark.parametrize("form", [[], ["--json"]])
    def test_info_of_a_damaged_config(self, run, tmp_path, change, form):
        place = tmp_path / "r"
        shutil.copytree(run, place)
        config = config_of(place)
        change(config)
        (place / "config.json").write_text(json.dumps(config))
        fails("info", place, *form, match=r"config\.json is damaged \(")

    def test_places_that_cannot_be_written(self, folder, run, tmp_path, monkeypatch):
        (tmp_path / "file").write_text("mine")
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "thesis.txt").write_text("mine")
        (tmp_path / "closed").mkdir()
        may = os.access  # root may write everywhere
        monkeypatch.setattr(os, "access", lambda p, m: may(p, m) and Path(p) != tmp_path / "closed")
        before = everything(tmp_path)
        start = ["fit", tmp_path / "not-even-read.csv", "-k", 3, "--overwrite", *KM, "-o"]
        fails(*start, tmp_path / "file", match="file is a file, not a folder")
        fails(*start, tmp_path / "file" / "r", match="file is not a folder")
        fails(*start, tmp_path / "mine", match="is not a model folder and is not empty")
        fails(*start, tmp_path / "closed" / "r", match="closed is read-only")
        for place, match in (
            (tmp_path / "file" / "x", "file is not a folder"),
            (tmp_path / "closed" / "x", "closed is read-only"),
        ):
            out = ["-o", f"{place}.csv"]
            fails("predict", run, folder / "not-even-read.csv", *out, match=match)
            fails("report", run, "-o", f"{place}.html", match=match)
            fails("export", run, "--onnx", f"{place}.onnx", match=match)
        (tmp_path / "l.csv").mkdir()
        out = ["-o", tmp_path / "l.csv"]
        fails("predict", run, folder / "t.csv", *out, match="is a folder; give the name of a file")
        (tmp_path / "l.csv").rmdir()
        assert everything(tmp_path) == before

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux")
    def test_full_disk(self, folder, run, tmp_path):
        """A real limit on the size of files, and a full device, in a process of its own."""
        ok("fit", folder / "a.npy", "-k", 2, "-o", tmp_path / "old", *KM)
        (tmp_path / "l.csv").write_text("old")
        before = everything(tmp_path)
        commands = [
            ["fit", folder / "a.npy", "-k", "3", "-o", tmp_path / "r", *KM],
            ["fit", folder / "a.npy", "-k", "3", "-o", tmp_path / "old", "--overwrite", *KM],
            ["predict", run, folder / "t.csv", "-o", tmp_path / "l.csv"],
            ["report", run, "-o", tmp_path / "p.html"],
            ["predict", run, folder / "t.csv"],
        ]
        script = """
            import json, os, resource, sys
            from typer.testing import CliRunner
            from concrete_kmeans.cli import app
            answers = []
            *commands, last = json.loads(sys.argv[1])
            for command in commands:
                resource.setrlimit(resource.RLIMIT_FSIZE, (1500, resource.RLIM_INFINITY))
                result = CliRunner().invoke(app, command, prog_name="ckm")
                answers.append([result.exit_code, result.stdout, result.stderr])
            sys.stdout.write(json.dumps(answers))
            sys.stdout.flush()
            os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
            app(last, prog_name="ckm")
        """
        listed = json.dumps([[str(part) for part in command] for command in commands])
        answer = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script), listed], capture_output=True, text=True
        )
        assert answer.returncode == 1
        assert answer.stderr == "ckm: error: No space left on device\n"
        places = ("r", "old", "l.csv", "p.html")
        for (code, out, err), place in zip(json.loads(answer.stdout), places, strict=True):
            assert (code, out) == (1, "")
            assert re.fullmatch(rf"ckm: error: File too large: .*/{place}\n", err), err
        assert everything(tmp_path) == before

    def test_hostile_names(self, tmp_path):
        """Names that are markup, escapes, formulas, or no text at all."""
        pictures = tmp_path / "p [red]\x1b[31m"
        pictures.mkdir()
        names = ["=1+1.png", "<script>alert(1)<.png", "a\nb.png", "[bold].png", '",".png']
        names.append(os.fsdecode(b"\xff\xfe.png"))
        for i, name in enumerate(names):
            Image.fromarray(np.full((4, 4), 40 * i, np.uint8)).save(pictures / name)
        place = tmp_path / "r [red]\x1b[31m"
        out = ok("fit", pictures, "-k", 2, "-o", place, *KM, "--report")
        assert "\x1b" not in out
        assert "r [red]\\x1b[31m" in out
        assert "\x1b" not in ok("info", place)
        with (place / "labels.csv").open(newline="", encoding="utf-8", errors="surrogatepass") as s:
            ids = [row["id"] for row in csv.DictReader(s)]
        assert sorted(ids) == sorted(names)
        assert "<script>alert" not in (place / "report.html").read_text("utf-8", "replace")
        ok("predict", place, pictures, "-o", tmp_path / "l.csv")
        assert (tmp_path / "l.csv").read_bytes().count(b"=1+1.png") == 1
        ok("predict", place, pictures, "-o", tmp_path / "l.parquet")
        assert r"\udcff\udcfe.png" in pd.read_parquet(tmp_path / "l.parquet")["id"].tolist()
        code, _, err = ckm("predict", place, tmp_path / "\x1b]0;owned\x07.csv")
        assert code == 1
        assert "\x1b" not in err
        assert "\x07" not in err

    def test_hostile_columns(self, tmp_path):
        names = ["a,b", "=x", "<b>", "[red]", "\u202e", "日本"]
        table = pd.DataFrame(np.tile(X, 2)[:, :6], columns=names)
        table.to_csv(tmp_path / "t.csv", index=False)
        asked = ["--columns", '"a,b",=x', "--columns", "日本", *KM, "--report"]
        ok("fit", tmp_path / "t.csv", "-k", 3, "-o", tmp_path / "r", *asked)
        assert load(tmp_path / "r").feature_names_in_.tolist() == ["a,b", "=x", "日本"]
