"""StableHLO text, bytecode and portable artifacts, read through jaxlib's parser."""

from __future__ import annotations

import atexit
import codecs
import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

from weft.capture.normalize.absorb_composites import absorb_composites
from weft.capture.stablehlo.check_dialect import generic_checks
from weft.capture.stablehlo.mlir_parser import MAGIC
from weft.errors import Unsupported, WeftError, missing_extra
from weft.ir.location import Location
from weft.ir.module import Module
from weft.ir.read import read_module
from weft.ops import BY_NAME
from weft.workers import made_once

_DIAGNOSTIC = re.compile(r'^(?:error: )?"?(.*?)"?:(\d+):(\d+): (?:error: )?(.*)', re.M)


def parse(program: str | bytes | os.PathLike[str]) -> Module:
    """A module from StableHLO text, MLIR bytecode, a portable artifact, or the path of a file."""
    source, file = _load(program)
    source = source.removeprefix(codecs.BOM_UTF8)  # a byte order mark
    if not source.startswith(MAGIC):
        source = generic_checks(source.decode("utf-8", "surrogateescape")).encode(
            "utf-8", "surrogateescape"
        )
    try:
        # The parser's process starts slowly, so one worker asks it for all.
        text = made_once(source, lambda: PARSER.generic_text(source, file))
        return absorb_composites(read_module(text, BY_NAME, file))
    except WeftError as error:
        if error.loc is None and (file is not None or not source.startswith(MAGIC)):
            error.loc = Location(f'"{file or "-"}":1:1')
        raise


def _load(program: str | bytes | os.PathLike[str]) -> tuple[bytes, str | None]:
    if isinstance(program, bytes | bytearray | memoryview):
        return bytes(program), None
    if isinstance(program, str) and ("\n" in program or "{" in program or not program.strip()):
        return program.encode("utf-8", "surrogateescape"), None
    help = "give the path of a StableHLO file, its text, or its bytes"
    if not isinstance(program, str | os.PathLike):
        raise WeftError(f"{type(program).__name__} {program!r} is not a program"[:120], help=help)
    path = Path(program)
    try:
        return path.read_bytes(), str(path)
    except (OSError, ValueError) as error:  # or an invalid file name
        reason = getattr(error, "strerror", None) or error
        raise WeftError(f"cannot read {path}: {reason}", help=help) from None


class ParserProcess:
    """The parser subprocess: started on first use, restarted after a crash."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._lock = threading.Lock()

    def generic_text(self, program: bytes, file: str | None) -> str:
        """The program in MLIR's generic form; an error with a location if it does not parse."""
        with self._lock:
            try:
                status, text = self._ask(program, file)
            except BaseException:
                self.close()  # a late answer must not be read as that of the next request
                raise
        if status == b"+":
            return text.decode("utf-8", "replace")
        raise _syntax_error(text.decode("utf-8", "replace"), file)

    def _ask(self, program: bytes, file: str | None) -> tuple[bytes, bytes]:
        process = self._running()
        assert process.stdin and process.stdout
        try:
            process.stdin.write(len(program).to_bytes(8, "little") + program)
            process.stdin.flush()
        except BrokenPipeError:
            pass  # it died while reading; the missing answer is reported below
        head = process.stdout.read(9)
        if len(head) == 9:
            size = int.from_bytes(head[1:], "little")
            text = process.stdout.read(size)
            if len(text) == size:
                return head[:1], text
        code = process.wait()
        ended = "ran on and on" if code == -signal.SIGPROF else "crashed"
        raise WeftError(
            f"MLIR's parser {ended} on this input (exit status {code}); your process is unharmed",
            help="the file is damaged in a way that MLIR does not catch; write it anew",
            loc=Location(f'"{file}":1:1') if file else None,
        )

    def _running(self) -> subprocess.Popen[bytes]:
        # A forked child must not share the pipes of its parent.
        if self._process is None or self._owner != os.getpid() or self._process.poll() is not None:
            if importlib.util.find_spec("jaxlib") is None:
                raise missing_extra("jaxlib", "stablehlo", "reading StableHLO")
            script = Path(__file__).with_name("mlir_parser.py")
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            self._owner = os.getpid()
            atexit.register(self.close)
        return self._process

    def close(self) -> None:
        """End the process."""
        if self._process is not None and self._owner == os.getpid():
            assert self._process.stdin
            with contextlib.suppress(BrokenPipeError):  # it died before it read everything
                self._process.stdin.close()
            self._process.terminate()
            self._process.wait()
        self._process = None


PARSER = ParserProcess()


def _syntax_error(text: str, file: str | None) -> WeftError:
    """MLIR's first diagnostic as a WeftError."""
    match = _DIAGNOSTIC.search(text)
    if match is None:
        lines = [line for line in text.splitlines() if line.strip()]
        return WeftError(lines[0] if lines else "the program does not parse", help=_HELP)
    place, line, column, message = match.groups()
    name = file if file is not None and place in ("-", "") else place
    loc = Location(f'"{name}":{line}:{column}') if line != "0" else None
    if "unregistered" in message and "dialect" in message:
        return Unsupported(message, help="only StableHLO, CHLO, sdy and func are read", loc=loc)
    return WeftError(message, help=_HELP, loc=loc)


_HELP = "correct the program at that place; `weft check FILE` tries again"
