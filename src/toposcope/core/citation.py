"""What to cite: Toposcope and the two papers it builds on. `CITATION.cff` says the same; a test compares them."""

from __future__ import annotations

from dataclasses import dataclass

from toposcope._version import __version__
from toposcope.core.result import Result


@dataclass(frozen=True)
class CitedWork:
    """Software or a paper. Authors are written 'Family, Given', or as one name where they are a group."""

    key: str
    title: str
    authors: tuple[str, ...]
    year: int
    where: str | None = None
    url: str | None = None
    note: str | None = None
    version: str | None = None

    @property
    def arxiv(self) -> str | None:
        """The paper's number on arXiv."""
        at = "https://arxiv.org/abs/"
        return self.url.removeprefix(at) if self.url and self.url.startswith(at) else None

    def text(self) -> str:
        """One paragraph for a list of references."""
        names = [" ".join(reversed(name.split(", "))) for name in self.authors]
        version = f" Version {self.version}." if self.version else ""
        where = f" {self.where}." if self.where else ""
        link = f" arXiv:{self.arxiv}." if self.arxiv else ""
        note = f" {self.note}." if self.note else ""
        return f"{', '.join(names)} ({self.year}). {self.title}.{version}{where}{link}{note}"

    def bibtex(self) -> str:
        """One entry of a BibTeX file."""
        group = [f"{{{name}}}" if ", " not in name else name for name in self.authors]
        fields = {
            "title": f"{{{self.title}}}",
            "author": " and ".join(group),
            "year": str(self.year),
            "booktitle": self.where,
            "version": self.version,
            "eprint": self.arxiv,
            "archiveprefix": "arXiv" if self.arxiv else None,
            "url": self.url,
            "note": self.note,
        }
        kind = "software" if self.version else "inproceedings" if self.where else "misc"
        lines = [f"  {name} = {{{value}}}," for name, value in fields.items() if value]
        return "\n".join([f"@{kind}{{{self.key},", *lines, "}"])


TOPOSCOPE = CitedWork(
    "toposcope",
    "Toposcope: what positional encoding does to the tokens of a Transformer",
    ("The Toposcope developers",),
    2026,
    version=__version__,
)
PAPERS = (
    CitedWork(
        "pham2025dynamical",
        "Dynamical Properties of Tokens in Self-Attention and Effects of Positional Encoding",
        (
            "Pham, Duy-Tung",
            "Nguyen, An The",
            "Tran, Viet-Hoang",
            "Chung, Nhan-Phu",
            "Tong, Xin T.",
            "Nguyen, Tan M.",
            "Vo, Thieu N.",
        ),
        2025,
        where="NeurIPS 2025",
        url="https://arxiv.org/abs/2512.03058",
    ),
    CitedWork(
        "gu2025unpacking",
        "Unpacking Positional Encoding in Transformers: A Spectral Analysis of Content-Position Coupling",
        ("Gu, Zihan", "Zhang, Han", "Chen, Ruoyu", "Hu, Yue", "Zhang, Hua"),
        2025,
        url="https://arxiv.org/abs/2505.13027",
        note="Later versions are titled: "
        "Deconstructing Positional Information: From Attention Logits to Training Biases",
    ),
)
WORKS = (TOPOSCOPE, *PAPERS)


@dataclass(frozen=True, kw_only=True, eq=False)
class CiteResult(Result):
    """What to cite."""

    kind = "cite"
    table = "works"

    works: tuple[CitedWork, ...] = WORKS
