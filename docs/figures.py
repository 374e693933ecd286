"""The picture and the figures of the README, from committed results alone.

``make figures`` writes ``docs/images/inertia.svg`` and the part of ``README.md`` between the marks.
``tests/test_docs.py`` holds both to what this file makes of the JSON files.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from concrete_kmeans.experiments import tables

ROOT = Path(__file__).parents[1]
TABLE1 = ROOT / "docs" / "results" / "table1.json"
LLOYD = ROOT / "benchmarks" / "results" / "lloyd.json"
SHALLOW = ROOT / "benchmarks" / "results" / "shallow.json"
ON_GPU = ROOT / "benchmarks" / "results" / "training-cuda.json"
IMAGE = ROOT / "docs" / "images" / "inertia.svg"
README = ROOT / "README.md"

WIDTH, LEFT, TOP, STEP = 760, 100, 64, 27
LOW, HIGH = 0.90, 1.02  # of the axis; ratios below are drawn at its edge


def ratios(table: dict[str, Any]) -> dict[str, list[float]]:
    """Inertia of CKM over that of Lloyd's algorithm, a number for each seed of each data set."""
    found = {}
    for name, row in table["rows"].items():
        if row["methods"]:
            ckm, km = (
                {run["seed"]: run["inertia"] for run in row["methods"][m]["runs"]}
                for m in ("ckm", "km")
            )
            found[name] = [ckm[seed] / km[seed] for seed in sorted(ckm)]
    return found


def picture(table: dict[str, Any]) -> str:
    """An SVG: a line a data set, a dot a seed; left of the middle line is better than Lloyd."""
    sets = ratios(table)
    height = TOP + STEP * len(sets) + 48

    def x(ratio: float) -> float:
        return LEFT + (WIDTH - LEFT - 24) * (min(max(ratio, LOW), HIGH) - LOW) / (HIGH - LOW)

    bottom = TOP + STEP * len(sets)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        'font-family="Helvetica, Arial, sans-serif" font-size="13">',
        "<title>Final inertia of ConcreteKMeans over that of Lloyd's algorithm</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<rect x="{x(LOW):.1f}" y="{TOP - 14}" width="{x(1) - x(LOW):.1f}" '
        f'height="{bottom - TOP + 14}" fill="#e8f3ec"/>',
        '<text x="16" y="24" font-size="16" font-weight="bold" fill="#1b1f24">'
        "Inertia of ConcreteKMeans over that of Lloyd, from the same k-means++ start</text>",
        f'<text x="{x(0.95):.1f}" y="{TOP - 20}" text-anchor="middle" fill="#2d6a4f">lower: better</text>',
        f'<text x="{x(1.01):.1f}" y="{TOP - 20}" text-anchor="middle" fill="#8a2c2c">higher</text>',
    ]
    for tick in (0.90, 0.92, 0.94, 0.96, 0.98, 1.00, 1.02):
        color = "#5a6470" if tick == 1.0 else "#d5dae0"
        label = f"≤ {tick:.2f}" if tick == LOW else f"{tick:.2f}"
        parts.append(
            f'<line x1="{x(tick):.1f}" y1="{TOP - 14}" x2="{x(tick):.1f}" y2="{bottom}" stroke="{color}"/>'
            f'<text x="{x(tick):.1f}" y="{bottom + 18}" text-anchor="middle" fill="#5a6470">{label}</text>'
        )
    for i, (name, values) in enumerate(sets.items()):
        y = TOP + STEP * i + 4
        parts.append(
            f'<text x="{LEFT - 12}" y="{y + 4}" text-anchor="end" fill="#1b1f24">{name}</text>'
        )
        parts.extend(
            f'<circle cx="{x(value):.1f}" cy="{y}" r="5" fill="#1f6feb" fill-opacity="0.35"/>'
            for value in values
        )
        mean = row_mean(table, name)
        parts.append(
            f'<line x1="{x(mean):.1f}" y1="{y - 9}" x2="{x(mean):.1f}" y2="{y + 9}" '
            'stroke="#0b3d91" stroke-width="3"/>'
        )
    parts.append(
        f'<text x="{LEFT}" y="{bottom + 38}" fill="#5a6470">A dot is one of '
        f"{len(next(iter(sets.values())))} seeds, a bar the ratio of the means. "
        "From docs/results/table1.json.</text></svg>"
    )
    return "\n".join(parts) + "\n"


