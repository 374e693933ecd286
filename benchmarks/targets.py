"""The targets of the project, and what the results say about each: from the JSON files alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cases import CASES, stand_ins
from measure import read

TABLE2 = Path(__file__).parents[1] / "docs" / "results" / "table2_bfloat16.json"
Result = dict[str, Any]
#: A measured value in words, and whether it meets the target; None where nothing was measured.
Found = tuple[str, bool] | None


@dataclass(frozen=True)
class Target:
    """A row of the table."""

    what: str
    target: str
    part: str
    device: str
    look: Callable[[Result], Found]


def _row(result: Result, name: str) -> Result:
    row = result.get("contenders", {}).get(name, {})
    return row if "seconds" in row else {}


def fraction(name: str, least: float) -> Callable[[Result], Found]:
    """Of the product's rate."""

    def look(result: Result) -> Found:
        row = _row(result, name)
        if "fraction_of_limit" not in row:
            return None
        return f"{100 * row['fraction_of_limit']:.0f} %", row["fraction_of_limit"] >= least

    return look


def of_torch(name: str, least: float) -> Callable[[Result], Found]:
    """Of the rate of ``torch.mm``, as the seconds it would take for the same products."""

    def look(result: Result) -> Found:
        ours, theirs = _row(result, name), _row(result, "product, torch.mm")
        if not (ours and theirs):
            return None
        part = theirs["seconds"] / ours["seconds"]
        return f"{100 * part:.0f} %", part >= least

    return look


def times(name: str, peer: str, least: float) -> Callable[[Result], Found]:
    """As fast as a peer."""

    def look(result: Result) -> Found:
        ours, theirs = _row(result, name), _row(result, peer)
        if not (ours and theirs):
            return None
        ratio = theirs["seconds"] / ours["seconds"]
        return f"{ratio:.2f} times", ratio >= least

    return look


def milliseconds(name: str, most: float) -> Callable[[Result], Found]:
    """Of an epoch."""

    def look(result: Result) -> Found:
        row = _row(result, name)
        return (f"{1e3 * row['seconds']:.0f} ms", 1e3 * row["seconds"] <= most) if row else None

    return look


def in_case(
    case: str, name: str, key: str, most: float, inertia: float | None = None
) -> Callable[[Result], Found]:
    """A ratio of one of the k-means cases, at a ratio of inertia that is at most so large."""

    def look(result: Result) -> Found:
        row = _row(result.get("cases", {}).get(case, {}), name)
        if key not in row:
            return None
        words, met = f"{row[key]:.2f}", row[key] <= most
        if inertia is not None:
            words += f", inertia {row['inertia_ratio']:.4f}"
            met = met and row["inertia_ratio"] <= inertia
        return words, met

    return look


def not_behind(case: str, peer: str) -> Callable[[Result], Found]:
    """Seconds over those of a peer in one of the k-means cases."""

    def look(result: Result) -> Found:
        found = result.get("cases", {}).get(case, {})
        ours, theirs = _row(found, "concrete-kmeans"), _row(found, peer)
        if not (ours and theirs):
            return None
        ratio = ours["seconds_per_iteration"] / theirs["seconds_per_iteration"]
        return f"{ratio:.2f}", ratio <= 1.0

    return look


def table2_minutes(most: float) -> Callable[[Result], Found]:
    """Of all cells of Table 2, where they were computed on a GPU."""

    def look(record: Result) -> Found:
        if record.get("current", {}).get("device") != "cuda":
            return None
        cells = [cell for row in record["rows"].values() for cell in row["methods"].values()]
        minutes = sum(cell["seconds"] for cell in cells) / 60.0
        return f"{minutes:.1f} minutes of fitting, {len(cells)} cells", minutes <= most

    return look


def import_seconds(most: float) -> Callable[[Result], Found]:
    """Beyond torch and scikit-learn."""

    def look(result: Result) -> Found:
        row = _row(result, "import concrete_kmeans")
        if not row:
            return None
        seconds = row["beyond_torch_and_scikit_learn"]
        return f"{seconds:+.2f} s", seconds <= most

    return look


