"""What language models are told.

    root.py          `Act`, the root's signature and the default strategy; `Sub`; `extract_signature`
    child.py         `Child`, what a child RLM is asked
    dialect.py       the fixed rules of a reply, and taking code out of whatever a model wrote
    contract.py      the facts of one run, rendered for its first message
    guidance.py      `Guidance`, the aids of small models, each a switch
    demonstration.py the built-in worked example, as turns
    examples.py      the examples that it is picked from
    conversation.py  the turns of one run and how they become messages
    answered.py      what raw training examples tell a role: the form of answers
    predictor.py     `RolePredict`, whose saved state holds demonstrations of its own role only
    answers.py       taking the last answer out of a reply that does not keep to the form
    compact.py       `Compact`, the summary of a conversation that becomes too long, and its adapter
    adapter.py       `ConversationAdapter` and `PlainTextAdapter`, on DSPy's public adapter surface
    typed.py         `TypedAdapter` for typed sub-calls: the user's adapter, read leniently, with one repair
    jobs/            ready signatures for common jobs, with those of their sub-calls, a scorer and an example
    readings.py      typed outputs out of a reply of whatever form, and what is wrong with it

Strategy and contract are kept apart. The *strategy* is ``signature.instructions``: optimisers rewrite it, it is saved.
The *contract* (variables, functions, limits, output fields) is rendered for each run and stands in no signature, no
trace and no saved state, so no optimiser can lose it and no loaded state can contradict it.
"""

from __future__ import annotations

if __name__ != "rlm_dspy.signatures":
    raise ImportError(
        "this folder is the package rlm_dspy.signatures and cannot be imported as "
        f"{__name__!r}: install the project first (pip install -e .) and import rlm_dspy.signatures"
    )

from rlm_dspy.signatures.adapter import ConversationAdapter, PlainTextAdapter
from rlm_dspy.signatures.contract import Contract, FunctionInfo, OutputInfo, VariableInfo
from rlm_dspy.signatures.conversation import Conversation, Exchange
from rlm_dspy.signatures.dialect import DIALECT, find_code
from rlm_dspy.signatures.guidance import Guidance
from rlm_dspy.signatures.root import STRATEGY, Act, Sub, extract_signature
from rlm_dspy.signatures.typed import TypedAdapter, reason, repairing

__all__ = [
    "DIALECT",
    "STRATEGY",
    "Act",
    "Contract",
    "Conversation",
    "ConversationAdapter",
    "Exchange",
    "FunctionInfo",
    "Guidance",
    "OutputInfo",
    "PlainTextAdapter",
    "Sub",
    "TypedAdapter",
    "VariableInfo",
    "extract_signature",
    "find_code",
    "reason",
    "repairing",
]
