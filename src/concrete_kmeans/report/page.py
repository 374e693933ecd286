"""A report's contents as one HTML file."""

from __future__ import annotations

import base64
import hashlib
import html
import itertools
import json
import math
import numbers
import re
from importlib.resources import files as package_files
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from concrete_kmeans import __version__
from concrete_kmeans.files import write_text
from concrete_kmeans.report import describing, palette
from concrete_kmeans.report.contents import Images, ReportData, Table, Texts
from concrete_kmeans.report.pictures import make_atlas, n_cells, resized
from concrete_kmeans.report.projection import evenly

__all__ = ["check_path", "render", "write"]

#: What a figure says, under its name in :attr:`ReportData.figures`.
FIGURES = {
    "Silhouette": "From -1 to 1, of at most 2,000 rows: how much nearer a row is to its own "
    "cluster than to the next.",
    "Effective clusters": "How many clusters of equal size would be as even as these.",
    "Agreement": "Mean adjusted Rand index of the restart that is shown with the others: 1 if all "
    "found the same clusters.",
    "Reconstruction": "Squared error of a row after encoding and decoding, in scaled units.",
    "Inertia": "Sum of squared distances of the rows to their centres.",
}
SCORES = {
    "acc": ("Accuracy", "Rows that are right under the best one-to-one matching with classes."),
    "nmi": ("NMI", "Normalised mutual information with the classes."),
    "ari": ("ARI", "Adjusted Rand index with the classes: 0 for random clusters."),
    "purity": ("Purity", "Rows that are of the most frequent class of their cluster."),
}
#: Members of a cluster on its card, of each kind: as pictures, else as text.
PICTURES, ROWS = 12, 3
#: Words, and features, that a card shows.
WORDS, FEATURES = 12, 6
#: Standard deviations below which a feature does not set a cluster apart; a card would say 0.0.
LEAST_DIFFERENCE = 0.05
#: Characters of all texts of a page; of one text at most, and at least.
ALL_CHARACTERS, MOST_CHARACTERS, LEAST_CHARACTERS = 2_500_000, 280, 40
#: Numbers of a table on a page; columns of it at most, and at least.
ALL_NUMBERS, MOST_COLUMNS, LEAST_COLUMNS = 500_000, 12, 3
#: Largest whole number of a value of a table; the one above it is for values that are not there.
TABLE_STEPS = 65_534
#: Classes with a name of their own, and cells of a confusion matrix.
MAX_CLASSES, MAX_CELLS = 100, 10_000
#: Points of a curve.
CURVE_POINTS = 300


def write(data: ReportData, path: str | PathLike[str]) -> Path:
    """Write a report, whole or not at all; folders above it are made."""
    path = check_path(path)
    write_text(path, render(data))
    return path


def check_path(path: str | PathLike[str]) -> Path:
    """Refuse what cannot be the name of a report, before anything is computed."""
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"path must be that of a file, {path} is a folder")
    return path


def render(data: ReportData) -> str:
    """The text of the HTML file."""
    folder = package_files("concrete_kmeans.report")
    template, style, script = (
        (folder / name).read_text(encoding="utf-8") for name in ("page.html", "page.css", "page.js")
    )
    parts = {
        "title": html.escape(_clean(data.title)),
        "style": style,
        "style_hash": _hash(style),
        "script": script,
        "script_hash": _hash(script),
        "data": _as_json(_payload(data)),
    }
    # in one pass: what is filled in may itself look like a place to fill
    return re.sub(r"{{(\w+)}}", lambda place: parts[place[1]], template)


def _hash(text: str) -> str:
    """What the page's policy calls its only script and its only style sheet."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _as_json(value: Any) -> str:
    """JSON that is inert inside a ``script`` element, whatever is in it."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _clean(text: object) -> str:
    """Text that can be written as UTF-8: half characters, as in odd file names, become ``?``."""
    return str(text).encode("utf-8", "replace").decode()


