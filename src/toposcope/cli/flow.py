"""`toposcope flow`: let tokens flow in continuous time and see where they are driven, beside what a theorem says."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from toposcope.cli.common import (
    AdapterOption,
    CsvOption,
    FamilyOption,
    FigureOption,
    FullOption,
    HtmlOption,
    JsonOption,
    NumHeadsOption,
    console,
)
from toposcope.cli.deliver import check_names, deliver, watched
from toposcope.core.errors import BadValue

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
        str | None,
        typer.Option(
            "--text",
            metavar="FILE|NAME",
            help="Start from the embeddings of a text file, or of a name from 'toposcope ls texts' ([hf] extra).",
        ),
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
    tokens: Annotated[
        int | None, typer.Option("--tokens", "--n", metavar="N", help="How many tokens (default 32).")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Random seed.")] = 0,
    encoding: Annotated[
        list[str] | None,
        typer.Option("--encoding", metavar="SPEC", help="Positional encoding to use; repeat it to compare several."),
    ] = None,
    absolute: Annotated[
        str, typer.Option("--absolute", metavar="WHERE", help="Absolute vectors: at the input, reinject, or logits.")
    ] = "input",
    diagonal: Annotated[
        str, typer.Option("--add-diagonal", metavar="TAU|auto", help="Add tau x_i.x_j to every logit.")
    ] = "0",
    causal: Annotated[
        bool | None, typer.Option("--causal/--no-causal", help="Attention mask (default: the model's own).")
    ] = None,
    norms: Annotated[
        str | None,
        typer.Option("--norms", metavar="on|start|off", help="The model's norms: always, at the start, never."),
    ] = None,
    horizon: Annotated[float | None, typer.Option("--horizon", metavar="T", help="Integration time.")] = None,
    growth_cap: Annotated[
        float | None,
        typer.Option(
            "--growth-cap",
            metavar="X",
            help="Stop when tokens have grown so many fold (default: 1e4, of a layer 100).",
        ),
    ] = None,
    max_evaluations: Annotated[
        int, typer.Option("--max-evaluations", metavar="N", help="Stop after so many evaluations of the field.")
    ] = 20_000,
    rtol: Annotated[
        float | None,
        typer.Option(
            "--rtol", metavar="X", help="Relative tolerance of a step (default: 1e-4 for a MODEL, else 1e-6)."
        ),
    ] = None,
    position_effect: Annotated[
        bool,
        typer.Option(
            "--position-effect/--no-position-effect",
            help="Run the same start without position too and say what differs (up to twice the time).",
        ),
    ] = True,
    save: Annotated[
        str | None, typer.Option("--save", metavar="FILE.npz", help="Save the trajectory and all that was measured.")
    ] = None,
    movie: Annotated[
        str | None, typer.Option("--movie", metavar="FILE.gif", help="Write an animated picture.")
    ] = None,
    family: FamilyOption = None,
    num_heads: NumHeadsOption = None,
    adapter: AdapterOption = None,
    json: JsonOption = None,
    csv: CsvOption = None,
    html: HtmlOption = None,
    figure: FigureOption = None,
    full: FullOption = False,
    compare: Annotated[str | None, typer.Option("--compare", hidden=True)] = None,
    out: Annotated[str | None, typer.Option("--out", hidden=True)] = None,
    plot: Annotated[str | None, typer.Option("--plot", hidden=True)] = None,
    heads: Annotated[int | None, typer.Option("--heads", hidden=True, min=1)] = None,
) -> None:
    """Integrate dx_i/dt = V sum_j softmax(x_i'W x_j) x_j and record what becomes of the tokens.

    Give a MODEL with --head, --layer or --stack; or --W and --V; or --preset.
    """
    from toposcope.dynamics.flow import flow

    figure, save = figure or plot, save or out
    encodings = [*(encoding or ()), *(part.strip() for part in (compare or "").split(",") if part.strip())]
    check_names(figure)
    if movie is not None:
        from toposcope.report.movie import check_name

        check_name(movie)
        if len(encodings) > 1:
            raise BadValue("--movie shows one flow; with several encodings use --figure, or run them singly.")
    options: dict[str, Any] = {"absolute": absolute, "cloud": cloud, "norms": norms}
    with watched() as progress:
        result = flow(
            model, head=head, layer=layer, stack=stack, W=w, V=v, preset=preset, text=text, token_ids=token_ids,
            start=start, tokens=tokens, seed=seed, encoding=encodings, diagonal=diagonal, causal=causal,
            horizon=horizon, growth_cap=growth_cap, max_evaluations=max_evaluations, rtol=rtol,
            position_effect=position_effect, save=save, family=family, num_heads=num_heads or heads, adapter=adapter,
            progress=progress, **options,
        )  # fmt: skip
    if movie is not None:
        result.movie(movie)
    deliver(result, json=json, csv=csv, html=html, figure=figure, written=(save, movie), full=full)
    if not (movie or html or figure or "-" in (json, csv)):
        console().print("To watch the tokens move: --html flow.html, or --movie flow.gif.", soft_wrap=True)
