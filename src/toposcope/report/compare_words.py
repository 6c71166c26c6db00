"""What a comparison says in plain words, computed from its numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any


def size(head: Mapping[str, Any]) -> float:
    """The larger of a head's two changes."""
    return max(head.get("change_W") or 0.0, head.get("change_V") or 0.0)


def ranked(heads: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The heads by how much they changed, most first."""
    return sorted(heads, key=lambda head: -size(head))


def encodings(result: Mapping[str, Any]) -> list[str]:
    """How the positional encodings differ, setting by setting; nothing where they are the same."""
    found = result.get("encodings") or []
    if not found:
        return []
    every = {row["layer"] for row in result.get("layers", [])}
    parts = []
    for each in found:
        some = set(each["layers"])
        where = f" (layers {', '.join(map(str, sorted(some)))})" if some and some != every else ""
        parts.append(f"{each['what'].replace('_', ' ')} {each['a'] or 'not set'} -> {each['b'] or 'not set'}{where}")
    return [f"The positional encodings differ (A -> B): {'; '.join(parts)}."]


def meaning(result: Mapping[str, Any]) -> list[str]:
    """The comparison as a whole, in sentences."""
    heads = result["heads"]
    if not heads:
        return [*encodings(result), "There is no head to compare."]
    sentences = encodings(result)
    for key, name in (("change_W", "Q'K"), ("change_V", "O V")):
        known = sorted(head[key] for head in heads if head.get(key) is not None)
        if known:
            if known[-1] == 0:
                sentences.append(f"{name} is the same in every head.")
            else:
                sentences.append(
                    f"{name} moved by {known[len(known) // 2]:.1%} of its size in the median head, "
                    f"{known[-1]:.1%} at most."
                )
    top = ranked(heads)[0]
    if size(top) > 0:
        sentences.append(f"Head {top['layer']}.{top['head']} changed most.")
    layers = [row for row in result.get("layers", []) if row["change_W"] is not None and row["change_V"] is not None]
    if len(layers) > 3:
        third = len(layers) // 3
        early, late = (
            sum(max(row["change_W"], row["change_V"]) for row in part) / third
            for part in (layers[:third], layers[-third:])
        )
        if max(early, late) > 0:
            words = "later" if late > 1.2 * early else "earlier" if early > 1.2 * late else None
            sentences.append(
                f"The {words} layers changed more ({max(early, late):.1%} against {min(early, late):.1%})."
                if words
                else "Early and late layers changed alike."
            )
    verdicts = Counter(
        (head["verdict_a"], head["verdict_b"]) for head in heads if head["verdict_a"] != head["verdict_b"]
    )
    if verdicts:
        words = ", ".join(f"{count} from {a} to {b}".replace("_", " ") for (a, b), count in verdicts.most_common(4))
        sentences.append(f"{result['moved']} of {len(heads)} heads have another verdict: {words}.")
    elif heads[0]["verdict_a"] is not None:
        sentences.append("Every head keeps its verdict.")
    if any(head.get("peak_a") is not None for head in heads):
        sentences.append(f"{result['looks_elsewhere']} of {len(heads)} heads have their kernel's peak elsewhere.")
    if result.get("table_change") is not None:
        sentences.append(f"The position vectors moved by {result['table_change']:.1%} of their size.")
    return sentences
