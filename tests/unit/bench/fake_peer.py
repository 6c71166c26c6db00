"""A worker that adds up, and prints where an answer belongs."""

from __future__ import annotations

import os
import sys
from typing import Any

from bench.peers import serve

total = int(sys.argv[1])


def answer(request: dict[str, Any]) -> dict[str, Any]:
    global total
    print("a library that talks", flush=True)
    os.write(1, b"from below\n")
    total += request["add"]
    return {"total": total}


serve(answer)
