"""The papers behind the encodings, by the keys that `Encoding.citations` and `Kind.citations` use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Paper:
    """One source: who, what, where, when; `arxiv` is its number there, where it has one."""

    authors: str
    title: str
    where: str
    year: int
    arxiv: str | None = None
    url: str | None = None

    def __str__(self) -> str:
        link = f"arXiv:{self.arxiv}" if self.arxiv else self.url
        return f"{self.authors}. {self.title}. {self.where}, {self.year}." + (f" {link}" if link else "")


PAPERS: Mapping[str, Paper] = MappingProxyType(
    {
        "kazemnejad2023nope": Paper(
            "Kazemnejad et al.",
            "The Impact of Positional Encoding on Length Generalization in Transformers",
            "NeurIPS",
            2023,
            "2305.19466",
        ),
        "vaswani2017attention": Paper("Vaswani et al.", "Attention Is All You Need", "NeurIPS", 2017, "1706.03762"),
        "gehring2017convolutional": Paper(
            "Gehring et al.", "Convolutional Sequence to Sequence Learning", "ICML", 2017, "1705.03122"
        ),
        "raffel2020t5": Paper(
            "Raffel et al.",
            "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer",
            "JMLR",
            2020,
            "1910.10683",
        ),
        "press2022alibi": Paper(
            "Press, Smith, Lewis",
            "Train Short, Test Long: Attention with Linear Biases Enables Input Length Extrapolation",
            "ICLR",
            2022,
            "2108.12409",
        ),
        "chi2022kerple": Paper(
            "Chi et al.",
            "KERPLE: Kernelized Relative Positional Embedding for Length Extrapolation",
            "NeurIPS",
            2022,
            "2205.09921",
        ),
        "li2024fire": Paper(
            "Li et al.",
            "Functional Interpolation for Relative Positions Improves Long Context Transformers",
            "ICLR",
            2024,
            "2310.04418",
        ),
        "su2021roformer": Paper(
            "Su et al.", "RoFormer: Enhanced Transformer with Rotary Position Embedding", "arXiv", 2021, "2104.09864"
        ),
        "black2022neox": Paper(
            "Black et al.", "GPT-NeoX-20B: An Open-Source Autoregressive Language Model", "arXiv", 2022, "2204.06745"
        ),
        "chen2023pi": Paper(
            "Chen et al.",
            "Extending Context Window of Large Language Models via Positional Interpolation",
            "arXiv",
            2023,
            "2306.15595",
        ),
        "bloc972023ntk": Paper("bloc97, emozilla", "NTK-aware scaled RoPE, static and dynamic", "r/LocalLLaMA", 2023),
        "peng2024yarn": Paper(
            "Peng et al.",
            "YaRN: Efficient Context Window Extension of Large Language Models",
            "ICLR",
            2024,
            "2309.00071",
        ),
        "ding2024longrope": Paper(
            "Ding et al.",
            "LongRoPE: Extending LLM Context Window Beyond 2 Million Tokens",
            "ICML",
            2024,
            "2402.13753",
        ),
        "dubey2024llama3": Paper("Dubey et al.", "The Llama 3 Herd of Models", "arXiv", 2024, "2407.21783"),
        "sun2023xpos": Paper("Sun et al.", "A Length-Extrapolatable Transformer", "ACL", 2023, "2212.10554"),
        "deepseek2024v2": Paper(
            "DeepSeek-AI",
            "DeepSeek-V2: A Strong, Economical, and Efficient Mixture-of-Experts Language Model",
            "arXiv",
            2024,
            "2405.04434",
        ),
        "golovneva2024cope": Paper(
            "Golovneva et al.",
            "Contextual Position Encoding: Learning to Count What's Important",
            "arXiv",
            2024,
            "2405.18719",
        ),
        "gopalakrishnan2025pope": Paper(
            "Gopalakrishnan et al.",
            'Decoupling the "What" and "Where" With Polar Coordinate Positional Embeddings',
            "arXiv",
            2025,
            "2509.10534",
        ),
    }
)
