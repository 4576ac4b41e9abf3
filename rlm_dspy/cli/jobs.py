"""What ``eval`` and ``map`` share: options of models and programs, Ctrl-C, how a job ended.

The options are standard library alone, so that ``--help`` is quick.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from rlm_dspy.cli import exits, output
from rlm_dspy.cli.ask_options import UNLIMITED, VARIABLES, number, pair

LIMITS = {
    "max_iters": (int, "N", "turns of an RLM (20)"),
    "max_llm_calls": (int, "N", "sub-model calls of an RLM, or none (50)"),
    "max_tokens": (int, "N", "tokens of one RLM, or none (none)"),
    "max_seconds": (float, "S", "time of one RLM, or none (none)"),
    "max_depth": (int, "N", "levels of RLMs (1)"),
    "max_concurrency": (int, "N", "sub-model calls at once of one RLM (32)"),
    "max_output_chars": (int, "N", "output shown of a turn (10000)"),
}
"""Keywords of `RLM` that are options of both commands."""


def add_parser(commands: Any, name: str, text: str, description: str, more: str) -> Any:
    """A sub-parser of ``rlm-dspy``, with the line that lists it, what stands before its options, and after them."""
    form = argparse.RawDescriptionHelpFormatter
    return commands.add_parser(
        name, help=text, description=description, epilog=more, formatter_class=form, allow_abbrev=False
    )


def add_arguments(parser: Any) -> None:
    """The options of models, of the sandbox and of limits."""
    group = parser.add_argument_group("model")
    group.add_argument(
        "--model",
        metavar="M",
        help="the model, as for rlm-dspy ask (RLM_DSPY_MODEL); programs of your own may bring theirs",
    )
    group.add_argument("--sub-model", metavar="M", help="the model of sub-calls (default: the model)")
    group.add_argument("--api-base", metavar="URL", help="base URL of the model's server")
    group.add_argument("--temperature", metavar="T", type=number(float), help="of both models (default: theirs)")
    group.add_argument(
        "--cache", action="store_true", help="answer requests from DSPy's cache where they are in it, at no cost"
    )
    group.add_argument(
        "--price", metavar="M=IN,OUT", action="append", default=[], help="what a model costs, as for rlm-dspy ask"
    )
    group = parser.add_argument_group("sandbox")
    group.add_argument("--environment", metavar="NAME", help="where code runs (local)")
    group.add_argument(
        "--env-opt", metavar="K=V", action="append", default=[], type=pair, help="an option of it, such as memory=2GiB"
    )
    group = parser.add_argument_group("limits")
    group.add_argument(
        "--max-cost", metavar="USD", type=number(float), help="US dollars of the whole job, earlier times included"
    )
    group.add_argument("--max-cost-each", metavar="USD", type=number(float), help="US dollars of one RLM")
    for name, (kind, metavar, text) in LIMITS.items():
        none = "or none" in text
        group.add_argument(f"--{name.replace('_', '-')}", metavar=metavar, type=number(kind, none), help=text)
    group.add_argument("--threads", metavar="N", type=number(int), default=4, help="how many at once (4)")
    group.add_argument("--quiet", action="store_true", help="no progress")
    group.add_argument("--debug", action="store_true", help="show tracebacks")


def add_program_arguments(group: Any) -> None:
    """The options of programs."""
    group.add_argument("--load", metavar="NAME|FILE", help="begin with a preset, or with a saved state")
    group.add_argument("--window", metavar="N", type=number(int), help="tokens of the model's window, where unknown")


def program(options: argparse.Namespace, name: str, sub: Any) -> Any:
    """The `rlm_dspy.evaluation.Program` of that name, with the options that were given.

    Raises:
        ConfigurationError: There is none, or the state cannot be read.
    """
    from rlm_dspy import RLM, evaluation, presets
    from rlm_dspy.cli import objects
    from rlm_dspy.errors import ConfigurationError

    depends, keywords = settings(options), rlm_options(options)
    prepare: Callable[[Any], Any] | None = None
    if options.load is not None:
        preset = presets.read(options.load)
        state = json.dumps(preset.state, sort_keys=True, default=str).encode()
        depends["load"] = hashlib.sha256(state).hexdigest()[:16]
        keywords = {**preset.options, **keywords}

        def prepare(built: Any) -> Any:
            if isinstance(built, RLM):
                presets.apply(preset, built)
            else:
                built.load_state(preset.state)
            return built

    found = None
    if ":" in name:
        found = objects.find(name, "--program")
        depends["source"] = _source(name)
    elif name not in evaluation.NAMES:
        there = ", ".join(evaluation.NAMES)
        raise ConfigurationError(f"no program {name!r}; there are {there}, package.module:name and file.py:name")
    return evaluation.get(name, found, window=options.window, sub_lm=sub, settings=depends, prepare=prepare, **keywords)


def _source(spec: str) -> str:
    """The digest of the file that `rlm_dspy.cli.objects.find` has found something in."""
    place = spec.rpartition(":")[0]
    file = place if place.endswith(".py") else getattr(sys.modules.get(place), "__file__", None)
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16] if file and Path(file).is_file() else ""


def complete(options: argparse.Namespace) -> None:
    """Fill in what environment variables give."""
    for name, variable in VARIABLES.items():
        target = "environment" if name == "interpreter" else name
        if getattr(options, target, False) is None and os.environ.get(variable):
            setattr(options, target, os.environ[variable])


def models(options: argparse.Namespace, programs: Iterable[str]) -> tuple[Any, Any]:
    """The root LM and the sub-LM, without DSPy's cache unless it is asked for.

    Args:
        options: Of the command.
        programs: Names of the programs. Where all of them are the user's, which may bring LMs of their own, none has
            to be named; the root LM is None then.
    """
    from rlm_dspy.cli.models import named_or_own

    root, sub = named_or_own(
        options.model, options.sub_model, options.api_base, own=all(":" in name for name in programs)
    )
    for lm in (root, sub):
        if lm is None:
            continue
        if not options.cache and hasattr(lm, "cache"):
            lm.cache = False
        if options.temperature is not None:
            lm.kwargs["temperature"] = options.temperature
    return root, sub


def rlm_options(options: argparse.Namespace) -> dict[str, Any]:
    """The keywords of `RLM` that were given."""
    from rlm_dspy import environments
    from rlm_dspy.cli.ask_options import prices

    given: dict[str, Any] = {
        name: None if value == UNLIMITED else value for name in LIMITS if (value := getattr(options, name)) is not None
    }
    if options.max_cost_each is not None:
        given["max_cost"] = options.max_cost_each
    if found := prices(" ".join(options.price)):
        given["prices"] = found
    given["interpreter"] = environments.from_options(options.environment or "local", dict(options.env_opt))
    return given


def settings(options: argparse.Namespace) -> dict[str, Any]:
    """What results depend on besides the keywords of `RLM`; it is kept in files, so no secret is in it."""
    from rlm_dspy.redact import HIDDEN, redacted
    from rlm_dspy.signatures.predictor import may_hold_a_key

    found = {
        "model": options.model,
        "sub_model": options.sub_model,
        "api_base": options.api_base,
        "temperature": options.temperature,
        "environment": options.environment or "local",
        "env_opt": {name: HIDDEN if may_hold_a_key(name) else value for name, value in options.env_opt},
    }
    return {name: redacted(value) for name, value in found.items() if value}


def playing(root: Any) -> contextlib.AbstractContextManager[Any]:
    """DSPy's settings with that root LM; as they are where it is None, with what the program's file configured."""
    import dspy

    return contextlib.nullcontext() if root is None else dspy.context(lm=root)


@contextlib.contextmanager
def stopping(stop: Any, what: str) -> Iterator[None]:
    """Ctrl-C begins nothing more, a second one gives up what is under way, a third one leaves at once.

    Args:
        stop: An `rlm_dspy.evaluation.Stop`.
        what: What is under way, in the plural.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signals = 0

    def on_signal(number_: int, frame: FrameType | None) -> None:
        nonlocal signals
        signals += 1 if number_ == signal.SIGINT else 2
        if signals > 3 or (signals == 3 and number_ == signal.SIGINT):
            os._exit(exits.INTERRUPTED)
        # In a thread, because the signal may have struck in the middle of a print.
        act: Callable[[], Any] = give_up if signals > 1 else finish
        threading.Thread(target=act, daemon=True).start()

    def finish() -> None:
        stop.ask("interrupted")
        output.say(f"stopping: the {what} under way come to their end (Ctrl-C again to give them up)")

    def give_up() -> None:
        stop.give_up("interrupted")

    before = {one: signal.signal(one, on_signal) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def run(options: argparse.Namespace, job: Callable[[argparse.Namespace], int]) -> int:
    """``job`` with its errors told as messages, and the exit code."""
    import traceback

    from rlm_dspy.cli import quiet
    from rlm_dspy.errors import ConfigurationError, RecordingError, RLMError
    from rlm_dspy.redact import error_text

    if not options.debug:
        quiet.libraries()
    complete(options)
    try:
        return job(options)
    except Exception as error:
        if options.debug:
            traceback.print_exc()
        text = str(error) if isinstance(error, (RLMError, ValueError)) else error_text(error)
        if "prices=" in text:
            text += ". On the command line: --price MODEL=INPUT,OUTPUT"
        output.say(text)
        usage = isinstance(error, (ConfigurationError, ValueError)) and not isinstance(error, RecordingError)
        return exits.USAGE if usage else exits.ERROR


def code(stopped: str | None, errors: int) -> int:
    """The exit code of a job that was brought to its end, or stopped for that reason."""
    if stopped == "interrupted":
        return exits.INTERRUPTED
    if stopped is not None and stopped.startswith("max_cost"):
        return exits.EXTRACTED
    return exits.ERROR if stopped or errors else exits.SUBMITTED
