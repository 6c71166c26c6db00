"""Write the confusion matrix of `check --against` into docs/against.md: every plant, three seeds, on SmolLM2.

python -m tests.against [--layers 6] [--tokens 96] [--seeds 3] [--write]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.against.table import judged, markdown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=None, help="keep so many of SmolLM2's 30 layers")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="into docs/against.md")
    given = parser.parse_args()
    rows = []
    for row in judged(given.layers, given.tokens, range(given.seeds)):
        rows.append(row)
        print(row.line(), flush=True)
    text = markdown(rows, given.layers, given.tokens, given.seeds)
    print(text)
    if given.write:
        page = Path(__file__).parents[2] / "docs/against.md"
        before, _, rest = page.read_text().partition("<!-- planted -->\n")
        page.write_text(f"{before}<!-- planted -->\n{text}<!-- end -->{rest.partition('<!-- end -->')[2]}")


if __name__ == "__main__":
    main()
