"""The exit codes of ``rlm-dspy``."""

from __future__ import annotations

SUBMITTED = 0
ERROR = 1
USAGE = 2
EXTRACTED = 3
FAILED = 4
INTERRUPTED = 130

HELP = """\
exit codes:
  0    the answer was submitted
  1    error: the model's provider or the sandbox failed before there was anything to answer from, or --out could not be
       written and the answer is on standard output
  2    usage: an option, a document or the set-up is wrong
  3    a limit struck: the best answer so far was printed
  4    the run ended without an answer; what it had found last, if anything, was printed, and is called partial on
       standard error
  130  interrupted without an answer
"""
