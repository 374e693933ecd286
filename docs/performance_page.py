"""Tables and pictures of docs/performance.md, from the files in benchmarks/results/ alone.

``make figures`` writes the parts of the page between the marks and ``docs/images/speed-*.svg``.
``tests/test_bench.py`` holds both to what this file makes of the results.
"""

from __future__ import annotations

import html
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from concrete_kmeans.experiments import results, tables

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import suite  # noqa: E402
import targets  # noqa: E402
from cases import stand_ins  # noqa: E402
from measure import of_other_code, read  # noqa: E402

PAGE, IMAGES = ROOT / "docs" / "performance.md", ROOT / "docs" / "images"
Result = dict[str, Any]
DEVICES = {"cpu": "CPU", "cuda": "GPU"}
#: Another CPU, whose results lie in a folder of their own.
OTHER, OTHER_TITLE = "zen4", "Zen 4"
NOT_YET = "Not measured yet.\n"
COLORS = ("#1f6feb", "#e08a1e", "#2d6a4f", "#8a2c2c", "#7a5195", "#5a6470", "#0b3d91", "#b0b7c0")

#: Why a target is missed where it is, by the beginning of its name.
REASONS = {
    "joint MNIST epoch, float32: of torch": "what is no product; the profile below says what",
    "joint MNIST epoch, float32: of the best": (
        "the products of a step reach nine tenths of it; Adam, loss and the rest take a quarter of "
        "the time"
    ),
    "joint MNIST epoch, float32: over": "both run the same products; only the rest can be saved",
    "joint MNIST epoch, DCN": "both run the same products; only the rest can be saved",
    "joint MNIST epoch, over": "both run the same products; only the rest can be saved",
    "joint MNIST epoch, bfloat16": "master weights, Adam and the loss stay float32",
    "joint MNIST epoch, one seed": "the profile below says where the time goes",
    "joint MNIST epoch, 15 seeds": (
        "gradients of weights and Adam take most of it; Hopper's own kernel is for bfloat16"
    ),
    "all of Table 2": "the joint epochs; the cells' seconds are in the table itself",
    "predict, ten": "a run of a minute is not at the machine's best all the time",
    "predict": "the last layer, ten units wide, runs at a fifth of the best rate",
    "Lloyd, MNIST": "with ten centres the product runs at 40 % of the best rate, for everybody",
    "Lloyd, 1,000,000": "the minimum over 100 clusters costs as much as 32 features' product",
    "Lloyd, 200,000": "the product is nearly all of it, for everybody",
    "k-means++": "in time, but these seeds end a little higher in the mean",
    "ConcreteKMeans": "its number of steps does not depend on the data",
    "import": "the package's own modules",
}


# --------------------------------------------------------------------------------------------------
# words


