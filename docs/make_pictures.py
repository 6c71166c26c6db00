"""Make the pictures of the documentation: `python docs/make_pictures.py [NAME...]` (needs the [plot], [hf] extras).

Each picture is what a command writes with --figure, made smaller. The report's screenshot is taken apart from this,
with a browser, from the file that `make demo` writes. Two pictures of the page on the papers need small models to be
trained, which takes minutes; they are kept in out/pictures and not trained again.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import vl_convert
from PIL import Image

from toposcope.encodings import rope
from toposcope.report.paint import colour, palette
from toposcope.spectra.contraction import contraction

IMAGES = Path(__file__).parent / "images"
KEPT = Path("out/pictures").resolve()  # trained models, and the small matrices that flows are given
PRESETS = ("collapse", "explode", "helix", "metastable")
WIDTH, COLOURS = 1000, 96

Picture = Callable[[], None]
PAPERS: dict[str, Picture] = {}


def main(names: Sequence[str]) -> None:
    KEPT.mkdir(parents=True, exist_ok=True)
    (IMAGES / "papers").mkdir(parents=True, exist_ok=True)
    systems()
    known = {**{f"flow-{preset}": preset_of(preset) for preset in PRESETS}, **PAPERS}
    unknown = sorted(set(names) - set(known))
    if unknown:
        sys.exit(f"no such picture: {', '.join(unknown)}; there are {', '.join(known)}")
    for name in names or known:
        known[name]()
        print(name)


# ------------------------------------------------------------------ drawing
def toposcope(*words: str) -> None:
    """Run a command in the directory of kept things."""
    subprocess.run([sys.executable, "-m", "toposcope", *words], check=True, stdout=subprocess.DEVNULL, cwd=KEPT)


def picture(name: str, *words: str) -> None:
    """The figure of a command, as images/NAME.png."""
    with tempfile.TemporaryDirectory() as place:
        large = Path(place) / "figure.png"
        toposcope(*words, "--figure", str(large))
        shrink(large, IMAGES / f"{name}.png")


def shrink(large: Path, small: Path) -> None:
    """A picture of few colours, as wide as a page: a tenth of the bytes of one for print."""
    with Image.open(large) as image:
        plain = image.convert("RGB")
    width = min(WIDTH, plain.width)
    plain = plain.resize((width, round(plain.height * width / plain.width)), Image.Resampling.LANCZOS)
    few = plain.quantize(COLOURS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(small, optimize=True)


def chart(name: str, rows: Sequence[Mapping[str, Any]], spec: Mapping[str, Any]) -> None:
    """A chart of our own, where no command draws one."""
    whole = {**spec, "data": {"values": list(rows)}, "width": 360, "height": 150, "background": "white"}
    whole["config"] = {"range": {"category": list(palette())}, "point": {"color": palette()[0]}}
    whole["config"]["axis"] = {"grid": False}
    with tempfile.TemporaryDirectory() as place:
        large = Path(place) / "figure.png"
        large.write_bytes(vl_convert.vegalite_to_png(whole, ppi=150))
        shrink(large, IMAGES / f"papers/{name}.png")


def preset_of(name: str) -> Picture:
    return lambda: picture(f"flow-{name}", "flow", "--preset", name)


def paper(draw: Picture) -> Picture:
    """Register a picture of docs/papers.md under its function's name."""
    PAPERS[draw.__name__.replace("_", "-")] = draw
    return draw


# ------------------------------------------------------------------ the papers: token dynamics
def systems() -> None:
    """The small matrices and starts that docs/papers.md makes."""
    turn = np.deg2rad(10)
    arrays = {
        "plus": np.eye(2),
        "minus": -np.eye(2),
        "saddle": np.diag([1.0, -1.0]),
        "turned": -np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]]),
        "row": np.array([[1.0, 0.0], [0.0, 0.0], [-1.0, 0.0]]),
        "right": np.array([[0.5, 1.0], [1.0, -1.0], [1.5, 0.5], [0.2, -0.4]]),
    }
    for name, array in arrays.items():
        np.save(KEPT / f"{name}.npy", array)


def flow(name: str, W: str, V: str, *words: str) -> None:
    picture(f"papers/{name}", "flow", "--W", f"{W}.npy", "--V", f"{V}.npy", *words)


@paper
def closer_yet_away() -> None:
    flow("closer-yet-away", "minus", "plus", "--n", "8", "--no-causal")


@paper
def middle_token() -> None:
    flow("middle-token", "plus", "plus", "--start", "row.npy", "--no-causal", "--horizon", "3")


@paper
def c1() -> None:
    picture("papers/c1", "flow", "--preset", "c1")


