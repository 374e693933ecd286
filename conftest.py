"""What pytest collects of the sources."""

import importlib.util


def there(*modules: str) -> bool:
    """Whether they can be found; each is part of the one before."""
    return all(importlib.util.find_spec(module) for module in modules)


# their kernels are decorated by Triton, which only a torch for CUDA brings along, or by a part of
# it that older ones do not have
NEEDS = {
    "kernels": ["triton"],
    "lloyd_kernels": ["triton"],
    "hopper": ["triton", "triton.experimental", "triton.experimental.gluon"],
}
collect_ignore = [
    f"src/concrete_kmeans/{name}.py" for name, modules in NEEDS.items() if not there(*modules)
]
