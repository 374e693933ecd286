"""What pytest collects of the sources."""

import importlib.util

# their kernels are decorated by Triton, which only a torch for CUDA brings along
KERNELS = ("hopper", "kernels", "lloyd_kernels")
collect_ignore = (
    []
    if importlib.util.find_spec("triton")
    else [f"src/concrete_kmeans/{name}.py" for name in KERNELS]
)
