"""`hpo mcp`: the tools that an assistant is given, by the Model Context Protocol."""