def table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Markdown; the first columns are words, the others numbers."""
    rule = ["---"] * left + ["---:"] * (len(header) - left)
    return "\n".join(f"| {' | '.join(line)} |" for line in [header, rule, *rows]) + "\n"


def machine(result: Result) -> str:
    """What the results were computed on, in a sentence."""
    about = result["machine"]
    where = about.get("gpu") if result.get("device") == "cuda" else None
    where = where or f"{about['cores']} cores, {about['cpu']}"
    versions = ", ".join(
        f"{name} {about['versions'][name]}"
        for name in ("torch", "scikit-learn", "faiss-cpu", "flash-kmeans", "clustpy")
        if about["versions"].get(name, "not installed") != "not installed"
    )
    code = f"code {about['source']}" if "source" in about else ""
    known = [where, versions, code, about["date"], f"`{result['command']}`."]
    text = "; ".join(part for part in known if part)
    text += "".join(f" **Rows: {other}.**" for other in sorted(stand_ins(result)))
    load, cores = about.get("load", 0.0), about["cores"]
    if result.get("device") != "cuda" and load > cores / 2:
        text += f" **Load when it began: {load:.1f}; others, or a benchmark before, were at work.**"
    return text + "\n"


def told(result: Result, make: Callable[[Result], str]) -> str:
    """A table and its machine, or that there is none yet."""
    return f"{make(result)}\n{machine(result)}" if result else NOT_YET


def each_device(
    part: str, make: Callable[[Result], str], devices: Sequence[str] = tuple(DEVICES)
) -> str:
    """A table a device; and one of the other CPU, if it was measured."""
    tables = {}
    for device in devices:
        tables[DEVICES[device]] = told(read(part, device=device), make)
        if device == "cpu" and (other := read(part, folder=OTHER)):
            tables[f"{DEVICES[device]}, {OTHER_TITLE}"] = told(other, make)
    return "\n".join(f"**{title}**\n\n{shown}" for title, shown in tables.items())


def reason(what: str) -> str:
    """Why a target may be missed."""
    return next(why for start, why in REASONS.items() if what.startswith(start))


def target_table() -> str:
    """Every target, with what was found here and on the other CPU."""
    here = targets.rows()
    there = {target: found for target, found, _ in targets.rows(device="cpu", folder=OTHER)}
    lines = []
    for target, found, _ in here:
        words, met = found or ("not measured yet", None)
        other, other_met = there.get(target) or ("", None)
        missed = [title for title, it in (("", met), (OTHER_TITLE, other_met)) if it is False]
        verdict = "" if met is None else "met"
        if missed == [OTHER_TITLE]:
            verdict = f"{verdict}; **missed on the {OTHER_TITLE}**: {reason(target.what)}"
        elif missed:
            verdict = f"**missed**: {reason(target.what)}"
        lines.append([DEVICES[target.device], target.what, target.target, words, other, verdict])
    met_here = [found[1] for _, found, _ in here if found]
    count = f"{sum(met_here)} of {len(met_here)} measured targets are met"
    if met_there := [found[1] for found in there.values() if found]:
        count += f"; of the CPU's on the {OTHER_TITLE}, {sum(met_there)} of {len(met_there)}"
    header = ["", "what", "target", "measured", f"on the {OTHER_TITLE}", ""]
    return f"{count}.\n\n{table(header, lines, left=6)}"


def limits(result: Result) -> str:
    """Rates of products and of a copy."""
    lines = [
        [f"matrix product, {kind}", f"{rate / 1e9:,.0f} GFLOP/s"]
        for kind, rate in result["flops_per_s"].items()
    ]
    lines.append(["copy of memory", f"{result['copy_bytes_per_s'] / 1e9:,.0f} GB/s"])
    return table(["limit", "measured"], lines)


def of_limit(row: Result) -> str:
    """Fraction of the product's rate, if that was measured."""
    return f"{100 * row['fraction_of_limit']:.0f} %" if "fraction_of_limit" in row else ""


def spread(row: Result) -> str:
    """Shortest and longest of the rounds."""
    times = row.get("seconds_all", [row["seconds"]])
    return f"{min(times):.3g} to {max(times):.3g}"


def training(result: Result) -> str:
    """Seconds of an epoch of each contender."""
    lines = []
    for name, row in result["contenders"].items():
        if "error" in row:
            lines.append([name, row["error"], "", "", ""])
            continue
        plain = row.get("times_as_fast_as_plain")
        lines.append(
            [
                name,
                f"{row['seconds']:.3g}",
                spread(row),
                of_limit(row),
                "" if plain is None else f"{plain:.2f}",
            ]
        )
    return table(
        ["epoch", "seconds", "from, to", "of the product's rate", "times the plain loop, a seed"],
        lines,
    )


def predict(result: Result) -> str:
    """Rows a second."""
    lines = [
        [name, row["error"], "", ""]
        if "error" in row
        else [
            name,
            f"{row['rows_per_s']:,.0f}",
            of_limit(row),
            f"{row['extra_mb']:.0f} MB",
        ]
        for name, row in result["contenders"].items()
    ]
    header = ["labels", "rows a second", "of the product's rate", "host memory beside them"]
    return table(header, lines)


def lloyd(result: Result) -> str:
    """Milliseconds of an iteration, a column a case."""
    names = list(
        dict.fromkeys(name for case in result["cases"].values() for name in case["contenders"])
    )
    lines = []
    for name in names:
        cells = []
        for case in result["cases"].values():
            row = case["contenders"].get(name, {})
            ratio = row.get("ratio_to_scikit_learn", row.get("ratio_to_plain_torch"))
            words = row.get("error", "")
            if "seconds_per_iteration" in row:
                words = f"{1e3 * row['seconds_per_iteration']:.3g} ms"
                words += "" if ratio is None else f" ({ratio:.2f})"
            cells.append(words)
        lines.append([name, *cells])
    return table(
        ["an iteration (over the peer)", *(case["title"] for case in result["cases"].values())],
        lines,
    )


