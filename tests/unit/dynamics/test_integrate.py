"""The integrator against exact solutions and against SciPy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import RK45, solve_ivp

from toposcope.core.errors import BadValue
from toposcope.dynamics.dormand_prince import DORMAND_PRINCE, Step
from toposcope.dynamics.fields import AttentionField, System
from toposcope.dynamics.integrate import Ended, Event, integrate
from toposcope.dynamics.step_size import Tolerance, guessed_step, ratio, sizes_of


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
    ours = DORMAND_PRINCE
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
    with pytest.raises(BadValue, match=r"times.*2"):
        integrate(field, x, 2.0, times=[1.0, 2.5])
    with pytest.raises(BadValue, match=r"times.*2"):
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


# --- the controller, written out ------------------------------------------------------------------------------------


@dataclass
class Steps:
    """What DOPRI5 (Hairer and Wanner) does on a problem of one axis: SciPy's tableau, their published controller."""

    widths: list[float] = field(default_factory=list)
    rejected: int = 0
    evaluations: int = 1
    held_back: int = 0
    stiff: bool = False
    ended: Ended = Ended.END
    next_step: float = 0.0
    state: np.ndarray = field(default_factory=lambda: np.zeros(0))


def written_out(
    function: Any, start: np.ndarray, end: float, step: float, *, most: int = 6000, begin: float = 0.0
) -> Steps:
    """The default tolerances; every number as in Hairer and Wanner's code, but a growth of up to 10 for theirs."""
    rtol, atol = 1e-6, 1e-9
    done, time, x, last, free = Steps(), begin, start, 1e-4, 0
    k = [function(x)]
    while time < end:
        if done.evaluations + 6 > most:
            done.ended = Ended.STIFF if done.held_back >= 15 else Ended.EXHAUSTED
            break
        left = end - time
        h = left if step >= 0.999 * left else left / 2 if step > left / 2 else step
        for row in RK45.A[1:]:
            k.append(function(x + h * sum(a * each for a, each in zip(row, k, strict=False))))
        sixth = x + h * sum(a * each for a, each in zip(RK45.A[5], k, strict=False))
        after = x + h * sum(b * each for b, each in zip(RK45.B, k, strict=True))
        k.append(function(after))
        done.evaluations += 6
        wrong = h * sum(e * each for e, each in zip(RK45.E, k, strict=True))
        error = float(np.sqrt(np.mean((wrong / (atol + rtol * np.maximum(abs(x), abs(after)))) ** 2)))
        if not error <= 1:
            done.rejected += 1
            step = h * (max(0.2, 0.9 / error**0.2) if np.isfinite(error) else 0.2)
            k = k[:1]
            continue
        done.widths.append(h)
        if h * np.linalg.norm(k[6] - k[5]) > 3.25 * np.linalg.norm(after - sixth):
            done.held_back, free = done.held_back + 1, 0
            done.stiff = done.stiff or done.held_back >= 15
        else:
            free += 1
            done.held_back = 0 if free == 6 else done.held_back
        time, x, k = (end if h == left else time + h), after, k[6:]
        step = h * min(10.0, max(0.2, 0.9 * max(error, 1e-10) ** -0.17 * last**0.04))
        last = max(error, 1e-4)
    done.next_step, done.state = step, x
    return done


def pulled(rate: float) -> Any:
    """Two entries drawn to a circle's point at different rates: stiff where `rate` is large."""
    return lambda s: np.array([-rate * (s[0] - np.cos(s[1])), 1.0 / (1.0 + s[1] ** 2)])


