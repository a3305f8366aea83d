"""The commands and their options; each command imports what it needs when it runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fastmask.cli.errors import RefusedError, exit_status, refusals

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)

P = Annotated[float, typer.Option("--p", help="Probability that a token is selected.")]
Mask = Annotated[float, typer.Option("--mask", help="Share of the selected that become MASK.")]
Random = Annotated[float, typer.Option("--random", help="Share of the selected that become a random token.")]
Seed = Annotated[int, typer.Option(help="Seed of the masks.")]
Epoch = Annotated[int, typer.Option(min=0, max=(1 << 24) - 1, help="Another epoch draws other masks.")]


class RawType(StrEnum):
    """Types of the ids in a raw file."""

    UINT16 = "uint16"
    INT32 = "int32"
    INT64 = "int64"


class OutType(StrEnum):
    """Types of the arrays written."""

    INT32 = "int32"
    INT64 = "int64"


def run(arguments: Sequence[str]) -> int:
    """Runs one command and returns its exit status."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # text that a terminal cannot show becomes "?"
    command = typer.main.get_command(app)
    return exit_status(lambda: command.main(list(arguments), prog_name="fastmask", standalone_mode=False))


@app.callback(invoke_without_command=True)
def fastmask(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
) -> None:
    """Masked-language-model corruption of token ids, the same bits on every backend."""
    if version:
        import fastmask as fm

        print(fm.__version__)
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def demo(
    files: Annotated[
        list[Path] | None, typer.Argument(help="UTF-8 text; without it the help texts of Python itself.")
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="A Hugging Face tokenizer.json instead of whole words.")
    ] = None,
    row_length: Annotated[int, typer.Option(min=8, help="Tokens per row.")] = 512,
    p: P = 0.15,
    mask: Mask = 0.8,
    random: Random = 0.1,
    seed: Seed = 7,
    epoch: Epoch = 0,
    sentences: Annotated[int, typer.Option(min=0, help="Masked sentences to show.")] = 3,
    seconds: Annotated[float, typer.Option(min=0, help="Time for measuring, about.")] = 8.0,
) -> None:
    """Mask real text with every backend that is here, compare the results bit for bit, show and time them."""
    from fastmask.cli.demo import Request
    from fastmask.cli.demo import demo as show

    show(Request(files or [], tokenizer, row_length, p, mask, random, seed, epoch, sentences, seconds))


@app.command()
def mask(
    input: Annotated[Path, typer.Argument(metavar="IN", help="Ids: .npy (1-D: one sample), or raw .bin.")],
    out: Annotated[Path, typer.Option(help="Folder for input_ids.npy and labels.npy.")],
    vocab_size: Annotated[int, typer.Option(help="Ids are 0 .. size - 1.")],
    mask_id: Annotated[int, typer.Option(help="The id written for MASK.")],
    pad_id: Annotated[int | None, typer.Option(help="The id that fills rows at their ends.")] = None,
    special_ids: Annotated[str, typer.Option(help="Ids never selected, such as 0,100-103.")] = "",
    dtype: Annotated[RawType | None, typer.Option(help="Type of the ids in a .bin file.")] = None,
    row_length: Annotated[int | None, typer.Option(min=1, help="Cut a file without rows into rows.")] = None,
    p: P = 0.15,
    mask: Mask = 0.8,
    random: Random = 0.1,
    seed: Seed = 0,
    epoch: Epoch = 0,
    first_sample_id: Annotated[int, typer.Option(help="Row r has the sample id first + r.")] = 0,
    id_dtype: Annotated[
        OutType | None, typer.Option(help="Type of the ids written; else that of the input, or int64.")
    ] = None,
    label_dtype: Annotated[OutType, typer.Option(help="Type of the labels written.")] = OutType.INT64,
    chunk_rows: Annotated[int | None, typer.Option(min=1, help="Rows at a time, at most 262,144 tokens.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files of an earlier run.")] = False,
) -> None:
    """Mask a file of ids of any size in little memory; a killed run leaves no file under a final name."""
    import time

    import numpy as np

    import fastmask as fm
    from fastmask.cli.mask import Job
    from fastmask.cli.source import open_source
    from fastmask.cli.units import amount

    start = time.perf_counter()
    with refusals():
        masker = fm.Masker(
            fm.Vocab(vocab_size, mask_id, pad_id, ids_from(special_ids, vocab_size)),
            select=fm.Bernoulli(p),
            replace=fm.Replace(mask=mask, random=random),
            seed=seed,
            id_dtype=None if id_dtype is None else np.dtype(id_dtype.value),
            label_dtype=np.dtype(label_dtype.value),
        )
    source = open_source(input, None if dtype is None else dtype.value, row_length, pad_id)
    selected = Job(source, masker, epoch, first_sample_id, chunk_rows).run(out, force=force)
    tokens = source.rows * source.row_length
    speed = amount(tokens / (time.perf_counter() - start))
    print(f"{out}/input_ids.npy, {out}/labels.npy: {source.shape}, {selected:,} selected, {speed} tokens/s")


def ids_from(text: str, size: int) -> list[int]:
    """The ids of a list such as 0,100-103, all of them below `size`.

    >>> ids_from("0,100-103", 30522)
    [0, 100, 101, 102, 103]
    """
    ids: list[int] = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        first, dash, last = part.partition("-")
        last = last if dash else first
        if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
            raise RefusedError(f"--special-ids holds {part!r}: expected ids and ranges such as 0,100-103")
        if int(last) >= size:
            raise RefusedError(f"--special-ids holds {part}, outside the vocabulary [0, {size})")
        ids.extend(range(int(first), int(last) + 1))
    return ids


@app.command()
def verify(
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="module:function that builds a loader, or a file of batches.")
    ],
    other: Annotated[Path | None, typer.Argument(help="The other file: a folder of .npy, an .npz, or a .pt.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Of the first run of a loader.")] = 8,
    sample_id: Annotated[
        str | None, typer.Option(help="Entry of a batch that tells samples apart; else their tokens do.")
    ] = None,
    pad_id: Annotated[int | None, typer.Option(help="Without attention_mask: the id that fills rows.")] = None,
    ignore_index: Annotated[int, typer.Option(help="Label of what is not selected.")] = -100,
) -> None:
    """Prove that masks do not depend on workers, ranks, batch sizes or a resume, or show where they do."""
    from fastmask.cli.verify import Request
    from fastmask.cli.verify import verify as show

    show(Request(target, other, batch_size, sample_id, pad_id, ignore_index))


@app.command()
def info(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Print what a bug report needs: versions, backends and why not, devices, threads, caches."""
    from fastmask.cli.info import collect, show

    show(collect(), as_json=as_json)
