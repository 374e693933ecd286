"""Fitted models as ONNX, for programs without Python or torch."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from concrete_kmeans import functional as F
from concrete_kmeans.data import Scaling
from concrete_kmeans.files import check_file_place, write_bytes
from concrete_kmeans.modes import plain
from concrete_kmeans.networks import Autoencoder, StackedModule

__all__ = ["OUTPUTS", "export_onnx"]

#: Names of what the exported model gives.
OUTPUTS = ("labels", "codes", "distances")
#: Of the operators; every runtime since 2022 has it.
OPSET = 18


class _Assigned(nn.Module):
    """Rows (B, ...) to nearest centres (B,), codes (B, d) and distances (B, K)."""

    def __init__(self, scaling: Scaling | None, encoder: nn.Module, centers: Tensor) -> None:
        super().__init__()
        self.scaling, self.encoder = scaling, encoder
        self.register_buffer("centers", centers)

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        flat = rows.flatten(1)
        codes = self.encoder(flat if self.scaling is None else self.scaling(flat))
        distances = F.squared_distances(codes, self.centers)  # type: ignore[arg-type]
        return distances.argmin(-1), codes, distances.sqrt()


class _First(nn.Module):
    """The only restart of stacked networks: (B, D) to (B, d)."""

    def __init__(self, network: Autoencoder) -> None:
        super().__init__()
        self.network = network

    def forward(self, rows: Tensor) -> Tensor:
        return self.network.points(self.network.encode(rows))[0]


@plain()
def export_onnx(estimator: Any, path: str | Path) -> None:
    """Write scaling, encoder and assignment of a fitted estimator as an ONNX file.

    Parameters
    ----------
    estimator : fitted estimator of this package
        Of a deep one, the restart that was kept.
    path : str or Path
        Of the file; one that is there is replaced. Written whole or not at all.

    Notes
    -----
    The model takes ``rows``, float32 of shape (n, n_features), or (n, ...) for rows with more axes,
    in the units of the fit. It gives ``labels`` (n,), int64; ``codes`` (n, d), for shallow k-means
    the rows themselves; and ``distances`` (n, n_clusters) to the centres. Codes agree with those of
    ``transform`` to float32 rounding. Weights are in the file, up to the 2 GiB that ONNX allows.

    Raises
    ------
    ModuleNotFoundError
        Without the ``onnx`` extra: ``pip install 'concrete-kmeans[onnx]'``.
    """
    check_is_fitted(estimator)
    for package in ("onnx", "onnxscript"):
        if importlib.util.find_spec(package) is None:
            raise ModuleNotFoundError(f"ONNX needs {package}: pip install 'concrete-kmeans[onnx]'")
    check_file_place(Path(path))
    model = _module(estimator).eval()
    shape = getattr(estimator, "feature_shape_", (estimator.n_features_in_,))
    with tempfile.TemporaryDirectory() as folder, _silent():
        file = Path(folder) / "model.onnx"
        torch.onnx.export(
            model,
            (torch.zeros(2, *shape),),
            file,
            input_names=["rows"],
            output_names=list(OUTPUTS),
            dynamic_shapes={"rows": {0: torch.export.Dim("n")}},
            opset_version=OPSET,
            dynamo=True,
            external_data=False,
            verbose=False,
        )
        write_bytes(Path(path), file.read_bytes())


def _module(estimator: Any) -> _Assigned:
    """In float32, on the CPU."""
    if not hasattr(estimator, "model_"):
        centers = torch.as_tensor(estimator.cluster_centers_).detach().cpu().float()
        return _Assigned(None, nn.Identity(), centers)
    model = estimator.model_.select(estimator.best_restart_)
    network = model.network.select([0]).to("cpu", torch.float32)
    for module in network.modules():
        if isinstance(module, StackedModule):
            module.stacking = "loop"  # one restart: nothing to map over
    scaling = replace(
        model.scaling, shift=model.scaling.shift.cpu(), factor=model.scaling.factor.cpu()
    )
    return _Assigned(scaling, _First(network), model.centers[0].detach().cpu().float())


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Without what the exporter says about its own insides."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
