from __future__ import annotations

import copy
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.cluster import KMeans

from concrete_kmeans import DEC, AutoencoderKMeans, DeepConcreteKMeans, datasets, metrics
from concrete_kmeans.experiments import cells, config, deep, dots, results, table2, table2_report
from concrete_kmeans.experiments.config import SCORES, Config

LOAD = datasets.load
#: Seconds, not minutes: a small network, few epochs, the quick start.
QUICK = {"epochs": 3, "init": "k-means++"}
SMALL = {
    "datasets": {"blobs": {"title": "Blobs, all", "load": "digits", "encoder": [8, 3]}},
    "methods": {
        "km": {"paper": "km"},
        "ae+km": {"parameters": {"pretrain_epochs": 4}},
        "dec": {"paper": "dec", "parameters": {"pretrain_epochs": 4, "epochs": 3}},
        "ckm": {"paper": "ckm", "parameters": {"pretrain_epochs": 4, **QUICK}},
    },
}


def small(**changes):
    return Config.of({**copy.deepcopy(SMALL), **changes})


def blobs(n=160, seed=0):
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 4
    X = rng.normal(size=(n, 16)) + 3.0 * np.eye(4, 16)[y]
    return datasets.Dataset("digits", X, y, tuple("abcd"), (4, 4), 120, "made up")


@pytest.fixture(autouse=True)
def made_up(monkeypatch):
    """Four blobs of 160 points take the place of the digits; returns what is loaded next."""
    found = {"digits": blobs()}
    monkeypatch.setattr(datasets, "load", lambda name, _home=None, **_options: found[name])
    return found


@pytest.fixture
def fits(monkeypatch):
    """Lists the classes that are fitted."""
    done, fit = [], deep.timed_fit

    def timed_fit(estimator, X):
        done.append(type(estimator).__name__)
        return fit(estimator, X)

    monkeypatch.setattr(deep, "timed_fit", timed_fit)
    return done


def run(out, **asked):
    return table2.run(out, **{"config": small(), "n_seeds": 2, "device": "cpu", **asked})


def figures(record):
    """Everything in the cells but the time it took and the time of day."""
    kept = json.loads(json.dumps(record["rows"]))
    for row in kept.values():
        for cell in row["methods"].values():
            del cell["finished"], cell["seconds"], cell["environment"]
    return kept


