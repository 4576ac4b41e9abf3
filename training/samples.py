"""Rows to fine-tune on, from the traces of good rollouts: what a stronger model did, for a weaker one to learn.

    python -m rlm_dspy.training.samples outputs/RUN/traces.jsonl --out sft_rows --min-reward 1.0

A row is one conversation of one seat, as the model saw it: ``prompt``, the messages before its first own reply, and
``completion``, its replies and what came between them. It is what prime-rl's ``sft`` and TRL read, and needs nothing of
verifiers.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

__all__ = ["main", "samples"]

SEATS = ("agent", "child")
_INFO = "rlm"


def samples(
    episodes: Iterable[dict[str, Any]],
    *,
    min_reward: float = 1.0,
    seats: Sequence[str] = SEATS,
    formed: bool = True,
) -> Iterator[dict[str, Any]]:
    """The rows of episodes.

    Args:
        episodes: As verifiers writes them to ``traces.jsonl``, one a line.
        min_reward: Of the root; what its other seats said in a worse rollout is left out too.
        seats: Whose conversations.
        formed: Only of rollouts whose root submitted its answer itself.
    """
    for episode in episodes:
        traces = episode.get("traces") or []
        roots = [trace for trace in traces if _seat(trace) == "agent"]
        if not roots or not _good(roots[-1], min_reward, formed):
            continue
        for trace in traces:
            if _seat(trace) in seats and trace.get("ok"):
                for prompt, completion in _conversations(trace.get("nodes") or []):
                    yield {
                        "prompt": prompt,
                        "completion": completion,
                        "seat": _seat(trace),
                        "reward": _reward(roots[-1]),
                        "task": ((episode.get("task") or {}).get("data") or {}).get("name"),
                    }


def _seat(trace: dict[str, Any]) -> str:
    return str((trace.get("agent") or {}).get("name"))


def _reward(trace: dict[str, Any]) -> float:
    return sum(one["score"] * one.get("weight", 1.0) for one in (trace.get("rewards") or {}).values())


def _good(root: dict[str, Any], min_reward: float, formed: bool) -> bool:
    told = (root.get("info") or {}).get(_INFO) or {}
    return bool(root.get("ok")) and (not formed or bool(told.get("formed"))) and _reward(root) >= min_reward


def _conversations(nodes: list[dict[str, Any]]) -> Iterator[tuple[list[dict[str, str]], list[dict[str, str]]]]:
    """Each path from a first message to a last one, in two parts; those in which nothing was said are left out."""
    inner = {node.get("parent") for node in nodes}
    for leaf in range(len(nodes)):
        if leaf in inner:
            continue
        path: list[dict[str, Any]] = []
        at: int | None = leaf
        while at is not None:
            path.append(nodes[at])
            at = nodes[at].get("parent")
        path.reverse()
        while path and not path[-1].get("sampled"):
            path.pop()
        first = next((number for number, node in enumerate(path) if node.get("sampled")), None)
        if first is not None:
            yield _messages(path[:first]), _messages(path[first:])


def _messages(nodes: list[dict[str, Any]]) -> list[dict[str, str]]:
    messages = (node["message"] for node in nodes)
    return [{"role": message["role"], "content": message.get("content") or ""} for message in messages]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; see the top of this module.

    Returns:
        The exit status: 1 where no row came of it.
    """
    parser = argparse.ArgumentParser(prog="python -m rlm_dspy.training.samples", description=__doc__.split("\n")[0])
    parser.add_argument("traces", nargs="+", type=Path, help="traces.jsonl of verifiers")
    parser.add_argument("--out", required=True, type=Path, help="folder; gets train.jsonl")
    parser.add_argument("--min-reward", type=float, default=1.0, help="of the root (1.0)")
    parser.add_argument("--seats", default=",".join(SEATS), help=f"whose conversations ({','.join(SEATS)})")
    parser.add_argument("--extracted", action="store_true", help="also where the answer was extracted at a limit")
    given = parser.parse_args(arguments)
    target: Path = given.out / "train.jsonl"
    if target.exists():
        parser.error(f"{target} is there already; name another folder")
    missing = [str(path) for path in given.traces if not path.is_file()]
    if missing:
        parser.error(f"no such file: {', '.join(missing)}")
    rows = samples(
        _read(given.traces), min_reward=given.min_reward, seats=given.seats.split(","), formed=not given.extracted
    )
    count = 0
    given.out.mkdir(parents=True, exist_ok=True)
    try:
        with target.open("w", encoding="ascii") as file:
            for row in rows:
                # ASCII, because a lone surrogate in a text has no other form.
                file.write(json.dumps(row) + "\n")
                count += 1
    except BaseException as error:
        target.unlink()
        if isinstance(error, ValueError):
            parser.error(str(error))
        raise
    print(f"{count} conversations in {target}")
    if not count:
        target.unlink()
        print("no rollout was good enough; try a lower --min-reward or --extracted", file=sys.stderr)
    return 0 if count else 1


def _read(paths: Iterable[Path]) -> Iterator[dict[str, Any]]:
    for path in paths:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    episode = json.loads(line) if line.strip() else {}
                except ValueError as error:
                    raise ValueError(f"line {number} of {path} is no JSON ({error}); take it out") from None
                yield episode


if __name__ == "__main__":
    sys.exit(main())
