"""`hpcfl.values.dataclass` makes the classes that `dataclasses.dataclass` makes."""

import dataclasses

import pytest

from hpcfl import values


@pytest.mark.parametrize("flags", [{}, {"frozen": True}, {"frozen": True, "eq": False}])
def test_a_class_behaves_as_one_of_dataclasses(flags):
    def told(decorator):
        """Return what can be seen of a class and of its heir."""

        @decorator(**flags)
        class Point:
            x: int
            y: list = values.field(default_factory=list, repr=False, compare=False)

        @decorator(**flags, kw_only=True)
        class Heir(Point):
            z: int = 3

            def __post_init__(self):
                object.__setattr__(self, "sum", self.x + self.z)

        one, other, heir = Point(1), Point(1, [2]), Heir(1)
        seen = [
            repr(one),
            repr(heir),
            one == other,
            one == heir,
            heir.sum,
            one != values.replace(one, x=2),
        ]
        for change in (
            lambda: setattr(one, "x", 5),
            lambda: setattr(one, "new", 5),
            lambda: delattr(one, "x"),
            lambda: hash(one) == hash(other),
        ):
            try:
                seen.append(change())
            except (TypeError, dataclasses.FrozenInstanceError) as error:
                seen.append(type(error))
        return [*seen, values.asdict(heir)]

    assert told(dataclasses.dataclass) == told(values.dataclass)


def test_a_user_inherits_by_dataclasses():
    base = values.dataclass(frozen=True)(type("Base", (), {"__annotations__": {"x": int}}))
    heir = values.dataclass(frozen=True)(type("Heir", (base,), {}))
    for each in (base, heir):
        assert dataclasses.dataclass(frozen=True)(type("User", (each,), {}))(1).x == 1
