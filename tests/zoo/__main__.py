"""Plant everything, check everything, write docs/zoo.md; or only some: `python -m tests.zoo [theta-lost ...]`.

Misses and false alarms are printed; those that the page did not list before make the exit code 1.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path

import transformers

from tests.zoo import page
from tests.zoo.judge import Case, Record, Said, cases, judge
from tests.zoo.models import DTYPES
from toposcope.live.bugs import BY_KEY


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.zoo", description=__doc__)
    parser.add_argument("bugs", nargs="*", choices=[*BY_KEY, []], help="only plants of these; the page stays")
    parser.add_argument("--dtypes", nargs="*", choices=list(DTYPES), default=list(DTYPES))
    parser.add_argument("--no-sound", action="store_true", help="leave the sound models out; the page stays")
    parser.add_argument("--records", type=Path, help="a file of records: what is there is not judged again")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    given = parser.parse_args()
    os.environ["TOPOSCOPE_CACHE"] = "off"  # what is measured, is measured now
    asked = list(cases(given.bugs, given.dtypes, sound=not given.bugs and not given.no_sound))
    before = page.PAGE.read_text() if page.PAGE.is_file() else ""
    records = list(_all(asked, given.jobs, given.records))
    if not given.bugs and not given.no_sound and len(given.dtypes) == len(DTYPES):
        page.PAGE.write_text(page.write(records, transformers.__version__))
    missed = [each for each in records if each.case == "plant" and not each.found]
    alarms = [each for each in records if each.case != "plant" and each.faults and not page.reference_own(each)]
    for each in missed:
        print(f"missed: {each.bug} {each.name} {each.setting} {each.dtype} {each.error}")
    for each in alarms:
        print(f"false alarm: {each.name} {each.dtype}: {'; '.join(said.title for said in each.faults)}")
    return 1 if any(not page.listed(each, before) for each in (*missed, *alarms)) else 0


def _all(asked: list[Case], jobs: int, kept: Path | None) -> Iterator[Record]:
    known = {}
    if kept is not None and kept.is_file():
        for line in kept.read_text().splitlines():
            case, fields = json.loads(line)
            known[tuple(case)] = Record(**{**fields, "said": tuple(Said(**each) for each in fields["said"])})
    yield from (known[case] for case in asked if case in known)
    new = [case for case in asked if case not in known]
    # fresh processes now and then: memory is not given back (an executor of Python 3.11 may stop when it renews them)
    with get_context("spawn").Pool(jobs, maxtasksperchild=20) as pool:
        for case, record in zip(new, pool.imap(judge, new, chunksize=4), strict=True):
            what = "found" if record.found else record.error or "no fault"
            print(
                f"{record.case} {record.bug} {record.name} {record.setting} {record.dtype}: {what}", file=sys.stderr
            )
            if kept is not None:
                with kept.open("a") as file:
                    file.write(json.dumps([case, asdict(record)]) + "\n")
            yield record


if __name__ == "__main__":
    sys.exit(main())
