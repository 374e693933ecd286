"""What pytest collects of the sources."""

import importlib.util

# its kernels are decorated by Triton, which only a torch for CUDA brings along
collect_ignore = [] if importlib.util.find_spec("triton") else ["src/concrete_kmeans/kernels.py"]
