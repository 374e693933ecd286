r"""Files and folders as rows: what ``ckm fit`` is given, and the same way again for new data.

Nothing that is read can be executed: no pickles, no object arrays.

>>> import tempfile, pathlib
>>> with tempfile.TemporaryDirectory() as folder:
...     path = pathlib.Path(folder, "flowers.csv")
...     _ = path.write_text("height,colour,name\n1.5,red,a\n2.5,blue,b\n")
...     data, preparation = read(path, Options(label_column="name"))
...     again = read_again(path, preparation.to_json())
>>> data.feature_names, data.labels
(['height', 'colour=blue', 'colour=red'], ['a', 'b'])
>>> again.rows.equals(data.rows)
True
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from concrete_kmeans.readers.arrays import ArrayPreparation
from concrete_kmeans.readers.contents import Data, Kind, Options, Preparation
from concrete_kmeans.readers.files import FORMATS, Arrays, Frame, Lines, open_input
from concrete_kmeans.readers.images import ImagePreparation
from concrete_kmeans.readers.tables import TablePreparation
from concrete_kmeans.readers.texts import TextPreparation

__all__ = ["FORMATS", "Data", "Kind", "Options", "Preparation", "read", "read_again"]

PREPARATIONS: dict[str, type[Preparation]] = {
    cls.name: cls for cls in (TablePreparation, ArrayPreparation, ImagePreparation, TextPreparation)
}


def read(source: str | Path, options: Options | None = None) -> tuple[Data, Preparation]:
    """Read rows to be fitted, and learn how they are prepared.

    Parameters
    ----------
    source : str or Path
        A file or a folder; ``"-"`` is standard input.
    options : Options, optional

    Returns
    -------
    data : Data
    preparation : Preparation
        ``preparation.to_json()`` is all that :func:`read_again` needs.
    """
    options = options or Options()
    found = open_input(source, options.format)
    text = options.text_column is not None or options.embed is not None
    if isinstance(found, Lines) or (isinstance(found, Frame) and (text or found.is_text)):
        return TextPreparation.learn(found, options)
    options.check_for(found.name, of_text=False)
    if isinstance(found, Frame):
        return TablePreparation.learn(found, options)
    if isinstance(found, Arrays):
        return ArrayPreparation.learn(found, options)
    return ImagePreparation.learn(found, options)


def read_again(
    source: str | Path,
    preparation: dict[str, Any],
    *,
    form: str | None = None,
    embed: str | None = None,
) -> Data:
    """Read other rows, prepared as those of a fit were.

    Parameters
    ----------
    source : str or Path
        As for :func:`read`.
    preparation : dict
        From ``to_json`` of a preparation.
    form : str, optional
        One of :data:`FORMATS`, where the name of the file does not tell.
    embed : str, optional
        The model that embeds texts, if the preparation names one: loading it may run code of its
        own, and a preparation may come from a stranger.

    Returns
    -------
    Data
    """
    cls = PREPARATIONS.get(preparation.get("reader", ""))
    if cls is None:
        raise ValueError(
            f"reader must be one of {', '.join(map(repr, PREPARATIONS))}, "
            f"got {preparation.get('reader')!r}"
        )
    found = cls.from_json(preparation)
    model = getattr(found, "embed", None)
    if model is not None and embed != model:
        raise ValueError(
            f"the fit has embedded its texts by the model {model!r}, which may bring code of its "
            f"own: name it by --embed if you trust it, got {embed!r}"
        )
    return found.apply(open_input(source, form))
