"""Where the time of a training step goes, by torch's profiler: a joint epoch, the paper's network.

``python benchmarks/step_profile.py`` writes ``results/step_profile.json``. On the CPU the own
time of an operation counts, on a GPU that of its kernels; what is left of the epoch is Python, or
the GPU at rest.
"""

from __future__ import annotations

import time
import warnings
from typing import Any

from cases import mnist
from measure import parser, progress, synchronize, write

WIDTHS, BATCH, K = (500, 500, 2000, 10), 256, 10
#: What operations and kernels belong to, by a word of their name; the first that fits counts.
GROUPS = {
    "optimiser": ("adam", "optimizer", "multi_tensor"),
    "products": ("mm", "gemm", "cutlass", "nvjet", "xmma", "matmul", "cublas", "splitk", "mkldnn"),
    "reading rows": ("aten::index", "gather", "index_elementwise"),
    "noise": ("exponential", "distribution"),
    "copies": ("copy", "memcpy", "memset", "fill", "zero_grad", "aten::to", "cat"),
    "gradient of ReLU and bias": ("threshold", "layersbackward", "relu", "clamp_min"),
}
#: The kernels of this package.
KERNELS = {
    "_affine": "products",
    "_to_rows": "products",
    "_layer": "gradients of weights, and Adam",
    "_move": "optimiser",
    "_count": "optimiser",
    "_take": "reading rows",
}


def group_of(name: str) -> str:
    """The group of an operation.

    >>> group_of("aten::baddbmm"), group_of("aten::_fused_adam_"), group_of("aten::softmax")
    ('products', 'optimiser', 'loss and the rest')
    >>> group_of("mkldnn::_linear_pointwise")
    'products'
    >>> group_of("_layer"), group_of("_LayersBackward")
    ('gradients of weights, and Adam', 'gradient of ReLU and bias')
    """
    if name in KERNELS:
        return KERNELS[name]
    lower = name.lower()
    for group, words in GROUPS.items():
        if any(word in lower for word in words):
            return group
    return "loss and the rest"


def profiled(device: str, precision: str, seeds: int, n_rows: int) -> dict[str, Any]:
    """Seconds of each group in one epoch."""
    import torch
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    from concrete_kmeans.experiments import deep

    rows, about_rows = mnist(n_rows)
    on_gpu = device != "cpu"
    kinds = [ProfilerActivity.CUDA] if on_gpu else [ProfilerActivity.CPU]
    profiler = profile(activities=kinds)
    times: list[float] = []

    def watch(event: Any) -> None:
        """From the end of the first joint epoch to that of the second."""
        if event.phase != "joint" or len(times) == 2:
            return
        synchronize(device)
        if not times:
            profiler.start()
        times.append(time.perf_counter())
        if len(times) == 2:
            profiler.stop()

    settings = {"encoder": WIDTHS, "batch_size": BATCH, "precision": precision}
    short = {"init": "k-means++", "pretrain_epochs": 1, "epochs": 2, "tol": 0.0}
    estimator = deep.make("ckm", K, seeds, **settings, **short, callbacks=[watch])
    estimator.fit(torch.from_numpy(rows).to(device))
    if len(times) < 2:
        raise RuntimeError("training ended before its second epoch: there is nothing to show")
    wanted = DeviceType.CUDA if on_gpu else DeviceType.CPU
    seconds: dict[str, float] = {}
    slowest: dict[str, float] = {}
    for event in profiler.key_averages():
        own = 1e-6 * (event.self_device_time_total if on_gpu else event.self_cpu_time_total)
        if event.device_type == wanted and own > 0.0:
            group = group_of(event.key)
            seconds[group] = seconds.get(group, 0.0) + own
            slowest[event.key[:80]] = own
    whole = times[1] - times[0]
    rest = "GPU at rest" if on_gpu else "Python and waiting"
    seconds[rest] = max(0.0, whole - sum(seconds.values()))
    top = sorted(slowest.items(), key=lambda item: -item[1])[:12]
    return {
        "precision": precision,
        "seeds": seeds,
        "rows": n_rows,
        "seconds": whole,
        "groups": dict(sorted(seconds.items(), key=lambda item: -item[1])),
        "operations": dict(top),
    } | about_rows


def main() -> None:
    options = parser(__doc__)
    chosen = options.parse_args()
    warnings.simplefilter("ignore")
    n_rows = BATCH * (10 if chosen.quick else 60) if chosen.device == "cpu" else 70_000
    cases = [("float32", 1), ("bfloat16", 1)]
    if chosen.device != "cpu":
        cases = [("tf32", 1), ("bfloat16", 1), ("tf32", 15), ("bfloat16", 15)]
    result: dict[str, Any] = {"command": "python benchmarks/step_profile.py", "cases": []}
    print(f"Where an epoch of {n_rows:,} rows goes, {chosen.device}")
    for precision, seeds in cases:
        progress(f"profile: {precision}, seeds: {seeds}")
        found = profiled(chosen.device, precision, seeds, n_rows)
        result["cases"].append(found)
        print(
            f"  {precision}, seeds: {seeds}: {found['seconds']:.3f} s, the profiler's cost included"
        )
        for group, seconds in found["groups"].items():
            print(f"    {group:26} {100 * seconds / found['seconds']:5.1f} %")
    write("step_profile", result, quick=chosen.quick, device=chosen.device)


if __name__ == "__main__":
    main()
