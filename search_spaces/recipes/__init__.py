"""Published large-batch training runs as data, one YAML file each.

::

    from search_spaces.recipes import recipe, recipes

    recipe("goyal2017").settings_at(8192).learning_rate     # 3.2
    [each.name for each in recipes()]

Every figure has a stated provenance: read in a source, calculated, or recalled and not checked.
"""

from search_spaces.recipes.loading import names, parse_recipe, recipe, recipes
from search_spaces.recipes.recipe import PROVENANCE, Recipe, RecipeError, Result, Scaling, Source

__all__ = [
    "PROVENANCE",
    "Recipe",
    "RecipeError",
    "Result",
    "Scaling",
    "Source",
    "names",
    "parse_recipe",
    "recipe",
    "recipes",
]
