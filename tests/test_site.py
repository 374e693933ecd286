"""The docs site: built without a warning, links lead somewhere, every public name is there."""

import importlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = (
    "functional",
    "lloyd",
    "metrics",
    "datasets",
    "plots",
    "report",
    "choosing",
    "exporting",
    "augment",
)


def load(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def public_names():
    """With the modules themselves left out: those are pages."""
    for module in ("concrete_kmeans", *(f"concrete_kmeans.{name}" for name in MODULES)):
        for name in importlib.import_module(module).__all__:
            if name not in MODULES:
                yield f"{module}.{name}"


def test_site(tmp_path):
    """One test, so that the site is built once whatever the number of processes."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    assert load("links").problems(tmp_path) == []

    reference = "".join(page.read_text("utf-8") for page in (tmp_path / "api").glob("*.html"))
    there = set(re.findall(r'id="([^"]+)"', reference))
    assert [name for name in public_names() if name not in there] == []
    assert all((tmp_path / "api" / f"{name}.html").exists() for name in MODULES)
    assert "<math" in reference
    assert not re.search(r":(class|func|meth|math):|\.\. math|&lt;autoref|arithmatex", reference)

    assert "of Lloyd's algorithm" in (tmp_path / "benchmarks.html").read_text("utf-8")
    results = (tmp_path / "results" / "index.html").read_text("utf-8")
    (config,) = re.findall(r'href="([^"]+/table2\.toml)"', results)
    original = ROOT / "src/concrete_kmeans/experiments/configs/table2.toml"
    assert (tmp_path / "results" / config).read_bytes() == original.read_bytes()
    for page in ("guides/saving.html", "guides/command-line.html"):
        assert 'href="../security.html"' in (tmp_path / page).read_text("utf-8")
    assert "never runs code" in (tmp_path / "security.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ('<a href="b.html#there">', None),
        ('<a href="folder/">', None),
        ('<a href="#here"><p id="here">', None),
        ('<a href="https://example.org">', None),
        ('<a href="b.html#nowhere">', "links to b.html#nowhere: no such anchor"),
        ('<a href="#nowhere">', "links to #nowhere: no such anchor"),
        ('<a href="c.html">', "links to c.html: no such file"),
        ('<img src="c.png">', "links to c.png: no such file"),
        ('<a href="javascript:x()">', "links to javascript:x(): unknown scheme javascript"),
        (
            '<script src="https://a.org/x.js">',
            "loads https://a.org/x.js from elsewhere",
        ),
        ('<link href="//example.org/x.css">', "loads //example.org/x.css from elsewhere"),
    ],
)
def test_links_are_checked(body, problem, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "index.html").touch()
    (tmp_path / "b.html").write_text('<p id="there">')
    (tmp_path / "a.html").write_text(body)
    found = load("links").problems(tmp_path)
    assert found == ([] if problem is None else [f"a.html {problem}"])


def test_a_folder_without_pages_is_a_problem(tmp_path):
    assert load("links").problems(tmp_path) == [f"{tmp_path} holds no pages"]
