"""``rlm-dspy traces`` and ``rlm-dspy ui``: what was tracked, to list, to look at, to take away."""

from __future__ import annotations

import argparse
import json
import os
import traceback
from collections.abc import Sequence
from typing import Any

from rlm_dspy.cli import exits, output

_DESCRIPTION = """\
What was tracked by rlm_dspy.tracking.enable(): list it, look at a run, export it. Needs the extra `mlflow`:
  pip install 'rlm-dspy[mlflow]'
"""
_STORE = """\
The store is the one of --tracking-uri, of MLFLOW_TRACKING_URI, or the file mlflow.db in this folder.
FILTER is written as in MLflow: "attributes.status = 'OK' AND tags.split = 'train'".
"""
_UI = """\
Open MLflow's user interface on the store, until Ctrl-C.
"""
DEFAULT_FILE = "mlflow.db"


def add_parser(commands: Any) -> None:
    """Register ``traces`` and ``ui`` with the sub-parsers of ``rlm-dspy``."""
    raw: dict[str, Any] = {"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False}
    parser = commands.add_parser("traces", help="tracked runs: list, show, export", description=_DESCRIPTION, **raw)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=type(parser))

    listed = actions.add_parser("list", help="the runs that were tracked, the newest first", epilog=_STORE, **raw)
    _which(listed, most=20)
    listed.add_argument("--json", action="store_true", help="one JSON object a line")

    show = actions.add_parser("show", help="what a run did", epilog=_STORE, **raw)
    show.add_argument("trace", metavar="ID", help="the trace's id, or a file of `export`")
    show.add_argument("--html", metavar="FILE", help="write a page with everything: one file, no script, no network")

    export = actions.add_parser("export", help="runs as files of data", epilog=_STORE, **raw)
    export.add_argument("trace", metavar="ID", nargs="?", help="one trace (default: all that fit)")
    export.add_argument(
        "--form",
        choices=("trajectory", "examples", "sft"),
        default="trajectory",
        help="trajectory: all of the run ID, see rlm_dspy.jsonl (default); examples: inputs and outputs of each run; "
        "sft: the root's conversations, for fine-tuning",
    )
    export.add_argument("--out", metavar="FILE", required=True, help="the file, JSON Lines")
    _which(export, most=None)
    export.add_argument(
        "--feedback",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        type=_feedback,
        help="only runs that were given this feedback; VALUE as JSON, such as true",
    )

    ui = commands.add_parser("ui", help="open MLflow's user interface on what was tracked", description=_UI, **raw)
    ui.add_argument("--port", metavar="P", type=int, default=5000, help="the port (5000)")
    ui.add_argument("--host", metavar="H", default="127.0.0.1", help="the address (127.0.0.1: this machine alone)")
    for command in (listed, show, export, ui):
        command.add_argument("--tracking-uri", metavar="URI", help="the store")
        command.add_argument("--debug", action="store_true", help="show tracebacks")


def _which(parser: argparse.ArgumentParser, most: int | None) -> None:
    parser.add_argument("--filter", metavar="FILTER", help="only the traces that fit")
    parser.add_argument("--experiment", metavar="NAME", help="only those of this experiment")
    said = "at most so many traces" + (f" ({most})" if most else "")
    parser.add_argument("--max", metavar="N", type=_positive, default=most, help=said)


