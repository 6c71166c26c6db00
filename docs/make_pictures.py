"""Make the pictures of the documentation: `python docs/make_pictures.py` (needs the [plot] extra).

The report's screenshot is taken apart from this, with a browser, from the file that `make demo` writes.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

IMAGES = Path(__file__).parent / "images"
PRESETS = ("collapse", "explode", "helix", "metastable")


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    for preset in PRESETS:
        picture = IMAGES / f"flow-{preset}.png"
        subprocess.run(
            [sys.executable, "-m", "toposcope", "flow", "--preset", preset, "--figure", str(picture)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        print(picture.relative_to(Path(__file__).parent))


if __name__ == "__main__":
    main()
