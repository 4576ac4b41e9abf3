"""The arguments of ``rlm-dspy ask``. Standard library only, so that ``--help`` is quick.

Every option is None where it was not given, so that the environment and the configuration file can come in
(`rlm_dspy.cli.config`); `DEFAULTS` come last.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from rlm_dspy.cli import exits

DEFAULT_SIGNATURE = "context, query -> answer: str"
UNLIMITED = "none"
"""The value of a limit that was switched off; None means that it was not given."""

DEFAULTS: dict[str, Any] = {
    "signature": DEFAULT_SIGNATURE,
    "interpreter": "local",
    "env_opt": [],
    "strict": False,
    "quiet": False,
    "no_color": False,
    "debug": False,
}
"""What an option is where neither the command line, nor the environment, nor the configuration file gives it."""

VARIABLES = {
    "model": "RLM_DSPY_MODEL",
    "sub_model": "RLM_DSPY_SUB_MODEL",
    "api_base": "RLM_DSPY_API_BASE",
    "interpreter": "RLM_DSPY_INTERPRETER",
    "config": "RLM_DSPY_CONFIG",
}
"""Options that environment variables give, and which."""

USAGE = "rlm-dspy ask QUESTION FILE... [options]"
HELP = """\
Answer a question about documents of any size. The documents become the variable `context` of a Python sandbox; the
model writes code that looks at them and asks a sub-model about parts of them, until it submits the answer.

The answer is the only thing on standard output. Progress goes to standard error: shown live on a terminal, a line a
turn elsewhere.
"""
MORE = (
    """\
models:
  --model takes names as DSPy does, such as openai/NAME or anthropic/NAME. The key comes from the environment
  (OPENAI_API_KEY, ANTHROPIC_API_KEY, ...). For a local server that speaks the OpenAI protocol:
    rlm-dspy ask "question" FILE --model openai/NAME --api-base http://127.0.0.1:8000/v1
  --model local, or local/NAME, is the embedded model: no key and no server (see rlm-dspy model --help).
  --model scripted:PATH runs the policy root(call) and optionally sub(call) of a Python file instead of a model (see
  rlm_dspy.testing). It is for demonstrations and tests, and runs that file as it is.

documents:
  Text in any encoding, JSON, JSON lines, CSV and TSV, folders, or - for standard input; with the extra documents
  (pip install 'rlm-dspy[documents]') also PDF, Word (docx), PowerPoint (pptx) and spreadsheets (xlsx, xlsb, xls, ods).
  One document is `context` itself, several are a dict of name to content.

configuration:
  A TOML file with options by their long names; [env] holds what --env-opt takes. An option on the command line comes
  before an environment variable, and that before the file. Paths in it are relative to it.
    model = "openai/NAME"
    max-llm-calls = 200
    [env]
    memory = "2GiB"
  Variables: RLM_DSPY_MODEL, RLM_DSPY_SUB_MODEL, RLM_DSPY_API_BASE, RLM_DSPY_INTERPRETER, and RLM_DSPY_CONFIG for
  the file. Keys of providers do not go into it.

Ctrl-C once asks for the best answer so far, twice gives up. What is wrong with a set-up is found by: rlm-dspy doctor

