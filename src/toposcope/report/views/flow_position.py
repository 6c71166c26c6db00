"""What position changes in a flow, in words: the run beside that of the same start without position."""

from __future__ import annotations

from collections.abc import Callable

from toposcope.dynamics.agreement import fold
from toposcope.dynamics.flow import Flow
from toposcope.dynamics.position_effect import Both, PositionEffect
from toposcope.report.blocks import count

GATHERED = 0.1  # the least difference in clusters that is told, as a share of the tokens
TURNED = 0.1  # the least difference of mean cosines that is told
RATIO = 1.25  # the least ratio of norms, or of times, that is told
FARTHER = 2.0  # the least ratio of distances that is told
SOON = 0.9  # of the time compared: before it tokens have gathered, where the other run has not
RESIZED = 1.05  # the least growth that is called so


def position_line(flow: Flow) -> str | None:
    """What differs from the same start without position, or that little does; None where it was not compared."""
    found = flow.position_effect
    if found is None:
        return None
    said = f"{_until(flow, found)}{_differences(flow, found) or _alike(flow, found)}."
    return " ".join(filter(None, [said, _start(flow, found), _certified(flow)]))


def label(flow: Flow) -> str:
    """The encoding by its short name."""
    return flow.settings.encoding.split(",")[0].split(" with ")[0]


def _differences(flow: Flow, found: PositionEffect) -> str | None:
    """What the tokens do more or less of, and the numbers."""
    less, later = _gathered(flow, found.clusters), _timed(found)
    if less and None in (found.halved_at.with_position, found.halved_at.without):
        later = None  # it says no more than 'less'
    gather = " and ".join(filter(None, [less, later]))
    turned, apart, sized = _turned(found.cosine), _apart(found.distance), _sized(found.growth)
    does = [f"gather {gather}" if gather else None, turned, apart, sized]
    numbers = [
        _pair(found.clusters, _clusters) if less else None,
        f"half as many as at the start {_pair(found.halved_at, _by)}" if later else None,
        _pair(found.cosine, _mean_cosine) if turned else None,
        _pair(found.distance, _distance) if apart else None,
        _pair(found.growth, _norm) if sized else None,
    ]
    if not any(does) and (on_the_way := _turned(found.widest)):
        does = [f"{on_the_way} on the way"]
        numbers = [f"{_pair(found.widest, _mean_cosine)} at t = {found.widest_at:.3g}"]
    said = [each for each in does if each]
    if not said:
        return None
    told = ", ".join(filter(None, numbers)).replace("(without:", "(without position:", 1)  # in full where said first
    listed = ", ".join(said[:-1]) + (" and " if said[:-1] else "") + said[-1]
    return f"with {label(flow)} the tokens {listed}: {told}"


def _pair(both: Both, words: Callable[[float], str]) -> str:
    """A quantity with position and without, words that both share said once."""
    mine, other = ("not yet" if value is None else words(value) for value in (both.with_position, both.without))
    return f"{mine} (without: {_rest(other, mine)})"


def _rest(words: str, first: str) -> str:
    """What is not said already: '1' of '1 cluster' behind '5 clusters', '0.78' of 'mean cosine 0.78'."""
    own, said = words.split(), first.split()
    while len(own) > 1 and own[0] == said[0]:
        own, said = own[1:], said[1:]
    if own[-1].startswith("cluster"):
        own.pop()
    return " ".join(own)


def _gathered(flow: Flow, found: Both) -> str | None:
    mine, other = found.with_position, found.without
    if mine is None or other is None or abs(mine - other) < max(2, GATHERED * flow.tokens):
        return None
    return "less" if mine > other else "more"


def _timed(found: PositionEffect) -> str | None:
    mine, other = found.halved_at.with_position, found.halved_at.without
    if mine is None or other is None:
        only = mine if other is None else other
        if only is None or only > SOON * found.time:
            return None
        return "later" if mine is None else "sooner"
    if max(mine, other) < RATIO * min(mine, other):
        return None
    return "later" if mine > other else "sooner"


def _by(time: float) -> str:
    return f"by t = {time:.3g}"


def _turned(both: Both) -> str | None:
    mine, other = both.with_position, both.without
    if mine is None or other is None or abs(mine - other) < TURNED:
        return None
    return f"turn together {'more' if mine > other else 'less'}"


def _apart(found: Both) -> str | None:
    mine, other = found.with_position, found.without
    if mine is None or other is None or max(mine, other) < FARTHER * min(mine, other):
        return None
    return f"end {'farther apart' if mine > other else 'nearer one another'}"


def _sized(found: Both) -> str | None:
    mine, other = found.with_position, found.without
    if mine is None or other is None or max(mine, other) < RATIO * min(mine, other):
        return None
    if _way(mine) == _way(other) == 1:
        return f"grow {'more' if mine > other else 'less'}"
    return f"end {'larger' if mine > other else 'smaller'}"


def _alike(flow: Flow, found: PositionEffect) -> str:
    """That little differs, with the numbers; those with position only where they look otherwise."""
    told = []
    told_of = (
        (found.clusters, _clusters),
        (found.cosine, _mean_cosine),
        (found.distance, _distance),
        (found.growth, _norm),
    )
    for both, words in told_of:
        if both.with_position is not None and both.without is not None:
            mine, other = words(both.with_position), words(both.without)
            told.append(other if mine == other else f"{other} (with: {_rest(mine, other)})")
    return f"without {label(flow)} it is much the same: {', '.join(told)}"


def _clusters(number: float) -> str:
    return count(int(number), "cluster")


def _mean_cosine(value: float) -> str:
    return f"mean cosine {cosine_words(value)}"


def _distance(growth: float) -> str:
    return f"the mean distance {_fold(growth)}"


def _norm(growth: float) -> str:
    return f"the largest norm {_fold(growth)}"


def _until(flow: Flow, found: PositionEffect) -> str:
    """Where the two could be compared for a part of the run only."""
    return (
        "" if found.time > 0.999 * flow.end else f"up to t = {found.time:.3g}, where the run without position ends, "
    )


def _start(flow: Flow, found: PositionEffect) -> str | None:
    """Vectors at the input change the start itself."""
    if flow.settings.absolute != "input":
        return None
    both = found.cosine_at_start
    known = [cosine_words(value) for value in (both.with_position, both.without) if value is not None]
    numbers = f" (mean cosine {' and '.join(known)})" if known else ""
    return f"Position is added to the tokens, so the two runs begin at different places{numbers}."


def _certified(flow: Flow) -> str | None:
    """Where a theorem names the end, and it is the same with and without."""
    found = flow.verdict
    if found is None or found.rule != "T6" or flow.settings.absolute in ("input", "reinject"):
        return None
    return "Where they end it cannot change (Thm 6), only how fast they get there."


def _way(growth: float) -> int:
    return 0 if 1 / RESIZED < growth < RESIZED else 1 if growth > 1 else -1


def _fold(growth: float) -> str:
    way = _way(growth)
    if way == 0:
        return "hardly changes"
    if growth < 1e-290:
        return "goes to 0"
    return f"{'grows' if way > 0 else 'falls'} {fold(max(growth, 1 / growth))}-fold"


def cosine_words(value: float) -> str:
    """A mean cosine to two digits."""
    return f"{round(value, 2) + 0.0:.2f}"
