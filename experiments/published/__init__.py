"""Published measurements beside what this simulator says: one module for each kind of figure."""
