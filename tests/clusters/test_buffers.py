"""Memory that is reused and shared."""

import gc
import secrets
from collections.abc import Iterator
from pathlib import Path
from weakref import ref

import numpy as np
import pytest

from mpi_ata.clusters.mpi.buffers import FOLDER, NOWHERE, BufferPool, SharedBufferPool

FORM = np.zeros((3, 400), np.float32)


@pytest.fixture
def name() -> str:
    return f"mpi_ata-test-{secrets.token_hex(8)}"


@pytest.fixture
def shared(name: str) -> Iterator[SharedBufferPool]:
    slots = SharedBufferPool(FORM, name, owner=True)
    yield slots
    slots.close()


def test_arrays_have_the_shape_of_the_template() -> None:
    array = BufferPool(FORM).take()
    assert (array.shape, array.dtype) == (FORM.shape, FORM.dtype)
    assert array.flags.writeable


def test_a_slot_is_reused_when_nobody_holds_its_array() -> None:
    slots = BufferPool(FORM)
    first, second = slots.take(), slots.take()
    assert [slots.number_of(array) for array in (first, second, FORM)] == [0, 1, NOWHERE]
    del first
    third = slots.take()
    assert slots.number_of(third) == 0
    assert slots.number_of(slots.take()) == 2


def test_a_view_of_an_array_holds_its_slot() -> None:
    slots = BufferPool(FORM)
    view = slots.take()[1:].reshape(-1).view(np.uint8)[7:]
    other = slots.take()
    assert slots.number_of(other) == 1
    del view
    assert slots.number_of(slots.take()) == 0


def test_one_process_reads_what_another_writes(shared: SharedBufferPool, name: str) -> None:
    other = SharedBufferPool(FORM, name)
    arrays = [shared.take() for _ in range(3)]
    for number, array in enumerate(arrays):
        array[:] = number
    assert [other.at(number).mean() for number in range(3)] == [0, 1, 2]
    other.at(1)[:] = 7
    assert arrays[1].mean() == 7
    other.close()


def test_a_point_is_copied_once(shared: SharedBufferPool) -> None:
    x, y = np.ones_like(FORM), np.full_like(FORM, 2)
    place = shared.put(x)
    assert place is not x
    assert place.mean() == 1
    assert shared.put(x) is place
    assert shared.put(place) is place
    assert shared.put(y).mean() == 2
    assert place.mean() == 1


def test_nothing_is_in_the_file_system_once_it_is_unlinked(shared: SharedBufferPool, name: str) -> None:
    assert (Path(FOLDER) / name).exists()
    shared.unlink()
    assert not (Path(FOLDER) / name).exists()
    assert shared.take().shape == FORM.shape
    with pytest.raises(FileNotFoundError):
        SharedBufferPool(FORM, name)


def test_memory_that_does_not_exist_is_not_handed_out(shared: SharedBufferPool, name: str) -> None:
    vast = np.broadcast_to(np.zeros(1), (shared.room() // 8 // 2 + 1000,))
    slots = SharedBufferPool(vast, f"{name}-vast", owner=True)
    assert slots.free() is None
    assert slots.put(vast) is vast
    slots.close()


def test_memory_is_freed_as_soon_as_nobody_holds_it(name: str) -> None:
    gc.disable()  # which would free it some time later
    try:
        slots = SharedBufferPool(FORM, name, owner=True)
        held = [slots.put(FORM.copy()), slots.take()]
        memory = [ref(each) for each in slots._memory.values()]
        slots.close()
        del slots
        assert [each() is None for each in memory] == [False, False]
        del held
        assert [each() is None for each in memory] == [True, True]
    finally:
        gc.enable()
