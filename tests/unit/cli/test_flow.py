"""`toposcope flow` as a user meets it, on the core install and on small models."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.unit.tiny import write_llama
from toposcope.checkpoints import load
from toposcope.checkpoints.attention import attention, output, project
from toposcope.cli import main
from toposcope.core.errors import BadValue
from toposcope.dynamics.run import run
from toposcope.dynamics.sources import head_problem, layer_problem, stack_problem
from toposcope.dynamics.tokens import drawn_tokens, embeddings, gaussian_tokens
from toposcope.dynamics.trajectory import Status, Trajectory

CORE = """
import sys
for name in ("torch", "transformers", "matplotlib", "vl_convert"):
    sys.modules[name] = None
from toposcope.cli import main
main(sys.argv[1:])
"""


def core(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", CORE, *arguments],
        capture_output=True,
        text=True,
        env={"COLUMNS": "80", "PATH": "", "LANG": "C.UTF-8", "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(["flow", *arguments])
    printed = capsys.readouterr()
    return int(stop.value.code or 0), printed.out, printed.err


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_llama(tmp_path / "m")


def test_a_preset_prints_a_verdict_beside_what_was_observed() -> None:
    out = core("flow", "--preset", "explode", "--tokens", "6", "--full")
    assert out.returncode == 0, out.stderr
    assert "Thm 4a" in out.stdout
    assert "--html" in out.stdout  # a table does not move: how to watch it
    assert "10,000" in next(line for line in out.stdout.splitlines() if line.startswith("  largest norm"))
    assert max(map(len, out.stdout.splitlines())) <= 80


def test_with_a_page_the_answer_is_printed_and_everything_with_full(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "3000")
    page = str(tmp_path / "f.html")
    printed = call(capsys, "--preset", "explode", "--n", "6", "--html", page)[1].splitlines()
    assert "explode" in printed[0]
    assert all(any(words in line for line in printed) for words in ("6 tokens", "Thm 4a", "  toposcope flow"))
    assert printed[-1] == f"Written: {page}"
    full = call(capsys, "--preset", "explode", "--n", "6", "--html", page, "--full")[1].splitlines()
    assert len(full) > len(printed) + 10


def test_json_on_standard_output_is_nothing_but_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "--preset", "metastable", "--json", "-")
    assert code == 0
    result = json.loads(out)
    assert result["schema"] == "toposcope/flow/2"
    flow = result["flows"][0]
    assert flow["verdict"]["verdict"] == "converges"
    assert flow["verdict"]["rule"] == "T6"
    assert flow["status"] == "at_rest"
    assert flow["agreement"] == "not_yet"
    assert len(flow["observables"]["time"]) == len(flow["observables"]["norm_max"])


def test_a_diagonal_and_an_encoding_change_the_helix(capsys: pytest.CaptureFixture[str]) -> None:
    ends = {}
    for name, extra in {"stays": (), "diagonal": ("--add-diagonal", "1"), "none": ("--encoding", "none")}.items():
        _, out, _ = call(capsys, "--preset", "helix", "--json", "-", *extra)
        ends[name] = json.loads(out)["flows"][0]["observables"]["norm_max"][-1]
    assert ends["stays"] == pytest.approx(1.33, abs=0.01)
    assert ends["diagonal"] < 0.1
    assert ends["none"] < 0.1


def test_matrices_from_files_and_a_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "w.npy", np.eye(3))
    np.save(tmp_path / "v.npy", -np.eye(3))
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((4, 3)))
    given = ("--W", str(tmp_path / "w.npy"), "--V", str(tmp_path / "v.npy"), "--start", str(tmp_path / "x.npy"))
    code, out, _ = call(capsys, *given, "--horizon", "100", "--save", str(tmp_path / "f.npz"))
    assert code == 0
    assert "Thm 6" in out
    saved = Trajectory.load(tmp_path / "f.npz")
    assert saved.status is Status.CONVERGED
    assert saved.count == 4


def test_encodings_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    encodings = [word for name in ("none", "alibi", "absolute") for word in ("--encoding", name)]
    code, out, _ = call(capsys, "--preset", "collapse", "--n", "6", *encodings)
    assert code == 0
    lines = {line.split("  ")[1].strip(): line.split() for line in out.splitlines() if line.startswith("  ")}
    assert lines["at end" if "at end" in lines else "at the end"][-3:] == ["none", "alibi", "absolute"]
    assert lines["verdict"][1] == "converges"
    assert len(lines["mean distance"]) == 5
    assert call(capsys, "--preset", "collapse", "--n", "6", "--compare", "none,alibi,absolute")[1] == out


def test_pictures_and_movies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from PIL import Image

    monkeypatch.setattr("toposcope.dynamics.trajectory.FRAMES", 22)

    names = [str(tmp_path / name) for name in ("a.png", "a.gif", "b.svg", "c.pdf")]
    assert call(capsys, "--preset", "clusters", "--n", "12", "--figure", names[0], "--movie", names[1])[0] == 0
    assert call(capsys, "--preset", "collapse", "--n", "5", "--compare", "none,alibi", "--figure", names[2])[0] == 0
    assert call(capsys, "--preset", "c1", "--plot", names[3])[0] == 0  # a single token has no cosine to draw
    with Image.open(names[0]) as picture, Image.open(names[1]) as movie:
        assert picture.size[0] > 1000
        assert movie.n_frames > 20
    assert b"<svg" in Path(names[2]).read_bytes()[:400]
    assert Path(names[3]).read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize(("option", "name"), [("--figure", "x.png"), ("--movie", "x.gif")])
def test_pictures_without_their_library_say_how_to_get_it(tmp_path: Path, option: str, name: str) -> None:
    out = core("flow", "--preset", "collapse", option, str(tmp_path / name))
    assert out.returncode == 2
    assert "toposcope[plot]" in out.stderr
    assert not (tmp_path / name).exists()


def test_a_text_without_a_tokenizer_library_says_how_to_get_it(model: Path, tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("to be or not to be")
    out = core("flow", str(model), "--head", "0.0", "--text", str(tmp_path / "t.txt"))
    assert out.returncode == 2
    assert "toposcope[hf]" in out.stderr


def test_head_layer_and_stack_of_a_model(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for place in (("--head", "1.3"), ("--layer", "2"), ("--stack",)):
        code, out, err = call(capsys, str(model), *place, "--n", "5", "--max-evaluations", "400", "--json", "-")
        assert code == 0, err
        result = json.loads(out)
        assert result["provenance"]["subjects"][0]["family"] == "llama"
        assert result["flows"][0]["tokens"] == 5
        assert result["flows"][0]["evaluations"] <= 400
    many = ("--encoding", "own", "--encoding", "rope", "--encoding", "none")
    code, out, _ = call(capsys, str(model), "--head", "0.1", "--token-ids", "3,1,2", *many, "--json", "-")
    assert code == 0
    own, rope, none = json.loads(out)["flows"]
    assert own["observables"] == rope["observables"] != none["observables"]


def test_the_fields_of_a_real_layer_are_its_attention(model: Path) -> None:
    with load(model) as opened:
        x = drawn_tokens(opened, 6, 0)
        layer = opened.layers[1]
        _, _, values = project(layer, x)
        wanted = output(layer, attention(layer, x), values)
        problem = layer_problem(opened, 1, x, norms="on")
        assert np.allclose(problem.pieces[0].make()(problem.start), wanted, atol=1e-10)
        first = layer_problem(opened, 1, x, norms="start")
        assert np.allclose(first.pieces[0].make()(first.start), wanted, atol=1e-8)
        stacked = stack_problem(opened, x)
        assert len(stacked.pieces) == 3
        assert np.allclose(stacked.pieces[1].make()(x), wanted, atol=1e-10)


@pytest.mark.parametrize("norms", ["on", "start"])
def test_the_reduced_run_of_a_head_is_the_full_one(model: Path, norms: str) -> None:
    with load(model) as opened:
        x = 0.3 * embeddings(opened, np.array([1, 5, 2, 9]))
        small = head_problem(opened, 0, 2, x, norms=norms)
        whole = head_problem(opened, 0, 2, x, norms=norms, reduced=False)
        options = {"horizon": 0.05, "rtol": 1e-9, "growth_cap": 1e6}
        a, b = run(small, **options), run(whole, **options)
        tokens = small.pieces[0].make().tokens(a.final)
        assert a.final.shape == (4, 4)
        assert np.abs(b.final - whole.start).max() > 1e-3
        assert np.abs(tokens - b.final).max() < 1e-6 * np.abs(b.final).max()


def test_clouds_are_repeatable_and_of_the_embeddings_shape(model: Path) -> None:
    with load(model) as opened:
        assert np.array_equal(drawn_tokens(opened, 4, 1), drawn_tokens(opened, 4, 1))
        assert not np.array_equal(drawn_tokens(opened, 4, 1), drawn_tokens(opened, 4, 2))
        cloud = gaussian_tokens(opened, 4000, 0)
        table = opened.token_embedding()
        assert table is not None
        assert np.abs(np.cov(cloud.T) - np.cov(table.T)).max() < 0.35
        with pytest.raises(BadValue, match="vocabulary"):
            embeddings(opened, np.array([99]))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "nothing"),
        (("--preset", "helx"), "helix"),
        (("--W", "{tmp}/w.npy"), "belong together"),
        (("--W", "{tmp}/w.npy", "--V", "{tmp}/nowhere.npy"), "nowhere.npy"),
        (("--W", "{tmp}/w.npy", "--V", "{tmp}/text.npy"), "text.npy"),
        (("--W", "{tmp}/w.npy", "--V", "{tmp}/wide.npy"), "square"),
        (("--W", "{tmp}/w.npy", "--V", "{tmp}/nan.npy"), "NaN"),
        (("--W", "{tmp}/w.npy", "--V", "{tmp}/three.npy"), "same square"),
        (("--W", "{tmp}/w.npy", "--V", "{tmp}/w.npy", "--start", "{tmp}/three.npy"), "expected"),
        (("--preset", "collapse", "--n", "0"), "one token"),
        (("--preset", "collapse", "--horizon", "-2"), "positive"),
        (("--preset", "collapse", "--add-diagonal", "some"), "auto"),
        (("--preset", "collapse", "--encoding", "rpoe"), "rope"),
        (("--preset", "collapse", "--plot", "x.bmp"), ".png"),
        (("--preset", "collapse", "--encoding", "none", "--encoding", "alibi", "--save", "x.npz"), "one flow"),
        (("--preset", "collapse", "--encoding", "none", "--encoding", "alibi", "--movie", "x.gif"), "one flow"),
        (("--preset", "collapse", "--movie", "x.mp4"), ".gif"),
        (("--preset", "collapse", "--head", "1.1"), "MODEL"),
        (("--preset", "collapse", "--absolute", "there"), "reinject"),
        (("{tmp}/m",), "stack"),
        (("{tmp}/m", "--head", "7.0"), "to 2"),
        (("{tmp}/m", "--head", "0.9"), "to 3"),
        (("{tmp}/m", "--head", "five"), "five"),
        (("{tmp}/m", "--head", "1.0-2"), "one head"),
        (("{tmp}/m", "--head", "0.0", "--layer", "1"), "one of"),
        (("{tmp}/m", "--layer", "0", "--token-ids", "1,x"), "token numbers"),
        (("{tmp}/m", "--layer", "0", "--token-ids", "1,900"), "vocabulary"),
        (("{tmp}/m", "--layer", "0", "--cloud", "round"), "isotropic"),
        (("{tmp}/m", "--layer", "0", "--norms", "maybe"), "start"),
        (("{tmp}/nowhere", "--layer", "0"), "nowhere"),
        (("{tmp}/m", "--preset", "helix"), "one source"),
    ],
)
def test_a_mistake_gets_a_sentence_and_exit_code_2(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    np.save(tmp_path / "w.npy", np.eye(2))
    np.save(tmp_path / "three.npy", np.eye(3))
    np.save(tmp_path / "wide.npy", np.ones((2, 3)))
    np.save(tmp_path / "nan.npy", np.full((2, 2), np.nan))
    (tmp_path / "text.npy").write_text("not an array")
    code, out, err = call(capsys, *(argument.format(tmp=tmp_path) for argument in arguments))
    assert code == 2, out + err
    assert words in err
    assert out == ""


@pytest.mark.parametrize(
    "arguments", [(), ("--head", "1.0", "--stack"), ("--stack", "--text", "a", "--start", "b"), ("--head", "x")]
)
def test_mistakes_are_told_before_the_model_is_opened(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setattr("toposcope.dynamics.flow.opened", lambda *_, **__: pytest.fail("the model was opened"))
    code, _, error = call(capsys, "smollm2", *arguments)
    assert code == 2
    assert "x" in error if "x" in arguments else "--st" in error  # options as a user types them


def test_one_token_and_a_run_that_never_ends(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "--preset", "collapse", "--n", "1")
    assert code == 0
    assert "single token" in " ".join(out.split())
    code, out, _ = call(capsys, "--preset", "collapse", "--horizon", "1e12", "--max-evaluations", "60", "--json", "-")
    assert code == 0
    assert json.loads(out)["flows"][0]["status"] == "exhausted"


def test_tokens_of_your_own_are_not_given_the_models_positions_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--start takes tokens in which position is already; those of the vocabulary do get the vectors."""
    random, width = np.random.default_rng(0), 8
    shapes = {
        "wte.weight": (12, width),
        "wpe.weight": (16, width),
        "h.0.ln_1.weight": (width,),
        "h.0.ln_1.bias": (width,),
        "h.0.attn.c_attn.weight": (width, 3 * width),
        "h.0.attn.c_attn.bias": (3 * width,),
        "h.0.attn.c_proj.weight": (width, width),
        "h.0.attn.c_proj.bias": (width,),
    }
    directory = tmp_path / "gpt2"
    directory.mkdir()
    tensors = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    save_file(tensors, directory / "model.safetensors")
    config = {"model_type": "gpt2", "n_embd": width, "n_head": 2, "n_layer": 1, "n_positions": 16}
    (directory / "config.json").write_text(json.dumps(config))
    own = random.standard_normal((5, width))
    np.save(tmp_path / "own.npy", own)
    common = (str(directory), "--layer", "0", "--norms", "off", "--horizon", "0.1", "--save", str(tmp_path / "f.npz"))
    code, _, error = call(capsys, *common, "--start", str(tmp_path / "own.npy"))
    assert code == 0, error
    np.testing.assert_allclose(Trajectory.load(tmp_path / "f.npz").tokens[0], own)
    code, _, error = call(capsys, *common, "--token-ids", "3,4,5")
    assert code == 0, error
    embedded = tensors["wte.weight"][[3, 4, 5]].astype(np.float64) + tensors["wpe.weight"][:3]
    np.testing.assert_allclose(Trajectory.load(tmp_path / "f.npz").tokens[0], embedded, rtol=1e-6)
