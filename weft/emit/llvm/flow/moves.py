"""Moves of loop-carried values at the end of a round: copies, and exchanges of buffers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from weft.kernels.flow_buffers import Buffer

BufferMove: TypeAlias = tuple[Buffer, Buffer]  # from, to
BufferExchange: TypeAlias = list[
    Buffer
]  # each becomes what the next was, the last what the first was

FEW = 128  # bytes that are copied rather than that their buffers change places


def exchanges(
    moves: Sequence[BufferMove], span: tuple[int, int]
) -> tuple[list[BufferMove], list[BufferExchange]]:
    """Moves at a loop's back edge: those that are copies, and those that exchange buffers.

    Buffers may be exchanged if the source is not live after the move.
    """
    left = [(source, target) for source, target in moves if source is not target]
    sources = Counter([id(source) for source, _ in left])
    # A buffer may be carried twice: under one of the names it stays where it is.
    stays = {id(source) for source, target in moves if source is target}
    targets = {id(target) for _, target in left}
    begin, end = span

    def may_turn(source: Buffer, target: Buffer) -> bool:
        if id(source) in stays:
            return False
        large = source.nbytes == target.nbytes > FEW and not source.is_input
        outside = any(life.begin <= begin and life.end >= end for life in source.lives)
        return large and sources[id(source)] == 1 and (id(source) in targets or not outside)

    turned = {id(target): (source, target) for source, target in left if may_turn(source, target)}
    # A chain that ends at a buffer which is copied into cannot turn: it is needed as it was.
    copied = {id(target) for _, target in left} - turned.keys()
    changed = True
    while changed:
        stuck = [at for at, (source, _) in turned.items() if id(source) in copied]
        changed = bool(stuck)
        for at in stuck:
            del turned[at]
            copied.add(at)
    copies = [move for move in left if id(move[1]) not in turned]
    return copies, list(_chains(turned))


def _chains(turned: dict[int, BufferMove]) -> Iterator[BufferExchange]:
    """Moves that follow each other, as buffers: each is moved to from the next."""
    read = {id(source) for source, _ in turned.values()}
    starts = [target for at, (_, target) in turned.items() if at not in read]
    done: set[int] = set()
    for first in [*starts, *[target for _, target in turned.values()]]:
        if id(first) in done:
            continue
        chain, at = [first], first
        done.add(id(first))
        while id(at) in turned:
            at = turned[id(at)][0]
            if at is first:
                break
            done.add(id(at))
            chain.append(at)
        yield chain


def in_sequence(moves: Sequence[BufferMove]) -> Iterator[tuple[Buffer | None, Buffer | None]]:
    """The copies of a parallel move, in sequence.

    Without a target, the source is kept aside; without a source, what was kept aside is copied.
    """
    left: list[tuple[Buffer | None, Buffer]] = [
        (source, target) for source, target in moves if source is not target
    ]
    while left:
        needed = Counter([id(source) for source, _ in left if source is not None])
        free = next((n for n, (_, target) in enumerate(left) if not needed[id(target)]), None)
        if free is not None:
            yield left.pop(free)
            continue
        # All that is left goes round in circles.
        source, target = left[0]
        assert source is not None, "one is kept aside at a time"
        yield source, None
        left[0] = (None, target)