PROBLEMS: dict[str, tuple[Any, np.ndarray, float, float, dict[str, Any]]] = {
    "a step that is far too small grows": (lambda s: -s, np.array([1.0, 2.0]), 5.0, 1e-7, {}),
    "a step that is far too large shrinks": (lambda s: np.cos(3 * s) - s, np.array([1.0, -2.0]), 9.0, 9.0, {}),
    "not a number": (lambda s: np.where(np.abs(s) > 3, np.nan, -s), np.array([2.9, 1.0]), 4.0, 4.0, {}),
    "constant: no error at all": (lambda s: 0 * s + 2.0, np.array([1.0]), 700.0, 1e-3, {}),
    "one step, nearly": (lambda s: 0 * s + 2.0, np.array([1.0]), 1.0, 0.9985, {}),
    "one step, almost": (lambda s: 0 * s + 2.0, np.array([1.0]), 1.0, 0.9995, {}),
    "two halves": (lambda s: 0 * s + 2.0, np.array([1.0]), 1.0, 0.55, {}),
    "less than a half": (lambda s: 0 * s + 2.0, np.array([1.0]), 1.0, 0.45, {}),
    "begins elsewhere": (lambda s: np.sin(5 * s), np.array([0.3]), 4.0, 0.1, {"begin": 1.5}),
    "stiff": (pulled(3e3), np.array([0.5, 0.0]), 3.0, 1e-4, {"most": 6000}),
    "stiff, exhausted": (pulled(3e4), np.array([0.5, 0.0]), 3.0, 1e-5, {"most": 900}),
    "hardly stiff, exhausted": (pulled(300.0), np.array([0.5, 0.0]), 3.0, 1e-4, {"most": 185}),
    "exhausted to the last evaluation": (lambda s: -s, np.array([1.0]), 99.0, 0.01, {"most": 67}),
    "one evaluation short": (lambda s: -s, np.array([1.0]), 99.0, 0.01, {"most": 66}),
}


@pytest.mark.parametrize("case", PROBLEMS)
def test_each_step_is_that_of_the_published_controller(case: str) -> None:
    function, start, end, first, options = PROBLEMS[case]
    expected = written_out(function, start, end, first, **options)
    widths: list[float] = []
    found = integrate(
        function,
        start,
        end,
        first_step=first,
        begin=options.get("begin", 0.0),
        max_evaluations=options.get("most", 6000),
        on_step=lambda step: widths.append(step.end - step.begin),
    )
    assert widths == pytest.approx(expected.widths, rel=1e-4)
    assert (found.accepted, found.rejected) == (len(expected.widths), expected.rejected)
    assert (found.evaluations, found.ended, found.stiff) == (expected.evaluations, expected.ended, expected.stiff)
    assert found.next_step == pytest.approx(expected.next_step, rel=1e-3)
    assert found.state == pytest.approx(expected.state, rel=1e-6)


@pytest.mark.parametrize(
    ("held", "stiff", "ended"),
    [
        ("1" * 14, False, Ended.EXHAUSTED),
        ("1" * 15, True, Ended.STIFF),
        ("0" * 9 + "1" * 15, True, Ended.STIFF),
        ("1" * 14 + "0" * 6 + "1", False, Ended.EXHAUSTED),
        ("1" * 14 + "0" * 5 + "1", True, Ended.STIFF),
        ("1" * 7 + "0" * 3 + "1" + "0" * 3 + "1" * 7, True, Ended.STIFF),
        ("1" * 15 + "0" * 5, True, Ended.STIFF),
        ("1" * 15 + "0" * 6, True, Ended.EXHAUSTED),
        ("1" * 10 + "0" * 12 + "1" * 10, False, Ended.EXHAUSTED),
    ],
)
def test_steps_that_stability_holds_back_are_counted(held: str, stiff: bool, ended: Ended) -> None:
    """h lambda is 3.3 or 3.2 in the last two stages, as the digits say: fifteen are stiff, and six free ones forget.

    What is drawn is too small to be an error, so every step is ten times as long as the one before.
    """
    calls = 0

    def function(s: np.ndarray) -> np.ndarray:
        nonlocal calls
        step, stage = divmod(calls - 1, 6)
        calls += 1
        size = 3.3 if held[min(step, len(held) - 1)] == "1" else 3.2
        return -size / 10.0**step * s if stage > 3 and step >= 0 else 0 * s

    widths: list[float] = []
    found = integrate(
        function,
        np.array([1e-120]),
        1e200,
        first_step=1.0,
        max_evaluations=1 + 6 * len(held),
        on_step=lambda step: widths.append(step.end - step.begin),
    )
    assert widths == pytest.approx([10.0**n for n in range(len(held))], rel=1e-9)
    assert 0 < abs(found.state[0]) < 1e-20
    assert (found.stiff, found.ended, found.accepted) == (stiff, ended, len(held))


