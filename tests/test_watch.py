"""The watch over deep training: codes are the rows themselves, so every cluster can be placed."""

from __future__ import annotations

import pytest
import torch

from concrete_kmeans.objectives.deep import (
    MERGED,
    SHRUNK,
    ClusterWatch,
    DeepObjective,
    LabelsLearned,
)

RUNNING = torch.tensor([True, True])


class Line(torch.nn.Module):
    """Code = scale * row, a scale for each of R restarts."""

    def __init__(self, scales):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(scales).view(-1, 1, 1))

    def encode(self, rows):
        return self.scale * rows

    def points(self, codes):
        return codes


class Placed(DeepObjective):
    def loss(self, batch, temperature, generators):
        raise AssertionError("a watch does not train")


# eight rows about each of 0, 10, 20 and 30
SAMPLE = (torch.arange(4.0) * 10.0).repeat_interleave(8).view(-1, 1) + torch.linspace(
    0, 1, 32
).view(-1, 1)
CENTERS = torch.tensor([0.0, 10.0, 20.0, 30.0]).view(1, 4, 1).repeat(2, 1, 1)


@pytest.fixture
def objective():
    return Placed(Line([1.0, 1.0]), CENTERS)


def watch(objective, *, tol=0.0, patience=2, seed=0):
    generators = [torch.Generator().manual_seed(seed + r) for r in range(2)]
    return ClusterWatch(objective, SAMPLE, tol=tol, patience=patience, generators=generators)


def place(objective, r, *centers):
    with torch.no_grad():
        objective.centers[r] = torch.tensor(centers).view(-1, 1)


def scale(objective, r, value):
    with torch.no_grad():
        objective.network.scale[r] = value


def test_rest_for_as_long_as_the_patience(objective):
    monitor = watch(objective, patience=3)
    verdicts = [monitor.check(step, RUNNING) for step in range(3)]
    assert [v.stop.tolist() for v in verdicts] == [[False] * 2, [False] * 2, [True] * 2]
    assert not any(v.discard.any() for v in verdicts)


def test_a_change_of_clusters_begins_the_wait_anew(objective):
    monitor = watch(objective, patience=2)
    monitor.check(0, RUNNING)
    place(objective, 1, 3.0, 20.0, 10.0, 30.0)  # two centres change places: 16 of 32 rows
    verdict = monitor.check(1, RUNNING)
    assert verdict.stop.tolist() == [True, False]
    assert monitor.check(2, RUNNING).stop.tolist() == [True, False]
    assert monitor.check(3, RUNNING).stop.tolist() == [True, True]


@pytest.mark.parametrize(("tol", "rests"), [(0.49, False), (0.5, True)])
def test_tol_is_the_part_of_rows_that_may_change(objective, tol, rests):
    monitor = watch(objective, tol=tol, patience=1)
    place(objective, 0, 0.0, 20.0, 10.0, 30.0)  # half of the rows
    assert monitor.check(0, RUNNING).stop.tolist() == [rests, True]


def test_a_dead_cluster_is_moved_to_a_row_and_the_wait_begins_anew(objective):
    monitor = watch(objective, patience=1)
    place(objective, 0, 0.0, 10.0, 25.0, 300.0)
    verdict = monitor.check(0, RUNNING)
    assert verdict.stop.tolist() == [False, True]
    assert not verdict.discard.any()
    assert monitor.found.revived.tolist() == [1, 0]
    moved = objective.centers[0, 3].item()
    assert moved in SAMPLE.flatten().tolist()
    assert objective.centers[0, :3].flatten().tolist() == [0.0, 10.0, 25.0]
    assert torch.equal(objective.centers[1], CENTERS[1])
    monitor.check(1, RUNNING)
    sizes = torch.bincount((SAMPLE - objective.centers[0].T).abs().argmin(1), minlength=4)
    assert (sizes > 0).all()
    assert monitor.found.revived.tolist() == [1, 0]


def test_a_restart_whose_dead_cluster_was_just_moved_is_not_at_rest(objective):
    place(objective, 0, 0.0, 10.0, 25.0, 300.0)
    monitor = watch(objective, patience=1)  # dead from the first look: no row changes its cluster
    assert monitor.check(0, RUNNING).stop.tolist() == [False, True]
    assert monitor.found.revived.tolist() == [1, 0]


def test_two_dead_clusters_do_not_land_on_one_row(objective):
    for seed in range(10):
        place(objective, 0, 0.0, 15.0, 300.0, 400.0)
        monitor = watch(objective, seed=seed)
        monitor.effective[0] = 1.0  # what is left is not a merger
        monitor.check(0, RUNNING)
        assert monitor.found.revived.tolist() == [2, 0]
        assert objective.centers[0, 2] != objective.centers[0, 3]


