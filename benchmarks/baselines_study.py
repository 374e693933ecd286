"""Settings of DCN and DEC beside those of Table 2: docs/results/README.md.

``python benchmarks/baselines_study.py --device cuda`` (two minutes on an H200) writes
``results/baselines_study.json``: scores over 15 seeds from the same autoencoders. ``--report``
writes the table of the page. What is best here by score was taken, in their favour.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

from concrete_kmeans import datasets
from concrete_kmeans.experiments import deep, results, tables
from measure import RESULTS, machine

PAGE = Path(__file__).parents[1] / "docs" / "results" / "README.md"
SEEDS, SCORES = 15, ("nmi", "ari", "acc")
ENCODERS = {"usps": (500, 500, 2000, 10), "20newsgroups": (250, 100, 20)}
TITLES = {"usps": "USPS", "20newsgroups": "20 Newsgroups"}
SCALES = {"usps": "none", "20newsgroups": "global"}
#: Data, method, and what differs from the estimator's defaults.
SETTINGS: list[tuple[str, str, dict[str, Any]]] = [
    ("usps", "dcn", {"clustering_weight": 5.0, "learning_rate": 3e-4}),
    ("usps", "dcn", {"clustering_weight": 50.0, "learning_rate": 3e-4}),
    ("usps", "dcn", {"clustering_weight": 400.0, "learning_rate": 1e-3}),
    ("usps", "dcn", {"clustering_weight": 5.0, "learning_rate": 1e-4}),
    ("usps", "dcn", {"clustering_weight": 2.0, "learning_rate": 1e-3, "epochs": 150, "tol": 0.0}),
    ("usps", "dcn", {"clustering_weight": 0.5, "learning_rate": 3e-4, "epochs": 200, "tol": 0.0}),
    ("usps", "dcn", {"clustering_weight": 0.1, "learning_rate": 1e-3, "epochs": 200, "tol": 0.0}),
    ("20newsgroups", "dec", {"normalize": True}),
    ("20newsgroups", "dec", {"learning_rate": 1e-3}),
    ("20newsgroups", "dec", {"epochs": 15}),
    ("20newsgroups", "dec", {"normalize": True, "learning_rate": 0.1}),
    (
        "20newsgroups",
        "dcn",
        {"clustering_weight": 10.0, "normalize": True, "learning_rate": 1e-4},
    ),
    (
        "20newsgroups",
        "dcn",
        {"clustering_weight": 10.0, "normalize": False, "learning_rate": 1e-4},
    ),
]


def studied(device: str, precision: str) -> list[dict[str, Any]]:
    """Scores of every setting."""
    rows = []
    for name, encoder in ENCODERS.items():
        loaded = datasets.load(name)
        dense = loaded.data.toarray() if hasattr(loaded.data, "toarray") else loaded.data
        X = torch.from_numpy(np.ascontiguousarray(dense, dtype=np.float32)).to(device)
        given = {"encoder": encoder, "scale": SCALES[name], "precision": precision}
        first, _ = deep.fit("ae+km", X, loaded.n_classes, SEEDS, **given)
        for data, method, own in SETTINGS:
            if data != name:
                continue
            fitted, seconds = deep.fit(
                method, X, loaded.n_classes, SEEDS, pretrained=first, **given | own
            )
            record = deep.record_of(fitted, loaded.target, seconds)
            scores = {
                score: {key: 100.0 * record["summary"][score][key] for key in ("mean", "std")}
                for score in SCORES
            }
            rows.append({"data": name, "method": method, "parameters": own, **scores})
            print(rows[-1], flush=True)
    return rows


def table(record: dict[str, Any]) -> str:
    """Of the page."""
    lines = [
        [
            TITLES[row["data"]],
            deep.TITLES[row["method"]],
            ", ".join(f"{key} {value}" for key, value in row["parameters"].items()),
            *(tables.spread(row[score]["mean"], row[score]["std"], 1) for score in SCORES),
        ]
        for row in record["rows"]
    ]
    return tables.markdown(["data", "method", "setting", "NMI", "ARI", "ACC"], lines, left=3)


def made(page: str, record: dict[str, Any]) -> str:
    """The page with the table."""
    return tables.into_page(page, "tried", f"\n\n{table(record)}\n")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    options.add_argument("--report", action="store_true", help="write the table of the page")
    chosen = options.parse_args()
    path = RESULTS / "baselines_study.json"
    if not chosen.report:
        warnings.simplefilter("ignore")  # a setting that fails is a result
        precision = "float32" if chosen.device == "cpu" else "tf32"
        about = {"machine": machine(), "device": chosen.device, "precision": precision}
        rows = studied(chosen.device, precision)
        results.save(path, about | {"seeds": SEEDS, "rows": rows})
    record = results.load(path)
    if record is not None:
        results.write_text(PAGE, made(PAGE.read_text("utf-8"), record))


if __name__ == "__main__":
    main()
