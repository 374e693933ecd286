"""The README and docs say what the code does and what the committed results hold."""

import ast
import importlib.util
import json
import re
import shlex
import sys
import tempfile
from itertools import chain
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from markdown.extensions.toc import slugify
from PIL import Image
from torch.utils.flop_counter import FlopCounterMode
from typer.testing import CliRunner

import concrete_kmeans
from concrete_kmeans.cli import app
from concrete_kmeans.experiments import results, table2_report
from concrete_kmeans.networks import build_autoencoder
from concrete_kmeans.report import projection

ENDS = ("begin", "end")
ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
#: Code to run, and whether a remark above it says that it is not run.
FENCE = re.compile(r"(<!-- not run: [^\n]+ -->\n\n)?```(python|sh)\n(.*?)```", re.DOTALL)
#: Blocks that need what is not installed here.
NOT_RUN = {"guides/bertopic.md": 2, "guides/text.md": 1}
#: Pages with a test of their own: that of the README below, that of reports beside theirs.
TESTED_ELSEWHERE = {"report.md"}


def blocks(page):
    """Of a page of the docs: whether each runs, its language, its lines."""
    return [(not remark, kind, code) for remark, kind, code in FENCE.findall(page.read_text())]


def name_of(page):
    return page.relative_to(DOCS).as_posix()


WITH_CODE = [
    page for page in DOCS.rglob("*.md") if blocks(page) and name_of(page) not in TESTED_ELSEWHERE
]


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ckm(line, *more):
    command, *arguments = shlex.split(line, comments=True)
    assert command == "ckm"
    result = CliRunner().invoke(app, [*arguments, *more], prog_name="ckm")
    assert result.exit_code == 0, (line, result.stderr)


@pytest.fixture
def quick(tmp_path, monkeypatch, short_warm_up):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(projection, "MAX_ARRANGED", 100)  # maps are not looked at


@pytest.mark.usefixtures("quick")
def test_code_of_the_readme_runs(capsys):
    names = {}
    for _, kind, code in blocks(ROOT / "README.md"):
        assert kind == "python"
        exec(code, names)
    assert names["deep"].labels_.shape == names["km"].labels_.shape == (1797,)
    assert names["layer"].centers.grad is not None
    assert "torch.int32 cpu" in capsys.readouterr().out