@pytest.mark.parametrize(
    ("start", "rate", "span", "tolerances"),
    [
        (np.array([1.0, -2.0, 0.5]), 3.0, 50.0, (1e-6, 1e-9)),
        (np.array([1.0, -2.0, 0.5]), 3.0, 1e-3, (1e-6, 1e-9)),
        (np.array([1e-16, 0.0]), 1.0, 50.0, (1e-6, 1e-9)),  # hardly any state
        (np.array([1.0, 2.0]), 1e-13, 50.0, (1e-6, 1e-9)),  # hardly any slope
        (np.array([1.0, 2.0]), 1e-9, 1e9, (1e-3, 1e-6)),
        (np.array([1.0, 2.0]), 0.0, 50.0, (1e-6, 1e-9)),
        (np.array([0.0, 0.0]), 1.0, 1e-7, (1e-6, 1e-9)),
        (np.array([300.0, 2.0]), 40.0, 50.0, (1e-3, 0.0)),
    ],
)
def test_the_first_step_is_scipys(
    start: np.ndarray, rate: float, span: float, tolerances: tuple[float, float]
) -> None:
    """Both follow Hairer, Norsett and Wanner, II.4; on one axis sizes are measured alike."""
    rtol, atol = tolerances

    def function(s: np.ndarray) -> np.ndarray:
        return rate * (np.sin(s) - 2 * s)

    theirs = RK45(lambda _, s: function(s), 0.0, start, span, rtol=rtol, atol=atol).h_abs
    assert guessed_step(function, start, function(start), span, Tolerance(rtol, atol)) == pytest.approx(
        theirs, rel=1e-9
    )


@pytest.mark.parametrize(("begin", "least"), [(1.0, 16 * 2.0**-52), (0.0, 16 * float(np.spacing(1e-300)))])
def test_a_step_of_sixteen_roundings_is_the_least(begin: float, least: float) -> None:
    """Below it time would hardly move: the integration says so and has done nothing."""
    end = begin + 1.0
    below = integrate(lambda s: -s, np.array([1.0]), end, begin=begin, first_step=0.9 * least, max_evaluations=13)
    assert (below.ended, below.stiff, below.accepted, below.time) == (Ended.STIFF, True, 0, begin)
    above = integrate(lambda s: -s, np.array([1.0]), end, begin=begin, first_step=1.1 * least, max_evaluations=13)
    assert (above.ended, above.stiff, above.accepted) == (Ended.EXHAUSTED, False, 2)


# --- events and output ----------------------------------------------------------------------------------------------


def test_an_event_is_found_to_a_billionth_of_the_step_and_never_early() -> None:
    roots = np.random.default_rng(0).uniform(1.0, 9.0, 60)
    events = [Event(str(i), lambda t, s, root=root: root - t, terminal=False) for i, root in enumerate(roots)]
    found = integrate(lambda s: 0 * s + 1.0, np.array([0.0]), 10.0, first_step=10.0, events=events)
    assert found.accepted == 1
    order = np.argsort(roots)
    assert [int(each.name) for each in found.events] == order.tolist()
    late = np.array([each.time for each in found.events]) - roots[order]
    assert (late >= 0).all()
    assert 3e-9 < late.max() <= 1e-8


def test_the_first_terminal_event_of_a_step_ends_it() -> None:
    def at(time: float, terminal: bool) -> Event:
        return Event(f"{time:g}", lambda t, s: time - t, terminal)

    events = [at(6.0, False), at(5.0, True), at(3.0, True), at(2.0, False), at(10.0, True)]
    found = integrate(
        lambda s: 0 * s + 1.0, np.array([0.0]), 10.0, first_step=10.0, events=events, times=[1.0, 3.0, 4.0]
    )
    assert [each.name for each in found.events] == ["2", "3"]
    assert (found.ended, found.time, found.state[0]) == (Ended.EVENT, pytest.approx(3.0), pytest.approx(3.0))
    assert found.times.tolist() == [1.0, 3.0]
    last = integrate(lambda s: 0 * s + 1.0, np.array([0.0]), 10.0, events=[at(10.0, True)])
    assert [(each.name, each.time) for each in last.events] == [("10", 10.0)]
    assert last.ended is Ended.EVENT


