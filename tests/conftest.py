"""Before anything is imported: the CUDA simulator where there is no GPU, and a compile cache of the run's own.

FASTMASK_TEST_CACHE names a folder for it that several runs share and nobody removes: only where no source changes.
"""

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

GPU = Path("/dev/nvidia0").exists()
if not GPU:
    os.environ["NUMBA_ENABLE_CUDASIM"] = "1"  # read once, when numba is imported
if "PYTEST_XDIST_WORKER" not in os.environ:  # the processes of a run share what they compile
    # Numba does not notice edits in the modules that a kernel calls.
    shared_cache = os.environ.get("FASTMASK_TEST_CACHE")
    os.environ["NUMBA_CACHE_DIR"] = shared_cache or tempfile.mkdtemp(prefix="fastmask-numba-cache-")
    if not shared_cache:
        atexit.register(shutil.rmtree, os.environ["NUMBA_CACHE_DIR"], ignore_errors=True)
os.environ.pop("FASTMASK_NUM_THREADS", None)


@pytest.fixture(autouse=True)
def _default_threads() -> Iterator[None]:
    yield
    from fastmask import threads

    threads._chosen = None


@pytest.fixture(scope="session")
def device_code(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The PTX of the CUDA kernels, a `DeviceCode`; shared by the workers of pytest-xdist."""
    from device.code import code_of_run, skip_without_compiler

    skip_without_compiler()
    with code_of_run(request, tmp_path_factory) as code:
        for name in code.kernels:
            code.begin(name)
        yield code


# Once the environment is set: the fixtures of the tests that start processes.
from support_cache import small_cache, warm_cache  # noqa: E402, F401
from support_devices import agree, agree_at_length, agree_everywhere  # noqa: E402, F401
from support_processes import costly_layer, layer, script, wanted  # noqa: E402, F401
