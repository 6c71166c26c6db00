"""docs/zoo.md: the catalogue in words, and what `check --live` made of every plant and every sound model."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.zoo.judge import Record
from tests.zoo.sound import controls
from toposcope.live.bugs import BUGS, Bug

PAGE = Path(__file__).parents[2] / "docs" / "zoo.md"
_DTYPES = ("float32", "bfloat16", "float16")

_HEAD = """# Rotary bugs that shipped

<!-- written by `python -m tests.zoo` (make zoo); not by hand -->

Rotary position encoding is ten lines of code, and nearly every project that wrote these lines has had them wrong at
some time. The model still answers; it is a little worse, or worse beyond some length, or only with a cache, only for
images, only in bfloat16. Below are {bugs} such bugs, each of which a public project shipped: what happened, how to
see it, how to avoid it.

[`toposcope check MODEL --live`](live.md) looks for all of them at once. It runs the model, recovers from its live
queries and keys the angle by which every pair of channels really turns, layer by layer, and compares this with what
the configuration says. In Python a model in memory is checked as it stands, patched or not: `toposcope.check(model)`;
its faults carry the names below as `evidence["bug"]`. `toposcope ls bugs` prints the list. In a clone,
`python -m tests.zoo theta-lost` plants a bug and checks it.

{contents}
"""

_PLANTS = """## What was planted, and what was found

Each bug was planted in sound tiny models of transformers {version}: {plants} plants, every bug in at least three
architectures and three settings (base, scaling, width of a head, context, pattern of layers). Configuration and
weights are those of the sound model; only what runs was changed. Before it counts, a plant proves by its outputs
alone that it is a bug of its kind (`tests/zoo/test_plants.py`): they differ where the report says, and agree where
it says so. *Found*: at least one fault. *Named*: a fault that says which bug it is. Where transformers' own class is
the broken one (cache-stale in Llama and Qwen3, which unlike Phi-3 keep their cache), the warning that says so counts.

| # | bug | plants | {heads} | seen by |
|---|---|---|{lines}|---|
"""

_SOUND = (
    "The same check on models that nobody broke: {families} of the {read} types that are read ([models](models.md)), "
    "built tiny and at random, then every scaling, the settings of all plants before anything was planted, and "
    "SmolLM2 in float32: {kinds}. Where parity calls it a fault that tokens stand elsewhere, the outputs of the "
    "model are asked, which know nothing of the check: where they too differ between one pass and the other ways of "
    "running, transformers' own class behaves so."
)
_SOUND_HEAD = """
| precision | models | nothing found | the reference's own | false alarms | not checked |
|---|---|---|---|---|---|
"""

_LIMITS = """## What this page does not show

- Plants are small changes to tiny random models. A bug in a kernel, in a converted file or on several devices looks
  the same to the check once the model runs, but was not planted here.
- A pair of channels that turns by less than ten thresholds over the whole context cannot be told from one that stands
  still. The check says so, and does not call it sound.
- A bug that leaves queries, keys, their positions and the logits' scale as configured is not one of position.
- A bug that is patched into a class, not into a model, is in a fresh copy of that class too. Where parity and lengths
  ask such a copy, they call the bug the class's own, and warn.
- What two programs share is not compared: where the configuration itself is wrong, the model agrees with it.
  `toposcope check` without `--live` looks at configuration and weights.
