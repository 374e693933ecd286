from __future__ import annotations

import runpy
from pathlib import Path

import torch

EXAMPLES = Path(__file__).parents[1] / "examples"


def run_main(name, capsys, **settings):
    """What the example's ``main`` returns, and what it prints."""
    with torch.random.fork_rng(devices=[]):
        result = runpy.run_path(str(EXAMPLES / name))["main"](**settings)
    return result, capsys.readouterr().out


def test_every_example_is_tested():
    tested = {"digits_classifier.py", "vector_quantisation.py"}
    assert {path.name for path in EXAMPLES.glob("*.py")} == tested


def test_digits_classifier(capsys):
    result, printed = run_main("digits_classifier.py", capsys, seeds=range(10, 13))
    without, joint = result["without"], result["with"]
    # measured over five seeds: accuracy 89.1 and 93.6, NMI 77.5 and 85.2
    assert joint["accuracy"] > 0.9
    assert joint["accuracy"] > without["accuracy"] + 0.01
    assert joint["nmi"] > without["nmi"] + 0.02
    assert joint["purity"] > without["purity"]
    assert f"accuracy {100 * joint['accuracy']:.1f}" in printed


def test_vector_quantisation(capsys):
    result, printed = run_main("vector_quantisation.py", capsys, seeds=[10])
    # measured over three seeds: 4.72 (mean), 1.86 (quadrants), 1.96 (afterwards), 1.50 (joint)
    assert result["joint"] < 0.5 * result["mean"]
    assert result["joint"] < 0.95 * result["quadrants"]
    assert result["joint"] < 0.95 * result["afterwards"]
    assert 8.0 < result["perplexity"] <= 16.0
    assert f"{result['joint']:.2f}  autoencoder with the layer" in printed
