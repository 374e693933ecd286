"""The README and docs say what the code does and what the committed results hold."""

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest

import concrete_kmeans
from concrete_kmeans.experiments import results, table2_report

ENDS = ("begin", "end")
ROOT = Path(__file__).parents[1]


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_code_of_the_readme_runs(capsys):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) == 4
    names = {}
    for block in blocks:
        exec(block, names)
    assert names["deep"].labels_.shape == names["km"].labels_.shape == (1797,)
    assert names["layer"].centers.grad is not None
    assert "torch.int32 cpu" in capsys.readouterr().out


def test_code_of_the_page_on_deep_clustering_runs():
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/deep.md").read_text(), re.DOTALL)
    names = {}
    exec(block, names)
    assert names["ckm"].labels_.shape == (1797,)


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


def test_page_of_results_is_that_of_the_committed_results():
    page = load(ROOT / "docs" / "results_page.py")
    text = page.PAGE.read_text("utf-8")
    assert all(text.count(f"<!-- {name}: {end} -->") == 1 for name in page.PARTS for end in ENDS)
    assert page.made(text) == text
    made = [name for name in page.PARTS if (page.FOLDER / f"{name}.json").exists()]
    for name in made:
        begin, end = (f"<!-- {name}: {end} -->" for end in ENDS)
        assert text.split(begin)[1].split(end)[0].strip()


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
    if record is None:
        pytest.skip("there is no docs/results/table2.json yet")
    assert (folder / "table2.md").read_text("utf-8") == table2_report.to_markdown(record)
    assert (folder / "table2.tex").read_text("utf-8") == table2_report.to_latex(record)
    assert (folder / "table2.svg").read_text("utf-8") == table2_report.to_svg(record)


def test_targets_hold_in_the_committed_results():
    table = json.loads((ROOT / "docs" / "results" / "table1.json").read_text())
    compared = [row["compared"] for row in table["rows"].values() if row["compared"]]
    assert len(compared) == 10
    assert all(row["ratio_of_means"] <= 1.001 and row["worst_seed"] <= 1.01 for row in compared)
    assert sum(row["ratio_of_means"] < 1 for row in compared) >= 7


@pytest.mark.parametrize(
    "path", [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")], ids=lambda p: p.name
)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
        assert (path.parent / target).exists(), target


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
