from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

import concrete_kmeans
from concrete_kmeans.cli import app
from concrete_kmeans.estimators import methods
from concrete_kmeans.experiments import config, deep, demo, runtime, shallow, table1, table2

runner = CliRunner()
TABLE1, TABLE2 = ["reproduce", "table1"], ["reproduce", "table2"]
RUNTIME = ["reproduce", "runtime"]


def ckm(*arguments: str) -> tuple[int, str, str]:
    result = runner.invoke(app, list(arguments), prog_name="ckm")
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def failing(monkeypatch):
    """Makes every fit raise what it is called with."""

    def fail_with(error):
        def run(*_):
            raise error

        monkeypatch.setattr(shallow, "run", run)
        monkeypatch.setattr(deep, "fit_kmeans", run)

    return fail_with


class TestStart:
    def test_help_imports_nothing_heavy_and_is_quick(self):
        code = (
            "import sys\n"
            "from concrete_kmeans.cli import main\n"
            "try:\n    main()\nexcept SystemExit as stop:\n    assert not stop.code, stop.code\n"
            "heavy = {'torch', 'sklearn', 'scipy', 'numpy', 'pandas'} & set(sys.modules)\n"
            "assert not heavy, heavy\n"
        )
        for arguments in (["--help"], [*TABLE1, "--help"], [*TABLE2, "--help"], ["--version"]):
            before = os.times()
            answer = subprocess.run(
                [sys.executable, "-c", code, *arguments], capture_output=True, text=True
            )
            assert (answer.returncode, answer.stderr) == (0, "")
            after = os.times()  # processor time of the child: a busy machine is not its fault
            spent = after.children_user + after.children_system
            assert spent - before.children_user - before.children_system < 1.0

    @pytest.mark.parametrize(
        "command", [[], ["bench"], ["demo"], ["reproduce"], TABLE1, TABLE2, RUNTIME]
    )
    @pytest.mark.parametrize("flag", ["-h", "--help"])
    def test_help_everywhere(self, command, flag):
        code, out, err = ckm(*command, flag)
        assert (code, err) == (0, "")
        assert out.startswith(f"Usage: {' '.join(['ckm', *command])} ")

    def test_version(self):
        assert ckm("--version") == (0, f"ckm {concrete_kmeans.__version__}\n", "")

    def test_python_m(self):
        command = [sys.executable, "-m", "concrete_kmeans", "--version"]
        answer = subprocess.run(command, capture_output=True, text=True)
        assert answer.stdout == f"ckm {concrete_kmeans.__version__}\n"


