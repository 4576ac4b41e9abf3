"""Keeping libraries from writing to standard error what is neither the answer nor about the run.

DSPy and LiteLLM look on the network for newer lists of what models cost, and warn where they get none. Nobody who asks
a question about a file needs to read that, nor should it take the seconds that LiteLLM's attempts take.
"""

from __future__ import annotations

import logging
import os

_PRICES = "LITELLM_LOCAL_MODEL_COST_MAP"


def libraries() -> None:
    """Errors of the libraries are shown from now on, warnings about their lists of models are not.

    LiteLLM takes the list that it was installed with, unless its variable says otherwise. Before LiteLLM is imported.
    """
    os.environ.setdefault(_PRICES, "True")
    for name in ("dspy.clients.model_metadata", "LiteLLM"):
        logger = logging.getLogger(name)
        if _errors_only not in logger.filters:
            # A filter, because libraries set the levels of their loggers when they are imported.
            logger.addFilter(_errors_only)


def _errors_only(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR
