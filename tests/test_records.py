"""Dataclasses whose methods are compiled on first use are those of the standard library."""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import FrozenInstanceError, asdict, field, fields, is_dataclass, replace
from typing import ClassVar

import pytest

from weft.records import dataclass

OPTIONS = [
    {},
    {"frozen": True},
    {"slots": True},
    {"frozen": True, "slots": True},
    {"frozen": True, "slots": True, "eq": False},
    {"frozen": True, "slots": True, "weakref_slot": True},
]


def both(options, *, base=False):
    """The same class, of this decorator and of the standard library's."""

    def made(decorator):
        @decorator(**options)
        class Base:
            """With a first field."""

            first: int = 0

        @decorator(**options)
        class Record(Base if base else object):
            """With fields of every kind."""

            count: ClassVar[int] = 3
            name: str = "x"
            rows: list[int] = field(default_factory=list)
            hidden: int = field(default=7, repr=False, compare=False)
            later: int = field(init=False, default=5)

            def double(self):
                return 2 * len(self.name)

        return Record

    return made(dataclass), made(dataclasses.dataclass)


@pytest.mark.parametrize("base", [False, True])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_as_in_the_standard_library(options, base):
    ours, theirs = both(options, base=base)
    assert is_dataclass(ours)
    assert [f.name for f in fields(ours)] == [f.name for f in fields(theirs)]
    assert ours.__match_args__ == theirs.__match_args__
    given = [(), ("a",), ("a", [1]), ("a", [1], 8)]
    for args in [(4, *a) if base else a for a in given]:
        one, other = ours(*args), theirs(*args)
        assert repr(one) == repr(other)
        assert asdict(one) == asdict(other)
        assert one.hidden == other.hidden and one.double() == other.double()
        assert repr(replace(one, name="b")) == repr(replace(other, name="b"))
        assert (ours(*args) == ours(*args)) == (theirs(*args) == theirs(*args))
        assert (one == other) is False
        assert (one != ours(name="other")) == (other != theirs(name="other"))
        assert asdict(copy.copy(one)) == asdict(one)
        assert asdict(copy.deepcopy(one)) == asdict(one)
    for wrong in ({"nobody": 1}, {"later": 1}):
        with pytest.raises(TypeError, match="unexpected keyword argument"):
            ours(**wrong)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_only_frozen_instances_refuse_assignments(options):
    for cls in both(options):
        made = cls("a")
        if not options.get("frozen"):
            made.name = "b"
            assert made.name == "b"
            continue
        with pytest.raises(FrozenInstanceError, match="cannot assign to field 'name'"):
            made.name = "b"
        with pytest.raises(FrozenInstanceError, match="cannot delete field 'name'"):
            del made.name
        assert made.name == "a"


@pytest.mark.parametrize("options", [o for o in OPTIONS if o.get("frozen")], ids=str)
def test_what_is_no_field_is_a_matter_of_the_class(options):
    cls, _ = both(options)  # the standard library's fails where it has slots
    made = cls("a")
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'other'"):
        made.other = 1
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'other'"):
        del made.other

    class Plain(cls):
        """No dataclass: it has attributes of its own."""

    plain = Plain("a")
    plain.other = 1
    assert plain.other == 1
    del plain.other
    assert not hasattr(plain, "other")
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'name'"):
        plain.name = "b"
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'name'"):
        del plain.name


def test_equal_instances_have_equal_hashes():
    @dataclass(frozen=True, slots=True)
    class Point:
        """Two numbers, of which one counts."""

        x: float
        y: float = field(default=0.0, compare=False)

    assert Point(1, 2) == Point(1, 3) != Point(2, 2)
    assert hash(Point(1, 2)) == hash(Point(1, 3)) == hash((1,))
    assert len({Point(1, 2), Point(1, 3), Point(2, 3)}) == 2
    nan = float("nan")
    assert Point(nan) == Point(nan), "the same object, as in a tuple"


def test_what_can_change_has_no_hash():
    @dataclass(slots=True)
    class Row:
        """A number."""

        x: int

    with pytest.raises(TypeError, match="unhashable"):
        hash(Row(1))


def test_methods_of_its_own_stay():
    @dataclass(frozen=True, slots=True)
    class Own:
        """All methods are its own."""

        x: int
        twice: int = field(init=False)

        def __post_init__(self):
            object.__setattr__(self, "twice", 2 * self.x)

        def __eq__(self, other):
            return True

        def __hash__(self):
            return 1

        def __repr__(self):
            return f"<{self.x}>"

    assert Own(3).twice == 6
    assert Own(3) == Own(4) and hash(Own(3)) == 1 and repr(Own(3)) == "<3>"

    @dataclass(init=False)
    class Given:
        """Made by hand."""

        x: int

        def __init__(self, text):
            self.x = int(text)

    assert Given("3") == Given("3") != Given("4")


def test_an_instance_within_itself_can_be_shown():
    @dataclass
    class Chain:
        """A link to another."""

        next: object = None

    chain = Chain()
    chain.next = chain
    assert repr(chain).endswith("Chain(next=...)")


def test_methods_are_compiled_on_first_use():
    @dataclass(frozen=True, slots=True)
    class Late:
        """One field."""

        x: int

    first = Late.__init__
    assert Late(1) == Late(1)
    assert Late.__init__ is not first
    assert Late.__init__.__qualname__.endswith("Late.__init__")


def test_classes_of_the_standard_library_extend_frozen_records():
    @dataclass(frozen=True)
    class Base:
        x: int

    @dataclasses.dataclass(frozen=True)
    class Theirs(Base):
        y: int = 2

    @dataclass(frozen=True)
    class Ours(Base):
        y: int = 3

    assert Theirs(1) == Theirs(1, 2) and Ours(1).y == 3
    for made in (Base(1), Theirs(1), Ours(1)):
        with pytest.raises(FrozenInstanceError):
            made.x = 5  # type: ignore[misc]
