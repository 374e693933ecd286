"""What the machine can do: the best rate of a matrix product in each format, and of a copy.

``python benchmarks/limits.py`` writes ``results/limits.json``. Fractions of the limit elsewhere are
of the rate that their own run measured, by the functions below.
"""

from __future__ import annotations

from typing import Any

from measure import best_seconds, parser, progress, write

#: Sides of the square matrices: the best of them counts.
SIDES = {"cpu": (1024, 2048, 4096), "cuda": (4096, 8192)}
#: Runs of each, the shortest counts, by whether it is to be quick.
ROUNDS = {False: 7, True: 3}


def product_rate(
    precision: str,
    device: str = "cpu",
    rounds: int | None = None,
    *,
    only_torch: bool = False,
    quick: bool = False,
) -> float:
    """Floating-point operations a second: float32, tf32 (on a GPU) or bfloat16.

    The best of ``torch.mm`` and, unless it is asked for alone, of the package's own way. A quick
    one leaves out the largest matrices.
    """
    import torch

    from concrete_kmeans import products

    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    rates = []
    for side in SIDES[device][:-1] if quick else SIDES[device]:
        a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
        out = torch.empty_like(a)
        ways = [lambda a=a, b=b, out=out: torch.mm(a, b, out=out)]
        if not only_torch and products.linear(a, b) is not None:
            ways.append(lambda a=a, b=b: products.linear(a, b))
        rates += [
            2.0 * side**3 / best_seconds(way, device, rounds or ROUNDS[quick]) for way in ways
        ]
    return max(rates)


def copy_rate(device: str = "cpu", rounds: int = 7) -> float:
    """Bytes read and written a second."""
    import torch

    source = torch.ones((2**27 if device == "cpu" else 2**31) // 4, device=device)
    target = torch.empty_like(source)
    return 2.0 * source.nbytes / best_seconds(lambda: target.copy_(source), device, rounds)


def limit_of(name: str, found: dict[str, Any]) -> float:
    """The product's rate in the format that a contender's name says, or zero.

    >>> limit_of("ours, tf32", {"product": {}, "product, tf32": {"flops_per_s": 4e14}})
    400000000000000.0
    """
    kinds = [kind for kind in ("bfloat16", "tf32") if kind in name]
    row = found.get(f"product, {kinds[0]}" if kinds else "product", {})
    return float(row.get("flops_per_s", 0.0))


def main() -> None:
    options = parser(__doc__)
    chosen = options.parse_args()
    rounds = chosen.rounds or ROUNDS[chosen.quick]
    kinds = ("float32", "bfloat16") if chosen.device == "cpu" else ("float32", "tf32", "bfloat16")
    rates: dict[str, float] = {}
    for kind in kinds:
        progress(f"matrix product, {kind}")
        rates[kind] = product_rate(kind, chosen.device, rounds, quick=chosen.quick)
        if chosen.device == "cpu" and kind == "float32":
            rates["float32, torch.mm"] = product_rate(
                kind, "cpu", rounds, only_torch=True, quick=chosen.quick
            )
    copy = copy_rate(chosen.device, rounds)
    print("Limits")
    for kind, rate in rates.items():
        print(f"  matrix product, {kind:17} {rate / 1e9:10.0f} GFLOP/s")
    print(f"  copy                              {copy / 1e9:10.1f} GB/s")
    result: dict[str, Any] = {"command": "python benchmarks/limits.py", "rounds": rounds}
    result |= {"flops_per_s": rates, "copy_bytes_per_s": copy}
    write("limits", result, quick=chosen.quick, device=chosen.device)


if __name__ == "__main__":
    main()
