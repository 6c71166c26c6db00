"""Each preset shows what its sentence says."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial import ConvexHull
from scipy.spatial.distance import pdist

from toposcope.core.errors import BadValue
from toposcope.dynamics.agreement import compare
from toposcope.dynamics.matrices import simulate
from toposcope.dynamics.presets import PRESETS, closing_rope, find_preset, helix
from toposcope.dynamics.run import run
from toposcope.dynamics.trajectory import Status


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("collapse", Status.HORIZON),
        ("explode", Status.GREW),
        ("helix", Status.AT_REST),
        ("clusters", Status.GREW),
        ("c1", Status.GREW),
        ("c1-mirror", Status.GREW),
        ("metastable", Status.AT_REST),
    ],
)
def test_every_preset_ends_as_it_should(name: str, status: Status) -> None:
    problem = PRESETS[name].problem()
    found = run(problem)
    assert found.status is status
    assert compare(problem.decide(), found).word != "contradicts"


def test_all_presets_are_tested() -> None:
    assert set(PRESETS) == {"collapse", "explode", "helix", "clusters", "c1", "c1-mirror", "metastable"}


def test_collapse_brings_tokens_together_and_explode_apart() -> None:
    down, up = (run(PRESETS[name].problem()) for name in ("collapse", "explode"))
    assert down.observables["norm_max"][-1] < 0.1 * down.observables["norm_max"][0]
    seen = np.isfinite(down.observables["log_energy"])  # all pairs are looked at now and then
    assert np.diff(down.observables["log_energy"][seen]).max() <= 1e-9
    # algebraic, as the notes say under T3: |delta| ~ t^{-1/2}
    late = (down.times > 30) & np.isfinite(down.observables["distance_mean"])
    slope = np.polyfit(np.log(down.times[late]), np.log(down.observables["distance_mean"][late]), 1)[0]
    assert slope == pytest.approx(-0.5, abs=0.02)
    assert np.diff(up.observables["pair_form_min"]).min() >= -1e-6
    assert run(PRESETS["collapse"].problem(6, causal=True, horizon=200.0)).status is Status.CONVERGED


def test_clusters_form() -> None:
    found = run(PRESETS["clusters"].problem())
    first, last = found.change("clusters")
    assert first > 40
    assert 2 <= last <= 10


def test_clusters_form_because_each_token_follows_a_corner_of_the_cloud() -> None:
    preset = PRESETS["clusters"].arguments()
    found = run(PRESETS["clusters"].problem())
    first, last = found.tokens[0], found.tokens[-1]
    logits = last @ preset["W"] @ last.T
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    assert weights.max(axis=1).min() > 0.999  # each attends to one token alone
    followed = weights.argmax(axis=1)
    corners = set(followed.tolist())
    assert len(corners) == found.change("clusters")[1]  # a cluster for each
    lengths = np.linalg.norm(first, axis=1)
    for corner in corners:
        assert followed[corner] == corner
        assert lengths[corner] == lengths[followed == corner].max()  # of those that follow it the farthest out
    assert corners <= set(ConvexHull(first).vertices.tolist())
    gaps = np.array([pdist(cloud) for cloud in found.tokens])
    assert (np.diff(gaps, axis=0) >= -1e-6 * gaps[:-1]).all()  # Thm 1: no two come nearer


def test_the_mirror_of_c1_with_one_token_goes_to_zero() -> None:
    assert run(PRESETS["c1-mirror"].problem(1)).status is Status.CONVERGED


@pytest.mark.parametrize("count", [3, 5, 12])
def test_the_helix_is_an_equilibrium(count: int) -> None:
    start = helix(count)
    found = simulate(
        np.eye(2), -np.eye(2), start, causal=False, encoding=closing_rope(count), horizon=50.0, rtol=1e-9
    )
    assert np.abs(found.final - start).max() < 1e-6


def test_a_perturbed_helix_stays_and_a_diagonal_or_no_rotation_lets_it_collapse() -> None:
    stays = run(PRESETS["helix"].problem())
    assert stays.end == 200.0
    assert stays.observables["norm_max"][-1] == pytest.approx(1.33, abs=0.01)
    for change in ({"diagonal": 1.0}, {"encoding": None}):
        freed = run(PRESETS["helix"].problem(**change))
        # |x| ~ t^{-1/2}: 0.0707 at t = 200
        assert freed.observables["norm_max"][-1] == pytest.approx(200**-0.5, rel=0.05)


def test_wrong_names_and_numbers() -> None:
    with pytest.raises(BadValue, match="helix"):
        find_preset("helx")
    with pytest.raises(BadValue, match="c1"):
        PRESETS["c1"].problem(4)
    with pytest.raises(BadValue, match="token"):
        PRESETS["collapse"].problem(0)
