"""The benchmarks: what they compare agrees, what they conclude is right, the page shows it."""

import doctest
import importlib
import json
import platform
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from concrete_kmeans import datasets
from concrete_kmeans.cli import app, bench

ROOT = Path(__file__).parents[1]


@pytest.fixture
def benchmark(monkeypatch):
    """Import a script by its name, from the folder the scripts are run from."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:  # their names are too plain to stay
        if str(ROOT / "benchmarks") in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def page(benchmark):
    spec = importlib.util.spec_from_file_location("page", ROOT / "docs" / "performance_page.py")
    module = importlib.util.module_from_spec(spec)
    path = list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = path
    return module


def ckm(*arguments):
    answer = CliRunner().invoke(app, ["bench", *arguments], prog_name="ckm")
    return answer.exit_code, answer.stdout, answer.stderr


# ---------------------------------------------------------------------------------------- ckm bench


def test_command_runs_the_parts_asked_for(monkeypatch):
    asked = []

    def run(command, check):
        asked.append(command[1:])
        return subprocess.CompletedProcess(command, 3 if "growth" in command else 0)

    monkeypatch.setattr(subprocess, "run", run)
    assert ckm("lloyd", "limits")[0] == 0
    assert ckm("growth", "--full", "--rounds", "2")[0] == 3
    suite = str(ROOT / "benchmarks" / "suite.py")
    assert asked[0] == [suite, "lloyd", "limits", "--device", "cpu", "--quick"]
    assert asked[1] == [suite, "growth", "--device", "cpu", "--rounds", "2"]


def test_suite_passes_rounds_on(benchmark, monkeypatch, capsys):
    suite = benchmark("suite")
    asked = []

    def run(command, check):
        asked.append([Path(command[1]).stem, *command[2:]])
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", run)
    arguments = ["suite", "limits", "step_profile", "--quick", "--rounds", "3"]
    monkeypatch.setattr(sys, "argv", arguments)
    assert suite.main() == 0
    given = ["--device", "cpu", "--quick", "--rounds", "3"]
    assert asked == [["limits", *given], ["step_profile", *given]]
    assert capsys.readouterr().out.startswith("run once all the same: step_profile\n")
    monkeypatch.setattr(sys, "argv", [*arguments[:-1], "1"])
    assert suite.main() == 0
    assert "run once" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "PARTS must be one of 'limits',"),
        (["--rounds", "0"], "rounds must be a whole number of at least 1, got 0"),
        (["--device", "abacus"], "device must be one of 'cpu', 'cuda', got 'abacus'"),
    ],
)
def test_command_names_what_is_wrong(arguments, message):
    code, out, err = ckm(*arguments)
    assert (code, out) == (2, "")
    assert message in " ".join(err.split())


def test_command_says_that_it_needs_a_checkout(monkeypatch, tmp_path):
    monkeypatch.setattr(bench, "SUITE", tmp_path / "suite.py")
    code, out, err = ckm("limits")
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert "checkout" in err


def test_suite_and_command_know_the_same_parts(benchmark):
    suite = benchmark("suite")
    assert suite.PARTS == bench.PARTS
    assert all((ROOT / "benchmarks" / f"{part}.py").is_file() for part in suite.PARTS)
    assert suite.chosen_parts([], "cuda", quick=True) == ["limits", "lloyd", "predict", "training"]
    assert suite.chosen_parts(["growth", "lloyd"], "cpu", quick=True) == ["lloyd", "growth"]
    with pytest.raises(ValueError, match="CPU only"):
        suite.chosen_parts(["shallow"], "cuda", quick=False)


# -------------------------------------------------------------------------------------- contenders


def test_contenders_of_lloyd_find_the_same(benchmark, tmp_path):
    lloyd = benchmark("lloyd")
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 5)).astype(np.float32) + 4 * rng.integers(3, size=(400, 1))
    np.save(tmp_path / "rows.npy", X.astype(np.float32))
    np.save(tmp_path / "centers.npy", X[:4].astype(np.float32))
    given = {"rows": str(tmp_path / "rows.npy"), "centers": str(tmp_path / "centers.npy"), "k": 4}
    names = ("concrete-kmeans", "scikit-learn", "scikit-learn (elkan)", "plain torch")
    found = [lloyd.CONTENDERS[name](**given) for name in names]
    assert [row["inertia"] for row in found] == pytest.approx([found[0]["inertia"]] * 4, rel=1e-5)
    assert all(row["seconds"] > 0 and row["extra_mb"] >= 0 for row in found)


def test_benchmarks_run_where_mnist_cannot_be_loaded(benchmark, monkeypatch, tmp_path, capsys):
    """On other rows of its shape, and results say so; cases of made-up rows are as ever."""
    cases, targets, measure = benchmark("cases"), benchmark("targets"), benchmark("measure")
    load = datasets.load

    def without_network(name):
        if name == "mnist":
            raise OSError("no route to anywhere")
        return load(name)

    monkeypatch.setattr(datasets, "load", without_network)
    X, about = cases.mnist(3000)
    assert "no route to anywhere; or set CKM_DATA_HOME" in capsys.readouterr().err
    assert (X.shape, X.dtype, X.min()) == ((3000, 784), np.float32, 0.0)
    assert 0.7 < X.max() <= 1.0
    assert len(np.unique(X, axis=0)) == 3000
    assert np.array_equal(X, cases.enlarged_digits(3000))
    monkeypatch.setitem(cases.CASES, "million", {"n": 50, "d": 3, "k": 4})
    arguments, made_up = cases.store("million", tmp_path)
    assert np.load(arguments["rows"]).shape == (50, 3)
    assert np.load(arguments["centers"]).shape == (4, 3)
    assert (made_up, capsys.readouterr().err) == ({}, "")

    assert about == {"stand_in": cases.STAND_IN}
    assert cases.stand_ins({"contenders": {}} | about) == {cases.STAND_IN}
    assert cases.stand_ins({"cases": {"mnist": about, "million": {}}}) == {cases.STAND_IN}
    assert cases.stand_ins({"cases": [about]}) == {cases.STAND_IN}
    assert cases.stand_ins({"cases": {"million": {}}}) == cases.stand_ins({}) == set()
    monkeypatch.setattr(measure, "RESULTS", tmp_path)
    assert cases.STAND_IN not in "".join(targets.lines(quick=True, device="cpu"))
    measure.write("training", {"contenders": EPOCHS} | about, quick=True)
    assert targets.lines(quick=True, device="cpu")[-1] == f"  rows: {cases.STAND_IN}"


def test_the_first_fit_and_later_ones(benchmark, monkeypatch):
    first_fit = benchmark("first_fit")
    monkeypatch.setenv("TRITON_CACHE_DIR", "elsewhere")
    found = first_fit.fit("ConcreteKMeans (lloyd), digits", "cpu")
    assert found["seconds"] > 0
    assert found["later_seconds"] > 0
    assert found["compiled"] == 0


def test_contenders_of_lloyd_on_each_device(benchmark):
    lloyd = benchmark("lloyd")
    on_cuda = lloyd.chosen_contenders(None, "cuda", quick=False)
    assert on_cuda == ["concrete-kmeans", "flash-kmeans", "plain torch"]
    on_cpu = lloyd.chosen_contenders(None, "cpu", quick=False)
    assert set(lloyd.CONTENDERS) - set(on_cpu) == {"flash-kmeans", "plain torch"}
    for case, without in (("mnist", set()), ("wide", {"scikit-learn (elkan)"})):
        quick = lloyd.chosen_contenders(None, "cpu", quick=True, case=case)
        assert set(on_cpu) - set(quick) == {*lloyd.SLOW, *without}
    only = lloyd.chosen_contenders("scikit-learn (elkan)", "cpu", quick=True, case="wide")
    assert only == ["scikit-learn (elkan)"]


def test_a_peer_that_is_missing_or_fails_is_named(benchmark, tmp_path):
    measure = benchmark("measure")
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT / 'benchmarks')!r})\nimport measure\n"
        "def missing(): import no_such_peer\n"
        "def wrong(): raise ValueError('out of luck')\n"
        "def product(q=False): return {'seconds': 1.0, 'extra_mb': 0.0, 'q': q}\n"
        "def fine(): return {'seconds': 2.0, 'extra_mb': 1.0, 'x': 3}\n"
        "asked = {'missing': missing, 'wrong': wrong, 'fine': fine}\n"
        "measure.serve(asked | {'product': product, 'product, tf32': product})\n"
    )
    names = ["missing", "wrong", "fine"]
    found = measure.compare(str(script), names, {}, rounds=2, timeout=60)
    assert found["missing"] == {"error": "not installed: no module named 'no_such_peer'"}
    assert "out of luck" in found["wrong"]["error"]
    assert found["fine"]["seconds_all"] == [2.0, 2.0]
    assert found["fine"]["x"] == 3
    given = {"rounds": 1, "timeout": 60, "product": {"q": True}}
    names = ["fine", "product", "product, tf32"]  # "fine" takes no such argument
    found = measure.compare(str(script), names, {}, **given)
    assert [found[name].get("q") for name in names] == [None, True, True]


def test_results_of_the_same_machine_are_kept_beside_new_ones(benchmark, monkeypatch, tmp_path):
    measure = benchmark("measure")
    monkeypatch.setattr(measure, "RESULTS", tmp_path / "results")
    here = {"quick": False, "device": "cpu"}
    measure.merged("part", "cases", {"cases": {"a": 1, "b": 2}}, **here)
    measure.merged("part", "cases", {"cases": {"b": 3}}, **here)
    assert measure.read("part")["cases"] == {"a": 1, "b": 3}
    assert measure.read("part", quick=True) == measure.read("part", device="cuda") == {}
    other = measure.machine() | {"cores": 999}
    monkeypatch.setattr(measure, "machine", lambda: other)
    measure.merged("part", "cases", {"cases": {"c": 4}}, **here)
    assert measure.read("part")["cases"] == {"c": 4}
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["part.json"]


def test_results_say_which_state_of_the_code_gave_them(benchmark, monkeypatch, tmp_path):
    measure = benchmark("measure")
    for folder in ("a", "b"):
        (tmp_path / folder / "inner").mkdir(parents=True)
        (tmp_path / folder / "one.py").write_text("1")
        (tmp_path / folder / "inner" / "two.py").write_text("2")
        (tmp_path / folder / f"{folder}.txt").write_text(folder)  # no module of it
    known = measure.source(tmp_path / "a")
    assert measure.source(tmp_path / "b") == known
    (tmp_path / "b" / "one.py").write_text("1 + 0")
    assert measure.source(tmp_path / "b") != known
    (tmp_path / "a" / "one.py").rename(tmp_path / "a" / "three.py")
    assert measure.source(tmp_path / "a") != known

    monkeypatch.setattr(measure, "RESULTS", tmp_path / "results")
    measure.write("new", {})
    measure.write("part", {}, quick=True)
    parts = ("new", "old", "older")
    assert measure.of_other_code(parts) == []
    before = {"machine": measure.machine() | {"source": known}}
    for name, result in (("old-cuda.json", before), ("older.json", {}), ("study.json", {})):
        (tmp_path / "results" / name).write_text(json.dumps(result))
    (tmp_path / "results" / "quick" / "old.json").write_text("{}")
    assert measure.of_other_code(parts) == ["old-cuda.json", "older.json"]
    here = {"quick": False, "device": "cpu"}
    (tmp_path / "results" / "old.json").write_text(json.dumps(before | {"cases": {"a": 1}}))
    measure.merged("old", "cases", {"cases": {"b": 2}}, **here)
    assert measure.read("old")["cases"] == {"b": 2}  # that of other code is not beside it


def test_arithmetic_of_an_epoch_is_that_of_its_layers(benchmark):
    """As torch counts them."""
    training = benchmark("training")
    widths, n = training.WIDTHS, 8
    model = [torch.nn.Linear(a, b) for a, b in pairwise(widths)]
    model += [torch.nn.Linear(b, a) for a, b in pairwise(widths)][::-1]
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        torch.nn.Sequential(*model)(torch.zeros(n, widths[0])).sum().backward()
    assert training.arithmetic(n) == counter.get_total_flops()


@pytest.mark.parametrize("name", ["cases", "growth", "limits", "step_profile"])
def test_examples_of_scripts(benchmark, name):
    found = doctest.testmod(benchmark(name))
    assert found.attempted
    assert not found.failed


def test_exponents_are_those_of_power_laws(benchmark):
    growth = benchmark("growth")
    sizes = [10, 32, 100, 316, 1000]
    assert growth.exponent(sizes, [n**1.5 for n in sizes]) == pytest.approx(1.5)
    calls = []

    def quadratic(device, rounds, **size):
        calls.append(size)
        return size["rows"] ** 2 * 1e-9

    given = {"points": 5, "device": "cpu", "rounds": 1}
    found = growth.grown("rows", 10, {"rows": 1, "features": 3}, quadratic, **given)
    assert found["sizes"] == sizes
    assert found["exponent"] == pytest.approx(2.0, abs=0.01)
    assert found["others"] == {"features": 3}
    assert all(call["features"] == 3 for call in calls)


def test_profile_has_the_whole_epoch(benchmark, monkeypatch):
    """On a network of a few units; groups and the rest add up to the epoch."""
    step_profile = benchmark("step_profile")
    rng = np.random.default_rng(0)
    rows = rng.random((5120, 784)) + 3 * rng.random((10, 784))[rng.integers(10, size=5120)]
    monkeypatch.setattr("concrete_kmeans.datasets.load", lambda _: type("", (), {"data": rows}))
    monkeypatch.setattr(step_profile, "WIDTHS", (20, 10))
    found = step_profile.profiled("cpu", "float32", 2, 5120)
    assert sum(found["groups"].values()) == pytest.approx(found["seconds"], rel=0.05)
    assert found["groups"]["products"] > 0
    assert found["groups"]["optimiser"] > 0
    assert any("mm" in name for name in found["operations"])


def test_two_cpus_of_one_name_are_told_apart(benchmark, tmp_path):
    told = tmp_path / "cpuinfo"
    told.write_text("processor\t: 0\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: Abacus\n\n")
    named = benchmark("measure")._cpu
    assert named(told) == "Abacus, family 25, model 17"
    told.write_text("model name : Abacus\n")
    assert named(told) == "Abacus"
    assert named(tmp_path / "missing") == platform.processor()


# ----------------------------------------------------------------------------- targets and the page

EPOCHS = {
    "concrete-kmeans": {"seconds": 8.0, "fraction_of_limit": 0.87},
    "plain loop": {"seconds": 10.0},
    "ClustPy DCN": {"error": "not installed"},
}


@pytest.mark.parametrize(
    ("look", "arguments", "expected"),
    [
        ("fraction", ("concrete-kmeans", 0.88), ("87 %", False)),
        ("fraction", ("concrete-kmeans", 0.87), ("87 %", True)),
        ("times", ("concrete-kmeans", "plain loop", 1.25), ("1.25 times", True)),
        ("times", ("concrete-kmeans", "plain loop", 1.3), ("1.25 times", False)),
        ("times", ("concrete-kmeans", "ClustPy DCN", 1.4), None),
        ("milliseconds", ("concrete-kmeans", 60), ("8000 ms", False)),
        ("milliseconds", ("another", 60), None),
    ],
)
def test_targets_of_an_epoch(benchmark, look, arguments, expected):
    assert getattr(benchmark("targets"), look)(*arguments)({"contenders": EPOCHS}) == expected


def test_targets_of_kmeans(benchmark):
    targets = benchmark("targets")
    ours = {"seconds": 1.0, "time_ratio": 0.4, "inertia_ratio": 1.002}
    ours["seconds_per_iteration"] = 0.05
    faiss = {"seconds": 1.0, "seconds_per_iteration": 0.04}
    result = {"cases": {"mnist": {"contenders": {"concrete-kmeans": ours, "faiss": faiss}}}}
    behind = targets.not_behind("mnist", "faiss")(result)
    assert behind == ("1.25", False)
    case = ("mnist", "concrete-kmeans", "time_ratio", 0.5)
    assert targets.in_case(*case)(result) == ("0.40", True)
    assert targets.in_case(*case, inertia=1.01)(result) == ("0.40, inertia 1.0020", True)
    assert targets.in_case(*case, inertia=1.0)(result) == ("0.40, inertia 1.0020", False)
    assert targets.in_case("million", *case[1:])(result) is None
    assert targets.import_seconds(0.3)({}) is None


def test_target_of_table_2(benchmark):
    look = benchmark("targets").table2_minutes(10.0)
    cells = {"methods": {"ckm": {"seconds": 300.0}, "dec": {"seconds": 306.0}}}
    record = {"current": {"device": "cuda"}, "rows": {"mnist": cells}}
    assert look(record) == ("10.1 minutes of fitting, 2 cells", False)
    assert look(record | {"current": {"device": "cpu"}}) is None
    assert look({}) is None


def test_every_target_has_a_part_and_a_reason(benchmark, page):
    suite, targets = benchmark("suite"), benchmark("targets")
    assert {target.part for target in targets.TARGETS} <= {*suite.PARTS, "table2"}
    assert all(page.reason(target.what) for target in targets.TARGETS)
    assert len({(target.what, target.device) for target in targets.TARGETS}) == len(targets.TARGETS)


def test_page_and_pictures_are_those_of_the_committed_results(page):
    images = page.pictures()
    text = page.PAGE.read_text("utf-8")
    assert page.made(text, images) == text
    committed = {path.name: path.read_text("utf-8") for path in page.IMAGES.glob("speed-*.svg")}
    assert committed == images
    for image in images.values():
        ET.fromstring(image)


def test_page_is_made_of_any_results(page, benchmark, monkeypatch, tmp_path):
    """Of made-up results of every part: each figure has its place, and a busy machine is told."""
    measure = benchmark("measure")
    monkeypatch.setattr(measure, "RESULTS", tmp_path)
    monkeypatch.setattr(page, "read", measure.read)
    monkeypatch.setattr(page.targets, "read", measure.read)
    busy = {"load": 7.0, "cores": 2, "cpu": "abacus", "gpu": None, "date": "today", "versions": {}}
    busy["source"] = "0123456789ab"
    size = {"sizes": [1, 10, 100], "seconds": [1e-3, 2e-3, 0.123], "exponent": 1.04}
    size["exponent_upper_half"] = 1.79
    lloyd = {"seconds_per_iteration": 0.0456, "ratio_to_scikit_learn": 0.77, "seconds": 1.0}
    shallow = {"seconds": 5.43, "time_ratio": 0.44, "inertia_ratio": 0.998, "seconds_all": [5.43]}
    shallow["worst_inertia_ratio"] = 1.001
    case = {
        "precision": "tf32",
        "seeds": 15,
        "seconds": 2.0,
        "groups": {"products": 1.5, "rest": 0.5},
    }
    label = {"rows_per_s": 123456.0, "fraction_of_limit": 0.66, "extra_mb": 8.0, "seconds": 1.0}
    made_up = {
        "limits": {"flops_per_s": {"float32": 157e9}, "copy_bytes_per_s": 21e9},
        "training": {"contenders": EPOCHS},
        "step_profile": {"cases": [case]},
        "predict": {"contenders": {"concrete-kmeans": label}},
        "lloyd": {"cases": {"mnist": {"title": "T", "contenders": {"concrete-kmeans": lloyd}}}},
        "shallow": {"cases": {"mnist": {"title": "S", "contenders": {"KMeans": shallow}}}},
        "first_fit": {
            "cases": {
                "A": {"seconds": 12.34, "later_seconds": 0.0456, "compiled": 7},
                "B": {"error": "out of memory", "stand_in": "pebbles"},
            }
        },
        "growth": {"lloyd": {"rows": size}, "training": {"batch": size}},
    }
    for name, result in made_up.items():
        about = {"machine": busy, "command": f"run {name}", "device": "cpu"}
        (tmp_path / f"{name}.json").write_text(json.dumps(about | result))
    slow = {"contenders": EPOCHS | {"concrete-kmeans": {"seconds": 9.0, "fraction_of_limit": 0.55}}}
    about = {"machine": busy | {"cpu": "slide rule"}, "command": "run it", "device": "cpu"}
    (tmp_path / page.OTHER).mkdir()
    (tmp_path / page.OTHER / "training.json").write_text(json.dumps(about | slow))
    blank = "".join(f"<!-- {name}: begin -->\n<!-- {name}: end -->\n" for name in page.PARTS)
    images = page.pictures()
    text = page.made(blank, images)
    assert page.made(text, images) == text
    for words in (
        "| matrix product, float32 | 157 GFLOP/s |",
        "| concrete-kmeans | 8 | 8 to 8 | 87 % |  |",
        "| ClustPy DCN | not installed |",
        "| products | 75.0 % |",
        "| concrete-kmeans | 123,456 | 66 % | 8 MB |",
        "| concrete-kmeans | 45.6 ms (0.77) |",
        "| S | KMeans | 5.43 | 0.44 | 0.9980 (1.0010) | 1 |",
        "| A | 12.3 s | 0.0456 s | 7 |",
        "| B | out of memory |",
        "| lloyd, iteration | rows | 1 to 100 | 1 to 123 ms | 1.04 | 1.79 |",
        "| ≤ 0.80 | 0.77 |  | met |",
        "| ≥ 88 % | 87 % | 55 % | **missed**: ",
        "| ≥ 1.25 times | 1.25 times | 1.11 times | met; **missed on the Zen 4**: ",
        "3 of 5 measured targets are met; of the CPU's on the Zen 4, 0 of 2.",
        "**CPU, Zen 4**",
        "2 cores, slide rule; code 0123456789ab; today; `run it`.",
        "today; `run first_fit`. **Rows: pebbles.** **Load",
        "Load when it began: 7.0; others, or a benchmark before, were at work.",
        "![growth lloyd](images/speed-growth-lloyd.svg)",
    ):
        assert words in text, words
    assert len(images) == 5
    for image in images.values():
        ET.fromstring(image)
