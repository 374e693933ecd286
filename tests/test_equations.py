"""docs/equations.md, the tags in the code and the tests must name each other."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

import concrete_kmeans

TESTS = Path(__file__).parent
PAGE = (TESTS.parent / "docs" / "equations.md").read_text(encoding="utf-8")
PACKAGE = Path(concrete_kmeans.__file__).parent
SOURCES = {
    path.relative_to(PACKAGE).as_posix(): path.read_text(encoding="utf-8")
    for path in sorted(PACKAGE.rglob("*.py"))
}
NOT_BUILT = "with deep clustering"

TABLE = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in re.findall(r"^\|\s*\d+\s*\|.*\|$", PAGE, flags=re.MULTILINE)
]
FUNCTIONS = {int(row[0]): re.findall(r"`([\w.]+)`", row[2]) for row in TABLE}
TEST_NAMES = {int(row[0]): re.findall(r"`([\w./]+)::(\w+)`", row[3]) for row in TABLE}
BUILT = [n for n in FUNCTIONS if FUNCTIONS[n]]


def equations_in(text: str) -> set[int]:
    """Numbers of the paper's equations that a text names: "Eq. 6", "Eq. 2 and 3", "Eq. 1 to 3"."""
    found = set()
    for first, word, last in re.findall(r"\bEqs?\.\s*(\d+)(?:\s+(and|to|or)\s+(\d+))?", text):
        found |= {int(first)} if not last else {int(first), int(last)}
        if word == "to":
            found |= set(range(int(first), int(last) + 1))
    return found


def departures_in(text: str) -> list[str]:
    """What follows each "Departs from", up to its colon, comment marks and line breaks removed."""
    flat = re.sub(r"\s+#?\s*", " ", text)
    return re.findall(r"\bDeparts from ([^:]+):", flat)


def test_the_reader_of_tags():
    text = "# Eq. 5\n(Eq. 1 to 3), Eq. 6 and 7. Eq. 12"
    assert equations_in(text) == {1, 2, 3, 5, 6, 7, 12}
    assert departures_in("  # Departs from Eq. 7 in\n    # part: x") == ["Eq. 7 in part"]


def test_the_table_has_the_papers_eight_equations_once():
    assert [int(row[0]) for row in TABLE] == list(range(1, 9))
    assert all(len(row) == 4 for row in TABLE)


@pytest.mark.parametrize("number", FUNCTIONS)
def test_an_equation_is_built_and_tested_or_said_not_to_be(number):
    if number in BUILT:
        assert TEST_NAMES[number]
    else:
        assert TABLE[number - 1][2:] == [NOT_BUILT, NOT_BUILT]


@pytest.mark.parametrize("path", SOURCES)
def test_every_tag_in_the_code_has_a_built_row(path):
    assert equations_in(SOURCES[path]) <= set(BUILT)


@pytest.mark.parametrize("number", BUILT)
def test_functions_exist_and_their_module_has_the_tag(number):
    for name in FUNCTIONS[number]:
        module, attribute = name.rsplit(".", 1)
        imported = importlib.import_module(f"concrete_kmeans.{module}")
        assert callable(getattr(imported, attribute))
        assert number in equations_in(SOURCES[module.replace(".", "/") + ".py"])


@pytest.mark.parametrize(
    ("file", "name"), sorted({test for tests in TEST_NAMES.values() for test in tests})
)
def test_tests_exist(file, name):
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_departures_in_the_code_and_on_the_page_are_the_same():
    in_code = {(path, what) for path, text in SOURCES.items() for what in departures_in(text)}
    section = PAGE.split("## Departures")[1]
    entries = re.findall(r"^- `([\w/.]+)`,((?:.+\n)+?)(?=- |\Z|\n)", section, re.MULTILINE)
    on_page = {(path, what) for path, entry in entries for what in departures_in(entry)}
    assert on_page == in_code
    n_marks = sum(text.count("Departs from") for text in SOURCES.values())
    assert n_marks == len(in_code)  # each mark has its colon, and none is written twice