def shallow(result: Result) -> str:
    """Seconds and inertia from nothing to centres."""
    lines = []
    for case in result["cases"].values():
        for name, row in case["contenders"].items():
            if "error" in row:
                lines.append([case["title"], name, row["error"], "", "", ""])
                continue
            lines.append(
                [
                    case["title"],
                    name,
                    f"{row['seconds']:.3g}",
                    f"{row['time_ratio']:.2f}",
                    f"{row['inertia_ratio']:.4f} ({row['worst_inertia_ratio']:.4f})",
                    str(len(row["seconds_all"])),
                ]
            )
    header = ["data", "method", "seconds", "over KMeans", "inertia over KMeans (worst)", "seeds"]
    return table(header, lines, left=2)


def profile(result: Result) -> str:
    """Shares of an epoch, a column a case."""
    groups = list(dict.fromkeys(group for case in result["cases"] for group in case["groups"]))
    header = ["of an epoch's time", *map(profile_title, result["cases"])]
    lines = [
        [
            group,
            *(
                f"{100 * case['groups'].get(group, 0.0) / case['seconds']:.1f} %"
                for case in result["cases"]
            ),
        ]
        for group in groups
    ]
    return table(header, lines)


def profile_title(case: Result) -> str:
    """Number format and seeds of a profile."""
    return f"{case['precision']}, {case['seeds']} seed{'s' * (case['seeds'] > 1)}"


def first_fit(result: Result) -> str:
    """Seconds of the first fit and of later ones."""
    lines = [
        [name, row["error"], "", ""]
        if "error" in row
        else [
            name,
            f"{row['seconds']:.3g} s",
            f"{row['later_seconds']:.3g} s",
            str(row["compiled"]),
        ]
        for name, row in result["cases"].items()
    ]
    return table(["fit", "first of a process", "later", "kernels compiled"], lines)


def growth(result: Result) -> str:
    """Times at both ends, and exponents."""
    lines = []
    for part, unit in (("lloyd", "iteration"), ("training", "step")):
        for what, row in result[part].items():
            of = "epoch" if (part, what) == ("training", "rows") else unit
            lines.append(
                [
                    f"{part}, {of}",
                    what,
                    f"{row['sizes'][0]:,} to {row['sizes'][-1]:,}",
                    f"{1e3 * row['seconds'][0]:.3g} to {1e3 * row['seconds'][-1]:.3g} ms",
                    f"{row['exponent']:.2f}",
                    f"{row['exponent_upper_half']:.2f}",
                ]
            )
    header = ["cost of", "with more", "from, to", "time", "exponent", "of the upper decade"]
    return table(header, lines, left=2)


def precisions() -> str:
    """Scores of Table 2 in TF32 and in bfloat16, and the seconds that all seeds took."""
    folder = ROOT / "docs" / "results"
    tf32, low = (results.load(folder / f"table2{end}.json") for end in ("", "_bfloat16"))
    if tf32 is None or low is None:
        return NOT_YET
    lines = []
    for name, row in low["rows"].items():
        for method, cell in row["methods"].items():
            other = tf32["rows"][name]["methods"][method]
            words = [row["title"].partition(",")[0], low["titles"][method]]
            for score in ("nmi", "acc"):
                for each in (other["summary"][score], cell["summary"][score]):
                    one = len(cell["runs"]) == 1
                    mean, std = 100 * each["mean"], 100 * each["std"]
                    words.append(f"{mean:.1f}" if one else tables.spread(mean, std, 1))
            lines.append([*words, f"{other['seconds']:.0f}", f"{cell['seconds']:.0f}"])
    header = ["data", "method", "NMI, TF32", "bfloat16", "ACC, TF32", "bfloat16", "s, TF32", "s"]
    return table(header, lines, left=2)


