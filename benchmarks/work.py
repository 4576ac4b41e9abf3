"""The pieces of work that are measured. Standard library only: the peers' own environments import it too."""

from __future__ import annotations

from dataclasses import dataclass

DIALECTS = ("bare", "rlms", "dspy", "ours")


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
        cold: Whether every run starts a sandbox; otherwise it may take a warm one.
        memory: Whether growth of memory is measured too, in passes of its own.
        record: Whether the server compares each prompt with the one before.
        skip: Engines that cannot do it, with the reason.
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
    cold: bool = True
    memory: bool = False
    record: bool = False
    skip: tuple[tuple[str, str], ...] = ()

    @property
    def sub_calls(self) -> int:
        """Sub-calls of one run."""
        return self.serial + self.batch

    def root_model(self, dialect: str) -> str:
        """The model's name, which tells the server what to reply."""
        script = f"serial-{self.serial}" if self.serial else f"batch-{self.batch}" if self.batch else "plain-0"
        return f"{dialect}.{script}.{self.turns}.{self.root_ms}{'.record' if self.record else ''}"

    def sub_model(self, dialect: str) -> str:
        """The model's name for sub-calls."""
        return f"{dialect}.echo-0.0.{self.sub_ms}"


_PROCESS_WIDE = ("rlms", "swaps stdout and the working directory of the whole process")

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
        skip=(_PROCESS_WIDE,),
    ),
    Work("prefix", "prompt prefix reused turn to turn", turns=21, context=10_000, repeats=1, record=True),
)


def by_name(name: str) -> Work:
    """The work called ``name``."""
    return next(work for work in WORKS if work.name == name)


def context(characters: int) -> str:
    """A text of that many characters: lines that differ, as a log's do."""
    lines = (f"{number:07d} request {number * 7919 % 100_003} took {number % 977} ms\n" for number in range(2_000))
    block = "".join(lines)
    return (block * (characters // len(block) + 1))[:characters]
