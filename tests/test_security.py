"""What SECURITY.md promises of the source, told by its syntax tree; and that files run nothing."""

import ast
import json
import os
import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch

import concrete_kmeans
from concrete_kmeans import ConcreteKMeans, load, readers

PACKAGE = Path(concrete_kmeans.__file__).parent
ROOT = Path(__file__).parents[1]
#: Modules that run what they read, or start programs.
MODULES = {
    *("pickle", "_pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "code"),
    *("subprocess", "runpy", "ctypes", "xmlrpc", "telnetlib", "ftplib", "yaml"),
}
#: Names that are never called, whatever they are called on.
CALLS = {
    *("eval", "exec", "compile", "__import__", "breakpoint"),
    *("os.system", "os.popen", "os.execv", "os.spawnl", "pty.spawn"),
    *("torch.jit.load", "torch.hub.load", "torch.package.PackageImporter", "torch.export.load"),
    *(
        "pd.read_pickle",
        "pandas.read_pickle",
        "pd.eval",
        "shutil.unpack_archive",
        "tempfile.mktemp",
    ),
    *("np.fromregex", "urllib.request.urlopen"),
}
#: Ends of names that are never called: of archives, of tables, and of objects of any name.
METHODS = {"extract", "extractall", "read_pickle", "load_module", "find_class"}
#: Calls that need a word to be safe.
WORDS = {
    "torch.load": ("weights_only", True),
    "np.load": ("allow_pickle", False),
    "numpy.load": ("allow_pickle", False),
}
#: Where one of them is allowed, and why: programs of this machine, started by a command for them.
ALLOWED = {
    ("cli/bench.py", "subprocess"): "starts the benchmarks of a checkout, a process of their own",
    ("experiments/results.py", "subprocess"): "asks git for the commit that results belong to",
}


def dotted(node):
    """``a.b.c`` of an expression; what is no name stands as nothing."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def imported(node):
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else []


def called(node):
    """What is wrong with a call, if anything."""
    name = dotted(node.func)
    words = {word.arg: getattr(word.value, "value", None) for word in node.keywords}
    if name in WORDS and words.get(WORDS[name][0]) is not WORDS[name][1]:
        return [f"{name} without {WORDS[name][0]}={WORDS[name][1]}"]
    if words.get("shell") is True or words.get("allow_pickle") is True:
        return [f"{name} with shell or allow_pickle"]
    if words.get("trust_remote_code") is True:
        return [f"{name} with trust_remote_code"]
    if name in CALLS or (isinstance(node.func, ast.Attribute) and node.func.attr in METHODS):
        return [name]
    return []


def forbidden(source):
    """Lines of a source and what is wrong with them."""
    found = []
    for node in ast.walk(ast.parse(source)):
        what = [name for name in imported(node) if name.partition(".")[0] in MODULES]
        if isinstance(node, ast.Call):
            what += called(node)
        found += [(node.lineno, each) for each in what]
    return found


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: p.name)
def test_nothing_that_runs_what_it_reads(path):
    name = path.relative_to(PACKAGE).as_posix()
    found = [
        (line, what)
        for line, what in forbidden(path.read_text("utf-8"))
        if (name, what) not in ALLOWED
    ]
    assert not found, f"{name}: {found}; SECURITY.md promises that there is none"


def test_what_is_allowed_is_still_there():
    for name, what in ALLOWED:
        assert what in [each for _, each in forbidden((PACKAGE / name).read_text("utf-8"))]


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from joblib import load",
        "import subprocess as sp",
        "eval(text)",
        "exec('x = 1')",
        "__import__(name)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path)",
        "np.load(path, None, True)",
        "np.load(path, allow_pickle=True)",
        "archive.extractall(folder)",
        "tarfile.open(path).extract(member)",
        "os.system(command)",
        "pd.read_pickle(path)",
        "torch.hub.load('a', 'b')",
        "run(command, shell=True)",
        "Model(name, trust_remote_code=True)",
        "shutil.unpack_archive(path)",
    ],
)
def test_the_search_can_find(line):
    assert forbidden(f"def f():\n    {line}\n")


def test_the_search_passes_over_what_is_safe():
    lines = ["network.eval()", "re.compile(x)", "torch.load(p, weights_only=True)"]
    assert not forbidden("\n".join([*lines, "np.load(p, allow_pickle=False)", "json.loads(x)"]))


# --------------------------------------------------------------------------------------------------
# files that would run something


@pytest.fixture
def spell(tmp_path):
    """A pickle that makes a folder when it is read, and the folder."""

    class Spell:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "executed"),))

    return Spell(), tmp_path / "executed"


def test_pickles_in_the_place_of_tensors(tmp_path, spell):
    made, mark = spell
    ConcreteKMeans(2, max_iter=5, random_state=0).fit(np.eye(6)).save(tmp_path / "m")
    config = json.loads((tmp_path / "m" / "config.json").read_text("utf-8"))
    import hashlib

    for write in (lambda path: torch.save(made, path), lambda p: p.write_bytes(pickle.dumps(made))):
        write(tmp_path / "m" / "model.safetensors")
        data = (tmp_path / "m" / "model.safetensors").read_bytes()
        config["sha256"]["model.safetensors"] = hashlib.sha256(data).hexdigest()
        (tmp_path / "m" / "config.json").write_text(json.dumps(config))
        with pytest.raises(ValueError, match=r"model\.safetensors is damaged"):
            load(tmp_path / "m")
    assert not mark.exists()


def test_extension_types_of_parquet(tmp_path, spell):
    """Arrow once unpickled the type of a column (CVE-2023-47248)."""
    made, mark = spell
    stored = pa.array([1.0, 2.0, 3.0])
    meta = {
        b"ARROW:extension:name": b"arrow.py_extension_type",
        b"ARROW:extension:metadata": pickle.dumps(made),
    }
    schema = pa.schema([pa.field("a", pa.float64(), metadata=meta)])
    pyarrow.parquet.write_table(
        pa.Table.from_arrays([stored], schema=schema), tmp_path / "t.parquet"
    )
    data, _ = readers.read(tmp_path / "t.parquet")
    assert data.rows["a"].tolist() == [1.0, 2.0, 3.0]
    assert not mark.exists()


def test_classes_that_a_config_names_are_those_of_the_package(tmp_path):
    ConcreteKMeans(2, max_iter=5, random_state=0).fit(np.eye(6)).save(tmp_path / "m")
    path = tmp_path / "m" / "config.json"
    config = json.loads(path.read_text("utf-8"))
    for name in ("os.system", "builtins.eval", "DeepClusterer", "__class__"):
        path.write_text(json.dumps({**config, "class": name}))
        with pytest.raises(ValueError, match="unknown class"):
            load(tmp_path / "m")


def test_the_page_is_linked():
    for page in ("README.md", "docs/guides/saving.md", "docs/guides/command-line.md"):
        assert "SECURITY.md" in (ROOT / page).read_text("utf-8")
    text = (ROOT / "SECURITY.md").read_text("utf-8")
    for name in ("CKM_MAX_UNPACKED", "CKM_MAX_PIXELS", "--embed", "ckm bench", "ckm reproduce"):
        assert name in text
