"""A fit killed by SIGKILL at random moments ends with the weights it would have had.

``python benchmarks/kills.py`` kills a fit 20 times in a row; each time another process goes on from
its checkpoint. The fit has every phase that there is: pretraining, warm-up, joint training, and the
warm-up of a consensus of restarts. Every byte of its tensors, losses and labels is compared with
those of a run that was left alone. The exit code is 1 if they differ.

Needs a system with ``fork``: a process that is copied begins at once, so that kills hit the fit and
not its imports.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from sklearn.datasets import make_blobs

from concrete_kmeans import DeepConcreteKMeans
from concrete_kmeans.checkpoints import JSON
from concrete_kmeans.storage import HISTORY, LABELS, TENSORS

#: Minutes between checkpoints.
OFTEN = 0.0002
#: Seconds, about, before a process that goes on takes a step.
SETUP = 0.05


def fit_and_save(run: Path, checkpoint: Path | None, epochs: int) -> None:
    # clusters that overlap: no phase is over at once
    blobs, _ = make_blobs(600, 8, centers=4, cluster_std=3.0, random_state=0)
    estimator = DeepConcreteKMeans(
        4,
        encoder=(32, 4),
        init="mixture",
        n_init=3,
        choose="consensus",
        pretrain_epochs=epochs // 8,
        epochs=epochs,
        batch_size=64,
        tol=0.0,
        device="cpu",
        random_state=0,
        checkpoint=checkpoint,
        checkpoint_every=OFTEN,
    )
    estimator.fit(blobs.astype(np.float32)).save(run)


def begin(work: Callable[[], None]) -> int:
    """Do something in a process of its own; return its id."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    try:
        work()
        os._exit(0)
    except BaseException:  # noqa: BLE001  # the copy must never go on as the script
        traceback.print_exc()
        os._exit(1)


def killed(child: int, after: float) -> bool:
    """Kill a process after so many seconds; return whether it had not ended before."""
    last = time.monotonic() + after
    while time.monotonic() < last:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            if status:
                raise RuntimeError(f"the fit failed with status {status}")
            return False
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def left_behind(folder: Path) -> str:
    text = "no checkpoint"
    if there := sorted(folder.glob("checkpoint-*")):
        done = json.loads(load_file(there[-1])[JSON].numpy().tobytes())["finished"]
        finished = ", ".join(done) or "nothing"
        text = f"newest checkpoint {there[-1].name.split('-')[1]}, finished: {finished}"
    return text + ", one half written" * any(folder.glob(".*.tmp"))


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill a fit, again and again.")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--epochs", type=int, default=160, help="of joint training")
    asked = parser.parse_args()
    draw = random.Random(asked.seed)
    torch.optim.Adam([torch.zeros(1, requires_grad=True)])  # its import takes a second
    with tempfile.TemporaryDirectory() as place:
        alone, run, folder = (Path(place) / name for name in ("alone", "run", "checkpoints"))
        start = time.monotonic()
        killed(begin(lambda: fit_and_save(alone, None, asked.epochs)), np.inf)
        seconds = time.monotonic() - start
        print(f"left alone: {seconds:.1f} s; moments of seed {asked.seed}")
        # short enough for one fit to last through all of them, long enough to get to its end
        longest = 2.0 * SETUP + 2.5 * seconds / asked.kills  # checkpoints take time, too
        kills, whole, ended = 0, True, False
        while kills < asked.kills or not ended:
            after = draw.uniform(0.0, longest) if kills < asked.kills else np.inf
            shutil.rmtree(
                run, ignore_errors=True
            )  # it ended before all kills: the rest hit another
            ended = not killed(begin(lambda: fit_and_save(run, folder, asked.epochs)), after)
            if not ended:
                kills += 1
                print(f"kill {kills} after {after:.2f} s: {left_behind(folder)}")
                continue
            pairs = [(run / name, alone / name) for name in (TENSORS, HISTORY, LABELS)]
            same = all(a.read_bytes() == b.read_bytes() for a, b in pairs)
            whole &= same and not folder.exists()
            print(f"ended after {kills} kills: {'every byte the same' if same else 'DIFFERENT'}")
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
