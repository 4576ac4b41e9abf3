"""``rlm-dspy eval``. The parser's part is standard library alone, so that ``--help`` is quick."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlm_dspy.cli import jobs, output
from rlm_dspy.cli.ask_options import number

_DESCRIPTION = """\
Measure programs on tasks with known answers: how often they are right, with 95 % intervals, and what that takes in
tokens, money and time. Several programs are compared on the same examples.

TASK is a family of rlm_dspy.tasks, several with commas, or all.
"""
_MORE = """\
programs (--program, several with commas):
  rlm       rlm_dspy.RLM, with the options below; a state with --load
  direct    one call with the whole input in the prompt; where it does not fit the window, that is a failure
  truncate  one call with the beginning and the end of the input, so that it fits
  chunks    each chunk of the input by itself, then the findings together
  dspy.RLM  the one of DSPy, with its LocalInterpreter, which is no sandbox
  pkg.mod:name, file.py:name  a dspy.Module, or what makes one from a signature

With --out DIR every result is on disk before the next one, in DIR/results.jsonl, and the same command goes on where it
was ended, by Ctrl-C, a crash or a power failure; -n may be raised. Other settings want another folder. Runs that ended
by an error of the provider or the sandbox are no wrong answers: they are told apart and made again next time.

exit codes:
  0    every example was run
  1    some ended by an error of the provider or the sandbox, or results could not be written
  2    usage
  3    --max-cost was spent before the end
  130  interrupted
"""


def add_parser(commands: Any) -> None:
    """Register ``eval`` with the sub-parsers of ``rlm-dspy``."""
    parser = jobs.add_parser(commands, "eval", "measure programs on tasks with known answers", _DESCRIPTION, _MORE)
    parser.add_argument("task", metavar="TASK", help="families of tasks, or all")
    group = parser.add_argument_group("task")
    group.add_argument("-n", metavar="N", type=number(int), default=20, help="examples (20)")
    group.add_argument(
        "--tokens", metavar="N", type=sizes, default=[32_000], help="size of the inputs, such as 32k,1M (32k)"
    )
    group.add_argument("--seed", metavar="N", type=number(int), default=1, help="which examples (1)")
    group.add_argument("--kinds", metavar="K,...", help="only these kinds of questions")
    group = parser.add_argument_group("program")
    group.add_argument("--program", metavar="P,...", default="rlm", help="what to measure (rlm)")
    jobs.add_program_arguments(group)
    group.add_argument("--out", metavar="DIR", help="keep results here, and go on with those that are there")
    group.add_argument("--json", action="store_true", help="one JSON object in place of tables")
    group.add_argument("--experiment", metavar="NAME", help="track it in MLflow, as one run of this experiment")
    jobs.add_arguments(parser)


def sizes(text: str) -> list[int]:
    """``"32k,1M"`` as numbers of tokens."""
    found = []
    for word in text.split(","):
        factor = {"k": 1_000, "m": 1_000_000}.get(word.strip()[-1:].lower(), 1)
        digits = word.strip().rstrip("kKmM")
        try:
            found.append(round(float(digits) * factor))
        except ValueError:
            raise argparse.ArgumentTypeError(f"{word!r} is no number of tokens, such as 32k or 1M") from None
    return list(dict.fromkeys(found))


def run(options: argparse.Namespace) -> int:
    """Measure, print, and return the exit code."""
    return jobs.run(options, _run)


def _run(options: argparse.Namespace) -> int:
    from rlm_dspy import evaluation, tasks
    from rlm_dspy.cli.ask_options import prices

    families = None if options.task == "all" else [word.strip() for word in options.task.split(",")]
    kinds = None if options.kinds is None else [word.strip() for word in options.kinds.split(",")]
    # Whatever is wrong with the task is found before a model is asked for.
    for tokens in options.tokens:
        tasks.iterate(options.n, tokens, options.seed, families, kinds)
    names = list(dict.fromkeys(word.strip() for word in options.program.split(",")))
    root, sub = jobs.models(options, names)
    programs = [jobs.program(options, name, sub) for name in names]
    stop = evaluation.Stop()
    progress = _Progress(options, options.n * len(options.tokens) * len(programs))

    def examples() -> Iterator[Any]:
        for tokens in options.tokens:
            yield from tasks.iterate(options.n, tokens, options.seed, families, kinds)

    if options.experiment is not None:
        from rlm_dspy import tracking

        tracking.enable(options.experiment)
    with jobs.playing(root), jobs.stopping(stop, "examples"):
        report = evaluation.evaluate(
            programs,
            examples(),
            tasks.score,
            out=options.out,
            threads=options.threads,
            max_cost=options.max_cost,
            prices=prices(" ".join(options.price)),
            stop=stop,
            seen=progress,
        )
    if stop.reason is not None:
        again = "; the same command goes on" if options.out else "; with --out DIR it could be gone on with"
        output.say(f"ended early: {stop.reason}{again}")
    found: dict[str, Any] = {"task": options.task, "seed": options.seed, **report.to_dict()}
    if options.out:
        del found["rows"]
        found["out"] = options.out
        _write(Path(options.out) / "report.json", found)
    if options.json:
        output.answer(output.json_text(found))
    else:
        output.answer(report.table())
    errors = sum(row["score"] is None for row in report.rows)
    if errors:
        last = next(row["error"] for row in reversed(report.rows) if row["score"] is None)
        output.say(f"{errors} ended by an error of what they run on, the last one by: {last}")
    return jobs.code(stop.reason, errors)


def _write(path: Path, found: dict[str, Any]) -> None:
    from rlm_dspy.kept import atomically

    data = (json.dumps(output.plain(found), indent=1) + "\n").encode()
    atomically(path, lambda file: file.write(data))


class _Progress:
    """A line for each result on standard error."""

    def __init__(self, options: argparse.Namespace, total: int) -> None:
        self._quiet = options.quiet
        self._total = total
        self._done = self._kept = 0

    def __call__(self, row: dict[str, Any]) -> None:
        self._done += 1
        if row.get("again"):
            self._kept += 1
            return
        if self._quiet:
            return
        if self._kept:
            output.say(f"{self._kept} of {self._total} are there from before")
            self._kept = 0
        failed = row["score"] is None
        how = " ".join(str(row["error"]).split())[:100] if failed else f"{row['score']:.2f} {row['outcome']}"
        limit = f" ({row['limit']})" if row["limit"] else ""
        cost = "?" if row["cost"] is None else f"${row['cost']:.4f}"
        output.say(
            f"{self._done}/{self._total} {row['program']} {row['key']} {'error: ' if failed else ''}{how}{limit} "
            f"{row['seconds']:.1f} s {cost}"
        )
