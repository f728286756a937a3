"""DeAR: attribute tokens in the last layers, routed to expert heads by a role mask, fused by learned weights."""
