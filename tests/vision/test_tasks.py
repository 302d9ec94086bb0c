"""Audits of segmentation and detection models of torchvision.

These tests need torchvision: `make test-vision` creates an environment with it.
"""

import dataclasses

import pytest
import torch

from teka.audit import AuditSettings, audit
from teka.audit.adapters import LoadOptions, load

SHIFTS = AuditSettings(shifts=[(0, 2), (4, 0)], parts=(), num_examples=0, num_resamples=40)


@pytest.mark.parametrize(
    ("name", "size"),
    [("lraspp_mobilenet_v3_large", 64), ("fasterrcnn_mobilenet_v3_large_320_fpn", 96)],
)
def test_masks_and_boxes_of_torchvision_models_are_shifted_back(name, size):
    subject = load(f"torchvision:{name}", LoadOptions(weights="random", input_size=size))
    images = torch.rand(3, 3, size, size, generator=torch.Generator().manual_seed(0))
    report = audit(
        subject.function, images, settings=dataclasses.replace(SHIFTS, output=subject.output)
    )
    assert report.failures == ()
    # Results of random weights may be invalid, so that `report.number` would raise an error.
    assert 0 <= report.metrics[0].numbers["overlap"].value <= 1
    assert subject.output in ("segmentation", "boxes")
