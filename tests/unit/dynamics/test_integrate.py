"""The integrator against exact solutions and against SciPy."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import solve_ivp

from toposcope.core.errors import BadValue
from toposcope.dynamics.fields import AttentionField, System
from toposcope.dynamics.integrate import Ended, Event, integrate
from toposcope.dynamics.step_size import ratio


def attention_flow(seed: int, n: int = 8, d: int = 4) -> tuple[AttentionField, np.ndarray]:
    random = np.random.default_rng(seed)
    w = random.standard_normal((d, d)) / d
    v = random.standard_normal((d, d)) / np.sqrt(d) - 0.5 * np.eye(d)
    field = AttentionField(System(w[None], v[None], causal=bool(seed % 2)), n)
    return field, random.standard_normal((n, d))


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_a_linear_system_is_followed_to_the_tolerance(seed: int) -> None:
    random = np.random.default_rng(seed)
    a = random.standard_normal((4, 4)) - np.eye(4)
    x = random.standard_normal((3, 4))
    times = np.linspace(0.0, 3.0, 31)
    found = integrate(lambda s: s @ a.T, x, 3.0, times=times, rtol=1e-9, atol=1e-12)
    exact = np.stack([x @ scipy.linalg.expm(a * t).T for t in times])
    assert found.ended is Ended.END
    assert np.abs(found.states - exact).max() < 1e-7 * np.abs(exact).max()


@pytest.mark.parametrize("seed", range(6))
def test_attention_flows_agree_with_scipy_at_about_its_cost(seed: int) -> None:
    field, x = attention_flow(seed)
    times = np.linspace(0.0, 5.0, 41)
    ours = integrate(field, x, 5.0, times=times, rtol=1e-7, atol=1e-9)

    def flat(t: float, y: np.ndarray) -> np.ndarray:
        return field(y.reshape(x.shape)).ravel()

    theirs = solve_ivp(flat, (0, 5), x.ravel(), method="DOP853", rtol=1e-11, atol=1e-12, t_eval=times)
    rk45 = solve_ivp(flat, (0, 5), x.ravel(), method="RK45", rtol=1e-7, atol=1e-9, t_eval=times)
    reference = theirs.y.T.reshape(ours.states.shape)
    scale = np.abs(reference).max()
    assert np.abs(ours.states - reference).max() < 2e-5 * scale
    assert ours.evaluations <= 1.15 * rk45.nfev


def test_the_interpolant_is_scipys() -> None:
    """Shampine's coefficients, and continuity of order 4 at both ends of a step."""
    from scipy.integrate import RK45

    from toposcope.dynamics.dormand_prince import DORMAND_PRINCE as ours

    assert np.allclose(ours.dense, RK45.P, rtol=1e-14, atol=1e-15)
    for s, row in enumerate(ours.a[:5], 1):  # the tableau, too; SciPy's has no seventh row: it is B
        assert np.allclose(row, RK45.A[s, :s], rtol=1e-14)
    assert np.allclose(ours.a[5], RK45.B, rtol=1e-14)
    assert np.allclose(ours.error, -RK45.E, rtol=1e-13)
    assert np.allclose(ours.dense.sum(axis=1)[:6], ours.a[5], atol=1e-12)


def test_output_times_force_no_steps() -> None:
    field, x = attention_flow(3)
    few = integrate(field, x, 5.0)
    many = integrate(field, x, 5.0, times=np.linspace(0, 5, 2001))
    assert many.evaluations == few.evaluations
    assert len(many.times) == 2001
    assert np.allclose(many.states[-1], few.state)


@settings(max_examples=20, deadline=None)
@given(rate=st.floats(0.1, 5.0), level=st.floats(0.05, 0.9))
def test_an_event_is_found_where_it_happens(rate: float, level: float) -> None:
    event = Event("low", lambda t, s: float(s[0]) - level)
    found = integrate(lambda s: -rate * s, np.array([1.0]), 100.0, events=[event], rtol=1e-9, atol=1e-12)
    assert found.ended is Ended.EVENT
    assert found.events[0].name == "low"
    assert found.time == pytest.approx(-np.log(level) / rate, rel=1e-6)
    assert found.state[0] == pytest.approx(level, rel=1e-6)


def test_the_interpolant_of_a_step_cut_by_an_event_stays_right() -> None:
    steps = []
    event = Event("low", lambda t, s: float(s[0]) - 0.3)
    integrate(lambda s: -s, np.array([1.0]), 9.0, events=[event], on_step=steps.append, rtol=1e-8, atol=1e-12)
    last = steps[-1]
    inside = np.linspace(last.begin, last.end, 7)
    assert np.allclose(last.at(inside)[:, 0], np.exp(-inside), atol=1e-6)


def test_stiffness_is_named_and_so_is_exhaustion() -> None:
    stiff = integrate(lambda s: -1e6 * (s - 1.0), np.array([0.5]), 100.0, max_evaluations=2000)
    assert stiff.ended is Ended.STIFF
    # an oscillation that is merely long: accuracy sets the step
    turn = np.array([[0.0, 1.0], [-1.0, 0.0]])
    long = integrate(lambda s: s @ turn.T, np.array([1.0, 0.0]), 1e6, max_evaluations=2000, rtol=1e-8, atol=1e-10)
    assert long.ended is Ended.EXHAUSTED
    assert (stiff.stiff, long.stiff) == (True, False)
    assert 1994 < stiff.evaluations <= 2000  # one more step of six would pass the limit
    assert 1994 < long.evaluations <= 2000


def test_a_field_that_overflows_ends_as_stiff_and_not_in_nan() -> None:
    found = integrate(lambda s: s * s, np.array([1.0]), 2.0)  # blows up at t = 1
    assert found.ended in (Ended.STIFF, Ended.EXHAUSTED)
    assert np.isfinite(found.state).all()
    assert found.time == pytest.approx(1.0, abs=1e-3)


def test_a_rotation_of_all_tokens_changes_no_step() -> None:
    random = np.random.default_rng(5)
    turn = np.linalg.qr(random.standard_normal((4, 4)))[0]
    w, v = random.standard_normal((2, 4, 4)) / 4
    x = random.standard_normal((6, 4))
    one = integrate(AttentionField(System(w[None], v[None]), 6), x, 4.0)
    turned = System((turn @ w @ turn.T)[None], (turn @ v @ turn.T)[None])
    other = integrate(AttentionField(turned, 6), x @ turn.T, 4.0)
    assert one.evaluations == other.evaluations
    assert np.allclose(one.state @ turn.T, other.state, atol=1e-10)


@pytest.mark.parametrize(
    "change", [{"end": 0.0}, {"end": np.inf}, {"end": 1.0, "rtol": 0.0}, {"end": 1.0, "times": [0.5, 0.5]}]
)
def test_bad_arguments_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(BadValue):
        integrate(lambda s: s, np.ones(2), **change)  # type: ignore[arg-type]
    with pytest.raises(BadValue):
        integrate(lambda s: s, np.array([np.nan]), 1.0)


@pytest.mark.parametrize("shape", [(3,), (3, 2)])
def test_a_field_that_is_no_number_beyond_a_border_is_followed_to_the_border(shape: tuple[int, ...]) -> None:
    found = integrate(lambda s: np.where(s > 2, np.nan, s), np.ones(shape), 2.0)
    assert found.ended is Ended.STIFF
    assert found.state == pytest.approx(2.0, abs=1e-5)
    assert found.time == pytest.approx(np.log(2), abs=1e-5)
    assert found.stiff


def test_the_order_in_memory_of_the_start_changes_nothing() -> None:
    field, start = attention_flow(1)
    assert np.array_equal(integrate(field, np.asfortranarray(start), 1.0).state, integrate(field, start, 1.0).state)


def test_what_was_done_is_counted_and_steps_join() -> None:
    calls, steps = 0, []
    field, x = attention_flow(2)

    def counted(state: np.ndarray) -> np.ndarray:
        nonlocal calls
        calls += 1
        return field(state)

    found = integrate(counted, x, 5.0, begin=1.0, on_step=lambda step: steps.append((step.begin, step.end)))
    assert found.evaluations == calls == 2 + 6 * (found.accepted + found.rejected)
    assert len(steps) == found.accepted > 3
    assert (steps[0][0], steps[-1][1], found.time) == (1.0, 5.0, 5.0)
    assert [end for _, end in steps[:-1]] == [begin for begin, _ in steps[1:]]
    again = integrate(counted, x, 5.0, begin=1.0, first_step=steps[0][1] - 1.0)
    assert again.evaluations == 1 + 6 * (again.accepted + again.rejected)
    assert np.allclose(again.state, found.state, rtol=1e-7)


