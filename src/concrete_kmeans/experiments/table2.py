"""Table 2 of the paper: deep clustering with each method, on images and text.

:func:`run` fills a JSON file cell by cell and goes on from whatever of it is finished. What the
pictures and tables of it look like is in :mod:`concrete_kmeans.experiments.table2_report`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import torch
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

import concrete_kmeans
from concrete_kmeans import datasets
from concrete_kmeans.data import resolve_device
from concrete_kmeans.estimators import ClusterCollapseWarning, DeepClusterer
from concrete_kmeans.experiments import cells, deep, results, table2_report
from concrete_kmeans.experiments.config import SCORES, Config, Data, Method, table2
from concrete_kmeans.experiments.results import Record
from concrete_kmeans.training import Event, Precision
from concrete_kmeans.validation import check_choice, check_positive_int

__all__ = ["N_SEEDS", "choose_precision", "plan", "run"]

FORMAT, N_SEEDS = 1, 15
#: The method without a network, and the one that trains the autoencoders that others go on from.
SHALLOW, FIRST = "km", "ae+km"
#: Parameters of an estimator that decide what is pretrained.
PRETRAINING = (
    "encoder",
    "decoder",
    "scale",
    "augment",
    "pretrain_epochs",
    "pretrain_learning_rate",
)

TITLES = deep.TITLES | {SHALLOW: "KM"}

Advance = Callable[[str, int], None]


def choose_precision(precision: str, device: torch.device) -> Precision:
    """TF32 on CUDA and float32 elsewhere, for ``"auto"``."""
    if precision == "auto":
        return "tf32" if device.type == "cuda" else "float32"
    return cast("Precision", check_choice("precision", precision, ("auto", *get_args(Precision))))


def plan(
    config: Config, names: Sequence[str] | None = None, methods: Sequence[str] | None = None
) -> dict[str, tuple[str, ...]]:
    """Methods of each data set, in the order of the table.

    AE+KM comes with every method that goes on from its autoencoders: it costs no more than they do.
    """
    _check_names("datasets", names, config.datasets)
    _check_names("methods", methods, config.methods)
    if FIRST not in config.methods:
        raise ValueError(f"methods must hold {FIRST!r}, got {', '.join(config.methods)}")
    planned = {}
    for name, data in config.datasets.items():
        if names is not None and name not in names:
            continue
        asked = {
            key
            for key, method in config.methods.items()
            if (methods is None or key in methods) and (data.images or not method.images)
        }
        if any(shares(data, config, config.methods[key]) for key in asked):
            asked.add(FIRST)
        if asked:
            planned[name] = tuple(key for key in config.methods if key in asked)
    if not planned:
        raise ValueError(
            f"methods={', '.join(methods or ())} are for images only, got "
            f"datasets={', '.join(names or ())}"
        )
    return planned


def _check_names(argument: str, names: Sequence[str] | None, known: Mapping[str, Any]) -> None:
    if unknown := [name for name in names or () if name not in known]:
        raise ValueError(
            f"{argument} must be of {', '.join(known)}, got {', '.join(map(repr, unknown))}"
        )


def shares(data: Data, config: Config, method: Method) -> bool:
    """Whether a method goes on from the autoencoders of AE+KM."""
    if method.key in (SHALLOW, FIRST) or method.of is not None:
        return False
    own, first = (
        deep.make(each.key, 1, 1, **_parameters(data, each)).get_params(deep=False)
        for each in (method, config.methods[FIRST])
    )
    return all(own[name] == first[name] for name in PRETRAINING)


def _parameters(data: Data, method: Method) -> dict[str, Any]:
    """What a method is given on a data set; what defines it comes before the data set's encoder."""
    _, own = deep.METHODS[method.key]
    here = data.parameters.get(method.key, {})
    return {"encoder": tuple(data.encoder), **own, **method.parameters, **here}


# --------------------------------------------------------------------------------------------------
# running


