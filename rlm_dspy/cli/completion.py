"""``rlm-dspy completion bash|zsh|fish``: what the shell completes, from the parser itself, by shtab."""

from __future__ import annotations

import argparse
from typing import Any

from rlm_dspy.cli import exits, output
from rlm_dspy.cli.parser import build

_FILES = ("config", "events", "out", "words")
_INTERPRETERS = ("local", "subprocess", "inprocess")


def run(options: argparse.Namespace) -> int:
    """Print the script for one shell."""
    try:
        import shtab
    except ImportError:
        output.say("completion needs shtab. Install it with: pip install shtab")
        return exits.ERROR
    parser = build()
    _hint(parser, shtab.FILE)
    script = shtab.complete(parser, shell=options.shell)
    if options.shell == "zsh":
        # shtab lets zsh complete one argument where any number may come: the question here, and none of the files.
        script = script.replace('"(*)::', '"*:')
    output.answer(script)
    return exits.SUBMITTED


def _hint(parser: argparse.ArgumentParser, files: Any) -> None:
    """Say of each argument what it takes, where the parser alone does not tell."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            told = {choice.dest: choice.help for choice in action._choices_actions}
            for name, inner in action.choices.items():
                # Shells show one line of what there is; the first of a long description is not a sentence.
                inner.description = told.get(name) or inner.description
                _hint(inner, files)
        elif action.dest == "json":
            action.nargs, action.type = 0, None
        elif action.dest == "interpreter":
            action.choices = _INTERPRETERS
        elif action.dest in _FILES or (action.metavar in ("FILE", "PATH") and action.choices is None):
            action.complete = files  # type: ignore[attr-defined]