def _targets() -> list[Target]:
    cpu = [
        Target(f"joint MNIST epoch, {what}", target, "training", "cpu", look)
        for what, target, look in (
            ("float32: of torch.mm's rate", "≥ 88 %", of_torch("concrete-kmeans", 0.88)),
            (
                "float32: of the best product's rate",
                "≥ 88 %",
                fraction("concrete-kmeans", 0.88),
            ),
            (
                "float32: over the plain loop",
                "≥ 1.25 times",
                times("concrete-kmeans", "plain loop", 1.25),
            ),
            (
                "DCN: over ClustPy's DCN",
                "≥ 1.4 times",
                times("concrete-kmeans, DCN", "ClustPy DCN", 1.4),
            ),
            ("over ClustPy's DCN", "≥ 1.4 times", times("concrete-kmeans", "ClustPy DCN", 1.4)),
            ("over ClustPy's IDEC", "≥ 1.4 times", times("concrete-kmeans", "ClustPy IDEC", 1.4)),
            (
                "bfloat16: over the plain float32 loop",
                "≥ 2 times",
                times("concrete-kmeans, bfloat16", "plain loop", 2.0),
            ),
        )
    ]
    gpu = [
        Target(f"joint MNIST epoch, {what}", target, "training", "cuda", look)
        for what, target, look in (
            ("one seed, tf32", "≤ 60 ms", milliseconds("concrete-kmeans, tf32", 60)),
            ("one seed, bfloat16", "≤ 60 ms", milliseconds("concrete-kmeans, bfloat16", 60)),
            ("15 seeds, tf32", "≤ 200 ms", milliseconds("concrete-kmeans, tf32, 15 seeds", 200)),
            (
                "15 seeds, bfloat16",
                "≤ 200 ms",
                milliseconds("concrete-kmeans, bfloat16, 15 seeds", 200),
            ),
        )
    ]
    gpu.append(
        Target(
            "all of Table 2, 15 seeds, all methods and data, bfloat16",
            "≤ 10 minutes",
            "table2",
            "cuda",
            table2_minutes(10.0),
        )
    )
    streamed = ", ten million rows of a file: of the best product's"
    predict = [
        Target(f"predict{what} rate", f"≥ {least} %", "predict", device, look)
        for device, what, least, look in (
            ("cpu", ": of torch.mm's", 85, of_torch("concrete-kmeans", 0.85)),
            ("cpu", ": of the best product's", 85, fraction("concrete-kmeans", 0.85)),
            ("cpu", streamed, 85, fraction("concrete-kmeans, streamed", 0.85)),
            ("cuda", ": of the best product's", 60, fraction("concrete-kmeans", 0.6)),
            ("cuda", streamed, 60, fraction("concrete-kmeans, streamed", 0.6)),
        )
    ]
    lloyd: list[Target] = []
    shallow: list[Target] = []
    for name, case in CASES.items():
        title = case["title"]
        ours = in_case(name, "concrete-kmeans", "ratio_to_scikit_learn", 0.8)
        lloyd += [
            Target(f"Lloyd, {title}: time over scikit-learn's", "≤ 0.80", "lloyd", "cpu", ours),
            Target(
                f"Lloyd, {title}: time over faiss's",
                "≤ 1.00",
                "lloyd",
                "cpu",
                not_behind(name, "faiss"),
            ),
        ]
        exact = in_case(name, "ConcreteKMeans (lloyd)", "time_ratio", 0.5, inertia=1.0)
        shallow.append(
            Target(
                f"k-means++ to convergence, {title}: time over scikit-learn's",
                "≤ 0.50, inertia ≤ 1",
                "shallow",
                "cpu",
                exact,
            )
        )
    within = in_case("million", "ConcreteKMeans", "time_ratio", 0.5, inertia=1.01)
    shallow.append(
        Target(
            "ConcreteKMeans, 1,000,000 x 32, k = 100: time over KMeans'",
            "≤ 0.50, inertia ≤ 1.01",
            "shallow",
            "cpu",
            within,
        )
    )
    late = Target(
        "import, beyond torch and scikit-learn", "≤ 0.30 s", "imports", "cpu", import_seconds(0.3)
    )
    return [*cpu, *gpu, *predict, *lloyd, *shallow, late]


TARGETS = _targets()


def rows(
    *, quick: bool = False, device: str | None = None, folder: str = ""
) -> list[tuple[Target, Found, Result]]:
    """Each target with what was found, and the results it comes from."""
    known: dict[tuple[str, str], Result] = {}
    table = []
    for target in TARGETS:
        if device in (None, target.device):
            key = target.part, target.device
            if key not in known:
                known[key] = _results(target, quick, folder)
            table.append((target, target.look(known[key]), known[key]))
    return table


def _results(target: Target, quick: bool, folder: str) -> Result:
    if target.part == "table2":  # the table's own file says how long each cell took
        return dict(json.loads(TABLE2.read_text("utf-8"))) if TABLE2.exists() else {}
    return read(target.part, quick=quick, device=target.device, folder=folder)


def lines(*, quick: bool, device: str) -> list[str]:
    """The table for a terminal."""
    told, others = [], set()
    for target, found, result in rows(quick=quick, device=device):
        others |= stand_ins(result)
        words, met = found or ("not measured", None)
        mark = {True: "met", False: "missed", None: ""}[met]
        told.append(f"  {target.what:88} {words:>22}  target {target.target:22} {mark}")
    return told + [f"  rows: {other}" for other in sorted(others)]
