"""The commands of ``rlm-dspy`` and their arguments. Standard library only, so that ``--help`` is quick."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NoReturn

import rlm_dspy
from rlm_dspy.cli import ask_options, compile_options, eval, exits, map, model, traces
from rlm_dspy.cli.ask_options import DEFAULT_SIGNATURE, UNLIMITED

__all__ = ["DEFAULT_SIGNATURE", "SHELLS", "UNLIMITED", "build", "parse"]

SHELLS = ("bash", "zsh", "fish")

_DESCRIPTION = "Recursive Language Models: questions about inputs of any size, answered by code in a confined sandbox."
_EXAMPLES = """\
examples:
  rlm-dspy ask "Which clauses name a deadline?" contract.pdf --model openai/NAME
  rlm-dspy doctor

"""
_DOCTOR = """\
Look at this machine and say what works, what does not, and how to mend it: Python and the installed versions, the
sandbox (it is started), memory, disk, the language model (it is asked one short question), extras, the terminal.
Values of keys are never shown.

With --environment NAME: run the conformance suite against a place where code runs, yours or one of rlm-dspy's, print a
line for each check as it ends, and try out what the place says that it confines. At a provider it costs sandboxes.

With --reap: remove the Docker containers that runs of processes which are dead by now have left behind.
"""
_DOCTOR_MORE = """\
exit codes:
  0    nothing is in the way (there may be warnings)
  1    there is a problem
  2    usage
  130  interrupted
"""
_COMPLETION = """\
Print a script that lets the shell complete commands, options and files.

  bash   rlm-dspy completion bash > ~/.local/share/bash-completion/completions/rlm-dspy
  zsh    rlm-dspy completion zsh > ~/.zfunc/_rlm-dspy     (with fpath+=~/.zfunc before compinit in ~/.zshrc)
  fish   rlm-dspy completion fish > ~/.config/fish/completions/rlm-dspy.fish

In the running shell only: eval "$(rlm-dspy completion bash)", or: rlm-dspy completion fish | source
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        # The whole usage of a long command buries the message.
        self.exit(exits.USAGE, f"{self.prog}: {message}\nTry: {self.prog} --help\n")


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The options of one command, its name as ``.command``.

    Raises:
        SystemExit: Help was printed, or the arguments or the configuration file are wrong.
    """
    top, ask = _top()
    # A sub-parser of argparse cannot take options between positional arguments, so it is called by hand.
    if argv and argv[0] == "ask":
        return _parse_ask(ask, list(argv[1:]))
    options = top.parse_args(list(argv))
    if options.command is None:
        top.print_help()
        top.exit(exits.USAGE)
    return options


def build() -> argparse.ArgumentParser:
    """The whole parser, for what is made from it, such as shell completion."""
    return _top()[0]


def _parse_ask(parser: _Parser, argv: list[str]) -> argparse.Namespace:
    # What follows "--" is kept from argparse, which forgets that mark when options may stand anywhere.
    cut = argv.index("--") if "--" in argv else len(argv)
    options = parser.parse_intermixed_args(_json_mode(argv[:cut]), argparse.Namespace(command="ask"))
    words = [*options.words, *argv[cut + 1 :]]
    if len(words) < 2:
        missing = "QUESTION and FILE" if not words else "FILE (- for standard input)"
        parser.error(f"missing: {missing}")
    options.question, options.files = words[0], words[1:]
    from rlm_dspy.cli import config

    try:
        config.complete(parser, options)
    except config.ConfigError as error:
        parser.error(f"--config: {error}")
    if options.json is None and options.out is not None and options.out.lower().endswith(".json"):
        options.json = "brief"
    return options


def _json_mode(argv: list[str]) -> list[str]:
    """``--json`` takes the word ``full`` and no other, where argparse would take whatever comes next."""
    result: list[str] = []
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if word == "--json":
            word = "--json=full" if rest[:1] == ["full"] else "--json=brief"
            if word == "--json=full":
                rest.pop(0)
        result.append(word)
    return result


def _top() -> tuple[_Parser, _Parser]:
    raw = argparse.RawDescriptionHelpFormatter
    top = _Parser(
        prog="rlm-dspy",
        description=_DESCRIPTION,
        epilog=_EXAMPLES + exits.HELP,
        formatter_class=raw,
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"rlm-dspy {rlm_dspy.__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)
    ask = commands.add_parser(
        "ask",
        usage=ask_options.USAGE,
        help="answer a question about documents",
        description=ask_options.HELP,
        epilog=ask_options.MORE,
        formatter_class=raw,
        allow_abbrev=False,
    )
    ask_options.add_arguments(ask)
    model.add_parser(commands)
    traces.add_parser(commands)
    compile_options.add_parser(commands)
    eval.add_parser(commands)
    map.add_parser(commands)
    doctor = commands.add_parser(
        "doctor",
        help="find out what works on this machine, and how to mend what does not",
        description=_DOCTOR,
        epilog=_DOCTOR_MORE,
        formatter_class=raw,
        allow_abbrev=False,
    )
    doctor.add_argument("--json", action="store_true", help="the findings as one JSON object")
    doctor.add_argument(
        "--environment", metavar="NAME", help="run the conformance suite against this environment instead"
    )
    doctor.add_argument(
        "--env-opt", metavar="K=V", action="append", default=[], type=ask_options.pair, help="an option of it"
    )
    doctor.add_argument(
        "--check", metavar="WORD", action="append", default=[], help="only the checks with this word in their names"
    )
    doctor.add_argument("--reap", action="store_true", help="remove the containers of dead processes instead")
    doctor.add_argument("--model", metavar="M", help="the model to look at (default: $RLM_DSPY_MODEL)")
    doctor.add_argument("--api-base", metavar="URL", help="base URL of its server (default: $RLM_DSPY_API_BASE)")
    doctor.add_argument("--no-call", action="store_true", help="do not ask the model anything")
    doctor.add_argument(
        "--seconds", metavar="S", type=_seconds, default=4.0, help="how long the model may take to answer (4)"
    )
    doctor.add_argument("--no-color", action="store_true", help="no colour (NO_COLOR is honoured too)")
    completion = commands.add_parser(
        "completion",
        help="print a script for the shell's completion",
        description=_COMPLETION,
        formatter_class=raw,
        allow_abbrev=False,
    )
    completion.add_argument("shell", metavar="SHELL", choices=SHELLS, help=f"one of {', '.join(SHELLS)}")
    commands.add_parser("version", help="print versions", allow_abbrev=False)
    return top, ask


def _seconds(text: str) -> float:
    value = ask_options.number(float)(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return float(value)