def run(
    out: Path,
    *,
    config: Config | None = None,
    names: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    n_seeds: int = N_SEEDS,
    data_home: Path | None = None,
    device: str = "auto",
    precision: str = "auto",
    force: bool = False,
    advance: Advance = lambda _text, _fits: None,
) -> Record:
    """Fill ``table2.json`` in the folder ``out``; write it as Markdown, LaTeX and SVG, too.

    A cell, all seeds of one method on one data set, is in the file as soon as it is finished. Cells
    of the same configuration and data are taken as they are; what was not asked for stays. The
    autoencoders of AE+KM are kept in ``out/autoencoders``, so that a run that was stopped goes on
    from them; where they are missing they are trained again, with the same result.

    Parameters
    ----------
    out : Path
        Folder of the results.
    config : Config or None
        Data sets and methods; the paper's by default.
    names, methods : sequence of str or None
        Keys of ``config`` to run; all by default. See :func:`plan`.
    n_seeds : int
        Seeds 0 to ``n_seeds - 1``, trained together.
    data_home : Path or None
        As in :func:`concrete_kmeans.datasets.load`.
    device : str
        Where everything runs.
    precision : {"auto", "float32", "tf32", "bfloat16", "float64"}
        Of training; ``"auto"`` is TF32 on CUDA and float32 elsewhere.
    force : bool
        Compute finished cells again.
    advance : callable
        Told what goes on and how many fits are done since it was last told.

    Returns
    -------
    dict
        What the JSON file holds.
    """
    config = table2() if config is None else config
    planned = plan(config, names, methods)
    check_positive_int("n_seeds", n_seeds)
    place = resolve_device(device, None)
    asked = _Run(
        out=out,
        config=config,
        asked_for=frozenset(config.methods if methods is None else methods),
        n_seeds=n_seeds,
        data_home=data_home,
        device=place,
        precision=choose_precision(precision, place),
        force=force,
        advance=advance,
    )
    record = cells.open_table(out / "table2.json", "table 2", FORMAT)
    machine = results.environment()
    record |= {
        "protocol": dict(config.protocol),
        "titles": {key: TITLES[key] for key in config.methods},
        "targets": [asdict(target) for target in config.targets],
        "counted": dict(config.counted),
        "current": asked.settings,
    }
    record["environments"][results.digest(machine)] = machine
    for name, own in planned.items():
        row = record["rows"].setdefault(name, {"methods": {}})
        for key, described, cell in _Bench(asked, config.datasets[name]).fill(row, own):
            record["configs"][results.digest(described)] = described
            row["methods"][key] = cell | {"environment": results.digest(machine)}
            _publish(out, config, record)
    return _publish(out, config, record)


def _publish(out: Path, config: Config, record: Record) -> Record:
    """Write the files, in the order of the configuration."""
    rows = {
        name: row | {"methods": _sorted(row["methods"], config.methods)}
        for name, row in _sorted(record["rows"], config.datasets).items()
        if row["methods"]
    }
    finished = [cell for row in rows.values() for cell in row["methods"].values()]
    kept = cells.without_unused({**record, "rows": rows}, finished)
    results.save(out / "table2.json", kept)
    results.write_text(out / "table2.md", table2_report.to_markdown(kept))
    results.write_text(out / "table2.tex", table2_report.to_latex(kept))
    results.write_text(out / "table2.svg", table2_report.to_svg(kept))
    return kept


