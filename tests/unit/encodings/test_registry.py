"""What a user may write, what it becomes, and what is said when it is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toposcope.core.errors import BadEncoding, BadValue
from toposcope.core.ranges import computable
from toposcope.encodings import PAPERS, EncodingSpec, Parameter, Sizes, combine, kinds, make, parse, spec

SIZES = Sizes(width=48, heads=6, head_dim=8, context=256, causal=True)
NAMES = ["none", "sinusoidal", "learned", "random", "t5", "alibi", "kerple", "fire"]
NAMES += ["rope", "rope-partial", "xpos", "mla", "cope", "pope"]
# what the rotary kinds document themselves; their scaling parameters share a section
OWN = {"base", "pairing", "rotary_dim", "partial", "channel_offset", "divisors", "heads", "nope_dim", "rope_dim"}
MECHANISM = {"none": (), "input": ("input",), "rotary": ("rotary",), "bias": ("bias",), "content": ("content",)}


def test_the_names_of_the_interface() -> None:
    assert list(kinds()) == NAMES


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("causal", [True, False])
def test_every_kind_builds_with_its_defaults(name: str, causal: bool) -> None:
    sizes = Sizes(width=48, heads=6, head_dim=8, context=256, causal=causal)
    kind, encoding = kinds()[name], parse(name).build(sizes)
    assert encoding.name == name
    assert encoding.title
    assert encoding.mechanisms == MECHANISM[kind.mechanism]
    assert set(kind.citations) == set(encoding.citations)
    json.dumps(dict(encoding.parameters))
    if encoding.rotary is not None:
        assert encoding.rotary.head_dim == sizes.head_dim
    if encoding.bias is not None:
        assert encoding.bias.table([3, 4], [1, 2, 3]).shape == (sizes.heads, 2, 3)
    if encoding.input is not None:
        assert encoding.input.vectors(np.arange(sizes.context)).shape == (sizes.context, sizes.width)
    if kind.mechanism == "content":
        with pytest.raises(BadEncoding, match=f"'{name}'.*tables"):
            encoding.tables()
    else:
        encoding.tables()


@pytest.mark.parametrize("name", NAMES)
def test_documented_defaults_are_the_real_ones(name: str) -> None:
    """Writing every default out changes nothing that is built."""
    kind = kinds()[name]
    written = {p.name: p.default for p in kind.parameters if p.default is not None}
    if any(p.name == "scaling" for p in kind.parameters):
        written = {key: value for key, value in written.items() if key in ("base", "pairing", "channel_offset")}
    spelled, silent = make(name, SIZES, **written), make(name, SIZES)
    assert dict(spelled.parameters) == dict(silent.parameters)


@pytest.mark.parametrize("name", NAMES)
def test_names_aliases_and_papers_are_consistent(name: str) -> None:
    kind = kinds()[name]
    for alias, preset in kind.aliases.items():
        assert alias not in kinds()
        assert sum(alias in other.aliases for other in kinds().values()) == 1
        assert parse(alias).name == name
        assert dict(parse(alias).parameters) == dict(preset)
    assert all(key in PAPERS for key in kind.citations)
    assert len({p.name for p in kind.parameters}) == len(kind.parameters)


def test_scalings_cite_their_papers() -> None:
    for scaling in ("linear", "ntk", "dynamic", "llama3", "yarn"):
        encoding = make("rope", SIZES, scaling=scaling, factor=4)
        assert len(encoding.citations) == 2
        assert all(key in PAPERS for key in encoding.citations)


def values(parameter: Parameter) -> st.SearchStrategy[Any]:
    low = parameter.least if parameter.least is not None else (parameter.above or 0.0)
    high = parameter.most if parameter.most is not None else low + 1e6
    numbers = st.floats(low, high, exclude_min=parameter.above is not None).filter(computable)
    if parameter.type == "floats":
        return st.lists(numbers, min_size=1, max_size=5).map(tuple)
    return {
        "bool": st.booleans(),
        "choice": st.sampled_from(parameter.choices or ("",)),
        "int": st.integers(int(low), int(low) + 10**6),
        "float": numbers,
    }[parameter.type]


@st.composite
def specs(draw: st.DrawFn) -> EncodingSpec:
    kind = kinds()[draw(st.sampled_from(NAMES))]
    chosen = draw(st.lists(st.sampled_from(kind.parameters), unique=True)) if kind.parameters else []
    return spec(kind.name, **{p.name: draw(values(p)) for p in chosen})


@given(specs())
@settings(max_examples=300, deadline=None)
def test_a_spec_is_read_back_from_its_text(written: EncodingSpec) -> None:
    read = parse(str(written))
    assert read == written
    assert str(read) == str(written)
    assert hash(read) == hash(written)


def test_the_order_of_writing_does_not_matter() -> None:
    text = "rope:base=500000,scaling=yarn,factor=8"
    assert str(parse(" RoPE : factor=8.0, scaling=YARN,base=5e5 ")) == text
    assert parse("yarn:factor=8,base=500000") == parse(text)
    assert parse(text).parameters == {"base": 500000.0, "scaling": "yarn", "factor": 8.0}


def test_lists_are_written_with_slashes() -> None:
    text = "rope:scaling=longrope,original_context=64,short_factor=1/1/1/2,long_factor=1/2/4/8.5"
    assert str(parse(text)) == text
    rotary = parse(text).build(SIZES).rotary
    assert rotary is not None
    np.testing.assert_allclose(rotary.frequencies(64) / rotary.frequencies(65), [1, 2, 4, 4.25])


def test_sizes_fill_in_what_was_not_said() -> None:
    assert make("learned", SIZES).parameters["length"] == 256
    assert make("t5", SIZES).parameters["bidirectional"] is False
    assert parse("yarn:factor=4").build(SIZES).title.startswith("RoPE (yarn x4 from 256)")
    assert parse("yarn:original_context=64").build(SIZES).title.startswith("RoPE (yarn x4 from 64)")
    assert make("fire", SIZES).parameters["causal"] is True


@pytest.mark.parametrize(("text", "turning"), [("mla:nope_dim=2", 6), ("mla:rope_dim=2", 2), ("mla", 4)])
def test_mla_fills_the_head(text: str, turning: int) -> None:
    rotary = parse(text).build(SIZES).rotary
    assert rotary is not None
    assert rotary.pairs_F2.min() == 8 - turning
    assert rotary.pairs_F2.max() == 7


def test_partial_rope_by_channels_or_by_heads() -> None:
    by_channels, by_heads = (
        parse("rope-partial:partial=0.25").build(SIZES),
        parse("rope-partial:heads=2").build(SIZES),
    )
    assert by_channels.rotary is not None
    assert by_heads.rotary is not None
    assert (by_channels.rotary.channels, by_channels.rotary.turning_heads) == (2, None)
    assert (by_heads.rotary.channels, by_heads.rotary.turning_heads) == (8, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ropr", "'rope'"),
        ("zzzzzz", "none, sinusoidal"),
        ("", "Known"),
        (":base=3", "Known"),
        ("rope:", "colon"),
        ("rope:base", "parameter=value"),
        ("rope:=3", "parameter=value"),
        ("rope:base=3,,", "parameter=value"),
        ("rope:base=", "'base'.* above 1"),
        ("rope:bse=3", "'bse'.*'base'"),
        ("none:base=3", "'none'.*'base'"),
        ("rope:base=ten", "'base'.* ten"),
        ("rope:base=nan", "'base'.* nan"),
        ("rope:base=1", "above 1"),
        ("rope:base=3,base=4", "'base'.* twice"),
        ("rope:rotary_dim=4.5", r"'rotary_dim'.* 4\.5"),
        ("rope:scaling=yan", "'yarn'"),
        ("rope:scaling=linear,factor=0.5", r"'factor'.* 0\.5"),
        ("rope:truncate=maybe", "maybe"),
        ("rope:short_factor=1//2", "short_factor.*'/'"),
        ("yarn:scaling=ntk,factor=2", "scaling=yarn.*scaling=ntk"),
    ],
)
def test_what_cannot_be_read(text: str, message: str) -> None:
    with pytest.raises(BadEncoding, match=message):
        parse(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rope:factor=8", "'factor'.*scaling=default.*scaling=linear"),
        ("rope:scaling=linear,factor=8,beta_fast=3", "'beta_fast'.*scaling=yarn"),
        ("rope:scaling=linear", "factor"),
        ("yarn", "factor"),
        ("longrope:original_context=32", "short_factor"),
        ("rope:rotary_dim=3", "'rope:rotary_dim=3'.*even"),
        ("rope-partial:heads=9", "has 6"),
        ("mla:nope_dim=6,rope_dim=4", "nope_dim.* 10"),
        ("alibi:slopes=1/2", "2 slopes.* 6 "),
        ("t5:buckets=3,bidirectional=true", "too few"),
    ],
)
def test_what_cannot_be_built(text: str, message: str) -> None:
    with pytest.raises(BadEncoding, match=message):
        parse(text).build(SIZES)


def test_an_odd_head_is_refused_with_a_way_out() -> None:
    odd = Sizes(width=21, heads=3, head_dim=7, context=10)
    with pytest.raises(BadEncoding, match=r"rotate.* 7 "):
        make("rope", odd)
    assert parse("rope:rotary_dim=6").build(odd).rotary is not None


def test_python_values_are_checked_too() -> None:
    with pytest.raises(BadEncoding, match="'base'"):
        make("rope", SIZES, base="10000")
    with pytest.raises(BadEncoding, match="'symmetric'"):
        make("alibi", SIZES, symmetric=1)
    with pytest.raises(BadEncoding, match="'length'"):
        make("learned", SIZES, length=True)
    assert make("kerple", SIZES, r1=np.full(6, 2.0)).parameters["r1"] == [2.0] * 6
    assert spec("rope", base=None) == spec("rope")
    with pytest.raises(BadValue, match="heads"):
        Sizes(8, 0, 8, 8)


def test_encodings_combine_once_per_mechanism() -> None:
    both = combine(make("sinusoidal", SIZES), make("rope", SIZES))
    assert both.exact_tables
    for pair in (("cope", "sinusoidal"), ("sinusoidal", "cope")):  # half a table is none
        assert not combine(*(make(name, SIZES) for name in pair)).exact_tables
    assert both.mechanisms == ("input", "rotary")
    assert both.citations == ("vaswani2017attention", "su2021roformer")
    with pytest.raises(BadEncoding, match=r"'xpos'.* rotary"):
        combine(both, make("xpos", SIZES))


def test_the_page_lists_every_kind_parameter_default_alias_and_paper() -> None:
    page = (Path(__file__).parents[3] / "docs/encodings.md").read_text()
    sections = {part.split("\n", 1)[0]: part for part in page.split("\n### ")[1:]}
    for kind in kinds().values():
        section = sections[f"`{kind.name}`"]
        for alias in kind.aliases:
            assert f"`{alias}`" in section, (kind.name, alias)
        for key in kind.citations:
            assert f"[{key}]" in section, (kind.name, key)
        for p in kind.parameters:
            default = "derived" if p.default is None else f"`{p.write(p.default)}`"
            where = sections["Scaling parameters"] if kind.parameter("scaling") and p.name not in OWN else section
            assert f"| `{p.name}` | {default} |" in where, (kind.name, p.name)
    for key, paper in PAPERS.items():
        assert f"**{key}**" in page
        assert paper.title in page


def test_torch_is_not_needed() -> None:
    """A fresh interpreter builds every encoding without importing torch."""
    code = (
        "import sys; from toposcope.encodings import Sizes, kinds, make\n"
        "for name in kinds(): make(name, Sizes(16, 2, 8, 32))\n"
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_none_beside_another_is_the_other() -> None:
    none, rotary, bias = (make(name, SIZES) for name in ("none", "rope", "alibi"))
    assert combine(none, rotary) is rotary
    assert combine(rotary, none) is rotary
    both = combine(rotary, bias)
    assert (both.rotary, both.bias, both.exact_tables) == (rotary.rotary, bias.bias, True)
    assert not combine(rotary, make("cope", SIZES)).exact_tables
