"""The terminal face: ``ckm``.

Whatever is heavy is imported by the command that needs it, so that ``ckm --help`` is instant.
Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted, 143 terminated.
"""

from concrete_kmeans.cli import bench, demo, export, fit, info, predict, report, reproduce
from concrete_kmeans.cli.common import app

__all__ = [
    "app",
    "bench",
    "demo",
    "export",
    "fit",
    "info",
    "main",
    "predict",
    "report",
    "reproduce",
]


def main() -> None:
    """Run the command line."""
    app(prog_name="ckm")