class TestConfig:
    @pytest.fixture
    def packaged(self):
        return config.table2()

    def test_names_are_known(self, packaged):
        assert list(packaged.datasets) == [
            "mnist", "usps", "usps-split", "20newsgroups", "20newsgroups-plain",
        ]  # fmt: skip
        assert list(packaged.methods)[:7] == [
            "km", "ae+km", "dec", "dcn", "ckm-paper", "ckm-k-means++", "ckm",
        ]  # fmt: skip
        assert {data.load for data in packaged.datasets.values()} <= set(datasets.names())
        for key in packaged.methods.keys() - {"km"}:
            assert key in deep.METHODS
            assert key in deep.TITLES
        for target in packaged.targets:
            assert target.method in packaged.methods
            assert target.dataset in packaged.datasets
        counted = packaged.counted
        assert {counted["method"], *counted["against"]} <= packaged.methods.keys()
        assert set(counted["datasets"]) <= packaged.datasets.keys()

    def test_parameters_are_those_of_the_estimators(self, packaged):
        for key, method in packaged.methods.items():
            given_ = [method.parameters]
            given_ += [data.parameters.get(key, {}) for data in packaged.datasets.values()]
            if key == "km":
                assert not any(given_)
                continue
            known = deep.METHODS[key][0]().get_params(deep=False)
            assert all(own.keys() <= known.keys() for own in given_)

    def test_networks_and_recipes_are_the_papers(self, packaged):
        for key, data in packaged.datasets.items():
            text = key.startswith("20newsgroups")
            assert tuple(data.encoder) == ((250, 100, 20) if text else (500, 500, 2000, 10))
            assert data.images is not text
            assert data.split is (key == "usps-split")
        recipes = [data.options.get("recipe") for data in packaged.datasets.values()]
        assert recipes == [None, None, None, "sublinear", "plain"]

    @pytest.mark.parametrize(
        ("key", "method", "printed"),
        [  # copied from the paper's table once more
            ("mnist", "ckm", [81.4, 1.8, 77.7, 1.1, 85.4, 2.1]),
            ("mnist", "dcn", [81.7, 1.1, 75.2, 1.2, 83.1, 1.9]),
            ("usps", "km", [60, 0.7, 44, 0.9, 58, 0.9]),
            ("usps-split", "dec", [72.6, 1.1, 63.8, 0.9, 71.1, 2.5]),
            ("20newsgroups-plain", "ae+km", [42.0, 1.7, 28.3, 1.2, 44.3, 2.3]),
            ("20newsgroups", "ckm", [46.5, 1.4, 34.1, 1.6, 47.3, 2.3]),
        ],
    )
    def test_figures_of_the_paper(self, packaged, key, method, printed):
        assert packaged.paper(packaged.datasets[key])[method] == printed

    def test_every_data_set_has_six_figures_of_five_methods(self, packaged):
        for data in packaged.datasets.values():
            paper = packaged.paper(data)
            assert sorted(paper) == ["ae+km", "ckm", "dcn", "dec", "km"]
            assert all(len(figures_) == 6 for figures_ in paper.values())

    def test_a_wrong_key_is_named(self):
        with pytest.raises(ValueError, match=r"datasets\.blobs: .*'colour'"):
            small(datasets={"blobs": SMALL["datasets"]["blobs"] | {"colour": "red"}})
        with pytest.raises(ValueError, match=r"unknown: extra; known: .*targets"):
            small(extra={})


class TestPlan:
    def test_everything_in_the_order_of_the_table(self):
        packaged = config.table2()
        asked = [key for key in packaged.methods if key != "ckm-consensus"]
        planned = table2.plan(packaged, None, asked)
        assert list(planned) == list(packaged.datasets)
        assert list(planned["mnist"]) == asked
        assert "ckm-conv" not in planned["20newsgroups"]

    def test_ae_km_comes_with_what_goes_on_from_it(self):
        packaged = config.table2()
        assert table2.plan(packaged, ["usps"], ["dec"]) == {"usps": ("ae+km", "dec")}
        assert table2.plan(packaged, ["usps"], ["ckm"]) == {"usps": ("ckm",)}  # scales otherwise
        assert table2.plan(packaged, ["usps"], ["km"]) == {"usps": ("km",)}
        assert table2.plan(packaged, ["usps"], ["ckm-conv"]) == {"usps": ("ckm-conv",)}

    @pytest.mark.parametrize(
        ("names", "methods", "message"),
        [
            (["iris"], None, "datasets must be of mnist, .* got 'iris'"),
            (None, ["dbscan"], "methods must be of km, .* got 'dbscan'"),
            (["20newsgroups"], ["ckm-conv"], "ckm-conv are for images only"),
        ],
    )
    def test_errors(self, names, methods, message):
        with pytest.raises(ValueError, match=message):
            table2.plan(config.table2(), names, methods)

    def test_errors_before_any_work(self, tmp_path, fits):
        for wrong in ({"n_seeds": 0}, {"device": "abacus"}, {"precision": "half"}):
            with pytest.raises(ValueError, match=next(iter(wrong))):
                run(tmp_path, **wrong)
        with pytest.raises(ValueError, match="must hold 'ae\\+km', got km"):
            run(tmp_path, config=small(methods={"km": {}}))
        assert fits == []
        assert list(tmp_path.iterdir()) == []

    def test_names_in_text(self):
        assert cells.pick(" b,a", ["a", "b"], "letters") == ("a", "b")
        with pytest.raises(ValueError, match="'', 'c' not among the letters: a, b"):
            cells.pick("a,,c", ["a", "b"], "letters")


