"""Writes json.md: what every result has in common, and the fields of each, from the schemas themselves.

python docs/make_schema.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from toposcope.cli.schema import WRITTEN_BY
from toposcope.core.files import write_text
from toposcope.report.kinds import KINDS, document

PAGE = Path(__file__).parent / "json.md"
FRAME = ("schema", "provenance", "skipped")
HEADER = """# JSON results

<!-- written by docs/make_schema.py; change that, or the result's own dataclass -->

Every command takes `--json FILE`, or `--json -` for standard output (then nothing else is printed there). What it
writes is described by a JSON Schema (draft 2020-12), made from the dataclasses that results are made of:

```console
$ toposcope schema
$ toposcope schema scan
```

The keys are the fields of what `toposcope.scan(...)` and its like return, and `toposcope.read("r.json")` gives that
result back. Objects are closed: a key that is not described is refused. All keys are written; one that is *optional*
has a default, and may be missing in files from before it existed. Tests hold real results of every command against
these schemas. Any other change makes a new number at the end of the name (`toposcope/scan/2`), and files of another
number are refused.

Numbers that are not finite are written as null, so wherever a number may stand, null may. To check a file:

```python
import json
import subprocess
import sys
from pathlib import Path

import jsonschema
from toposcope.report import document

command = ["toposcope", "spectrum", "rope", "--context", "64", "--json", "s.json"]
subprocess.run([sys.executable, "-m", *command], check=True)
result = json.loads(Path("s.json").read_text())
jsonschema.validate(result, document(result["schema"]))
```

## What all results share

| key | type | meaning |
|---|---|---|
| `schema` | string | the kind of result and the version of its form |
| `provenance.subjects` | list | what was analysed: name, path, format, family, encodings, sha256 of what was read |
| `provenance.options` | object | what was asked for |
| `provenance.seconds` | number | how long it took |
| `provenance.toposcope` | string | the version that wrote it |
| `skipped` | list | what was left out, and why |

"""


def main() -> None:
    write_text(PAGE, page())


def page() -> str:
    """The whole page."""
    kinds = "\n".join(
        f"| [`{name}`](#{name}) | `{WRITTEN_BY.get(name, f'toposcope {name} --json')}` | {_about(name)} |"
        for name in KINDS
    )
    listed = f"## Kinds of results\n\n| schema | written by | what it is |\n|---|---|---|\n{kinds}\n\n"
    return HEADER + listed + "\n".join(map(_section, KINDS))


def _about(name: str) -> str:
    return str(document(name)["description"])


def _section(name: str) -> str:
    schema = document(name)
    own = {key: value for key, value in schema["properties"].items() if key not in FRAME}
    parts = {key: value for key, value in schema["$defs"].items() if key not in ("Provenance", "Subject", "Skipped")}
    lines = [f"## {name}", "", f"`{schema['$id']}`. {schema['description']}", ""]
    lines += _table(own, schema["required"])
    for title, part in sorted(parts.items()):
        lines += [f"**{title}.** {part['description']}", "", *_table(part["properties"], part["required"])]
    whole = json.dumps(schema, ensure_ascii=False)
    lines += [f"The whole schema, {len(whole):,} characters: `toposcope schema {name}`.", ""]
    return "\n".join(lines)


def _table(properties: dict[str, Any], required: list[str]) -> list[str]:
    rows = [
        f"| `{key}` | {_type(value)}{'' if key in required else ', optional'} |" for key, value in properties.items()
    ]
    return ["| key | type |", "|---|---|", *rows, ""]


def _type(schema: dict[str, Any]) -> str:
    """A type in a few words."""
    if "$ref" in schema:
        return schema["$ref"].rsplit("/", 1)[1]
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return "one of " + ", ".join(f"`{value}`" for value in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(map(_type, schema["anyOf"]))
    if "prefixItems" in schema:
        return f"[{', '.join(map(_type, schema['prefixItems']))}]"
    kind = schema.get("type", "anything")
    if kind == "array":
        return f"list of {_type(schema['items'])}"
    if kind == "object":
        return f"object of {_type(schema['additionalProperties'])}"
    names = [kind] if isinstance(kind, str) else [name for name in kind if name != "null" or "number" not in kind]
    return " or ".join(names)


if __name__ == "__main__":
    main()
