"""INTERIM"""
import functools
import dspy
@functools.lru_cache(100)
def _s(text): return dspy.Signature(text)
def signature(text, types=None, instructions=""):
    return _s(text)
