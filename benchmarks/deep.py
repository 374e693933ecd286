"""Deep clustering with default settings: every figure of docs/deep.md, one command each.

    python benchmarks/deep.py tables    seven data sets: CKM against KM and AE+KM, 10 seeds
    python benchmarks/deep.py apart     the same on sets that no choice was made on
    python benchmarks/deep.py digits    all seven methods, and ClustPy's, on the embedded digits
    python benchmarks/deep.py fit       seconds of one default fit on the digits
    python benchmarks/deep.py report    tables in docs/deep.md from the JSON files

Labels are used for scores only. A cell (data set and method) is written when it ends, and cells of
``--sets`` and ``--methods`` are computed again.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn import datasets as bundled

from concrete_kmeans import datasets, metrics
from concrete_kmeans.experiments import deep, results, tables
from measure import RESULTS, without_torchvision

DOC = Path(__file__).parents[1] / "docs" / "deep.md"
TABLES = ("digits", "pendigits", "satimage", "letter", "segment", "vowel", "usps")
#: Of scikit-learn. Not held out: starts were compared on some, and starts.ROUND was set by others.
APART: dict[str, Callable[[], tuple[np.ndarray, np.ndarray]]] = {
    "iris": partial(bundled.load_iris, return_X_y=True),
    "wine": partial(bundled.load_wine, return_X_y=True),
    "breast cancer": partial(bundled.load_breast_cancer, return_X_y=True),
    "blobs": lambda: bundled.make_blobs(
        1500, n_features=16, centers=6, cluster_std=4.0, random_state=0
    )[:2],
    "moons": partial(bundled.make_moons, 1000, noise=0.05, random_state=0),
}
SCORES = ("nmi", "ari", "acc")


def load(name: str, device: str) -> tuple[Any, np.ndarray, int]:
    if name in APART:
        X, y = APART[name]()
    else:
        data = datasets.load(name)
        X, y = data.data, data.target
    X = np.ascontiguousarray(X, dtype=np.float32)
    return (torch.from_numpy(X).to(device) if device != "cpu" else X), y, len(np.unique(y))


def update(name: str, data_set: str, method: str, cell: dict[str, Any]) -> None:
    """Write one cell into ``results/<name>.json``."""
    path = RESULTS / f"{name}.json"
    record = results.load(path) or {"cells": {}}
    cell["environment"] = results.environment()
    record["cells"].setdefault(data_set, {})[method] = cell
    results.save(path, record)
    summary = cell["summary"]
    text = " / ".join(tables.spread(*_percent(summary[key]), 1) for key in SCORES)
    print(f"{data_set:10s} {method:14s} {text}   {cell['seconds']:.1f} s", flush=True)


def _percent(value: dict[str, float]) -> tuple[float, float]:
    return 100 * value["mean"], 100 * value["std"]


def run_tables(options: argparse.Namespace) -> None:
    compare("deep_tables", options.sets or TABLES, options)


def run_apart(options: argparse.Namespace) -> None:
    compare("deep_apart", options.sets or APART, options)


def compare(file: str, names: Iterable[str], options: argparse.Namespace) -> None:
    for name in names:
        X, y, k = load(name, options.device)
        reused = None
        for method in options.methods or ("km", "ae+km", "ckm"):
            if method == "km":
                update(file, name, method, deep.fit_kmeans(X, y, k, options.seeds))
                continue
            fitted, seconds = deep.fit(method, X, k, options.seeds, pretrained=reused)
            reused = reused or fitted  # the same autoencoders for all: the comparison is paired
            update(file, name, method, deep.record_of(fitted, y, seconds))


def run_digits(options: argparse.Namespace) -> None:
    X, y, k = load("digits", options.device)
    reused = None
    own = ("km", "ae+km", "dec", "idec", "dcn", "dkm", "ckm-paper", "ckm-k-means++", "ckm")
    for method in options.methods or (*own, "clustpy-dec", "clustpy-idec", "clustpy-dcn"):
        if method == "km":
            update("deep_digits", "digits", method, deep.fit_kmeans(X, y, k, options.seeds))
        elif method.startswith("clustpy"):
            update("deep_digits", "digits", method, clustpy(method, X, y, k, options.seeds))
        else:
            fitted, seconds = deep.fit(method, X, k, options.seeds, pretrained=reused)
            reused = reused or fitted
            update("deep_digits", "digits", method, deep.record_of(fitted, y, seconds))


def clustpy(method: str, X: np.ndarray, y: np.ndarray, k: int, n_seeds: int) -> dict[str, Any]:
    """A method of ClustPy with its defaults, on rows scaled as ours are."""
    without_torchvision()
    import clustpy.deep

    kind = getattr(clustpy.deep, method.removeprefix("clustpy-").upper())
    scaled = (X - X.mean(0)) / math.sqrt(X.var(0).mean())
    runs, start = [], time.perf_counter()
    for seed in range(n_seeds):
        fitted = kind(k, random_state=np.random.RandomState(seed)).fit(scaled)
        runs.append({"seed": seed, **metrics.scores(y, fitted.labels_)})
    scores = [{key: run[key] for key in (*SCORES, "purity")} for run in runs]
    return {
        "parameters": {"class": f"clustpy.deep.{kind.__name__}"},
        "summary": {key: value._asdict() for key, value in metrics.summarize(scores).items()},
        "seconds": round(time.perf_counter() - start, 2),
        "runs": runs,
    }


def run_fit(options: argparse.Namespace) -> None:
    X, y, k = load("digits", options.device)
    seconds = []
    for seed in range(options.rounds):
        estimator = deep.METHODS["ckm"][0](k, random_state=seed)
        start = time.perf_counter()
        estimator.fit(X)
        seconds.append(round(time.perf_counter() - start, 2))
        print(f"seed {seed}: {seconds[-1]} s, {metrics.scores(y, estimator.labels_)}", flush=True)
    record = {
        "seconds": statistics.median(seconds),
        "seconds_all": seconds,
        "what": "one default fit of DeepConcreteKMeans on the digits",
        "environment": results.environment(),
    }
    results.save(RESULTS / "deep_fit.json", record)


# ------------------------------------------------------------------------------------------ report


def standard_error(cell: dict[str, Any], key: str) -> float:
    return float(cell["summary"][key]["std"]) / math.sqrt(cell["summary"][key]["n"])


def report(_: argparse.Namespace) -> None:
    results.write_text(DOC, into_document(DOC.read_text("utf-8")))


def into_document(text: str) -> str:
    """The page with its tables made again from the committed results."""
    for name, make in REPORTS.items():
        text = tables.into_page(text, name, f"\n\n{make()}\n")
    return text


def cells_of(name: str) -> dict[str, dict[str, Any]]:
    return dict(json.loads((RESULTS / f"{name}.json").read_text("utf-8"))["cells"])


def table_of_tables(file: str, names: Iterable[str]) -> str:
    rows = []
    for name in names:
        cells = cells_of(file).get(name, {})
        if not {"km", "ae+km", "ckm"} <= set(cells):
            continue
        row = [name]
        for method in ("km", "ae+km", "ckm"):
            row += [tables.spread(*_percent(cells[method]["summary"]["nmi"]), 1)]
        ours = cells["ckm"]["summary"]["nmi"]["mean"]
        margins = []
        for method in ("km", "ae+km"):
            theirs = cells[method]["summary"]["nmi"]["mean"]
            error = math.hypot(*(standard_error(cells[m], "nmi") for m in (method, "ckm")))
            margins.append((ours - theirs, error))
        least = min(margins)
        row += [f"{100 * least[0]:+.1f}", f"{100 * least[1]:.1f}"]
        row += [
            " / ".join(f"{100 * cells['ckm']['summary'][key]['mean']:.1f}" for key in SCORES[1:])
        ]
        kept = cells["ckm"]["runs"][cells["ckm"]["kept"]]
        row += [f"{100 * kept['nmi']:.1f}"]
        rows.append(row)
    header = ["data", "KM", "AE+KM", "CKM", "margin", "SE", "CKM ARI / ACC", "kept"]
    return tables.markdown(header, rows)


def table_of_methods(name: str) -> str:
    rows = []
    for data_set, cells in cells_of(name).items():
        for method, cell in cells.items():
            title = deep.TITLES.get(method, method.replace("clustpy-", "ClustPy "))
            scores = [tables.spread(*_percent(cell["summary"][key]), 1) for key in SCORES]
            rows.append([data_set, title, *scores, str(len(cell["runs"]))])
    return tables.markdown(["data", "method", "NMI", "ARI", "ACC", "n"], rows, left=2)


def table_of_choices() -> str:
    """How good the restart is that each label-free measure would keep, of ten."""
    measures = {
        "agreement with the others": ("agreement", 1),
        "reconstruction error": ("reconstruction", -1),
        "inertia in the code": ("inertia", -1),
    }
    rows = []
    for data_set in TABLES:
        cells = cells_of("deep_tables").get(data_set, {})
        if "ckm" not in cells:
            continue
        runs = cells["ckm"]["runs"]
        nmi = np.array([run["nmi"] for run in runs])
        row = [data_set, f"{100 * nmi.mean():.1f}", f"{100 * nmi.max():.1f}"]
        for key, sign in measures.values():
            row.append(f"{100 * nmi[np.argmax([sign * run[key] for run in runs])]:.1f}")
        rows.append(row)
    return tables.markdown(["data", "mean", "best", *measures], rows)


REPORTS = {
    "tables": lambda: table_of_tables("deep_tables", TABLES),
    "apart": lambda: table_of_tables("deep_apart", APART),
    "choices": table_of_choices,
    "digits": lambda: table_of_methods("deep_digits"),
}
PARTS = {
    "tables": run_tables,
    "apart": run_apart,
    "digits": run_digits,
    "fit": run_fit,
    "report": report,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--sets", type=lambda text: text.split(","))
    parser.add_argument("--methods", type=lambda text: text.split(","))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3, help="fits of the part 'fit'")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, help="folder of the results instead of results/")
    options = parser.parse_args()
    if options.out is not None:
        global RESULTS
        RESULTS = options.out
    warnings.simplefilter("ignore")
    PARTS[options.part](options)


if __name__ == "__main__":
    main()
