"""The arguments of ``rlm-dspy``. Standard library only, so that ``--help`` is quick."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import rlm_dspy
from rlm_dspy.cli import exits

DEFAULT_SIGNATURE = "context, query -> answer: str"

_DESCRIPTION = "Recursive Language Models: questions about inputs of any size, answered by code in a confined sandbox."
_ASK = """\
Answer a question about documents of any size. The documents become the variable `context` of a Python sandbox; the
model writes code that looks at them and asks a sub-model about parts of them, until it submits the answer.

The answer is the only thing on standard output. Progress is shown on standard error if that is a terminal.
"""
_ASK_MORE = """\
models:
  --model, or RLM_DSPY_MODEL, takes names as DSPy does, such as openai/NAME or anthropic/NAME. The key comes from the
  environment (OPENAI_API_KEY, ANTHROPIC_API_KEY, ...). For a local server that speaks the OpenAI protocol:
    rlm-dspy ask "question" FILE --model openai/NAME --api-base http://127.0.0.1:8000/v1
  --model scripted:PATH runs the policy root(call) and optionally sub(call) of a Python file instead of a model (see
  rlm_dspy.testing). It is for demonstrations and tests, and runs that file as it is.

documents:
  Text in any encoding, JSON, JSON lines, CSV and TSV, folders (their text files), or - for standard input. One document
  is `context` itself, several are a dict of name to content.

Ctrl-C once asks for the best answer so far, twice gives up.

"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        # The whole usage of a long command buries the message.
        self.exit(exits.USAGE, f"{self.prog}: {message}\nTry: {self.prog} --help\n")


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The options of one command, its name as ``.command``.

    Raises:
        SystemExit: Help was printed, or the arguments are wrong.
    """
    top, commands = _top()
    # A sub-parser of argparse cannot take options between positional arguments, so it is called by hand.
    if argv and argv[0] == "ask":
        return _parse_ask(commands["ask"], list(argv[1:]))
    options = top.parse_args(list(argv))
    if options.command is None:
        top.print_help()
        top.exit(exits.USAGE)
    return options


def _parse_ask(parser: _Parser, argv: list[str]) -> argparse.Namespace:
    # What follows "--" is kept from argparse, which forgets that mark when options may stand anywhere.
    cut = argv.index("--") if "--" in argv else len(argv)
    options = parser.parse_intermixed_args(_json_mode(argv[:cut]), argparse.Namespace(command="ask"))
    words = [*options.words, *argv[cut + 1 :]]
    if len(words) < 2:
        missing = "QUESTION and FILE" if not words else "FILE (- for standard input)"
        parser.error(f"missing: {missing}")
    options.question, options.files = words[0], words[1:]
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


def _top() -> tuple[_Parser, dict[str, _Parser]]:
    top = _Parser(
        prog="rlm-dspy",
        description=_DESCRIPTION,
        epilog=exits.HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"rlm-dspy {rlm_dspy.__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)
    ask = commands.add_parser(
        "ask",
        usage="rlm-dspy ask QUESTION FILE... [options]",
        help="answer a question about documents",
        description=_ASK,
        epilog=_ASK_MORE + exits.HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _ask_arguments(ask)
    version = commands.add_parser("version", help="print versions", allow_abbrev=False)
    return top, {"ask": ask, "version": version}


def _ask_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words", metavar="QUESTION FILE...", nargs="*", help="the question; files, folders, or - for standard input"
    )

    group = parser.add_argument_group("model")
    group.add_argument("--model", metavar="M", help="the root model (default: $RLM_DSPY_MODEL)")
    group.add_argument("--sub-model", metavar="M", help="the model of llm_query (default: the root model)")
    group.add_argument("--api-base", metavar="URL", help="base URL of the model's server")

    group = parser.add_argument_group("task")
    group.add_argument(
        "--signature",
        metavar="S",
        default=DEFAULT_SIGNATURE,
        help="typed outputs for the inputs context and query, such as "
        f"'context, query -> names: list[str], count: int' (default: '{DEFAULT_SIGNATURE}')",
    )

    group = parser.add_argument_group("sandbox")
    group.add_argument(
        "--interpreter", metavar="NAME", default="local", help="local (confined, the default), subprocess, inprocess"
    )
    group.add_argument(
        "--env-opt", metavar="K=V", action="append", type=_pair, default=[], help="an option of it, such as memory=2GiB"
    )
    group.add_argument("--strict", action="store_true", help="refuse to run unless every layer of it is in force")

    group = parser.add_argument_group("limits")
    group.add_argument("--max-iters", metavar="N", type=_number(int), help="turns (20)")
    group.add_argument("--max-llm-calls", metavar="N", type=_number(int, True), help="sub-model calls, or none (50)")
    group.add_argument("--max-seconds", metavar="S", type=_number(float, True), help="time, or none (none)")
    group.add_argument("--max-errors", metavar="N", type=_number(int, True), help="errors in a row, or none (none)")
    group.add_argument("--max-concurrency", metavar="N", type=_number(int), help="sub-model calls at once (32)")
    group.add_argument("--max-output-chars", metavar="N", type=_number(int), help="output shown of a turn (10000)")

    group = parser.add_argument_group("output")
    group.add_argument(
        "--json",
        metavar="[full]",
        type=_one_of("brief", "full"),
        help="one JSON object: outputs, outcome, limit, error, usage, seconds; with the word full also trajectory",
    )
    group.add_argument("--events", metavar="FILE", help="write every event of the run to FILE, one JSON object a line")
    group.add_argument("--quiet", action="store_true", help="no progress and no notes")
    group.add_argument("--no-color", action="store_true", help="no colour (NO_COLOR is honoured too)")
    group.add_argument("--debug", action="store_true", help="show tracebacks")


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form K=V")
    return key.strip().replace("-", "_"), value


def _number(kind: Callable[[str], Any], none: bool = False) -> Callable[[str], Any]:
    """A converter: a number, or the text ``"none"`` where that is allowed. Ranges are checked by `Limits`."""

    def convert(text: str) -> Any:
        if none and text.lower() == "none":
            return UNLIMITED
        try:
            return kind(text)
        except ValueError:
            what = "a whole number" if kind is int else "a number"
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}{' or none' if none else ''}") from None

    return convert


def _one_of(*words: str) -> Callable[[str], str]:
    def convert(text: str) -> str:
        if text not in words:
            raise argparse.ArgumentTypeError(f"takes no value but {words[-1]}, not {text!r}")
        return text

    return convert


UNLIMITED = "none"
"""The value of a limit that was switched off; None means that it was not given."""
