"""The first fit of a process, and those after it: what kernels cost that are yet to be compiled.

``python benchmarks/first_fit.py`` writes ``results/first_fit.json``. Each case has a process of its
own, and on CUDA a folder of its own for what Triton compiles, as on a machine that is new. The
device is awake before the clock runs.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from cases import mnist
from measure import ask, best_seconds, parser, progress, serve, synchronize, timed, write

LATER = 3
#: Estimator, its parameters, and the data.
CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "ConcreteKMeans (lloyd), digits": ("ConcreteKMeans", {"algorithm": "lloyd"}, "digits"),
    "ConcreteKMeans (lloyd), MNIST": ("ConcreteKMeans", {"algorithm": "lloyd"}, "mnist"),
    "ConcreteKMeans, digits": ("ConcreteKMeans", {}, "digits"),
    "ConcreteKMeans, MNIST, 15 seeds": ("ConcreteKMeans", {"n_init": 15}, "mnist"),
    "DeepConcreteKMeans, digits": ("DeepConcreteKMeans", {}, "digits"),
}


def fit(case: str, device: str) -> dict[str, Any]:
    """Seconds of the first fit and of the fastest of some more; kernels that were compiled."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        import torch

        import concrete_kmeans
        from concrete_kmeans import datasets

        kind, parameters, data = CASES[case]
        rows, about_rows = mnist() if data == "mnist" else (datasets.load(data).data, {})
        X = torch.as_tensor(rows, dtype=torch.float32, device=device)
        (X[:2] @ X[:2].mT).sum().item()

        def run() -> dict[str, Any]:
            estimator = getattr(concrete_kmeans, kind)(10, random_state=0, **parameters)
            estimator.fit(X)
            synchronize(device)
            return {}

        found = timed(run)
        found["later_seconds"] = best_seconds(run, device, LATER)
        return found | about_rows | {"compiled": len(list(Path(folder).rglob("*.cubin")))}


def main() -> None:
    chosen = parser(__doc__).parse_args()
    asked = list(CASES)
    if chosen.quick:
        asked = [case for case in CASES if "digits" in case]
    result: dict[str, Any] = {"command": "python benchmarks/first_fit.py", "cases": {}}
    print(f"The first fit of a process, {chosen.device}")
    for case in asked:
        progress(case)
        found = ask(__file__, "fit", {"case": case, "device": chosen.device}, timeout=300)
        result["cases"][case] = found
        words = found.get("error") or (
            f"{found['seconds']:7.2f} s, later {found['later_seconds']:7.3f} s, "
            f"{found['compiled']} kernels compiled"
        )
        print(f"  {case:32} {words}", flush=True)
    write("first_fit", result, quick=chosen.quick, device=chosen.device)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--contender"]:
        serve({"fit": fit})
    else:
        main()
