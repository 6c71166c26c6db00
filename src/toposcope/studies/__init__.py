"""Research questions rather than tools: the papers' claims, language-model cells, what a refinement buys."""
