"""Worker: one-head ablation by TransformerLens, a full run with the head's `hook_z` zeroed. The argument is a
directory in Hugging Face layout, tokenizer included; nothing is downloaded."""

from __future__ import annotations

import sys
from typing import Any

from bench.peers import serve, timed


def main(where: str) -> None:
    import torch
    from transformer_lens.model_bridge import TransformerBridge  # type: ignore[import-not-found]
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    inner = AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32, attn_implementation="eager")
    model = TransformerBridge.boot_transformers(
        where, hf_model=inner.eval(), tokenizer=AutoTokenizer.from_pretrained(where), device="cpu"
    )

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        ids = torch.tensor(request["ids"])

        def zero(z: Any, hook: Any) -> Any:
            z[:, :, request["head"]] = 0.0
            return z

        hooks = [(f"blocks.{request['layer']}.attn.hook_z", zero)]
        with torch.no_grad():
            seconds, loss = timed(lambda: model.run_with_hooks(ids, return_type="loss", fwd_hooks=hooks).item())
        return {"seconds": seconds, "loss": loss}

    serve(answer)


if __name__ == "__main__":
    main(sys.argv[1])
