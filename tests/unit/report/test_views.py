"""What views put on a page: units on axes, names that fit, tables and legends of nothing but what is there."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.report import making
from toposcope.core.result import Provenance, Subject
from toposcope.core.statistics import from_error
from toposcope.models.ablation.result import AblateResult, HeadDamage, PairDamage, TextLoss
from toposcope.models.ablation.screen import Screen
from toposcope.models.loss import Bin, Condition
from toposcope.models.tracing import SEQUENCES, TOKENS
from toposcope.models.tracing.result import Gap, Spread, TraceResult
from toposcope.models.tracing.stream import Mean
from toposcope.report import charts, read_results, terminal
from toposcope.report.blocks import Chart, Command, HeadMap, Listing, Page, Row, Summary, shown
from toposcope.report.drawing import page_of
from toposcope.report.page import page_html
from toposcope.studies.reproduce.result import ReproduceResult

STUDIES = sorted((Path(__file__).parents[3] / "docs" / "studies").glob("*.json"))


def blocks(page: Page, kind: type) -> list[Any]:
    """All blocks of a kind, those of rows too."""
    inside = [each for section in page.sections for each in section.blocks]
    flat = [part for each in inside for part in (each.blocks if isinstance(each, Row) else (each,))]
    return [each for each in flat if isinstance(each, kind)]


def titles(spec: dict[str, Any], channel: str) -> set[str]:
    found = {spec["encoding"][channel].get("title")} if channel in spec.get("encoding", {}) else set()
    return (found | {each for part in spec.get("layer", ()) for each in titles(part, channel)}) - {None}


@pytest.mark.parametrize("file", STUDIES, ids=lambda file: file.stem)
def test_the_axes_of_a_study_say_what_and_in_which_unit(file: Path) -> None:
    (result,) = read_results([file])
    page = page_of([result])
    asked = {each.measure for each in result.study.answers}
    drawn = [title for chart in blocks(page, Chart) for title in titles(chart.spec, "x") | titles(chart.spec, "y")]
    assert drawn
    assert not {"bits", "noise", "longer", "shuffled"} & set(drawn)
    if asked & {"bits", "noise", "longer", "shuffled"}:
        assert any(title.endswith(", bits per byte") for title in drawn)


def told(study: str) -> str:
    """All that the page of a study of the documentation says."""
    page = page_of(read_results([path for path in STUDIES if path.stem == study]))
    return f"{page.facts} {page.sections}"


def test_no_difference_in_part_is_said_to_be_that() -> None:
    assert told("counting").count("o difference here, in part") >= 4
    assert "that is so of some of the estimates" in told("counting")
    assert "here, in part" not in told("deposit")


def test_a_mean_that_only_rounding_keeps_from_zero_is_zero() -> None:
    assert "steps to 90 %: 0 ± 0 steps (8)" in told("contraction")
    page = page_of(read_results([path for path in STUDIES if path.stem == "contraction"]))
    tables = [name for name in page.tables if name.startswith(("questions", "numbers"))]
    means = [mean for table in tables for mean in page.tables[table]["mean"]]
    assert 0.0 in means
    assert not [mean for mean in means if 0 < abs(mean) < 1e-9]


@pytest.mark.parametrize("file", STUDIES, ids=lambda file: file.stem)
def test_every_question_of_a_study_stands_in_the_table_of_its_claim(file: Path) -> None:
    results = read_results([file])
    (study,) = (result.study for result in results if isinstance(result, ReproduceResult))
    assert study is not None
    page = page_of(results)
    listings = [
        block
        for section in page.sections
        if section.title == "Every question"
        for block in section.blocks
        if "outcome" in {column.heading for column in block.columns}
    ]
    shown = [
        (claim, outcome.removesuffix(" (beside)"), not outcome.endswith(" (beside)"))
        for listing in listings
        for claim, outcome in zip(*(page.tables[listing.table][key] for key in ("claim", "said")), strict=True)
    ]
    assert sorted(shown) == sorted((each.claim, str(each.outcome), each.decides) for each in study.answers)
    assert len(listings) == len({each.claim for each in study.answers})


def test_every_measure_of_a_study_has_words_and_a_unit_of_its_own() -> None:
    measures = pytest.importorskip("toposcope.studies.reproduce.measures", reason="needs torch")
    from toposcope.studies.reproduce.words import MEASURES

    known = {**measures.TRAIN, **measures.BYTES, **measures.FLOW}
    assert set(known) == set(MEASURES)
    assert all(each.unit == MEASURES[name][1] for name, each in known.items())


def test_a_long_name_beside_an_interval_is_broken_and_its_row_higher() -> None:
    long = "causal, together: the time with random:std=1 against none"
    short, broken = (
        charts.intervals("name", "x", "low", "high", order=order) for order in (["a", "b", "c"], ["a", "b", long])
    )
    assert "labelExpr" not in short["layer"][-1]["encoding"]["y"]["axis"]
    axis = broken["layer"][-1]["encoding"]["y"]["axis"]
    lines = json.loads(axis["labelExpr"].removesuffix("[datum.value]"))[long]
    assert " ".join(lines) == long
    assert max(map(len, lines)) <= charts.NAME
    assert broken["height"] > short["height"]


def test_an_encoding_without_a_kernel_is_not_in_the_legend_of_kernels(tmp_path: Path) -> None:
    words = ("spectrum", "rope", "sinusoidal", "--context", "64")
    page = page_of(read_results([_written(tmp_path, *words)]))
    (chart,) = [each for each in blocks(page, Chart) if each.title == "The kernel at each distance"]
    domain = chart.spec["layer"][-1]["encoding"]["color"]["scale"]["domain"]
    assert domain == list(dict.fromkeys(page.tables[chart.table]["encoding"])) == ["rope"]


def test_of_a_model_whose_tensors_were_not_read_no_hash_is_told(tmp_path: Path) -> None:
    from tests.unit.tiny import write_llama

    model = str(write_llama(tmp_path / "model"))
    of_settings, of_weights = (
        read_results([_written(tmp_path, *words)])[0].provenance.subjects[0]
        for words in (("spectrum", "--model", model, "--context", "64"), ("scan", model))
    )
    assert of_settings.sha256 == ""
    assert len(of_weights.sha256) == 64


def _written(place: Path, *words: str) -> Path:
    out = place / f"{words[0]}.json"
    making.command(*words, out=out)
    return out


def test_an_encoding_without_a_factor_has_no_columns_of_nothing(tmp_path: Path) -> None:
    page = page_of(read_results([_scanned(tmp_path, "none")]))
    (listing,) = [each for each in blocks(page, Listing) if each.title == "Kernels that would peak elsewhere"]
    for column in listing.columns:
        assert any(value is not None for value in page.tables[listing.table][column.key]), column.heading


@pytest.mark.parametrize("of", ["fast_share", "contrast", "margin"])
def test_the_page_of_a_scan_opens_at_the_head_that_is_listed_first(tmp_path: Path, of: str) -> None:
    (result,) = read_results([_scanned(tmp_path, "none")])
    hidden = {
        "fast_share": {},
        "contrast": {"fast_share": None},
        "margin": {"fast_share": None, "kernel": (), "peak_share": None},
    }[of]
    page = page_of([replace(result, heads=tuple(replace(head, **hidden) for head in result.heads))])
    (block,) = blocks(page, HeadMap)
    columns = page.tables[block.table]
    (opened,) = (i for i, first in enumerate(columns["shown_first"]) if first)
    assert columns[of][opened] == max(each for each in columns[of] if each is not None)
    name = f"{columns['layer'][opened]}.{columns['head'][opened]}"
    assert name in block.sentence
    if of == "fast_share":
        (ranked,) = (each for each in blocks(page, Listing) if each.title == "Heads by fast rotary pairs")
        assert page.tables[ranked.table]["name"][0] == name


def test_verdicts_of_a_scan_say_how_many_are_exact_only_where_some_are_not(tmp_path: Path) -> None:
    (result,) = read_results([_scanned(tmp_path, "none")])

    def columns(exact: bool) -> set[str]:
        heads = (replace(result.heads[0], exact=exact), *(replace(head, exact=True) for head in result.heads[1:]))
        found = blocks(page_of([replace(result, heads=heads)]), Listing)
        return {column.key for each in found if each.title == "Heads by verdict" for column in each.columns}

    assert "exact" not in columns(exact=True)
    assert "exact" in columns(exact=False)


def _scanned(place: Path, encoding: str) -> Path:
    making.scanned(place, "--encoding", encoding)
    return place / "scan.json"


def test_a_sure_difference_is_told_before_a_large_one_and_tables_hold_what_is_drawn() -> None:
    found = making.loss()
    own, other = found.conditions[:2]

    def one(name: str, difference: float, half: float) -> Condition:
        return replace(other, encoding=name, title=name, difference=difference, half_width=half)

    unsure = [one(f"rope:base={n}", n, 100.0) for n in range(5, 15)]
    result = replace(found, conditions=(own, *unsure, one("alibi", 0.01, 0.001)))
    page = page_of([result])
    (summary,) = blocks(page, Summary)
    assert "alibi" in summary.sentences[1]
    (chart,) = [each for each in blocks(page, Chart) if each.title == "Loss by position"]
    (listing,) = [each for each in blocks(page, Listing) if each.title == "The same in numbers"]
    drawn = list(dict.fromkeys(page.tables[chart.table]["encoding"]))
    assert [column.heading for column in listing.columns if column.key.startswith("loss ")] == drawn


def test_a_loss_by_position_is_told_of_enough_tokens() -> None:
    """The first 8 predicted tokens together: of the very first the interval may be wider than the loss is high."""
    found = making.loss()
    own = found.conditions[0]
    bins = (Bin(0, 0, 12.0, 2, 18.0), Bin(1, 1, 6.0, 2, 9.0), Bin(2, 3, 4.0, 4, 3.0), Bin(4, 7, 3.0, 8, 2.0))
    late = (Bin(8, 15, 2.5, 16, 0.5), Bin(16, 31, 2.25, 32, 0.25))

    def told(*bins: Bin, **changes: Any) -> str:
        made = replace(found, conditions=(replace(own, bins=bins),), **changes)
        return " ".join(blocks(page_of([made]), Summary)[0].sentences[1:])

    words = told(*bins, *late)
    assert "4.75" in words  # (2 x 12 + 2 x 6 + 4 x 4 + 8 x 3) / 16
    assert "2.25 ± 0.25" in words
    assert "18" not in words
    assert told(*bins, late[0]) == told(*bins, *late, predicts="masked token") == ""
    beyond = told(*bins, *late, context=16)
    assert re.findall(r"\d\.\d\d", beyond) == ["3.62", "2.25"]  # of the 32 tokens within, and those beyond


def test_bands_through_depth_stay_where_their_measure_can_be() -> None:
    from toposcope.report.views.trace_stream import BOUNDS, _within_bounds

    wide = Mean(0.5, 40.0)
    for name, (least, most) in BOUNDS.items():
        assert _within_bounds(name, wide) == (least, min(most, 40.5))
    assert _within_bounds("norm", wide) == (0.0, 40.5)


def test_equal_origins_are_told_once_and_a_table_without_words_has_no_caption() -> None:
    page = Page(title="t")
    page.add("A", Listing("", "", page.rows("a", [{"x": 1}]), (charts_column("x"),)))
    page.add("B", Listing("B", "", page.rows("b", [{"x": 1}]), (charts_column("x"),)))
    result = {
        "schema": "toposcope/train/2", "subjects": [], "options": {"max_steps": 3}, "seconds": 0.0,
        "toposcope": "0", "skipped": [],
    }  # fmt: skip
    html = page_html(page, [result] * 12)
    assert "<figcaption" not in html.partition("<body>")[2].partition("<script")[0]
    assert html.count("<h3>toposcope/train/2") == 1
    assert "time taken" not in html
    assert "<dt>max steps</dt>" in html


def charts_column(key: str) -> Any:
    from toposcope.report.blocks import Column

    return Column(key, key)


@pytest.mark.parametrize("how", [".2e", "+.2e"])
def test_nothing_is_nothing_in_every_format(how: str) -> None:
    assert shown(0.0, how) == "0"
    assert shown(1.0, how).endswith("1.00e+00")


# ------------------------------------------------------------------ trace
def test_every_set_of_patterns_has_one_character_of_its_own() -> None:
    found = making.traced()
    sets = [("first", "induction"), ("previous", "induction"), ("first",), ("previous", "self")]
    heads = tuple(replace(each, names=names) for each, names in zip(found.heads, sets, strict=True))
    patterns = {name: tuple(each.name for each in heads if name in each.names) for name in found.thresholds}
    page = page_of([replace(found, heads=heads, patterns=patterns)])
    letters = blocks(page, HeadMap)[0].measures[0].words
    assert len(set(letters.values())) == len(letters)
    assert all(len(letter) == 1 for letter in letters.values())
    assert set(page.tables[blocks(page, HeadMap)[0].table]["pattern"]) <= set(letters)


@pytest.mark.parametrize(
    ("name", "path", "text", "words"),
    [
        ("smollm2", "/a/SmolLM2.gguf", "my text.txt", ["smollm2", "--text", "my text.txt"]),
        ("a model", "here/a model", "wiki", ["here/a model", "--text", "wiki"]),
        ("org/name", "/cache/snapshots/abc", "random", ["org/name"]),  # a loss needs a text
    ],
)
def test_the_next_command_can_be_pasted(name: str, path: str, text: str, words: list[str]) -> None:
    asked = Provenance((Subject(name, path, "torch", "llama", ""),), {"text": text, "begin": 0, "lines": False})
    (found,) = blocks(page_of([replace(making.traced(), provenance=asked)]), Command)
    *asks, _, sequences, many = shlex.split(found.line)
    assert asks == ["toposcope", "ablate", *words, "--heads"]
    assert (sequences, int(many)) > ("--sequences", 4)  # more than the default, which seldom tells a damage from 0


def asked(**options: Any) -> Provenance:
    """Where a result of a model m comes from."""
    return Provenance((Subject("m", "m", "torch", "llama", ""),), options)


def positional(shares: Sequence[float]) -> TraceResult:
    """A trace of heads 0.0, 0.1, ... with these shares of position."""
    made = making.traced()
    heads = [
        replace(made.heads[0], head=number, position=Spread(share, share, share, 2))
        for number, share in enumerate(shares)
    ]
    origin = asked(text="wiki", begin=0, lines=False, seed=0, device="auto", dtype="auto")
    return replace(made, heads=tuple(heads), null_share=None, provenance=origin)


def test_a_trace_names_all_its_positional_heads() -> None:
    def sentence(shares: Sequence[float]) -> str:
        (found,) = [each for each in blocks(page_of([positional(shares)]), Summary)[0].sentences if " alone " in each]
        return str(found).partition(" Most of all")[0]

    def names(shares: Sequence[float]) -> list[str]:
        return re.findall(r"(?<![\d.])0\.\d+(?![\d%])", sentence(shares))

    assert names([0.6, 0.2, 0.9, 0.5]) == ["0.0", "0.2"]  # by their place, and those of more than half
    assert names([0.1, 0.2]) == []
    many = [0.51 + 0.001 * each for each in range(60)]
    assert names(many) == [f"0.{each}" for each in range(59, 47, -1)]
    assert "and 48 more" in sentence(many)
    (listing,) = [each for each in blocks(page_of([positional(many)]), Listing) if each.answer]
    assert "55" in listing.others
    assert [column.key for column in listing.columns][:2] == ["name", "position"]
    (listing,) = [each for each in blocks(page_of([positional([0.9, 0.1])]), Listing) if each.answer]
    assert listing.others == ""


@pytest.mark.parametrize(
    ("changed", "encoding", "words", "said"),
    [
        ({}, None, "", False),
        ({"tokens": 256, "sequences": 4, "dense_limit": 9}, None, "", False),
        ({"tokens": 128}, None, "", True),
        ({"sequences": 2}, None, "", True),
        ({}, "none", "", True),
        ({"seed": 3, "dtype": "bfloat16", "device": "cpu"}, None, "--seed 3 --device cpu --dtype bfloat16", False),
    ],
)
def test_where_ablate_may_call_other_heads_positional_it_is_said(
    changed: dict[str, Any], encoding: str | None, words: str, said: bool
) -> None:
    made = positional([0.9, 0.1])
    origin = replace(made.provenance, options={**made.provenance.options, **changed})
    (found,) = blocks(page_of([replace(made, provenance=origin, encoding=encoding)]), Command)
    assert (f"{SEQUENCES} stretches of {TOKENS} tokens" in found.question) is said
    given = ["toposcope", "ablate", "m", "--text", "wiki", *words.split(), "--heads", "positional"]
    assert shlex.split(found.line)[: len(given)] == given


def test_a_share_that_another_stands_for_is_not_called_missing() -> None:
    why = "position acts inside the heads"
    gaps = (Gap("gram_content", why, 2), Gap("gram_cross", why, 2))
    missing = Gap("rho", "zero logits", 1)
    bare, some = (page_of([replace(positional([0.9, 0.1]), gaps=found)]) for found in (gaps, (*gaps, missing)))
    assert "Not measured" not in [each.title for each in bare.sections]
    (listing,) = [each for each in blocks(some, Listing) if each.table == "gaps"]
    assert some.tables[listing.table]["why"] == ["zero logits"]


# ------------------------------------------------------------------ ablate
def on_texts(damages: dict[str, tuple[float, ...]], error: float | Sequence[float], heads: int = 3) -> AblateResult:
    """Heads 0.0, 0.1, ... with these damages on each text, and one standard error or one each, of four sequences."""
    errors = error if isinstance(error, Sequence) else [error] * heads
    made = [
        HeadDamage(
            0, head, losses={name: _of_mean(1.0 + values[head], errors[head]) for name, values in damages.items()},
            damage={name: values[head] for name, values in damages.items()},
            error=dict.fromkeys(damages, errors[head]), half_width=from_error(errors[head], 4), position=None,
        )
        for head in range(heads)
    ]  # fmt: skip
    texts = tuple(TextLoss(name, "c", (1.0,) * 4, None) for name in damages)
    return replace(making.ablated(), heads=tuple(made), texts=texts, layers=())


def _of_mean(mean: float, error: float) -> tuple[float, ...]:
    """Four losses of this mean and standard error."""
    off = error * 3**0.5
    return (mean - off, mean + off, mean - off, mean + off)


def sentences(result: AblateResult) -> Sequence[str]:
    (summary,) = blocks(page_of([result]), Summary)
    return list(summary.sentences)


def named(sentence: str) -> list[str]:
    """The heads of layer 0 that a sentence names, in its order."""
    return re.findall(r"(?<![\d.+-])0\.\d(?!\d)(?! ±)", sentence)


def in_table(result: AblateResult, name: str = "heads-by-damage") -> list[dict[str, Any]]:
    page = page_of([result])
    table = page.tables[name]
    return [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]


# 0.0 measures highest and is noise; 0.1 and 0.3 are clearly above 0; 0.2 is better removed
NOISY = ({"text": (0.376, 0.258, -0.151, 0.303)}, (0.32, 0.015, 0.01, 0.09))


def test_the_answer_names_a_head_that_is_told_from_0_not_the_highest() -> None:
    first, falls, *_ = sentences(on_texts(*NOISY, heads=4))
    assert named(first)[:2] == ["0.1", "0.3"]
    assert named(falls) == ["0.2"]
    assert "matters most" not in first  # 0.0 may matter more
    assert sentences(on_texts({"text": (0.011, 0.258, -0.151)}, 0.01))[0].count("matters most") == 1
    (higher,) = [part for part in first.split(". ") if "higher" in part]
    assert named(higher) == ["0.0"]


def test_tables_begin_with_what_is_clearly_above_0_and_end_with_noise() -> None:
    result = on_texts(*NOISY, heads=4)
    rows = in_table(result)
    assert [row["name"] for row in rows] == ["0.1", "0.3", "0.2", "0.0"]
    assert [row["told_text"][0] == "(" for row in rows] == [False, False, False, True]
    assert [row["head"] for row in in_table(result, "worst-heads")] == ["0.1", "0.3", "0.2", "0.0"]
    assert [row["name"] for row in in_table(result, "damages")] == ["0.0", "0.1", "0.2", "0.3"]  # as in JSON
    assert [row["shown_first"] for row in in_table(result, "damages")] == [False, True, False, False]
    (listing,) = blocks(page_of([result]), Listing)
    (damage,) = [column for column in listing.columns if column.key == "told_text"]
    assert [row[damage.by] for row in rows] == [0.258, 0.303, -0.151, 0.376]


@pytest.mark.parametrize(
    ("clear", "noise", "top", "others"),
    [(18, 13, 18, "noise"), (2, 29, 12, "noise"), (3, 2, 12, ""), (40, 9, 30, "10 of them")],
)
def test_all_heads_that_are_told_from_0_are_shown(clear: int, noise: int, top: int, others: str) -> None:
    """Up to 30, one of them better removed; and what is said of the others."""
    damages = (-0.5, *(0.5,) * (clear - 1), *(0.001,) * noise)
    page = page_of([on_texts({"text": damages}, 0.01, clear + noise)])
    (listing,) = blocks(page, Listing)
    (chart,) = blocks(page, Chart)
    hidden = max(0, clear + noise - top)
    assert listing.top == top
    assert len(page.tables[chart.table]["head"]) == min(top, clear + noise)
    assert page.tables[listing.table]["damage_text"][clear:] == [0.001] * noise
    assert (f" {hidden} more" in chart.sentence) is (hidden > 0)
    lines = [line for line in terminal.text(page).splitlines() if line.startswith("  ... ")]
    assert [str(hidden) in line and others in line for line in lines] == [True] * (hidden > 0)


def test_one_sequence_tells_no_head_from_noise() -> None:
    made = on_texts({"text": (0.1,) * 20}, 0.01, 20)
    heads = tuple(replace(each, half_width=None, error={"text": None}) for each in made.heads)
    (listing,) = blocks(page_of([replace(made, heads=heads)]), Listing)
    assert (listing.top, listing.others) == (12, "")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"heads": "positional", "tokens": 128, "sequences": 16, "seed": 0}, "--sequences 16"),
        ({"heads": "0.1", "tokens": 64, "sequences": 4, "begin": 9}, "--tokens 64 --begin 9"),
        ({"heads": None, "tokens": 128, "sequences": 4}, None),
    ],
)
def test_an_ablation_of_some_heads_ends_in_the_command_for_all(options: dict[str, Any], words: str | None) -> None:
    made = on_texts({"text": (0.5, 0.4)}, 0.01, 2)
    page = page_of([replace(made, provenance=asked(text="wiki", only=["text"], **options))])
    lines = [each.line for each in blocks(page, Command)]
    begin = " --begin 9" * ("begin" in options)
    worst = f"toposcope trace m --text wiki{begin} --heads {made.ranked()[0].name}"
    known = f"toposcope ablate m --text wiki {words} --mode screen --only text"
    assert lines == [worst, *([] if words is None else [known])]


def test_tables_give_two_digits_of_an_interval() -> None:
    for row in in_table(on_texts(*NOISY, heads=4)):
        digits = row["told_text"].strip("()").partition(" ± ")[2].replace(".", "").lstrip("0")
        assert len(digits) == 2
        assert float(f"0.{digits}") == pytest.approx(float(f"{row['half_text']:.1e}".partition("e")[0]) / 10)


def test_pairs_begin_with_a_clear_redundancy_and_give_95_percent() -> None:
    pairs = tuple(
        PairDamage("0.0", f"0.{each}", 0.5, (0.1, 0.2), value, error)
        for each, (value, error) in enumerate(((1.3, 0.9), (0.45, 0.1), (0.2, 0.01)), start=1)
    )
    rows = in_table(replace(on_texts({"text": (0.5, 0.4)}, 0.05, heads=2), pairs=pairs), "pairs")
    assert [row["pair"] for row in rows] == ["0.0 0.3", "0.0 0.2", "0.0 0.1"]  # lower ends 0.17, 0.13, below 0
    assert [row["told"] for row in rows if row["pair"] == "0.0 0.1"] == ["(+1.3 ± 2.9)"]  # t(0.975, 3) = 3.182


def test_two_heads_of_which_neither_is_clearly_ahead() -> None:
    first = sentences(on_texts({"text": (0.302, 0.298)}, (0.02, 0.03), heads=2))[0]
    assert named(first) == ["0.0", "0.1"]
    assert "matters most" not in first


def test_a_head_that_matters_on_repeated_tokens_alone_is_in_the_summary() -> None:
    damages = {"text": (0.011, 0.512, 0.412), "repeated": (2.512, 0.021, 0.0)}
    (repeated,) = [each for each in sentences(on_texts(damages, 0.051)) if "repeated" in each]
    assert named(repeated) == ["0.0"]
    assert "+2.51 ± 0.16" in repeated
    (unsure,) = [each for each in sentences(on_texts(damages, 5.1)) if "repeated" in each]
    assert "does not clearly rise" in unsure
    assert "+3 ± 16" in unsure


def test_a_head_better_removed_is_not_said_to_be_level_with_0() -> None:
    damages = {"text": (0.512, 0.412, 0.312), "shuffled": (0.212, 0.0, -0.912)}
    (shuffled,) = [each for each in sentences(on_texts(damages, 0.051)) if "shuffled" in each]
    assert named(shuffled) == ["0.0", "0.2"]
    assert "-0.91 ± 0.16" in shuffled
    only = on_texts({"text": (-0.912, -0.812)}, 0.051, heads=2)
    assert named(sentences(only)[0]) == ["0.0", "0.1"]


def test_what_a_head_costs_is_told_as_a_share_of_what_position_is_worth() -> None:
    found = on_texts({"text": (0.5, 0.004, 0.0)}, 0.001)
    (text,) = found.texts
    told = sentences(replace(found, texts=(replace(text, floor=(3.0, 2.9, 3.1, 3.0)),)))
    (worth,) = [each for each in told if "3.000" in each]
    assert "2.00 " in worth
    assert re.findall(r"([\d.]+%) \((0\.\d)\)", worth) == [("25%", "0.0"), ("0.2%", "0.1")]
    told = sentences(replace(found, texts=(replace(text, floor=(3.0, 0.9, 0.1, 1.0)),)))
    assert not any("25%" in each for each in told), "of what is not told from 0"


def test_heads_that_the_screen_did_not_choose_are_told_apart() -> None:
    found = on_texts({"text": (0.5, 0.4, 0.3)}, 0.05)
    screen = Screen({"0.0": 0.5, "0.1": 0.4, "0.2": 0.1, "0.3": 0.0}, ("0.0",), ("0.1",), None, None)
    counts = [
        re.findall(r"\d+", page_of([replace(found, screen=made)]).facts[0][1])
        for made in (screen, replace(screen, chosen=("0.0", "0.1", "0.2"), sampled=()))
    ]
    assert counts == [["1", "1", "1"], []]


@pytest.mark.parametrize(("heads", "there"), [(1, False), (2, True)])
def test_of_one_head_the_table_is_left_to_the_page_and_to_full(heads: int, there: bool) -> None:
    page = page_of([on_texts({"text": (0.5, 0.4)}, 0.05, heads)])
    (section,) = [each for each in page.sections if any(isinstance(block, Listing) for block in each.blocks)]
    assert section.full is not there


def test_a_change_that_is_not_told_is_said_alike_whatever_its_sign() -> None:
    for damage in (0.036, -0.027):
        told = sentences(on_texts({"text": (0.5,), "repeated": (damage,)}, 0.02, heads=1))
        (repeated,) = [each for each in told if "repeated" in each]
        assert repeated.endswith(f"not clearly rise without head 0.0 ({damage:+.3f} ± 0.064).")


def test_one_head_is_not_called_the_worst_and_the_way_to_tell_is_named() -> None:
    first = sentences(on_texts({"text": (0.1,)}, 0.05, heads=1))[0]
    assert "head 0.0 (+0.10 ± 0.16" in first
    assert "most" not in first
    assert "--sequences 16" in first
    assert "by 0.100 ± 0.032" in sentences(on_texts({"text": (0.1,)}, 0.01, heads=1))[0]
    assert "without 0.0 (-0.100 ± 0.032)" in sentences(on_texts({"text": (-0.1,)}, 0.01, heads=1))[0]


def test_a_map_of_few_heads_is_for_pages_alone() -> None:
    few, many = (on_texts({"text": tuple(0.1 * each for each in range(n))}, 0.01, n) for n in (3, 20))
    shown_of = [[each.title for each in page_of([made]).sections if not each.detail] for made in (few, many)]
    assert ["Ablation map" in titles for titles in shown_of] == [False, True]


# ---------------------------------------------------------------- what a page leaves out, and how it sets words
def test_no_zero_has_a_sign_of_its_own() -> None:
    assert shown(-0.001, "+.2f") == "+0.00"
    assert shown(-0.01, "+.2f") == "-0.01"
    assert shown(-2e-5, ".0%") == "0%"
    assert shown(-1e-9, ".1e") == "-1.0e-09"


def test_options_and_small_numbers_are_not_broken_and_stay_text() -> None:
    page = Page()
    page.add("Words", Summary(("Set --max-evaluations; off by 4e-16, by <b>Thm 5</b> for 95% of V O.",)))
    text = page_html(page, [])
    assert '<span class="whole">--max-evaluations</span>' in text
    assert '<span class="whole">4e-16</span>' in text
    assert "&lt;b&gt;Thm\u00a05&lt;/b&gt;" in text
    assert "95% of V\u00a0O" in text


def test_an_ablation_says_which_of_the_needed_heads_are_positional() -> None:
    result = making.ablated()
    both = result.ranked()[:2]

    def page(share: float | None, some: Sequence[HeadDamage]) -> Page:
        heads = [
            replace(each, error={"text": error}, half_width=from_error(error, 2), positional=share)
            for each, error in ((each, 1e-6 if each in some else 1.0) for each in result.heads)
        ]
        return page_of([replace(result, heads=tuple(heads))])

    cases = [(share, some) for share in (0.9, 0.1, None) for some in (both, both[:1])]
    for share, some in cases:
        shown_page = page(share, some)
        said = [each for each in blocks(shown_page, Summary)[0].sentences if " positional (" in each]
        assert bool(said) is (share is not None)
        words = " ".join(said)
        assert [each.name in words for each in some] == [bool(share) and (share > 0.5 or len(some) == 1)] * len(some)
        assert (" not " in words or "none" in words) is (share == 0.1)
        (listing,) = [each for each in blocks(shown_page, Listing) if each.title == "Every head"]
        assert ("positional" in {column.key for column in listing.columns}) is (share is not None)


def test_a_deposit_that_is_undefined_has_no_columns_of_dashes() -> None:
    result = making.ablated()
    bare = replace(result.layers[0].deposit, d_rel=None, share=None, gini=None, di=None)
    page = page_of(
        [replace(result, layers=tuple(replace(each, deposit=bare, spread=None) for each in result.layers))]
    )
    (listing,) = [each for each in blocks(page, Listing) if each.title == "Layer by layer"]
    assert [column.key for column in listing.columns] == ["layer", "name", "damage"]


def test_claims_that_were_not_measured_are_not_counted_as_tried(tmp_path: Path) -> None:
    file = tmp_path / "coupling.json"
    file.write_text(json.dumps(making.coupled()))
    (result,) = read_results([file])
    tried = sum(each.verdict != "not measured here" for each in result.claims)
    first = blocks(page_of([result]), Summary)[0].sentences[0]
    assert re.findall(r"\d+", first) == [str(tried), str(len(result.claims))]


def test_heads_without_rotation_or_groups_have_no_such_columns(tmp_path: Path) -> None:
    from tests.unit.tiny import write_llama

    def columns(model: Path) -> set[str]:
        file = tmp_path / "inspect.json"
        file.write_text(json.dumps(making.command("inspect", str(model), out=tmp_path / "made.json")))
        (listing,) = [each for each in blocks(page_of(read_results([file])), Listing) if each.title == "All heads"]
        return {column.key for column in listing.columns}

    assert {"kv_group", "rotating_share"} <= columns(write_llama(tmp_path / "grouped", num_key_value_heads=2))
    assert "kv_group" not in columns(write_llama(tmp_path / "own", num_key_value_heads=4))