"""
    + exits.HELP
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """All of them, in groups."""
    parser.add_argument(
        "words", metavar="QUESTION FILE...", nargs="*", help="the question; files, folders, or - for standard input"
    )

    group = parser.add_argument_group("model")
    group.add_argument("--model", metavar="M", help="the root model, such as openai/NAME or local")
    group.add_argument("--sub-model", metavar="M", help="the model of llm_query (default: the root model)")
    group.add_argument("--api-base", metavar="URL", help="base URL of the model's server")
    group.add_argument(
        "--threads",
        metavar="N",
        type=number(int),
        help="threads of the embedded model (default: the cores there are; fewer are faster beside other work)",
    )

    group = parser.add_argument_group("task")
    group.add_argument(
        "--signature",
        metavar="S",
        help="typed outputs for the inputs context and query, such as "
        f"'context, query -> names: list[str], count: int' (default: '{DEFAULT_SIGNATURE}')",
    )
    group.add_argument(
        "--load", metavar="NAME|FILE", help="begin with a preset, or with what rlm-dspy compile has written"
    )
    group.add_argument("--config", metavar="FILE", help="options from a TOML file")

    group = parser.add_argument_group("sandbox")
    group.add_argument(
        "--interpreter", metavar="NAME", help="local (confined, the default), subprocess, inprocess"
    )
    group.add_argument(
        "--env-opt", metavar="K=V", action="append", type=pair, help="an option of it, such as memory=2GiB"
    )
    _switch(group, "--strict", "refuse to run unless every layer of it is in force")

    group = parser.add_argument_group("limits")
    group.add_argument("--max-iters", metavar="N", type=number(int), help="turns (20)")
    group.add_argument("--max-llm-calls", metavar="N", type=number(int, True), help="sub-model calls, or none (50)")
    group.add_argument(
        "--max-tokens", metavar="N", type=number(int, True), help="tokens of all model calls, or none (none)"
    )
    group.add_argument(
        "--max-cost", metavar="USD", type=number(float, True), help="US dollars of all model calls, or none (none)"
    )
    group.add_argument(
        "--price",
        metavar="M=IN,OUT",
        help="what a model costs where no price is published, in US dollars for a million tokens, such as "
        "openai/NAME=0.2,1.25; several with spaces between them",
    )
    group.add_argument(
        "--max-depth", metavar="N", type=number(int), help="levels of RLMs; with 2, code may start children (1)"
    )
    group.add_argument("--max-seconds", metavar="S", type=number(float, True), help="time, or none (none)")
    group.add_argument("--max-errors", metavar="N", type=number(int, True), help="errors in a row, or none (none)")
    group.add_argument("--max-concurrency", metavar="N", type=number(int), help="sub-model calls at once (32)")
    group.add_argument(
        "--direct-below",
        metavar="N",
        type=number(int, True),
        help="answer documents of fewer tokens by one direct call, or none (none)",
    )
    group.add_argument("--max-output-chars", metavar="N", type=number(int), help="output shown of a turn (10000)")

    group = parser.add_argument_group("output")
    group.add_argument(
        "--out",
        metavar="FILE",
        help="write the answer to FILE instead, whole or not at all; with --json, or for a name that ends in .json, "
        "the JSON object",
    )
    group.add_argument(
        "--json",
        metavar="[full]",
        type=one_of("brief", "full"),
        help="one JSON object: outputs, outcome, limit, error, usage, seconds; with the word full also trajectory",
    )
    group.add_argument("--events", metavar="FILE", help="write every event of the run to FILE, one JSON object a line")
    _switch(group, "--quiet", "no progress and no notes")
    _switch(group, "--no-color", "no colour (NO_COLOR is honoured too)")
    _switch(group, "--debug", "show tracebacks")


def _switch(group: argparse._ArgumentGroup, option: str, text: str) -> None:
    group.add_argument(option, action="store_const", const=True, help=text)


def pair(text: str) -> tuple[str, str]:
    """``K=V`` as key and value; dashes in the key are underscores."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form K=V")
    return key.strip().replace("-", "_"), value


def number(kind: Callable[[str], Any], none: bool = False) -> Callable[[str], Any]:
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


def prices(text: str) -> dict[str, tuple[float, ...]]:
    """``M=IN,OUT`` or ``M=IN,OUT,CACHED``, several with spaces between them: model name to prices, or a ValueError."""
    found: dict[str, tuple[float, ...]] = {}
    for word in text.split():
        model, _, rates = word.rpartition("=")
        try:
            found[model] = tuple(float(rate) for rate in rates.split(","))
        except ValueError:
            found[model] = ()
        if not model or len(found[model]) not in (2, 3):
            raise ValueError(f"--price: {word!r} is not of the form MODEL=IN,OUT, such as openai/NAME=0.2,1.25")
    return found


def one_of(*words: str) -> Callable[[str], str]:
    """A converter that takes these words and names the last of them where another is given."""

    def convert(text: str) -> str:
        if text not in words:
            raise argparse.ArgumentTypeError(f"takes no value but {words[-1]}, not {text!r}")
        return text

    return convert
