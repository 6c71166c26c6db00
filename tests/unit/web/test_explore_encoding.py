"""The explorer's numbers against dense linear algebra and against the library's own command."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.linalg

from toposcope.core.errors import BadEncoding, BadValue
from toposcope.encodings import Sizes, parse
from toposcope.spectra.bias_kernel import alibi_kernel_eigenvalues, alibi_kernel_eigenvalues_at
from toposcope.spectra.encoding_spectrum import spectrum_of as spectrum
from toposcope.web.explore_encoding import explore
from toposcope.web.query import Query


def ask(**given: Any) -> dict[str, Any]:
    return explore(Query([(name, str(value)) for name, value in given.items()]))


def rope_kernel(offsets: np.ndarray, base: float, head_dim: int) -> np.ndarray:
    frequencies = base ** (-np.arange(head_dim // 2) * 2 / head_dim)
    return np.cos(np.multiply.outer(offsets, frequencies)).mean(axis=-1)


@pytest.mark.parametrize(("base", "head_dim", "n"), [(10000, 64, 96), (500, 32, 200), (1e6, 128, 64)])
def test_rope_against_dense_eigenvalues(base: float, head_dim: int, n: int) -> None:
    found = ask(encoding=f"rope:base={base}", head_dim=head_dim, context=n)
    kernel = rope_kernel(np.arange(n), base, head_dim)
    ours = np.array(found["kernel"]["values"])
    np.testing.assert_allclose(ours, rope_kernel(np.array(found["kernel"]["offsets"]), base, head_dim), atol=1e-12)
    dense = np.sort(scipy.linalg.eigvalsh(scipy.linalg.toeplitz(kernel)))[::-1] / n
    assert found["point"]["lambda_max_over_n"] == pytest.approx(dense[0], rel=1e-10)
    seen = np.array(found["spectrum"]["values"])
    np.testing.assert_allclose(seen[:16], dense[:16], rtol=1e-8, atol=1e-12)
    assert found["point"]["law"] == pytest.approx(1 - np.log(n / 2.52) / np.log(base) - 1 / head_dim, abs=2e-3)


def test_dynamic_scaling_uses_the_frequencies_of_this_context() -> None:
    text = "rope:scaling=dynamic,factor=4,original_context=64"
    near, far = (np.array(ask(encoding=text, context=n)["kernel"]["values"]) for n in (64, 4096))
    plain = np.array(ask(encoding="rope", context=64)["kernel"]["values"])
    np.testing.assert_allclose(near, plain, atol=1e-12)
    assert np.abs(far[: len(near)] - near).max() > 1e-3


@pytest.mark.parametrize("head", [0, 5])
def test_alibi_against_dense_eigenvalues(head: int) -> None:
    n, slope = 300, 2.0 ** -(head + 1)
    found = ask(encoding="alibi", head=head, heads=8, context=n)
    dense = np.sort(scipy.linalg.eigvalsh(scipy.linalg.toeplitz(np.exp(-slope * np.arange(n)))))[::-1]
    numbers = np.array(found["spectrum"]["numbers"])
    np.testing.assert_allclose(np.array(found["spectrum"]["values"]) * n, dense[numbers - 1], rtol=1e-9)
    assert found["point"]["lambda_max_over_n"] == pytest.approx(dense[0] / n, rel=1e-10)
    assert found["symbol_range"][0] < dense[-1] <= dense[0] < found["symbol_range"][1]


def test_some_eigenvalues_of_alibi_are_those_of_all() -> None:
    numbers = [1, 2, 77, 500]
    every = alibi_kernel_eigenvalues(0.3, 500)[::-1]
    np.testing.assert_allclose(
        alibi_kernel_eigenvalues_at(0.3, 500, numbers), every[np.array(numbers) - 1], rtol=1e-12
    )
    with pytest.raises(BadValue, match="500"):
        alibi_kernel_eigenvalues_at(0.3, 500, [0])


@pytest.mark.parametrize("n", [4096, 4097, 2**20])
def test_long_alibi_joins_the_exact_route(n: int) -> None:
    here = ask(encoding="alibi", context=n)["point"]
    encoding = parse("alibi").build(Sizes(512, 8, 64, n))
    if n > 5000:
        assert here["lambda_max_over_n"] * n == pytest.approx(1 / np.tanh(0.25), rel=1e-6)  # the symbol's top
    else:
        there = spectrum(encoding, [n]).points[0]
        assert here["lambda_max_over_n"] == pytest.approx(there.lambda_max_over_n, rel=1e-12)
        assert here["condition"] == pytest.approx(there.condition, rel=1e-9)
        assert here["effective_rank"] == pytest.approx(there.effective_rank, rel=2e-3)


@pytest.mark.parametrize(
    "text", ["rope", "rope:scaling=yarn,factor=8", "xpos", "t5", "kerple", "sinusoidal", "mla", "none", "learned"]
)
@pytest.mark.parametrize("n", [32, 150])
def test_points_are_the_library_s(text: str, n: int) -> None:
    found = ask(encoding=text, context=n, heads=2, head=0, settled=1)
    spec = parse(f"learned:length={n}") if text == "learned" else parse(text)
    there = spectrum(spec.build(Sizes(128, 2, 64, n)), [n]).points[0]
    assert found["point"]["lambda_max_over_n"] == pytest.approx(there.lambda_max_over_n, rel=1e-12)
    assert found["point"]["effective_rank"] == pytest.approx(there.effective_rank, rel=1e-12)
    assert found["point"]["statement"] == there.statement
    assert found["complete"]
    chosen = [each for each in found["curve"] if each["context"] == n]
    assert len(chosen) == 1


@pytest.mark.parametrize("text", ["t5", "kerple", "xpos"])
def test_a_moving_hand_gets_bounds_and_a_resting_one_the_value(text: str) -> None:
    n = 700
    live, settled = (ask(encoding=text, context=n, settled=flag)["point"] for flag in (0, 1))
    encoding = parse(text).build(Sizes(512, 8, 64, n))
    exact = spectrum(encoding, [n]).points[0].lambda_max_over_n
    assert live["statement"] == "bound"
    assert live["lower"] <= exact * (1 + 1e-9)
    assert exact <= live["upper"] * (1 + 1e-9)
    assert settled["lambda_max_over_n"] == pytest.approx(exact, rel=1e-9)


def test_lanczos_at_rest_agrees_with_the_library() -> None:
    found = ask(encoding="kerple", context=3000, settled=1)["point"]
    there = spectrum(parse("kerple").build(Sizes(512, 8, 64, 3000)), [3000]).points[0]
    assert found["lambda_max_over_n"] == pytest.approx(there.lambda_max_over_n, rel=1e-6)


def test_what_cannot_be_had_is_said() -> None:
    assert "vectors" in ask(encoding="learned", heads=2, context=10_000)["why_not"]
    assert "closed form" in ask(encoding="t5", context=2**20, settled=1)["why_not"]
    assert "both positions" in ask(encoding="fire", context=4096)["why_not"]
    assert ask(encoding="learned", heads=2, context=64)["kernel"] is None


def test_million_tokens_are_exact_for_rope() -> None:
    found = ask(encoding="rope", context=2**20, settled=1)
    there = spectrum(parse("rope").build(Sizes(512, 8, 64, 2**20)), [2**20]).points[0]
    assert found["point"]["lambda_max_over_n"] == there.lambda_max_over_n
    assert found["point"]["statement"] == "theorem"
    assert found["point"]["law"] is None  # beyond the base


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"context": 0}, "from 1 to 16777216"),
        ({"context": 2**24 + 1}, "from 1 to 16777216"),
        ({"context": "nan"}, "whole number"),
        ({"context": -5}, "whole number"),
        ({"head_dim": 100000}, "from 2 to 256"),
        ({"heads": 2, "head": 5}, "there are 2 heads"),
        ({"encoding": "t5:buckets=1000000000"}, "at most 4096"),
        ({"encoding": "learned:length=100000000"}, "at most 4096"),
        ({"encoding": "sinusoidal", "head_dim": 256, "heads": 64}, "too wide"),
        ({"nonsense": 1}, "no parameter 'nonsense'"),
    ],
)
def test_mistakes_are_told(given: dict[str, Any], words: str) -> None:
    with pytest.raises(BadValue, match=words):
        ask(**given)


@pytest.mark.parametrize(
    "text", ["ropee", "rope:base=nan", "rope:base=-1", "rope:base=inf", "rope:nope=1", "cope", "rope:", ":", "yarn"]
)
def test_encodings_are_refused_in_the_library_s_words(text: str) -> None:
    with pytest.raises(BadEncoding):
        ask(encoding=text)
