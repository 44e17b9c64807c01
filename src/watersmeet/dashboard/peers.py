"""Traces of `watersmeet simulate --trace` on a network of peers, for the page to play."""

import json
from pathlib import Path
from typing import Any

from watersmeet.errors import InputError


def is_trace(path: Path) -> bool:
    """Whether a file is a trace of peers, by its first line."""
    try:
        with open(path, encoding="utf-8") as file:
            first = json.loads(file.readline() or "null")
    except (OSError, ValueError):
        return False
    return isinstance(first, dict) and first.get("line") == "start"


def read_trace(path: Path) -> dict[str, Any]:
    """A trace as the page needs it: where peers are on the ring, and what each look saw.

    A peer's place is the part of the circle before it; loads are those that have changed since the look before.
    """
    start: dict[str, Any] = {}
    looks: list[dict[str, Any]] = []
    end: dict[str, Any] | None = None
    with open(path, encoding="utf-8") as file:
        for number, text in enumerate(file, 1):
            try:
                line = json.loads(text)
                match line["line"]:
                    case "start":
                        start = line
                    case "look":
                        looks.append(line)
                    case "end":
                        end = line["summary"]
            except (ValueError, KeyError, TypeError) as error:
                if text.endswith("\n"):
                    raise InputError(f"{path.name}, line {number}: not a line of a trace ({error})") from None
    places = [int(identifier, 16) / 2**64 for identifier in start.get("identifiers", ())]
    first_us = start.get("first_us", 0)
    return {
        "name": path.stem,
        "nodes": start.get("nodes"),
        "overlay": start.get("overlay"),
        "seed": start.get("seed"),
        "places": [round(place, 7) for place in places],
        "looks": [
            {
                "t": round((look["time_us"] - first_us) / 1e6, 3),
                "tuples": look.get("tuples"),
                "answers": look.get("answers"),
                "messages": look.get("messages", {}),
                "upkeep": look.get("upkeep"),
                "up": look.get("up"),
                "load": look.get("load"),
                "loads": look.get("loads", [[], []]),
                "came": look.get("came", []),
                "went": look.get("went", []),
            }
            for look in looks
        ],
        "is_ended": end is not None,
    }
