"""The command line ``rlm-dspy``.

Only the parser is imported here: ``rlm-dspy --help`` must not wait for DSPy.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from rlm_dspy.cli import exits


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: The arguments after the program's name; those of this process if None.

    Returns:
        The exit code, see `rlm_dspy.cli.exits`. Nothing is raised but what ``--debug`` lets through.
    """
    from rlm_dspy.cli.parser import parse

    try:
        options = parse(sys.argv[1:] if argv is None else list(argv))
    except SystemExit as stop:
        # argparse ends the process over --help and bad usage; a function returns.
        return stop.code if isinstance(stop.code, int) else exits.USAGE
    try:
        return int(importlib.import_module(f"rlm_dspy.cli.{options.command}").run(options))
    except KeyboardInterrupt:
        return exits.INTERRUPTED
    finally:
        if argv is None:
            _let_the_process_end()


def _let_the_process_end() -> None:
    """Keep a late Ctrl-C from turning the exit code, which is settled, into a traceback of the interpreter's end."""
    import signal
    import threading

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
