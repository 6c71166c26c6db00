"""Print, for each layer of a checkpoint, its encoding and the head that can look most strongly.

python examples/heads_of_a_model.py [MODEL]
"""

from __future__ import annotations

import sys

import numpy as np

import toposcope


def main(name: str) -> None:
    with toposcope.load(name) as model:
        for layer in model.layers:
            strength = [
                head.scale * np.sum((head.q @ head.q.T) * (head.k @ head.k.T)) ** 0.5  # scale |Q^T K|
                for head in layer.heads
            ]
            best = int(np.argmax(strength))
            print(
                f"layer {layer.number:3d}  {layer.encoding.title:50s}  strongest head {best} ({strength[best]:.2f})"
            )


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "smollm2")
