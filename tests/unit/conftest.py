"""How Hypothesis works here: a shared machine may stop for a while, so no example has a deadline."""

import os

from hypothesis import settings

settings.register_profile("ordinary", deadline=None)
settings.register_profile("few", deadline=None, max_examples=20, derandomize=True, database=None)  # `make mutants`
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ordinary"))
