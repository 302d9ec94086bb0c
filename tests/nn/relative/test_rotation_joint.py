from teka import functional
from teka.nn import RotationJoint


def test_it_gives_the_kernel_with_its_parameters_and_the_room_its_positions_need():
    relative = RotationJoint(3, 2, 5, num_frequencies=4)
    kernel = relative()
    assert isinstance(kernel, functional.RotationJoint)
    assert kernel.cosine_weight is relative.cosine_weight
    assert kernel.num_position_features == relative.num_position_features == 2 * 3 * 4
    assert not relative.has_own_heads
