"""Judge every type and write docs/models.md, or judge a few: `python -m tests.architectures [llama bert ...]`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from multiprocessing import get_context

import transformers

from tests.architectures import GROUPS, page, types
from tests.architectures.judge import READ, Judged, Outcome, judge, judge_pair
from tests.architectures.probes import TYPES, probes


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.architectures", description=__doc__)
    parser.add_argument("types", nargs="*", help="model types; without any, all are judged and the page is written")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    given = parser.parse_args()
    os.environ["TOPOSCOPE_CACHE"] = "off"  # what is measured, is measured now
    asked = [(each, group) for group in GROUPS for each in types(group) if not given.types or each in given.types]
    judged = []
    for each in _all(asked, given.jobs):
        judged.append(each)
        print(f"{each.group} {each.model_type}: {each.outcome} {each.why}".rstrip(), file=sys.stderr)
    if not given.types:
        before = page.read(page.PAGE.read_text()) if page.PAGE.is_file() else {}
        page.PAGE.write_text(page.write(judged, probes(TYPES), len(TYPES), transformers.__version__))
        lost = [each for each in judged if before.get((each.group, each.model_type)) in READ and not _read(each)]
        for each in lost:
            print(f"no longer read: {each.group} {each.model_type}: {each.why}")
    else:
        lost = []
    wrong = [each for each in judged if each.outcome is Outcome.DIFFERENT]
    for each in wrong:
        print(f"read and different: {each.group} {each.model_type}: {each.why}")
    return 1 if wrong or lost else 0


def _read(judged: Judged) -> bool:
    return judged.outcome in READ


def _all(asked: list[tuple[str, str]], jobs: int) -> Iterator[Judged]:
    if jobs == 1 or len(asked) < 8:
        yield from (judge(*each) for each in asked)
        return
    with get_context("spawn").Pool(jobs, maxtasksperchild=15) as pool:  # as in tests.zoo
        yield from pool.imap(judge_pair, asked, chunksize=4)


if __name__ == "__main__":
    sys.exit(main())
