"""What a user did wrong is one line on stderr and exit status 2; a programming error keeps its traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer

REFUSED = 2
INTERRUPTED = 130
REFUSALS = (ValueError, TypeError, OverflowError, RuntimeError)  # what the library raises at a wrong argument or place
_USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]  # Click's, wherever this typer takes Click from


class RefusedError(Exception):
    """The command cannot be carried out as asked; the message is the line that the user reads."""

    def __init__(self, message: str, status: int = REFUSED) -> None:
        super().__init__(message)
        self.status = status


@contextmanager
def refusals() -> Iterator[None]:
    """What the library refuses inside is a RefusedError: put it around the library's checks and calls only."""
    try:
        yield
    except REFUSALS as error:
        raise RefusedError(str(error)) from error


def exit_status(command: Callable[[], int | None]) -> int:
    """The exit status of a command, after its one line on stderr where it was refused or interrupted."""
    try:
        status = command() or 0
        sys.stdout.flush()
        return _say("interrupted", status) if status == INTERRUPTED else status
    except RefusedError as refusal:
        return _say(str(refusal), refusal.status)
    except _USAGE_ERROR as error:
        return _say(error.format_message(), REFUSED)  # type: ignore[attr-defined]
    except BrokenPipeError:
        _discard_output()
        return 1
    except OSError as error:
        return _say(_describe(error), REFUSED)
    except MemoryError as error:
        return _say(f"out of memory: {error}", REFUSED)
    except (KeyboardInterrupt, typer.Abort):
        return _say("interrupted", INTERRUPTED)


def _say(message: str, status: int) -> int:
    print("fastmask:", " ".join(message.split()), file=sys.stderr)
    return status


def _describe(error: OSError) -> str:
    reason = error.strerror or str(error)
    return reason if error.filename is None else f"{error.filename}: {reason}"


def _discard_output() -> None:
    """Whatever is still written to stdout, and at exit flushed, goes nowhere: its reader has gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
