"""``rlm-dspy map``. The parser's part is standard library alone, so that ``--help`` is quick."""

from __future__ import annotations

import argparse
import contextlib
from typing import Any

from rlm_dspy.cli import exits, jobs, output
from rlm_dspy.cli.ask_options import DEFAULT_SIGNATURE, pair

_DESCRIPTION = """\
Call a program with every row of FILE (JSON Lines, CSV or TSV; one row, one run) and write a line for each to --out, in
the order of the rows: outputs, outcome, error, tokens, cost.
"""
_MORE = """\
The inputs of the signature are columns of the same names; --input gives one another column, --set the same value for
all rows:
  rlm-dspy map letters.csv --signature "context, query -> deadline: str" --input context=text \\
      --set query="Which deadline is named?" --keep id --out deadlines.jsonl --model openai/NAME

FILE is read as rows are needed, and may be larger than memory. Every line is on disk once its row and those before it
are done; what was done ahead waits in OUT.job, and the same command goes on after Ctrl-C, a kill or a power failure.
Other settings, or rows that have changed, want another --out. A row that fails has its error in its line; --retry calls
the program with those rows again. After ten failures of the provider or the sandbox in a row it stops.

exit codes:
  0    every row has an answer
  1    some rows ended by an error of the provider or the sandbox, or a file could not be written
  2    usage
  3    --max-cost was spent before the end
  4    some rows have no answer
  130  interrupted
"""


def add_parser(commands: Any) -> None:
    """Register ``map`` with the sub-parsers of ``rlm-dspy``."""
    parser = jobs.add_parser(commands, "map", "call a program with every row of a file", _DESCRIPTION, _MORE)
    parser.add_argument("file", metavar="FILE", help="the rows: .jsonl, .csv or .tsv")
    group = parser.add_argument_group("rows")
    group.add_argument("--format", choices=("jsonl", "csv", "tsv"), help="of FILE, where its name does not say it")
    group.add_argument(
        "--input", metavar="NAME=COLUMN", action="append", default=[], type=pair, help="the column of an input"
    )
    group.add_argument(
        "--set", metavar="NAME=TEXT", action="append", default=[], type=pair, help="an input that is the same for all"
    )
    group.add_argument("--keep", metavar="COLUMN,...", default="", help="columns to copy into the lines")
    group.add_argument("--out", metavar="FILE", required=True, help="where the lines go, JSON Lines")
    group.add_argument("--retry", action="store_true", help="call it again with the rows that failed before")
    group.add_argument("--json", action="store_true", help="how it ended, as one JSON object")
    group = parser.add_argument_group("program")
    group.add_argument("--signature", metavar="S", help=f"of the program (default: '{DEFAULT_SIGNATURE}')")
    group.add_argument("--program", metavar="P", default="rlm", help="one of rlm-dspy eval, or pkg.mod:name (rlm)")
    jobs.add_program_arguments(group)
    group = parser.add_argument_group("where")
    group.add_argument(
        "--ray",
        metavar="ADDRESS",
        nargs="?",
        const="auto",
        help="on a Ray cluster, such as HOST:6379 (auto: the one of this machine), --threads rows at once",
    )
    jobs.add_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Call, write, and return the exit code."""
    return jobs.run(options, _run)


def _run(options: argparse.Namespace) -> int:
    from rlm_dspy import evaluation
    from rlm_dspy.cli.ask_options import prices
    from rlm_dspy.evaluation import rows

    read = rows.read(options.file, options.format)
    root, sub = jobs.models(options, [options.program])
    program = jobs.program(options, options.program, sub)
    named = options.program if ":" in options.program else None
    signature = options.signature or (None if named else DEFAULT_SIGNATURE)
    stop = evaluation.Stop()
    # Before signals are handled here, because Ray sets a handler of its own.
    cluster = None if options.ray is None else evaluation.Ray(options.ray)
    leaving = contextlib.nullcontext() if cluster is None else contextlib.closing(cluster)
    with leaving, jobs.playing(root), jobs.stopping(stop, "rows"):
        done = evaluation.map_rows(
            program,
            read,
            options.out,
            signature=signature,
            columns=dict(options.input),
            given=dict(options.set),
            keep=[word.strip() for word in options.keep.split(",") if word.strip()],
            threads=options.threads,
            max_cost=options.max_cost,
            prices=prices(" ".join(options.price)),
            retry=options.retry,
            stop=stop,
            seen=None if options.quiet else _say,
            ray=cluster,
        )
    if options.json:
        output.answer(output.json_text({"out": options.out, **done.to_dict()}))
    else:
        statuses = ", ".join(f"{count} {status}" for status, count in sorted(done.statuses.items())) or "none"
        unknown = " known, without the calls whose price is not (--price)" if done.unpriced_calls else ""
        output.answer(f"{done.rows} rows: {statuses}; ${done.spent:.4f}{unknown}")
    if stop.reason is not None:
        output.say(f"ended early: {stop.reason}; the same command goes on")
    if failed := done.statuses["error"]:
        output.say(f"{failed} rows failed by the provider or the sandbox; --retry calls it again with them")
    code = jobs.code(stop.reason, done.statuses["error"])
    return exits.FAILED if code == exits.SUBMITTED and done.statuses["failed"] else code


def _say(line: dict[str, Any]) -> None:
    limit = f" ({line['limit']})" if line.get("limit") else ""
    error = f": {line['error']}" if line.get("error") else ""
    took = f" {line['seconds']:.1f} s" if "seconds" in line else ""
    output.say(f"row {line['row']} {line['outcome']}{limit}{took}{error}")
