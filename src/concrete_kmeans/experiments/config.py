"""What an experiment runs, from a TOML file of the package."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib.resources import files
from typing import Any, Self, TypeVar

__all__ = ["Config", "Data", "Method", "Runtime", "Target", "read", "runtime", "table2"]

T = TypeVar("T")

#: The scores of the paper's Table 2, as they are keyed.
SCORES = ("nmi", "ari", "acc")


@dataclass(frozen=True)
class Data:
    """A data set of a table: how it is loaded, encoded and scored."""

    key: str
    title: str
    load: str
    """For :func:`concrete_kmeans.datasets.load`, with ``options``."""
    encoder: Sequence[int]
    options: Mapping[str, str] = field(default_factory=dict)
    images: bool = False
    split: bool = False
    """Fit on the original training part, and score ``predict`` of the rest."""
    paper: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Of a method of the paper: mean and deviation of each of :data:`SCORES`, in percent."""
    paper_of: str | None = None
    """The data set whose figures of the paper stand here, too."""
    parameters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Of a method, on this data set only."""


@dataclass(frozen=True)
class Method:
    """A method of a table, beside what :data:`concrete_kmeans.experiments.deep.METHODS` says."""

    key: str
    paper: str | None = None
    images: bool = False
    """Takes rows as images, and no others."""
    single: bool = False
    """All seeds have one result."""
    of: str | None = None
    """The method whose fitted restarts it goes on from."""
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Target:
    """Scores to reach, in percent."""

    title: str
    dataset: str
    method: str
    nmi: float
    ari: float
    acc: float


@dataclass(frozen=True)
class Config:
    """A table."""

    protocol: Mapping[str, str]
    datasets: Mapping[str, Data]
    methods: Mapping[str, Method]
    targets: Sequence[Target] = ()
    counted: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Self:
        """From what a TOML file holds."""
        known = {each.name for each in fields(cls)}
        if unknown := sorted(table.keys() - known):
            raise ValueError(f"unknown: {', '.join(unknown)}; known: {', '.join(sorted(known))}")
        return cls(
            table.get("protocol", {}),
            {
                key: _made(Data, f"datasets.{key}", key=key, **own)
                for key, own in table["datasets"].items()
            },
            {
                key: _made(Method, f"methods.{key}", key=key, **own)
                for key, own in table["methods"].items()
            },
            [
                _made(Target, f"targets[{i}]", **own)
                for i, own in enumerate(table.get("targets", ()))
            ],
            table.get("counted", {}),
        )

    def paper(self, data: Data) -> Mapping[str, Sequence[float]]:
        """The paper's figures to stand beside a data set's."""
        return data.paper if data.paper_of is None else self.datasets[data.paper_of].paper


@dataclass(frozen=True)
class Runtime:
    """The measurement of an epoch."""

    title: str
    load: str
    encoder: Sequence[int]
    batch_size: int
    seeds: Sequence[int]
    """Numbers of runs trained together."""
    methods: Mapping[str, Mapping[str, float]]
    """Of each method, ``paper``: seconds in the paper."""


def read(name: str) -> dict[str, Any]:
    """Content of a TOML file of the package."""
    text = (
        files("concrete_kmeans.experiments").joinpath("configs", f"{name}.toml").read_text("utf-8")
    )
    return tomllib.loads(text)


def table2() -> Config:
    """Table 2 of the paper, and beyond it."""
    return Config.of(read("table2"))


def runtime() -> Runtime:
    """The paper's runtime per epoch."""
    return _made(Runtime, "runtime", **read("runtime"))


def _made(kind: type[T], where: str, **values: Any) -> T:
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"{where}: {error}") from error
