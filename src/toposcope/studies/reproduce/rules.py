"""The rules of a study, read from a file that was written before its first run: arms, questions, sizes, pictures.

A file says which runs there are and what is asked of them; `study.py` does the rest. Whatever it does not know, it
refuses, so that no rule is passed over in silence. The hash of the file stands on the study's page, and the commit
in which these very rules were put down (`rules/committed.toml` says which).
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Literal, get_args

from toposcope.core.errors import BadConfig, BadValue, did_you_mean
from toposcope.core.paired import PairedQuestion
from toposcope.core.untrusted import SETTINGS, read_bytes

DIRECTORY = Path(__file__).parent / "rules"
COMMITTED = DIRECTORY / "committed.toml"
Kind = Literal["train", "bytes", "flow"]


@dataclass(frozen=True)
class StudyArm:
    """Runs that differ in their seed alone, or in one setting of a `ladder` of which the best is taken."""

    name: str
    settings: Mapping[str, Any]
    ladder: tuple[str, tuple[Any, ...]] | None = None
    parameters_of: str | None = None
    series: str = ""  # of a picture
    varied: Mapping[str, Any] = field(default_factory=dict)  # what tells it from the others of its kind


@dataclass(frozen=True)
class Slope:
    """A straight line through the arms, seed by seed: the measure against another one, or against given doses."""

    arms: tuple[str, ...]
    dose: str | None
    doses: tuple[float, ...]


@dataclass(frozen=True)
class StudyAsked:
    """One question: a measure, a contrast of arms (or a slope through them), and what it is compared with."""

    claim: str
    name: str
    measure: str
    of: Mapping[str, float]
    slope: Slope | None
    question: PairedQuestion
    decides: bool


@dataclass(frozen=True)
class StudyClaim:
    """What is claimed; `needs` says whether all its questions must hold or any."""

    id: str
    claim: str
    released: str
    needs: Literal["all", "any"]
    before: str
    change: str


@dataclass(frozen=True)
class StudyPicture:
    """A line for each `series`, through arms at their `x`: a setting's value, or the mean of a measure."""

    title: str
    measure: str
    x: str
    arms: tuple[tuple[str, str, float | None], ...]  # name, series, place on the axis (None: the mean of measure x)


@dataclass(frozen=True)
class StudySize:
    """How much is trained; `seconds` is what a run takes on one core before any has been timed."""

    name: str
    seeds: int
    seconds: float
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class StudyRules:
    """A whole file. `sha256` names its bytes; `commit` put them down, None where no commit is known to have."""

    name: str
    title: str
    kind: Kind
    about: str
    settings: Mapping[str, Any]
    sizes: Mapping[str, StudySize]
    arms: Mapping[str, StudyArm]
    claims: tuple[StudyClaim, ...]
    asked: tuple[StudyAsked, ...]
    pictures: tuple[StudyPicture, ...]
    sha256: str
    commit: str | None

    def size(self, name: str) -> StudySize:
        """The size of that name."""
        if name not in self.sizes:
            raise BadValue(f"'{name}' is not a size of the study {self.name}. {did_you_mean(name, self.sizes)}")
        return self.sizes[name]


@cache
def study_names() -> tuple[str, ...]:
    """The studies that come with Toposcope."""
    return tuple(sorted(path.stem for path in DIRECTORY.glob("*.toml") if path != COMMITTED))


def find_rules(what: str | Path) -> StudyRules:
    """The rules of one of the studies, or of a file of one's own (its name ends in .toml)."""
    path = Path(what) if str(what).endswith(".toml") else DIRECTORY / f"{what}.toml"
    if path.parent == DIRECTORY and path.stem not in study_names():
        raise BadValue(f"there is no study '{what}'. {did_you_mean(str(what), study_names())}")
    return parse_rules(read_bytes(path, most=SETTINGS), path.stem, str(path))