def test_a_dead_cluster_is_drawn_by_the_restarts_own_generator(objective):
    def revived(seed, running):
        place(objective, 0, 0.0, 10.0, 25.0, 300.0)
        place(objective, 1, 0.0, 10.0, 25.0, 300.0)
        watch(objective, seed=seed).check(0, running)
        return objective.centers[:, 3, 0].tolist()

    both = revived(3, RUNNING)
    assert revived(3, torch.tensor([False, True])) == [300.0, both[1]]
    assert revived(3, torch.tensor([True, False])) == [both[0], 300.0]


def test_merged_clusters_are_a_collapse(objective):
    """Four clusters of 8 have an effective number of 4, and one with all rows of 1."""
    monitor = watch(objective)
    place(objective, 1, 15.0, 300.0, 400.0, 500.0)
    verdict = monitor.check(0, RUNNING)
    assert verdict.discard.tolist() == [False, True]
    assert monitor.found.merged.tolist() == [False, True]
    assert not monitor.found.shrunk.any()
    assert monitor.found.revived.tolist() == [0, 0]  # a state that is given up is not repaired
    assert objective.centers[1, 1].item() == 300.0


def test_fewer_than_half_of_the_clusters_are_a_merger(objective):
    assert MERGED == 0.5
    monitor = watch(objective)
    place(objective, 0, 0.0, 10.0, 25.0, 300.0)  # 8, 8 and 16: effective number 2.8
    place(objective, 1, -5.0, 12.0, 300.0, 400.0)  # 8 and 24: effective number 1.8
    assert monitor.check(0, RUNNING).discard.tolist() == [False, True]


def test_a_code_that_shrank_is_a_collapse(objective):
    monitor = watch(objective)
    scale(objective, 0, 1.01 * SHRUNK**0.5)
    place(objective, 0, *(1.01 * SHRUNK**0.5 * c for c in (0.0, 10.0, 20.0, 30.0)))
    scale(objective, 1, 0.99 * SHRUNK**0.5)
    place(objective, 1, *(0.99 * SHRUNK**0.5 * c for c in (0.0, 10.0, 20.0, 30.0)))
    assert monitor.check(0, RUNNING).discard.tolist() == [False, True]
    assert monitor.found.shrunk.tolist() == [False, True]
    assert not monitor.found.merged.any()


def test_restarts_that_have_ended_are_let_alone(objective):
    monitor = watch(objective)
    place(objective, 1, 15.0, 300.0, 400.0, 500.0)
    scale(objective, 0, 1e-6)
    verdict = monitor.check(0, torch.tensor([False, False]))
    assert not verdict.discard.any()
    assert not any(bool(found.any()) for found in monitor.found)


def test_without_patience_only_a_code_that_shrank_ends_a_restart(objective):
    monitor = watch(objective, patience=None)
    for step in range(20):
        verdict = monitor.check(step, RUNNING)
        assert not verdict.stop.any()
    place(objective, 0, 15.0, 300.0, 400.0, 500.0)  # gathers its clusters on the way
    scale(objective, 1, 1e-4)
    verdict = monitor.check(20, RUNNING)
    assert verdict.discard.tolist() == [False, True]
    assert not verdict.stop.any()
    assert monitor.found.merged.tolist() == [False, False]
    assert monitor.found.revived.tolist() == [3, 0]


def test_what_was_found_is_remembered(objective):
    monitor = watch(objective)
    place(objective, 1, 15.0, 300.0, 400.0, 500.0)
    monitor.check(0, RUNNING)
    place(objective, 1, 0.0, 10.0, 20.0, 30.0)
    monitor.check(1, torch.tensor([True, False]))
    assert monitor.found.merged.tolist() == [False, True]


def test_it_looks_in_evaluation_and_leaves_training_mode_on(objective):
    modes = []
    objective.network.register_module("inner", torch.nn.Dropout())
    encode = objective.network.encode
    objective.network.encode = lambda rows: modes.append(objective.network.training) or encode(rows)
    monitor = watch(objective)
    monitor.check(0, RUNNING)
    assert modes == [False, False]
    assert objective.network.training


def test_rows_that_are_all_equal(objective):
    monitor = ClusterWatch(
        objective,
        torch.zeros(6, 1),
        tol=0.0,
        patience=2,
        generators=[torch.Generator().manual_seed(r) for r in range(2)],
    )
    for step in range(3):
        verdict = monitor.check(step, RUNNING)
        assert not verdict.discard.any()
    assert objective.centers.isfinite().all()


def test_a_warm_up_ends_when_the_labels_are_learned(objective):
    labels = torch.arange(4).repeat_interleave(8).repeat(2, 1)
    labels[1, :3] = 2  # 3 of 32 rows of restart 1 are elsewhere
    verdict = LabelsLearned(objective, SAMPLE, labels, 0.95).check(0, RUNNING)
    assert verdict.stop.tolist() == [True, False]
    assert not verdict.discard.any()
    assert LabelsLearned(objective, SAMPLE, labels, 0.9).check(0, RUNNING).stop.all()
