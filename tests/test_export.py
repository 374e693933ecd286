"""ONNX: what onnxruntime computes is what the estimator does."""

import logging
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
from sklearn.datasets import make_blobs
from sklearn.exceptions import NotFittedError
from torch import nn
from typer.testing import CliRunner

from concrete_kmeans import DEC, AutoencoderKMeans, ConcreteKMeans, exporting
from concrete_kmeans.cli import app
from concrete_kmeans.exporting import export_onnx

pytestmark = pytest.mark.usefixtures("untouched_random_state", "short_warm_up")

X = 3.0 * make_blobs(60, 36, centers=3, random_state=0)[0].astype(np.float32) + 70.0
NEW = X[::-1][:17] + 0.5


def deep(cls=AutoencoderKMeans, rows=X, **parameters):
    small = {"pretrain_epochs": 2, "epochs": 1, "batch_size": 32, "n_init": 2}
    return cls(3, **small, random_state=0, device="cpu", **parameters).fit(rows)


def outputs(path, rows):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, {"rows": rows}), strict=True))


def assert_same(estimator, path, rows):
    out = outputs(path, rows)
    assert out["labels"].dtype == np.int64
    np.testing.assert_array_equal(out["labels"], estimator.predict(rows))
    codes = estimator.transform(rows)
    np.testing.assert_allclose(out["codes"], codes, rtol=1e-4, atol=1e-4)
    centers = estimator.cluster_centers_
    distances = np.linalg.norm(codes[:, None] - centers, axis=2)
    np.testing.assert_allclose(out["distances"], distances, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("cls", "parameters", "shape"),
    [
        (DEC, {"encoder": (16, 4), "scale": "standard"}, (4, 9)),
        (AutoencoderKMeans, {"encoder": "residual", "scale": "none", "normalize": True}, (36,)),
        (AutoencoderKMeans, {"encoder": "conv"}, (6, 6)),
        (AutoencoderKMeans, {"encoder": lambda: nn.Sequential(nn.Linear(36, 3))}, (36,)),
    ],
)
def test_deep(cls, parameters, shape, tmp_path):
    estimator = deep(cls, X.reshape(-1, *shape), **parameters)
    path = tmp_path / "new" / "m.onnx"
    export_onnx(estimator, path)
    onnx.checker.check_model(onnx.load(path), full_check=True)
    assert_same(estimator, path, NEW.reshape(-1, *shape))
    assert len(outputs(path, NEW[:1].reshape(1, *shape))["labels"]) == 1
    assert [file.name for file in path.parent.iterdir()] == ["m.onnx"]


def test_shallow_and_nothing_of_the_exporter_shows(tmp_path, capfd, caplog):
    estimator = ConcreteKMeans(3, random_state=0, device="cpu").fit(X.astype(np.float64))
    export_onnx(estimator, tmp_path / "m.onnx")
    sys.stdout.flush()
    assert capfd.readouterr() == ("", "")
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    out = outputs(tmp_path / "m.onnx", NEW)
    np.testing.assert_array_equal(out["labels"], estimator.predict(NEW))
    np.testing.assert_array_equal(out["codes"], NEW)
    np.testing.assert_allclose(out["distances"], estimator.transform(NEW), rtol=1e-3)


def test_from_a_run(tmp_path):
    np.save(tmp_path / "x.npy", X)
    fit = ["-k", "3", "--method", "ae+km", "--encoder", "8,2", "--device", "cpu", "--quiet"]
    fit += ["--pretrain-epochs", "2"]
    run, path = str(tmp_path / "run"), str(tmp_path / "m.onnx")
    assert CliRunner().invoke(app, ["fit", str(tmp_path / "x.npy"), "-o", run, *fit]).exit_code == 0
    answer = CliRunner().invoke(app, ["export", run, "--onnx", path])
    assert (answer.exit_code, answer.stdout, answer.stderr) == (0, f"Written: {path}\n", "")
    labels = np.loadtxt(tmp_path / "run" / "labels.csv", delimiter=",", skiprows=1, dtype=int)
    np.testing.assert_array_equal(outputs(path, X)["labels"], labels[:, 1])


def test_refused(tmp_path, monkeypatch):
    with pytest.raises(NotFittedError):
        export_onnx(ConcreteKMeans(3), tmp_path / "m.onnx")
    fitted = ConcreteKMeans(3, random_state=0).fit(X)
    with pytest.raises(IsADirectoryError, match="is a folder"):
        export_onnx(fitted, tmp_path)
    find = exporting.importlib.util.find_spec
    missing = lambda name: None if name == "onnxscript" else find(name)  # noqa: E731
    monkeypatch.setattr(exporting.importlib.util, "find_spec", missing)
    with pytest.raises(ModuleNotFoundError, match=r"onnxscript: pip install 'concrete-kmeans\[on"):
        export_onnx(fitted, tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []
