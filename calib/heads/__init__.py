"""Which heads each member keeps: Taylor importance, circuits, budgets, plans."""
