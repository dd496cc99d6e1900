"""``inferscale tune``: the cheapest setting that keeps answers close to full prefill, on one's own model and memory."""
