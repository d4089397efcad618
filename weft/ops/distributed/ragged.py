"""The ragged all-to-all: every device sends slices of its rows, whose sizes are values."""

from __future__ import annotations

from collections.abc import Mapping

from weft.errors import WeftError
from weft.ir.check import one_of, require, tensor_type
from weft.ir.module import Function, Region, Value, apply
from weft.ir.op import op
from weft.ir.rule import Rule, RuleBuilder
from weft.ir.types import TensorType, Type, Types
from weft.ir.work import Work, moved
from weft.mesh import Mesh
from weft.ops.distributed.collective import (
    GROUPS,
    ChannelHandle,
    DeviceValues,
    LocalGroups,
    ReplicaGroups,
    device_lists,
)

CALL = "ragged_all_to_all"  # how JAX and XLA name it


@op("weft.ragged_all_to_all")
class RaggedAllToAll(LocalGroups):
    """Every device sends slices of its rows to the devices of its group, which write them to rows
    of their output.

    Slice n of `input_offsets` and `send_sizes` goes to device n // (slices for a device), to the
    row `output_offsets[n]` there. `recv_sizes` are the `send_sizes` that a device receives. Rows of
    the output that nothing is written to stay.
    """

    replica_groups: ReplicaGroups
    channel_handle: ChannelHandle | None = None
    composite = True

    def infer(
        self,
        operand: Type,
        output: Type,
        input_offsets: Type,
        send_sizes: Type,
        output_offsets: Type,
        recv_sizes: Type,
    ) -> Type:
        source, result = tensor_type(self.name, 0, operand), tensor_type(self.name, 1, output)
        require(
            source.rank == result.rank > 0
            and source.dtype is result.dtype
            and source.shape[1:] == result.shape[1:],
            f"{self.name}: operand 0 is {source}, but operand 1 is {result}",
            "only the number of rows, their first dim, may differ",
        )
        numbers = (input_offsets, send_sizes, output_offsets, recv_sizes)
        types = [one_of(self.name, 2 + n, t, "int uint") for n, t in enumerate(numbers)]
        require(
            all(t.rank == 1 and t.shape == types[0].shape for t in types),
            f"{self.name}: offsets and sizes are {', '.join(map(str, types))}",
            "give vectors of one length: an element for each slice",
        )
        return result

    def rule(self, *operands: TensorType) -> Rule:
        operand, output = operands[:2]
        builder = RuleBuilder(operands, (output,))
        nowhere = (None,) * 4
        builder.factor((0, None, *nowhere), (None,), operand.bounds[0], "whole")
        builder.factor((None, 0, *nowhere), (0,), output.bounds[0], "whole")
        for dim in range(1, operand.rank):
            builder.factor((dim, dim, *nowhere), (dim,), operand.bounds[dim])
        return builder.factor(
            (None, None, 0, 0, 0, 0), (None,), operands[2].bounds[0], "whole"
        ).build()

    def reference(self, *members: DeviceValues) -> list[DeviceValues]:
        results = [member[1].copy() for member in members]
        for sender in range(len(members)):
            for to, result in enumerate(results):
                for part in self.slices(members[sender], members[to], sender, to, len(members)):
                    start, place, size = part
                    result[place : place + size] = members[sender][0][start : start + size]
        return [(result,) for result in results]

    def slices(
        self, sender: DeviceValues, receiver: DeviceValues, here: int, to: int, count: int
    ) -> list[tuple[int, int, int]]:
        """The slices from one device of a group to another: first rows here and there, and size."""
        each, rest = divmod(len(sender[2]), count)
        require(
            rest == 0,
            f"{self.name}: {len(sender[2])} slices for {count} devices",
            "give as many slices for every device of a group",
        )
        parts = []
        for n in range(each):
            # Operands 2 to 5: input_offsets, send_sizes, output_offsets and recv_sizes.
            start, size, place = (int(sender[k][to * each + n]) for k in (2, 3, 4))
            awaited = int(receiver[5][here * each + n])
            if size != awaited:
                raise WeftError(
                    f"{self.name}: device {here} of a group sends {size} rows to device {to}, "
                    f"which awaits {awaited}",
                    help="recv_sizes are the send_sizes of the others, exchanged by an all_to_all",
                )
            self.check_rows(start, size, len(sender[0]), "sent")
            self.check_rows(place, size, len(receiver[1]), "written")
            parts.append((start, place, size))
        return parts

    def check_rows(self, start: int, size: int, rows: int, what: str) -> None:
        """Refuse a slice that is not inside of so many rows."""
        if size < 0 or (size and not 0 <= start <= rows - size):
            raise WeftError(
                f"{self.name}: rows {start} to {start + size} of {rows} are {what}",
                help="offsets and sizes must stay inside of the operand and of the output",
            )

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        # On average devices send what they receive: no more rows than either has.
        sent = min(moved(operands[0]), moved(operands[1]))
        return Work(bytes=moved(*operands, *results), sent=sent)

    def decomposition(self, name: str, operands: Types, meshes: Mapping[str, Mesh]) -> Function:
        """JAX's custom call."""
        # Imported here: programs that are loaded and run need no custom calls.
        from weft.ops.custom_calls.custom import CustomCall

        groups = GROUPS.write(device_lists(self.replica_groups, meshes))
        channel = f"channel_id = {self.channel} : i64, " if self.channel else ""
        call = CustomCall(
            CALL,
            (operands[1],),
            backend_config=f"{{{channel}replica_groups = {groups}}}",
            api_version=4,
        )
        args = tuple(Value(t, None, n) for n, t in enumerate(operands))
        node = apply(call, *args)
        return Function(name, Region(args, [node], node.results), "private")
