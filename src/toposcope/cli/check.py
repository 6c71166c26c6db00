"""`toposcope check MODEL`: is the positional encoding really there, in force, and of one kind?"""

from __future__ import annotations

from typing import Annotated

import typer

from toposcope.cli.common import (
    AdapterOption,
    CsvOption,
    DeviceMapOption,
    DeviceOption,
    DtypeOption,
    FamilyOption,
    HtmlOption,
    JsonOption,
    JunitOption,
    ModelArgument,
    NumHeadsOption,
    SarifOption,
    WeightsOption,
)
from toposcope.cli.deliver import deliver, watched
from toposcope.cli.texts import SequencesOption, TokensOption
from toposcope.core.errors import BadValue


def run(
    model: ModelArgument,
    family: FamilyOption = None,
    num_heads: NumHeadsOption = None,
    adapter: AdapterOption = None,
    weights: WeightsOption = True,
    live: Annotated[
        bool, typer.Option("--live", help="Run it too: does it do what its configuration says? (needs [hf])")
    ] = False,
    probes: Annotated[
        str | None,
        typer.Option(
            "--probes", metavar="NAMES", help="With --live, of fit,precision,parity,lengths,axes.", show_default="all"
        ),
    ] = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    device_map: DeviceMapOption = None,
    expect: Annotated[
        list[str] | None,
        typer.Option("--expect", metavar="ENCODING", help="Such as rope:scaling=yarn,factor=4; may be repeated."),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option("--against", metavar="MODEL|FILE.jsonl", help="Another engine: where do the two part, and why?"),
    ] = None,
    text: Annotated[
        str, typer.Option("--text", metavar="FILE|NAME|random", help="With --against two models: on this text.")
    ] = "wiki",
    tokens: TokensOption = 256,
    sequences: SequencesOption = 4,
    tolerance: Annotated[
        float | None,
        typer.Option("--tolerance", metavar="NATS", help="With --against: what counts.", show_default="measured"),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as failure too.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Explain what is in order too.")] = False,
    json: JsonOption = None,
    csv: CsvOption = None,
    html: HtmlOption = None,
    sarif: SarifOption = None,
    junit: JunitOption = None,
) -> None:
    """Test a checkpoint's positional encoding; exit code 1 when a fault is found (with --strict, a warning).

    MODEL may be a config.json without weights ('-': standard input). With --live the model is run, and what it does
    to queries, keys and logits is compared with what it should do. With --against another model, or a file of
    log-probabilities that another engine wrote, both are run on the same tokens; exit code 1 where they part.
    """
    if against is not None:
        if live or expect or sarif or junit:
            raise BadValue("--against stands alone: leave out --live, --expect, --sarif and --junit.")
        _against(
            model, against, text=text, tokens=tokens, sequences=sequences, tolerance=tolerance,
            json=json, csv=csv, html=html, verbose=verbose,
        )  # fmt: skip
        return
    from toposcope.checks.expected import ID
    from toposcope.live.check import check

    with watched() as progress:
        result = check(
            model, live=live, probes=probes.split(",") if probes else None, family=family, num_heads=num_heads,
            adapter=adapter, weights=weights, device=device, dtype=dtype, device_map=device_map, expect=expect,
            progress=progress,
        )  # fmt: skip
    deliver(result, json=json, csv=csv, html=html, sarif=sarif, junit=junit, full=verbose)
    unmet = any(finding.id == ID and finding.status != "ok" for finding in result.findings)
    if unmet or result.worst == "fault" or (strict and result.worst == "warning"):
        raise typer.Exit(1)


def _against(
    model: str,
    other: str,
    *,
    text: str,
    tokens: int,
    sequences: int,
    tolerance: float | None,
    json: str | None,
    csv: str | None,
    html: str | None,
    verbose: bool,
) -> None:
    from toposcope.live.engines.against import against

    with watched() as progress:
        result = against(
            model, other, text=text, tokens=tokens, sequences=sequences, tolerance=tolerance, progress=progress
        )
    deliver(result, json=json, csv=csv, html=html, full=verbose)
    if result.outcome != "equal":
        raise typer.Exit(1)
