"""The walk leaves no option out by which a command writes a file."""

from __future__ import annotations

import importlib
import inspect
from typing import Any, get_args

import pytest
import typer

from tests.faults.cases import CASES
from toposcope.cli import COMMANDS

READ = {"--text", "--W", "--V", "--start", "--adapter", "--against"}  # files that are only read
ELSEWHERE = {"bench", "serve"}  # see the docstring of cases.py


def file_options(name: str) -> set[str]:
    """The options of a command that take a file or a directory, by what its help says of them."""
    run = importlib.import_module(f"toposcope.cli.{name}").run
    found = set()
    for parameter in inspect.signature(run, eval_str=True).parameters.values():
        for about in get_args(parameter.annotation)[1:]:
            said = str(getattr(about, "metavar", None) or "")
            if isinstance(about, typer.models.OptionInfo) and ("FILE" in said or "DIR" in said):
                found |= {word for word in (about.default, *(about.param_decls or ())) if str(word).startswith("--")}
    return found


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - ELSEWHERE))
def test_every_option_that_writes_is_in_some_case(name: str) -> None:
    mine: list[tuple[Any, ...]] = [case.arguments for case in CASES if case.arguments[:1] == (name,)]
    walked = {word for arguments in mine for word in arguments}
    assert file_options(name) - READ <= walked, f"options of {name} that the walk leaves out"


def test_options_are_found() -> None:
    assert file_options("scan") == {"--out", "--json", "--csv", "--html", "--figure", "--adapter"}
    assert file_options("flow") > {"--movie", "--save", "--figure", *READ} - {"--against"}