def _positive(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return value


def _feedback(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def run(options: argparse.Namespace) -> int:
    """Run one of the commands and return the exit code."""
    from rlm_dspy.errors import ConfigurationError, RecordingError, RLMError
    from rlm_dspy.redact import error_text

    try:
        store(options)
        return _ACTIONS[options.action](options)
    except (ConfigurationError, RecordingError) as error:
        if options.debug:
            traceback.print_exc()
        output.say(str(error))
        return exits.USAGE
    except Exception as error:
        if options.debug:
            traceback.print_exc()
        output.say(str(error) if isinstance(error, RLMError) else error_text(error))
        return exits.ERROR


def store(options: argparse.Namespace) -> None:
    """Settle on the store: that of the options, of the environment, or the file in this folder.

    Raises:
        MissingExtraError: MLflow is not installed.
        ConfigurationError: There is none.
    """
    from rlm_dspy.cli import quiet
    from rlm_dspy.errors import ConfigurationError
    from rlm_dspy.traces.store import library
    from rlm_dspy.traces.uri import anchored

    quiet.libraries()
    if getattr(options, "trace", None) and os.path.isfile(options.trace):
        return
    library()
    uri = options.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI")
    if uri is None:
        if not os.path.isfile(DEFAULT_FILE):
            raise ConfigurationError(
                f"there is no {DEFAULT_FILE} in this folder: nothing was tracked here. Go to where the program ran, or "
                "name the store: --tracking-uri sqlite:///PATH or http://HOST:PORT"
            )
        uri = f"sqlite:///{DEFAULT_FILE}"
    elif uri.startswith("sqlite:///") and not os.path.isfile(uri.removeprefix("sqlite:///")):
        # MLflow would make an empty one.
        raise ConfigurationError(f"there is no file {uri.removeprefix('sqlite:///')}")
    options.tracking_uri = anchored(uri)


def _list(options: argparse.Namespace) -> int:
    from rlm_dspy import traces
    from rlm_dspy.pages.text import money, seconds
    from rlm_dspy.render import one_line

    rows = [("TRACE", "WHEN", "OUTCOME", "TURNS", "CALLS", "TIME", "COST", "TASK")]
    found = 0
    chosen: dict[str, Any] = {"experiment": options.experiment, "max_traces": options.max, "flush": False}
    for trace in traces.find(options.filter, tracking_uri=options.tracking_uri, **chosen):
        for run in traces.runs_of(trace):
            found += 1
            usage, ended = run.usage, run.ended
            when = _when(trace.info.timestamp_ms)
            if options.json:
                output.answer(json.dumps(output.plain(_row(run, when))))
                continue
            outcome = "unfinished" if ended is None else ended.outcome + (f" ({ended.limit})" if ended.limit else "")
            cost = usage.get("cost")
            took = "?" if ended is None else seconds(ended.seconds)
            task = str(next((v for v in reversed(run.inputs.values()) if isinstance(v, str)), ""))
            rows.append(
                (
                    *(run.trace_id, when, outcome, str(len(run.trajectory)), str(usage.get("calls", "?")), took),
                    *("?" if cost is None else money(cost), one_line(task or _signature(run), 60)),
                )
            )
    if options.json:
        return exits.SUBMITTED
    if not found:
        output.say("no tracked run fits")
        return exits.SUBMITTED
    widths = [max(len(row[i]) for row in rows) for i in range(7)]
    for row in rows:
        output.answer("  ".join((*(row[i].ljust(widths[i]) for i in range(7)), row[7])).rstrip())
    return exits.SUBMITTED


def _signature(run: Any) -> str:
    return str(run.started.signature) if run.started is not None else ""


def _when(milliseconds: int) -> str:
    import datetime

    return datetime.datetime.fromtimestamp(milliseconds / 1000).isoformat(sep=" ", timespec="seconds")


def _row(run: Any, when: str) -> dict[str, Any]:
    return {
        "trace_id": run.trace_id,
        "when": when,
        "run_id": run.run_id,
        "signature": _signature(run),
        "outcome": None if run.outcome is None else str(run.outcome),
        "limit": None if run.outcome is None else run.outcome.limit,
        "error": None if run.outcome is None else run.outcome.error,
        "turns": len(run.trajectory),
        "seconds": None if run.ended is None else run.ended.seconds,
        **{name: run.usage.get(name) for name in ("calls", "children", "input_tokens", "output_tokens", "cost")},
        "assessments": {name: assessment.value for name, assessment in run.assessments.items()},
    }


def _show(options: argparse.Namespace) -> int:
    from rlm_dspy.cli.out import OutFile

    page = OutFile(options.html) if options.html else None
    trajectory = _trajectory(options)
    if page is not None:
        if not page.write(trajectory.to_html().rstrip("\n")):
            return exits.ERROR
        output.say(f"written: {options.html}")
        return exits.SUBMITTED
    import sys

    from rich.console import Console

    Console(file=sys.stdout, highlight=False, markup=False).print(trajectory)
    return exits.SUBMITTED


def _trajectory(options: argparse.Namespace) -> Any:
    from rlm_dspy.trajectory import Trajectory

    if os.path.isfile(options.trace):
        return Trajectory.from_jsonl(options.trace)
    return Trajectory.from_trace(options.trace, tracking_uri=options.tracking_uri)


def _export(options: argparse.Namespace) -> int:
    from rlm_dspy import jsonl, traces
    from rlm_dspy.cli.out import OutFile
    from rlm_dspy.errors import ConfigurationError

    file = OutFile(options.out)
    if options.form == "trajectory":
        if not options.trace:
            raise ConfigurationError("a trajectory is one run's: rlm-dspy traces export ID --out FILE")
        lines: Sequence[str] = list(jsonl.lines(_trajectory(options).events))
        made = "1 run"
    else:
        chosen: dict[str, Any] = {
            "feedback": dict(options.feedback),
            "experiment": options.experiment,
            "max_traces": options.max,
            "trace_ids": [options.trace] if options.trace else None,
            "tracking_uri": options.tracking_uri,
            "flush": False,
        }
        if options.form == "sft":
            rows: Sequence[Any] = traces.sft_from_traces(options.filter, **chosen)
        else:
            rows = [example.toDict() for example in traces.trainset_from_traces(options.filter, **chosen)]
        lines = [json.dumps(output.plain(row)) for row in rows]
        made = f"{len(rows)} row{'' if len(rows) == 1 else 's'}"
    if not file.write("\n".join(lines)):
        return exits.ERROR
    none = ""
    if not lines:
        wanted = "".join(f" and have the feedback {name}={value}" for name, value in options.feedback)
        none = f": only runs are taken that were answered{wanted}; what there is, is told by: rlm-dspy traces list"
    output.say(f"written: {options.out}, {made}{none}")
    return exits.SUBMITTED


_ACTIONS = {"list": _list, "show": _show, "export": _export}