def test_a_first_step_that_is_too_long_is_taken_back() -> None:
    found = integrate(lambda s: np.cos(s) - s, np.array([1.0, -2.0]), 10.0, first_step=10.0, rtol=1e-8, atol=1e-10)
    assert found.rejected >= 1
    assert found.state == pytest.approx(0.7390851332, abs=1e-5)


def test_events_happen_on_the_way_down_and_in_order() -> None:
    """cos t falls through 0.5 at pi/3 and again a turn later; on its way up nothing happens."""
    turn = np.array([[0.0, -1.0], [1.0, 0.0]])
    seen = [
        Event("half", lambda t, s: float(s[0]) - 0.5, terminal=False),
        Event("zero", lambda t, s: float(s[0]), terminal=False),
        Event("late", lambda t, s: 9.0 - t),
    ]
    found = integrate(lambda s: s @ turn.T, np.array([1.0, 0.0]), 20.0, events=seen, rtol=1e-9, atol=1e-12)
    expected = [
        ("half", np.pi / 3),
        ("zero", np.pi / 2),
        ("half", 7 * np.pi / 3),
        ("zero", 5 * np.pi / 2),
        ("late", 9.0),
    ]
    assert [each.name for each in found.events] == [name for name, _ in expected]
    assert [each.time for each in found.events] == pytest.approx([time for _, time in expected], abs=1e-7)
    assert (found.ended, found.time) == (Ended.EVENT, pytest.approx(9.0))
    assert found.times.tolist() == [found.time]


def test_output_at_the_ends_and_nowhere() -> None:
    field, x = attention_flow(4)
    both = integrate(field, x, 2.0, times=[0.0, 2.0])
    assert np.array_equal(both.states[0], x)
    assert np.allclose(both.states[1], both.state, atol=1e-12)
    none = integrate(field, x, 2.0, times=[])
    assert (none.times.shape, none.states.shape) == ((0,), (0, *x.shape))
    stopped = integrate(field, x, 2.0, times=[0.5, 1.0, 1.5], events=[Event("one", lambda t, s: 1.0 - t)])
    assert stopped.times.tolist() == [0.5, 1.0]
    with pytest.raises(BadValue, match="between 0 and 2"):
        integrate(field, x, 2.0, times=[1.0, 2.5])
    with pytest.raises(BadValue, match="between 0 and 2"):
        integrate(field, x, 2.0, times=[-0.5, 1.0])


@pytest.mark.parametrize("size", [1e-160, 1e160])
def test_sizes_whose_squares_leave_the_range_of_numbers(size: float) -> None:
    x = attention_flow(0)[1]
    linear = np.diag([-1.0, -0.5, 0.2, 0.1])
    plain = integrate(lambda s: s @ linear, x, 2.0, atol=0.0)
    scaled = integrate(lambda s: s @ linear, x * size, 2.0, atol=0.0)
    assert scaled.evaluations == plain.evaluations
    assert np.allclose(scaled.state / size, plain.state, rtol=1e-10)


def test_a_state_at_rest_stays_there_at_little_cost() -> None:
    found = integrate(lambda s: 0.0 * s, np.zeros((2, 3)), 1e3)
    assert not found.state.any()
    assert found.evaluations < 100


def test_what_begins_at_zero_has_not_fallen() -> None:
    level = Event("low", lambda t, s: float(s[0]) - 1.0)
    found = integrate(lambda s: -s, np.array([1.0]), 2.0, events=[level])
    assert (found.ended, found.events) == (Ended.END, ())


def test_errors_of_any_size_are_measured() -> None:
    """The root mean square, also where squares would overflow."""
    assert ratio(np.array([3.0, 4.0]), np.ones(2)) == pytest.approx(np.sqrt(12.5))
    assert ratio(np.array([3e200, 4e200]), np.ones(2)) == pytest.approx(np.sqrt(12.5) * 1e200)
    assert ratio(np.zeros(2), np.ones(2)) == 0.0
