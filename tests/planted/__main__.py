"""Plant all faults, look at all sound models, write docs/planted.md: `python -m tests.planted DIRECTORY`.

The models are trained in DIRECTORY, about 20 seconds of one core each, and kept there: a second call only looks.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import toposcope
from tests.planted.faults import FAULTS, IN_A_TABLE, IN_ROTARY, MINILM, SMOLLM2, Fault
from tests.planted.files import Planted, judged, plant, written
from tests.planted.models import CHOSEN_ON, HELD_BACK, ROOT, Trained, trained
from toposcope.core.statistics import share_interval

PAGE = ROOT / "docs" / "planted.md"
REAL = (SMOLLM2, MINILM, "rxnmapper", "rxnfp/bert_pretrained", "rxnfp/bert_ft", "rxnfp/bert_ft_10k_25s", "ruaccent")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.planted", description=__doc__)
    parser.add_argument("directory", type=Path, help="where the models are trained and kept")
    parser.add_argument("--trained-only", action="store_true", help="train nothing: use the models that are there")
    given = parser.parse_args()
    models = [each for each in (*CHOSEN_ON, *HELD_BACK) if not given.trained_only or _there(each, given.directory)]
    places = {model: trained(model, given.directory) for model in models}
    alarms = {name: _alarms(name) for name in REAL} | {model.name: _alarms(place) for model, place in places.items()}
    planted = {fault: _planted(fault, written(fault.model, given.directory)) for fault in FAULTS}
    held = {model: place for model, place in places.items() if model.held_out}
    in_lab = {
        fault: [_planted(fault, place) for model, place in held.items() if kind in model.encoding]
        for kind, faults in (("rope", IN_ROTARY), ("learned", IN_A_TABLE))
        for fault in faults
    }
    PAGE.write_text("\n".join(_page(places, alarms, planted, in_lab)) + "\n")
    wrong = [name for name, raised in alarms.items() if raised]
    missed = [fault.name for fault, result in planted.items() if result.outcome == "missed"]
    print(f"sound models with warnings: {wrong or 'none'}; faults called ok: {missed or 'none'}")
    return 1 if wrong or missed else 0


def _there(model: Trained, directory: Path) -> bool:
    return (directory / model.name / "model" / "config.json").exists()


def _alarms(model: str | Path) -> list[str]:
    """What `check` warns of in a sound model."""
    return [each.id for each in toposcope.check(model).findings if each.status in ("fault", "warning")]


def _planted(fault: Fault, sound: Path) -> Planted:
    with tempfile.TemporaryDirectory(dir=sound.parent) as directory:
        return judged(plant(fault, sound, Path(directory) / "planted"), fault.finding)


def _page(
    places: dict[Trained, Path],
    alarms: dict[str, list[str]],
    planted: dict[Fault, Planted],
    in_lab: dict[Fault, list[Planted]],
) -> Iterator[str]:
    yield "# Planted faults"
    yield ""
    yield "<!-- written by `python -m tests.planted DIRECTORY`; not by hand -->"
    yield ""
    counts = Counter(result.outcome for result in planted.values())
    yield (
        f"Of {len(planted)} faults, each planted in the files of a sound model, `check` finds "
        f"{_share(counts['found'], len(planted))}, leaves {counts['cannot tell']} open and calls {counts['missed']} "
        "in order. The first nineteen are those that it once called in order."
    )
    yield ""
    yield "| fault | planted in | outcome | as |"
    yield "|---|---|---|---|"
    for fault, result in planted.items():
        yield f"| {fault.name} | {fault.model} | {result.outcome} | {result.as_what} |"
    yield ""
    yield "## Sound models"
    yield ""
    held = [model for model in places if model.held_out]
    chosen = [model for model in places if not model.held_out]
    yield "Models that nothing is wrong with, and how many of them raise a warning or a fault:"
    yield ""
    yield "| models | raise | rate, 95 % interval |"
    yield "|---|---|---|"
    for words, names in (
        ("real: " + ", ".join(REAL), REAL),
        ("of the laboratory, on which the thresholds were chosen", [model.name for model in chosen]),
        ("of the laboratory, held out", [model.name for model in held]),
    ):
        raised = sum(bool(alarms[name]) for name in names)
        yield f"| {words} | {raised} of {len(names)} | {_interval(raised, len(names))} |"
    yield ""
    yield "Models of the laboratory (task, encoding, mask, seed; seeds from 100 on are held out):"
    yield ""
    yield ", ".join(f"`{model.name}`" for model in places) + "."
    yield ""
    yield "## The same faults in models of the laboratory"
    yield ""
    yield (
        "Each is planted in every held-out model that can have it. Two layers of width 64, trained for half a "
        "minute, show little of their rotation; 'cannot tell' is then the right answer."
    )
    yield ""
    yield "| fault | found | cannot tell | called in order | found, 95 % interval |"
    yield "|---|---|---|---|---|"
    for fault, results in in_lab.items():
        told = Counter(result.outcome for result in results)
        yield (
            f"| {fault.name} | {told['found']} of {len(results)} | {told['cannot tell']} | {told['missed']} | "
            f"{_interval(told['found'], len(results))} |"
        )


def _share(found: int, count: int) -> str:
    return f"{found} ({_interval(found, count)})"


def _interval(found: int, count: int) -> str:
    if not count:
        return ""
    low, high = share_interval(found, count)
    return f"{low:.0%} to {high:.0%}"


if __name__ == "__main__":
    sys.exit(main())
