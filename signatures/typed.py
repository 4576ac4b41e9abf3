"""INTERIM"""
import contextlib
import dspy
from rlm_dspy.signatures.adapter import ConversationAdapter
TypedAdapter = ConversationAdapter
def reason(e): return str(e)
@contextlib.contextmanager
def repairing(reply, error):
    yield
