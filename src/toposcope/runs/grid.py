"""What a sweep is made of: lists of names as users write them, and the grid of runs they span."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from toposcope.core.errors import BadValue, did_you_mean
from toposcope.runs.jobs import Job

if TYPE_CHECKING:
    from toposcope.lab.config import RunConfig

_CONTINUED = re.compile(r"\s*([\w-]+\s*=.*|\d*\s*-?\s*\d*)\s*")  # a parameter (factor=8) or a range (0-1, 3, 1-)
MOST_SEEDS = 100_000
SETTINGS: Mapping[str, type] = {
    **dict.fromkeys(("steps", "batch", "width", "layers", "heads", "kv_heads", "head_dim", "ff"), int),
    **dict.fromkeys(("loops", "latent_rank", "curve_points", "parameters"), int),
    **dict.fromkeys(("lr", "weight_decay", "dropout", "logit_scale"), float),
    **dict.fromkeys(("causal", "probes", "shared_key", "pairs", "ablation"), bool),
}


def split_encodings(given: str | Iterable[str]) -> list[str]:
    """The encodings of a list such as `rope:base=500,scaling=yarn,none`, each once.

    Where a semicolon is used, only semicolons separate: so mixtures of several encodings are written. Otherwise a
    comma separates too, except
    * before `name=value` or a range: these belong to the encoding before (rope:base=500,scaling=linear);
    * before a `none` that follows an '@' (rope@heads:0-1,none is one model).
    """
    found: list[str] = []
    for text in (given,) if isinstance(given, str) else given:
        if ";" in text:
            found += text.split(";")
            continue
        pieces: list[str] = []
        for piece in text.split(","):
            if pieces and _CONTINUED.fullmatch(piece):
                pieces[-1] += f",{piece}"
            else:
                pieces.append(piece)
        whole: list[str] = []
        for piece in pieces:
            if piece.strip() == "none" and whole and "@" in whole[-1] and not whole[-1].endswith("none"):
                whole[-1] += f",{piece}"
            else:
                whole.append(piece)
        found += whole
    names = [name.strip().strip(",").strip() for name in found]
    return list(dict.fromkeys(name for name in names if name))


def split_names(given: str | Iterable[str]) -> list[str]:
    """Names separated by commas, each once."""
    texts = (given,) if isinstance(given, str) else given
    names = (name.strip() for text in texts for name in text.replace(";", ",").split(","))
    return list(dict.fromkeys(name for name in names if name))


def read_seeds(given: str | int | Iterable[int]) -> list[int]:
    """`5` means the seeds 0 to 4; `0-4,7`, `7-7` and a list of numbers mean exactly those."""
    if not isinstance(given, str | int):
        return list(dict.fromkeys(given))
    text = str(given)
    wrong = BadValue(f"'{text[:80]}' is not a choice of seeds. Write how many (5 means 0 to 4), or which: 0-4,7.")
    if text.strip().isdecimal() and len(text.strip()) <= 9:
        count = int(text)
        if not 1 <= count <= MOST_SEEDS:
            raise BadValue(f"{count} seeds were asked for. Give a number from 1 to {MOST_SEEDS}, or a list: 0-4,7.")
        return list(range(count))
    seeds: dict[int, None] = {}
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.strip().isdecimal() or (dash and not last.strip().isdecimal()):
            raise wrong
        if max(len(first.strip()), len(last.strip())) > 10:
            raise wrong
        start, stop = int(first), int(last) if dash else int(first)
        if stop < start or stop - start >= MOST_SEEDS:
            raise wrong
        seeds |= dict.fromkeys(range(start, stop + 1))
    return list(seeds)


def grid(
    tasks: Sequence[str],
    encodings: Sequence[str],
    seeds: Sequence[int],
    *,
    profile: str = "laptop-s",
    variant: str = "described",
    changes: Mapping[str, Any] | None = None,
) -> list[RunConfig]:
    """All runs, seed by seed: the whole table is there after the first seed, and every further one sharpens it.

    `changes` are further settings of every run, as `read_changes` gives them.
    """
    from toposcope.lab.config import RunConfig

    for what, names in (("task", tasks), ("encoding", encodings), ("seed", seeds)):
        if not names:
            raise BadValue(f"no {what} was given. At least one task, one encoding and one seed are needed.")
    made = (
        RunConfig(task, encoding, seed, profile, variant, **(changes or {}))  # type: ignore[arg-type]
        for seed in seeds
        for task in tasks
        for encoding in encodings
    )
    return list({config.key(): config for config in made}.values())


def read_changes(given: Iterable[str]) -> dict[str, Any]:
    """Settings written `steps=200`, `lr=1e-3`, `causal=true`; `task.between=10` for a parameter of the task."""
    changes: dict[str, Any] = {}
    options: list[tuple[str, int | float | bool]] = []
    for text in given:
        name, equals, written = (part.strip() for part in text.partition("="))
        if not equals or not name or not written:
            raise BadValue(f"'{text}' is not a setting. Write name=value, such as steps=200 or task.between=10.")
        if name.startswith("task."):
            options.append((name.removeprefix("task."), _value(name, written)))
        elif name in SETTINGS:
            changes[name] = _value(name, written, SETTINGS[name])
        else:
            raise BadValue(f"a run has no setting '{name}'. {did_you_mean(name, SETTINGS)}")
    return changes | ({"task_options": tuple(options)} if options else {})


def changes(settings: Mapping[str, Any] | Iterable[str] = (), quirks: Iterable[str] = ()) -> dict[str, Any]:
    """Fields of a run's configuration from {"steps": 200} or ["steps=200"], and from quirks."""
    if isinstance(settings, Mapping):
        settings = [f"{name}={value}" for name, value in settings.items()]
    return read_changes(settings) | ({"quirks": tuple(quirks)} if tuple(quirks) else {})


def _value(name: str, written: str, kind: type | None = None) -> int | float | bool:
    flags = {"true": True, "yes": True, "false": False, "no": False}
    if kind in (None, bool) and written.lower() in flags:
        return flags[written.lower()]
    for each in (int, float):
        if kind in (None, each):
            with contextlib.suppress(ValueError):
                return each(written)
    words: dict[type | None, str] = {int: "a whole number", float: "a number", bool: "true or false"}
    wanted = words.get(kind, "a number, true or false")
    raise BadValue(f"'{name}' is {written}; expected {wanted}.")


def jobs(configs: Iterable[RunConfig]) -> list[Job]:
    """The runs as jobs for a queue."""
    return [Job(config.key(), "train", config.as_dict()) for config in configs]