class TestCells:
    def test_figures_are_those_of_the_estimators(self, tmp_path):
        record = run(tmp_path)
        X, y = blobs()
        X = X.astype(np.float32)
        common = {"encoder": (8, 3), "n_init": 2, "random_state": 0}
        ae = AutoencoderKMeans(4, pretrain_epochs=4, **common).fit(X)
        dec = DEC(4, pretrained=ae, epochs=3, **common).fit(X)
        ckm = DeepConcreteKMeans(4, pretrained=ae, **QUICK, **common).fit(X)
        found = record["rows"]["blobs"]["methods"]
        for key, fitted in (("ae+km", ae), ("dec", dec), ("ckm", ckm)):
            expected = [metrics.scores(y, restart.labels) for restart in fitted.restarts_]
            assert [{k: r[k] for k in deep.SCORES} for r in found[key]["runs"]] == expected
            summary = {k: s._asdict() for k, s in metrics.summarize(expected).items()}
            assert found[key]["summary"] == summary
            assert found[key]["kept"] == fitted.best_restart_
            assert [r["n_iter"] for r in found[key]["runs"]] == [r.n_iter for r in fitted.restarts_]
        best = [KMeans(4, n_init=10, random_state=seed).fit(X).inertia_ for seed in (0, 1)]
        assert [r["inertia"] for r in found["km"]["runs"]] == pytest.approx(best, rel=1e-4)

    def test_a_consensus_goes_on_from_the_fitted_restarts_and_is_repeatable(self, tmp_path, fits):
        both = small(
            methods={**SMALL["methods"], "ckm-consensus": {"single": True, "of": "ckm"}},
        )
        asked = {"config": both, "methods": ["ckm", "ckm-consensus"], "n_seeds": 3}
        record = run(tmp_path / "once", **asked)
        assert fits.count("DeepConcreteKMeans") == 2
        found = record["rows"]["blobs"]["methods"]
        X, y = blobs()
        common = {"encoder": (8, 3), "n_init": 3, "random_state": 0}
        ae = AutoencoderKMeans(4, pretrain_epochs=4, **common).fit(X.astype(np.float32))
        ckm = DeepConcreteKMeans(4, pretrained=ae, **QUICK, **common).fit(X.astype(np.float32))
        votes = np.stack([restart.labels for restart in ckm.restarts_])
        least = min(metrics.nmi(y, own) for own in votes)
        assert found["ckm-consensus"]["runs"][0]["nmi"] >= least - 0.02
        # stopped between the two: the restarts are trained again, the figures are the same
        run(tmp_path / "twice", **asked | {"methods": ["ckm"]})
        assert figures(run(tmp_path / "twice", **asked)) == figures(record)

    def test_configuration_and_environment_are_told(self, tmp_path):
        record = run(tmp_path, methods=["ckm"])
        cell = record["rows"]["blobs"]["methods"]["ckm"]
        told = record["configs"][cell["config"]]
        assert told["run"] == record["current"]
        assert told["run"]["seeds"] == [0, 1]
        assert told["run"]["precision"] == "float32"
        assert told["parameters"]["encoder"] == [8, 3]
        assert told["parameters"]["epochs"] == 3
        assert told["auto"]["clustering_weight"] == 5.0
        assert told["auto"]["sigma"] == pytest.approx(0.15**0.5)
        assert "epochs" not in told["auto"]  # 3 was given
        assert told["data"]["n_samples"] == 160
        assert cell["resolved"]["scale"] == "global"
        assert cell["resolved"]["steps"]["joint"] == 3
        assert {run_["status"] for run_ in cell["runs"]} == {"done"}
        assert "git" in record["environments"][cell["environment"]]
        assert record == json.loads((tmp_path / "table2.json").read_text("utf-8"))

    def test_rows_that_were_not_fitted_are_scored(self, tmp_path):
        data = SMALL["datasets"]["blobs"] | {"split": True}
        record = run(tmp_path, config=small(datasets={"blobs": data}), methods=["km", "dec"])
        X, y = blobs()
        X = X.astype(np.float32)
        common = {"encoder": (8, 3), "n_init": 2, "random_state": 0}
        ae = AutoencoderKMeans(4, pretrain_epochs=4, **common).fit(X[:120])
        found = record["rows"]["blobs"]["methods"]
        kept = found["ae+km"]["runs"][ae.best_restart_]
        assert {k: kept[k] for k in deep.SCORES} == metrics.scores(y[120:], ae.predict(X[120:]))
        km = KMeans(4, n_init=10, random_state=0).fit(X[:120])
        first = found["km"]["runs"][0]
        expected = metrics.scores(y[120:], km.predict(X[120:]))
        assert {k: first[k] for k in deep.SCORES} == pytest.approx(expected)

    def test_a_data_set_without_parts_cannot_be_split(self, tmp_path, made_up):
        X, y = blobs()
        made_up["digits"] = datasets.Dataset("digits", X, y, tuple("abcd"), None, None, "made up")
        data = SMALL["datasets"]["blobs"] | {"split": True, "images": True}
        with pytest.raises(ValueError, match=r"datasets\.blobs: digits has no training part"):
            run(tmp_path, config=small(datasets={"blobs": data}))
        data = SMALL["datasets"]["blobs"] | {"images": True}
        methods = {"ae+km": {}, "ckm-conv": {"images": True}}
        with pytest.raises(ValueError, match="digits must hold images"):
            run(tmp_path, config=small(datasets={"blobs": data}, methods=methods))

    def test_convolutions_get_images_and_an_autoencoder_of_their_own(
        self, tmp_path, monkeypatch, fits
    ):
        shapes, fit = [], deep.timed_fit

        def timed_fit(estimator, X):
            shapes.append((tuple(X.shape), estimator.pretrained))
            return fit(estimator, X)

        monkeypatch.setattr(deep, "timed_fit", timed_fit)
        data = SMALL["datasets"]["blobs"] | {"images": True, "split": True}
        quick = {"pretrain_epochs": 1, **QUICK, "epochs": 1}
        methods = {"ae+km": {}, "ckm-conv": {"images": True, "parameters": quick}}
        made = small(datasets={"blobs": data}, methods=methods)
        record = run(tmp_path, config=made, methods=["ckm-conv"])
        assert shapes == [((120, 4, 4), None)]
        assert list(record["rows"]["blobs"]["methods"]) == ["ckm-conv"]
        assert not (tmp_path / "autoencoders").exists()

    def test_one_result_of_all_seeds(self, tmp_path):
        methods = SMALL["methods"] | {"ckm": SMALL["methods"]["ckm"] | {"single": True}}
        record = run(tmp_path, config=small(methods=methods), methods=["ckm"])
        cell = record["rows"]["blobs"]["methods"]["ckm"]
        assert len(cell["runs"]) == 1
        assert cell["runs"][0]["seeds"] == [0, 1]
        assert "kept" not in cell
        line = (tmp_path / "table2.md").read_text("utf-8").split("| CKM ")[1].split("\n")[0]
        assert "±" not in line

    def test_parameters_of_one_data_set(self, tmp_path, fits):
        data = SMALL["datasets"]["blobs"] | {"parameters": {"ckm": {"scale": "none"}}}
        record = run(tmp_path, config=small(datasets={"blobs": data}), methods=["ckm"])
        # another scale wants another autoencoder
        assert list(record["rows"]["blobs"]["methods"]) == ["ckm"]
        told = record["configs"][record["rows"]["blobs"]["methods"]["ckm"]["config"]]
        assert told["autoencoders"] is None
        assert told["parameters"]["scale"] == "none"

    def test_no_folder_or_host_in_any_file(self, tmp_path):
        run(tmp_path / "out", methods=["km"])
        for path in (tmp_path / "out").iterdir():
            text = path.read_text("utf-8")
            assert str(tmp_path) not in text
            assert os.uname().nodename not in text


