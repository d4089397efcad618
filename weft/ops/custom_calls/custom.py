"""Custom calls, and transfers between a running program and the host or other devices."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from weft.errors import Unsupported
from weft.ir.attrs import BOOLEAN, SYMBOL, TEXT, array_of, integer
from weft.ir.check import require
from weft.ir.op import Body, Evaluation, Op, RegionCall, Steps, op
from weft.ir.rule import Rule
from weft.ir.types import TOKEN, Array, TensorType, TokenType, Type, Types, type_of
from weft.ir.work import Work, moved
from weft.ops.control import opaque
from weft.ops.custom_calls.declaration import CallUse, Config, KnownCall, config_of
from weft.ops.custom_calls.known import KNOWN_CALLS
from weft.ops.custom_calls.rules import custom_rule
from weft.ops.distributed.collective import ChannelHandle

# Custom calls


@op("stablehlo.custom_call")
class CustomCall(Op):
    """A call of an external function, by name."""

    call_target_name: str
    outs: Types
    has_side_effect: Annotated[bool, BOOLEAN] = False
    backend_config: Annotated[str, TEXT] | None = None
    api_version: Annotated[int, integer("i32")] | None = None  # 4: typed FFI
    called_computations: Annotated[tuple[str, ...], array_of(SYMBOL)] | None = None
    operand_layouts: Annotated[str, TEXT] | None = None
    result_layouts: Annotated[str, TEXT] | None = None
    output_operand_aliases: Annotated[str, TEXT] | None = None
    custom_call_schedule: Annotated[str, TEXT] | None = None
    regions = None
    control = True

    @property
    def pure(self) -> bool:  # type: ignore[override]  # each call its own
        """Whether it is known to have no side effect."""
        return self.known is not None and self.known.pure and not self.has_side_effect

    @property
    def known(self) -> KnownCall | None:
        """The declaration of this name, if any."""
        return KNOWN_CALLS.get(self.call_target_name)

    @property
    def config(self) -> Config:
        """The numbers in its configuration."""
        return config_of(self.backend_config)

    def infer(self, *operands: Type, regions: tuple[Body, ...] = ()) -> Types:
        if self.known is not None:
            self.known.check(self.call_target_name, self.config, operands, self.outs)
        return self.outs

    def rule(self, *operands: Type, regions: tuple[Body, ...] = ()) -> Rule:
        if self.known is not None and self.known.rule is not None:
            return self.known.rule(operands, self.outs)
        shardys = custom_rule(self.call_target_name, operands, self.outs)
        return opaque(operands, self.outs) if shardys is None else shardys

    def reference(self, *values: Any, regions: tuple[RegionCall, ...], run: Evaluation) -> Steps:
        yield from ()
        if self.known is None:
            raise Unsupported(
                f"unknown custom call {self.call_target_name!r}",
                help=f"known: {', '.join(KNOWN_CALLS)}",
            )
        return self.known.reference(CallUse(self.config, self.outs, run), *values)

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        if self.known is not None:
            return self.known.work(self.config, operands, results)
        return Work(bytes=moved(*operands, *results))


# Transfers


class HostTransferOp(Op):
    """A transfer into or out of a running program."""

    __slots__ = ()
    control = True
    pure = False

    def rule(self, *operands: Type) -> Rule:
        results = self.infer(*operands)
        return opaque(operands, results if isinstance(results, tuple) else (results,))

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        return Work(bytes=moved(*operands, *results), sent=moved(*operands))

    def token_last(self, types: Types) -> None:
        """Refuse unless the last of these types is a token."""
        require(
            len(types) > 0 and isinstance(types[-1], TokenType),
            f"{self.name}: the last value is not a token",
            "pass the token that orders it",
        )


@op("stablehlo.infeed")
class Infeed(HostTransferOp):
    """Values that the host feeds in, and a token."""

    outs: Types
    infeed_config: Annotated[str, TEXT] | None = None
    layout: Annotated[str, TEXT] | None = None

    def infer(self, token: Type) -> Types:
        self.token_last((token,))
        self.token_last(self.outs)
        return self.outs

    def reference(self, token: None, regions: tuple[RegionCall, ...], run: Evaluation) -> Steps:
        values = yield from run.call(run.feed())
        return (*values, None)


@op("stablehlo.outfeed")
class Outfeed(HostTransferOp):
    """Values sent to the host; the reference drops them."""

    outfeed_config: Annotated[str, TEXT] | None = None

    def infer(self, *operands: Type) -> Type:
        self.token_last(operands)
        return TOKEN

    def reference(self, *values: Any, regions: tuple[RegionCall, ...], run: Evaluation) -> Steps:
        yield from ()
        return (None,)


class Message(HostTransferOp):
    """One side of a point-to-point transfer between devices."""

    __slots__ = ()
    channel_handle: ChannelHandle
    is_host_transfer: bool
    source_target_pairs: tuple[tuple[int, int], ...] | None

    def device_only(self) -> None:
        """Refuse a transfer to or from the host."""
        if self.is_host_transfer:
            raise Unsupported(
                f"{self.name}: transfers to or from the host are not supported",
                help="return the values from the program, or pass them as arguments",
            )

    def peer(self, device: tuple[int, int], end: int) -> int | None:
        """The partition at the other end of a pair; None without pairs."""
        if not self.source_target_pairs:
            return None
        # -1: there are pairs, but this device is in none of them.
        return next((p[1 - end] for p in self.source_target_pairs if p[end] == device[1]), -1)


@op("stablehlo.send")
class Send(Message):
    """Send values on a channel; the token orders later effects after it."""

    channel_handle: ChannelHandle
    is_host_transfer: bool = False
    source_target_pairs: tuple[tuple[int, int], ...] | None = None

    def infer(self, *operands: Type) -> Type:
        self.token_last(operands)
        return TOKEN

    def reference(self, *values: Any, regions: tuple[RegionCall, ...], run: Evaluation) -> Steps:
        yield from ()
        self.device_only()
        target = self.peer(run.device, 0)
        if target != -1:
            run.channel((self.channel_handle.handle, target)).append(values[:-1])
        return (None,)


@op("stablehlo.recv")
class Recv(Message):
    """Wait for the values sent on a channel."""

    channel_handle: ChannelHandle
    outs: Types
    is_host_transfer: bool = False
    source_target_pairs: tuple[tuple[int, int], ...] | None = None

    def infer(self, token: Type) -> Types:
        self.token_last((token,))
        self.token_last(self.outs)
        return self.outs

    def reference(self, token: None, regions: tuple[RegionCall, ...], run: Evaluation) -> Steps:
        self.device_only()
        source = self.peer(run.device, 1)
        if source == -1:
            zeros = [
                np.zeros(t.sizes, t.dtype.numpy) for t in self.outs if isinstance(t, TensorType)
            ]
            return (*zeros, None)
        target = None if source is None else run.device[1]
        queue = run.channel((self.channel_handle.handle, target))
        # The other devices run on until one of them has sent.
        while not queue:
            yield None
        return (*queue.pop(0), None)


@op("interpreter.print")
class Print(HostTransferOp):
    """Print a value while the program runs."""

    def infer(self, operand: Type) -> Types:
        return ()

    def reference(self, value: Array, regions: tuple[RegionCall, ...], run: Evaluation) -> Steps:
        yield from ()
        print(f"{type_of(value)} {{\n{value}\n}}")
        return ()


@op("interpreter.probe")
class InterpreterProbe(HostTransferOp):
    """The identity; the value is recorded for checks."""

    probe_id: str

    def infer(self, operand: Type) -> Type:
        return operand

    def reference(self, value: Array, regions: tuple[RegionCall, ...], run: Evaluation) -> Steps:
        yield from ()
        run.channel(("probe", self.probe_id)).append((value,))
        return (value,)


OPS: tuple[type[Op], ...] = (
    CustomCall,
    Infeed,
    Outfeed,
    Send,
    Recv,
    Print,
    InterpreterProbe,
)
