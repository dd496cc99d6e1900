"""Measurements of this machine, behind ``inferscale bench``: speed, size and exactness, a module for each command."""
