from teka.experiments.reference import paper_models


def test_there_are_five_models_with_accuracy_parameters_and_operations():
    models = paper_models()
    assert len(models) == 5
    assert models["SA quadratic"] == (93.8, "12.1M", "6.2B")
    assert models["SA quadratic generalized pruned"] == (93.4, "9.7M", "4.9B")
    assert models["SA learned"].accuracy == 91.8
    assert models["ResNet18"].flops == "1.1B"
