"""Classification of pictures with trained models."""

from teka.prediction.pictures import PictureSettings
from teka.prediction.predict import Prediction, predict

__all__ = ["PictureSettings", "Prediction", "predict"]