def test_an_event_within_a_step_of_a_few_roundings_is_found() -> None:
    begin, tick = 1.0, 2.0**-52
    event = Event("low", lambda t, s: begin + 7 * tick - t)
    found = integrate(lambda s: -s, np.array([1.0]), begin + 20 * tick, begin=begin, first_step=1.0, events=[event])
    assert found.ended is Ended.EVENT
    assert found.time == begin + 7 * tick


def test_a_step_that_is_cut_keeps_its_interpolant() -> None:
    random = np.random.default_rng(1)
    before, stages = random.standard_normal((2, 3)), random.standard_normal((7, 6))
    whole = Step(2.0, 2.5, before, before, stages)
    part = whole.cut(2.2)
    inside = np.linspace(2.0, 2.2, 5)
    assert (part.begin, part.end) == (2.0, 2.2)
    np.testing.assert_array_equal(part.before, before)
    np.testing.assert_allclose(part.at(inside), whole.at(inside), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(part.after, whole.at(2.2)[0], rtol=1e-12)
    assert whole.cut(2.5) is whole


def test_a_step_is_a_polynomial_of_degree_four_in_time() -> None:
    """x' = 4 t^3 with t as an entry of the state: pair and interpolant have order 4 and reproduce t^4."""
    taken: list[tuple[np.ndarray, np.ndarray]] = []

    def keep(step: Step) -> None:
        inside = np.linspace(step.begin, step.end, 9)
        taken.append((inside, step.at(inside)[:, 0]))

    integrate(lambda s: np.array([4 * s[1] ** 3, 1.0]), np.array([0.0, 0.0]), 3.0, first_step=1.5, on_step=keep)
    assert len(taken) >= 2
    for inside, states in taken:
        np.testing.assert_allclose(states, inside**4, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(
    "change",
    [
        {"begin": np.nan},
        {"begin": -np.inf},
        {"begin": 2.0},
        {"end": np.nan},
        {"rtol": np.nan},
        {"rtol": -1e-6},
        {"rtol": np.inf},
        {"atol": -1e-9},
        {"atol": np.inf},
        {"times": [0.5, 0.25]},
        {"times": [0.1, 0.5, 0.4, 0.9]},
    ],
)
def test_each_argument_is_looked_at(change: dict[str, Any]) -> None:
    with pytest.raises(BadValue):
        integrate(lambda s: -s, np.ones(2), **{"end": 1.0, **change})
    with pytest.raises(BadValue):
        integrate(lambda s: -s, np.array([1.0, np.inf]), 1.0)


def test_sizes_are_those_of_rows_or_of_entries() -> None:
    state = np.array([[3.0, 4.0, 0.0], [0.0, 0.0, 0.0]])
    np.testing.assert_allclose(sizes_of(state), [5 / np.sqrt(3), 0.0])
    np.testing.assert_allclose(sizes_of(np.stack([state, 2 * state])), [[5 / np.sqrt(3), 0], [10 / np.sqrt(3), 0]])
    np.testing.assert_array_equal(sizes_of(np.array([-2.0, 3.0])), [2.0, 3.0])
    np.testing.assert_array_equal(sizes_of(np.zeros((2, 3))), [0.0, 0.0])
    for size in (1e-180, 1e-90, 1e90, 1e180):
        np.testing.assert_allclose(sizes_of(size * state), size * sizes_of(state), rtol=1e-12)
    assert sizes_of(np.zeros((0, 3))).shape == (0,)
    np.testing.assert_array_equal(sizes_of(np.zeros((2, 0))), [0.0, 0.0])
    assert ratio(np.zeros(0), np.zeros(0)) == 0.0


def test_states_without_entries_are_carried_along() -> None:
    found = integrate(lambda s: s, np.zeros((3, 0)), 1.0, times=[0.0, 0.5, 1.0])
    assert (found.ended, found.state.shape, found.states.shape) == (Ended.END, (3, 0), (3, 3, 0))


def test_six_thousand_evaluations_are_allowed_unless_told_otherwise() -> None:
    found = integrate(lambda s: np.array([s[1], -s[0]]), np.array([1.0, 0.0]), 1e9, first_step=0.1)
    assert (found.ended, found.evaluations) == (Ended.EXHAUSTED, 5995)
    assert all(len(each.meaning) > 10 for each in Ended)