class TestResume:
    def test_finished_cells_are_taken_as_they_are(self, tmp_path, fits):
        first = run(tmp_path)
        assert fits == ["AutoencoderKMeans", "DEC", "DeepConcreteKMeans"]
        fits.clear()
        before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
        assert run(tmp_path) == first
        assert fits == []
        assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before

    def test_autoencoders_are_read_from_their_folder(self, tmp_path, fits):
        whole = run(tmp_path / "whole")
        run(tmp_path / "out", methods=["dec"])
        (folder,) = (tmp_path / "out" / "autoencoders").iterdir()
        written = (folder / "model.safetensors").stat().st_mtime_ns
        fits.clear()
        record = run(tmp_path / "out")
        assert fits == ["DeepConcreteKMeans"]
        assert figures(record) == figures(whole)
        assert (folder / "model.safetensors").stat().st_mtime_ns == written

    def test_without_the_folder_they_are_trained_again_with_the_same_result(self, tmp_path, fits):
        whole = run(tmp_path / "whole")
        first = run(tmp_path / "out", methods=["dec"])
        shutil.rmtree(tmp_path / "out" / "autoencoders")
        fits.clear()
        record = run(tmp_path / "out")
        assert fits == ["AutoencoderKMeans", "DeepConcreteKMeans"]
        assert figures(record) == figures(whole)
        taken = record["rows"]["blobs"]["methods"]["ae+km"]
        assert taken == first["rows"]["blobs"]["methods"]["ae+km"]

    def test_force_computes_what_was_asked_for_again(self, tmp_path, fits):
        run(tmp_path)
        fits.clear()
        run(tmp_path, methods=["ckm"], force=True)
        assert fits == ["DeepConcreteKMeans"]
        run(tmp_path, methods=["ae+km"], force=True)
        assert fits == ["DeepConcreteKMeans", "AutoencoderKMeans"]

    @pytest.mark.parametrize("change", ["seeds", "version", "default", "data", "precision"])
    def test_another_configuration_computes_again(
        self, tmp_path, fits, monkeypatch, made_up, change
    ):
        asked = {"methods": ["ckm"]}
        run(tmp_path, **asked)
        fits.clear()
        if change == "seeds":
            asked["n_seeds"] = 1
        elif change == "version":
            monkeypatch.setattr("concrete_kmeans.__version__", "9.9")
        elif change == "default":
            monkeypatch.setitem(deep.AUTO_BALANCE, "scaled", 2.0)
        elif change == "precision":
            asked["precision"] = "float64"
        else:
            made_up["digits"] = blobs(seed=1)
        record = run(tmp_path, **asked)
        expected = ["DeepConcreteKMeans"]
        assert fits == (expected if change == "default" else ["AutoencoderKMeans", *expected])
        assert len(record["configs"]) == 2  # the old ones are gone with their cells
        fits.clear()
        run(tmp_path, **asked)
        assert fits == []

    def test_what_was_not_asked_for_stays_and_is_marked(self, tmp_path, fits):
        run(tmp_path, methods=["km", "dec"])
        record = run(tmp_path, methods=["km"], n_seeds=3)
        assert list(record["rows"]["blobs"]["methods"]) == ["km", "ae+km", "dec"]
        text = table2_report.to_markdown(record)
        assert re.search(r"\| DEC § +\|", text)
        assert re.search(r"\| KM +\|", text)
        assert "§ of other seeds" in text

    @pytest.mark.parametrize("stop_at", [0, 1, 2])
    def test_interrupted_in_a_cell_keeps_the_ones_before(
        self, tmp_path, fits, monkeypatch, stop_at
    ):
        whole = run(tmp_path / "whole")
        fits.clear()
        going = deep.timed_fit

        def interrupted(*arguments):
            if len(fits) == stop_at:
                raise KeyboardInterrupt
            return going(*arguments)

        monkeypatch.setattr(deep, "timed_fit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "out")
        fits.clear()
        monkeypatch.setattr(deep, "timed_fit", going)
        record = run(tmp_path / "out")
        assert len(fits) == 3 - stop_at
        assert figures(record) == figures(whole)

    @pytest.mark.skipif(os.name == "nt", reason="sends SIGKILL")
    def test_killed_then_run_again_repeats_nothing_and_gives_the_same(self, tmp_path, fits):
        # DKM does not stop early: there is time to kill it
        slow = {"parameters": {"pretrain_epochs": 4, "epochs": 400}}
        methods = {key: SMALL["methods"][key] for key in ("km", "ae+km", "dec")} | {"dkm": slow}
        code = f"""
            import sys
            from pathlib import Path
            import numpy as np
            from concrete_kmeans import datasets
            from concrete_kmeans.experiments import config, table2
            X, y = np.load(sys.argv[2]), np.arange(160) % 4
            made = datasets.Dataset("digits", X, y, tuple("abcd"), (4, 4), 120, "made up")
            datasets.load = lambda *_, **__: made
            given = config.Config.of({dict(SMALL, methods=methods)!r})
            table2.run(Path(sys.argv[1]), config=given, n_seeds=2, device="cpu")
        """
        np.save(tmp_path / "rows.npy", blobs().data)
        command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "out")]
        command.append(str(tmp_path / "rows.npy"))
        path = tmp_path / "out" / "table2.json"
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            while not path.exists() or '"dec": {' not in path.read_text("utf-8"):
                assert process.poll() is None
                time.sleep(0.005)
        finally:
            process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        killed = json.loads(path.read_text("utf-8"))["rows"]["blobs"]["methods"]
        assert list(killed) == ["km", "ae+km", "dec"]
        subprocess.run(command, check=True)
        record = json.loads(path.read_text("utf-8"))
        again = record["rows"]["blobs"]["methods"]
        assert {key: again[key] for key in killed} == killed  # their seconds, too
        whole = run(tmp_path / "whole", config=small(methods=methods))
        assert figures(record) == figures(whole)

    def test_a_file_that_is_not_table_2_is_left_alone(self, tmp_path, fits):
        path = tmp_path / "table2.json"
        for text, message in [("{", "not a file of results"), ('{"a": 1}', "not hold table 2")]:
            path.write_text(text)
            with pytest.raises(ValueError, match=message):
                run(tmp_path)
            assert path.read_text() == text
        assert fits == []


