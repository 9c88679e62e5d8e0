"""How Hypothesis works here.

A shared machine may stop for a while, so no example has a deadline. A failure says how to get the same example again.
Each run has new examples, half as many as is usual: to make them takes longer than to check them.
"""

import os

from hypothesis import settings

settings.register_profile("ordinary", deadline=None, max_examples=50, print_blob=True)
settings.register_profile("few", deadline=None, max_examples=20, derandomize=True, database=None)  # `make mutants`
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ordinary"))
