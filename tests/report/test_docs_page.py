"""The page on reports says what is there."""

import re
from pathlib import Path

from PIL import Image

from concrete_kmeans import plots
from concrete_kmeans.report import projection

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "report.md").read_text(encoding="utf-8")


def test_code_runs_and_writes_the_report(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(projection, "MAX_ARRANGED", 100)  # the map is not looked at
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(block, {})
    assert "<title>Handwritten digits</title>" in (tmp_path / "digits.html").read_text("utf-8")


def test_pictures_are_there_and_small():
    names = re.findall(r"!\[[^\]]+\]\(images/([^)]+)\)", PAGE)
    wanted = ("map", "cards", "dark", "phone", "text", "table", "embeddings")
    assert set(names) == {f"report-{name}.png" for name in wanted}
    for name in names:
        path = ROOT / "docs" / "images" / name
        assert path.stat().st_size < 300_000
        with Image.open(path) as picture:
            assert min(picture.size) >= 700


def test_names_of_plots_are_those_of_the_module():
    assert set(re.findall(r"plot_\w+", PAGE)) == set(plots.__all__)
