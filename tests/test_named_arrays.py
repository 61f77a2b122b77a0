"""A value made of arrays and numbers is the same after it was saved as named arrays in an HDF5 file."""

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings

from mpi_ata.errors import BadResultError
from mpi_ata.packing import from_state, to_state
from mpi_ata.runfile.hdf5 import from_image, to_image
from tests.test_packing import VALUES, same


@settings(max_examples=300)
@example(np.array(0, ">i2"))
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


def test_an_array_of_numbers_is_saved_as_it_is() -> None:
    assert set(to_state(np.ones(3), "x")) == {"x"}


def test_names_that_look_alike_do_not_collide() -> None:
    value = {"a.b": np.array([1]), "a": {"b": np.array([2])}, "a/b": np.array([3])}
    assert same(from_state(to_state(value, "x"), "x"), value)


@pytest.mark.parametrize("entry", [np.arange(3.0), np.arange(3) * 1j, 7, {"form": np.ones(2)}])
def test_an_entry_that_is_called_form_is_saved_beside_the_description(entry: Any) -> None:
    value = {"form": entry, "n": 0}
    assert same(from_state(to_state(value, "x"), "x"), value)


def test_a_thousand_names_that_look_alike_do_not_collide() -> None:
    value = {"*" * i: np.ones(1) for i in range(1, 1200)}
    assert same(from_state(to_state(value, "x"), "x"), value)


def test_a_value_with_missing_parts_is_rejected() -> None:
    state = to_state({"mean": np.ones(2)}, "x")
    del state["x.mean"]
    with pytest.raises(ValueError, match=r"x\.mean"):
        from_state(state, "x")
    with pytest.raises(ValueError, match="the state has no 'x'; it has: k"):
        from_state({"k": np.array(1)}, "x")


@pytest.mark.parametrize("form", [np.array(200_000_000), np.array(1.5), np.array([b"1", b"2"])])
def test_a_description_that_is_no_string_is_rejected(form: Any) -> None:
    with pytest.raises(ValueError, match=r"x\.form is of .* but must be one string"):
        from_state({"x.form": form}, "x")


def test_a_masked_array_is_rejected() -> None:
    with pytest.raises(BadResultError, match="x is a masked array, whose mask cannot be sent or saved"):
        to_state(np.ma.array([1.0, 2.0], mask=[False, True]), "x")
