import base64
import hashlib
import html
import io
import json
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from concrete_kmeans import report
from concrete_kmeans.report import palette
from concrete_kmeans.report.page import _as_json, _short


def payload(data):
    """What the page's script would read."""
    page = report.render(data)
    inside = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(inside[1])


def unpacked(text, kind):
    return np.frombuffer(base64.b64decode(text), f"<{kind}")


def plain(n=6, **more):
    return report.ReportData("Plain", labels=np.arange(n) % 2, n_clusters=2, **more)


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_text_comes_back_whole_and_cannot_end_its_element(text):
    written = _as_json({"text": text})
    assert json.loads(written) == {"text": text}
    assert not set(written) & set("<>&\u2028\u2029")


@settings(max_examples=25, deadline=None)
@given(st.text())
def test_any_title_is_escaped_and_can_be_written(title):
    page = report.render(report.ReportData(title, labels=[0], n_clusters=1))
    written = page.encode()
    head = re.search(rb"<title>(.*?)</title>", written, re.DOTALL)[1].decode()
    assert html.unescape(head) == html.unescape(
        html.escape(title.encode("utf-8", "replace").decode())
    )
    assert "<" not in head
    assert page.count("<script") == 2


def test_only_the_page_s_own_script_and_style_may_run():
    page = report.render(plain())
    policy = re.search(r'Content-Security-Policy" content="(.*?)"', page)[1]
    script = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)[0]
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)[1]
    for text, name in ((script, "script-src"), (style, "style-src")):
        code = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{name} 'sha256-{code}';" in policy
    assert policy.startswith("default-src 'none';")
    assert not re.search(r'(src|href)="(?!#|data:)', page)
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")


def test_numbers_are_packed_and_come_back():
    rng = np.random.default_rng(0)
    labels, places, doubt = rng.integers(3, size=50), rng.normal(size=(50, 2)), rng.random(50)
    data = report.ReportData("t", labels, 3, map=places, doubt=doubt, classes=list("abcde") * 10)
    found = payload(data)
    assert np.array_equal(unpacked(found["labels"], "u2"), labels)
    assert np.abs(unpacked(found["doubt"], "u1") / 255 - doubt).max() <= 0.5 / 255 + 1e-9
    span = np.ptp(places, axis=0).max()
    for axis, name in enumerate("xy"):
        back = unpacked(found["map"][name], "u2") / 65535 * span + places[:, axis].min()
        assert np.abs(back - places[:, axis]).max() <= span / 65535
    assert [c["size"] for c in found["clusters"]] == np.bincount(labels).tolist()
    assert unpacked(found["classes"]["codes"], "u2").tolist() == [0, 1, 2, 3, 4] * 10


def test_table_comes_back_within_its_steps_and_missing_values_as_such():
    values = np.random.default_rng(0).normal(size=(30, 4)) * [1, 1e6, 1e-6, 0] + [0, 5, 0, 7]
    values[3, 0] = np.nan
    values[:, 2] = np.nan
    labels = (values[:, 1] > 0).astype(int)
    found = payload(report.ReportData("t", labels, 2, items=report.Table(values, list("abcd"))))
    table = found["table"]
    codes = unpacked(table["values"], "u2").reshape(4, 30)
    for at, name in enumerate(table["names"]):
        column = values[:, "abcd".index(name)]
        there = ~np.isnan(column)
        assert np.array_equal(codes[at] == 65535, ~there)
        back = table["low"][at] + table["step"][at] * codes[at]
        assert back[there] == pytest.approx(column[there], abs=table["step"][at])
    assert table["names"][0] == "b"  # the clusters are made of it


def test_classes_have_the_colours_of_their_clusters_and_others_new_ones():
    labels = np.array([0, 0, 1, 1, 1, 0])
    found = payload(report.ReportData("t", labels, 2, classes=["b", "b", "a", "a", "c", None]))
    assert found["classes"]["names"] == ["a", "b", "c", "unknown"]
    assert found["classes"]["colors"] == [1, 0, 2, None]
    assert found["confusion"] == {
        "clusters": [1, 0],
        "counts": [[2, 0], [0, 2], [1, 0], [0, 1]],
    }


def test_more_classes_than_can_be_shown_are_scored_and_merged():
    labels = np.arange(300) % 2
    classes = [f"{i:03d}" for i in range(150)] * 2
    found = payload(report.ReportData("t", labels, 2, classes=classes))
    assert len(found["classes"]["names"]) == 100
    assert found["classes"]["names"][-1] == "all others"
    assert np.sum(found["confusion"]["counts"]) == 300
    assert [f["name"] for f in found["figures"]][-4:] == ["Accuracy", "NMI", "ARI", "Purity"]
    many = report.ReportData("t", np.arange(300) % 150, 150, classes=classes)
    assert payload(many)["confusion"] is None  # 15,000 cells


def test_pictures_on_cards_are_all_in_the_file_and_an_atlas_has_an_end():
    n, K = 5000, 40
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (n, 60, 60), np.uint8)
    centers = report.Images(pixels[:K])
    data = report.ReportData(
        "t",
        np.arange(n) % K,
        K,
        distance=rng.random(n),
        doubt=rng.random(n),
        items=report.Images(pixels),
        centers=centers,
    )
    found = payload(data)
    rows = unpacked(found["atlas"]["rows"], "u4")
    assert len(np.unique(rows)) == len(rows)
    assert found["atlas"]["centers"] == K
    assert found["atlas"]["n_pictures"] == K + len(rows) <= 2**23 // 64**2
    shown = {row for c in found["clusters"] for kind in ("typical", "doubtful") for row in c[kind]}
    assert shown <= set(rows.tolist())
    assert f"Pictures of {len(rows):,} of 5,000 rows" in found["note"]
    assert all(len(c["typical"]) == 12 for c in found["clusters"])


