"""A part of the cases of ``benchmarks/fuzz.py``, always the same ones."""

import importlib
import os
import re
import warnings
from pathlib import Path

import pytest

from concrete_kmeans.validation import check_positive

FOLDER = Path(__file__).parents[1] / "benchmarks"
SEED = 2024
#: Cases of a target for each part of its share.
CASES = 6


@pytest.fixture(scope="module")
def fuzz():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        yield importlib.import_module("fuzz")


@pytest.fixture(scope="module")
def inputs(fuzz, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz") / "seeds"
    folder.mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fuzz.seeds(folder)
    return folder


TARGETS = (
    *("arrays", "sparse", "arguments", "functions", "tables", "tables_of_anything", "parquet"),
    *("array_files", "text_files", "records", "images", "model_folders", "commands_on_folders"),
    *("config_files", "command_lines", "streams"),
)


@pytest.mark.usefixtures("short_warm_up")
@pytest.mark.parametrize("target", TARGETS)
def test_only_documented_errors(fuzz, inputs, target):
    number = CASES * fuzz.TARGETS[target][1]
    for case in range(number):
        what, _, why = fuzz.run_case(SEED, target, case, inputs)
        assert not why, f"fuzz.py --seed {SEED} --target {target} --case {case}: {what}: {why}"


def test_every_target_is_run(fuzz):
    assert set(TARGETS) == set(fuzz.TARGETS)
    assert sum(fuzz.counts(10_000).values()) == 10_000


class TestJudgement:
    """What counts as a finding."""

    @pytest.fixture
    def judged(self, fuzz):
        return lambda work, *names: fuzz.judge(fuzz.Case("", work, names))

    def test_errors_on_purpose(self, judged):
        assert judged(lambda: None) == ("works", "")
        assert judged(lambda: check_positive("sigma", -1), "sigma") == ("ValueError", "")
        assert judged(lambda: warnings.warn("for users", UserWarning, stacklevel=1))[1] == ""

    @pytest.mark.parametrize(
        ("work", "why"),
        [
            (lambda: 1 / 0, "ZeroDivisionError"),
            (lambda: int("x"), "not raised on purpose"),
            (lambda: check_positive("sigma", -1), r"none of \['tau'\] is named"),
            (lambda: check_positive("sigma\nx", -1), "more than a line"),
            (lambda: warnings.warn("noise", RuntimeWarning, stacklevel=1), "RuntimeWarning"),
            (lambda: exec("while True: pass"), "more than 1 s"),
        ],
    )
    def test_findings(self, fuzz, judged, monkeypatch, work, why):
        monkeypatch.setattr(fuzz, "SECONDS", 1)
        end, said = judged(work, "tau")
        assert said
        assert re.search(why, said), f"{end}: {said}"

    def test_a_process_that_dies(self, fuzz, inputs, monkeypatch):
        make = fuzz.TARGETS["arrays"][0]

        def deadly(rng, seeds, place):
            case = make(rng, seeds, place)
            die = lambda: os.kill(os.getpid(), 9) if deaths.pop() else None  # noqa: E731
            return fuzz.Case("", die, case.names)

        deaths = [False, True, False]
        monkeypatch.setitem(fuzz.TARGETS, "arrays", (deadly, 1))
        ended = dict(fuzz.run_target(0, "arrays", [0, 1], inputs))
        assert ended[0][1] == "works"
        assert ended[1] == ("", "crash", "the process died with -9")
