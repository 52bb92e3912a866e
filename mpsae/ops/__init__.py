"""Numerical operators; each keeps a plain definition beside whatever makes it fast."""
