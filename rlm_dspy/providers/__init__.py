"""Language model providers: which environment variables hold their keys, and what to do about their errors.

    facts.py      what is known of the provider of a model: its name, key variables, usual address
    failures.py   which kind of failure an exception is, whatever library raised it
    listing.py    the models that a server on this machine offers
    case.py       one failure of one LM, with all that a sentence about it may mention
    advice.py     the sentence that names the fix

``dspy.LM`` reaches every provider; nothing here stands between it and them. The README has one line for each.
"""

from __future__ import annotations

from rlm_dspy.providers.advice import diagnose
from rlm_dspy.providers.facts import key_variables, secrets

__all__ = ["diagnose", "key_variables", "secrets"]
