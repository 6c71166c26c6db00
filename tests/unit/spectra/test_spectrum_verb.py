"""`toposcope.spectrum` as a library user meets it."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

import toposcope
from tests.unit.tiny import write_llama
from toposcope.core.errors import BadEncoding, BadValue
from toposcope.core.ranges import parse_length
from toposcope.encodings import Sizes, parse
from toposcope.report import terminal
from toposcope.report.console import IndentedConsole
from toposcope.report.drawing import page_of
from toposcope.report.kinds import document
from toposcope.spectra import toeplitz_points
from toposcope.spectra.beyond import Beyond
from toposcope.spectra.encoding_spectrum import EncodingSpectrum, spectrum_of
from toposcope.spectra.spectrum import SpectrumResult


@pytest.fixture(scope="module")
def result() -> SpectrumResult:
    return toposcope.spectrum(["rope", "alibi", "learned", "none"], "1k", head_dim=8, num_heads=2)


def test_each_encoding_is_what_its_own_spectrum_says(result: SpectrumResult) -> None:
    assert result.contexts == (32, 128, 512, 1024)
    rope = spectrum_of(parse("rope").build(Sizes(16, 2, 8, 1024, causal=True)), result.contexts)
    assert replace(result.encodings[0], beyond=None) == rope
    assert [each.spec for each in result.encodings] == ["rope", "alibi", "learned", "none"]
    assert toposcope.spectrum("rope", 1024, head_dim=8, num_heads=2).encodings == (result.encodings[0],)


def test_a_result_prints_saves_frames_and_draws(result: SpectrumResult, tmp_path: Path) -> None:
    assert max(map(len, str(result).splitlines())) <= 80
    assert toposcope.read(result.save(tmp_path / "s.json")) == result
    jsonschema.validate(result.as_dict(), document("spectrum"))
    points = result.frame()
    assert len(points) == 4 * 4
    assert points["lambda_max_over_n"][0] == result.encodings[0].points[0].lambda_max_over_n
    assert len(result.frame("encodings.logit_points")) == 4
    assert "<script" not in result._repr_html_()
    assert "Security-Policy" in result.html()
    pytest.importorskip("vl_convert")
    text = result.figure(tmp_path / "f.svg").read_text()
    assert all(f">{name}</text>" in text for name in ("alibi", "Effective rank", "Shared-content factor"))


def test_bounds_are_told_as_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond Lanczos only bounds are known: 262,144 positions for a user, 4,096 here."""
    monkeypatch.setattr(toeplitz_points, "LANCZOS_LIMIT", 2048)
    found = toposcope.spectrum("t5", 4096, num_heads=1)
    assert found.encodings[0].points[-1].statement == "bound"
    out = io.StringIO()
    terminal.show(page_of([found]), IndentedConsole(file=out, width=80), full=True)
    last = [line for line in out.getvalue().splitlines() if line.split()[:1] == ["4,096"]]
    assert [line.count("≥") for line in last] == [0, 1, 1]  # the longest context; kernel, summand
    answer = next(line for line in out.getvalue().splitlines() if line.split()[:2] == ["t5", "good"])
    assert answer.count("≥") == 1
    assert found.encodings[0].decay[-1] is None


def test_lengths_are_written_as_people_write_them() -> None:
    assert [parse_length(each) for each in (4096, "4096", "128k", "1M", " 2K ")] == [4096, 4096, 131072, 2**20, 2048]
    for wrong in ("", "k", "1.5k", "-4", "0", "1G", "9" * 16):
        with pytest.raises(BadValue):
            parse_length(wrong)


def met(each: EncodingSpectrum) -> Beyond:
    assert each.beyond is not None
    return each.beyond


def test_a_model_is_judged_by_the_encoding_of_its_files(tmp_path: Path) -> None:
    """The same numbers as of its encoding written out; and beside it another one, for its sizes and with its base."""
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    stretched = write_llama(
        tmp_path / "m", hidden_size=64, rope_theta=5e5, rope_scaling=scaling, max_position_embeddings=256
    )
    own, other = toposcope.spectrum("rope:scaling=yarn,factor=16", "1k", model=stretched).encodings
    written = "rope:base=500000,scaling=yarn,factor={},original_context=64"
    alone = toposcope.spectrum([written.format(4), written.format(16)], "1k", head_dim=16, num_heads=4).encodings
    assert own.spec == "m"
    assert [own.points, other.points] == [each.points for each in alone]
    assert [met(own), met(other)] == [replace(met(each), assumed=True) for each in alone]
    assert [met(own).verdict, met(other).verdict] == ["bad", "good"]
    trained = met(toposcope.spectrum((), 256, model=stretched, trained=256).encodings[0])
    assert (trained.verdict, trained.reason, trained.assumed) == ("good", "within", False)


def test_where_nothing_new_is_met_the_context_stands(tmp_path: Path) -> None:
    write_llama(tmp_path, max_position_embeddings=64)
    asked = toposcope.spectrum("rope:scaling=linear,factor=4", 256, model=tmp_path)
    table = page_of([asked]).tables["beyond-training-in-short"]
    assert met(asked.encodings[0]).new_pairs
    assert not met(asked.encodings[1]).new_pairs
    assert table["new_from"][0].isdigit()
    assert table["new_from"][1].endswith(" 256")


def test_the_answer_says_from_what_the_trained_context_is_assumed(tmp_path: Path) -> None:
    write_llama(tmp_path, max_position_embeddings=64)
    assert "configuration" in str(toposcope.spectrum((), 256, model=tmp_path))
    for told in (toposcope.spectrum((), 256, model=tmp_path, trained=64), toposcope.spectrum("rope", 16384)):
        assert "assumed from" not in str(told)


def test_layers_with_a_window_see_no_farther(tmp_path: Path) -> None:
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    model = write_llama(
        tmp_path / "m", model_type="qwen2", use_sliding_window=True, sliding_window=16, layer_types=kinds
    )
    sliding, whole = toposcope.spectrum((), 4096, model=model).encodings
    assert (sliding.spec, met(sliding).verdict, met(sliding).reason) == ("m layers 0,2", "good", "window")
    assert (whole.spec, met(whole).verdict, met(whole).reason) == ("m layers 1", "bad", "new phases")
    assert met(sliding).context == met(whole).context == 4096


def test_a_model_has_its_own_sizes_and_is_no_encoding(tmp_path: Path) -> None:
    model = write_llama(tmp_path / "m")
    with pytest.raises(BadValue, match="sizes"):
        toposcope.spectrum((), 64, model=model, head_dim=8)
    for name in ("smollm2", str(model), "org/name"):
        with pytest.raises(BadEncoding, match="--model"):
            toposcope.spectrum(name, 64)
    with pytest.raises(BadValue, match="--model"):
        toposcope.spectrum((), 64)
