"""Where each data set comes from and how to recognise it: a table, no code that runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["FILES", "LAYOUTS", "TABLES", "RawTable", "RemoteFile", "Table"]

_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/"
_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_USPS = "https://web.stanford.edu/~hastie/ElemStatLearn/datasets/"


@dataclass(frozen=True)
class RemoteFile:
    """A file that is kept as its source distributes it.

    ``url`` is None for a file that is read where a user has it and never downloaded.
    """

    sha256: str
    url: str | None = None


@dataclass(frozen=True)
class RawTable:
    """How a public source writes a table: text files that follow one another.

    ``separator`` None means white space; ``skip`` leading columns are dropped; then the label
    is at ``label``; ``rename`` maps the source's labels to ours.
    """

    urls: tuple[str, ...]
    separator: str | None = ","
    skip: int = 0
    label: int = -1
    rename: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """A table of numbers with a label, kept as ``NAME.csv.gz``.

    ``digest`` is that of the content, whatever the order of the rows (see
    :func:`~concrete_kmeans.datasets._formats.content_digest`). ``raw`` and ``digest`` are
    None for a table that no public source distributes.
    """

    n_rows: int
    digest: str | None
    raw: RawTable | None
    n_train: int | None = None
    image_shape: tuple[int, int] | None = None


FILES: dict[str, RemoteFile] = {
    "train-images-idx3-ubyte.gz": RemoteFile(
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        _MNIST + "train-images-idx3-ubyte.gz",
    ),
    "train-labels-idx1-ubyte.gz": RemoteFile(
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        _MNIST + "train-labels-idx1-ubyte.gz",
    ),
    "t10k-images-idx3-ubyte.gz": RemoteFile(
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        _MNIST + "t10k-images-idx3-ubyte.gz",
    ),
    "t10k-labels-idx1-ubyte.gz": RemoteFile(
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        _MNIST + "t10k-labels-idx1-ubyte.gz",
    ),
    "zip.train.gz": RemoteFile(
        "66ebf231ab51f2cf6ac1a892d0f98ccffee1079d7a5db638c1f11f366046ca16",
        _USPS + "zip.train.gz",
    ),
    "zip.test.gz": RemoteFile(
        "8dacc3c6e136af6c3488de9e5113a7daf140c8c2f1f0b61c54ee02f03f1a962f",
        _USPS + "zip.test.gz",
    ),
    "usps.h5": RemoteFile("734f88c541104a956d88be2c95d03b4a463ffd74ccc2ba9c80841fb98e3fcb36"),
    # The copy of the original archive that scikit-learn downloads, and its sum.
    "20news-bydate.tar.gz": RemoteFile(
        "8f1b2514ca22a5ade8fbb9cfa5727df95fa587f4c87b786e15c759fa66d95610",
        "https://ndownloader.figshare.com/files/5975967",
    ),
    "20news-bydate.tar.xz": RemoteFile(
        "aa748ca57c5c096d87ab2bfd0af01f2c5864360f0073a7665fda901c3f7e0a89"
    ),
}

# The sets of files that hold a data set; the first whose files are all in a folder is read,
# and the first of all is the one to download.
LAYOUTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "mnist": (
        (
            "train-images-idx3-ubyte.gz",
            "train-labels-idx1-ubyte.gz",
            "t10k-images-idx3-ubyte.gz",
            "t10k-labels-idx1-ubyte.gz",
        ),
    ),
    "usps": (("zip.train.gz", "zip.test.gz"), ("usps.h5",)),
    "20newsgroups": (("20news-bydate.tar.gz",), ("20news-bydate.tar.xz",)),
}

TABLES: dict[str, Table] = {
    "pendigits": Table(
        n_rows=10992,
        n_train=7494,
        digest="6a73f7acbd57c35958da5d4a1c28d03382ea93d8fabf56be591e4db08df71916",
        raw=RawTable((_UCI + "pendigits/pendigits.tra", _UCI + "pendigits/pendigits.tes")),
    ),
    # StatLog digits averaged to 4 x 4: no public source distributes them.
    "dig44": Table(n_rows=18000, digest=None, raw=None, image_shape=(4, 4)),
    "vehicle": Table(
        n_rows=846,
        digest="dd3820a33e728d413d8b0760ccdd213aea740e943c3a1f167bc5fad3c30b084d",
        raw=RawTable(
            tuple(f"{_UCI}statlog/vehicle/xa{part}.dat" for part in "abcdefghi"), separator=None
        ),
    ),
    "letter": Table(
        n_rows=20000,
        digest="013574f78f775ae37816d6295d8e16d527fc8c7abef2bbab8fa06fd1dec912c8",
        raw=RawTable((_UCI + "letter-recognition/letter-recognition.data",), label=0),
    ),
    "segment": Table(
        n_rows=2310,
        digest="44510fe5d34ac6e37d791066d3b6963fc732283acfdfc722c72aa934f7a2a7b9",
        raw=RawTable(
            (_UCI + "statlog/segment/segment.dat",),
            separator=None,
            rename={
                "1": "brickface",
                "2": "sky",
                "3": "foliage",
                "4": "cement",
                "5": "window",
                "6": "path",
                "7": "grass",
            },
        ),
    ),
    "waveform": Table(
        n_rows=5000,
        digest="8e8c12e2b60948a18be69f31e23ea23cb76d1a866e7ce5439ebace2af4bc8970",
        raw=RawTable((_UCI + "waveform/waveform.data.Z",)),
    ),
    "vowel": Table(
        n_rows=990,
        n_train=528,
        digest="07e3bfa101ca2351fde7c126b4f9a25deb1968809b2020919171d74bc6df7ec3",
        raw=RawTable(
            (_UCI + "undocumented/connectionist-bench/vowel/vowel-context.data",),
            separator=None,
            skip=3,  # part, speaker, sex
            rename={
                "0": "hid",
                "1": "hId",
                "2": "hEd",
                "3": "hAd",
                "4": "hYd",
                "5": "had",
                "6": "hOd",
                "7": "hod",
                "8": "hUd",
                "9": "hud",
                "10": "hed",
            },
        ),
    ),
    "spambase": Table(
        n_rows=4601,
        digest="b9db31cdf07d725b4e4d13f03168966b2e7002f00b277ff2d3b044f922cdd32e",
        raw=RawTable((_UCI + "spambase/spambase.data",)),
    ),
    "twonorm": Table(
        n_rows=7400,
        digest="7b9f18a0e4548b329f9b15174497abacec66dc188cae23897e45e53c00e39aa6",
        raw=RawTable(("https://sci2s.ugr.es/keel/dataset/data/classification/twonorm.zip",)),
    ),
    "satimage": Table(
        n_rows=6435,
        n_train=4435,
        digest="c5520f5f68a1438eb1959d01a2ae83abf3ff5ed9ee1ccccc653160f3f2ca0024",
        raw=RawTable(
            (_UCI + "statlog/satimage/sat.trn", _UCI + "statlog/satimage/sat.tst"), separator=None
        ),
    ),
}
