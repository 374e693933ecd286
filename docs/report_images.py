"""The screenshots of reports under ``docs/images/``, from data that comes with scikit-learn.

``python docs/report_images.py`` needs a Chromium, as the browser tests do: about a minute.
"""

from __future__ import annotations

import inspect
import io
import re
import runpy
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits, load_wine
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.preprocessing import StandardScaler, normalize
from sklearn.utils.discovery import all_estimators

from concrete_kmeans import ConcreteKMeans, DeepConcreteKMeans, report

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
#: Bytes of a screenshot.
MOST = 300_000


def digits(path: Path) -> None:
    """Pictures, by a deep fit of three restarts."""
    X, y = load_digits(return_X_y=True)
    X = X.reshape(-1, 8, 8).astype(np.float32)
    model = DeepConcreteKMeans(10, encoder=(64, 10), epochs=5, n_init=3, random_state=0).fit(X)
    model.report(path, X, classes=y, title="Handwritten digits")


def wine(path: Path) -> None:
    """A table with names, standardised for the fit and shown in its own units."""
    data = load_wine()
    X = StandardScaler().fit_transform(data.data)
    model = ConcreteKMeans(3, n_init=5, random_state=0).fit(X)
    table = report.Table(data.data, data.feature_names)
    ids = [f"wine {i}" for i in range(len(X))]
    classes = [f"cultivar {k}" for k in data.target]
    model.report(path, X, classes=classes, items=table, ids=ids, title="178 wines")


def manual(path: Path) -> None:
    """Texts: what scikit-learn says of its estimators."""
    X, about = described()
    model = ConcreteKMeans(8, n_init=5, random_state=0).fit(X)
    title = "The estimators of scikit-learn, by what their documentation says"
    model.report(path, X, title=title, **about)


def embeddings(path: Path) -> None:
    """Embeddings of the same texts, as a file of vectors has them."""
    X, about = described()
    vectors = normalize(TruncatedSVD(50, random_state=0).fit_transform(X)).astype(np.float32)
    model = DeepConcreteKMeans(8, encoder=(64, 10), n_init=3, random_state=0).fit(vectors)
    about |= {"items": None, "title": "Embeddings of the estimators of scikit-learn"}
    model.report(path, vectors, **about)


def described() -> tuple[Any, dict[str, Any]]:
    """Words of the documentation of scikit-learn's estimators; texts, names and modules."""
    found = [(name, kind, inspect.getdoc(kind) or "") for name, kind in all_estimators()]
    texts = [prose(text) for _, _, text in found]
    tfidf = TfidfVectorizer(stop_words="english", sublinear_tf=True, min_df=3, max_df=0.3)
    return tfidf.fit_transform(texts).astype(np.float32), {
        "items": texts,
        "ids": [name for name, _, _ in found],
        "classes": [kind.__module__.split(".")[1] for _, kind, _ in found],
    }


def prose(text: str) -> str:
    """What comes before the parameters, without its markup."""
    text = re.split(r"^(?:Parameters|Read more|\.\. )", text, maxsplit=1, flags=re.MULTILINE)[0]
    return re.sub(r":\w+:`([^`<]*)(?:<[^>]*>)?`", r"\1", text)


def saved(png: bytes, name: str) -> None:
    """Write a screenshot, as small as it becomes without loss."""
    stream = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").save(stream, "PNG", optimize=True)
    if len(stream.getvalue()) > MOST:
        raise ValueError(f"{name} has {len(stream.getvalue()):,} bytes, more than {MOST:,}")
    (IMAGES / name).write_bytes(stream.getvalue())


def show(browser: Any, section: str) -> None:
    """Scroll to a section."""
    browser.run(f"document.getElementById('{section}').scrollIntoView()")
    browser.settle()


def choose_a_row(browser: Any) -> None:
    """One that the map and the panel on it then show."""
    browser.run("document.querySelectorAll('#row-table tbody button')[3].click()")


def shots(browser: Any, folder: Path) -> None:
    """All screenshots, of reports in a folder."""
    browser.open(folder / "digits.html", height=1070)
    choose_a_row(browser)
    browser.run("scrollTo(0, 0)")
    saved(browser.screenshot(), "report-map.png")
    show(browser, "clusters")
    saved(browser.screenshot(), "report-cards.png")

    browser.open(folder / "digits.html", dark=True)
    browser.run("document.querySelector('input[value=class]').click()")
    choose_a_row(browser)
    show(browser, "map")
    saved(browser.screenshot(), "report-dark.png")

    browser.open(folder / "digits.html", width=390, height=844, touch=True, ratio=2)
    choose_a_row(browser)
    show(browser, "map")
    saved(browser.screenshot(), "report-phone.png")

    browser.open(folder / "manual.html")
    show(browser, "clusters")
    saved(browser.screenshot(), "report-text.png")
    browser.open(folder / "wine.html")
    show(browser, "clusters")
    saved(browser.screenshot(), "report-table.png")
    browser.open(folder / "embeddings.html", height=1070)
    choose_a_row(browser)
    browser.run("scrollTo(0, 0)")
    saved(browser.screenshot(), "report-embeddings.png")


def main() -> None:
    """Make the reports, then photograph them."""
    tools = runpy.run_path(str(ROOT / "tests" / "report" / "conftest.py"))
    program = next(filter(None, map(shutil.which, tools["NAMES"])), None)
    if program is None:
        raise SystemExit(f"a browser is needed: one of {', '.join(tools['NAMES'])}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for make in (digits, wine, manual, embeddings):
            make(folder / f"{make.__name__}.html")
        browser = tools["Browser"](program, folder / "profile")
        try:
            shots(browser, folder)
        finally:
            browser.close()


if __name__ == "__main__":
    main()
