"""`hpo mcp`: the tools offered to an assistant over the Model Context Protocol."""
