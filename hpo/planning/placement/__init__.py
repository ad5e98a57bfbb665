"""Which placements a machine allows, and which of them is best."""
