"""The recipes by name."""

from __future__ import annotations

from whence.zoo.training import fashion, language, molecules, mosaics, needle, questions, sentiment, translation
from whence.zoo.training.loop import Recipe

RECIPES: dict[str, Recipe] = {
    "sentiment": sentiment.RECIPE,
    "questions": questions.RECIPE,
    "translation": translation.RECIPE,
    "language": language.RECIPE,
    "needle": needle.RECIPE,
    "fashion-cnn": fashion.CNN,
    "fashion-vit": fashion.VIT,
    "mosaic-vit": mosaics.RECIPE,
    "molecules": molecules.RECIPE,
}
