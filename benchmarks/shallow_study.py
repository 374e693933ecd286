"""How the defaults of ``ConcreteKMeans`` were chosen: by inertia, on ten data sets, no labels.

``python benchmarks/shallow_study.py`` writes ``results/shallow_study.json`` and the table in
``docs/shallow.md``. Every run starts from the k-means++ centres that Lloyd's algorithm
(scikit-learn's ``KMeans``) starts from; 15 seeds are trained together.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.cluster import KMeans, kmeans_plusplus

from concrete_kmeans import ConcreteKMeans, datasets
from concrete_kmeans.estimators import shallow
from concrete_kmeans.experiments import tables
from measure import RESULTS, write

DOC = Path(__file__).parents[1] / "docs" / "shallow.md"
SETS = (
    "digits",
    "pendigits",
    "vehicle",
    "letter",
    "segment",
    "waveform",
    "vowel",
    "spambase",
    "twonorm",
    "satimage",
)
SEEDS = 15
# sigma2: what sigma="auto" starts from; the rest are parameters of the estimator
STUDY: dict[str, dict[str, Any]] = {
    "as shipped": {},
    "gradient through the sample": {"gradient": "distance"},
    "sigma^2 from 0.05": {"sigma2": 0.05},
    "sigma^2 from 0.3": {"sigma2": 0.3},
    "sigma^2 from 1": {"sigma2": 1.0},
    "rate from 1": {"learning_rate": (1.0, 0.003)},
    "batch of 1,024": {"batch_size": 1024},
    "500 steps": {"max_iter": 500},
}


def start(X: np.ndarray, k: int, random_state: np.random.RandomState) -> np.ndarray:
    return kmeans_plusplus(X, k, random_state=random_state)[0]


def run() -> dict[str, Any]:
    warnings.simplefilter("ignore")
    rows: dict[str, dict[str, Any]] = {name: {} for name in STUDY}
    shipped = shallow.AUTO_SIGMA2
    for name in SETS:
        X, y = datasets.load(name)
        X, k = np.asarray(X, dtype=np.float64), len(np.unique(y))
        lloyd = np.array(
            [
                KMeans(k, init=start(X, k, np.random.RandomState(seed)), n_init=1).fit(X).inertia_
                for seed in range(SEEDS)
            ]
        )
        for label, options in STUDY.items():
            parameters = dict(options)
            shallow.AUTO_SIGMA2 = parameters.pop("sigma2", shipped)
            fit = ConcreteKMeans(k, init=start, n_init=SEEDS, random_state=0, **parameters).fit(X)
            inertia = np.array([restart.inertia for restart in fit.restarts_])
            rows[label][name] = {
                "ratio_of_means": inertia.mean() / lloyd.mean(),
                "worst_seed": (inertia / lloyd).max(),
            }
            print(f"{name:10} {label:28} {rows[label][name]}", flush=True)
        shallow.AUTO_SIGMA2 = shipped
    return {"command": "python benchmarks/shallow_study.py", "seeds": SEEDS, "rows": rows}


def table(study: dict[str, Any]) -> str:
    """The Markdown of the study, from its JSON alone."""
    lines = [
        "| | " + " | ".join(SETS) + " | sets lower | worst seed of all |",
        "| --- " * (len(SETS) + 3) + "|",
    ]
    for label, sets in study["rows"].items():
        cells = [f"{row['ratio_of_means']:.4f} ({row['worst_seed']:.3f})" for row in sets.values()]
        lower = sum(row["ratio_of_means"] < 1 - 1e-6 for row in sets.values())
        worst = max(row["worst_seed"] for row in sets.values())
        lines.append(f"| {label} | " + " | ".join(cells) + f" | {lower} | {worst:.3f} |")
    return "\n".join(lines)


def into_document(text: str, content: str) -> str:
    return tables.into_page(text, "study", f"\n{content}\n")


if __name__ == "__main__":
    path = write("shallow_study", run())
    DOC.write_text(into_document(DOC.read_text(), table(json.loads(path.read_text()))))
    print(f"written to {RESULTS.name}/{path.name} and {DOC.name}")