PARTS: dict[str, Callable[[], str]] = {
    "targets": target_table,
    "limits": lambda: each_device("limits", limits),
    "training": lambda: each_device("training", training),
    "profile": lambda: each_device("step_profile", profile),
    "predict": lambda: each_device("predict", predict),
    "lloyd": lambda: each_device("lloyd", lloyd),
    "shallow": lambda: each_device("shallow", shallow, ["cpu"]),
    "first-fit": lambda: each_device("first_fit", first_fit),
    "growth": lambda: each_device("growth", growth),
    "precisions": precisions,
}


# --------------------------------------------------------------------------------------------------
# pictures

WIDTH, LEFT, STEP = 760, 250, 26


def svg(title: str, height: float, parts: Sequence[str]) -> str:
    """A picture with its title."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img" '
        'font-family="Helvetica, Arial, sans-serif" font-size="13">'
        f"<title>{html.escape(title)}</title>"
        f'<rect width="{WIDTH}" height="{height:.0f}" fill="#ffffff"/>'
        f'<text x="16" y="24" font-size="16" font-weight="bold" fill="#1b1f24">'
        f"{html.escape(title)}</text>"
    )
    return "\n".join([head, *parts, "</svg>"]) + "\n"


def text(x: float, y: float, words: str, anchor: str = "start", color: str = "#1b1f24") -> str:
    """One line of words."""
    where = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {where} fill="{color}">{html.escape(words)}</text>'


def bars(title: str, rows: Sequence[tuple[str, float]], line_at: float | None, unit: str) -> str:
    """A bar a row, ours in colour; a line where the target is."""
    longest = max([value for _, value in rows] + ([line_at] if line_at else []))
    scale = (WIDTH - LEFT - 90) / longest
    bottom = 44 + STEP * len(rows)
    parts = []
    for i, (name, value) in enumerate(rows):
        y = 44 + STEP * i
        color = COLORS[0] if name.startswith(("concrete", "Concrete")) else COLORS[-1]
        size = f'width="{value * scale:.1f}" height="{STEP - 8}"'
        parts += [
            text(LEFT - 8, y + 13, name, "end"),
            f'<rect x="{LEFT}" y="{y}" {size} fill="{color}"/>',
            text(LEFT + value * scale + 6, y + 13, f"{value:.3g}{unit}", color="#5a6470"),
        ]
    if line_at is not None:
        x = LEFT + line_at * scale
        ends = f'x1="{x:.1f}" y1="38" x2="{x:.1f}" y2="{bottom}"'
        parts.append(f'<line {ends} stroke="#8a2c2c" stroke-dasharray="4 3"/>')
        parts.append(text(x, bottom + 16, f"{line_at:g}{unit}", "middle", "#8a2c2c"))
    return svg(title, bottom + 28, parts)


def stacked(title: str, rows: Sequence[tuple[str, dict[str, float]]]) -> str:
    """Shares of a whole, a bar a row."""
    groups = list(dict.fromkeys(group for _, shares in rows for group in shares))
    width = WIDTH - LEFT - 24
    parts = []
    for i, (name, shares) in enumerate(rows):
        y, x, whole = 44 + STEP * i, float(LEFT), sum(shares.values())
        parts.append(text(LEFT - 8, y + 13, name, "end"))
        for group, share in shares.items():
            color, w = COLORS[groups.index(group) % len(COLORS)], width * share / whole
            size = f'width="{w:.1f}" height="{STEP - 8}"'
            parts.append(f'<rect x="{x:.1f}" y="{y}" {size} fill="{color}"/>')
            x += w
    bottom = 52 + STEP * len(rows)
    for i, group in enumerate(groups):
        x, y = 16 + 240 * (i % 3), bottom + 20 * (i // 3)
        color = COLORS[i % len(COLORS)]
        parts.append(f'<rect x="{x}" y="{y}" width="12" height="12" fill="{color}"/>')
        parts.append(text(x + 18, y + 11, group))
    return svg(title, bottom + 20 * math.ceil(len(groups) / 3) + 12, parts)


def powers(title: str, series: dict[str, Result]) -> str:
    """Times relative to the first, against sizes relative to the first, both as logarithms."""
    left, top, side = 60, 44, 300
    high = max(max(row["seconds"]) / row["seconds"][0] for row in series.values())
    decades = max(2, math.ceil(math.log10(high)))
    frame = f'x="{left}" y="{top}" width="{side}" height="{side}"'
    parts = [f'<rect {frame} fill="none" stroke="#d5dae0"/>']
    for i in range(3):
        x = left + side * i / 2
        parts.append(text(x, top + side + 18, f"{10**i} x", "middle", "#5a6470"))
    for i in range(decades + 1):
        y = top + side * (1 - i / decades)
        parts.append(text(left - 6, y + 4, f"{10**i} x", "end", "#5a6470"))
    # a cost in proportion to the size
    y = top + side * (1 - 2 / decades)
    ends = f'x1="{left}" y1="{top + side}" x2="{left + side}" y2="{y:.1f}"'
    parts.append(f'<line {ends} stroke="#b0b7c0" stroke-dasharray="4 3"/>')
    for i, (what, row) in enumerate(series.items()):
        points = " ".join(
            f"{left + side * math.log10(n / row['sizes'][0]) / 2:.1f},"
            f"{top + side * (1 - max(0.0, math.log10(s / row['seconds'][0])) / decades):.1f}"
            for n, s in zip(row["sizes"], row["seconds"], strict=True)
        )
        color = COLORS[i]
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>')
        y = top + 20 + 22 * i
        parts.append(f'<rect x="400" y="{y}" width="12" height="12" fill="{color}"/>')
        words = (
            f"{what}: exponent {row['exponent']:.2f}, {row['exponent_upper_half']:.2f} at the end"
        )
        parts.append(text(418, y + 11, words))
    parts.append(text(400, top + side - 8, "dashed: in proportion to the size", color="#5a6470"))
    return svg(title, top + side + 32, parts)


def pictures() -> dict[str, str]:
    """Every picture whose results exist, by the name of its file."""
    found = {}
    for device, title in DEVICES.items():
        end = "" if device == "cpu" else f"-{device}"
        if result := read("training", device=device):
            rows = [(n, r["seconds"]) for n, r in result["contenders"].items() if "seconds" in r]
            name = f"Seconds of a joint MNIST epoch, {title} (product: at its rate)"
            found[f"speed-training{end}.svg"] = bars(name, rows, None, " s")
        if result := read("step_profile", device=device):
            shares = [(profile_title(case), case["groups"]) for case in result["cases"]]
            name = f"Where a training epoch goes, {title}"
            found[f"speed-profile{end}.svg"] = stacked(name, shares)
        if result := read("growth", device=device):
            for part in ("lloyd", "training"):
                name = f"Cost of {part} as one size grows, {title}"
                found[f"speed-growth-{part}{end}.svg"] = powers(name, result[part])
    if result := read("lloyd"):
        rows = [
            (f"{name}, {case['title'].split(', k')[0].replace(' pixels', '')}"[:38], ratio)
            for case in result["cases"].values()
            for name in ("concrete-kmeans", "faiss", "scikit-learn (elkan)")
            if (ratio := case["contenders"].get(name, {}).get("ratio_to_scikit_learn")) is not None
        ]
        name = "Lloyd from given centres: time over scikit-learn's"
        found["speed-lloyd.svg"] = bars(name, rows, 1.0, "")
    return found


def made(page: str, images: dict[str, str]) -> str:
    """The page with its parts made again; a picture stands under its part."""
    for name, make in PARTS.items():
        shown = "".join(
            f"\n![{image[6:-4].replace('-', ' ')}](images/{image})\n"
            for image in images
            if image.startswith(f"speed-{name}")
        )
        page = tables.into_page(page, name, f"\n\n{make()}{shown}\n")
    return page


if __name__ == "__main__":
    drawn = pictures()
    for file, picture in drawn.items():
        (IMAGES / file).write_text(picture, "utf-8")
    for file in IMAGES.glob("speed-*.svg"):
        if file.name not in drawn:
            file.unlink()
    PAGE.write_text(made(PAGE.read_text("utf-8"), drawn), "utf-8")
    if others := of_other_code(suite.PARTS):
        sys.stderr.write(f"of another state of the code, or untold: {', '.join(others)}\n")
