"""Probe: do the frequencies follow the length of the text as the configuration says?

Texts just below, at and above the original context, longer ones, then shorter ones again; and a cache that is filled
within the original context and read behind it. What transformers' own classes do otherwise than the configuration
says is told apart from what only this model does: a fresh small copy of the class is asked the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toposcope.checkpoints.live import view
from toposcope.checkpoints.view import Model
from toposcope.checks.findings import Finding, say_layers
from toposcope.core.progress import Progress, steps
from toposcope.live.crossing import crossed
from toposcope.live.reference import fresh
from toposcope.live.running import Running
from toposcope.live.stretched import LayerTurn, Rule, by_positions, constant, in_texts, rules_of
from toposcope.live.subject import LiveSubject

_ORIGINAL = 32  # tokens of the original context of the copy
_KEPT = ("above, after longer", "at, after longer")  # where transformers keeps the frequencies of a longer text
_CACHED = ("cache", "generate")
_RENEWED = ("phi3", "phimoe", "phi4_multimodal")  # where transformers' `generate` computes the cache anew
_BUGS = {"longrope": "longrope-choice", "dynamic": "dynamic-not-reset"}
_PLACES = {
    "short": "in a short text of {} tokens",
    "below": "just below the original context ({} tokens)",
    "at": "at the original context ({} tokens)",
    "above": "just above the original context ({} tokens)",
    "longest": "in a long text of {} tokens",
    "above, after longer": "above the original context ({} tokens), after a longer text",
    "at, after longer": "at the original context ({} tokens), after a longer text",
    "below, after longer": "below the original context ({} tokens), after a longer text",
    "short, after longer": "in a short text of {} tokens, after a longer one",
    "cache": "with a cache that reaches across the original context ({} tokens), keys cached before",
    "generate": "in generate across the original context ({} tokens), keys cached before",
}
_CURES = {
    "longrope-choice": "Choose between short and long factors by the length of the text itself: long ones from the "
    "first token behind the original context on.",
    "dynamic-not-reset": "Compute the frequencies anew from the length of each text; one that fits the original "
    "context has the original ones.",
    "cache-stale": "Compute the cache anew when a text outgrows the original context, or keep keys unturned in it.",
    None: "Let the frequencies follow the configuration at every length.",
}


@dataclass(frozen=True, eq=False)
class Looked:
    """What one rule of a model was seen to do."""

    rule: Rule
    layers: Mapping[str, tuple[LayerTurn, ...]]  # by what was run: the layers looked at
    by: str  # how lengths were given
    notes: tuple[str, ...]

    @property
    def wrong(self) -> dict[str, tuple[LayerTurn, ...]]:
        """Where layers turn by other frequencies than they should."""
        found = {key: tuple(each for each in seen if not each.right) for key, seen in self.layers.items()}
        return {key: seen for key, seen in found.items() if seen}

    @property
    def readable(self) -> bool:
        """Whether the first, short text was turned by frequencies that are known at all."""
        first = self.layers.get("short", ())
        return bool(first) and all(each.known for each in first)

    @property
    def constant(self) -> bool:
        """Whether short and long texts turn alike, though not by frequencies that are known."""
        return constant(self.layers.get("short", ()), self.layers.get("longest", ()))


def lengths(running: Running, model: Model, progress: Progress | None = None) -> list[Finding]:
    """Whether frequencies follow the length of the text, as findings; none where nothing turns."""
    subject = LiveSubject.of(running, model)
    rules = rules_of(subject.layers, model.spec.context)
    step = steps(progress, "lengths of text", len(rules))
    found: list[Finding] = []
    for rule in rules:
        found += _findings(running, model, _look(subject, rule))
        step()
    return found


def _look(subject: LiveSubject, rule: Rule) -> Looked:
    """Texts of all lengths, told by positions and (where affordable) real; then the cache; at last a short text.

    A model that keeps what long texts did to it cannot be asked twice.
    """
    notes: list[str] = []
    running = subject.running
    told = by_positions(subject, rule) if running.takes_positions else {}
    keeps = _right(told, "short") and not _right(told, "short, after longer")
    real = in_texts(subject, rule) if not told or (rule.kind != "fixed" and not keeps) else {}
    seen, by = told, "the position ids of a few tokens"
    if len(real) > 1 and (not told or any(not _right(told, key) and _right(real, key) for key in real)):
        seen, by = real, "texts that really were so long"
        if told:
            notes.append("Position ids do not decide by which length this model chooses; real texts were run.")
    elif len(real) > 1:
        by += " and texts that really were so long"
        seen = {key: [*told.get(key, ()), *real.get(key, ())] for key in rule.lengths}
    looked = {key: tuple(each) for key, each in seen.items()}
    if all(_right(looked, key) for key in looked if key not in _KEPT):
        cached, why = crossed(subject, rule)
        looked |= {key: tuple(each) for key, each in cached.items()}
        notes += why
    running(subject.text.ids(1, 2))  # so that nothing of the long texts stays
    return Looked(rule, looked, by, tuple(notes))


def _right(series: Mapping[str, Sequence[LayerTurn]], key: str) -> bool:
    return all(each.right for each in series.get(key, ()))


def _findings(running: Running, model: Model, looked: Looked) -> Iterator[Finding]:
    rule, where = looked.rule, say_layers(looked.rule.layers, len(model.layers))
    if not looked.readable and rule.kind != "fixed" and looked.constant:
        yield _finding(model, looked, _BUGS.get(rule.kind), ["short"], reference=False)
        return
    if not looked.readable:
        yield Finding(
            "lengths",
            "cannot_tell",
            "whether frequencies follow the length of the text could not be read",
            f"In {where} not even a short text turns by frequencies that the configuration knows, so other lengths "
            "tell nothing.",
            layers=rule.layers,
            evidence=_evidence(None),
        )
        return
    wrong = looked.wrong
    usual = _usual(running, rule, wrong)
    for bug, keys in _by_bug(rule, [key for key in wrong if key not in usual]).items():
        yield _finding(model, looked, bug, keys, reference=False)
    for bug, keys in _by_bug(rule, [key for key in wrong if key in usual]).items():
        yield _finding(model, looked, bug, keys, reference=True)
    if set(wrong) <= set(usual):
        tried = {key: seen[0].length for key, seen in looked.layers.items() if seen and key not in wrong}
        changes = "do not change with" if rule.kind == "fixed" else "follow"
        yield Finding(
            "lengths",
            "ok",
            f"frequencies {changes} the length of the text, as configured",
            f"In {where}, by {looked.by}: {', '.join(map(str, tried.values()))} tokens, in this order. "
            + " ".join(looked.notes),
            layers=rule.layers,
            evidence=_evidence(None, tried=tried, by=looked.by, notes=looked.notes),
        )


def _by_bug(rule: Rule, keys: Sequence[str]) -> dict[str | None, list[str]]:
    found: dict[str | None, list[str]] = {}
    for key in keys:
        found.setdefault("cache-stale" if key in _CACHED else _BUGS.get(rule.kind), []).append(key)
    return found


def _usual(running: Running, rule: Rule, wrong: Mapping[str, Sequence[LayerTurn]]) -> set[str]:
    """What of it a fresh copy of transformers' class does as well, among what it is known to do."""
    known = {key for key in wrong if key in _CACHED or (rule.kind == "dynamic" and key in _KEPT)}
    if getattr(running.config, "model_type", None) in _RENEWED:
        known.discard("generate")
    if not known:
        return set()
    context = _ORIGINAL if rule.kind == "dynamic" else 4 * _ORIGINAL
    copy = fresh(running, original_max_position_embeddings=_ORIGINAL, max_position_embeddings=context)
    if copy is None:
        return set()
    described = view(copy.model)
    other = LiveSubject.of(copy, described)
    same = [each for each in rules_of(other.layers, described.spec.context) if each.kind == rule.kind]
    return {key for each in same for key in _look(other, each).wrong} & known


