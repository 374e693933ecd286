"""What pytest collects of the sources."""

import importlib.util

# their kernels are decorated by Triton, which only a torch for CUDA brings along
collect_ignore = (
    []
    if importlib.util.find_spec("triton")
    else ["src/concrete_kmeans/kernels.py", "src/concrete_kmeans/lloyd_kernels.py"]
)