def _packed(values: Any, kind: str) -> str:
    """An array of little-endian numbers as base64."""
    return base64.b64encode(np.asarray(values).astype(f"<{kind}").tobytes()).decode()


def _payload(data: ReportData) -> dict[str, Any]:
    """What the page's script reads."""
    n, K = len(data.labels), data.n_clusters
    members, classes = _members(data), _classes(data)
    clusters = [
        {"size": int(size), **{kind: rows[k] for kind, rows in members.items()}}
        for k, size in enumerate(np.bincount(data.labels, minlength=K))
    ]
    return {
        "title": _clean(data.title),
        "subtitle": _clean(data.subtitle),
        "version": __version__,
        "colors": palette.COLORS,
        "n": n,
        "clusters": clusters,
        "labels": _packed(data.labels, "u2"),
        "map": _packed_map(data),
        "doubt": None if data.doubt is None else _packed(np.round(255 * data.doubt), "u1"),
        "classes": classes and _packed_classes(data, classes),
        "ids": None if data.ids is None else [_clean(name) for name in data.ids],
        **_packed_items(data, clusters),
        "figures": [*_figures(data), *_scores(data)],
        "history": [_thinned(curve) for curve in describing.curves(data.history)],
        "restarts": _restarts(data),
        "confusion": classes and _confusion(data, classes),
        "k_curve": _k_curve(data),
    }


