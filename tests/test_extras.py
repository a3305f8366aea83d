"""torch, transformers and datasets are extras: without them the package works, and what needs them says so."""

from __future__ import annotations

import pytest
from support import run_python

BLOCKED = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "transformers", "datasets", "pyarrow", "matplotlib"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
"""


def test_without_the_extras_the_package_masks_collates_packs_and_verifies() -> None:
    code = """
import numpy as np
import fastmask as fm
import fastmask.datasets
masker = fm.Masker(fm.Vocab(30, 4, 0, (1, 2, 3)), fm.Bernoulli(0.5), seed=7)
rows = [[2, 7, 8, 9, 3], [2, 5, 3]]
batch = fm.collate(masker, rows, epoch=0, backend="numpy")
assert batch.labels.shape == (2, 5)
assert len(fm.pack(masker, rows, epoch=0, max_tokens=5, backend="numpy")) == 2
run = [{"input_ids": batch.input_ids, "labels": batch.labels, "attention_mask": batch.attention_mask}]
assert fm.verify.batches(run, run).same
"""
    run_python(BLOCKED + code)


@pytest.mark.parametrize(
    ("module", "extra", "needs"), [("torch", "torch", "torch"), ("huggingface", "huggingface", "transformers")]
)
def test_an_adapter_without_its_extra_names_what_to_install(module: str, extra: str, needs: str) -> None:
    code = f"""
try:
    import fastmask.{module}
except ImportError as error:
    print(error)
"""
    told = run_python(BLOCKED + code)
    assert told == f"fastmask.{module} needs {needs}: pip install 'fastmask-kernels[{extra}]'\n"


def test_importing_the_package_imports_none_of_them() -> None:
    code = """
import sys
import fastmask, fastmask.datasets
print(sorted({name.split(".")[0] for name in sys.modules} & {"torch", "transformers", "datasets", "pyarrow", "numba"}))
"""
    assert run_python(code) == "[]\n"
