"""Random tests draw the same examples on every run, unless asked otherwise.

`python -m tests --hypothesis-profile random` looks for new ones.
"""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.register_profile("random", deadline=None)
settings.load_profile("repeatable")
