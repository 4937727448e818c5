"""Recipes: tables and figures of the papers as files, and their numbers and claims compared with runs."""

from fedax.experiments.recipes.recipe import SCALES as SCALES
from fedax.experiments.recipes.recipe import Recipe as Recipe
from fedax.experiments.recipes.recipe import load as load
from fedax.experiments.recipes.recipe import recipe_files as recipe_files