class TestExitCodes:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["fly"], "fly"),
            (["demo", "--seeds", "0"], "--seeds"),
            ([*TABLE1, "--seeds", "many"], "--seeds"),
            ([*TABLE1, "--datasets", "digits,iris"], "'iris' not among"),
            ([*TABLE1, "--datasets", ""], "'' not among"),
            ([*TABLE1, "--data-home", "no-such-folder"], "no-such-folder"),
            ([*TABLE1, "--device", "abacus"], "abacus"),
            ([*TABLE1, "--colour"], "--colour"),
            ([*TABLE2, "--datasets", "usps,iris"], "'iris' not among"),
            ([*TABLE2, "--methods", "km,dbscan"], "'dbscan' not among"),
            ([*TABLE2, "--datasets", "20newsgroups", "--methods", "ckm-conv"], "images only"),
            ([*TABLE2, "--seeds", "0"], "--seeds"),
            ([*TABLE2, "--device", "abacus"], "abacus"),
            ([*TABLE2, "--precision", "half"], "'half'"),
            ([*RUNTIME, "--epochs", "1"], "--epochs"),
            ([*RUNTIME, "--rows", "0"], "--rows"),
            ([*RUNTIME, "--device", "abacus"], "abacus"),
        ],
    )
    def test_wrong_usage_is_2(self, arguments, message, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        code, out, err = ckm(*arguments)
        assert (code, out) == (2, "")
        assert message in err
        assert "Traceback" not in err
        assert list(tmp_path.iterdir()) == []

    def test_unknown_data_set_lists_the_known(self):
        _, _, err = ckm(*TABLE1, "--datasets", "iris")
        assert all(name in err for name in table1.DATASETS)

    def test_failure_is_1_with_one_line(self, failing, tmp_path):
        failing(RuntimeError("the disk\nis on fire"))
        code, out, err = ckm(*TABLE1, "--datasets", "digits", "--out", str(tmp_path))
        assert (code, out) == (1, "")
        assert err == "ckm: RuntimeError: the disk is on fire\n"

    @pytest.mark.parametrize("before", [True, False])
    def test_debug_shows_the_traceback(self, failing, before):
        failing(RuntimeError("the disk is on fire"))
        code, _, err = ckm(*(["--debug", "demo"] if before else ["demo", "--debug"]))
        assert code == 1
        assert err.startswith("Traceback")
        assert err.endswith("ckm: RuntimeError: the disk is on fire\n")

    def test_malformed_results_are_a_failure(self, tmp_path):
        (tmp_path / "table1.json").write_text("{")
        code, _, err = ckm(*TABLE1, "--datasets", "digits", "--out", str(tmp_path))
        assert code == 1
        assert "table1.json is not a file of results" in err
        assert err.count("\n") == 1

    def test_interruption_is_130_with_one_line(self, failing, tmp_path):
        failing(KeyboardInterrupt())
        code, out, err = ckm(*TABLE1, "--datasets", "digits", "--out", str(tmp_path))
        assert (code, out) == (130, "")
        assert re.fullmatch(r"ckm: interrupted; what is finished is kept.*\n", err)
        assert ckm("demo") == (130, "", "ckm: interrupted\n")

    @pytest.mark.skipif(os.name == "nt", reason="sends SIGINT")
    def test_control_c_in_a_real_process(self, tmp_path):
        asked = ["--datasets", "dig44,digits", "--seeds", "200", "--out", str(tmp_path)]
        command = [sys.executable, "-m", "concrete_kmeans", *TABLE1, *asked]
        # the row of dig44, which is in no folder, is there before the fits of the digits begin
        places = {"XDG_CACHE_HOME": str(tmp_path), "CKM_DATA_HOME": ""}
        process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env=os.environ | places
        )
        path = tmp_path / "table1.json"
        while not path.exists():
            assert process.poll() is None
            time.sleep(0.01)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        assert process.returncode == 130
        assert err.splitlines()[-1].startswith("ckm: interrupted; what is finished is kept")
        assert "Traceback" not in err
        assert list(json.loads(path.read_text("utf-8"))["rows"]) == ["dig44"]


class TestTable1:
    def test_table_on_stdout_and_three_files(self, tmp_path):
        out = tmp_path / "out"
        code, text, err = ckm(*TABLE1, "--datasets", "digits", "--seeds", "1", "--out", str(out))
        assert (code, err) == (0, "")  # no progress bar where there is no terminal
        assert re.search(r"digits ‡ +CKM +0\.\d\d±0\.00", text)
        assert "on 1 data sets: lower on" in text
        assert {path.name for path in out.iterdir()} == {"table1.json", "table1.md", "table1.tex"}
        again = ckm(*TABLE1, "--datasets", "digits", "--seeds", "1", "--out", str(out))
        assert again == (0, text, "")
        code, printed, err = ckm(
            *TABLE1, "--datasets", "digits", "--seeds", "1", "--out", str(out), "--json"
        )
        assert (code, err) == (0, "")
        assert printed == (out / "table1.json").read_text("utf-8")

    def test_all_data_sets_and_fifteen_seeds_are_the_default(self, monkeypatch, tmp_path):
        asked = {}

        def run(out, **given):
            asked.update(given, out=out)
            raise KeyboardInterrupt

        monkeypatch.setattr(table1, "run", run)
        monkeypatch.chdir(tmp_path)
        ckm(*TABLE1, "--device", "cpu")
        assert asked.pop("advance")
        assert asked.pop("out").as_posix() == "runs/table1"
        assert asked == {
            "names": table1.DATASETS,
            "n_seeds": 15,
            "data_home": None,
            "device": "cpu",
            "force": False,
        }