def _members(data: ReportData) -> dict[str, list[list[int]]]:
    most, kinds = ROWS, {}
    if isinstance(data.items, Images):
        # of two kinds, in half the room: the other half is for the map
        most = min(max(_room(data.items, data.n_clusters) // (4 * data.n_clusters), 1), PICTURES)
    if data.distance is not None:
        kinds["typical"] = data.distance
    if data.doubt is not None:
        kinds["doubtful"] = -data.doubt
    return {
        kind: describing.extremes(values, data.labels, data.n_clusters, most)
        for kind, values in kinds.items()
    }


def _classes(data: ReportData) -> describing.Classes | None:
    if data.classes is None:
        return None
    return describing.most_frequent(describing.named_classes(data.classes), MAX_CLASSES)


def _packed_classes(data: ReportData, classes: describing.Classes) -> dict[str, Any]:
    """Classes; each has the colour of its cluster, so that the two maps can be compared."""
    found = describing.matched(classes, data.labels, data.n_clusters)
    free = itertools.count(data.n_clusters)
    colors = [next(free) if own is None else own for own in found.cluster_of[: classes.n_known]]
    return {
        "names": [_clean(name) for name in classes.names],
        "codes": _packed(classes.codes, "u2"),
        "colors": colors + [None] * (len(classes.names) - len(colors)),
    }


def _packed_map(data: ReportData) -> dict[str, Any] | None:
    """Coordinates in 16 bits, with the same unit on both axes."""
    if data.map is None:
        return None
    low = data.map.min(0)
    span = float(np.ptp(data.map, axis=0).max()) or 1.0
    places = np.round((data.map - low) / span * 65535)
    return {
        "x": _packed(places[:, 0], "u2"),
        "y": _packed(places[:, 1], "u2"),
        "caption": _clean(data.map_caption),
    }


def _packed_items(data: ReportData, clusters: list[dict[str, Any]]) -> dict[str, Any]:
    """Pictures, texts or columns, and what they tell of each cluster, which is added to it."""
    packed: dict[str, Any] = {"atlas": None, "texts": None, "table": None, "note": ""}
    items = data.items
    if isinstance(items, Images) or data.centers is not None:
        packed |= _packed_pictures(data, clusters)
    if isinstance(items, Texts):
        packed |= _packed_texts(items, data, clusters)
    elif isinstance(items, Table):
        packed |= _packed_table(items, data, clusters)
    return packed


def _packed_pictures(data: ReportData, clusters: list[dict[str, Any]]) -> dict[str, Any]:
    """The atlas: the centres first, then members on cards, then as many others as there is room."""
    parts, rows = [], np.zeros(0, np.int64)
    if data.centers is not None:
        parts.append(data.centers.pixels)
    if isinstance(data.items, Images):
        room = _room(data.items, data.n_clusters)
        shown = [r for c in clusters for kind in ("typical", "doubtful") for r in c.get(kind, [])]
        n = len(data.labels)
        others = evenly(n, room)
        rows = np.unique(np.concatenate([np.array(shown, np.int64), others]))
        if len(rows) > room:
            extra = np.setdiff1d(others, shown)
            rows = np.union1d(shown, extra[evenly(len(extra), room - len(shown))])
        pictures = np.asarray(data.items.pixels[rows])
        parts = [_like(centers, pictures) for centers in parts] + [pictures]
    atlas = make_atlas(np.concatenate(parts))
    note = ""
    if 0 < len(rows) < len(data.labels):
        note = f"Pictures of {len(rows):,} of {len(data.labels):,} rows are in this file."
    return {
        "atlas": {
            **atlas._asdict(),
            "centers": 0 if data.centers is None else len(data.centers),
            "rows": _packed(rows, "u4"),
        },
        "note": note,
    }


def _like(centers: npt.NDArray[np.uint8], pictures: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Centres of the size and the colours of the pictures beside which they are shown."""
    centers = resized(centers, *pictures.shape[1:3])
    if centers.ndim < pictures.ndim:
        return np.repeat(centers[..., None], 3, axis=-1)
    if centers.ndim > pictures.ndim:
        return np.asarray(centers.mean(-1).round(), dtype=np.uint8)
    return centers


def _room(items: Images, n_clusters: int) -> int:
    """Pictures that fit into the atlas beside those of the centres."""
    return max(n_cells(*items.pixels.shape[1:3]) - n_clusters, 0)


def _packed_texts(items: Texts, data: ReportData, clusters: list[dict[str, Any]]) -> dict[str, Any]:
    n = len(items)
    most = min(max(ALL_CHARACTERS // n, LEAST_CHARACTERS), MOST_CHARACTERS)
    short = [" ".join(_clean(text[: 4 * most]).split()) for text in items.texts]
    cut = [text if len(text) <= most else text[: most - 1].rstrip() + "…" for text in short]
    words = describing.words_apart(items.texts, data.labels, data.n_clusters, WORDS)
    for cluster, own in zip(clusters, words, strict=True):
        cluster["words"] = own
    long = any(len(text) > most for text in items.texts)
    note = f"Texts are cut after {most} characters; search looks at what is shown." if long else ""
    return {"texts": cut, "note": note}


def _packed_table(items: Table, data: ReportData, clusters: list[dict[str, Any]]) -> dict[str, Any]:
    values, names = items.values, [_clean(name) for name in items.names]
    apart = describing.features_apart(values, names, data.labels, data.n_clusters, FEATURES)
    for cluster, own in zip(clusters, apart, strict=True):
        cluster["features"] = [
            feature._asdict() for feature in own if abs(feature.difference) >= LEAST_DIFFERENCE
        ]
    most = min(max(ALL_NUMBERS // len(items), LEAST_COLUMNS), MOST_COLUMNS)
    shown = describing.most_telling(values, data.labels, data.n_clusters)[:most]
    part = values[:, shown].astype(np.float64)
    there = ~np.isnan(part)
    low = np.where(there, part, np.inf).min(0)
    high = np.where(there, part, -np.inf).max(0)
    low, high = (np.where(there.any(0), end, 0.0) for end in (low, high))
    step = (high - low) / TABLE_STEPS
    places = np.round((np.where(there, part, low) - low) / np.where(step > 0, step, 1.0))
    places[~there] = TABLE_STEPS + 1
    note = ""
    if len(shown) < len(names):
        note = (
            f"Of {len(names)} features, rows show the {len(shown)} that differ most between "
            "clusters."
        )
    table = {
        "names": [names[f] for f in shown],
        "low": low.tolist(),
        "step": step.tolist(),
        "values": _packed(places.T, "u2"),
    }
    return {"table": table, "note": note}


def _figures(data: ReportData) -> list[dict[str, Any]]:
    sizes = {"Rows": len(data.labels), "Clusters": data.n_clusters}
    shown = [_figure("Size", name, f"{value:,}", "") for name, value in sizes.items()]
    for name, value in data.figures.items():
        text = _clean(value) if isinstance(value, str) else _short(value)
        shown.append(_figure("Quality, without classes", _clean(name), text, FIGURES.get(name, "")))
    return shown


def _scores(data: ReportData) -> list[dict[str, Any]]:
    if data.classes is None:
        return []
    found = describing.scores_of_known(data.classes, data.labels)
    return [
        _figure("Match with the classes", name, f"{found[key]:.3f}", meaning)
        for key, (name, meaning) in SCORES.items()
        if key in found
    ]


def _figure(group: str, name: str, value: str, meaning: str) -> dict[str, str]:
    return {"group": group, "name": name, "value": value, "help": meaning}


def _short(value: Any) -> str:
    """A number to be read, not to be computed with.

    >>> _short(0.41234), _short(12345.6), _short(3), _short(1.0), _short(2e-5)
    ('0.412', '12,346', '3', '1.000', '2.0e-05')
    """
    size = abs(value)
    if value == 0 or isinstance(value, numbers.Integral) or size >= 1000:
        return f"{value:,.0f}"
    if size < 5e-4:
        return f"{value:.1e}"
    return f"{value:.3f}" if size <= 1 else f"{value:.2f}" if size < 100 else f"{value:.1f}"


def _number(value: Any) -> Any:
    """A number as JSON has it: what is not finite is null."""
    return None if isinstance(value, numbers.Real) and not math.isfinite(value) else value


def _thinned(curve: describing.Curve) -> dict[str, Any]:
    """A curve with at most :data:`CURVE_POINTS` points."""
    kept = evenly(len(curve.steps), CURVE_POINTS)
    values = [[_number(value) for value in curve.values[i]] for i in kept]
    return {
        "name": _clean(curve.name),
        "steps": [curve.steps[i] for i in kept],
        "phases": [_clean(curve.phases[i]) for i in kept],
        "values": values,
    }


def _restarts(data: ReportData) -> dict[str, Any] | None:
    if len(data.restarts) < 2:
        return None
    columns = [c for c in data.restarts[0] if any(r.get(c) is not None for r in data.restarts)]
    titles = {
        "n_iter": "steps",
        **{key: title if len(key) > 3 else key.upper() for key, (title, _) in SCORES.items()},
    }
    rows = [[_cell(name, restart.get(name)) for name in columns] for restart in data.restarts]
    agreement = None
    if data.agreement is not None:
        agreement = [[_number(float(value)) for value in row] for row in data.agreement]
    return {
        "columns": [_clean(titles.get(c, c)) for c in columns],
        "rows": rows,
        "best": data.best_restart,
        "agreement": agreement,
    }


def _cell(name: str, value: Any) -> str:
    if isinstance(value, str):
        return _clean(value)
    if _number(value) is None:
        return ""
    return str(value) if name == "seed" else _short(value)


def _confusion(data: ReportData, classes: describing.Classes) -> dict[str, Any] | None:
    if len(classes.names) * data.n_clusters > MAX_CELLS:
        return None
    counts, _, order = describing.matched(classes, data.labels, data.n_clusters)
    return {"clusters": order.tolist(), "counts": counts[:, order].tolist()}


def _k_curve(data: ReportData) -> dict[str, Any] | None:
    curve = data.k_curve
    if curve is None:
        return None
    scores = {
        _clean(name): [_number(float(value)) for value in values]
        for name, values in curve.scores.items()
    }
    return {
        "k": list(curve.k),
        "scores": scores,
        "chosen": curve.chosen,
        "reasons": [_clean(reason) for reason in curve.reasons],
    }
