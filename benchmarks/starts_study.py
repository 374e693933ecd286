"""Which first partition to trust, and which label-free score would tell: docs/deep.md.

``python benchmarks/starts_study.py`` pretrains autoencoders, partitions rows, principal components,
codes and whitened codes in every way, and writes ``results/starts_study.json``: scores of each
candidate, and of the one that each label-free criterion would have picked, seed by seed.
``--report`` writes the tables of docs/deep.md. Labels are used for scores only.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from concrete_kmeans import AutoencoderKMeans, metrics, starts
from concrete_kmeans.data import Scaled
from concrete_kmeans.experiments import results, tables
from concrete_kmeans.graph import nearest_neighbours
from deep import DOC, TABLES, load
from measure import RESULTS

#: Spectral vectors of a cut, in numbers of clusters, by k-means and by a mixture.
CUTS = (1.0, 1.5, 2.0)


def candidates(sample: Any, codes: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
    """Partitions of a sample, by name; every single cut of the whitened code's graph only."""
    found: dict[str, Tensor] = {}
    spaces = {
        "rows": sample.rows,
        "components": sample.principal,
        "code": codes,
        "whitened code": sample.whitened(codes, generator),
    }
    for space, points in spaces.items():
        spectrum = sample.spectrum if space == "rows" else sample.spectrum_of(points)
        found[f"k-means of the {space}"] = sample.kmeans(points, generator)
        if space != "rows":  # covariances of all features cost too much
            full = starts.STARTS["mixture"](sample, points, generator, 1.0).labels
            found[f"full mixture of the {space}"] = full
            found[f"half-way mixture of the {space}"] = sample.mixture(points, generator)
        for number in CUTS if space == "whitened code" else CUTS[:1]:
            size = int(number * sample.n_clusters)
            vectors = torch.nn.functional.normalize(spectrum.vectors[:, :size], dim=1)
            name = f"graph of the {space}, {'' if number == 1 else f'{number:g} '}K vectors"
            found[name] = sample.kmeans(vectors, generator)
            if space == "whitened code":
                found[f"{name}, mixture"] = sample.mixture(vectors, generator)
        cuts = torch.stack([*sample.cuts(spectrum, generator)])
        four = starts.consensus(cuts, sample.n_clusters, generator)
        found[f"graph of the {space}, four cuts"] = four
    return found


def neighbour_information(labels: np.ndarray, neighbours: np.ndarray, k: int) -> float:
    """Mutual information of a row's and its neighbours' clusters, over log k."""
    joint = np.zeros((k, k))
    np.add.at(joint, (labels[:, None], labels[neighbours]), 1.0)
    joint /= joint.sum()
    alone = joint.sum(1, keepdims=True) * joint.sum(0, keepdims=True)
    some = joint > 0
    return float((joint[some] * np.log(joint[some] / alone[some])).sum() / np.log(k))


def criteria(
    found: dict[str, np.ndarray], rows: np.ndarray, codes: np.ndarray, k: int
) -> dict[str, dict[str, float]]:
    """Label-free scores of each candidate, larger is better."""
    others = {
        name: [metrics.nmi(labels, other) for n, other in found.items() if n != name]
        for name, labels in found.items()
    }
    adjusted = {
        name: [metrics.ari(labels, other) for n, other in found.items() if n != name]
        for name, labels in found.items()
    }
    return {
        "neighbour information, rows": {
            name: neighbour_information(labels, rows, k) for name, labels in found.items()
        },
        "neighbour information, code": {
            name: neighbour_information(labels, codes, k) for name, labels in found.items()
        },
        "mean NMI with the others": {name: float(np.mean(v)) for name, v in others.items()},
        "mean ARI with the others": {name: float(np.mean(v)) for name, v in adjusted.items()},
    }


def single_one(title: str) -> bool:
    """Whether a candidate is one partition, no consensus."""
    return not title.startswith(("consensus", "as shipped"))


