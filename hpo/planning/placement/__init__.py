"""The placements that a machine allows, and the choice of the best one."""
