"""Recipes: tables and figures of the papers as files, and their numbers and claims compared with
runs.
"""

from fedax.papers.recipe import Recipe as Recipe
from fedax.papers.recipe import load as load
from fedax.papers.recipe import recipe_files as recipe_files
