"""The catalogue of rotary bugs that shipped: what happened, where, which probe sees it, how to avoid it.

`key` is what findings carry as `evidence["bug"]`. The plants in `tests/zoo` are made one by one from this list, and
docs/zoo.md is written from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ProbeName = Literal["fit", "precision", "parity", "lengths", "axes", "files"]


@dataclass(frozen=True)
class Bug:
    """A mistake in positional encoding that a public project shipped.

    `seen_in` are reports, as repository#number. `reported` is the number such a report gave, or empty. `probe` is the
    part of `check --live` that sees it first.
    """

    key: str
    number: int
    title: str
    what_happened: str
    seen_in: tuple[str, ...]
    probe: ProbeName
    how_to_see: str
    how_to_avoid: str
    reported: str = ""

    @property
    def links(self) -> tuple[str, ...]:
        """Where the reports stand."""
        return tuple(f"https://github.com/{each.replace('#', '/issues/')}" for each in self.seen_in)


BUGS: tuple[Bug, ...] = (
    Bug(
        key="theta-lost",
        number=1,
        title="The base of the frequencies is lost, 10000 is used",
        what_happened=(
            "transformers 5 moved `rope_theta` into `rope_parameters`. Code that still reads the old place finds "
            "nothing and falls back to 10000. Nothing fails: the model answers, and its far positions are wrong."
        ),
        seen_in=("deepspeedai/DeepSpeed#8345", "sgl-project/sglang#14745"),
        probe="fit",
        how_to_see="The fitted frequencies are those of plain RoPE with base 10000, in all layers alike.",
        how_to_avoid=(
            "Read the base in one place, from `rope_parameters` first, and raise where neither place has it: a "
            "default for a number that training fixed is a guess."
        ),
    ),
    Bug(
        key="scaling-dropped",
        number=2,
        title="The scaling of the frequencies is not applied",
        what_happened=(
            "A replacement of the rotary module computed plain frequencies and never read the scaling of Llama "
            "3.1. Short texts hardly change, since scaling touches the slow pairs only."
        ),
        seen_in=("unslothai/unsloth#6197", "unslothai/unsloth#6907"),
        probe="fit",
        how_to_see="The slow pairs turn faster than configured; the frequencies are those of the same base unscaled.",
        how_to_avoid="Test a replacement against the original module's frequencies, not against a short text's loss.",
        reported="gibberish past 29k tokens",
    ),
    Bug(
        key="frequencies-uninitialised",
        number=3,
        title="The frequencies are left uninitialised",
        what_happened=(
            "`inv_freq` is a buffer that no checkpoint stores. A model made on the meta device and then filled "
            "from a file has whatever memory held in it: zeros, NaN, or numbers in no order."
        ),
        seen_in=("unslothai/unsloth#4112", "huggingface/transformers#45902", "pytorch/torchtitan#4783"),
        probe="fit",
        how_to_see="Nothing turns, queries are NaN, or the fitted frequencies fall in no order.",
        how_to_avoid="After loading from the meta device, compute every non-persistent buffer anew and look at one.",
    ),
    Bug(
        key="frequencies-rounded",
        number=4,
        title="The frequencies are rounded to bfloat16",
        what_happened=(
            "The frequencies were cast to the model's dtype before they met the position. bfloat16 keeps 8 bits, "
            "so the angle is off by up to p w / 512: nothing at position 10, everything at 4000. "
            "`model.to(torch.bfloat16)` does it too; `from_pretrained(dtype=torch.bfloat16)` does not."
        ),
        seen_in=("sgl-project/sglang-jax#1472", "huggingface/transformers#29285"),
        probe="precision",
        how_to_see="The error of the angles grows with position, and rounded frequencies explain all of it.",
        how_to_avoid="Keep frequencies and angles in float32; cast the cosine and the sine, last.",
        reported="rotated values off by 0.83 at position 4095",
    ),
    Bug(
        key="partial-ignored",
        number=5,
        title="The partial rotary factor is ignored",
        what_happened=(
            "A model that turns the first quarter or half of each head's channels had all of them turned: the "
            "class that was chosen took no such factor, or the factor was computed from a setting that was not "
            "there."
        ),
        seen_in=("AI-Hypercomputer/maxtext#4616", "vllm-project/vllm#43770"),
        probe="fit",
        how_to_see="More channels turn than the configuration says.",
        how_to_avoid="Assert that channels beyond the rotary width leave the rotation as they entered it.",
    ),
    Bug(
        key="partners-wrong",
        number=6,
        title="The frequencies are right, the partners are wrong",
        what_happened=(
            "Every channel turned at its right speed, but with another channel than the one it was trained with. "
            "Comparing tables of cosines finds nothing: they are equal."
        ),
        seen_in=("NVIDIA-NeMo/Megatron-Bridge#4195",),
        probe="fit",
        how_to_see="The pairs found in the running model are not those of the layout, though their frequencies are.",
        how_to_avoid="Compare rotated vectors with the reference, not the tables they are rotated by.",
    ),
    Bug(
        key="pairing-swapped",
        number=7,
        title="Interleaved and half-split pairs are confused",
        what_happened=(
            "Neighbouring channels were turned together where the weights expect channel i with i + R/2, or the "
            "other way round. It happens in whole models, in converted weights, and in the indexers of sparse "
            "attention, which may use the other layout than the attention they serve."
        ),
        seen_in=("ohdearquant/lattice#96", "vllm-project/vllm#28968", "huggingface/transformers#46842"),
        probe="fit",
        how_to_see="All pairs have other partners: interleaved instead of half-split, or the reverse.",
        how_to_avoid="Store the layout beside the weights, and permute both or none.",
    ),
    Bug(
        key="attention-factor-dropped",
        number=8,
        title="YaRN's attention factor is dropped",
        what_happened=(
            "YaRN lengthens queries and keys by a factor that the configuration may state as `attention_factor`. "
            "A list of known keys did not contain that name, so the stated value was silently lost."
        ),
        seen_in=("vllm-project/vllm#48351",),
        probe="fit",
        how_to_see="Angles are right; turned channels are shorter than they should be, by just the factor.",
        how_to_avoid="Refuse unknown keys of the scaling; test the length of a rotated vector, not its angle alone.",
    ),
    Bug(
        key="attention-factor-twice",
        number=9,
        title="YaRN's attention factor is applied twice",
        what_happened=(
            "One library's `attention_factor` is the final factor, another's `attn_factor` multiplies the one it "
            "computes itself. Copied from one to the other it is applied twice. The same happens where the "
            "rotation and the softmax scale both apply it."
        ),
        seen_in=("sgl-project/sglang#33558",),
        probe="fit",
        how_to_see="Angles are right; turned channels are longer than they should be, by just the factor.",
        how_to_avoid="Say in the name whether a factor is final or on top; test the logits' scale.",
        reported="1.4852 became 2.2058 at factor 128, about 20 points of GSM8K",
    ),
    Bug(
        key="logit-scale-missing",
        number=10,
        title="The softmax scale misses YaRN's mscale in MLA",
        what_happened=(
            "DeepSeek's latent attention multiplies the softmax scale by mscale squared when the context is "
            "extended. An export used 1/sqrt(head width) only. At position 0 a softmax over one key is 1, "
            "whatever the scale: one token shows nothing."
        ),
        seen_in=("onnxruntime/mobius#548",),
        probe="fit",
        how_to_see="Queries and keys are right; the logits are smaller than configured by mscale squared.",
        how_to_avoid="Compare logits before the softmax, at two or more positions.",
    ),
    Bug(
        key="truncate-ignored",
        number=11,
        title="YaRN's `truncate` is ignored",
        what_happened=(
            "YaRN blends two sets of frequencies between two bounds, which are rounded to whole channels unless "
            "`truncate` is false, as in gpt-oss. Libraries that know one of the two ways only are off in the "
            "blended pairs, by a few percent."
        ),
        seen_in=("vllm-project/vllm#27722", "keras-team/keras-hub#2981"),
        probe="fit",
        how_to_see="A few pairs in the middle are off; the frequencies are those with the other `truncate`.",
        how_to_avoid="Compare all frequencies with the reference; the first and the last few are always right.",
    ),
    Bug(
        key="factor-ignored",
        number=12,
        title="YaRN's `factor` is ignored",
        what_happened=(
            "The factor was computed anew as context / original context, whatever the configuration said. A user "
            "who raised it saw no change; one who raised the context alone changed all frequencies."
        ),
        seen_in=("huggingface/transformers#38224", "QwenLM/Qwen3#1424"),
        probe="fit",
        how_to_see="The frequencies are those of another factor: the ratio of the two lengths.",
        how_to_avoid="Where factor, context and original context disagree, say so and use the one that is stated.",
    ),
    Bug(
        key="longrope-choice",
        number=13,
        title="longrope chooses between short and long wrongly",
        what_happened=(
            "longrope has two lists of factors, one for texts up to the original context and one beyond. The "
            "choice was made by the cache's capacity rather than by the text's length, or one token early or "
            "late."
        ),
        seen_in=("ggml-org/llama.cpp#24823", "unslothai/unsloth#10681"),
        probe="lengths",
        how_to_see="Just below, at, or just above the original context the other list is in force.",
        how_to_avoid="Test at the original context, one below and one above; choose by the tokens that are there.",
    ),
    Bug(
        key="cache-stale",
        number=14,
        title="Cached keys keep the frequencies they were stored with",
        what_happened=(
            "When generation crosses the original context, longrope and dynamic scaling change all frequencies. "
            "Keys that are in the cache were turned by the old ones, so the model compares angles of two kinds."
        ),
        seen_in=("huggingface/transformers#33129",),
        probe="lengths",
        how_to_see=(
            "With a cache across the original context, old keys stand elsewhere than in one pass over the text."
        ),
        how_to_avoid="Recompute the cache when the frequencies change, or store keys before rotation.",
    ),
    Bug(
        key="layers-confused",
        number=15,
        title="Local and global layers have each other's frequencies",
        what_happened=(
            "Gemma 3 turns its sliding layers with base 10000 and its global ones with base 1000000, scaled. One "
            "table for all layers, or a pattern counted from the wrong layer, gives some of them the frequencies "
            "of others."
        ),
        seen_in=("ollama/ollama#13452", "Blaizzy/mlx-vlm#1709", "vllm-project/vllm#29111"),
        probe="fit",
        how_to_see="Some layers turn with the frequencies that the configuration gives to others.",
        how_to_avoid="Keep the frequencies with the layer's type, and test one layer of each type.",
    ),
    Bug(
        key="scaling-on-sliding-layers",
        number=16,
        title="Scaling is applied to sliding layers that should have none",
        what_happened=(
            "OLMo 3 extends the context of its full-attention layers only; after a rewrite, transformers scaled "
            "its sliding layers too. Which of the two is right for which checkpoint is disputed, so a file alone "
            "cannot tell."
        ),
        seen_in=("huggingface/transformers#45945", "vllm-project/vllm#43419"),
        probe="fit",
        how_to_see="Sliding layers turn with the scaled frequencies of the full ones.",
        how_to_avoid="State the scaling for each type of layer in the configuration, none included.",
    ),
    Bug(
        key="no-position-layers-rotated",
        number=17,
        title="Layers without position are rotated, or the pattern is inverted",
        what_happened=(
            "SmolLM3 and Llama 4 leave some layers unturned. One export turned them all, since nothing read the "
            'setting; elsewhere the list, in which 1 means "turn", was read the other way round.'
        ),
        seen_in=("pytorch/executorch#22043", "huggingface/transformers#43756"),
        probe="fit",
        how_to_see="A layer that should not turn does; with an inverted pattern, others stand still as well.",
        how_to_avoid="Name the list after what 1 means; test one layer of each kind.",
    ),
    Bug(
        key="left-padding",
        number=18,
        title="Left padding shifts the positions",
        what_happened=(
            "Positions were counted from the left edge of a padded batch instead of from the first real token. "
            "With a learned table every token gets a wrong row; with rotation it breaks where some keys are "
            "counted one way and later queries the other."
        ),
        seen_in=("TransformerLensOrg/TransformerLens#1610", "ndif-team/nnsight#672"),
        probe="parity",
        how_to_see="The same text stands at other positions when it is padded on the left.",
        how_to_avoid="Derive position_ids from the attention mask, in prefill and in decoding alike.",
        reported="loss 4.5 became 13.6 with one padding token",
    ),
    Bug(
        key="cache-offset",
        number=19,
        title="Positions after a cache start at the wrong place",
        what_happened=(
            "In chunked prefill, or at the first decoded token, positions began again at 0, or one too far. The "
            "whole text in one pass is right, so a test without a cache passes."
        ),
        seen_in=("huggingface/transformers#43082", "Xilinx/mlir-air#1948"),
        probe="parity",
        how_to_see="In chunks or token by token, queries stand elsewhere than in one pass.",
        how_to_avoid="Test that one pass, chunks of unequal size and single tokens agree.",
    ),
    Bug(
        key="axes-dropped",
        number=20,
        title="Height and width positions of M-RoPE are dropped",
        what_happened=(
            "Vision-language models give an image patch three positions: time, height and width. Only the first "
            "was used. On text all three are equal, so every text-only test passes."
        ),
        seen_in=("sgl-project/sglang#34446", "alibaba/MNN#4133"),
        probe="axes",
        how_to_see="Moving height or width alone turns nothing; moving time turns all pairs.",
        how_to_avoid="Test with positions that differ between the axes, not with text.",
    ),
    Bug(
        key="rotated-twice",
        number=21,
        title="Queries or keys are rotated twice, or keys only in the cache",
        what_happened=(
            "Two places rotated, each unaware of the other: the model and a fused kernel, or the attention and "
            "the cache. Keys that are turned again when read from a cache are right in a single pass and wrong in "
            "decoding."
        ),
        seen_in=("NVIDIA/TensorRT-LLM#16378", "kvcache-ai/sglang#31"),
        probe="fit",
        how_to_see=(
            "All frequencies are doubled; or, where it happens in the cache only, keys stand at twice their place."
        ),
        how_to_avoid="Let one place rotate, and say in its name whether a cache holds keys before or after it.",
    ),
    Bug(
        key="dynamic-not-reset",
        number=22,
        title="Dynamic scaling is constant, or not reset after a long text",
        what_happened=(
            "Dynamic NTK scaling depends on the length of the text at hand. One library computed it once for the "
            "longest text; in another, frequencies stretched by a long text stayed for the short ones that "
            "followed."
        ),
        seen_in=("vllm-project/vllm#41236", "huggingface/transformers#46624"),
        probe="lengths",
        how_to_see="The same short text has other frequencies before and after a long one, or always scaled ones.",
        how_to_avoid="Compute the frequencies from the text's length alone, without memory of earlier texts.",
    ),
)

BY_KEY = {bug.key: bug for bug in BUGS}