@pytest.mark.usefixtures("quick")
def test_commands_of_the_readme_run(tmp_path):
    """On files of the names and columns that it speaks of, with the quickest method."""
    numbers = np.random.default_rng(0).normal(size=(60, 4)).round(3)
    table = pd.DataFrame(numbers, columns=list("abcd"))
    table.to_csv("new.csv", index=False)
    table.assign(species="cat").to_csv("table.csv", index=False)
    (tmp_path / "photos").mkdir()
    for number, grey in enumerate(range(0, 250, 10)):
        Image.new("L", (9, 7), grey).save(tmp_path / "photos" / f"{number}.png")
    lines = re.findall(r"^ckm .*$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert lines
    for line in lines:
        ckm(line, *(["--method", "km", "--overwrite"] if line.startswith("ckm fit") else []))


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("page", WITH_CODE, ids=name_of)
def test_code_of_a_page_runs(page):
    """Python in one namespace, and each line that begins with ``ckm``, in the order of the page."""
    names = {"__name__": "page"}
    for runs, kind, code in blocks(page):
        if runs and kind == "python":
            exec(compile(code, page.name, "exec"), names)
        elif runs:
            for line in re.findall(r"^ckm .*$", code, re.MULTILINE):
                ckm(line)


def test_only_code_that_needs_other_packages_is_not_run():
    left_out = {
        name_of(page): [(kind, code) for runs, kind, code in blocks(page) if not runs]
        for page in WITH_CODE
    }
    assert {name: len(found) for name, found in left_out.items() if found} == NOT_RUN
    for kind, code in chain(*left_out.values()):
        if kind == "python":
            ast.parse(code)


def test_code_stands_under_no_name_that_is_not_run():
    for page in PAGES:
        kinds = set(re.findall(r"^ *```(\w+)", page.read_text(), re.MULTILINE))
        assert not kinds & {"py", "python3", "pycon", "bash", "shell", "console"}, page


def test_first_screen_starts_with_the_two_commands_and_a_picture():
    top = (ROOT / "README.md").read_text().splitlines()[:14]
    assert any(line.startswith("make demo") for line in top)
    assert any(line.startswith("make test") for line in top)
    assert any(line.startswith("![") for line in top)


def test_figures_are_those_of_the_committed_results():
    figures = load(ROOT / "docs" / "figures.py")
    image, readme = figures.make()
    assert figures.IMAGE.read_text() == image
    assert figures.README.read_text() == readme


def test_study_is_that_of_the_committed_results(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    study = load(ROOT / "benchmarks" / "shallow_study.py")
    result = json.loads((study.RESULTS / "shallow_study.json").read_text())
    text = study.DOC.read_text()
    assert study.into_document(text, study.table(result)) == text


def test_tables_of_deep_clustering_are_those_of_the_committed_results(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    deep = load(ROOT / "benchmarks" / "deep.py")
    text = deep.DOC.read_text()
    assert deep.into_document(text) == text


def test_starts_are_those_of_the_committed_study(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    study = load(ROOT / "benchmarks" / "starts_study.py")
    record = json.loads((study.RESULTS / "starts_study.json").read_text())
    text = study.DOC.read_text()
    assert study.into_document(text, record) == text


def test_settings_tried_are_those_of_the_committed_study(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    study = load(ROOT / "benchmarks" / "baselines_study.py")
    record = json.loads((study.RESULTS / "baselines_study.json").read_text())
    text = study.PAGE.read_text("utf-8")
    assert study.made(text, record) == text
    done = [(row["data"], row["method"], row["parameters"]) for row in record["rows"]]
    assert done == study.SETTINGS


def test_page_of_results_is_that_of_the_committed_results():
    page = load(ROOT / "docs" / "results_page.py")
    text = page.PAGE.read_text("utf-8")
    assert all(text.count(f"<!-- {name}: {end} -->") == 1 for name in page.PARTS for end in ENDS)
    assert page.made(text) == text
    made = [name for name in page.PARTS if (page.FOLDER / f"{name}.json").exists()]
    for name in made:
        begin, end = (f"<!-- {name}: {end} -->" for end in ENDS)
        assert text.split(begin)[1].split(end)[0].strip()


def test_table_of_the_readme_is_that_of_the_committed_results():
    page = load(ROOT / "docs" / "results_page.py")
    text = page.README.read_text("utf-8")
    assert all(text.count(f"<!-- table2: {end} -->") == 1 for end in ENDS)
    assert page.made(text, page.README_PARTS) == text
    record = results.load(page.FOLDER / "table2.json")
    mean = record["rows"]["mnist"]["methods"]["ckm"]["summary"]["acc"]["mean"]
    assert f"{100 * mean:.1f}±" in text


def test_page_of_scaling_is_that_of_the_cost_model():
    page = load(ROOT / "docs" / "cost_model.py")
    text = page.PAGE.read_text("utf-8")
    assert page.made(text) == text


def test_cost_model_counts_what_torch_counts():
    page = load(ROOT / "docs" / "cost_model.py")
    network = build_autoencoder((16, 8, 4), "auto", (24,), seeds=[0])
    rows = torch.zeros(1, 32, 24)
    with FlopCounterMode(display=False) as counter:
        network(rows).square().sum().backward()
    assert counter.get_total_flops() == page.deep_step((24, 16, 8, 4), 32, 0).flops
    assert page.lloyd_pass(1000, 5, 7, 4).flops == 2 * 1000 * 5 * 7


def test_page_of_results_is_made_of_any_results(tmp_path, monkeypatch):
    page = load(ROOT / "docs" / "results_page.py")
    monkeypatch.setattr(page, "FOLDER", tmp_path)
    monkeypatch.setattr(page, "PARTS", {"runtime": lambda record: f"{record['n']} s\n"})
    text = "a\n<!-- runtime: begin -->\nold\n<!-- runtime: end -->\nb\n"
    assert page.made(text) == text  # no results yet
    (tmp_path / "runtime.json").write_text('{"n": 3}')
    new = "a\n<!-- runtime: begin -->\n\n3 s\n\n<!-- runtime: end -->\nb\n"
    assert page.made(text) == page.made(new) == new


def test_files_of_table_2_are_those_of_the_committed_results():
    folder = ROOT / "docs" / "results"
    record = results.load(folder / "table2.json")
    assert (folder / "table2.md").read_text("utf-8") == table2_report.to_markdown(record)
    assert (folder / "table2.tex").read_text("utf-8") == table2_report.to_latex(record)
    assert (folder / "table2.svg").read_text("utf-8") == table2_report.to_svg(record)
    made = load(ROOT / "docs" / "results_page.py").files()
    assert len(made) == 4
    assert all(path.read_text("utf-8") == text for path, text in made.items())


def test_targets_hold_in_the_committed_results():
    table = json.loads((ROOT / "docs" / "results" / "table1.json").read_text())
    compared = [row["compared"] for row in table["rows"].values() if row["compared"]]
    assert len(compared) == 10
    assert all(row["ratio_of_means"] <= 1.001 and row["worst_seed"] <= 1.01 for row in compared)
    assert sum(row["ratio_of_means"] < 1 for row in compared) >= 7


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(path):
    for target, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)\s]+))?\)", path.read_text()):
        found = path.parent / target if target else path
        assert found.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", found.read_text(), re.MULTILINE)
            assert anchor in {slugify(heading, "-") for heading in headings}, (target, anchor)


def test_public_names_exist_and_load_late():
    for name in concrete_kmeans.__all__:
        assert getattr(concrete_kmeans, name) is not None
    assert set(concrete_kmeans.__all__) <= set(dir(concrete_kmeans))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = concrete_kmeans.nothing


def test_import_brings_little_beyond_torch_and_scikit_learn():
    import subprocess

    code = (
        "import sys, torch, sklearn.base, sklearn.metrics, scipy.sparse, scipy.optimize\n"
        "before = set(sys.modules)\n"
        "from concrete_kmeans import *\n"
        "new = {m.split('.')[0] for m in set(sys.modules) - before}\n"
        "heavy = {'pandas', 'typer', 'rich', 'matplotlib', 'h5py', 'hypothesis', 'IPython'}\n"
        "assert not new & heavy, new & heavy\n"
        "assert 'torch._dynamo' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
