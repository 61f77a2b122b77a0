"""The documentation shows the port of a real script as it is."""

from tests.port import PAGE, SHOWN, port


def test_the_page_shows_how_the_two_scripts_differ() -> None:
    shown = SHOWN.findall(PAGE.read_text())
    assert shown == [port()], "write it anew with python -m tests.port"


def test_the_port_leaves_model_data_optimizer_and_schedule_as_they_were() -> None:
    removed = [line for line in port().splitlines() if line.startswith("-")]
    kept = ("nn.Conv2d", "augmented", "torch.optim.SGD", "LinearLR", "MultiStepLR", "SequentialLR(")
    assert not [line for line in removed for word in kept if word in line]