"""


def listed(record: Record, text: str) -> bool:
    """Whether a page lists this case among those missed, not checked, or alarming without a reason."""
    lines = (line for line in text.splitlines() if line.startswith("- ") and not line.startswith("- named"))
    return any(record.where in line for line in lines)


def write(records: Sequence[Record], version: str) -> str:
    """The page."""
    plants = [each for each in records if each.case == "plant"]
    sound = [each for each in records if each.case != "plant"]
    contents = "\n".join(f"{bug.number}. [{bug.title}](#{bug.key})" for bug in BUGS)
    parts = [_HEAD.format(bugs=len(BUGS), contents=contents), *(_section(bug, plants) for bug in BUGS)]
    parts += [_planted(plants, version), _by_probe(plants), _misses(plants)]
    parts += [_controls(sound), _LIMITS]
    return "\n".join(parts)


def _section(bug: Bug, plants: Sequence[Record]) -> str:
    seen = ", ".join(f"[{name}]({link})" for name, link in zip(bug.seen_in, bug.links, strict=True))
    lines = [
        f'<a id="{bug.key}"></a>',
        "",
        f"## {bug.number}. {bug.title}",
        "",
        _wrapped(
            f"**What happened.** {bug.what_happened} Seen in {seen}."
            + (f" Reported: {bug.reported}." if bug.reported else "")
        ),
        "",
        _wrapped(f"**How to see it.** {bug.how_to_see}"),
    ]
    example = next((each for each in plants if each.bug == bug.key and each.named and each.faults), None)
    if example is not None:
        said = next(each for each in example.faults if each.bug == bug.key)
        lines += [
            f"`toposcope check MODEL --live` (probe `{said.probe}`; planted in {example.name}, {example.setting}):",
            "",
            "```text",
            f"fault  {said.title}",
            textwrap.indent(_wrapped(said.explanation, 90), " " * 7),
            "```",
        ]
    lines += ["", _wrapped(f"**How to avoid it.** {bug.how_to_avoid}"), ""]
    return "\n".join(lines)


def _wrapped(text: str, width: int = 118) -> str:
    indent = "  " if text.startswith("- ") else ""
    return textwrap.fill(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _planted(plants: Sequence[Record], version: str) -> str:
    dtypes = [each for each in _DTYPES if any(record.dtype == each for record in plants)]
    out = _PLANTS.format(
        version=version,
        plants=len({(each.bug, each.name, each.setting) for each in plants}),
        heads=" | ".join(f"{each}: found | named" for each in dtypes),
        lines="|".join("---|---" for _ in dtypes),
    )
    rows = []
    for bug in BUGS:
        mine = [each for each in plants if each.bug == bug.key]
        cells = [str(bug.number), f"[{bug.key}](#{bug.key})", str(len({(e.name, e.setting) for e in mine}))]
        for dtype in dtypes:
            here = [each for each in mine if each.dtype == dtype]
            cells += [f"{sum(e.found for e in here)} of {len(here)}", f"{sum(e.named for e in here)} of {len(here)}"]
        probes = Counter(probe for each in mine for probe in each.probes)
        cells.append(", ".join(probe for probe, _ in probes.most_common()))
        rows.append(f"| {' | '.join(cells)} |")
    totals = ["", "all", str(len({(e.bug, e.name, e.setting) for e in plants}))]
    kinds = []
    for dtype in dtypes:
        here = [each for each in plants if each.dtype == dtype]
        totals += [f"{sum(e.found for e in here)} of {len(here)}", f"{sum(e.named for e in here)} of {len(here)}"]
        by_bug = [[each for each in here if each.bug == bug.key] for bug in BUGS]
        whole = sum(bool(mine) and all(each.found for each in mine) for mine in by_bug)
        named = sum(bool(mine) and all(each.named for each in mine) for mine in by_bug)
        kinds.append(f"{dtype}: {whole} of {len(BUGS)} kinds found in every plant, {named} named in every plant")
    rows.append(f"| {' | '.join(totals)} | |")
    return out + "\n".join(rows) + "\n\n" + "\n".join(f"- {each}" for each in kinds) + "\n"


def _by_probe(plants: Sequence[Record]) -> str:
    """Which probe raised a fault for which bug: some are seen by one alone."""
    lines = [
        "## Which probe sees which",
        "",
        "Counts of plants in which a probe raised a fault, all precisions together. Where one column alone has a",
        "number, a check without that probe would have missed the bug: what shows with a cache, beyond a length,",
        "with axes that differ, or far out in low precision.",
        "",
    ]
    probes = sorted({probe for each in plants for probe in each.probes})
    lines += [f"| bug | {' | '.join(probes)} |", f"|---|{'---|' * len(probes)}"]
    for bug in BUGS:
        mine = [each for each in plants if each.bug == bug.key]
        counts = Counter(probe for each in mine for probe in each.probes)
        lines.append(f"| {bug.key} | {' | '.join(str(counts[probe] or '') for probe in probes)} |")
    return "\n".join([*lines, ""])


def _misses(plants: Sequence[Record]) -> str:
    lines = ["## Missed, and named otherwise", ""]
    for each in plants:
        if each.error:
            lines.append(f"- not checked: {each.where}: {each.error}")
        elif not each.found:
            lines.append(f"- missed: {each.where}")
        elif not each.named:
            lines.append(f"- found, not named: {each.where}: {'; '.join(sorted({e.title for e in each.faults}))}")
        elif each.others:
            lines.append(f"- named, and also {', '.join(each.others)}: {each.where}")
    return "\n".join([*lines, *([] if len(lines) > 2 else ["None."]), ""])


def _controls(sound: Sequence[Record]) -> str:
    kinds = Counter(each.case for each in sound)
    told = _SOUND.format(
        families=len({each.name for each in sound if each.case == "families"}),
        read=sum(each.kind == "families" for each in controls()),
        kinds=", ".join(f"{count} checks of {kind}" for kind, count in kinds.items()) or "none yet",
    )
    rows = []
    for dtype in _DTYPES:
        here = [each for each in sound if each.dtype == dtype]
        if here:
            checked = [each for each in here if not each.error]
            own = sum(map(reference_own, checked))
            alarms = sum(bool(each.faults) and not reference_own(each) for each in checked)
            cells = (dtype, len(here), len(checked) - alarms - own, own, alarms, len(here) - len(checked))
            rows.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(["## Sound models", "", _wrapped(told), _SOUND_HEAD + "\n".join(rows), "", *_listed(sound)])


def reference_own(record: Record) -> bool:
    """Whether transformers' own class does what was told: the check says so, or the model's outputs do."""
    proven = bool(record.outputs) and all(each.probe == "parity" for each in record.faults)
    return proven or (bool(record.own) and not record.faults)


def _listed(sound: Sequence[Record]) -> Iterator[str]:
    yield "### False alarms\n"
    alarms = [each for each in sound if each.faults and not reference_own(each)]
    yield from (f"- {each.where}: {'; '.join(sorted({said.title for said in each.faults}))}" for each in alarms)
    if not alarms:
        yield "None."
    yield "\n### What the reference itself does\n"
    yield "Told so by the check, which asks a fresh copy of the class; where figures stand, told as a fault.\n"
    yield from _own_by_title(sound)
    yield "\n### Not checked\n"
    reasons: dict[str, list[str]] = {}
    for each in sound:
        if each.error:
            reasons.setdefault(_short(each), []).append(f"{each.name} ({each.dtype})")
    yield from (_wrapped(f"- {reason}: {', '.join(names)}") for reason, names in reasons.items())
    yield "" if reasons else "None.\n"


def _own_by_title(sound: Sequence[Record]) -> Iterator[str]:
    """What transformers' own classes do, each with the models that do it."""
    groups: dict[str, list[str]] = {}
    for each in sound:
        if reference_own(each):
            titles = "; ".join(sorted({said.title for said in each.faults or each.own}))
            said = f": outputs differ by {each.outputs}" if each.outputs else ""
            groups.setdefault(titles, []).append(f"{each.name} ({each.dtype}{said})")
    yield from (_wrapped(f"- {title}: {', '.join(names)}") for title, names in groups.items())
    if not groups:
        yield "None."


def _short(record: Record) -> str:
    """Why a model was not checked, without its own name in it."""
    kind, _, told = record.error.partition(": ")
    if kind == "UnknownFamily":
        return "UnknownFamily, no adapter, and not measured as it is in memory"
    return f"{kind}, takes no token ids" if "takes no token ids" in told else f"{kind}: {told[:100]}"