def study(name: str, n_seeds: int, device: str) -> dict[str, Any]:
    X, y, k = load(name, device)
    fitted = AutoencoderKMeans(k, n_init=n_seeds, random_state=0).fit(X)
    model = fitted.model_
    source = Scaled(torch.as_tensor(X), model.scaling)
    every = model.codes(source)
    n = len(X)
    index = torch.arange(n, device=every.device)
    if n > starts.MAX_ROWS:
        index = torch.arange(starts.MAX_ROWS, device=every.device) * n // starts.MAX_ROWS
    sample = starts.Sample(source[index], k)
    truth = y[index.cpu().numpy()]
    near_rows = nearest_neighbours(sample.rows, sample.rows, 10, same=True).cpu().numpy()
    runs = []
    for r in range(n_seeds):
        generator = torch.Generator(every.device).manual_seed(r)
        codes = every[r, index]
        found = candidates(sample, codes, generator)
        shipped = (
            (0.0, "consensus of the code"),
            (1.0, "consensus of both"),
            (model.gains[r], "as shipped"),
        )
        for gain, title in shipped:
            found[title] = starts.STARTS["consensus"](sample, codes, generator, gain).labels
        labels = {title: part.cpu().numpy() for title, part in found.items()}
        near_codes = nearest_neighbours(codes, codes, 10, same=True).cpu().numpy()
        single = {title: part for title, part in labels.items() if single_one(title)}
        runs.append(
            {
                "seed": r,
                "gain": model.gains[r],
                "nmi": {title: metrics.nmi(truth, part) for title, part in labels.items()},
                "criteria": criteria(single, near_rows, near_codes, k),
            }
        )
    return {"runs": runs, "environment": results.environment()}


# ------------------------------------------------------------------------------------------ report


def summary(cells: dict[str, Any]) -> tuple[str, str]:
    names = [name for name in TABLES if name in cells]
    mean = {
        name: {
            title: 100 * float(np.mean([run["nmi"][title] for run in cells[name]["runs"]]))
            for title in cells[name]["runs"][0]["nmi"]
        }
        for name in names
    }
    titles = list(mean[names[0]])
    rows = [
        [
            title,
            *(f"{mean[n][title]:.1f}" for n in names),
            f"{np.mean([mean[n][title] for n in names]):.1f}",
        ]
        for title in titles
    ]
    starts_table = tables.markdown(["start", *names, "mean"], rows)
    lost: dict[str, list[float]] = {}
    for name in names:
        runs = cells[name]["runs"]
        singles = [*filter(single_one, titles)]
        best = max(mean[name][t] for t in singles)
        for criterion in runs[0]["criteria"]:
            picked = [
                100
                * run["nmi"][max(run["criteria"][criterion], key=run["criteria"][criterion].get)]
                for run in runs
            ]
            lost.setdefault(criterion, []).append(best - float(np.mean(picked)))
    rows = [
        [c, *(f"{v:.1f}" for v in values), f"{np.mean(values):.1f}"] for c, values in lost.items()
    ]
    return starts_table, tables.markdown(["criterion", *names, "mean"], rows)


def into_document(text: str, record: dict[str, Any]) -> str:
    """The page with the tables of a study in it."""
    for name, table in zip(("starts", "criteria"), summary(record["cells"]), strict=True):
        text = tables.into_page(text, name, f"\n\n{table}\n")
    return text


def report(path: Path) -> None:
    record = results.load(path)
    if record is None:
        raise SystemExit(f"{path} is missing: run the study first")
    results.write_text(DOC, into_document(DOC.read_text("utf-8"), record))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", type=lambda text: text.split(","), default=TABLES)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--report", action="store_true", help="only write the tables of the docs")
    options = parser.parse_args()
    path = options.out / "starts_study.json"
    if options.report:
        report(path)
        return
    warnings.simplefilter("ignore")
    for name in options.sets:
        cell = study(name, options.seeds, options.device)
        record = results.load(path) or {"cells": {}}
        record["cells"][name] = cell
        results.save(path, record)
        nmi = {t: np.mean([run["nmi"][t] for run in cell["runs"]]) for t in cell["runs"][0]["nmi"]}
        print(
            name, {title: round(100 * float(value), 1) for title, value in nmi.items()}, flush=True
        )


if __name__ == "__main__":
    main()