def parse_rules(content: bytes, name: str, where: str) -> StudyRules:
    """Rules from the bytes of their file."""
    digest = hashlib.sha256(content).hexdigest()
    data = _Table(_toml(content, where), where)
    arms = {arm.name: arm for each in data.tables("arm") for arm in _arms(each)}
    claims = tuple(_claim(each) for each in data.tables("claim"))
    asked = tuple(one for each in data.tables("question") for one in _asked(each))
    pictures = tuple(_picture(each, arms) for each in data.tables("picture", least=0))
    kind = data.text("kind")
    if kind not in get_args(Kind):
        raise BadConfig(f"'kind' in {where} is '{kind}'; expected {', '.join(get_args(Kind))}.")
    sizes = data.table("size")
    made = StudyRules(
        name=name,
        title=data.text("title"),
        kind=kind,  # type: ignore[arg-type]
        about=data.text("about"),
        settings=data.mapping("settings"),
        sizes={each: _size(each, sizes.table(each)) for each in sizes.names()},
        arms=arms,
        claims=claims,
        asked=asked,
        pictures=pictures,
        sha256=digest,
        commit=_commit(name, digest),
    )
    data.done()
    _require_known(made, where)
    return made


def _require_known(rules: StudyRules, where: str) -> None:
    """Every name that is used is the name of something."""
    claims = {claim.id for claim in rules.claims}
    used = [(arm.parameters_of, set(rules.arms), "arm") for arm in rules.arms.values() if arm.parameters_of]
    for each in rules.asked:
        named = each.slope.arms if each.slope else tuple(each.of)
        used += [(name, set(rules.arms), "arm") for name in named]
        used.append((each.claim, claims, "claim"))
    for name, known, what in used:
        if name not in known:
            raise BadConfig(f"{where} asks about the {what} '{name}', which it does not have. "
                            f"{did_you_mean(str(name), list(known))}")  # fmt: skip
    for claim in rules.claims:
        if not any(each.decides and each.claim == claim.id for each in rules.asked):
            raise BadConfig(f"{where} has no question that decides the claim '{claim.id}'.")


def _commit(name: str, digest: str) -> str | None:
    """The commit in which rules with this hash were put down."""
    known = _toml(read_bytes(COMMITTED, most=SETTINGS), str(COMMITTED)).get(name) if COMMITTED.exists() else None
    return str(known["commit"]) if isinstance(known, dict) and known.get("sha256") == digest else None