@paper
def mask_decides() -> None:
    flow("mask-decides", "minus", "minus", "--n", "2", "--no-causal")


@paper
def half_space() -> None:
    flow("half-space", "minus", "saddle", "--start", "right.npy", "--no-causal", "--horizon", "5")


@paper
def one_head() -> None:
    picture("papers/one-head", "flow", "smollm2", "--head", "10.8", "--n", "8", "--norms", "off", "--horizon", "15")


@paper
def verdicts() -> None:
    """The verdict of each head of SmolLM2, with a dot where it survives the rounding of the file's weights."""
    toposcope("scan", "smollm2", "--json", "scan.json")
    heads = json.loads((KEPT / "scan.json").read_text())["heads"]
    names = {"converges": "converges", "diverges": "diverges", "not_convergent": "not convergent"}
    rows = [{**{key: head[key] for key in ("layer", "head")}, "verdict": names[head["verdict"]]} for head in heads]
    sure = [row for row, head in zip(rows, heads, strict=True) if head["robust"]]
    axes = {
        "x": {"field": "layer", "type": "ordinal", "axis": {"labelAngle": 0}},
        "y": {"field": "head", "type": "ordinal"},
    }
    scale = {"domain": list(names.values()), "range": [colour(name) for name in names]}
    cells = {"field": "verdict", "type": "nominal", "scale": scale, "title": None, "legend": {"orient": "top"}}
    dots = {"mark": {"type": "point", "filled": True, "color": "white", "size": 20}, "data": {"values": sure}}
    chart(
        "verdicts",
        rows,
        {"layer": [{"mark": "rect", "encoding": {**axes, "color": cells}}, {**dots, "encoding": axes}]},
    )


@paper
def absolute() -> None:
    flow(
        "absolute", "plus", "minus", "--n", "8", "--causal", "--encoding", "none", "--encoding", "sinusoidal",
        "--absolute", "reinject", "--horizon", "60",
    )  # fmt: skip


@paper
def encodings() -> None:
    names = (word for name in ("none", "rope", "alibi") for word in ("--encoding", name))
    flow("encodings", "plus", "minus", "--n", "8", "--no-causal", "--horizon", "60", *names)


@paper
def diagonal() -> None:
    flow("diagonal", "plus", "turned", "--n", "8", "--no-causal", "--encoding", "rope", "--add-diagonal", "3")


@paper
def helix_diagonal() -> None:
    picture("papers/helix-diagonal", "flow", "--preset", "helix", "--add-diagonal", "1")


# ------------------------------------------------------------------ the papers: content and position
@paper
def product() -> None:
    """Singular values of a random matrix, times RoPE's mean kernel, and times a single frequency."""
    content, offset = np.random.default_rng(0).standard_normal((64, 64)), np.subtract.outer(range(64), range(64))
    turning = rope(16).rotary
    assert turning is not None
    matrices = {
        "content": content,
        "times RoPE's mean kernel": content * np.cos(offset[..., None] * turning.frequencies()).mean(-1),
        "times one frequency": content * np.exp(0.7j * offset),
    }
    rows = [
        {"matrix": name, "number": i + 1, "value": float(value)}
        for name, matrix in matrices.items()
        for i, value in enumerate(np.linalg.svd(matrix, compute_uv=False))
    ]
    lines = {
        "mark": "line",
        "encoding": {
            "x": {"field": "number", "type": "quantitative", "title": "singular value, from the largest"},
            "y": {"field": "value", "type": "quantitative", "title": None},
            "color": {"field": "matrix", "type": "nominal", "title": None, "sort": list(matrices)},
            "strokeDash": {
                "field": "matrix",
                "type": "nominal",
                "legend": None,
                "scale": {"domain": list(matrices), "range": [[1, 0], [1, 0], [2, 5]]},
            },
        },
    }
    chart("product", rows, lines)


@paper
def alibi_two_ways() -> None:
    """ALiBi's matrix added to the logits, and as a factor after the exponential: norm over n, by context."""
    toposcope("spectrum", "alibi", "--context", "8k", "--json", "alibi.json")
    (found,) = json.loads((KEPT / "alibi.json").read_text())["encodings"]
    ways = {"added to the logits": "logit_points", "a factor after the exponential": "points"}
    rows = [
        {"seen as": way, "context": point["context"], "norm over n": point["lambda_max_over_n"]}
        for way, points in ways.items()
        for point in found[points]
    ]
    lines = {
        "mark": {"type": "line", "point": True},
        "encoding": {
            "x": {"field": "context", "type": "quantitative", "scale": {"type": "log", "base": 2}},
            "y": {"field": "norm over n", "type": "quantitative", "scale": {"type": "log"}},
            "color": {"field": "seen as", "type": "nominal", "title": None},
        },
    }
    chart("alibi-two-ways", rows, lines)


