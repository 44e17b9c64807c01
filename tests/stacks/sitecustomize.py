"""Let every Python that a long test starts say where it is when `tests/hangs.py` asks, which has this on their path."""

import contextlib
import faulthandler
import os
import signal

with contextlib.suppress(Exception):  # whatever is started must start
    faulthandler.register(signal.SIGUSR1, open(os.environ["WATERSMEET_STACKS"], "a", encoding="utf-8"))  # noqa: SIM115
