"""``rlm-dspy version``."""

from __future__ import annotations

import argparse

from rlm_dspy.cli import exits, output


def run(options: argparse.Namespace) -> int:
    """Print the versions of this package, of DSPy and of Python, one a line."""
    import importlib.metadata
    import platform

    import rlm_dspy

    lines = [f"rlm-dspy {rlm_dspy.__version__}"]
    # From the metadata: importing DSPy only to ask it takes over a second.
    lines.append(f"dspy {importlib.metadata.version('dspy')}")
    lines.append(f"python {platform.python_version()}")
    output.answer("\n".join(lines))
    return exits.SUBMITTED