@pytest.mark.parametrize("of_centers", [(4, 4), (2, 2), (9, 9, 3), (4, 4, 3)])
@pytest.mark.parametrize("of_pictures", [(4, 4), (4, 4, 3)])
def test_centres_are_shown_as_the_pictures_are(of_centers, of_pictures):
    centers = np.full((2, *of_centers), 100, np.uint8)
    pictures = np.zeros((6, *of_pictures), np.uint8)
    found = payload(plain(items=report.Images(pictures), centers=report.Images(centers)))["atlas"]
    assert (found["n_pictures"], found["width"], found["height"]) == (8, 4, 4)
    sheet = np.asarray(Image.open(io.BytesIO(base64.b64decode(found["url"].split(",")[1]))))
    assert sheet.shape[2:] == of_pictures[2:]
    assert (sheet[:4, :4] == 100).all()


def test_features_that_do_not_differ_are_not_on_cards():
    labels = np.arange(40) % 2
    values = np.stack([labels, np.arange(40) // 2 % 2, 0.01 * labels + np.arange(40) // 2], 1)
    data = report.ReportData("t", labels, 2, items=report.Table(values, ["a", "b", "c"]))
    features = [cluster["features"] for cluster in payload(data)["clusters"]]
    assert [[feature["name"] for feature in own] for own in features] == [["a"], ["a"]]


def test_long_texts_are_cut_and_the_note_says_so():
    texts = ["word " * 400, "short", " a \n b ", "", "x" * 500, "\ud800 half"]
    found = payload(plain(items=report.Texts(texts)))
    assert max(map(len, found["texts"])) == 280
    assert found["texts"][0].endswith("…")
    assert found["texts"][1:4] == ["short", "a b", ""]
    assert found["texts"][5] == "? half"
    assert "cut after 280" in found["note"]
    assert payload(plain(items=report.Texts(["a"] * 6)))["note"] == ""


def test_curves_are_thinned_and_gaps_are_null():
    history = [
        {"phase": "joint", "step": i, "losses": {"loss": [float(i), float("nan")]}}
        for i in range(1, 1001)
    ]
    (curve,) = payload(plain(history=history))["history"]
    assert len(curve["steps"]) == 300
    assert curve["values"][0] == [1.0, None]
    assert all(
        step == values[0] for step, values in zip(curve["steps"], curve["values"], strict=True)
    )


def test_restarts_show_columns_that_have_values():
    restarts = [
        {"seed": 1000, "inertia": 1234.5, "agreement": np.float32("nan"), "status": "done"},
        {"seed": 1001, "inertia": 2.5, "agreement": 0.5, "status": "failed"},
    ]
    found = payload(plain(restarts=restarts, best_restart=1, agreement=np.eye(2)))["restarts"]
    assert found["columns"] == ["seed", "inertia", "agreement", "status"]
    assert found["rows"] == [["1000", "1,234", "", "done"], ["1001", "2.50", "0.500", "failed"]]
    assert (found["best"], found["agreement"]) == (1, [[1.0, 0.0], [0.0, 1.0]])
    assert payload(plain(restarts=restarts[:1]))["restarts"] is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((0.0, "0"), (-0.25, "-0.250"), (1.0, "1.000"), (np.int64(1), "1"), (1e-6, "1.0e-06")),
        *((3.0, "3.00"), (12.345, "12.35"), (123.45, "123.5"), (1e7, "10,000,000")),
    ],
)
def test_numbers_are_short(value, text):
    assert _short(value) == text


def test_the_file_is_whole_or_not_there(tmp_path, monkeypatch):
    path = tmp_path / "deep" / "er" / "report.html"
    assert report.write(plain(), path) == path
    before = path.read_bytes()
    assert before.startswith(b"<!doctype html>")
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(OSError, match="No space left"):
        report.write(report.ReportData("other", [0], 1), path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_folder_is_no_place_for_a_report(tmp_path):
    with pytest.raises(IsADirectoryError, match="path must be that of a file"):
        report.write(plain(), tmp_path)


def test_colours_are_distinct_for_everyone():
    """For normal vision, protanopia and deuteranopia (Machado et al. 2009, severity 1)."""
    eyes = [
        np.eye(3),
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
         [-0.003882, -0.048116, 1.051998]],
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
         [-0.011820, 0.042940, 0.968881]],
    ]  # fmt: skip
    srgb = np.array([[int(c[i : i + 2], 16) for i in (1, 3, 5)] for c in palette.COLORS]) / 255
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    lms = [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566],
           [0.0883024619, 0.2817188376, 0.6299787005]]  # fmt: skip
    lab = [[0.2104542553, 0.7936177850, -0.0040720468], [1.9779984951, -2.4285922050, 0.4505937099],
           [0.0259040371, 0.7827717662, -0.8086757660]]  # fmt: skip
    assert len(set(palette.COLORS)) == 30
    for eye in eyes:
        seen = np.clip(linear @ np.transpose(eye), 0, 1)
        ok = np.cbrt(seen @ np.transpose(lms)) @ np.transpose(lab)
        apart = np.linalg.norm(ok[:10, None] - ok[None, :10], axis=-1)
        assert apart[~np.eye(10, dtype=bool)].min() > 0.05