def made_up_record():
    """Two methods on one data set, by hand."""

    def cell(*values, status="done", **more):
        runs = [
            {"seed": i, **dict.fromkeys(SCORES, v), "status": status} for i, v in enumerate(values)
        ]
        summary = metrics.summarize([{key: r[key] for key in SCORES} for r in runs])
        return {
            "config": "c",
            "environment": "e",
            "seconds": 12.4,
            "runs": runs,
            "summary": {key: value._asdict() for key, value in summary.items()},
            **more,
        }

    paper = {score: {"mean": 70.0, "std": 1.0} for score in SCORES}
    settings = {"seeds": [0, 1], "device": "cuda", "precision": "tf32"}
    return {
        "titles": {"dec": "DEC", "ckm": "CKM"},
        "current": settings,
        "configs": {"c": {"run": settings}},
        "environments": {"e": results.environment()},
        "counted": {"datasets": ["a", "b"], "method": "ckm", "against": ["dec"]},
        "targets": [
            {"title": "A & more", "dataset": "a", "method": "ckm", "nmi": 75, "ari": 80, "acc": 81},
            {"title": "not run", "dataset": "b", "method": "ckm", "nmi": 1, "ari": 1, "acc": 1},
        ],
        "rows": {
            "a": {
                "title": "A, all rows",
                "encoder": [8, 3],
                "data": {"n_features": 16, "n_clusters": 4},
                "paper": {"dec": paper},
                "methods": {
                    "dec": cell(0.6, 0.62, status="collapsed: clusters merged", kept=1),
                    "ckm": cell(0.75, 0.85, kept=0),
                },
            }
        },
    }


