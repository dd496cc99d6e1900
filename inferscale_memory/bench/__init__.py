"""Measurements of this machine, behind ``inferscale bench``: speed (``ttft``) and exactness (``exactness``)."""