@paper
def shared_content() -> None:
    picture("papers/shared-content", "spectrum", "none", "rope", "rope:base=1000000", "alibi", "--context", "128k")


@paper
def shares() -> None:
    """Content, position and their interaction in the first layer of SmolLM2, as it is and under other encodings."""
    others = ("none", "alibi", "sinusoidal")
    words = [word for name in others for word in ("--encoding", name)]
    toposcope("scan", "smollm2", "--layers", "0", *words, "--json", "shares.json")
    found = json.loads((KEPT / "shares.json").read_text())
    splits = {"rope (its own)": found["spectra"]["first_layer"]}
    splits |= {each["encoding"]: each["first_layer"] for each in found["what_if"]}
    parts = {"content": "content", "position": "position", "coupling": "interaction"}
    rows = [
        {"encoding": name, "part": words, "share": float(np.mean([head[part] for head in heads]))}
        for name, heads in splits.items()
        for part, words in parts.items()
    ]
    bars = {
        "mark": "bar",
        "encoding": {
            "y": {"field": "encoding", "type": "nominal", "title": None, "sort": list(splits)},
            "x": {"field": "share", "type": "quantitative", "title": "share of the logits' variance"},
            "color": {"field": "part", "type": "nominal", "title": None, "sort": list(parts.values())},
        },
    }
    chart("shares", rows, bars)


@paper
def shared_part() -> None:
    """The logit norm ratio of noise plus a vector that all tokens share, by the size of that vector."""
    random, encoding = np.random.default_rng(0), rope(16)
    rows = []
    for size in (0.0, 0.25, 0.5, 1.0, 2.0, 4.0):
        for _ in range(40):
            common = size * random.standard_normal(16)
            q, k = random.standard_normal((2, 64, 16)) + common
            rows.append({"shared": size, "ratio": contraction(q, k, encoding).rho})
    dots = {
        "mark": {"type": "point", "filled": True, "opacity": 0.4},
        "encoding": {
            "x": {
                "field": "shared",
                "type": "ordinal",
                "title": "size of what all tokens share",
                "axis": {"labelAngle": 0},
            },
            "y": {"field": "ratio", "type": "quantitative", "title": "logit norm ratio", "scale": {"zero": False}},
        },
    }
    chart("shared-part", rows, dots)


@paper
def logit_norms() -> None:
    picture("papers/logit-norms", "trace", "smollm2", "--tokens", "128", "--sequences", "2")


def trained() -> list[dict[str, Any]]:
    """The results of the distance sweep of docs/papers.md."""
    encodings = "rope,none,sinusoidal,alibi,mla,rope@heads:0"
    toposcope("sweep", "--tasks", "distance", "--encodings", encodings, "--seeds", "1", "--json", "sweep.json")
    found = [json.loads(path.read_text()) for path in (KEPT / "runs").glob("*/result.json")]
    return [each for each in found if each["config"]["task"] == "distance"]


@paper
def distance_task() -> None:
    """How the distance is learned under each encoding."""
    rows = [
        {"encoding": run["config"]["encoding"], "step": point["step"], "accuracy": point["accuracy"]}
        for run in trained()
        for point in run["curve"]
    ]
    lines = {
        "mark": {"type": "line", "point": True},
        "encoding": {
            "x": {"field": "step", "type": "quantitative", "title": "training step"},
            "y": {"field": "accuracy", "type": "quantitative", "axis": {"format": "%"}},
            "color": {"field": "encoding", "type": "nominal", "title": None},
        },
    }
    chart("distance-task", rows, lines)


@paper
def deposit() -> None:
    """Accuracy on the distance task without each head of the first layer."""
    rows = [
        {"encoding": run["config"]["encoding"], "head": head, "accuracy": accuracy}
        for run in trained()
        if run["config"]["encoding"] != "none"
        for head, accuracy in enumerate(run["ablation"]["zero"][0]["accuracy"])
    ]
    cells = {
        "mark": "rect",
        "encoding": {
            "x": {
                "field": "head",
                "type": "ordinal",
                "title": "head of layer 0 that is removed",
                "axis": {"labelAngle": 0},
            },
            "y": {"field": "encoding", "type": "nominal", "title": None},
            "color": {
                "field": "accuracy",
                "type": "quantitative",
                "title": "accuracy left",
                "scale": {"domain": [0, 1], "scheme": "viridis"},
                "legend": {"format": "%"},
            },
        },
    }
    chart("deposit", rows, cells)


if __name__ == "__main__":
    main(sys.argv[1:])
