"""`toposcope flow`: let tokens flow in continuous time and see where they are driven, beside what a theorem says."""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toposcope.cli.common import FamilyOption, FigureOption, HeadsOption, HtmlOption, JsonOption, console, safe
from toposcope.cli.flow_words import print_one, print_side_by_side
from toposcope.core.printable import LONGEST_TEXT, printable

if TYPE_CHECKING:
    from toposcope.checkpoints.view import Model
    from toposcope.dynamics.agreement import Agreement
    from toposcope.dynamics.record import FlowResult
    from toposcope.dynamics.regime import Regime
    from toposcope.dynamics.run import Problem
    from toposcope.encodings import Encoding

PRESET_NAMES = "collapse, explode, helix, clusters, c1, c1-mirror, metastable"


def run(
    model: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL]", help="Directory, file, or a name from 'toposcope ls models'."),
    ] = None,
    head: Annotated[str | None, typer.Option("--head", metavar="L.H", help="Head H of layer L, alone.")] = None,
    layer: Annotated[int | None, typer.Option("--layer", metavar="L", help="All heads of layer L together.")] = None,
    stack: Annotated[bool, typer.Option("--stack", help="All layers in turn, a unit of time each.")] = False,
    w: Annotated[str | None, typer.Option("--W", metavar="FILE.npy", help="A system of your own: W,")] = None,
    v: Annotated[str | None, typer.Option("--V", metavar="FILE.npy", help="and its V, of the same size.")] = None,
    preset: Annotated[str | None, typer.Option("--preset", metavar="NAME", help=f"One of {PRESET_NAMES}.")] = None,
    text: Annotated[
        str | None, typer.Option("--text", metavar="FILE", help="Start from a text's token embeddings ([hf] extra).")
    ] = None,
    token_ids: Annotated[
        str | None, typer.Option("--token-ids", metavar="12,7,400", help="Start from these tokens' embeddings.")
    ] = None,
    cloud: Annotated[
        str,
        typer.Option("--cloud", metavar="KIND", help="Without a text: vocabulary, covariance or isotropic."),
    ] = "vocabulary",
    start: Annotated[
        str | None, typer.Option("--start", metavar="FILE.npy", help="Start from these tokens, one in each row.")
    ] = None,
    n: Annotated[
        int | None, typer.Option("--n", "--tokens", metavar="N", help="How many tokens (default 32).")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of every random choice.")] = 0,
    encoding: Annotated[
        str | None,
        typer.Option("--encoding", metavar="SPEC", help="Encode position so (default: as the model does)."),
    ] = None,
    absolute: Annotated[
        str, typer.Option("--absolute", metavar="WHERE", help="Absolute vectors: at the input, reinject, or logits.")
    ] = "input",
    add_diagonal: Annotated[
        str | None, typer.Option("--add-diagonal", metavar="TAU|auto", help="Add tau x_i.x_j to every logit.")
    ] = None,
    causal: Annotated[
        bool | None, typer.Option("--causal/--no-causal", help="Mask the future, or not (default: as the model).")
    ] = None,
    norms: Annotated[
        str | None,
        typer.Option("--norms", metavar="on|start|off", help="The model's norms: always, at the start, never."),
    ] = None,
    horizon: Annotated[float | None, typer.Option("--horizon", metavar="T", help="How long to look.")] = None,
    growth_cap: Annotated[
        float, typer.Option("--growth-cap", metavar="X", help="Stop when tokens have grown so many fold.")
    ] = 1e4,
    max_evaluations: Annotated[
        int, typer.Option("--max-evaluations", metavar="N", help="Stop after so many evaluations of the field.")
    ] = 6000,
    rtol: Annotated[float, typer.Option("--rtol", help="Relative tolerance of a step.")] = 1e-6,
    compare: Annotated[
        str | None, typer.Option("--compare", metavar="A,B,..", help="Encodings side by side: none,rotary,absolute.")
    ] = None,
    json: JsonOption = None,
    out: Annotated[
        str | None, typer.Option("--out", metavar="FILE.npz", help="Save trajectories and all that was measured.")
    ] = None,
    html: HtmlOption = None,
    figure: FigureOption = None,
    plot: Annotated[str | None, typer.Option("--plot", metavar="FILE", help="Draw to .png, .svg or .pdf.")] = None,
    movie: Annotated[
        str | None, typer.Option("--movie", metavar="FILE.gif", help="Write an animated picture.")
    ] = None,
    family: FamilyOption = None,
    heads: HeadsOption = None,
) -> None:
    """Integrate dx_i/dt = V sum_j softmax(x_i'W x_j) x_j and record what becomes of the tokens.

    Give a MODEL with --head, --layer or --stack; or --W and --V; or --preset.
    """
    from toposcope.cli.pictures import checked_figure, write_pictures
    from toposcope.core.errors import BadValue
    from toposcope.core.results import emit_json, envelope, subject
    from toposcope.dynamics import agreement
    from toposcope.dynamics.plots import trajectory
    from toposcope.dynamics.run import run as integrate

    started = time.perf_counter()
    _one_source(model, w, v, preset)
    _checked_names(plot, movie, out, compare)
    checked_figure(figure)
    if absolute not in ("input", "reinject", "logits"):
        raise BadValue(f"--absolute is input, reinject or logits, got '{absolute}'.")
    opened, about = None, None
    options = {
        "head": head,
        "layer": layer,
        "stack": stack,
        "W": w,
        "V": v,
        "preset": preset,
        "text": text,
        "token_ids": token_ids,
        "cloud": cloud if model else None,
        "start": start,
        "tokens": n,
        "encoding": encoding,
        "absolute": absolute,
        "add_diagonal": add_diagonal,
        "causal": causal,
        "norms": norms,
        "horizon": horizon,
        "growth_cap": growth_cap,
        "max_evaluations": max_evaluations,
        "rtol": rtol,
        "compare": compare,
        "seed": seed,
    }
    shared: dict[str, Any] = {"absolute": absolute, "diagonal": _tau(add_diagonal)}
    if causal is not None:
        shared["causal"] = causal
    make: Callable[[str | None], Problem]
    if model is not None:
        from toposcope.checkpoints import load

        opened = load(model, family=family, heads=heads)
        tokens, described = _model_tokens(opened, text, token_ids, cloud, start, n, seed)
        make = _from_model(opened, head, layer, stack, tokens, norms, shared, positioned=start is not None)
        title = f"{opened.path.name} ({opened.family}): {described}"
    else:
        if text or token_ids or head or layer is not None or stack:
            raise BadValue("--text, --token-ids, --head, --layer and --stack belong to a MODEL, and none is given.")
        make, title = _from_matrices(w, v, preset, start, n, seed, shared)
    try:
        found: list[tuple[Problem, FlowResult, Regime | None, Agreement]] = []
        wanted: list[str | None] = [encoding]
        if compare:
            wanted = [part.strip() for part in compare.split(",")]
        with _clock(len(wanted)) as tick:
            for i, each in enumerate(wanted):
                problem = make(each)
                result = integrate(
                    problem,
                    horizon=horizon,
                    rtol=rtol,
                    growth_cap=growth_cap,
                    max_evaluations=max_evaluations,
                    tick=_later(tick, i),
                )
                verdict = problem.decide()
                found.append((problem, result, verdict, agreement.compare(verdict, result)))
        if opened is not None:
            about = subject(opened)
    finally:
        if opened is not None:
            opened.close()
    results = [result for _, result, _, _ in found]
    written = _write_files(results, wanted, out, plot, movie)
    body = {
        "flows": [
            {
                **result.as_dict(),
                "verdict": _verdict_dict(verdict),
                "agreement": word.word,
                "observed": word.sentence,
                "trajectory": trajectory(result),
            }
            for _, result, verdict, word in found
        ]
    }
    whole = envelope("flow", body, about=about, options=options, seconds=time.perf_counter() - started)
    if json:
        emit_json(whole, json)
    written += write_pictures([whole], html, figure, title=title.splitlines()[0])
    if json != "-":
        screen = console()
        for line in title.splitlines():
            told = textwrap.fill(line, 80, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
            screen.print(f"[bold]{safe(told, LONGEST_TEXT)}[/bold]", soft_wrap=True)
        if compare:
            print_side_by_side(screen, wanted, [(result, verdict, word) for _, result, verdict, word in found])
        else:
            print_one(screen, *found[0][1:])
        for name in written:
            screen.print(f"Written: {name}", soft_wrap=True)


def _later(tick: Callable[[float], None], done: int) -> Callable[[float], None]:
    return lambda share: tick(done + share)


# ------------------------------------------------------------------ what was asked for
def _one_source(model: str | None, w: str | None, v: str | None, preset: str | None) -> None:
    from toposcope.core.errors import BadValue

    if (w is None) != (v is None):
        raise BadValue("--W and --V belong together; one of them is missing.")
    given = [
        name for name, value in (("MODEL", model), ("--W and --V", w), ("--preset", preset)) if value is not None
    ]
    if len(given) > 1:
        raise BadValue(f"{' and '.join(given)} are given; a flow has one source. Leave one out.")
    if not given:
        raise BadValue("nothing to flow: give a MODEL with --head, --layer or --stack, or --W and --V, or --preset.")


def _checked_names(plot: str | None, movie: str | None, out: str | None, compare: str | None) -> None:
    """Complain about file names before the work, not after it."""
    from toposcope.core.errors import BadValue

    if plot and not plot.lower().endswith((".png", ".svg", ".pdf")):
        raise BadValue(f"cannot draw to '{plot}': its name must end in .png, .svg or .pdf.")
    if movie and not movie.lower().endswith(".gif"):
        raise BadValue(f"cannot write the movie '{movie}': its name must end in .gif.")
    if compare and (out or movie):
        raise BadValue("--out and --movie hold one flow; with --compare, use --plot or --json, or run them singly.")
    if plot or movie:
        from toposcope.dynamics.plots import require_matplotlib

        require_matplotlib()


def _tau(text: str | None) -> float | str:
    from toposcope.core.errors import BadValue
    from toposcope.core.ranges import computable

    if text is None:
        return 0.0
    if text.strip().lower() == "auto":
        return "auto"
    try:
        tau = float(text)
    except ValueError as error:
        raise BadValue(f"--add-diagonal takes a number or 'auto', got '{printable(text, 80)}'.") from error
    if not computable(tau):
        raise BadValue(f"--add-diagonal {tau:g} is too large or too small a number to compute with.")
    return tau


def _model_tokens(
    model: Model,
    text: str | None,
    token_ids: str | None,
    cloud: str,
    start: str | None,
    n: int | None,
    seed: int,
) -> tuple[Any, str]:
    """The tokens a model's flow starts from, and words for them."""
    from toposcope.core.errors import BadValue, did_you_mean
    from toposcope.dynamics import tokens as source

    chosen = [name for name, value in (("--text", text), ("--token-ids", token_ids), ("--start", start)) if value]
    if len(chosen) > 1:
        raise BadValue(f"{' and '.join(chosen)} are given; tokens come from one of them.")
    count = 32 if n is None else n
    if count < 1:
        raise BadValue(f"a flow needs at least one token, got --n {count}.")
    if text:
        ids = source.text_ids(model, text, count)
        return source.embeddings(model, ids), f"the first {len(ids)} tokens of {text}"
    if token_ids:
        ids = source.read_ids(token_ids)
        return source.embeddings(model, ids), f"{len(ids)} tokens as given"
    if start:
        table = source.read_array(start, "tokens in rows")
        return table, f"tokens from {start}"
    if cloud == "vocabulary":
        return source.drawn_tokens(model, count, seed), f"{count} random tokens of the vocabulary, seed {seed}"
    if cloud == "covariance":
        words = f"{count} random vectors with the embedding's covariance, seed {seed}"
        return source.gaussian_tokens(model, count, seed), words
    if cloud == "isotropic":
        width = model.layers[0].spec.width
        return source.isotropic(count, width, seed), f"{count} random vectors, seed {seed}"
    raise BadValue(f"'{cloud}' is no kind of cloud. {did_you_mean(cloud, ['vocabulary', 'covariance', 'isotropic'])}")


def _from_model(
    model: Model,
    head: str | None,
    layer: int | None,
    stack: bool,
    tokens: Any,
    norms: str | None,
    shared: dict[str, Any],
    *,
    positioned: bool,
) -> Callable[[str | None], Problem]:
    """The problem for an encoding; tokens that are `positioned` already are not given the model's vectors again."""
    from toposcope.core.errors import BadValue
    from toposcope.dynamics import sources

    def own(number: int, encoding: str | None) -> Encoding | str | None:
        if encoding is not None or not positioned or not 0 <= number < len(model.layers):
            return encoding
        return replace(model.layers[number].encoding, input=None)

    asked = [name for name, on in (("--head", head), ("--layer", layer is not None), ("--stack", stack)) if on]
    if len(asked) != 1:
        raise BadValue(f"give one of --head L.H, --layer L or --stack; got {' and '.join(asked) or 'none of them'}.")
    if norms is not None:
        shared = {**shared, "norms": norms}
    if head is not None:
        first, dot, second = head.partition(".")
        if not (dot and first.isdecimal() and second.isdecimal()):
            raise BadValue(f"'{head}' is not a head. Write layer and head as 5.3.")
        return lambda encoding: sources.head_problem(
            model, int(first), int(second), tokens, encoding=own(int(first), encoding), **shared
        )
    if layer is not None:
        return lambda encoding: sources.layer_problem(model, layer, tokens, encoding=own(layer, encoding), **shared)
    return lambda encoding: sources.stack_problem(model, tokens, encoding=encoding, **shared)


def _from_matrices(
    w: str | None,
    v: str | None,
    preset: str | None,
    start: str | None,
    n: int | None,
    seed: int,
    shared: dict[str, Any],
) -> tuple[Callable[[str | None], Problem], str]:
    from toposcope.dynamics.flow import matrices, square
    from toposcope.dynamics.presets import find_preset
    from toposcope.dynamics.tokens import isotropic, read_array

    given: dict[str, Any]
    if preset is not None:
        chosen = find_preset(preset)
        given = {**chosen.arguments(n, seed), "title": chosen.name}
        title = f"{chosen.name}: {chosen.sentence}"
        for change, effect in chosen.changes.items():
            title += f"\n  try {change}: {effect}"
    else:
        assert w is not None
        assert v is not None
        W, V = square(read_array(w, "W"), "W"), square(read_array(v, "V"), "V")
        given = {"W": W, "V": V, "x0": isotropic(32 if n is None else n, len(V), seed)}
        title = f"W from {w}, V from {v}"
    if start is not None:
        given["x0"] = read_array(start, "tokens in rows")

    def make(encoding: str | None) -> Problem:
        used = {**given, **shared, **({} if encoding is None else {"encoding": encoding})}
        return matrices(used.pop("W"), used.pop("V"), used.pop("x0"), **used)

    return make, title


# ------------------------------------------------------------------ what came out
def _write_files(
    results: list[FlowResult], names: list[str | None], out: str | None, plot: str | None, movie: str | None
) -> list[str]:
    from dataclasses import replace

    written = []
    if out:
        results[0].save(out)
        written.append(out)
    if plot:
        from toposcope.dynamics.plots import draw

        several = len(results) > 1
        titles = [f"{r.title}: {name}" if several else r.title for r, name in zip(results, names, strict=True)]
        draw([replace(r, title=title) for r, title in zip(results, titles, strict=True)], plot)
        written.append(plot)
    if movie:
        from toposcope.dynamics.plots import animate

        animate(results[0], movie)
        written.append(movie)
    return written


def _verdict_dict(verdict: Regime | None) -> dict[str, Any] | None:
    if verdict is None:
        return None
    return {
        "verdict": verdict.verdict.value,
        "rule": verdict.rule,
        "scope": verdict.scope,
        "exact": verdict.exact,
        "margin": verdict.margin,
        "statement": verdict.statement,
        "alpha": verdict.alpha,
        "omega": verdict.omega,
        "warnings": list(verdict.warnings),
    }


@contextmanager
def _clock(flows: int) -> Iterator[Callable[[float], None]]:
    """A progress bar over the flows' horizons, only where a person is watching."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console(to_stderr=True), transient=True) as bar:
        task = bar.add_task("flowing", total=flows)
        yield lambda done: bar.update(task, completed=done)
