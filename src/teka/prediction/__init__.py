"""What trained models say of pictures."""

from teka.prediction.pictures import PictureSettings
from teka.prediction.predict import Prediction, predict

__all__ = ["PictureSettings", "Prediction", "predict"]