def _toml(content: bytes, where: str) -> dict[str, Any]:
    try:
        return tomllib.loads(content.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise BadConfig(f"{where} is no TOML file ({error}).") from error


def _size(name: str, table: _Table) -> StudySize:
    found = StudySize(
        name, int(table.number("seeds")), table.number("seconds"), table.mapping("settings", default={})
    )
    table.done()
    return found


def _claim(table: _Table) -> StudyClaim:
    needs = table.text("needs", "all")
    if needs not in ("all", "any"):
        raise BadConfig(f"'needs' in {table.where} is '{needs}'; expected all or any.")
    found = StudyClaim(
        id=table.text("id"),
        claim=table.text("claim"),
        released=table.text("released"),
        needs=needs,  # type: ignore[arg-type]
        before=table.text("before", ""),
        change=table.text("change"),
    )
    table.done()
    return found


def _arms(table: _Table) -> list[StudyArm]:
    """One arm, or one for every combination of the values of `each` (settings) and `vary` (words of its texts)."""
    made = []
    for chosen, vary in product(_each(table), _each(table, "vary")):
        words = {**chosen, **vary}
        name = _filled(table.text("name"), words)
        ladder = table.mapping("ladder", default={})
        if len(ladder) > 1 or not all(isinstance(values, list) and values for values in ladder.values()):
            raise BadConfig(f"the ladder of '{name}' in {table.where} is one setting with a list of values.")
        steps = next(((key, tuple(values)) for key, values in ladder.items()), None)
        like = _filled(table.text("parameters_of", ""), words) or None
        given = table.mapping("settings", default={})
        settings = {key: _filled(value, words) if isinstance(value, str) else value for key, value in given.items()}
        series = _filled(table.text("series", ""), words)
        made.append(StudyArm(name, {**settings, **chosen}, steps, like, series, words))
    table.done()
    return made


def _asked(table: _Table) -> list[StudyAsked]:
    made = []
    for chosen in _each(table):
        of = {_filled(key, chosen): _number(weight, table) for key, weight in table.mapping("of", default={}).items()}
        slope = table.mapping("slope", default={})
        if bool(of) == bool(slope):
            raise BadConfig(f"a question in {table.where} has either 'of' (arms with weights) or a 'slope'.")
        question = PairedQuestion(
            table.text("direction"),  # type: ignore[arg-type]
            table.number("at", 0.0),
            table.number("bound", 0.0) or None,
            table.number("resolution", 0.0),
        )
        claim, name, measure = (_filled(table.text(key), chosen) for key in ("claim", "name", "measure"))
        line = _slope(_Table(slope, table.where), chosen) if slope else None
        made.append(StudyAsked(claim, name, measure, of, line, question, table.flag("decides", default=True)))
    table.done()
    return made


def _slope(table: _Table, chosen: Mapping[str, Any]) -> Slope:
    arms = tuple(_filled(name, chosen) for name in table.texts("arms"))
    doses = tuple(_number(value, table) for value in table.listed("doses", default=[]))
    dose = table.text("dose", "") or None
    if len(arms) < 2 or bool(doses) == bool(dose) or (doses and len(doses) != len(arms)):
        raise BadConfig(f"a slope in {table.where} needs two arms or more, and a 'dose' or as many 'doses'.")
    table.done()
    return Slope(arms, dose, doses)


def _picture(table: _Table, arms: Mapping[str, StudyArm]) -> StudyPicture:
    """Arms of the `series` that are named, at the value of `x` that they vary; `x` may be a measure instead."""
    x, measure, series = table.text("x"), table.text("measure"), table.texts("series")
    chosen = []
    for arm in arms.values():
        if arm.series in series:
            place = arm.varied.get(x)
            chosen.append((arm.name, arm.series, None if place is None else _number(place, table)))
    found = StudyPicture(table.text("title"), measure, x, tuple(chosen))
    table.done()
    return found


def _each(table: _Table, key: str = "each") -> list[dict[str, Any]]:
    axes = table.mapping(key, default={})
    for name, values in axes.items():
        if not isinstance(values, list) or not values:
            raise BadConfig(f"'{key}' in {table.where} has no list of values for '{name}'.")
    return [dict(zip(axes, combination, strict=True)) for combination in product(*axes.values())]


def _number(value: Any, table: _Table) -> float:
    return _Table({"number": value}, table.where).number("number")


def _filled(text: str, chosen: Mapping[str, Any]) -> str:
    """The text with {name} replaced by the value that was chosen for it."""
    for name, value in chosen.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text


class _Table:
    """A part of the file, every key of which must be asked for."""

    def __init__(self, data: Any, where: str) -> None:
        if not isinstance(data, dict):
            raise BadConfig(f"{where} holds {data!r:.60}; expected a table.")
        self._data, self.where, self._seen = data, where, set[str]()

    def names(self) -> list[str]:
        return list(self._data)

    def done(self) -> None:
        for key in self._data:
            if key not in self._seen:
                raise BadConfig(f"{self.where} has '{key}', which is no rule. {did_you_mean(key, self._seen)}")

    def _get(self, key: str, default: Any, wanted: Callable[[Any], bool], words: str) -> Any:
        self._seen.add(key)
        value = self._data.get(key, default)
        if value is None or not wanted(value):
            raise BadConfig(f"'{key}' in {self.where} is {value!r:.60}; expected {words}.")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        return str(self._get(key, default, lambda value: isinstance(value, str), "words")).strip()

    def number(self, key: str, default: float | None = None) -> float:
        plain = lambda value: isinstance(value, int | float) and not isinstance(value, bool)  # noqa: E731
        return float(self._get(key, default, plain, "a number"))

    def flag(self, key: str, *, default: bool) -> bool:
        return bool(self._get(key, default, lambda value: isinstance(value, bool), "true or false"))

    def listed(self, key: str, default: list[Any] | None = None) -> Sequence[Any]:
        return list(self._get(key, default, lambda value: isinstance(value, list), "a list"))

    def texts(self, key: str) -> list[str]:
        return [str(each) for each in self.listed(key)]

    def mapping(self, key: str, default: dict[str, Any] | None = None) -> dict[str, Any]:
        return dict(self._get(key, default, lambda value: isinstance(value, dict), "a table"))

    def table(self, key: str) -> _Table:
        return _Table(self.mapping(key), f"{self.where} ({key})")

    def tables(self, key: str, least: int = 1) -> list[_Table]:
        found = self.listed(key, [])
        if len(found) < least:
            raise BadConfig(f"{self.where} has no [[{key}]].")
        return [_Table(each, f"{self.where} ({key} {number})") for number, each in enumerate(found)]
