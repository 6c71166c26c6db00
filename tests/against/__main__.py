"""Write the confusion matrix of `check --against` into docs/against.md: every plant, three seeds, on SmolLM2.

python -m tests.against --write                   all layers; some ten minutes on two idle cores
python -m tests.against --layers 6 --seeds 0 1    fewer layers, some seeds
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from tests.against.table import Row, judged, markdown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=None, help="keep so many of SmolLM2's 30 layers")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--rows", type=Path, nargs="*", default=[], help="add the rows of earlier runs, from files")
    parser.add_argument("--keep", type=Path, help="keep this run's rows in a file")
    parser.add_argument("--write", action="store_true", help="the table into docs/against.md")
    given = parser.parse_args()
    rows = [Row(**json.loads(line)) for path in given.rows for line in path.read_text().splitlines()]
    for row in judged(given.layers, given.tokens, given.seeds) if given.seeds else ():
        rows.append(row)
        print(row.line(), flush=True)
        if given.keep:
            with given.keep.open("a") as file:
                file.write(json.dumps(asdict(row)) + "\n")
    text = markdown(rows, given.layers, given.tokens)
    print(text)
    if given.write:
        page = Path(__file__).parents[2] / "docs/against.md"
        before, _, rest = page.read_text().partition("<!-- planted -->\n")
        page.write_text(f"{before}<!-- planted -->\n{text}<!-- end -->{rest.partition('<!-- end -->')[2]}")


if __name__ == "__main__":
    main()
