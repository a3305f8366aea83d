"""Before anything is imported: the CUDA simulator where there is no GPU, and a compile cache of the run's own."""

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

GPU = Path("/dev/nvidia0").exists()
if not GPU:
    os.environ["NUMBA_ENABLE_CUDASIM"] = "1"  # read once, when numba is imported
if "PYTEST_XDIST_WORKER" not in os.environ:  # the processes of a run share what they compile
    # Numba does not notice edits in the modules that a kernel calls.
    os.environ["NUMBA_CACHE_DIR"] = tempfile.mkdtemp(prefix="fastmask-numba-cache-")
    atexit.register(shutil.rmtree, os.environ["NUMBA_CACHE_DIR"], ignore_errors=True)
os.environ.pop("FASTMASK_NUM_THREADS", None)


@pytest.fixture(autouse=True)
def _default_threads() -> Iterator[None]:
    yield
    from fastmask import threads

    threads._chosen = None


# Once the environment is set: the fixtures of the tests that start processes.
from support_cache import small_cache, warm_cache  # noqa: E402, F401
from support_processes import costly_layer, layer, script, wanted  # noqa: E402, F401
