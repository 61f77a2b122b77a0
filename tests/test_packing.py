"""A value made of arrays and numbers is the same after packing, or saved as named arrays in an HDF5 file."""

import re
from typing import Any

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mpi_ata.errors import BadResultError
from mpi_ata.packing import HEADER, from_state, pack, to_state, unpack, unpack_all
from mpi_ata.runfile.hdf5 import from_image, to_image

KINDS = st.one_of(
    arrays.boolean_dtypes(),
    arrays.integer_dtypes(),
    arrays.unsigned_integer_dtypes(),
    arrays.floating_dtypes(),
    arrays.complex_number_dtypes(),
    arrays.unicode_string_dtypes(max_len=4),
    arrays.byte_string_dtypes(max_len=4),
)
ARRAYS = arrays.arrays(KINDS, arrays.array_shapes(min_dims=0, min_side=0, max_dims=3, max_side=4))
PLAIN = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.complex_numbers(), st.text(max_size=5)
)
LEAVES = st.one_of(PLAIN, ARRAYS, ARRAYS.filter(lambda array: array.ndim == 0).map(lambda array: array[()]))
KEYS = st.one_of(st.text(max_size=3), st.integers(), st.tuples(st.integers(), st.text(max_size=2)))
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(KEYS, inner, max_size=3),
    ),
    max_leaves=8,
)


def same(one: Any, other: Any) -> bool:
    """Whether two values are the same in type and content, NaN included."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(map(same, one.values(), other.values()))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray | np.generic):
        alike = one.dtype == other.dtype and one.shape == other.shape
        return bool(alike and one.tobytes() == other.tobytes())
    return bool(one == other or repr(one) == repr(other))


@given(st.lists(VALUES, max_size=3))
def test_packed_values_joined_end_to_end_come_back_one_by_one(values: list[Any]) -> None:
    joined = np.concatenate([np.empty(0, np.uint8), *map(pack, values)])
    assert same(unpack_all(joined), values)


@given(VALUES, st.data())
@settings(max_examples=300)
def test_damaged_bytes_give_a_value_or_one_error(value: Any, data: st.DataObject) -> None:
    packed = pack(value)
    for _ in range(data.draw(st.integers(1, 4))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    packed = packed[: data.draw(st.integers(0, len(packed)))]
    try:
        unpack_all(packed)
    except BadResultError as error:
        assert "packed value" in str(error)  # noqa: PT017  (it need not be raised)


def test_an_array_of_any_layout_is_packed_in_the_order_of_its_indices() -> None:
    array = np.arange(24.0).reshape(2, 3, 4).transpose(2, 0, 1)[::2]
    assert unpack(pack(array)).tolist() == array.tolist()


def test_unpacked_arrays_are_aligned_views_that_are_as_writeable_as_the_bytes() -> None:
    packed = pack({"a": np.ones(3, np.int8), "b": np.ones(2)})
    value = unpack(packed)
    value["b"][0] = 5.0
    assert unpack(packed)["b"].tolist() == [5.0, 1.0]
    assert value["b"].flags.aligned
    packed.flags.writeable = False
    assert not unpack(packed)["b"].flags.writeable


ITSELF: list[Any] = []
ITSELF.append(ITSELF)


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ({"a": [1, {2, 3}]}, r"x['a'][1] is of type set, but a value must be made of arrays, numbers"),
        ((np.array([None]),), "x[0] is an array of object, but a value must be"),
        ({"a": np.zeros(2, [("b", "f8")])}, "x['a'] is an array of [('b', '<f8')], but"),
        ([10**5000], "x cannot be sent or saved: Exceeds the limit"),
        (np.ma.array([1.0, 2.0], mask=[False, True]), "x is a masked array, whose mask cannot be sent"),
        ({frozenset(): 1}, "a key of x is of type frozenset, but"),
        (ITSELF, "x is nested too deeply, or contains itself"),
    ],
)
@pytest.mark.parametrize("write", [pack, to_state])
def test_what_cannot_be_packed_or_saved_is_named(write: Any, value: Any, complaint: str) -> None:
    with pytest.raises(BadResultError, match=f"^{re.escape(complaint)}"):
        write(value, "x")


@pytest.mark.parametrize("text", [b"[1]", b'{"array":["(2,",1]}', b'{"array":["f8, (",1]}'])
def test_a_description_of_no_value_is_rejected(text: bytes) -> None:
    size = -(-(16 + len(text)) // 16) * 16
    data = np.frombuffer((HEADER.pack(size, len(text)) + text).ljust(size), np.uint8)
    with pytest.raises(BadResultError, match="a packed value is damaged"):
        unpack(data)


def test_subclasses_of_dict_list_and_tuple_arrive_as_plain_ones() -> None:
    class Row(dict[str, int]):
        pass

    found = unpack(pack(Row(a=1)))
    assert type(found) is dict
    assert found == {"a": 1}


@settings(max_examples=300)
@example(np.array(0, ">i2"))
@example({"a.b": np.array([1]), "a": {"b": np.array([2])}, "a/b": np.array([3])})  # names that look alike
@example({"*" * i: np.ones(1) for i in range(1, 1200)})
@example({"form": np.arange(3) * 1j, "n": 0})  # beside the description, which has this name
@example({"form": {"form": np.ones(2)}, "n": 7})
@given(VALUES)
def test_a_value_is_the_same_after_it_was_saved(value: Any) -> None:
    _, groups = from_image(to_image({}, {"method": to_state(value, "x")}))
    assert same(from_state(groups["method"], "x"), value)


def test_arrays_and_numbers_are_saved_under_their_names_for_other_readers() -> None:
    value = {"mean": np.ones(2), "rows": [np.zeros(3), 7], "n": 3, "weights": [0.5, 0.5], "name": "a"}
    state = to_state(value, "x")
    assert set(state) == {"x.mean", "x.rows.0", "x.n", "x.weights", "x.form"}
    assert state["x.n"] == 3
    assert state["x.weights"].tolist() == [0.5, 0.5]
    assert set(to_state(np.ones(3), "x")) == {"x"}


@pytest.mark.parametrize(
    ("state", "complaint"),
    [
        ({"k": np.array(1)}, "the state has no 'x'; it has: k"),
        ({"x.form": np.array(b'{"array":["x.mean","<f8",2]}')}, r"x\.mean"),
        ({"x.form": np.array(200_000_000)}, r"x\.form is of .* but must be one string"),
        ({"x.form": np.array([b"1", b"2"])}, r"x\.form is of .* but must be one string"),
    ],
)
def test_a_state_with_missing_or_wrong_parts_is_rejected(state: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        from_state(state, "x")
