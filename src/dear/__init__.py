"""DeAR."""
