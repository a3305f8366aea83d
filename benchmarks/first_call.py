"""The first call in a new process, timed.

`python -P benchmarks/first_call.py IDS IDS_OUT LABELS SAMPLE_IDS` prints one line of JSON; with `--wait` it
says "ready" after the imports and makes its calls when a line arrives on its standard input. It is run as a
file, so that only the standard library is imported before the clock starts.
"""

from __future__ import annotations

import hashlib
import json
import sys
from time import perf_counter
from typing import Any

Config = tuple[str, str, str, bool]  # dtypes of ids, ids out and labels; whether sample ids are given

ROWS, COLUMNS, SIZE = 64, 500, 30522


def one_batch(config: Config) -> tuple[Any, Any, dict[str, Any]]:
    """The masker, ids and arguments of a configuration, the same in every process."""
    import numpy as np

    import fastmask as fm

    ids_dtype, ids_out, labels, given = config
    vocab = fm.Vocab(size=SIZE, mask_token_id=103, pad_token_id=0, special_token_ids=(0, 100, 101, 102, 103))
    masker = fm.Masker(
        vocab,
        select=fm.Bernoulli(0.15),
        replace=fm.Replace(mask=0.8, random=0.1),
        seed=7,
        id_dtype=np.dtype(ids_out),
        label_dtype=np.dtype(labels),
    )
    ids = (np.arange(ROWS * COLUMNS) * 2654435761 % SIZE).astype(ids_dtype).reshape(ROWS, COLUMNS)
    return masker, ids, {"epoch": 0, "sample_ids": np.arange(ROWS, dtype=np.uint64) if given else None}


def digest(batch: Any) -> str:
    """A hash of dtypes and bytes of ids and labels."""
    parts = [str(array.dtype).encode() + array.tobytes() for array in (batch.input_ids, batch.labels)]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def main(arguments: list[str]) -> None:
    start = perf_counter()
    import numpy  # noqa: F401

    numpy_done = perf_counter()
    import fastmask  # noqa: F401

    fastmask_done = perf_counter()
    ids, ids_out, labels, given = arguments[:4]
    masker, array, call = one_batch((ids, ids_out, labels, given == "True"))
    if "--wait" in arguments:
        print("ready", flush=True)
        sys.stdin.readline()
    times = {"numpy": numpy_done - start, "fastmask": fastmask_done - numpy_done}
    digests = []
    for name in ("first", "second"):
        before = perf_counter()
        batch = masker(array, backend="cpu", **call)
        times[name] = perf_counter() - before
        digests.append(digest(batch))
    print(json.dumps({"times": times, "digests": digests}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
