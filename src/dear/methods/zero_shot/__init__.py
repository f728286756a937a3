"""Plain CLIP as a method: nothing to train, everything to compare with."""
