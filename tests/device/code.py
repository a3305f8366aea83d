"""The compiled code of the CUDA kernels, made once per run of the tests, by two processes beside it."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import fastmask
from device.compiling import ARCHITECTURES, EVERY_DTYPE, file_of

Dtypes = tuple[str, ...]
Code = dict[tuple[str, str, Dtypes], str]  # by architecture, kernel and dtypes

WHEELS = ("numba-cuda", "nvidia-nvvm", "nvidia-cuda-nvrtc")
PROGRAM = Path(__file__).with_name("compiling.py")
LONGEST = "mask_samples"  # takes as long as all other kernels
PATIENCE = 600.0  # seconds


def environment(compiler: str = "numba-cuda") -> dict[str, str]:
    """That of a process that compiles device code of the package at hand."""
    kept = {name: value for name, value in os.environ.items() if name != "NUMBA_ENABLE_CUDASIM"}
    return kept | {"PYTHONPATH": str(Path(fastmask.__file__).parents[1]), "FASTMASK_CUDA_COMPILER": compiler}


def skip_without_compiler() -> None:
    for wheel in WHEELS:
        try:
            importlib.metadata.version(wheel)
        except importlib.metadata.PackageNotFoundError:
            pytest.skip(f"{wheel} is not installed: pip install 'fastmask-kernels[test]'")


class DeviceCode:
    """Texts of PTX by (architecture, kernel, dtypes).

    Args:
        folder: where they are kept. Of the processes that share it, the first to need a kernel compiles it.
        compiler: the package that compiles.
        architectures: the chips that it compiles for.
    """

    def __init__(
        self, folder: Path, compiler: str = "numba-cuda", architectures: tuple[str, ...] = ARCHITECTURES
    ) -> None:
        from fastmask.kernels import cuda

        self.kernels = {kernel.function.__name__: kernel for kernel in cuda.KERNELS}
        self.folder, self._compiler, self._architectures = folder, compiler, architectures
        self._texts: Code = {}
        self._processes: list[subprocess.Popen[bytes]] = []
        folder.mkdir(exist_ok=True)

    def begin(self, name: str) -> None:
        """The kernel is compiled from now on, with all others but the one that takes longest; unless that has begun."""
        names = [LONGEST] if name == LONGEST else sorted(self.kernels.keys() - {LONGEST})
        with suppress(FileExistsError):
            (self.folder / f"{names[0]}.begun").mkdir()
            self._processes.append(self._compile(*names))

    def _compile(self, *names: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-P", str(PROGRAM), str(self.folder), ",".join(self._architectures), *names]
        with (self.folder / f"{names[0]}.log").open("wb") as log:
            return subprocess.Popen(command, env=environment(self._compiler), stdout=log, stderr=log)

    def text(self, architecture: str, name: str, dtypes: Dtypes) -> str:
        """The code of a kernel, once it is there. A skip where no run of the ordinary tests compiles it."""
        which = architecture, name, dtypes
        if which not in self._texts:
            self._texts[which] = self._read(*which)
        return self._texts[which]

    def _read(self, architecture: str, name: str, dtypes: Dtypes) -> str:
        if (architecture, name, dtypes) not in self.planned():
            pytest.skip(f"{name} for {', '.join(dtypes)} is not compiled for {architecture}")
        self.begin(name)
        file = file_of(self.folder, architecture, name, dtypes)
        deadline = time.monotonic() + PATIENCE
        while not file.exists():
            failed = [process for process in self._processes if process.poll()]
            if failed or time.monotonic() > deadline:
                logs = "\n".join(log.read_text()[-4000:] for log in self.folder.glob("*.log"))
                pytest.fail(f"{file.name} was not compiled:\n{logs}")
            time.sleep(0.05)
        return file.read_text()

    def planned(self) -> list[tuple[str, str, Dtypes]]:
        """All that is compiled: every kernel for every architecture, and for one of them with all dtypes."""
        return [
            (architecture, name, dtypes)
            for architecture in self._architectures
            for name, kernel in self.kernels.items()
            for dtypes in dict.fromkeys(kernel.variants)
            if architecture == EVERY_DTYPE or dtypes == kernel.variants[-1]
        ]

    def everything(self) -> Code:
        """All texts, once they are there."""
        for name in self.kernels:
            self.begin(name)
        return {which: self.text(*which) for which in self.planned()}

    def close(self, wait: bool) -> None:
        """The processes of this object end, or have ended if others may wait for them."""
        for process in self._processes:
            if not wait:
                process.terminate()
            process.wait()


@contextmanager
def code_of_run(
    request: pytest.FixtureRequest,
    folders: pytest.TempPathFactory,
    compiler: str = "numba-cuda",
    architectures: tuple[str, ...] = ARCHITECTURES,
) -> Iterator[DeviceCode]:
    """The code of a compiler, shared by the workers of pytest-xdist."""
    shared = hasattr(request.config, "workerinput")
    base = folders.getbasetemp()
    code = DeviceCode((base.parent if shared else base) / f"code-of-{compiler}", compiler, architectures)
    yield code
    code.close(wait=shared)