def row_mean(table: dict[str, Any], name: str) -> float:
    """Ratio of the mean inertias of a data set."""
    return float(table["rows"][name]["compared"]["ratio_of_means"])


def on_gpu(training: dict[str, Any]) -> list[str]:
    """A joint epoch on a GPU, beside a plain loop."""
    lines = [
        "",
        f"| a joint MNIST epoch on one {training['machine']['gpu']}, the paper's network | time | "
        "times a plain PyTorch loop, a seed |",
        "| --- | --- | --- |",
    ]
    for name, row in training["contenders"].items():
        what, _, how = name.partition(", ")
        if what == "concrete-kmeans":
            lines.append(
                f"| {how} | {1e3 * row['seconds']:.0f} ms | {row['times_as_fast_as_plain']:.0f} |"
            )
    return lines


def summary(
    table: dict[str, Any],
    lloyd: dict[str, Any],
    shallow: dict[str, Any],
    training: dict[str, Any],
) -> str:
    """The README's figures as Markdown."""
    sets = ratios(table)
    means = [row_mean(table, name) for name in sets]
    lower = sum(mean < 1 - 1e-6 for mean in means)
    worst = max(value for values in sets.values() for value in values)
    lines = [
        f"- Mean inertia of CKM below that of Lloyd's algorithm on {lower} of {len(sets)} sets (best "
        f"{min(means):.3f} times, highest {max(means):.5f} times); no single seed of "
        f"{sum(map(len, sets.values()))} above {worst:.4f} times. NMI, ARI and accuracy agree.",
        "",
        "**Speed**, as a ratio to scikit-learn in the same run "
        f"({lloyd['machine']['cores']} cores, {lloyd['machine']['cpu']}), made by `ckm bench --full`:",
        "",
        "| Lloyd from given centres, 20 iterations | ours | faiss | fast-pytorch-kmeans | our extra memory |",
        "| --- | --- | --- | --- | --- |",
    ]
    for case in lloyd["cases"].values():
        peers = case["contenders"]

        def ratio(name: str, peers: dict[str, Any] = peers) -> str:
            ratio = peers.get(name, {}).get("ratio_to_scikit_learn")
            return "-" if ratio is None else f"{ratio:.2f}"

        lines.append(
            f"| {case['title']} | {ratio('concrete-kmeans')} | {ratio('faiss')} | "
            f"{ratio('fast-pytorch-kmeans')} | {peers['concrete-kmeans']['extra_mb']:.0f} MB |"
        )
    lines += [
        "",
        "| k-means++ to the end, defaults | time over KMeans | inertia over KMeans (worst seed) |",
        "| --- | --- | --- |",
    ]
    for case in shallow["cases"].values():
        for name, row in case["contenders"].items():
            if name != "KMeans" and "time_ratio" in row:
                lines.append(
                    f"| {case['title']}: {name} | {row['time_ratio']:.2f} | "
                    f"{row['inertia_ratio']:.4f} ({row['worst_inertia_ratio']:.4f}) |"
                )
    lines += on_gpu(training)
    lines += [
        "",
        "On small data Lloyd is faster: it ends in milliseconds where 2,000 gradient steps take about a second.",
        "All peers and the spread are in `benchmarks/results/`.",
    ]
    return "\n".join(lines)


def into_readme(text: str, content: str) -> str:
    """The README with its figures replaced."""
    return tables.into_page(text, "figures", f"\n{content}\n")


def make() -> tuple[str, str]:
    """The picture and the README, as they should be."""
    paths = TABLE1, LLOYD, SHALLOW, ON_GPU
    table, *speed = (json.loads(path.read_text("utf-8")) for path in paths)
    return picture(table), into_readme(README.read_text("utf-8"), summary(table, *speed))


if __name__ == "__main__":
    image, readme = make()
    IMAGE.write_text(image)
    README.write_text(readme)
