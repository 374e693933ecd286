from __future__ import annotations

import json
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concrete_kmeans.experiments import config, runtime
from concrete_kmeans.experiments.config import Runtime

SMALL = Runtime(
    title="Digits",
    load="digits",
    encoder=[16, 4],
    batch_size=64,
    seeds=[1, 3],
    methods={"ckm": {"paper": 11.0}, "dec": {"paper": 10.0}, "dcn": {"paper": 36.0}},
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runtime")


@pytest.fixture(scope="module")
def record(folder):
    return runtime.run(folder, config=SMALL, rows=640, epochs=33, device="cpu")


class TestEpochSeconds:
    def test_a_check_an_epoch(self):
        ticks = [(10, 100.0), (20, 103.0), (30, 104.0)]
        assert runtime.epoch_seconds(ticks, 10) == [3.0, 1.0]

    def test_checks_between_epochs(self):
        # 273 steps an epoch, a check every 140: the first is within the warm-up
        ticks = [(140, 5.0), (280, 6.0), (420, 6.5), (546, 7.0)]
        assert runtime.epoch_seconds(ticks, 273) == pytest.approx(
            [0.5 * 273 / 140, 0.5 * 273 / 126]
        )

    @given(
        st.lists(st.integers(1, 50), min_size=3, max_size=20),
        st.floats(1e-4, 10),
        st.integers(1, 40),
    )
    def test_a_steady_pace_is_found_whatever_the_checks(self, gaps, pace, per_epoch):
        steps = [sum(gaps[: i + 1]) for i in range(len(gaps))]
        ticks = [(step, pace * step) for step in steps]
        if sum(step >= per_epoch for step in steps) < 2:
            with pytest.raises(RuntimeError, match="use more epochs"):
                runtime.epoch_seconds(ticks, per_epoch)
            return
        found = runtime.epoch_seconds(ticks, per_epoch)
        assert found == pytest.approx([pace * per_epoch] * len(found))
        assert len(found) == len([s for s in pairwise(steps) if s[0] >= per_epoch])


class TestRun:
    def test_every_method_alone_and_stacked(self, record, folder):
        found = [(each["method"], each["seeds"]) for each in record["measured"]]
        assert found == [(m, n) for n in (1, 3) for m in ("ckm", "dec", "dcn")]
        for each in record["measured"]:
            assert 0 < each["fastest"] <= each["seconds"] <= each["slowest"]
            assert each["steps_per_epoch"] == 10
            assert each["parameters"]["encoder"] == [16, 4]
            assert each["parameters"]["init"] == "k-means++"
        by = {each["method"]: each["intervals"] for each in record["measured"]}
        assert by["dec"] == 2  # 330 steps: checks at 140, 280, 330
        assert by["ckm"] >= 5  # till at rest, at most 32
        assert record == json.loads((folder / "runtime.json").read_text("utf-8"))
        assert "git" in next(iter(record["environments"].values()))

    def test_page(self, record, folder):
        page = (folder / "runtime.md").read_text("utf-8")
        assert page == runtime.to_markdown(record)
        assert "over 640 rows of Digits, encoder 16-4, batches of 64, float32 on cpu" in page
        # a part of the rows is no epoch of the paper's
        assert re.search(r"\| CKM +\| +1 \|.*\| +11 \| +— \|", page)

    def test_ratio_to_the_paper_by_hand(self, record):
        whole = record | {"rows": 640, "n_samples": 640}
        whole["measured"] = [record["measured"][3] | {"seconds": 5.5}]  # three seeds of CKM
        _, ((*_, each, paper, ratio),) = runtime.time_table(whole)
        assert (each, paper, ratio) == ("1.83", "11", "6.0")

    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            ({"epochs": 1}, "epochs must be at least 2, got 1"),
            ({"rows": 0}, "rows must be a whole number of at least 1, got 0"),
            ({"rows": 5000}, "rows must be from 64 to 1797, got 5000"),
            ({"device": "abacus"}, "device must be"),
            ({"precision": "half"}, "precision must be"),
        ],
    )
    def test_errors_before_any_work(self, tmp_path, wrong, message):
        with pytest.raises(ValueError, match=message):
            runtime.run(tmp_path, config=SMALL, **wrong)
        assert list(tmp_path.iterdir()) == []


def test_packaged_configuration_is_the_papers():
    packaged = config.runtime()
    assert packaged.load == "mnist"
    assert tuple(packaged.encoder) == (500, 500, 2000, 10)
    assert list(packaged.seeds) == [1, 15]
    paper = {key: own["paper"] for key, own in packaged.methods.items()}
    assert paper == {"ckm": 11, "dec": 10, "dcn": 36}
