"""The work of ``ckm predict``: rows to columns of clusters, probabilities and distances."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from concrete_kmeans.cli.runs import rows_of
from concrete_kmeans.readers import Data
from concrete_kmeans.readers.contents import need
from concrete_kmeans.report.collecting import embed

__all__ = ["Columns", "predict", "to_csv", "to_parquet"]

Columns: TypeAlias = Mapping[str, Sequence[Any]]


def predict(estimator: Any, data: Data) -> Columns:
    """Id, cluster, probability of the cluster where the model has one, distance to its centre."""
    rows = rows_of(estimator, data)
    labels = estimator.predict(rows)
    own = labels[:, None]
    _, distances = embed(estimator, rows)
    columns: dict[str, Sequence[Any]] = {"id": data.ids, "cluster": labels.tolist()}
    if hasattr(estimator, "predict_proba"):
        columns["probability"] = _of(estimator.predict_proba(rows), own)
    columns["distance"] = _of(distances, own)
    return columns


def _of(values: Any, own: Any) -> list[float]:
    """The value of each row's own cluster, as short as its precision allows."""
    picked = np.take_along_axis(values, own, 1)[:, 0].astype(np.float32)
    return [float(str(value)) for value in picked]


def to_csv(columns: Columns) -> bytes:
    """As a CSV file, encoded as ``labels.csv`` of a model folder is."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(columns)
    table.writerows(zip(*columns.values(), strict=True))
    return text.getvalue().encode("utf-8", "surrogatepass")


def to_parquet(columns: Columns) -> bytes:
    """As a Parquet file; ids that are no text, as some file names, are escaped."""
    arrow, parquet = need("pyarrow", "Parquet"), need("pyarrow.parquet", "Parquet")
    ids = [str(i).encode("utf-8", "backslashreplace").decode() for i in columns["id"]]
    stream = io.BytesIO()
    parquet.write_table(arrow.table({**columns, "id": ids}), stream)
    return stream.getvalue()