def _finding(model: Model, looked: Looked, bug: str | None, keys: Sequence[str], *, reference: bool) -> Finding:
    wrong = {key: looked.wrong[key] for key in keys}
    layers = tuple(sorted({each.layer for seen in wrong.values() for each in seen}))
    told = "; ".join(
        f"{_PLACES[key].format(seen.length)}: {seen.seen} instead of {seen.expected}"
        for key, (seen, *_) in wrong.items()
    )
    after = " So does a fresh copy of transformers' own class." if reference else ""
    first = next(iter(wrong.values()))[0]
    return Finding(
        "lengths",
        "warning" if reference else "fault",
        {
            "cache-stale": "keys in the cache keep the frequencies of a shorter text",
            "longrope-choice": "short and long factors are not chosen by the length of the text",
            "dynamic-not-reset": "dynamic frequencies do not follow the length of the text",
            None: "frequencies change with the length of the text, which the configuration does not say",
        }[bug],
        f"In {say_layers(layers, len(model.layers))} queries or keys turn by other frequencies than those of the "
        f"text: {told}. Lengths were given by {looked.by}.{after} {' '.join(looked.notes)}".rstrip(),
        _CURES[bug],
        layers,
        _evidence(
            bug,
            **({"reference_behaviour": True} if reference else {}),
            original=looked.rule.original,
            layer=layers[0],
            position=first.length - 1,
            expected={key: seen[0].expected for key, seen in wrong.items()},
            seen={key: seen[0].seen for key, seen in wrong.items()},
        ),
    )


def _evidence(bug: str | None, **more: Any) -> dict[str, Any]:
    return {"probe": "lengths", "bug": bug, **more}
