"""``rlm-dspy ui``: MLflow's user interface on what was tracked."""

from __future__ import annotations

import argparse
import subprocess
import sys

from rlm_dspy.cli import exits, output, traces


def run(options: argparse.Namespace) -> int:
    """Serve it until Ctrl-C, which ends it and all that it started."""
    from rlm_dspy.errors import RLMError

    try:
        traces.store(options)
    except RLMError as error:
        output.say(str(error))
        return exits.USAGE
    if options.tracking_uri.startswith(("http://", "https://")):
        output.say("this store is a server, which has a user interface of its own:")
        output.answer(options.tracking_uri)
        return exits.SUBMITTED
    output.say(f"MLflow's user interface: http://{options.host}:{options.port} (Ctrl-C ends it)")
    where = ["--backend-store-uri", options.tracking_uri, "--host", options.host, "--port", str(options.port)]
    process = subprocess.Popen([sys.executable, "-m", "mlflow", "server", *where])
    try:
        code = process.wait()
    except KeyboardInterrupt:
        # The terminal has told the server as well.
        try:
            process.wait(10)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            process.terminate()
            process.wait()
        return exits.SUBMITTED
    if code:
        output.say("MLflow's server has ended; what it said stands above")
    return exits.ERROR if code else exits.SUBMITTED
