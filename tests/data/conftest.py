from __future__ import annotations

from hypothesis import settings

# How long one example takes says something of the machine, not of the code.
settings.register_profile("no_deadline", deadline=None)
settings.load_profile("no_deadline")
