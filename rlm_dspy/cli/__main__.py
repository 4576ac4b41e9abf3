"""``python -m rlm_dspy.cli``."""

from __future__ import annotations

import sys

from rlm_dspy.cli import main

if __name__ == "__main__":
    sys.exit(main())
