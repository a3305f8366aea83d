"""Benchmarks of fastmask.

Importing this package gives Numba an empty cache, so that neither stale code nor another CPU's is timed.
"""

import atexit
import os
import shutil
import tempfile

_cache = tempfile.mkdtemp(prefix="fastmask-benchmark-cache-")
_owner = os.getpid()


def _remove() -> None:
    if os.getpid() == _owner:  # a forked child must not delete its parent's cache
        shutil.rmtree(_cache, ignore_errors=True)


os.environ["NUMBA_CACHE_DIR"] = _cache
atexit.register(_remove)
