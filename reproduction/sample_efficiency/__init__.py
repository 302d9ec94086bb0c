"""Study of sample efficiency: the accuracy of models with few training images."""
