"""Programs at a server: captured here, compiled there, and called like functions."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Protocol
from weakref import ref

from weft.array.array import ArraySpec, array_spec
from weft.array.context import UserContext
from weft.cache.recent import RecentlyUsed
from weft.capture import Captured, Source, source_for
from weft.capture.options import CallOptions
from weft.errors import Unsupported, WeftError
from weft.executable import call
from weft.executable.signature import Signature, ValueSpec, parse_signature
from weft.mesh import Sharding
from weft.mesh.sharding import DimSharding
from weft.records import dataclass
from weft.remote.array import RemoteArray, parts_of
from weft.remote.connection import Connection
from weft.remote.wire import WireMessage

PROGRAMS = 128  # those that are kept for different types of arguments


class ProgramOwner(Protocol):
    """The client whose programs these are."""

    connection: Connection

    @property
    def address(self) -> str:
        """The server's host and port."""
        ...

    def new_handle(self) -> int:
        """A number for a new array."""
        ...

    def context(self) -> UserContext:
        """The user's call."""
        ...

    def place_argument(self, value: Any) -> RemoteArray:
        """An argument at the server."""
        ...

    def send_program(self, form: str, data: bytes, options: dict[str, Any]) -> RemoteProgram:
        """Have the server compile or load a program."""
        ...


@dataclass(frozen=True)
class RemoteProgram:
    """An executable at a server: arrays in, arrays out."""

    client: ProgramOwner
    handle: int
    signature: Signature

    @cached_property
    def specs(self) -> tuple[ArraySpec, ...]:
        """The specs of its results."""
        return tuple([_spec(self.signature, result) for result in self.signature.results])

    @cached_property
    def donated(self) -> tuple[int, ...]:
        """The arguments whose memory it takes."""
        return tuple([n for n, spec in enumerate(self.signature.arguments) if spec.donated])

    def run(self, values: Sequence[Any]) -> list[RemoteArray]:
        """Run on arrays; results are asynchronous."""
        client, connection = self.client, self.client.connection
        if len(values) != len(self.signature.arguments):
            raise WeftError(
                f"{self.signature.name} takes {len(self.signature.arguments)} arguments, "
                f"{len(values)} given",
                help="give one array for each argument",
            )
        arrays = [client.place_argument(value) for value in values]
        results = [RemoteArray.at(connection, client.new_handle(), spec) for spec in self.specs]
        waiting = [ref(array) for array in results]  # one that is dropped is not waited for
        context = client.context()
        for array in results:
            array.context = context

        def on_reply(message: WireMessage | None, error: BaseException | None) -> None:
            for each, part in zip(waiting, parts_of(message, len(waiting)), strict=True):
                if (array := each()) is not None:
                    array.complete(error, part)

        connection.execute(
            on_reply,
            program=self.handle,
            arguments=[array.handle for array in arrays],
            results=[array.handle for array in results],
            context=context.id,
        )
        for n in self.donated:
            arrays[n].delete("donated to a program")
        return results

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run on arrays, scalars and nested dicts, lists and tuples of them."""
        arrays = call.arguments(self.signature, args, kwargs)
        return call.results(self.signature, self.run(arrays))

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # at the end of the process
            self.client.connection.tell("forget", program=self.handle)

    def __repr__(self) -> str:
        return f"<weft.remote: {self.signature.name} at {self.client.address}>"


def _spec(signature: Signature, result: ValueSpec) -> ArraySpec:
    mesh, sharding = signature.mesh, result.sharding
    placed = Sharding(mesh, (DimSharding(),) * result.type.rank)
    if sharding is not None:
        placed = replace(sharding, mesh=mesh)
    return array_spec(result.type.sizes, result.type.dtype, placed, mesh)


@dataclass(frozen=True, slots=True)
class _Ready:
    captured: Captured
    program: RemoteProgram


class RemoteCompiled:
    """A function or module compiled at a server; like `weft.Compiled`, one program for each type.

    Results are arrays at the server.
    """

    def __init__(
        self, client: ProgramOwner, source: Source, given: CallOptions, options: dict[str, Any]
    ) -> None:
        self._client, self._source, self._given, self._options = client, source, given, options
        self._programs: RecentlyUsed[Hashable, _Ready] = RecentlyUsed(PROGRAMS)
        self._known: dict[Hashable, _Ready] = {}
        self._last: _Ready | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run on arrays, scalars and pytrees of them; results are asynchronous."""
        seen, values = self._source.quick_key(args, kwargs)
        ready = None
        with contextlib.suppress(TypeError):  # static arguments that are not hashable
            ready = self._known.get(seen) if seen is not None else None
        if ready is None:
            if not self._programs:
                self._source = source_for(self._source, self._given, args, kwargs)
                seen, _ = self._source.quick_key(args, kwargs)
            key, flat = self._source.flatten(args, kwargs)
            ready, values = self._ready(key, flat), flat.values
            if seen is not None:
                if len(self._known) >= PROGRAMS:
                    self._known.clear()
                self._known[seen] = ready
        self._last = ready
        return self._run(ready, values)

    def _run(self, ready: _Ready, values: Sequence[Any]) -> Any:
        source, captured = self._source, ready.captured
        values = captured.spread(values)
        if captured.is_seeded:
            values = (*values, source.seed())
        if len(values) != len(captured.arguments):
            raise WeftError(
                f"the program takes {len(captured.arguments)} arguments, not {len(values)}",
                help="give one array for each argument",
            )
        results = ready.program.run([*map(source.to_program, values, captured.arguments)])
        count = len(captured.updated)
        if count:
            source.update(values, captured.updated, results)
        made = map(source.to_user, results[count:], captured.results[count:])
        return captured.packed([*results[:count], *made])

    def prepare(self, *args: Any, **kwargs: Any) -> None:
        """Compile for arguments of these types without running."""
        if not self._programs:
            self._source = source_for(self._source, self._given, args, kwargs)
        self._last = self._ready(*self._source.flatten(args, kwargs))

    def _ready(self, key: Hashable, flat: Any) -> _Ready:
        ready = self._programs.used(key)
        if ready is None:
            captured = self._source.capture(flat)
            if captured.host:
                raise Unsupported(
                    f"{self._source.name} calls Python functions, which cannot run at a server",
                    help="leave out callbacks and debug prints, or compile it here",
                )
            text = captured.module.text(locations=True).encode("utf-8", "surrogateescape")
            program = self._client.send_program("module", text, self._options)
            ready = _Ready(replace(captured, kept=()), program)
            self._programs.put(key, ready)
        return ready

    @property
    def signature(self) -> Signature:
        """The signature of the latest program, on flat lists of arrays."""
        if self._last is None:
            raise WeftError("nothing has been compiled yet", help="call it first")
        return self._last.program.signature

    def __repr__(self) -> str:
        return f"<weft.remote: {self._source.name} at {self._client.address}>"


def program_from(client: ProgramOwner, handle: int, signature: str) -> RemoteProgram:
    """The program that a server has compiled, by the text of its signature."""
    return RemoteProgram(client, handle, parse_signature(signature))
