"""The browser face: a fit as one HTML file that needs no network.

>>> from concrete_kmeans import report
>>> data = report.ReportData("Three points", labels=[0, 1, 1], n_clusters=2)
>>> "<title>Three points</title>" in report.render(data)
True
"""

from concrete_kmeans.report.collecting import collect
from concrete_kmeans.report.contents import Images, Items, KCurve, ReportData, Table, Texts
from concrete_kmeans.report.page import check_path, render, write

__all__ = [
    "Images",
    "Items",
    "KCurve",
    "ReportData",
    "Table",
    "Texts",
    "check_path",
    "collect",
    "render",
    "write",
]
