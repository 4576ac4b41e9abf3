"""``rlm-dspy doctor``."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys

from rlm_dspy.cli import exits, output


def run(options: argparse.Namespace) -> int:
    """Print what was found; 0 unless there is a problem."""
    if options.environment is not None:
        from rlm_dspy.cli import conformance

        return conformance.run(options)
    if options.reap:
        from rlm_dspy.cli import reap

        return reap.run(options)
    # What libraries say of their own accord while they are looked at is not part of the report.
    import logging
    import warnings

    from rlm_dspy import doctor
    from rlm_dspy.doctor.report import report, summary

    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    waiting = output.progress_wanted(options.json)
    if waiting:
        print("looking at this machine ...", end="", file=sys.stderr, flush=True)
    try:
        findings = doctor.examine(
            options.model, options.api_base, call=not options.no_call, seconds=options.seconds
        )
    finally:
        logging.disable(logging.NOTSET)
        if waiting:
            # Gone when the report is there, or Ctrl-C was typed.
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    if options.json:
        found = {"summary": summary(findings), "findings": [finding.to_dict() for finding in findings]}
        output.answer(json.dumps(found, indent=2))
    else:
        terminal = output.is_terminal(sys.stdout)
        width = shutil.get_terminal_size((80, 24)).columns if terminal else 80
        color = terminal and not (options.no_color or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb")
        output.page(report(findings, width=width, color=color))
    return exits.ERROR if any(finding.status == "problem" for finding in findings) else exits.SUBMITTED
