import os

import pytest
import torch

from teka.experiments.study.threads import share_of_cores, torch_threads


def test_processes_share_the_cores_and_each_has_a_thread():
    cores = os.cpu_count() or 1
    assert share_of_cores(1) == cores
    assert share_of_cores(cores + 1) == 1


def test_no_process_is_an_error():
    with pytest.raises(ValueError, match="processes is 0, expected at least 1"):
        share_of_cores(0)


def test_threads_are_what_they_were_after_an_error():
    before, within = torch.get_num_threads(), 0
    with pytest.raises(KeyError), torch_threads(before + 1):  # noqa: PT012
        within = torch.get_num_threads()
        raise KeyError
    assert (within, torch.get_num_threads()) == (before + 1, before)
