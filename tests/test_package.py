"""What is released: the wheel and the sdist hold what they should, and the wheel works alone."""

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from itertools import chain
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import concrete_kmeans

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "concrete_kmeans"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
VERSION = concrete_kmeans.__version__
NAME = f"concrete_kmeans-{VERSION}"
#: A fit, its report and its folder, by what is installed in the folder that is named.
USE = """
import sys
import numpy as np
import concrete_kmeans
assert concrete_kmeans.__file__.startswith(sys.argv[1]), concrete_kmeans.__file__
X = np.arange(20.0).reshape(10, 2)
model = concrete_kmeans.ConcreteKMeans(2, algorithm="lloyd", random_state=0).fit(X)
model.save(sys.argv[1] + "/model")
concrete_kmeans.load(sys.argv[1] + "/model").report(sys.argv[1] + "/report.html", X)
from concrete_kmeans.experiments import config, runtime, table2
"""


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def files_of(folder):
    inside = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)) for path in inside if path.parent.name != "__pycache__"}


def test_wheel_and_sdist(tmp_path):
    """The wheel is made of the sdist, which is therefore whole; all without a network."""
    out = tmp_path / "dist"
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), cwd=ROOT)
    wheel, sdist = out / f"{NAME}-py3-none-any.whl", out / f"{NAME}.tar.gz"
    assert sorted(out.iterdir()) == sorted([wheel, sdist])

    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = Parser().parsestr(archive.read(f"{NAME}.dist-info/METADATA").decode())
        commands = archive.read(f"{NAME}.dist-info/entry_points.txt").decode()
    information = {name for name in names if name.startswith(f"{NAME}.dist-info/")}
    assert names - information == {f"concrete_kmeans/{name}" for name in files_of(PACKAGE)}
    wanted = {"py.typed", "report/page.html", "report/page.css", "report/page.js"}
    wanted |= {f"experiments/configs/{name}.toml" for name in ("table2", "runtime")}
    assert wanted <= files_of(PACKAGE)
    assert f"{NAME}.dist-info/licenses/LICENSE" in information
    assert metadata["Version"] == VERSION
    assert {"data", "report", "onnx", "docs"} <= set(metadata.get_all("Provides-Extra"))
    assert "Typing :: Typed" in metadata.get_all("Classifier")
    assert "ckm = concrete_kmeans.cli:main" in commands
    needed = [line for line in metadata.get_all("Requires-Dist") if "extra ==" not in line]
    assert len(needed) == 7

    with tarfile.open(sdist) as archive:
        members = {member.name.removeprefix(f"{NAME}/") for member in archive if member.isfile()}
    for folder in ("src", "tests", "docs", "examples"):
        assert {f"{folder}/{name}" for name in files_of(ROOT / folder)} <= members
    assert {"README.md", "LICENSE", "Makefile", "constraints.txt", "mkdocs.yml"} <= members
    tops = {name.split("/")[0] for name in members if "/" in name}
    assert tops == {"src", "tests", "docs", "examples", "benchmarks"}

    place = tmp_path / "installed"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
    run(*pip, "--no-deps", "--no-index", "--target", str(place), str(wheel))
    alone = {"env": {"PYTHONPATH": str(place), "OMP_NUM_THREADS": "1"}, "cwd": tmp_path}
    said = run(sys.executable, "-m", "concrete_kmeans", "--version", **alone)
    assert said == f"ckm {VERSION}\n"
    run(sys.executable, "-W", "error", "-c", USE, str(place), **alone)
    assert "<title>" in (place / "report.html").read_text("utf-8")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_run_targets_that_exist_with_few_rights(path):
    workflow = yaml.safe_load(path.read_text("utf-8"))
    assert workflow["permissions"] == {"contents": "read"}
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    used = [step["uses"] for step in steps if "uses" in step]
    assert all(re.fullmatch(r"actions/[\w-]+@v\d+\.\d+\.\d+", action) for action in used), used
    targets = re.findall(r"^([a-z]\w*):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    asked = {
        line.split()[1]
        for step in steps
        for line in step.get("run", "").splitlines()
        if line.startswith("make ")
    }
    assert asked == {"test", "docs", "dist"}
    assert asked <= set(targets)


def test_ci_tests_the_versions_of_python_that_are_promised():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    promised = re.findall(r"Python :: (3\.\d+)", " ".join(project["classifiers"]))
    (ci,) = [yaml.safe_load(path.read_text("utf-8")) for path in WORKFLOWS if path.stem == "ci"]
    assert ci["jobs"]["test"]["strategy"]["matrix"]["python"] == promised
    assert project["requires-python"] == f">={promised[0]}"


def test_everything_that_is_needed_is_pinned():
    """Of the dependencies that are named; those of theirs are in the same file."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    named = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()[1:]
    pinned = {canonicalize_name(line.split("==")[0]): line.split("==")[1] for line in lines}
    for requirement in map(Requirement, named):
        if requirement.name != project["name"]:
            version = pinned[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(version), requirement
