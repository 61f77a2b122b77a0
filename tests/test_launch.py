"""What a process learns from the launcher that has started it."""

import pytest

from mpi_ata import launch


@pytest.mark.parametrize("name", launch.LOCAL_RANK)
def test_the_number_of_a_rank_on_its_node_is_the_launchers(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for other in launch.LOCAL_RANK:
        monkeypatch.delenv(other, raising=False)
    assert launch.local_rank() == 0
    monkeypatch.setenv(name, "3")
    assert launch.local_rank() == 3