class TestTable2:
    @pytest.fixture
    def digits(self, monkeypatch):
        """The real command on the digits, with a small network and little training."""
        quick = {"pretrain_epochs": 2, "epochs": 2}
        small = {
            "datasets": {"digits": {"title": "Digits", "load": "digits", "encoder": [16, 4]}},
            "methods": {
                "km": {},
                "ae+km": {"parameters": quick},
                "dec": {"parameters": quick},
            },
        }
        monkeypatch.setattr(config, "table2", lambda: config.Config.of(small))
        monkeypatch.setattr(table2, "table2", config.table2)

    def test_table_on_stdout_and_files(self, tmp_path, digits):
        out = tmp_path / "out"
        asked = [*TABLE2, "--methods", "km,dec", "--seeds", "2", "--out", str(out)]
        code, text, err = ckm(*asked, "--device", "cpu")
        assert (code, err) == (0, "")
        assert re.search(r"DEC +\d+\.\d±\d\.\d", text)
        assert "AE+KM" in text
        names = {path.name for path in out.iterdir()}
        assert names == {f"table2.{kind}" for kind in ("json", "md", "tex", "svg")} | {
            "autoencoders"
        }
        code, printed, err = ckm(*asked, "--device", "cpu", "--json")
        assert (code, err) == (0, "")
        assert printed == (out / "table2.json").read_text("utf-8")

    def test_everything_and_fifteen_seeds_are_the_default(self, monkeypatch, tmp_path):
        asked = {}

        def run(out, **given):
            asked.update(given, out=out)
            raise KeyboardInterrupt

        monkeypatch.setattr(table2, "run", run)
        monkeypatch.setattr(table2, "plan", lambda *_: {"usps": ("km",)})
        monkeypatch.chdir(tmp_path)
        code, out, err = ckm(*TABLE2, "--device", "cpu")
        assert (code, out) == (130, "")
        assert re.fullmatch(r"ckm: interrupted; what is finished is kept.*\n", err)
        assert asked.pop("advance")
        assert asked.pop("out").as_posix() == "runs/table2"
        assert asked == {
            "names": None,
            "methods": None,
            "n_seeds": 15,
            "data_home": None,
            "device": "cpu",
            "precision": "float32",
            "force": False,
        }

    def test_help_names_every_data_set_and_method(self):
        _, out, _ = ckm(*TABLE2, "--help")
        known = config.table2()
        assert all(name in out for name in (*known.datasets, *known.methods))


def test_runtime(monkeypatch, tmp_path):
    small = config.Runtime("Digits", "digits", [16, 4], 64, [1], {"dcn": {"paper": 36.0}})
    monkeypatch.setattr(config, "runtime", lambda: small)
    monkeypatch.setattr(runtime, "default_config", config.runtime)
    asked = [*RUNTIME, "--rows", "640", "--epochs", "3", "--device", "cpu", "--out", str(tmp_path)]
    code, text, err = ckm(*asked)
    assert (code, err) == (0, "")
    assert "640 rows" in text
    assert "DCN" in text
    assert {path.name for path in tmp_path.iterdir()} == {"runtime.json", "runtime.md"}


class TestDemo:
    @pytest.fixture(autouse=True)
    def _quick(self, monkeypatch):
        """The real methods on the real digits, with little training."""
        for method, (kind, own) in deep.METHODS.items():
            quick = {"pretrain_epochs": 1, "epochs": 1, "encoder": (16, 4)}
            monkeypatch.setitem(deep.METHODS, method, (kind, own | quick))
        monkeypatch.setattr(methods, "WARM_UP_EPOCHS", 1)

    def test_prints_five_methods_and_writes_nothing(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        code, text, err = ckm("demo", "--seeds", "2")
        assert (code, err) == (0, "")
        assert all(title in text for title in demo.TITLES.values())
        assert all(word in text for word in ("NMI", "ARI", "ACC", "purity", "seconds"))
        assert "n=2" in text
        assert "every seed counts" in text
        assert "Read on:" in text
        assert list(tmp_path.iterdir()) == []

    def test_out(self, tmp_path):
        path = tmp_path / "demo.json"
        assert ckm("demo", "--seeds", "1", "--out", str(path))[0] == 0
        record = json.loads(path.read_text("utf-8"))
        assert record["seeds"] == [0]
        assert list(record["methods"]) == ["km", "ae+km", "dcn", "dec", "ckm"]
        for cell in record["methods"].values():
            assert cell["summary"]["nmi"]["mean"] == cell["runs"][0]["nmi"]
        assert str(tmp_path) not in path.read_text("utf-8")

    def test_report(self, tmp_path):
        path = tmp_path / "new" / "digits.html"
        code, text, err = ckm("demo", "--seeds", "2", "--report", str(path))
        assert (code, err) == (0, "")
        assert "digits.html to see the clusters" in " ".join(text.split())
        page = path.read_text("utf-8")
        assert "<title>Handwritten digits" in page
        assert page.count("data:image/png;base64") >= 1  # the digits themselves
        assert ckm("demo", "--report", str(tmp_path))[0] == 2
