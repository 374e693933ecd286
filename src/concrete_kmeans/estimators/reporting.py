"""What a fitted estimator shows of itself: a report in the browser, a summary in a notebook."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted

__all__ = ["ReportMixin"]

#: Clusters whose sizes a summary lists; of more, the largest.
MAX_LISTED = 30


class ReportMixin:
    """``report``, and a summary of the fit under scikit-learn's own display of an estimator."""

    def report(
        self,
        path: str | Path,
        X: Any = None,
        *,
        classes: Any = None,
        items: Any = None,
        ids: Sequence[str] | None = None,
        image_shape: Sequence[int] | None = None,
        title: str | None = None,
    ) -> Path:
        """Write a report of the fit: one HTML file, which needs no network.

        Parameters
        ----------
        path : str or Path
            Of the file; one that is there is replaced.
        X : as in ``fit``, optional
            The rows to show. Without them there is no map.
        classes : sequence, optional
            Known class of each row; it scores the clusters and has no other part.
        items : sequence of str, optional
            A text for each row; or :class:`concrete_kmeans.report.Images`, ``Texts`` or ``Table``.
            By default pictures, if a row of X is one, or the columns of X.
        ids : sequence of str, optional
            Names of the rows; their numbers by default.
        image_shape : (h, w), (1, h, w) or (3, h, w), optional
            Rows of X are pictures of this shape.
        title : str, optional

        Returns
        -------
        Path
            Where it was written.
        """
        from concrete_kmeans import report

        report.check_path(path)
        options = {"classes": classes, "items": items, "ids": ids}
        data = report.collect(self, X, image_shape=image_shape, title=title, **options)
        return report.write(data, path)

    @property
    def _repr_html_(self) -> Callable[[], str]:
        inner = super()._repr_html_  # type: ignore[misc]  # of scikit-learn; absent if switched off
        return lambda: inner() + _summary(self)

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        bundle: dict[str, str] = super()._repr_mimebundle_(**kwargs)  # type: ignore[misc]
        if "text/html" in bundle:
            bundle["text/html"] += _summary(self)
        return bundle


def _summary(estimator: Any) -> str:
    """Sizes and label-free figures as a few lines of HTML; nothing before a fit."""
    if not hasattr(estimator, "labels_"):
        return ""
    check_is_fitted(estimator)
    labels = torch.as_tensor(estimator.labels_).cpu().numpy()
    sizes = np.bincount(labels, minlength=len(estimator.cluster_centers_))
    figures = [f"inertia {estimator.inertia_:.6g}", f"{estimator.n_iter_:,} steps"]
    if len(restarts := getattr(estimator, "restarts_", [])) > 1:
        figures.append(f"{len(restarts)} restarts")
        if hasattr(estimator, "best_restart_"):
            agreement = restarts[estimator.best_restart_].agreement
            figures.append(f"agreement {agreement:.3f}")
    listed = np.argsort(-sizes, kind="stable")[:MAX_LISTED]
    bars = "".join(
        f"<tr><td style='text-align:right'>{k}</td><td style='text-align:right'>{sizes[k]:,}</td>"
        "<td style='text-align:left'><div style='background:#0072b2;height:.7em;"
        f"width:{max(1, round(160 * sizes[k] / sizes.max()))}px'></div></td></tr>"
        for k in listed
    )
    left = f" (the {len(listed)} largest)" if len(listed) < len(sizes) else ""
    return (
        f"<details><summary>{len(labels):,} rows in {len(sizes)} clusters{left}, "
        f"{', '.join(figures)}</summary><table><thead><tr><th>cluster</th><th>rows</th><th></th>"
        f"</tr></thead><tbody>{bars}</tbody></table></details>"
    )
