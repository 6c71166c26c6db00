"""What `toposcope` alone answers: the list of commands and the version, without the cost of importing typer."""

from __future__ import annotations

GROUPS = {
    "From weights": ("check", "inspect", "scan", "spectrum", "flow", "compare"),
    "On a text": ("trace", "ablate", "loss"),
    "Laboratory": ("train", "sweep", "runs", "reproduce", "refine"),
    "Share": ("report", "serve", "ls"),
}  # what 'toposcope --help' lists; the other commands exist too
COMMANDS = {
    "ablate": "Which heads does a model need? Remove them one by one.",
    "bench": "Speed and memory as ratios, in a checkout.",
    "check": "Is the positional encoding really there and in force?",
    "cite": "What to cite, as text or BibTeX.",
    "compare": "Two checkpoints head by head: what did tuning change?",
    "explain": "What brings an error about, and what helps.",
    "flow": "Let tokens flow under a model's weights, and watch.",
    "inspect": "Show a checkpoint's architecture, encoding and heads.",
    "loss": "What a text costs, and under another encoding.",
    "ls": "List known models, texts, families, encodings, tasks.",
    "refine": "Add a diagonal to a rotary model, tune it, compare.",
    "report": "Stored results as one HTML file to send around.",
    "reproduce": "Do the papers' claims hold? Train, measure, judge.",
    "runs": "List, show, remove or export finished and open runs.",
    "scan": "Where do these weights drive the tokens, head by head?",
    "schema": "The JSON Schema of what --json writes, by name.",
    "serve": "Explore encodings, flow, heads and runs in a browser.",
    "spectrum": "Is an encoding good for 128k tokens, and why?",
    "sweep": "Train many small models: which encoding learns what?",
    "train": "Train one small model on one task, and measure it.",
    "trace": "What heads do on a real text: position and patterns.",
}
EXAMPLES = {
    "ablate": "toposcope ablate smollm2 --layers 0 --tokens 64",
    "bench": "toposcope bench",
    "check": "toposcope check smollm2 --verbose",
    "cite": "toposcope cite --bibtex",
    "compare": "toposcope compare rxnfp/bert_pretrained rxnfp/bert_ft",
    "explain": "toposcope explain BadFile",
    "flow": "toposcope flow smollm2 --head 3.2 --html flow.html",
    "inspect": "toposcope inspect smollm2 --layers 0-3",
    "loss": "toposcope loss smollm2 --encoding none --sequences 2",
    "ls": "toposcope ls encodings",
    "refine": "toposcope refine smollm2 --out refined --steps 20",
    "report": "toposcope check smollm2 --json c.json && toposcope report c.json",
    "reproduce": "toposcope reproduce dynamics --size facts",
    "runs": "toposcope train --task distance --encoding rope && toposcope runs",
    "scan": "toposcope scan smollm2 --layers 0-3 --html scan.html",
    "schema": "toposcope schema check",
    "serve": "toposcope serve smollm2 --open",
    "spectrum": "toposcope spectrum rope alibi rope:scaling=yarn,factor=16",
    "sweep": "toposcope sweep --tasks distance --encodings rope,none --seeds 2",
    "train": "toposcope train --task distance --encoding rope",
    "trace": "toposcope trace smollm2 --layers 0-3 --sequences 2",
}

_HEAD = """Usage: toposcope COMMAND [OPTIONS]

  Toposcope shows what positional encoding does to the tokens of a
  Transformer. 'toposcope COMMAND --help' says more about each command.

Options:
  --version   Print the version and stop.
  -h, --help  Show this message and exit.
"""
_FOOT = """
  MODEL is a directory, a .safetensors, .gguf or torch file, org/name on the
  hub, or a name from 'toposcope ls models'.
"""


def overview() -> str:
    """The commands in their groups, with an example for each group."""
    groups = (
        "\n".join(
            [f"\n{group}:", *(f"  {name:9s}  {COMMANDS[name]}" for name in names), f"  $ {EXAMPLES[names[0]]}\n"]
        )
        for group, names in GROUPS.items()
    )
    return "".join([_HEAD, *groups, _FOOT])


def version() -> str:
    """The name and version of this program."""
    from toposcope._version import __version__

    return f"toposcope {__version__}\n"
