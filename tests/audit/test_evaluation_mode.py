import pytest
import torch
from torch import nn

from teka.audit.evaluation_mode import check_evaluation_mode, evaluating


def test_a_module_in_evaluation_mode_and_a_plain_function_pass():
    check_evaluation_mode("function", nn.Sequential(nn.Dropout()).eval())
    check_evaluation_mode("function", torch.sin)


def test_a_module_in_training_mode_is_told_to_call_eval():
    with pytest.raises(ValueError, match=r"function is a Dropout and it is in training mode.*\.eval\(\)"):
        check_evaluation_mode("function", nn.Dropout())


def test_a_part_in_training_mode_is_named():
    model = nn.Sequential(nn.Identity(), nn.Dropout()).eval()
    model[1].train()
    with pytest.raises(ValueError, match=r"its part '1' is in training mode"):
        check_evaluation_mode("predict", model)


def test_a_method_of_a_training_module_is_caught():
    with pytest.raises(ValueError, match="Dropout"):
        check_evaluation_mode("function", nn.Dropout().forward)


def test_a_module_is_in_evaluation_within_the_context_and_as_it_was_after_it():
    module = nn.Sequential(nn.Dropout(), nn.Sequential(nn.Dropout()).eval())
    before = [part.training for part in module.modules()]

    def fail() -> None:
        with evaluating(module):
            assert not any(part.training for part in module.modules())
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert [part.training for part in module.modules()] == before
    assert True in before
    assert False in before


def test_no_module_is_no_context():
    with evaluating(None):
        pass
