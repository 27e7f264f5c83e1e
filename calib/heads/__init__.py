"""Head plans: Taylor importance, circuits, random heads, and budgets."""