@pytest.mark.data
def test_the_papers_split_of_usps(tmp_path, monkeypatch):
    home = Path(os.environ.get("CKM_DATA_HOME") or "nowhere")
    if not (home / "zip.train.gz").exists():
        pytest.skip("usps is not in CKM_DATA_HOME")
    monkeypatch.setattr(datasets, "load", LOAD)
    asked = {"names": ["usps-split"], "methods": ["km"], "data_home": home}
    record = run(tmp_path, **asked, config=config.table2(), n_seeds=1)
    row = record["rows"]["usps-split"]
    assert (row["data"]["n_samples"], row["data"]["split"]) == (9298, 7291)
    train, test = np.split(LOAD("usps", home).data, [7291])
    labels = KMeans(10, n_init=10, random_state=0).fit(train).predict(test)
    found, y = row["methods"]["km"]["runs"][0]["nmi"], LOAD("usps", home).target[7291:]
    assert found == pytest.approx(metrics.nmi(y, labels), abs=0.02)


class TestReport:
    def test_scores_by_hand(self):
        header, lines = table2_report.score_table(made_up_record(), "a")
        assert header[:5] == ["method", "NMI", "ARI", "ACC", "kept: NMI / ARI / ACC"]
        assert lines[0] == [
            "DEC †", *["61.0±1.4"] * 3, "62.0 / 62.0 / 62.0", "2", "12", *["70.0±1.0"] * 3,
        ]  # fmt: skip
        assert lines[1] == [
            "CKM", *["80.0±7.1"] * 3, "75.0 / 75.0 / 75.0", "2", "12", *["—"] * 3,
        ]  # fmt: skip

    def test_targets_by_hand(self):
        _, lines = table2_report.target_table(made_up_record())
        assert lines[0] == [
            "A & more",
            "80.0 (≥ 75.0: reached)",
            "80.0 (≥ 80.0: reached)",
            "80.0 (≥ 81.0: missed by 1.00)",
            "2",
        ]
        assert lines[1] == ["not run", *["— (≥ 1.0)"] * 3, "—"]

    def test_counts_by_hand(self):
        assert table2_report.verdict(made_up_record()) == [
            "CKM against the best figure of any method in the paper: ahead in 3 of 3 cells.",
            "CKM against our own DEC: ahead in 3 of 3 cells.",
            "Our DEC against the paper's: ahead in 0 of 3 cells; behind in A NMI by 9.0, "
            "A ARI by 9.0, A ACC by 9.0.",
        ]
        assert table2_report.verdict(made_up_record() | {"counted": {}}) == []

    def test_pages_hold_every_table(self):
        record = made_up_record()
        page, tex = table2_report.to_markdown(record), table2_report.to_latex(record)
        assert "## A, all rows" in page
        assert "† some seeds collapsed" in page
        assert "25 seconds of fitting in all" in page
        assert tex.count("\\begin{table*}") == tex.count("\\end{table*}") == 2
        assert "A \\& more" in tex
        assert "$\\pm$" in tex
        assert tex.isascii()
        for line in page.splitlines():
            if line.startswith("| -"):  # a rule that Markdown knows
                assert all(set(part.strip()) <= {"-", ":"} and "-" in part
                           for part in line.strip("|").split("|"))  # fmt: skip

    def test_picture_has_a_dot_a_seed_and_a_ring_a_figure_of_the_paper(self):
        root = ET.fromstring(table2_report.to_svg(made_up_record()))
        circles = root.findall("{http://www.w3.org/2000/svg}circle")
        filled = [circle for circle in circles if circle.get("fill") != "none"]
        assert (len(filled), len(circles) - len(filled)) == (4, 1)
        at = [float(circle.get("cx")) for circle in circles]  # DEC 60, 62, paper 70, CKM 75, 85
        scale = (at[4] - at[0]) / (85 - 60)
        assert at == pytest.approx(
            [at[0] + scale * (v - 60) for v in (60, 62, 70, 75, 85)], abs=0.2
        )

    @given(st.floats(0, 100), st.floats(0, 100))
    def test_ticks_enclose_the_range(self, a, b):
        low, high = min(a, b), max(a, b)
        ticks = dots.ticks(low, high)
        assert ticks[0] <= low
        assert high <= ticks[-1] + 1e-9
        assert 2 <= len(ticks) <= dots.MAX_TICKS + 1
        assert all(later > earlier for earlier, later in pairwise(ticks))
