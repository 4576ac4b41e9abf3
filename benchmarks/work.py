"""The pieces of work that are measured. Standard library only: the peers' own environments import it too."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace


@dataclass(frozen=True)
class Work:
    """One row of the table.

    Attributes:
        name: As ``--only`` takes it.
        title: As the table shows it.
        turns: Root calls of one run; the last one submits.
        context: Characters of the context.
        serial: Sub-calls made one after the other in the first turn.
        batch: Sub-calls made at once in the first turn.
        width: Sub-calls in flight that are asked for.
        root_ms: Latency of the server for a root call, milliseconds.
        sub_ms: Latency for a sub-call, milliseconds.
        runs: Runs at once.
        repeats: How often it is timed.
        limit: Seconds that one run may take; what takes longer is stopped, and the table says so.
        enough: Seconds after which an engine is not timed again, though repeats are left.
        cold: Whether every run starts a sandbox; otherwise it may take a warm one.
        memory: Whether growth of memory is measured too, in passes of its own.
        record: Whether the server compares each prompt with the one before.
        skip: Engines that cannot do it, with the reason.
        curve: The scaling curve that it is a point of, see `benchmarks.curves`; empty for a row of the table.
        size: Where on the curve.
    """

    name: str
    title: str
    turns: int = 1
    context: int = 10
    serial: int = 0
    batch: int = 0
    width: int = 32
    root_ms: int = 0
    sub_ms: int = 0
    runs: int = 1
    repeats: int = 5
    limit: float = 60
    enough: float = 30
    cold: bool = True
    memory: bool = False
    record: bool = False
    skip: tuple[tuple[str, str], ...] = ()
    curve: str = ""
    size: int = 0

    @property
    def sub_calls(self) -> int:
        """Sub-calls of one run."""
        return self.serial + self.batch

    def root_model(self, dialect: str) -> str:
        """The model's name, which tells the server what to reply."""
        script = f"serial-{self.serial}" if self.serial else f"batch-{self.batch}" if self.batch else "plain-0"
        return f"{dialect}.{script}.{self.turns}.{self.root_ms}.{self.context}{'.record' if self.record else ''}"

    def sub_model(self, dialect: str) -> str:
        """The model's name for sub-calls."""
        return f"{dialect}.echo-0.0.{self.sub_ms}.0"

    def repeated(self, times: int) -> Work:
        """The same, timed so often."""
        return replace(self, repeats=times)

    def to_json(self) -> str:
        """For a process of its own; see `from_json`."""
        return json.dumps(asdict(self))


def from_json(text: str) -> Work:
    """The work that `Work.to_json` wrote."""
    fields = json.loads(text)
    return Work(**{**fields, "skip": tuple((engine, reason) for engine, reason in fields["skip"])})


PROCESS_WIDE = ("rlms", "swaps stdout and the working directory of the whole process")

WORKS = (
    Work("start", "start + submit", repeats=9),
    Work("pooled", "start + submit, warm pool", repeats=9, cold=False),
    Work("turns", "21 turns, 10 MB context, 0 ms LM", turns=21, context=10_000_000),
    Work("context", "6 turns, 100 MB context", turns=6, context=100_000_000, repeats=3, memory=True),
    Work("serial", "200 serial sub-calls", turns=2, serial=200),
    Work("batch", "500 sub-calls of 50 ms, width 64", turns=2, batch=500, width=64, sub_ms=50),
    Work(
        "runs",
        "64 runs at once, 5 turns of 50 ms",
        turns=5,
        root_ms=50,
        runs=64,
        repeats=3,
        cold=False,
        skip=(PROCESS_WIDE,),
    ),
    Work("prefix", "prompt prefix reused turn to turn", turns=21, context=10_000, repeats=1, record=True),
)


SMALLEST = Work("start", "start + submit")
"""What every engine does twice before it is measured."""


def context(characters: int) -> str:
    """A text of that many characters: lines that differ, as a log's do."""
    lines = (f"{number:07d} request {number * 7919 % 100_003} took {number % 977} ms\n" for number in range(2_000))
    block = "".join(lines)
    return (block * (characters // len(block) + 1))[:characters]
