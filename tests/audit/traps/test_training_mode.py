from torch import nn

from teka.audit.traps import training_mode


def test_a_part_that_trains_is_named():
    module = nn.Sequential(nn.Linear(3, 3), nn.Dropout()).eval()
    module[1].train()
    (trap,) = training_mode(module)
    assert trap.name == "training mode"
    assert trap.severity == "note"
    assert "1 of its parts, the first '1'" in trap.message


def test_a_module_in_evaluation_is_no_trap():
    assert training_mode(nn.Sequential(nn.Linear(3, 3), nn.Dropout()).eval()) == ()