def _sorted(values: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """The known keys in their order, then those that an earlier configuration had."""
    return {key: values[key] for key in dict.fromkeys([*known, *values]) if key in values}


@dataclass(frozen=True)
class _Run:
    """What one call of :func:`run` was asked for, resolved."""

    out: Path
    config: Config
    asked_for: frozenset[str]
    n_seeds: int
    data_home: Path | None
    device: torch.device
    precision: Precision
    force: bool
    advance: Advance

    @property
    def settings(self) -> Record:
        """What all cells of a table should have in common."""
        return {
            "seeds": list(range(self.n_seeds)),
            "device": self.device.type,
            "precision": self.precision,
            "concrete_kmeans": concrete_kmeans.__version__,
        }


@dataclass(frozen=True)
class _Points:
    """Rows on the device, and what tells whether later data are the same."""

    rows: Tensor
    scored: Tensor | None
    """Rows to score; None for those of the fit."""
    target: Any
    n_clusters: int
    image_shape: tuple[int, int] | None
    about: Record

    def images(self) -> _Points:
        """The same with rows (height, width)."""
        shape = self.image_shape
        if shape is None:
            raise ValueError(f"{self.about['name']} must hold images, got rows of no known shape")
        scored = None if self.scored is None else self.scored.view(-1, *shape)
        return replace(self, rows=self.rows.view(-1, *shape), scored=scored)


class _Bench:
    """One data set, its rows and its autoencoders, and the methods that are run on them."""

    def __init__(self, asked: _Run, data: Data) -> None:
        self.asked, self.data = asked, data
        self.fitted: DeepClusterer | None = None
        """AE+KM, of this run or read from its folder."""
        self.fits: dict[str, DeepClusterer] = {}
        """Of this run, those that others go on from."""

    def fill(self, row: Record, methods: Sequence[str]) -> Iterator[tuple[str, Record, Record]]:
        """Yield method, configuration and cell of whatever is not finished yet."""
        asked = self.asked
        asked.advance(f"{self.data.key}: loading", 0)
        row |= {
            "title": self.data.title,
            "encoder": list(self.data.encoder),
            "data": self.points.about,
            "paper": self._paper(),
        }
        for key in methods:
            method, what = asked.config.methods[key], f"{self.data.key}: {TITLES[key]}"
            described = self.describe(method)
            found = row["methods"].get(key, {}).get("config") == results.digest(described)
            if found and not (asked.force and key in asked.asked_for):
                asked.advance(f"{what}, finished before", asked.n_seeds)
                continue
            asked.advance(what, 0)
            cell = self.compute(method)
            del cell["parameters"]  # the configuration has them
            about = {"config": results.digest(described), "finished": results.now()}
            yield key, described, about | cell
            if key == FIRST:
                self.keep_autoencoders()
            asked.advance(what, asked.n_seeds)

    @cached_property
    def points(self) -> _Points:
        """Rows and classes."""
        data = self.data
        loaded = datasets.load(data.load, self.asked.data_home, **data.options)
        X, y, n_train = loaded.data, loaded.target, loaded.n_train
        if data.split and n_train is None:
            raise ValueError(f"datasets.{data.key}: {data.load} has no training part to split off")
        dense = X.toarray() if isinstance(X, sparse.csr_matrix | sparse.csr_array) else X
        rows = torch.from_numpy(np.ascontiguousarray(dense, dtype=np.float32))
        rows = rows.to(self.asked.device)
        n, d = rows.shape
        about = {
            "name": data.load,
            "options": dict(data.options),
            "split": n_train if data.split else None,
            "n_samples": n,
            "n_features": d,
            "n_clusters": loaded.n_classes,
            "sha256": cells.content_digest(X, y),
        }
        whole = _Points(rows, None, y, loaded.n_classes, loaded.image_shape, about)
        if not data.split:
            return whole
        return replace(whole, rows=rows[:n_train], scored=rows[n_train:], target=y[n_train:])

    def describe(self, method: Method) -> Record:
        """The configuration of a cell: equal for cells whose figures are the same."""
        common = {
            "run": self.asked.settings,
            "data": self.points.about,
            "method": method.key,
        }
        if method.key == SHALLOW:
            return common | {"parameters": deep.parameters_of(deep.lloyd(1, 0))}
        made = self.make(method)
        shared = shares(self.data, self.asked.config, method)
        return common | {
            "parameters": deep.parameters_of(made),
            "auto": deep.autos_of(made),
            "autoencoders": self.folder.name if shared else None,
            "of": None if method.of is None else results.digest(self.describe(self._of(method))),
        }

    def _of(self, method: Method) -> Method:
        return self.asked.config.methods[cast("str", method.of)]

    def compute(self, method: Method) -> Record:
        """All seeds of a method."""
        points = self.points.images() if method.images else self.points
        if method.key == SHALLOW:
            n_seeds = self.asked.n_seeds
            return deep.fit_lloyd(
                points.rows, points.target, points.n_clusters, n_seeds, scored=points.scored
            )
        estimator, seconds = self.run(method, points.rows)
        record = deep.record_of_one if method.single else deep.record_of
        made = record(estimator, points.target, seconds, scored=points.scored)
        return made | {"resolved": deep.resolved(estimator)}

    def run(self, method: Method, rows: Tensor) -> tuple[DeepClusterer, float]:
        """A method, fitted, and the seconds it took."""
        given: dict[str, Any] = {}
        if method.of is not None:
            if method.of not in self.fits:  # finished in an earlier run: the same again
                self.run(self._of(method), rows)
            before = self.fits[method.of]
            given = {"pretrained": before, "init": before.model_.centers, "epochs": 0}
        elif shares(self.data, self.asked.config, method):
            given["pretrained"] = self.autoencoders
        estimator = self.make(method, **given)
        seconds = self.fit(estimator, rows)
        if method.key == FIRST:
            self.fitted = estimator
        if method.key in {other.of for other in self.asked.config.methods.values()}:
            self.fits[method.key] = estimator
        return estimator, seconds

    def make(self, method: Method, **given: Any) -> DeepClusterer:
        """All seeds of a method, not fitted yet."""
        asked, what = self.asked, f"{self.data.key}: {TITLES[method.key]}"

        def tell(event: Event) -> None:
            asked.advance(f"{what}, {event.phase} {100 * event.step // event.n_steps} %", 0)

        return deep.make(
            method.key,
            self.points.n_clusters,
            asked.n_seeds,
            precision=asked.precision,
            callbacks=[tell],
            **_parameters(self.data, method) | given,
        )

    def fit(self, estimator: DeepClusterer, rows: Tensor) -> float:
        """Fit, and return the seconds; what became of a restart is in its ``status``."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ClusterCollapseWarning)
            warnings.simplefilter("ignore", ConvergenceWarning)
            return deep.timed_fit(estimator, rows)

    # ----------------------------------------------------------------------------------------------
    # autoencoders

    @cached_property
    def folder(self) -> Path:
        """Of the autoencoders, named after the configuration of AE+KM."""
        described = self.describe(self.asked.config.methods[FIRST])
        return self.asked.out / "autoencoders" / results.digest(described)

    @property
    def autoencoders(self) -> DeepClusterer:
        """AE+KM: of this run, of an earlier one, or else fitted again."""
        if self.fitted is None and self.folder.is_dir():
            self.fitted = concrete_kmeans.load(self.folder)
        if self.fitted is None:
            self.fitted = self.make(self.asked.config.methods[FIRST])
            self.fit(self.fitted, self.points.rows)
            self.keep_autoencoders()
        return self.fitted

    def keep_autoencoders(self) -> None:
        """Write the folder, for a run that is stopped."""
        if self.fitted is not None:
            self.fitted.set_params(callbacks=None)
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            self.fitted.save(self.folder, overwrite=True)

    def _paper(self) -> Record:
        """The paper's figures for each of our methods that it has."""
        figures = self.asked.config.paper(self.data)
        return {
            key: {
                score: dict(zip(("mean", "std"), figures[method.paper][2 * i :][:2], strict=True))
                for i, score in enumerate(SCORES)
            }
            for key, method in self.asked.config.methods.items()
            if method.paper is not None and method.paper in figures
        }
